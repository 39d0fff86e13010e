//! The command line of mpirun, and mpirun itself in the first node.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::nodes::{self, Node};
use super::options::ClusterOptions;
use super::stage::Stage;
use super::{environment, failpoint, network, slurm};
use crate::error::{Context, Result};
use crate::{build, debian, install, paths, sys};

/// The parameter that says where components are.
const COMPONENT_PATH: &str = "mca_base_component_path";

/// Debian's Open MPI 5.0 uses IPv6. Its BTL cannot pair the addresses of emulated nodes, and says
/// so on standard error.
const IPV6_OFF: [&str; 2] = ["btl_tcp_disable_family", "6"];

/// With these, mpirun starts jobs for root, too.
const ALSO_ROOT: [&str; 2] = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];

/// No rank runs on mpirun's node.
const NOT_WITH_MPIRUN: (&str, &str) = ("rmaps_base_no_schedule_local", "1");

/// MCA parameters that the emulation sets unless the user sets them.
fn defaults(
    options: &ClusterOptions,
    stage: &Stage,
    component_path: &str,
) -> Vec<(String, String)> {
    let agent = stage.rsh_agent();
    let tmp = stage.node_tmp();
    let reports = stage.reports();
    let text = |p: &Path| p.display().to_string();
    let mut set: Vec<(&str, String)> = vec![("btl_tcp_if_include", network::INTERFACE.into())];
    let has_prrte = has_prrte(options);
    if !has_prrte {
        set.extend([
            ("plm", "rsh".into()),
            ("plm_rsh_agent", text(&agent)),
            ("orte_tmpdir_base", text(&tmp)),
            ("oob_tcp_if_include", network::INTERFACE.into()),
            // Room for what a program spawns; the ranks themselves still fill the slots in order.
            ("rmaps_base_oversubscribe", "1".into()),
        ]);
    }
    if options.all_nodes() > 1 && !has_prrte {
        // Each orted would bind its ranks to the first processors, all to the same ones.
        set.push(("hwloc_base_binding_policy", "none".into()));
    }
    if options.tag_output && !has_prrte {
        set.push(("orte_tag_output", "1".into()));
    }
    if has_prrte && options.openmpi.is_none() {
        set.push((IPV6_OFF[0], IPV6_OFF[1].into()));
    }
    if options.crowded() {
        // Each orted counts only its own ranks and would let them spin.
        set.push(("mpi_yield_when_idle", "1".into()));
    }
    if options.plain {
        set.push((COMPONENT_PATH, "SYSTEM_DEFAULT".into()));
        set.push(("pml", "ob1".into()));
        set.push(("btl", if has_prrte { "self,sm,tcp" } else { "self,vader,tcp" }.into()));
    } else {
        set.push((COMPONENT_PATH, component_path.into()));
        set.push(("pml", "v".into()));
        set.push(("vprotocol", "correlated".into()));
        if options.report.is_some() {
            set.push(("vprotocol_correlated_report", text(&reports)));
        }
    }
    if has_prrte {
        // PRRTE and PMIx would take it for theirs, too, and complain.
        set.retain(|(key, _)| *key != COMPONENT_PATH);
    }
    set.into_iter().map(|(key, value)| (key.to_string(), value)).collect()
}

/// Is this Open MPI 5.0, whose mpirun is PRRTE's?
fn has_prrte(options: &ClusterOptions) -> bool {
    match &options.openmpi {
        Some(prefix) => prefix.join("bin/prterun").exists(),
        None => options.root.is_some() || is_installed_with_prrte(options),
    }
}

/// Is the Open MPI of this machine, which the cluster uses, 5.0?
pub fn is_installed_with_prrte(options: &ClusterOptions) -> bool {
    let installed = options.openmpi.is_none() && options.root.is_none() && !options.slurm;
    installed && build::openmpi::has_prrte().unwrap_or(false)
}

/// What PRRTE, which has parameters of its own, must know of the emulation.
fn for_prrte(options: &ClusterOptions, stage: &Stage) -> Vec<OsString> {
    let parameters: [(&str, OsString); 4] = [
        ("plm", "ssh".into()),
        ("prte_ssh_agent", stage.rsh_agent().into()),
        ("prte_tmpdir_base", stage.node_tmp().into()),
        ("prte_if_include", network::INTERFACE.into()),
    ];
    // ORTE's parameter for it is one that PRRTE ignores.
    let elsewhere = options.mca().any(|pair| pair == NOT_WITH_MPIRUN);
    let map = if elsewhere { ":OVERSUBSCRIBE:NOLOCAL" } else { ":OVERSUBSCRIBE" };
    let mut line: Vec<OsString> = vec!["--map-by".into(), map.into()];
    if options.all_nodes() > 1 {
        line.extend(["--bind-to".into(), "none".into()]);
    }
    if options.tag_output {
        line.extend(["--output".into(), "tag".into()]);
    }
    for (key, value) in parameters {
        line.extend(["--prtemca".into(), key.into(), value]);
    }
    line
}

