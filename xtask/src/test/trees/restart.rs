//! A job of an Open MPI that was built with rustbtl is stopped at a checkpoint and goes on from it.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Context, Result, fail};
use crate::test::job;
use crate::test::mpi::{self, Over};
use crate::test::scratch::Scratch;
use crate::tree::Installed;
use crate::{paths, run};

/// Long enough to be stopped in the middle.
const ITERATIONS: &str = "100000";
/// How long each of its steps may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Its answer must be that of a job that was left alone.
pub fn goes_on(installed: &Installed) -> Result<()> {
    let scratch = Scratch::new("tree-restart")?;
    let source = paths::root().join("tests/workloads/hash_ring.c");
    let program = mpi::compile_over(&source, &Over::Tree(installed))?;
    let checkpoints = scratch.0.join("checkpoints");
    let alone = run::output(mpirun(installed, &scratch).arg(&program).args([ITERATIONS, "20000"]))?;

    let mut command = mpirun(installed, &scratch);
    command.arg("--mca").arg("vprotocol_correlated_checkpoint_dir").arg(&checkpoints);
    let output = scratch.0.join("output");
    let file = File::create(&output).context(|| output.display().to_string())?;
    command.arg(&program).args([ITERATIONS, "20000"]).stdin(Stdio::null()).stdout(file);
    let mut job = command.spawn().context(|| run::line(&command))?;
    let stopped = stop(installed, &scratch);
    let code = job::wait(&mut job, LIMIT)?;
    stopped?;
    let said = fs::read_to_string(&output).unwrap_or_default();
    if code != 0 || said.contains("HASH") {
        fail!("the job was not stopped in the middle: exit code {code}, it said `{said}`");
    }

    let mut restart = rustbtl(installed, &scratch);
    restart
        .arg("restart")
        .arg("--mpirun")
        .arg(installed.prefix.join("bin/mpirun"))
        .arg(&checkpoints);
    let again = run::output(restart.args(OPTIONS))?;
    if again.trim() != alone.trim() {
        fail!("left alone it says `{}`, started again `{}`", alone.trim(), again.trim());
    }
    Ok(())
}

const OPTIONS: [&str; 8] = [
    "--allow-run-as-root",
    "--oversubscribe",
    "--mca",
    "pml",
    "v",
    "--mca",
    "vprotocol",
    "correlated",
];

fn mpirun(installed: &Installed, scratch: &Scratch) -> Command {
    let mut mpirun = installed.command("mpirun");
    jobs_apart(&mut mpirun, &scratch.0);
    mpirun.args(OPTIONS).args(["-n", "2"]);
    mpirun
}

fn rustbtl(installed: &Installed, scratch: &Scratch) -> Command {
    let mut rustbtl = installed.command("rustbtl");
    jobs_apart(&mut rustbtl, &scratch.0);
    rustbtl
}

/// Other jobs on this machine are not ours to stop.
fn jobs_apart(command: &mut Command, folder: &Path) {
    command.env("RUSTBTL_JOBS", folder.join("jobs"));
}

/// Waits until the job can be stopped and has it stopped at a checkpoint.
fn stop(installed: &Installed, scratch: &Scratch) -> Result<()> {
    let end = Instant::now() + LIMIT;
    loop {
        let status = rustbtl(installed, scratch).arg("status").output();
        let status = status.context(|| "starting rustbtl".into())?;
        let text = String::from_utf8_lossy(&status.stdout).into_owned();
        if text.matches(" ready").count() == 2 {
            break;
        }
        if Instant::now() > end {
            fail!("`rustbtl status` never says that both ranks are ready:\n{text}");
        }
        thread::sleep(Duration::from_millis(50));
    }
    let mut checkpoint = rustbtl(installed, scratch);
    run::output(checkpoint.args(["checkpoint", "--all", "--then-exit"])).map(drop)
}
