//! The main job: a solver on three nodes, one of which is killed half-way. The same again as what
//! one does without us: the whole job is restarted from its last checkpoint.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::png;
use crate::error::{Context, Result, fail};
use crate::test::job::{Outcome, TestJob};
use crate::test::scratch::Scratch;
use crate::test::{mpi, workloads};
use crate::{build, paths, run, setup};

/// Emulated nodes, and ranks on each.
const SHAPE: workloads::Shape = (3, 1);
/// Which one is killed: neither mpirun's nor the one whose rank prints.
const VICTIM: u32 = 1;
/// Points along an edge of the square.
const POINTS: u32 = 1500;
/// Iterations to see how fast the machine is.
const TRIAL: u32 = 200;
/// How long the solver shall take.
const SECONDS: f64 = 12.0;
/// Checkpoints in that time.
const LINES: f64 = 5.0;
/// When the node is killed, as a part of that time: well after a checkpoint.
const KILLED_AT: f64 = 0.55;

/// A run that has ended.
struct DemoRun {
    outcome: Outcome,
    seconds: f64,
    /// Milliseconds since 1970.
    start: u64,
}

/// Runs everything and shows it.
pub fn run() -> Result<()> {
    setup::run()?;
    build::ensure_optimised()?;
    println!(
        "A solver (conjugate gradients, {POINTS} × {POINTS} points) on {} emulated nodes, an \
         unchanged MPI binary.\nWhat it prints depends on every bit of every message.\n",
        SHAPE.0
    );
    let scratch = Scratch::new("demo")?;
    let program = mpi::compile(&paths::root().join("tests/demo/poisson.c"))?;
    let trial = solver(&program, TRIAL, &scratch);
    let step = (timed(&trial.with(&["--plain"]))?.seconds - 1.0).max(0.2) / f64::from(TRIAL);
    let iterations = ((SECONDS / step) as u32).clamp(500, 100_000);
    let job = solver(&program, iterations, &scratch);

    let stock = shown("stock Open MPI", &job.clone().with(&["--plain"]))?;
    let every = format!("{:.1}", stock.seconds / LINES);
    let protected = |name: &str| -> Result<(TestJob, PathBuf)> {
        let checkpoints = scratch.0.join(name);
        fs::create_dir(&checkpoints).context(|| checkpoints.display().to_string())?;
        let interval = ["--mca", "vprotocol_correlated_checkpoint_interval", &every];
        Ok((workloads::protected(job.clone(), &checkpoints).with(&interval), checkpoints))
    };

    let (calm, _) = protected("calm")?;
    let calm = shown(&format!("protected, a checkpoint every {every} s"), &calm)?;
    must_say(&calm, &stock)?;

    let (killed, story) = protected("killed")?;
    let at = format!("{VICTIM}@{:.2}", stock.seconds * KILLED_AT);
    let killed = shown("one node killed with SIGKILL", &killed.with(&["--kill-node", &at]))?;
    must_say(&killed, &stock)?;
    let (folder, events) = events(&story)?;
    let loss = moment(&events, "node_lost")?;
    let after = loss.saturating_sub(killed.start) as f64 / 1e3;

    let (all, checkpoints) = protected("all")?;
    let at = format!("{after:.2}");
    let all = workloads::with_checkpoints(all, &checkpoints).with(&["--kill-all-at", &at]);
    let first = timed(&all)?;
    first.outcome.must(first.outcome.code == 137, "it should have been killed in the middle")?;
    let mut second =
        shown("all killed, job restarted", &workloads::restart(SHAPE, &checkpoints, &scratch))?;
    must_end_as(&second, &stock)?;
    second.seconds += first.seconds;

    println!("\n  the output is the same, byte by byte:\n");
    print!("{}", indented(&stock.outcome.stdout));
    println!("\n  a node killed after {after:.1} s:");
    print!("{}", phases(&events, loss));
    let (ours, theirs) = (killed.seconds - calm.seconds, second.seconds - calm.seconds);
    println!("\n  time lost: {ours:.1} s; when the whole job is restarted: {theirs:.1} s");
    draw(&folder)
}

