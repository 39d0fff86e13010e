//! Jobs with guardians end, read and write as jobs without, on one node and on three; and they can
//! be queried.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::cluster::token;
use super::job::{self, Outcome, TestJob};
use super::mpi;
use super::scratch::Scratch;
use super::summary::Tier;
use crate::error::{Context, Result, fail, failure};
use crate::{build, paths, run, sys};

/// What switches guardians on.
const GUARD: [&str; 3] = ["--mca", "vprotocol_correlated_protect_without_dir", "1"];
/// Nodes, and ranks on each.
const SHAPES: [(u32, u32); 2] = [(1, 3), (3, 1)];
/// How a job may end, and the exit code that stock Open MPI gives it.
pub const ENDS: [(&str, i32); 8] = [
    ("well", 0),
    ("exit 5", 5),
    ("exit 0 without finalize", 0),
    ("abort 7", 7),
    ("SEGV", 139),
    ("KILL", 137),
    ("TERM", 143),
    ("exit 9 after finalize", 9),
];

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    let source = paths::root().join("xtask/programs/ends.c");
    // Also when --only leaves this case out.
    let compiled = mpi::compile(&source);
    let program = compiled.as_ref().cloned().ok();
    tier.check("guardians: compile ends.c", || compiled.map(drop));
    let Some(program) = program else { return };
    for (nodes, ppn) in SHAPES {
        let on = format!("{nodes} × {ppn}");
        for (how, code) in ENDS {
            let name = format!("guardians, {on}: {how}");
            tier.check(&name, || ends_alike(nodes, ppn, &program, how, code));
        }
        tier.check(&format!("guardians, {on}: stdin"), || stdin(nodes, ppn, &program));
        tier.check(&format!("guardians, {on}: tagged output"), || tagged(nodes, ppn, &program));
        tier.check(&format!("guardians, {on}: not an MPI program"), || {
            // The first one that ends so has the others ended.
            let script = "echo \"$0 $*\"; sleep 3; exit 3";
            alike(nodes, ppn, &["sh", "-c", script, "a b", "--", "--help"], Some(3)).map(drop)
        });
        tier.check(&format!("guardians, {on}: no such program"), || {
            alike(nodes, ppn, &["/not/there"], None).map(drop)
        });
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
            let name = format!("guardians, {on}: signal {signal} ends everything");
            tier.check(&name, || ended_by(nodes, ppn, signal));
        }
        tier.check(&format!("guardians, {on}: rustbtl status"), || status(nodes, ppn, &program));
    }
    tier.check("guardians: a directory for checkpoints that cannot be made", || {
        impossible_directory(&program)
    });
    tier.check("guardians: an interval and no directory", || no_directory(&program));
    tier.check("guardians: an interval that makes no sense", || bad_interval(&program));
    tier.check("guardians: a compression that does not exist", || bad_images(&program));
    tier.check("guardians: ompi_info lists their parameters", listed);
    tier.check("guardians: a program that is missing", || no_program(&program));
}

fn guarded(nodes: u32, ppn: u32, command: &[impl AsRef<OsStr>]) -> TestJob {
    let mut job = TestJob::new(nodes, ppn, command).with(&GUARD);
    job.seconds = 60;
    job
}

fn words(program: &Path, how: &str) -> Vec<OsString> {
    vec![program.as_os_str().to_owned(), how.into()]
}

/// The same job without and with guardians: same exit code, same standard output but for what it
/// prints of guardians. The outcome with them.
fn alike(
    nodes: u32,
    ppn: u32,
    command: &[impl AsRef<OsStr>],
    code: Option<i32>,
) -> Result<Outcome> {
    let mut stock = TestJob::new(nodes, ppn, command);
    stock.seconds = 60;
    let stock = stock.run()?;
    let ours = guarded(nodes, ppn, command).run()?;
    if let Some(code) = code {
        stock.must(stock.code == code, &format!("without guardians it should be {code}"))?;
    }
    ours.must(ours.code == stock.code, &format!("without guardians it is {}", stock.code))?;
    let wanted = stock.stdout.replace("alone", "guarded");
    ours.must(sorted(&ours.stdout) == sorted(&wanted), "its output is not the same")?;
    let silent = !ours.stderr.contains("rustbtl") && !ours.stderr.contains("still running");
    ours.must(silent, "it says something of its own, or something is left over")?;
    Ok(ours)
}

/// Lines of several ranks come in any order. Of a program that is on no node mpirun names the rank
/// of which it hears first, and counts those of which it has heard by then: that differs from run
/// to run of stock Open MPI, too.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().map(without_chance).collect();
    lines.sort_unstable();
    lines
}

