//! Programs that read what they have written to files of their own, and change it
//! (docs/adr/0031): after a rollback, alone or of all, and after a restart of the whole job they
//! find what was there at the checkpoint. The programs compare what they read with what they have
//! in memory.

use super::local_storage;
use super::mpi::Over;
use super::node_failure::must_be_clean;
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, Program, Shape, What};
use crate::error::{Context, Result};
use std::fs;

/// In C, in all ways.
pub const IN_C: Program = Program {
    name: "files that are read and changed",
    what: What::Hash {
        source: "file_contents.c",
        iterations: ITERATIONS,
        arguments: &["FOLDER", "GATE"],
    },
};
/// In Fortran: records, and a file that replaces the last one.
pub const IN_FORTRAN: Program = Program {
    name: "files that are read and changed, Fortran",
    what: What::Hash {
        source: "file_contents_fortran.f90",
        iterations: ITERATIONS,
        arguments: &["FOLDER", "GATE"],
    },
};
/// Of a millisecond and more.
const ITERATIONS: u64 = 4000;

/// One set that is not alone: files are put back as in a global rollback.
const ONE_SET: [&str; 2] = ["vprotocol_correlated_sets", "all"];

/// What happens to a job, and how many sets are rolled back.
const LIVE: [(&str, &Program, Shape, &[&str], usize); 6] = [
    ("a program is killed: 2 × 2", &IN_C, (2, 2), &["--kill-rank", "3@1"], 1),
    ("a program is killed, Fortran: 2 × 2", &IN_FORTRAN, (2, 2), &["--kill-rank", "3@1"], 1),
    ("a node is killed: 3 × 1", &IN_C, (3, 1), &["--kill-node", "1@1"], 1),
    (
        "a program is killed, and again while it replays: 2 × 2",
        &IN_C,
        (2, 2),
        &["--kill-rank", "3@1", "--kill-at-event", "set_restarted@1=rank:2"],
        2,
    ),
    (
        "checkpoints in between: 2 × 2",
        &IN_C,
        (2, 2),
        &[
            "--mca",
            "vprotocol_correlated_checkpoint_interval",
            "1",
            "--kill-at-event",
            "checkpoint_completed@3=rank:3",
        ],
        1,
    ),
    (
        "all are rolled back: 2 × 2",
        &IN_C,
        (2, 2),
        &["--mca", ONE_SET[0], ONE_SET[1], "--kill-rank", "3@1"],
        1,
    ),
];

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    for (title, program, shape, faults, sets) in LIVE {
        tier.check(&format!("contents of files: {title}"), || {
            survives(program, shape, faults, sets)
        });
    }
    let title = "contents of files: what has no room is named, and not put back: 2 × 1";
    tier.check(title, without_room);
    tier.check("contents of files: the whole job is restarted: 2 × 2", restarted);
}

/// The answer is the same, and nothing is left of what was recorded.
fn survives(program: &Program, shape: Shape, faults: &[&str], sets: usize) -> Result<()> {
    let scratch = Scratch::new("files")?;
    let undisturbed = program.job(shape, ITERATIONS, &scratch)?.run()?;
    let known = program.answer(&undisturbed, &scratch)?;
    let job = program.job(shape, ITERATIONS, &scratch)?.with(faults);
    let replayed = |events: &str| local_storage::all_have_replayed(events, sets);
    let job = local_storage::plain(job, &scratch);
    let happened = || replayed(&local_storage::events(&scratch).unwrap_or_default());
    let outcome = workloads::run_until(&job, &scratch, ITERATIONS - 1, happened)?;
    program.must_answer(&outcome, &scratch, &known)?;
    let all = replayed(&local_storage::events(&scratch)?);
    outcome.must(all, "not every set was rolled back")?;
    let said = outcome.said().contains("is not put back");
    outcome.must(!said, "a file was not put back")?;
    let mut left = Vec::new();
    for entry in fs::read_dir(&scratch.0).context(|| scratch.0.display().to_string())?.flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b".rustbtl") {
            left.push(entry.path());
        }
    }
    outcome.must(left.is_empty(), &format!("{left:?} was left over"))?;
    must_be_clean(&outcome)
}

/// It is named while nothing has happened, and again when it is not put back.
fn without_room() -> Result<()> {
    let scratch = Scratch::new("files")?;
    let limit = ["--mca", "vprotocol_correlated_file_undo_max", "100"];
    let job = IN_C.job((2, 1), ITERATIONS, &scratch)?.with(&limit).with(&["--kill-rank", "1@1"]);
    let outcome = local_storage::plain(job, &scratch).run()?;
    let said = outcome.said();
    let named = said.contains("more of this file is changed between two checkpoints");
    outcome.must(named, "no file was named")?;
    outcome
        .must(said.contains("is not put back to what it was at that checkpoint"), "not again")?;
    // The program notices that it does not find what it has written.
    outcome.must(outcome.code == 3, "it should have found other content")?;
    must_be_clean(&outcome)
}

fn restarted() -> Result<()> {
    let scratch = Scratch::new("files")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let job = IN_C.job_over(&Over::Component, (2, 2), ITERATIONS, &scratch)?;
    let known = IN_C.answer(&job.run()?, &scratch)?;
    let killed = ["--checkpoint-at", "0.3", "--kill-all-after", "0.6"];
    // It cannot end before it is killed.
    workloads::open_gate(&scratch, ITERATIONS - 1)?;
    let mut outcome = workloads::with_checkpoints(job, &checkpoints).with(&killed).run()?;
    // Killed again after a checkpoint of its own, and once without one.
    for options in [&killed[..], &["--kill-all-at", "3"]] {
        outcome.must(outcome.code == 137, "it should have been killed in the middle")?;
        let job = workloads::restart((2, 2), &checkpoints, &scratch);
        outcome = workloads::with_checkpoints(job, &checkpoints).with(options).run()?;
    }
    outcome.must(outcome.code == 137, "it should have been killed in the middle")?;
    workloads::open_gate(&scratch, ITERATIONS)?;
    outcome = workloads::restart((2, 2), &checkpoints, &scratch).run()?;
    IN_C.must_answer(&outcome, &scratch, &known)
}