fn solver(program: &Path, iterations: u32, scratch: &Scratch) -> TestJob {
    let words = [program.display().to_string(), POINTS.to_string(), iterations.to_string()];
    let mut job = TestJob::new(SHAPE.0, SHAPE.1, &words);
    job.folder = scratch.0.clone();
    job
}

fn timed(job: &TestJob) -> Result<DemoRun> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let start = Instant::now();
    let outcome = job.run()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(DemoRun { outcome, seconds, start: since.as_millis() as u64 })
}

/// Prints what runs, and how long it took.
fn shown(title: &str, job: &TestJob) -> Result<DemoRun> {
    print!("  {title:32}");
    let _ = io::stdout().flush();
    let done = timed(job)?;
    println!("{:6.1} s", done.seconds);
    done.outcome.must(done.outcome.code == 0, &format!("{title}: it failed"))?;
    Ok(done)
}

fn must_say(run: &DemoRun, stock: &DemoRun) -> Result<()> {
    let same = run.outcome.stdout == stock.outcome.stdout;
    let wanted = &stock.outcome.stdout;
    run.outcome.must(same, &format!("its output differs from that of stock Open MPI:\n{wanted}"))
}

/// What it printed in its first incarnation is not printed again.
fn must_end_as(run: &DemoRun, stock: &DemoRun) -> Result<()> {
    let last = stock.outcome.stdout.lines().last().unwrap_or("nothing");
    let same = run.outcome.stdout.lines().last() == Some(last);
    run.outcome.must(same, &format!("it should end with: {last}"))
}

/// The folder of the only job there, and what has happened to it.
fn events(checkpoints: &Path) -> Result<(PathBuf, Vec<Value>)> {
    let job =
        fs::read_dir(checkpoints).context(|| checkpoints.display().to_string())?.flatten().next();
    let Some(folder) = job.map(|entry| entry.path()) else {
        fail!("{} holds no job", checkpoints.display());
    };
    let file = folder.join("events.jsonl");
    let text = fs::read_to_string(&file).context(|| file.display().to_string())?;
    Ok((folder, text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()))
}

/// When something happened first, in ms since 1970.
fn moment(events: &[Value], name: &str) -> Result<u64> {
    let event = events.iter().find(|event| event["event"] == name);
    match event.and_then(|event| event["unix_ms"].as_u64()) {
        Some(time) => Ok(time),
        None => fail!("the job's events do not tell of `{name}`: the node was killed too late"),
    }
}

/// Where the time of the recovery went.
fn phases(events: &[Value], loss: u64) -> String {
    let last = |name: &str| {
        let times = events.iter().filter(|event| event["event"] == name);
        times.filter_map(|event| event["unix_ms"].as_u64()).max()
    };
    let mut text = String::new();
    let mut from = loss;
    for (name, what) in [
        ("rank_placed", "notified by mpirun, placement found"),
        ("set_restarted", "images restored, ranks run again"),
        ("replay_completed", "what they had done since their checkpoint is replayed"),
    ] {
        if let Some(to) = last(name) {
            text += &format!("    {:6} ms  {what}\n", to.saturating_sub(from));
            from = to;
        }
    }
    text
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

/// The figure of the job in which the node was killed.
fn draw(job: &Path) -> Result<()> {
    let out = paths::out().join("demo");
    fs::create_dir_all(&out).context(|| out.display().to_string())?;
    let svg = out.join("timeline.svg");
    let mut report = Command::new(paths::mca().join(build::PROGRAM));
    run::output(report.arg("report").arg(job).arg("--output").arg(&svg))?;
    let shown = env::current_dir().ok();
    let png = png(&svg)?;
    let png = shown.and_then(|here| png.strip_prefix(here).ok().map(Path::to_owned)).unwrap_or(png);
    println!("\nFigure: {} and .svg (ranks from top to bottom, time to the right)", png.display());
    Ok(())
}
