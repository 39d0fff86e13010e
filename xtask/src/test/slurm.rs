//! The batch script of the user guide without Slurm: this test does what Slurm would do. It sets
//! the variables of an allocation, sends its signal to the batch shell alone, and runs the script
//! again when it is asked to queue it again.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::job;
use super::mpi;
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, GATE_OPEN, RING};
use crate::error::{Context, Result, fail};
use crate::{paths, sys};

const RANKS: u32 = 2;
/// How far the program goes, and how far in its first allocation.
const ITERATIONS: u64 = 2000;
const GATE: u64 = ITERATIONS / 2;
const PATIENCE: Duration = Duration::from_secs(120);
const JOB: &str = "4711";

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    tier.check("batch script: ends at a checkpoint, is queued again, goes on", goes_on);
    tier.check("batch script: a program that fails is not queued again", fails);
}

/// An allocation of this host.
struct Allocation {
    scratch: Scratch,
    /// How often the job was queued again.
    restarts: u32,
}

impl Allocation {
    fn new(name: &str) -> Result<Allocation> {
        let scratch = Scratch::new(name)?;
        let scontrol = scratch.0.join("bin/scontrol");
        fs::create_dir_all(scratch.0.join("bin")).context(|| scontrol.display().to_string())?;
        let text = "#!/bin/sh\necho \"$@\" >> \"$SLURM_SUBMIT_DIR/scontrol\"\n";
        fs::write(&scontrol, text).context(|| scontrol.display().to_string())?;
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&scontrol, mode).context(|| scontrol.display().to_string())?;
        Ok(Allocation { scratch, restarts: 0 })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.scratch.0.join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    fn checkpoints(&self) -> PathBuf {
        self.file(&format!("checkpoints-{JOB}"))
    }

    /// Starts the script, with the program as its arguments.
    fn start(&self, program: &[String]) -> Result<Batch> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let (host, ranks) = (host.trim(), RANKS.to_string());
        let search: Vec<PathBuf> = [self.file("bin"), paths::mca()].into();
        let old = env::var_os("PATH").unwrap_or_default();
        let search = env::join_paths(search.into_iter().chain(env::split_paths(&old)));
        let component = format!("{}:SYSTEM_DEFAULT", paths::mca().display());
        let mut script = Command::new("bash");
        script.arg(paths::root().join("docs/slurm.sh")).args(program);
        script.current_dir(&self.scratch.0);
        script.env("PATH", search.unwrap_or(old));
        for name in ["SLURM_NODELIST", "SLURM_JOB_NODELIST"] {
            script.env(name, host);
        }
        for name in ["SLURM_JOBID", "SLURM_JOB_ID"] {
            script.env(name, JOB);
        }
        for name in ["SLURM_NNODES", "SLURM_JOB_NUM_NODES"] {
            script.env(name, "1");
        }
        for name in ["SLURM_NTASKS", "SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"] {
            script.env(name, &ranks);
        }
        script.env("SLURM_SUBMIT_DIR", &self.scratch.0);
        if self.restarts > 0 {
            script.env("SLURM_RESTART_COUNT", self.restarts.to_string());
        }
        // What the machine of this test needs, and users' do not.
        script.env("OMPI_MCA_mca_base_component_path", component);
        script.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        script.env("OMPI_MCA_mpi_yield_when_idle", "1");
        script.env("RUSTBTL_JOBS", self.file("jobs"));
        script.stdin(Stdio::null());
        script.stdout(self.append("out")?).stderr(self.append("err")?);
        // Of its own group, so that a test that fails can end all of it.
        let child = script.process_group(0).spawn().context(|| "starting bash".into())?;
        Ok(Batch(child))
    }

    /// As with --open-mode=append.
    fn append(&self, name: &str) -> Result<File> {
        let file = self.file(name);
        let mut options = OpenOptions::new();
        let opened = options.create(true).append(true).open(&file);
        opened.context(|| file.display().to_string())
    }

    fn must(&self, good: bool, what: &str) -> Result<()> {
        if good {
            return Ok(());
        }
        let [out, err, asked] = ["out", "err", "scontrol"].map(|name| self.text(name));
        fail!("{out}{err}\nscontrol: {asked}\n{what}")
    }
}

/// The batch shell.
struct Batch(Child);

impl Batch {
    fn pid(&self) -> libc::pid_t {
        self.0.id() as libc::pid_t
    }

    fn end(&mut self) -> Result<i32> {
        job::wait(&mut self.0, PATIENCE)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // It was waited for, if all went well; then there is nobody in its group.
        sys::kill(-self.pid(), libc::SIGKILL);
    }
}

fn program(gate: &Path) -> Result<Vec<String>> {
    let source = paths::root().join("tests/workloads/hash_ring.c");
    let program = mpi::compile_with(&source, &["-fopenmp"])?;
    let [program, gate] = [&program, gate].map(|path| path.display().to_string());
    Ok(vec![program, ITERATIONS.to_string(), "20000".into(), gate])
}

fn goes_on() -> Result<()> {
    let other = Scratch::new("slurm-undisturbed")?;
    let known = workloads::hash(&RING.job((1, RANKS), ITERATIONS, &other)?.run()?)?;
    let mut allocation = Allocation::new("slurm")?;
    let program = program(&workloads::gate(&allocation.scratch))?;
    workloads::open_gate(&allocation.scratch, GATE)?;
    let mut batch = allocation.start(&program)?;
    let until = Instant::now() + PATIENCE;
    let ready =
        || workloads::events(&allocation.checkpoints()).is_ok_and(|e| e.contains("\"ready\""));
    while !ready() {
        allocation.must(Instant::now() < until, "the job is not ready")?;
        thread::sleep(Duration::from_millis(20));
    }
    // --signal=B: the shell alone gets it.
    sys::kill(batch.pid(), libc::SIGUSR1);
    let code = batch.end()?;
    allocation.must(code == 0, &format!("the script's exit code is {code}"))?;
    let asked = || allocation.text("scontrol") == format!("requeue {JOB}\n");
    allocation.must(asked(), "it should ask once to be queued again")?;
    allocation.must(!allocation.text("out").contains("HASH"), "the program came to its end")?;
    workloads::verify(&allocation.checkpoints())?;
    // Queued again: the next allocation.
    allocation.restarts += 1;
    workloads::open_gate(&allocation.scratch, GATE_OPEN)?;
    let code = allocation.start(&program)?.end()?;
    allocation.must(code == 0, &format!("the script's exit code is {code}"))?;
    let asked = allocation.text("scontrol") == format!("requeue {JOB}\n");
    allocation.must(asked, "a job that is done should not be queued again")?;
    let answer: Vec<String> = allocation.text("out").lines().map(str::to_owned).collect();
    allocation.must(answer == [known.as_str()], &format!("it should say `{known}`, once"))
}

fn fails() -> Result<()> {
    let allocation = Allocation::new("slurm-fails")?;
    let program = ["sh", "-c", "exit 3"].map(str::to_owned);
    let code = allocation.start(&program)?.end()?;
    allocation.must(code == 3, &format!("the exit code is {code}, it should be 3"))?;
    allocation.must(allocation.text("scontrol").is_empty(), "it was queued again")
}
