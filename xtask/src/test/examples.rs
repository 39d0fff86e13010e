//! The programs in `examples/`, built and run as examples/README.md says: unprotected, and
//! protected with a node that is killed. Their last output is that of the README.

use std::fs;

use super::job::{Outcome, TestJob};
use super::mpi;
use super::scratch::Scratch;
use super::summary::Tier;
use super::{local_storage, workloads};
use crate::error::{Context, Result, fail};
use crate::paths;

/// What runs, with how many steps, and what it prints in the end; all on 2 × 2.
const PLAIN: [(&str, u32, &str); 3] = [
    ("heat.c", 50_000, HEAT_50_000),
    ("heat_fortran.f90", 50_000, HEAT_50_000),
    ("heat.py", 10_000, "heat in the rod after 10000 steps: 55.921074"),
];
const HEAT_50_000: &str = "heat in the rod after 50000 steps: 125.657572";
/// Those that call the component, with their default number of steps.
const SUM: &str = "sum of 3 phases: 12006000";
const TOKEN: &str = "token: 75000";

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    for (source, steps, answer) in PLAIN {
        tier.check(&format!("example {source}: a node is killed: 2 × 2"), || {
            survives(source, steps, answer)
        });
    }
    tier.check("example checkpoint_request.c: without rustbtl, and protected: 2 × 2", requests);
    tier.check("example restart_count.c: a node is killed: 2 × 2", counts);
    tier.check("examples/README.md shows what they print", readme);
}

/// The command of an example, built as the README says.
fn command(source: &str) -> Result<Vec<String>> {
    let file = paths::root().join("examples").join(source);
    if source.ends_with(".py") {
        return Ok(vec!["/usr/bin/python3".into(), file.display().to_string()]);
    }
    let here = paths::mca().display().to_string();
    let words = [format!("-I{here}"), format!("-L{here}"), format!("-Wl,-rpath,{here}")];
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    let calls_component = !source.starts_with("heat");
    if calls_component {
        words.extend(["-Wl,--no-as-needed", "-lmpix_correlated"]);
    }
    Ok(vec![mpi::compile_with(&file, &words)?.display().to_string()])
}

/// A job that keeps its checkpoints in the folder of the test.
fn protected(command: &[String], scratch: &Scratch) -> Result<TestJob> {
    let folder = workloads::checkpoint_folder(scratch)?;
    let mut job = workloads::protected(TestJob::new(2, 2, command), &folder);
    job.folder = scratch.0.clone();
    Ok(job)
}

/// Runs it, and kills node 1 when the first checkpoint is complete.
fn node_killed(command: &[String]) -> Result<Outcome> {
    let scratch = Scratch::new("examples")?;
    let checkpoints = scratch.0.join("checkpoints");
    let (library, gate) = (workloads::library("gate_calls", &scratch)?, workloads::gate(&scratch));
    let mut job = protected(command, &scratch)?.with(&["--kill-node-after-checkpoint", "1@1"]);
    // Nobody ends before the node was killed, and its ranks are through with their replay.
    let environment = [
        format!("LD_PRELOAD={}", library.display()),
        format!("GATE={}", gate.display()),
        "GATE_AT_END=1".to_owned(),
    ];
    for variable in &environment {
        job = job.with(&["--env", variable]);
    }
    let replayed = || {
        let events = workloads::events(&checkpoints);
        events.is_ok_and(|events| local_storage::all_have_replayed(&events, 1))
    };
    let steps = [(replayed, workloads::GATE_OPEN)];
    let outcome = workloads::in_steps(&job, &scratch, &steps)?;
    outcome.must(outcome.code == 0, "the job failed")?;
    outcome.must(outcome.stderr.contains("killed node n1"), "no node was killed")?;
    Ok(outcome)
}

fn says(outcome: &Outcome, line: &str) -> Result<()> {
    let found = outcome.stdout.lines().filter(|text| text.trim_end() == line).count();
    outcome.must(found == 1, &format!("it should print `{line}` once"))
}

fn survives(source: &str, steps: u32, answer: &str) -> Result<()> {
    let mut command = command(source)?;
    command.push(steps.to_string());
    says(&node_killed(&command)?, answer)
}

/// The same binary without the component, and with it.
fn requests() -> Result<()> {
    let command = command("checkpoint_request.c")?;
    let stock = TestJob::new(2, 2, &command).with(&["--plain"]).run()?;
    stock.must(stock.code == 0, "the unprotected job failed")?;
    says(&stock, "phase 3: no checkpoint: the job runs without rustbtl")?;
    says(&stock, SUM)?;
    let scratch = Scratch::new("examples")?;
    let outcome = protected(&command, &scratch)?.run()?;
    outcome.must(outcome.code == 0, "the protected job failed")?;
    let complete = outcome.stdout.lines().filter(|line| line.ends_with(" is complete")).count();
    outcome.must(complete == 3, "three checkpoints should be complete")?;
    says(&outcome, SUM)
}

/// The two ranks of the node were restarted once, the others never.
fn counts() -> Result<()> {
    let outcome = node_killed(&command("restart_count.c")?)?;
    says(&outcome, TOKEN)?;
    for (rank, times) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
        says(&outcome, &format!("rank {rank} was restarted {times} times"))?;
    }
    Ok(())
}

/// What is compared above is what users are told.
fn readme() -> Result<()> {
    let file = paths::root().join("examples/README.md");
    let text = fs::read_to_string(&file).context(|| file.display().to_string())?;
    let lines = PLAIN.iter().map(|(_, _, answer)| *answer).chain([SUM, TOKEN]);
    for line in lines {
        if !text.contains(line) {
            fail!("{} does not show `{line}`", file.display());
        }
    }
    Ok(())
}
