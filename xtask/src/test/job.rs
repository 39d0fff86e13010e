//! Running one job on emulated nodes as a test, without ever waiting for ever.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::scratch::Scratch;
use super::storage;
use crate::error::{Context, Failure, Result, fail};
use crate::{paths, run, sys};

/// Time that a job may take, unless it says otherwise: twice what one needs that shares two
/// processors with another job, compilers and tests.
pub const SECONDS: u32 = 600;
/// How much longer the cluster may take to end it.
const GRACE: Duration = Duration::from_secs(20);

/// A job to run.
#[derive(Clone)]
pub struct TestJob {
    /// Words before `--`.
    options: Vec<OsString>,
    command: Vec<OsString>,
    /// Where it runs.
    pub folder: PathBuf,
    /// Limit for the job itself.
    pub seconds: u32,
    /// What it reads.
    pub stdin: Option<PathBuf>,
    /// Nothing is said about protection: it is what users get.
    pub as_it_comes: bool,
}

/// How a job went.
pub struct Outcome {
    /// Exit code of the cluster.
    pub code: i32,
    /// Everything on stdout.
    pub stdout: String,
    /// Everything on stderr.
    pub stderr: String,
    /// The command line, to try again.
    pub line: String,
}

impl TestJob {
    /// A job of `command` on `nodes` × `ppn`.
    pub fn new(nodes: u32, ppn: u32, command: &[impl AsRef<OsStr>]) -> TestJob {
        let options = ["--nodes".into(), nodes.to_string(), "--ppn".into(), ppn.to_string()];
        TestJob {
            options: options.map(OsString::from).to_vec(),
            command: command.iter().map(|word| word.as_ref().to_os_string()).collect(),
            folder: env::temp_dir(),
            seconds: SECONDS,
            stdin: None,
            as_it_comes: false,
        }
    }

    /// A job that is restarted from the newest global checkpoint in a folder; it prints again what
    /// earlier incarnations of it have printed since.
    pub fn restart(nodes: u32, ppn: u32, checkpoints: &Path) -> TestJob {
        let nothing: [&str; 0] = [];
        TestJob::new(nodes, ppn, &nothing).with(&[
            "--again",
            "--restart",
            &checkpoints.display().to_string(),
        ])
    }

    /// Adds options of `cargo xtask cluster`.
    pub fn with(mut self, options: &[&str]) -> TestJob {
        self.options.extend(options.iter().map(OsString::from));
        self
    }

    /// The command that runs the job, as a child of `program` and its arguments.
    pub fn command(&self, program: &[&OsStr]) -> Command {
        let mut cluster = Command::new(program[0]);
        // Where Debian's BLAS is OpenBLAS with threads, HPL's last digits differ from run to run.
        cluster.env("OPENBLAS_NUM_THREADS", "1");
        cluster.args(&program[1..]).arg("cluster").args(&self.options);
        cluster.args(["--timeout", &self.seconds.to_string()]);
        if !self.as_it_comes && !self.says_who_is_protected() {
            // What is not about checkpoints is not to be mixed with them.
            cluster.args(["--mca", "vprotocol_correlated_recover", "0"]);
        }
        if !self.command.is_empty() {
            cluster.arg("--").args(&self.command);
        }
        cluster.current_dir(&self.folder);
        cluster
    }

    /// Does a test say anything about protection?
    fn says_who_is_protected(&self) -> bool {
        let about = [
            "recover",
            "local_dir",
            "image_replicas",
            "checkpoint_dir",
            // As they were called in 0.1.0.
            "local",
            "copies",
            "dir",
        ];
        self.options.iter().filter_map(|word| word.to_str()).any(|word| {
            let name = word.strip_prefix("vprotocol_correlated_");
            ["--restart", "--plain"].contains(&word) || name.is_some_and(|n| about.contains(&n))
        })
    }

    /// Runs it to its end.
    pub fn run(&self) -> Result<Outcome> {
        let xtask = env::current_exe().context(|| "finding this program".into())?;
        self.run_under(&[xtask.as_os_str()])
    }

    /// Runs it to its end, with `program` in place of this one.
    pub fn run_under(&self, program: &[&OsStr]) -> Result<Outcome> {
        let (out, err) = (log_file("out")?, log_file("err")?);
        let create = |file: &PathBuf| File::create(file).context(|| file.display().to_string());
        let mut command = self.command(program);
        // Each node has a /tmp of its own; what is there before is the same on all.
        let shared = Scratch::new("shared")?;
        command.env("CHECK_DIRECTORY", &shared.0);
        let stdin = match &self.stdin {
            Some(file) => Stdio::from(File::open(file).context(|| file.display().to_string())?),
            None => Stdio::null(),
        };
        command.stdin(stdin).stdout(create(&out)?).stderr(create(&err)?);
        let line = run::line(&command);
        let mut child = command.spawn().context(|| line.clone())?;
        let limit = Duration::from_secs(self.seconds.into()) + GRACE;
        let code = wait(&mut child, limit).context(|| line.clone())?;
        let read =
            |file: &PathBuf| String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into();
        let outcome = Outcome { code, stdout: read(&out), stderr: read(&err), line };
        let _ = (fs::remove_file(out), fs::remove_file(err));
        Ok(outcome)
    }
}

impl Outcome {
    /// Fails with everything that is known, if `good` is false.
    pub fn must(&self, good: bool, what: &str) -> Result<()> {
        if good {
            return Ok(());
        }
        let kept = self.keep().map_or_else(|Failure(why)| why, |file| file.display().to_string());
        fail!(
            "{what} (exit code {}; all that it printed: {kept})\n{}\n{}{}",
            self.code,
            self.line,
            self.stdout,
            self.stderr
        )
    }

    /// The same; what its coordinators have logged of failures says why.
    pub fn must_by(&self, good: bool, what: &str, events: &str) -> Result<()> {
        if good {
            return Ok(());
        }
        self.must(false, &format!("{what}; failures:\n{}", storage::failures(events)))
    }

    /// Writes what the job printed to a file, since a report shows a part of it.
    fn keep(&self) -> Result<PathBuf> {
        let file = log_file("failed")?;
        let text = format!("{}\n{}\n{}", self.line, self.stdout, self.stderr);
        fs::write(&file, text).context(|| file.display().to_string())?;
        Ok(file)
    }

    /// Stdout and stderr together.
    pub fn said(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// A file for the output of a job; names do not repeat within this process.
fn log_file(kind: &str) -> Result<PathBuf> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let folder = paths::target().join("test-logs");
    fs::create_dir_all(&folder).context(|| folder.display().to_string())?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Ok(folder.join(format!("{}-{number}.{kind}", std::process::id())))
}

/// Exit code of the child; one that outlives its limit is killed, which is a failure.
pub fn wait(child: &mut Child, limit: Duration) -> Result<i32> {
    use std::os::unix::process::ExitStatusExt;
    let end = Instant::now() + limit;
    loop {
        let status = child.try_wait().context(|| "waiting".into())?;
        if let Some(status) = status {
            return Ok(sys::exit_code(status.into_raw()));
        }
        if Instant::now() > end {
            let _ = (child.kill(), child.wait());
            fail!("hangs: killed after {} s", limit.as_secs());
        }
        thread::sleep(Duration::from_millis(10));
    }
}