/// The environment of a login under Slurm, which its jobs get: where its configuration is,
/// `rustbtl` in PATH, and what each mpirun must know of the emulation. Nothing about how daemons
/// are started: Open MPI finds that out.
fn for_slurm(options: &ClusterOptions, stage: &Stage) -> Vec<(String, OsString)> {
    let mut set: Vec<(String, OsString)> =
        vec![("SLURM_CONF".into(), slurm::configuration(stage).into())];
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([paths::mca()].into_iter().chain(env::split_paths(&path)));
    set.extend(path.map(|path| ("PATH".into(), path)));
    set.extend(ALSO_ROOT.map(|name| (name.into(), "1".into())));
    let tmp = stage.node_tmp().into_os_string();
    let mut defaults: Vec<(&str, OsString)> = vec![("mpi_yield_when_idle", "1".into())];
    if has_prrte(options) {
        // Our components are installed for the user.
        defaults.push((IPV6_OFF[0], IPV6_OFF[1].into()));
        set.push(("PRTE_MCA_prte_tmpdir_base".into(), tmp));
        set.push(("PRTE_MCA_hwloc_default_binding_policy".into(), "none".into()));
    } else {
        defaults.push((COMPONENT_PATH, component_path(options).into()));
        defaults.push(("orte_tmpdir_base", tmp));
        defaults.push(("hwloc_base_binding_policy", "none".into()));
    }
    let users = options.mca().map(|(key, value)| (key, value.into()));
    set.extend(defaults.into_iter().chain(users).map(|(k, v)| (format!("OMPI_MCA_{k}"), v)));
    set
}

/// What a script needs to call xtask and mpirun in the emulation: `cargo-xtask`, and a variable
/// with the options for mpirun.
fn for_script(options: &ClusterOptions, stage: &Stage) -> Vec<(String, OsString)> {
    let mut words: Vec<OsString> = vec!["--hostfile".into(), stage.hostfile().into()];
    words.extend(for_prrte(options, stage));
    words.extend(["--mca", IPV6_OFF[0], IPV6_OFF[1]].map(OsString::from));
    let mut set: Vec<(String, OsString)> = vec![
        ("MPIRUN_OPTIONS".into(), words.join(OsStr::new(" "))),
        ("XTASK".into(), env::current_exe().unwrap_or_default().into()),
    ];
    set.extend(ALSO_ROOT.map(|name| (name.into(), "1".into())));
    set.extend(debian::variables().map(|(name, value)| (name.into(), value)));
    set
}

/// Everything after the word `mpirun`.
fn arguments(options: &ClusterOptions, stage: &Stage, component_path: &str) -> Vec<OsString> {
    let mut line: Vec<OsString> = vec!["--allow-run-as-root".into(), "--hostfile".into()];
    line.push(stage.hostfile().into());
    line.extend(["-np".into(), options.ranks().to_string().into()]);
    if has_prrte(options) {
        line.extend(for_prrte(options, stage));
    }
    let mut parameters = defaults(options, stage, component_path);
    parameters.retain(|(key, _)| options.mca().all(|(users, _)| users != key));
    // mpirun joins the values of a key that is given twice; here the last one counts.
    for (key, value) in options.mca() {
        parameters.retain(|(earlier, _)| earlier != key);
        parameters.push((key.to_string(), value.to_string()));
    }
    for (key, value) in parameters {
        line.extend(["--mca".into(), key.into(), value.into()]);
    }
    for (name, _) in options.environment() {
        line.extend(["-x".into(), name.into()]);
    }
    if options.kill_in_checkpoint().is_some() {
        line.extend(["-x".into(), failpoint::VARIABLE.into()]);
    }
    line
}

/// Where mpirun, orteds and ranks look for components: ours, then Open MPI's own. One that was
/// built with rustbtl has ours in it.
fn component_path(options: &ClusterOptions) -> String {
    match &options.openmpi {
        Some(_) => "SYSTEM_DEFAULT".into(),
        None => format!("{}:SYSTEM_DEFAULT", paths::mca().display()),
    }
}