fn without_chance(line: &str) -> &str {
    if let Some(at) = line.find(" total processes failed to start") {
        return &line[at..];
    }
    let named = ["Node: ", "while attempting to start process rank "];
    named.into_iter().find(|start| line.starts_with(start)).unwrap_or(line)
}

fn ends_alike(nodes: u32, ppn: u32, program: &Path, how: &str, code: i32) -> Result<()> {
    // Stock Open MPI complains about a rank that has not finalized with an exit code of its own.
    let code = (how != "exit 0 without finalize").then_some(code);
    let ours = alike(nodes, ppn, &words(program, how), code)?;
    let right = ours.stdout.contains("guarded, secret hidden");
    ours.must(right, "it does not say that it is guarded")
}

fn stdin(nodes: u32, ppn: u32, program: &Path) -> Result<()> {
    let scratch = Scratch::new("guardians-stdin")?;
    let file = scratch.0.join("input");
    // mpirun 4.1.4 crashes now and then (iof/hnp) when more than 64 KiB wait for several nodes.
    let text = "a line\n".repeat(7_000);
    fs::write(&file, &text).context(|| file.display().to_string())?;
    let mut job = guarded(nodes, ppn, &words(program, "cat"));
    job.stdin = Some(file);
    let outcome = job.run()?;
    if outcome.code != 0 || !outcome.stdout.ends_with(&text) {
        fail!("{} bytes of {} came back", outcome.stdout.len(), text.len());
    }
    Ok(())
}

fn tagged(nodes: u32, ppn: u32, program: &Path) -> Result<()> {
    let job = guarded(nodes, ppn, &words(program, "well"));
    let outcome = job.with(&["--tag-output"]).run()?;
    let right = outcome.stdout.contains("[1,0]<stdout>:sum 3, guarded");
    outcome.must(outcome.code == 0 && right, "the output is not tagged")
}

/// Processes whose command line names the token, whatever they are.
fn naming(token: &str) -> usize {
    let holds =
        |checkpoint: &[u8]| checkpoint.windows(token.len()).any(|part| part == token.as_bytes());
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    folders.filter(|f| fs::read(f.path().join("cmdline")).is_ok_and(|line| holds(&line))).count()
}

