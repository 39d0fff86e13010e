//! Slurm on the emulated nodes: munged and slurmctld on a login node, a slurmd on each of the
//! others. The command of the cluster runs on the login node, as a user's does.
//!
//! All its files are the cluster's (`stage`), so nothing of a Slurm of this machine is touched. Its
//! processes end with the cluster's first process, like all others.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::mpirun::MpirunJob;
use super::nodes::{self, Node};
use super::options::ClusterOptions;
use super::stage::Stage;
use super::{network, processes};
use crate::error::{Context, Result, fail, failure, say};
use crate::{paths, sys};

/// Host name of the node on which users log in.
pub const LOGIN: &str = "login";
/// How long it may take until all nodes are idle. It takes three seconds on a machine with nothing
/// else to do.
const PATIENCE: Duration = Duration::from_secs(120);
/// Lines of each log that are shown if it fails.
const LINES: usize = 12;

/// The Slurm of a cluster.
pub struct Slurm {
    folder: PathBuf,
    daemons: Vec<libc::pid_t>,
    controller: libc::pid_t,
}

/// Its configuration file, which every command is told of (SLURM_CONF).
pub fn configuration(stage: &Stage) -> PathBuf {
    stage.slurm().join("slurm.conf")
}

impl Slurm {
    /// Starts it; when this returns, all nodes are idle.
    pub fn start(job: &MpirunJob<'_>, nodes: &[Node]) -> Result<Slurm> {
        let folder = job.stage.slurm();
        write_key(&folder)?;
        let file = configuration(job.stage);
        fs::write(&file, text(job.options, &folder)).context(|| file.display().to_string())?;
        let mut slurm = Slurm { folder, daemons: Vec::new(), controller: 0 };
        let path = |name: &str| slurm.folder.join(name).display().to_string();
        let munged = [
            "munged".to_string(),
            "--foreground".into(),
            format!("--key-file={}", path("munge.key")),
            format!("--socket={}", path("munge.socket")),
            format!("--pid-file={}", path("munged.pid")),
            format!("--seed-file={}", path("munged.seed")),
        ];
        slurm.daemon(job, None, &munged)?;
        slurm.await_that("munged opens its socket", || {
            Ok(job.stage.slurm().join("munge.socket").exists())
        })?;
        slurm.controller = slurm.daemon(job, None, &["slurmctld".into(), "-D".into()])?;
        for node in nodes {
            for kind in ["spool", "tmp"] {
                let folder = slurm.folder.join(format!("{kind}-{}", node.name));
                fs::create_dir(&folder).context(|| folder.display().to_string())?;
            }
            let words = ["slurmd", "-D", "-N", &node.name].map(String::from);
            slurm.daemon(job, Some(node), &words)?;
        }
        slurm.await_that("all nodes are idle", || Ok(idle(&file)? == nodes.len()))?;
        Ok(slurm)
    }

    fn daemon(
        &mut self,
        job: &MpirunJob<'_>,
        node: Option<&Node>,
        words: &[String],
    ) -> Result<libc::pid_t> {
        let name = node.map_or(LOGIN, |node| &node.name);
        let program = paths::find_program(&words[0]).ok_or_else(|| {
            failure!("there is no {}: `cargo xtask test --slurm` installs it", words[0])
        })?;
        let log = self.folder.join(format!("{}-{name}.log", words[0]));
        let file = fs::File::create(&log).context(|| log.display().to_string())?;
        let mut line = vec![program.into_os_string()];
        line.extend(words[1..].iter().map(Into::into));
        let pid = job.start_at(node, &line, Some(file))?;
        self.daemons.push(pid);
        Ok(pid)
    }

    fn await_that(&self, what: &str, happened: impl Fn() -> Result<bool>) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while !happened()? {
            if Instant::now() > until {
                fail!("Slurm: it does not come to this: {what}\n{}", self.logs());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// The last lines of what its daemons have to say.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|ending| ending == "log") {
                let log = fs::read(entry.path()).unwrap_or_default();
                let log = String::from_utf8_lossy(&log).into_owned();
                let lines: Vec<&str> = log.lines().collect();
                let last = &lines[lines.len().saturating_sub(LINES)..];
                text += &format!("{}:\n{}\n", entry.file_name().display(), last.join("\n"));
            }
        }
        text
    }

    /// Processes of the cluster that are not Slurm's daemons.
    pub fn guests(&self) -> Vec<libc::pid_t> {
        let is_own = |pid: &libc::pid_t| {
            // slurmctld has a child for its scripts.
            let parent = processes::parent(*pid);
            self.daemons.contains(pid) || parent.is_some_and(|parent| parent == self.controller)
        };
        processes::all().filter(|pid| !is_own(pid) && !is_zombie(*pid)).collect()
    }
}

