//! Standard input: a rank that is rolled back reads on where it was at its checkpoint, and a job
//! that is restarted gets what it had not read.

use super::job::TestJob;
use super::local_storage;
use super::node_failure::must_be_clean;
use super::scratch::Scratch;
use super::storage::Storage;
use super::summary::Tier;
use super::workloads::{self, Program, Shape, What};
use crate::error::{Context, Result};
use std::fs;
use std::path::PathBuf;

/// Each takes a millisecond.
const LINES: u64 = 1200;
const READS: Program = Program {
    name: "a program that reads",
    what: What::Hash { source: "by_input.c", iterations: LINES, arguments: &["GATE"] },
};

const KILLED: [(&str, Shape, &[&str], usize); 3] = [
    ("the rank that reads is killed", (2, 1), &["--kill-rank-after-checkpoint", "0@1"], 1),
    ("another rank of its set is killed", (2, 2), &["--kill-rank-after-checkpoint", "1@1"], 1),
    (
        "all sets, one after the other",
        (2, 1),
        &["--kill-rank-after-checkpoint", "1@1", "--kill-at-event", "replay_completed@1=rank:0"],
        2,
    ),
];

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    for (title, shape, faults, rollbacks) in KILLED {
        let title = format!("standard input: {title}: {} × {}", shape.0, shape.1);
        tier.check(&title, || reads_on(shape, faults, rollbacks));
    }
    tier.check("standard input: a restarted job, where it had ended", || restarts(Given::Nothing));
    tier.check("standard input: a restarted job, the same input", || restarts(Given::Same));
    tier.check("standard input: a restarted job, too little", || restarts(Given::Less));
}

/// What a restarted job gets.
#[derive(Clone, Copy, PartialEq)]
enum Given {
    /// All of the input had come before.
    Nothing,
    /// There was more of it than can wait in pipes.
    Same,
    /// The same, but less than was read before.
    Less,
}

/// One number a line. With several nodes less than 64 KiB: there mpirun 4.1.4 crashes now and then
/// when more of it waits.
fn input(scratch: &Scratch, lines: u64, width: usize) -> Result<PathBuf> {
    let file = scratch.0.join(format!("input-{lines}"));
    let number = |line| line * 7919 % 10_007;
    let text: String = (1..=lines).map(|line| format!("{:0width$}\n", number(line))).collect();
    fs::write(&file, text).context(|| file.display().to_string())?;
    Ok(file)
}

fn job(shape: Shape, width: usize, scratch: &Scratch) -> Result<TestJob> {
    let mut job = READS.job(shape, LINES, scratch)?;
    job.stdin = Some(input(scratch, LINES, width)?);
    Ok(job)
}

fn reads_on(shape: Shape, faults: &[&str], rollbacks: usize) -> Result<()> {
    let scratch = Scratch::new("input")?;
    let known = READS.answer(&job(shape, 1, &scratch)?.run()?, &scratch)?;
    let all_broken = scratch.0.join("all-broken");
    let failed = ["--write-when-failed", &all_broken.display().to_string()];
    let job = Storage::Nodes.with(job(shape, 1, &scratch)?, &scratch)?.with(faults).with(&failed);
    let replayed = |events: String| local_storage::all_have_replayed(&events, rollbacks);
    let happened = || all_broken.exists() && Storage::Nodes.events(&scratch).is_ok_and(replayed);
    let outcome = workloads::run_until(&job, &scratch, 0, happened)?;
    READS.must_answer(&outcome, &scratch, &known)?;
    let events = Storage::Nodes.events(&scratch)?;
    outcome.must(!events.contains("replay_diverged"), "it reads something else than before")?;
    must_be_clean(&outcome)
}

/// All is killed when a checkpoint is complete, while the program waits in the middle of its input.
fn restarts(given: Given) -> Result<()> {
    let scratch = Scratch::new("input")?;
    let (shape, width) = if given == Given::Nothing { ((2, 1), 1) } else { ((1, 2), 250) };
    let known = READS.answer(&job(shape, width, &scratch)?.run()?, &scratch)?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    workloads::open_gate(&scratch, 0)?;
    let reached = format!("{}.reached", workloads::gate(&scratch).display());
    let job = workloads::with_checkpoints(job(shape, width, &scratch)?, &checkpoints);
    let when = ["--checkpoint-at", "0", "--checkpoint-when", &reached, "--kill-all-after", "0"];
    let outcome = job.with(&when).run()?;
    outcome.must(outcome.code == 137, "all should have been killed")?;
    workloads::open_gate(&scratch, workloads::GATE_OPEN)?;
    let mut job = workloads::restart(shape, &checkpoints, &scratch);
    job.stdin = match given {
        Given::Nothing => None,
        Given::Same => Some(input(&scratch, LINES, width)?),
        Given::Less => Some(input(&scratch, LINES / 8, width)?),
    };
    let outcome = job.run()?;
    must_be_clean(&outcome)?;
    if given == Given::Less {
        outcome.must(outcome.code != 0, "it has read less than it should")?;
        return outcome
            .must(outcome.stderr.contains("give the job the same input"), "it is silent");
    }
    READS.must_answer(&outcome, &scratch, &known)
}