/// Waits until it is so.
fn wait_for(what: &str, mut good: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(20);
    while !good() {
        if Instant::now() > end {
            fail!("waited in vain for {what}");
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A cluster that runs beside this test.
fn start(job: &TestJob) -> Result<Child> {
    let xtask = env::current_exe().context(|| "finding this program".into())?;
    let mut command = job.command(&[xtask.as_os_str()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec only system calls are made.
    unsafe { command.pre_exec(sys::heed_signals) };
    command.spawn().context(|| "starting a cluster".into())
}

fn ended_by(nodes: u32, ppn: u32, signal: i32) -> Result<()> {
    let token = token();
    let mut child = start(&guarded(nodes, ppn, &["sleep", &token]))?;
    // The program and its guardian, for each rank.
    let running = 2 * (nodes * ppn) as usize;
    wait_for("all ranks", || naming(&token) >= running)?;
    sys::kill(child.id() as libc::pid_t, signal);
    let code = job::wait(&mut child, Duration::from_secs(15))?;
    if code == 0 {
        fail!("the cluster was ended, but its exit code is 0");
    }
    wait_for("the end of all processes", || naming(&token) == 0)
}

/// The command, outside of the cluster: it needs the user's directory only.
fn rustbtl(words: &[&str], directory: &Path) -> Result<(bool, String)> {
    let mut command = Command::new(build::program());
    command.args(words).env("RUSTBTL_JOBS", directory.join("jobs"));
    let output = command.output().context(|| "starting rustbtl".into())?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

fn status(nodes: u32, ppn: u32, program: &Path) -> Result<()> {
    let scratch = Scratch::new("guardians-status")?;
    let directory = format!("RUSTBTL_JOBS={}", scratch.0.join("jobs").display());
    let job = guarded(nodes, ppn, &words(program, "wait")).with(&["--env", &directory]);
    let mut child = start(&job)?;
    let mut text = String::new();
    let agents = || -> Option<usize> {
        let (_, said) = rustbtl(&["status", "--json"], &scratch.0).ok()?;
        text = said;
        let status: serde_json::Value = serde_json::from_str(&text).ok()?;
        let ranks = status["ranks"].as_array()?.len();
        (ranks == (nodes * ppn) as usize).then(|| status["nodes"].as_array().map_or(0, Vec::len))
    };
    let mut agents = agents;
    let found = wait_for("all ranks in the status", || agents() == Some(nodes as usize));
    let asked = rustbtl(&["checkpoint", "--all", "--wait"], &scratch.0);
    sys::kill(child.id() as libc::pid_t, libc::SIGTERM);
    job::wait(&mut child, Duration::from_secs(15))?;
    found.map_err(|failure| failure!("{failure}\n{text}"))?;
    let (done, said) = asked?;
    if done || !said.contains("vprotocol_correlated_checkpoint_dir") {
        fail!("a job without a directory for checkpoints should refuse: {said}");
    }
    let left = fs::read_dir(scratch.0.join("jobs")).map_or(0, Iterator::count);
    wait_for("the end of the coordinator's socket", || left == 0)
}

fn impossible_directory(program: &Path) -> Result<()> {
    let place = ["--mca", "vprotocol_correlated_checkpoint_dir", "/proc/not/there"];
    let outcome = TestJob::new(2, 1, &words(program, "well")).with(&place).run()?;
    outcome.must(outcome.code != 0 && outcome.code != 124, "this job cannot start")?;
    outcome.must(outcome.said().contains("/proc/not/there"), "the directory is not named")?;
    outcome.must(!outcome.stdout.contains("sum"), "it was started all the same")
}

fn no_directory(program: &Path) -> Result<()> {
    let interval = ["--mca", "vprotocol_correlated_checkpoint_interval", "5"];
    let outcome = TestJob::new(2, 1, &words(program, "well")).with(&interval).run()?;
    outcome.must(outcome.code != 0 && outcome.code != 124, "this job cannot start")?;
    outcome.must(
        outcome.said().contains("vprotocol_correlated_checkpoint_dir"),
        "it is not said what to do",
    )
}

/// Refused before anything is started, with the parameter, the value and the choice.
fn bad_images(program: &Path) -> Result<()> {
    for (parameter, value, hint) in [
        ("compression", "gzip", "choose none, lz4 or zstd"),
        ("incremental", "999", "up to 255"),
        ("incremental", "-3", "or 0 for full images only"),
    ] {
        let scratch = Scratch::new("guardians-images")?;
        let checkpoints = scratch.0.join("checkpoints").display().to_string();
        let place = ["--mca", "vprotocol_correlated_checkpoint_dir", &checkpoints];
        let parameter = format!("vprotocol_correlated_{parameter}");
        let given = ["--mca", &parameter, value];
        let outcome =
            TestJob::new(2, 1, &words(program, "well")).with(&place).with(&given).run()?;
        outcome.must(outcome.code != 0 && outcome.code != 124, "this job cannot start")?;
        let problem = format!("{parameter} is {value:?}: ");
        for word in [&problem, hint] {
            outcome.must(outcome.said().contains(word), &format!("it should say `{word}`"))?;
        }
        outcome.must(!outcome.stdout.contains("sum"), "it was started all the same")?;
    }
    Ok(())
}

/// Parameters of mpirun and orteds are where users look for those of the component.
fn listed() -> Result<()> {
    let path = format!("{}:{}", paths::mca().display(), "SYSTEM_DEFAULT");
    let mut command = Command::new("ompi_info");
    command.args(["--param", "vprotocol", "correlated", "--level", "9"]);
    let text = run::output(command.env("OMPI_MCA_mca_base_component_path", path))?;
    for name in [
        "checkpoint_dir",
        "checkpoint_interval",
        "checkpoints_kept",
        "compression",
        "incremental",
        "spare_nodes",
    ] {
        let name = format!("\"vprotocol_correlated_{name}\"");
        if !text.contains(&name) {
            fail!("ompi_info does not list {name}:\n{text}");
        }
    }
    Ok(())
}

fn bad_interval(program: &Path) -> Result<()> {
    for (interval, hint) in [("often", "often"), ("-3", "-3"), ("auto", "correlated_mtbf")] {
        let scratch = Scratch::new("guardians-interval")?;
        let folder = scratch.0.display().to_string();
        let place = ["--mca", "vprotocol_correlated_checkpoint_dir", &folder];
        let interval = ["--mca", "vprotocol_correlated_checkpoint_interval", interval];
        let job = TestJob::new(2, 1, &words(program, "well")).with(&place).with(&interval);
        let outcome = job.run()?;
        outcome.must(outcome.code != 0 && outcome.code != 124, "this job cannot start")?;
        outcome.must(outcome.said().contains(hint), "it is not said why")?;
        outcome.must(outcome.said().contains("coordinator"), "it was refused by somebody else")?;
        outcome.must(!outcome.stdout.contains("sum"), "it was started all the same")?;
    }
    Ok(())
}

fn no_program(program: &Path) -> Result<()> {
    let place = ["--mca", "vprotocol_correlated_command", "/not/there/rustbtl"];
    let outcome = guarded(2, 1, &words(program, "well")).with(&place).run()?;
    outcome.must(outcome.code != 0 && outcome.code != 124, "this job cannot start")?;
    outcome.must(outcome.said().contains("/not/there/rustbtl"), "the program is not named")
}
