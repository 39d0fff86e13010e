//! The files of a cluster, all on private mounts: they vanish with its last process.

use std::env;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::network;
use super::nodes::Node;
use super::options::ClusterOptions;
use super::{mpirun, own_tmp, rsh, slurm};
use crate::error::{Context, Result, failure};
use crate::{debian, install, paths, run, sys};

/// Folders that exist on every Debian and that MPI programs have no use for; the first one that is
/// there is covered by the cluster's files.
const MOUNT_POINTS: [&str; 4] = ["/run/lock", "/srv", "/mnt", "/media"];

/// Where the shared files of a cluster are.
pub struct Stage {
    folder: PathBuf,
}

impl Stage {
    /// Makes /proc, the folder for files, the host table and the hostfile of a new cluster.
    pub fn build(options: &ClusterOptions) -> Result<Stage> {
        let private = libc::MS_REC | libc::MS_PRIVATE;
        sys::mount("", "/", "", private, "").context(|| {
            "making the mounts private (if this is not root: the kernel allows user namespaces \
             but no mounts in them; run as root)"
                .into()
        })?;
        if let Some(tree) = &options.root {
            debian::enter(tree, &debian::storage()?, &[])?;
        }
        own_tmp::make_named(options)?;
        let folder = MOUNT_POINTS.into_iter().map(PathBuf::from).find(|f| f.is_dir());
        let folder = folder.ok_or_else(|| {
            failure!("none of {} exists: make one of these folders", MOUNT_POINTS.join(", "))
        })?;
        sys::mount("proc", "/proc", "proc", libc::MS_NOSUID | libc::MS_NODEV, "").context(
            || "mounting /proc for the cluster (a container that hides parts of /proc?)".into(),
        )?;
        let stage = Stage { folder: folder.join("rustbtl") };
        mount_tmpfs(&folder, "mode=755")?;
        for sub in [stage.reports(), stage.node_tmp(), stage.run_time(), stage.failpoints()] {
            fs::create_dir_all(&sub).context(|| sub.display().to_string())?;
        }
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(stage.run_time(), private)
            .context(|| stage.run_time().display().to_string())?;
        stage.write_host_table(options)?;
        symlink("/proc/1/exe", stage.rsh_agent()).context(|| "linking the rsh agent".into())?;
        if options.root.is_some() && !options.plain && !options.script {
            install()?;
        }
        if mpirun::is_installed_with_prrte(options) && !options.script {
            stage.cover_parameters(options)?;
        }
        Ok(stage)
    }

    /// Names our components as they are built in PMIx's parameters, where jobs of the cluster look
    /// for them. Nobody else sees that, and what is installed is not looked at.
    fn cover_parameters(&self, options: &ClusterOptions) -> Result<()> {
        let home = env::var_os("HOME").unwrap_or_default();
        let folder = (!options.plain).then(paths::mca);
        let files = install::Parameters::of_cluster(home.as_ref(), folder.as_deref())?;
        for (number, (file, text)) in files.into_iter().enumerate() {
            let cover = self.folder.join(format!("pmix-{number}.conf"));
            fs::write(&cover, text).context(|| cover.display().to_string())?;
            let from = cover.to_str().expect("one of our own names");
            sys::mount(from, &file, "", libc::MS_BIND, "")
                .context(|| format!("covering {} in the cluster", file.display()))?;
        }
        Ok(())
    }

    /// A folder that each node has for itself: Open MPI's session directories.
    pub fn node_tmp(&self) -> PathBuf {
        self.folder.join("tmp")
    }

    /// Where `rustbtl` finds the jobs of this cluster.
    pub fn run_time(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// Is there a job that can take a checkpoint?
    pub fn has_job(&self) -> bool {
        fs::read_dir(self.run_time()).is_ok_and(|mut entries| entries.next().is_some())
    }

    /// A folder that all nodes share: what ranks write about themselves.
    pub fn reports(&self) -> PathBuf {
        self.folder.join("report")
    }

    /// A folder that all nodes share: where guardians are to wait (failpoints).
    pub fn failpoints(&self) -> PathBuf {
        self.folder.join("failpoints")
    }

    /// Configuration, state and logs of Slurm.
    pub fn slurm(&self) -> PathBuf {
        self.folder.join("slurm")
    }

    /// The hostfile for mpirun.
    pub fn hostfile(&self) -> PathBuf {
        self.folder.join("hostfile")
    }

    /// What mpirun calls to reach a node: this program under another name.
    pub fn rsh_agent(&self) -> PathBuf {
        self.folder.join(rsh::NAME)
    }

    /// Names and addresses in /etc/hosts, names and slots for mpirun.
    fn write_host_table(&self, options: &ClusterOptions) -> Result<()> {
        let mut hosts = "127.0.0.1 localhost\n::1 localhost\n".to_string();
        let mut slots = String::new();
        for node in 0..options.all_nodes() {
            let (v4, v6) = (network::ipv4(node), network::ipv6(node));
            hosts += &format!("{v4} n{node}\n{v6} n{node}\n");
            slots += &format!("n{node} slots={}\n", options.ppn);
        }
        if options.slurm {
            hosts += &format!("{} {}\n", network::ipv4_of_login(), slurm::LOGIN);
        }
        fs::write(self.hostfile(), slots).context(|| "writing the hostfile".into())?;
        let file = self.folder.join("hosts");
        fs::write(&file, hosts).context(|| "writing the host table".into())?;
        let file = file.to_str().expect("one of our own names");
        sys::mount(file, "/etc/hosts", "", libc::MS_BIND, "")
            .context(|| "covering /etc/hosts in the cluster".into())
    }

    /// Where the rsh agent finds the namespaces of a node: descriptors of process 1.
    pub fn write_node_table(&self, nodes: &[Node]) -> Result<()> {
        let line = |node: &Node| {
            let numbers = node.namespaces.iter().map(|n| format!(" {}", n.as_raw_fd()));
            format!("{}{}\n", node.name, numbers.collect::<String>())
        };
        let table: String = nodes.iter().map(line).collect();
        fs::write(self.folder.join("nodes"), table).context(|| "writing the node table".into())
    }

    /// Inside a new node: memory and temporary files of its own.
    pub fn furnish_node(&self, options: &ClusterOptions) -> Result<()> {
        let size = options.shm_size.as_ref().map_or(String::new(), |s| format!(",size={s}"));
        mount_tmpfs(Path::new("/dev/shm"), &format!("mode=1777{size}"))?;
        mount_tmpfs(&self.node_tmp(), "mode=1777")?;
        own_tmp::cover()
    }

    /// Inside a node that has failed: its memory and temporary files are gone.
    pub fn empty_node(&self) -> Result<()> {
        empty(Path::new("/dev/shm"))?;
        empty(&self.node_tmp())?;
        own_tmp::renew()
    }
}

/// Installs our components as a user does, in the tree that the nodes have as their root.
fn install() -> Result<()> {
    let mut install = debian::within("/proc/self/exe");
    install.args(["install", "--user", "--unproved"]);
    run::output(&mut install).map(drop)
}

/// Removes everything in a folder.
fn empty(folder: &Path) -> Result<()> {
    let shown = || folder.display().to_string();
    for entry in fs::read_dir(folder).context(shown)?.flatten() {
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let done = if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        done.context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Covers a folder with memory.
pub fn mount_tmpfs(at: &Path, options: &str) -> Result<()> {
    sys::mount("tmpfs", at, "tmpfs", libc::MS_NOSUID | libc::MS_NODEV, options)
        .context(|| format!("mounting a tmpfs ({options}) on {}", at.display()))
}