/// It has ended, and its parent has not asked how.
fn is_zombie(pid: libc::pid_t) -> bool {
    let mut stat = String::new();
    let read =
        fs::File::open(format!("/proc/{pid}/stat")).and_then(|mut f| f.read_to_string(&mut stat));
    read.is_err() || stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}

/// Makes the caller's namespaces those of a login node.
pub fn furnish_login(options: &ClusterOptions, stage: &Stage) -> Result<()> {
    sys::set_host_name(LOGIN).context(|| "naming the login node".into())?;
    network::connect_login()?;
    stage.furnish_node(options)
}

/// What jobs have left in the memory and the temporary files of the nodes, in words.
pub fn left_behind(nodes: &[Node], stage: &Stage) -> Result<()> {
    let list = || {
        let folders = [PathBuf::from("/dev/shm"), stage.node_tmp()];
        let files = folders.into_iter().flat_map(|f| fs::read_dir(f).into_iter().flatten());
        files.flatten().map(|file| file.path().display().to_string()).collect::<Vec<_>>()
    };
    for node in nodes {
        let files = nodes::within(node, list)?;
        if !files.is_empty() {
            say!("cluster: left on {}: {}", node.name, files.join(", "));
        }
    }
    Ok(())
}

fn write_key(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).context(|| folder.display().to_string())?;
    let mut key = [0; 1024];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut key))
        .context(|| "/dev/urandom".into())?;
    let file = folder.join("munge.key");
    fs::write(&file, key).context(|| file.display().to_string())?;
    let own = fs::Permissions::from_mode(0o400);
    fs::set_permissions(&file, own).context(|| file.display().to_string())
}

/// How many nodes are idle; none as long as slurmctld does not answer.
fn idle(configuration: &Path) -> Result<usize> {
    let mut sinfo = Command::new("sinfo");
    sinfo.args(["--noheader", "--Node", "--format", "%T"]).env("SLURM_CONF", configuration);
    let done = sinfo.stdin(Stdio::null()).output().context(|| "starting sinfo".into())?;
    Ok(String::from_utf8_lossy(&done.stdout).lines().filter(|state| *state == "idle").count())
}

/// The configuration. All nodes share the processors of this machine, so they have as many as a
/// test may want: two jobs with the ranks of one beside each other. A lost node is noticed after
/// ten seconds, and a job that is queued again is started after ten, where it is otherwise minutes.
/// A tree of messages by way of a lost node would have others taken for lost, too, in that time.
/// TmpFS is where the steps of srun keep what PMIx needs, by the number of the job, which begins
/// anew with each cluster: in /tmp the step of a job that was killed would be in the way.
fn text(options: &ClusterOptions, folder: &Path) -> String {
    let (folder, login) = (folder.display(), network::ipv4_of_login());
    let processors = 2 * options.ppn;
    let mut text = format!(
        "ClusterName=rustbtl
SlurmctldHost={LOGIN}({login})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2
ReturnToService=2
SlurmdTimeout=20
TreeWidth=65533
KillWait=5
"
    );
    for node in 0..options.all_nodes() {
        let address = network::ipv4(node);
        text += &format!("NodeName=n{node} NodeAddr={address} CPUs={processors} State=UNKNOWN\n");
    }
    text + "PartitionName=all Nodes=ALL Default=YES State=UP\n"
}

#[cfg(test)]
mod tests {
    use super::super::options::tests::parse;
    use super::*;

    #[test]
    fn each_node_is_in_the_configuration() {
        let options = parse("--slurm --nodes 3 --spare 1 --ppn 2 -- true");
        let text = text(&options, Path::new("/srv/x"));
        assert!(text.contains("NodeName=n3 NodeAddr=10.77.0.4 CPUs=4 "));
        assert_eq!(text.matches("NodeName=").count(), 4);
        assert!(text.contains("socket=/srv/x/munge.socket,"));
    }
}
