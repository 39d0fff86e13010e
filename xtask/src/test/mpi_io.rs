//! Programs whose ranks open files together by MPI-IO, of which a set fails (docs/adr/0023): it
//! alone is rolled back, and the files are what they are without failures.

use super::local_storage;
use super::mpi::Over;
use super::node_failure::must_be_clean;
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, Program, Shape, What};
use crate::error::{Context, Result};
use std::fs;

/// Pages that one rank writes after another one, and sizes that are asked for and set. The
/// checkpoint has no file open.
const PAGES: Program = program("pages of shared files", &["FOLDER", "GATE", "pages", "0"]);
/// The same; it has one open, which is closed since.
const OPEN: Program = program("pages of open files", &["FOLDER", "GATE", "pages", "25"]);
/// Files are deleted and made again, among them the one that was open.
const REMADE: Program = program("pages of files made again", &["FOLDER", "GATE", "remade", "25"]);
/// All have been made before the checkpoint.
const OLD: Program = program("pages of old files", &["FOLDER", "GATE", "remade", "425"]);
/// The shared file pointer; a file is open.
const OPEN_LINES: Program = program("lines of open files", &["FOLDER", "GATE", "lines", "25"]);
/// The shared file pointer.
const LINES: Program = program("lines of shared files", &["FOLDER", "GATE", "lines", "0"]);
/// Only the program's own checkpoint.
const BY_REQUEST: &[&str] = &["--mca", "vprotocol_correlated_checkpoint_interval", "0"];
/// Of half a millisecond and more.
const ITERATIONS: u64 = 4000;

const fn program(name: &'static str, arguments: &'static [&'static str]) -> Program {
    Program { name, what: What::Hash { source: "file_pages.c", iterations: ITERATIONS, arguments } }
}

/// What happens, and how many sets are rolled back.
const CASES: [(&str, &Program, Shape, &[&str], usize); 14] = [
    ("pages: 2 × 2", &PAGES, (2, 2), &["--kill-rank-after-checkpoint", "1@1"], 1),
    ("pages, the other set: 2 × 2", &PAGES, (2, 2), &["--kill-rank-after-checkpoint", "3@1"], 1),
    // All ranks are on one node then.
    ("pages, a node: 2 × 2", &PAGES, (2, 2), &["--kill-node-after-checkpoint", "1@1"], 1),
    ("pages, a node: 3 × 1", &PAGES, (3, 1), &["--kill-node-after-checkpoint", "1@1"], 1),
    (
        "pages, again while it replays: 2 × 2",
        &PAGES,
        (2, 2),
        &["--kill-rank-after-checkpoint", "1@1", "--kill-at-event", "set_restarted@1=rank:0"],
        2,
    ),
    ("lines: 2 × 2", &LINES, (2, 2), &["--kill-rank-after-checkpoint", "1@1"], 1),
    ("lines, a node: 3 × 1", &LINES, (3, 1), &["--kill-node-after-checkpoint", "1@1"], 1),
    // Open MPI's own lock file of a file that was open is gone, and so may that be.
    ("open then, closed since: 2 × 2", &OPEN, (2, 2), &["--kill-rank-after-checkpoint", "1@1"], 1),
    ("open then, closed since: 3 × 1", &OPEN, (3, 1), &["--kill-rank-after-checkpoint", "1@1"], 1),
    ("lines, open then: 2 × 2", &OPEN_LINES, (2, 2), &["--kill-rank-after-checkpoint", "3@1"], 1),
    ("made again: 2 × 2", &REMADE, (2, 2), &["--kill-rank-after-checkpoint", "1@1"], 1),
    (
        "made again, the other set: 2 × 2",
        &REMADE,
        (2, 2),
        &["--kill-rank-after-checkpoint", "3@1"],
        1,
    ),
    ("made again, a node: 3 × 1", &REMADE, (3, 1), &["--kill-node-after-checkpoint", "1@1"], 1),
    ("made before, and again: 2 × 2", &OLD, (2, 2), &["--kill-rank-after-checkpoint", "1@1"], 1),
];

/// These say little beside the others, and are run when time does not matter.
const LONG: [&str; 5] = [
    "pages, the other set: 2 × 2",
    "pages, a node: 2 × 2",
    "lines: 2 × 2",
    "open then, closed since: 3 × 1",
    "made again, the other set: 2 × 2",
];

/// Runs the cases.
pub fn run(tier: &mut Tier, every_case: bool) {
    let wanted = |title: &str| every_case || !LONG.contains(&title);
    for (title, program, shape, faults, sets) in CASES.into_iter().filter(|case| wanted(case.0)) {
        tier.check(&format!("files of MPI-IO: {title}"), || {
            survives(&Over::Component, program, shape, faults, sets)
        });
    }
}

/// The answer and the files are those of an undisturbed run, and nobody else was rolled back.
fn survives(
    over: &Over,
    program: &Program,
    shape: Shape,
    faults: &[&str],
    sets: usize,
) -> Result<()> {
    let scratch = Scratch::new("mpi-io")?;
    let undisturbed = program.job_over(over, shape, ITERATIONS, &scratch)?.run()?;
    let known = program.answer(&undisturbed, &scratch)?;
    let job = program.job_over(over, shape, ITERATIONS, &scratch)?.with(faults);
    let begun = scratch.0.join("begun");
    // That of the undisturbed run.
    fs::remove_file(&begun).context(|| begun.display().to_string())?;
    let begun = begun.display().to_string();
    let job = local_storage::plain(job, &scratch).with(&["--break-when", &begun]).with(BY_REQUEST);
    let replayed = |events: &str| local_storage::all_have_replayed(events, sets);
    let happened = || replayed(&local_storage::events(&scratch).unwrap_or_default());
    let outcome = workloads::run_until(&job, &scratch, ITERATIONS - 1, happened)?;
    program.must_answer(&outcome, &scratch, &known)?;
    let events = local_storage::events(&scratch)?;
    outcome.must(replayed(&events), "not every set was rolled back")?;
    let global: Vec<&str> = events
        .lines()
        .filter(|line| line.contains("global_rollback") || line.contains("not_replayable"))
        .collect();
    outcome.must(global.is_empty(), &format!("who should roll back: {global:?}"))?;
    must_be_clean(&outcome)
}