/// mpirun with its whole path: then it tells its daemons where they are.
fn program(options: &ClusterOptions) -> OsString {
    match &options.openmpi {
        Some(prefix) => prefix.join("bin/mpirun").into(),
        None => "mpirun".into(),
    }
}

/// What runs in a cluster.
pub struct MpirunJob<'a> {
    /// What was asked for.
    pub options: &'a ClusterOptions,
    /// The cluster's files.
    pub stage: &'a Stage,
    /// Where: the first node. None: where the cluster's first process is, which with Slurm is the
    /// login node.
    pub node: Option<&'a Node>,
    /// The user's signal mask.
    pub mask: libc::sigset_t,
}

impl MpirunJob<'_> {
    /// mpirun with the program, or the restart of a job from a checkpoint. With Slurm the command
    /// itself.
    pub fn program(&self) -> Vec<OsString> {
        if self.options.slurm || self.options.script {
            return self.options.command.clone();
        }
        let mut line: Vec<OsString> = match &self.options.restart {
            Some(folder) => {
                let again = self.options.again.then(|| "--again".into());
                let mpirun = ["--mpirun".into(), program(self.options)];
                let words = [rustbtl(self.options), "restart".into()].into_iter();
                words.chain(again).chain(mpirun).chain([folder.into(), "--".into()]).collect()
            }
            None => vec![program(self.options)],
        };
        line.extend(arguments(self.options, self.stage, &component_path(self.options)));
        line.extend(self.options.command.iter().cloned());
        line
    }

    /// The command that takes a checkpoint of the whole job.
    pub fn checkpoint(&self) -> Vec<OsString> {
        vec![rustbtl(self.options), "checkpoint".into(), "--all".into(), "--wait".into()]
    }

    /// Starts a command where the job is, in the folder, on the descriptors and with the signal
    /// mask of the user; gives its process id.
    pub fn start(&self, line: &[OsString]) -> Result<libc::pid_t> {
        self.start_at(self.node, line, None)
    }

    /// The same somewhere else; what it prints goes to a log if there is one.
    pub fn start_at(
        &self,
        node: Option<&Node>,
        line: &[OsString],
        log: Option<File>,
    ) -> Result<libc::pid_t> {
        let folder = env::current_dir().context(|| "the current folder".into())?;
        let folder_c = sys::c_string(&folder).context(|| "the current folder".into())?;
        let mask = self.mask;
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]);
        command.env_clear().envs(environment::of_user(env::vars_os()));
        // Jobs of other clusters are none of its business.
        command.env("RUSTBTL_JOBS", self.stage.run_time());
        command.env("PWD", &folder).envs(self.options.environment());
        if self.options.kill_in_checkpoint().is_some() {
            command.env(failpoint::VARIABLE, self.stage.failpoints());
        }
        if self.options.slurm {
            command.envs(for_slurm(self.options, self.stage));
        }
        if self.options.script {
            command.envs(for_script(self.options, self.stage));
        }
        if let Some(log) = log {
            let copy = log.try_clone().context(|| "copying a descriptor".into())?;
            command.stdin(Stdio::null()).stdout(copy).stderr(log);
        }
        let clone = |n: &OwnedFd| n.try_clone().context(|| "copying a descriptor".into());
        let namespaces = node.map_or(&[][..], |node| &node.namespaces);
        let namespaces = namespaces.iter().map(clone).collect::<Result<Vec<_>>>()?;
        let prepare = move || {
            nodes::enter(&namespaces)?;
            sys::change_folder(&folder_c)?;
            // On a busy machine mpirun's agent can otherwise be running before mpirun has put it
            // into a process group, and mpirun prints a warning about that.
            sys::run_first();
            sys::set_signal_mask(&mask)
        };
        // SAFETY: between fork and exec only system calls are made; nothing allocates.
        unsafe { command.pre_exec(prepare) };
        let child = command.spawn().context(|| {
            let (what, folder) = (line[0].display(), folder.display());
            format!("starting {what} in {folder} (`cargo xtask setup` installs what is missing)")
        })?;
        Ok(child.id() as libc::pid_t)
    }
}

/// Our own command: beside the components, or where Open MPI was installed with it.
fn rustbtl(options: &ClusterOptions) -> OsString {
    match &options.openmpi {
        Some(prefix) => prefix.join("bin/rustbtl").into(),
        None if options.root.is_some() => {
            let home = env::var_os("HOME").unwrap_or_default();
            install::user_folder(home.as_ref()).join("rustbtl").into()
        }
        None => paths::mca().join("rustbtl").into(),
    }
}
