//! Programs that read what they have written to files of their own, and change it
//! (docs/adr/0031): after a rollback, alone or of all, and after a restart of the whole job they
//! find what was there at the checkpoint. The programs compare what they read with what they have
//! in memory.

use super::job::{Outcome, TestJob};
use super::local_storage;
use super::mpi::{self, Over};
use super::mpi_io;
use super::node_failure::{COMPLETE, must_be_clean};
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, Program, Shape, What};
use crate::error::{Context, Result, failure};
use crate::paths;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

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
/// By each function that changes a file, a file of its own.
const fn forms(name: &'static str, source: &'static str) -> Program {
    let (iterations, arguments) = (FORMS, &["FOLDER", "GATE"]);
    Program { name, what: What::Hash { source, iterations, arguments } }
}
const BY_FORMS: Program = forms("each function that changes a file", "file_forms.c");
const BY_FORMS_64: Program = forms("the same with names that end with 64", "file_forms_64.c");
/// Each changes 26 files.
const FORMS: u64 = 200;
/// Databases, in Python.
pub const SQLITE: Program = Program {
    name: "databases that are read and changed",
    what: What::Hash {
        source: "file_sqlite.py",
        iterations: ITERATIONS,
        arguments: &["FOLDER", "GATE"],
    },
};
/// Ranks of several sets use one file, and how.
const fn shared(name: &'static str, arguments: &'static [&'static str]) -> Program {
    let (source, iterations) = ("file_shared.c", ITERATIONS);
    Program { name, what: What::Hash { source, iterations, arguments } }
}
const WITH_THEM: &str = "it can be rolled back with them only";
const KILLED_LATER: [&str; 5] = [
    "--mca",
    "vprotocol_correlated_checkpoint_interval",
    "1",
    "--kill-at-event",
    "checkpoint_completed@4=rank:3",
];
const DIES_ONCE: [&str; 2] = ["--env", "DIE_ONCE=1"];
/// How, what happens, and, where others are rolled back with the set of which a program is killed,
/// what the reason has to name.
type Shared = (Program, &'static [&'static str], Option<&'static str>);
const SHARED: [Shared; 14] = [
    (
        shared("each reads what another one writes", &["FOLDER", "GATE", "both"]),
        &["--kill-rank-after-checkpoint", "3@1"],
        Some(WITH_THEM),
    ),
    (
        shared("one writes, all others read", &["FOLDER", "GATE", "reader"]),
        &["--kill-rank-after-checkpoint", "3@1"],
        Some(WITH_THEM),
    ),
    (shared("written before the checkpoint", &["FOLDER", "GATE", "once"]), &KILLED_LATER, None),
    (shared("the same, open to be written to", &["FOLDER", "GATE", "table"]), &KILLED_LATER, None),
    (
        shared("nobody reads it", &["FOLDER", "GATE", "writers"]),
        &["--kill-rank-after-checkpoint", "3@1"],
        None,
    ),
    (
        shared("one after the other changes it", &["FOLDER", "GATE", "turns"]),
        &["--kill-rank-after-checkpoint", "3@1"],
        Some(WITH_THEM),
    ),
    (
        shared("one makes folders, all make files in them", &["FOLDER", "GATE", "folders"]),
        &["--kill-rank-after-checkpoint", "1@1"],
        Some(WITH_THEM),
    ),
    (
        shared("one makes them, all write", &["FOLDER", "GATE", "made"]),
        &["--kill-rank-after-checkpoint", "1@1"],
        Some(WITH_THEM),
    ),
    (
        shared("one removes them, another one makes them", &["FOLDER", "GATE", "removed"]),
        &["--kill-rank-after-checkpoint", "1@1"],
        Some(WITH_THEM),
    ),
    (
        shared("all append", &["FOLDER", "GATE", "log"]),
        &["--kill-rank-after-checkpoint", "3@1"],
        Some(WITH_THEM),
    ),
    (
        shared("it is written while it is read again", &["FOLDER", "GATE", "late"]),
        &DIES_ONCE,
        Some("shared.late"),
    ),
    (
        shared("it is written amid of that", &["FOLDER", "GATE", "amid"]),
        &DIES_ONCE,
        Some("shared.amid"),
    ),
    (
        shared("one overwrites what another one has written", &["FOLDER", "GATE", "over"]),
        &DIES_ONCE,
        Some(WITH_THEM),
    ),
    (
        shared("the same behind its end", &["FOLDER", "GATE", "grown"]),
        &DIES_ONCE,
        Some("shared.grown"),
    ),
];
/// What is done soon after a checkpoint, also while a process is restored, and does not know where
/// others are; and the reason why others are rolled back.
const EARLY: [(Program, Option<&str>); 7] = [
    (
        shared("behind its end, before others are known", &["FOLDER", "GATE", "early"]),
        Some("shared.early holds something else"),
    ),
    (shared("read while they are put back", &["FOLDER", "GATE", "after"]), None),
    (shared("looked for by opendir", &["FOLDER", "GATE", "opendir+fdopendir"]), None),
    (shared("looked for by scandir", &["FOLDER", "GATE", "scandir+glob"]), None),
    (shared("looked for by nftw", &["FOLDER", "GATE", "nftw+realpath"]), None),
    (
        shared("read before they are put back, and again", &["FOLDER", "GATE", "seen"]),
        Some("ranks of other sets have read it since"),
    ),
    (
        shared("a child of another one writes what was read", &["FOLDER", "GATE", "child"]),
        Some("shared.child is not what it was"),
    ),
];
/// Of checkpoints, in seconds.
const INTERVAL: [&str; 3] = ["--mca", "vprotocol_correlated_checkpoint_interval", "3"];
/// Of a millisecond and more.
const ITERATIONS: u64 = 4000;
/// Files are changed after the checkpoint from the first to the second one.
const GATES: (u64, u64) = (200, 1000);

/// One set that is not alone: files are put back as in a global rollback.
const ONE_SET: [&str; 2] = ["vprotocol_correlated_sets", "all"];

/// What happens to a job, and how many sets are rolled back.
const LIVE: [(&str, &Program, Shape, &[&str], usize); 9] = [
    ("a program is killed: 2 × 2", &IN_C, (2, 2), &["--kill-rank-after-checkpoint", "3@1+0.5"], 1),
    ("a node is killed: 3 × 1", &IN_C, (3, 1), &["--kill-node-after-checkpoint", "1@1+0.5"], 1),
    (
        "a program is killed, each function: 2 × 1",
        &BY_FORMS,
        (2, 1),
        &["--kill-rank-after-checkpoint", "1@1+0.5"],
        1,
    ),
    (
        "a program is killed, Fortran: 2 × 2",
        &IN_FORTRAN,
        (2, 2),
        &["--kill-rank-after-checkpoint", "3@1+0.5"],
        1,
    ),
    (
        "a program is killed, and again while it replays: 2 × 2",
        &IN_C,
        (2, 2),
        &["--kill-rank-after-checkpoint", "3@1+0.5", "--kill-at-event", "set_restarted@1=rank:2"],
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
        "a program is killed, each function with 64: 2 × 1",
        &BY_FORMS_64,
        (2, 1),
        &["--kill-rank-after-checkpoint", "1@1+0.5"],
        1,
    ),
    (
        "a program is killed, SQLite: 2 × 2",
        &SQLITE,
        (2, 2),
        &["--kill-rank-after-checkpoint", "3@1+1"],
        1,
    ),
    (
        "all are rolled back: 2 × 2",
        &IN_C,
        (2, 2),
        &["--mca", ONE_SET[0], ONE_SET[1], "--kill-rank-after-checkpoint", "3@1+0.5"],
        1,
    ),
];

/// These say little beside the others, and are run when time does not matter.
const LONG: [&str; 5] = [
    "the same, open to be written to",
    "one makes folders, all make files in them",
    "it is written amid of that",
    "looked for by scandir",
    "looked for by nftw",
];

/// Runs the tier.
pub fn run(tier: &mut Tier, every_case: bool) {
    let wanted = |program: &Program| every_case || !LONG.contains(&program.name);
    live(tier, &Over::Component, LIVE.len());
    of_several_sets(tier, &Over::Component, SHARED.iter().filter(|(program, ..)| wanted(program)));
    for (program, reason) in EARLY.iter().filter(|(program, _)| wanted(program)) {
        let title = format!("contents of files: of several sets: {}: 2 × 2", program.name);
        tier.check(&title, || early(program, *reason));
    }
    mpi_io::run(tier, every_case);
    let title = "contents of files: what has no room is named, and ends a rollback: 2 × 1";
    tier.check(title, without_room);
    tier.check("contents of files: the whole job is restarted: 2 × 2", restarted);
    for shape in [(1, 2), (2, 1)] {
        let title = format!(
            "contents of files: a rank is restored late, after a restart: {} × {}",
            shape.0, shape.1
        );
        tier.check(&title, || restored_late(shape));
    }
}

/// Over another Open MPI: some of it.
pub fn run_over(tier: &mut Tier, over: &Over) {
    live(tier, over, 3);
    of_several_sets(tier, over, SHARED.iter().take(2));
}

fn live(tier: &mut Tier, over: &Over, count: usize) {
    for (title, program, shape, faults, sets) in LIVE.into_iter().take(count) {
        tier.check(&format!("contents of files: {title}"), || {
            survives(over, program, shape, faults, sets)
        });
    }
}

fn of_several_sets<'c>(tier: &mut Tier, over: &Over, cases: impl Iterator<Item = &'c Shared>) {
    for (program, faults, reason) in cases {
        let title = format!("contents of files: of several sets: {}: 2 × 2", program.name);
        tier.check(&title, || survives_shared(over, program, faults, *reason));
    }
}

/// The answer is the same, and nothing is left of what was recorded.
fn survives(
    over: &Over,
    program: &Program,
    shape: Shape,
    faults: &[&str],
    sets: usize,
) -> Result<()> {
    let scratch = Scratch::new("files")?;
    let iterations = match program.what {
        What::Hash { iterations, .. } => iterations,
        _ => ITERATIONS,
    };
    let undisturbed = program.job_over(over, shape, iterations, &scratch)?.run()?;
    let known = program.answer(&undisturbed, &scratch)?;
    let job = program.job_over(over, shape, iterations, &scratch)?.with(faults);
    let replayed = |events: &str| local_storage::all_have_replayed(events, sets);
    let job = local_storage::plain(job, &scratch);
    let happened = || replayed(&local_storage::events(&scratch).unwrap_or_default());
    let outcome = workloads::run_until(&job, &scratch, iterations - 1, happened)?;
    program.must_answer(&outcome, &scratch, &known)?;
    let all = replayed(&local_storage::events(&scratch)?);
    outcome.must_by(all, "not every set was rolled back", &local_storage::events(&scratch)?)?;
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

/// The answer is the same. `reason`: why the set of the program that is killed is not rolled back
/// alone.
fn survives_shared(
    over: &Over,
    program: &Program,
    faults: &[&str],
    reason: Option<&str>,
) -> Result<()> {
    let scratch = Scratch::new("files")?;
    let job = || program.job_over(over, (2, 2), ITERATIONS, &scratch);
    let known = program.answer(&job()?.run()?, &scratch)?;
    // Its nodes have one file system, and its folder of journals.
    let job = job()?.with(faults);
    let sets = if reason.is_some() { 2 } else { 1 };
    let job = local_storage::plain(job, &scratch);
    let happened = || has_replayed(&scratch, sets);
    let begins = || has_checkpoint(&scratch);
    let outcome = workloads::run_with_work(job, &scratch, GATES, begins, happened)?;
    program.must_answer(&outcome, &scratch, &known)?;
    must_name(&outcome, &scratch, reason)
}

/// Others are rolled back with a set for this reason, or not.
fn must_name(outcome: &Outcome, scratch: &Scratch, reason: Option<&str>) -> Result<()> {
    let events = local_storage::events(scratch)?;
    let global = events.contains("\"event\":\"global_rollback\"");
    outcome.must_by(global == reason.is_some(), "another kind of rollback", &events)?;
    let said = outcome.said();
    let is_right = reason.map_or(!said.contains(WITH_THEM), |reason| said.contains(reason));
    outcome.must_by(is_right, "the file should be named", &events)?;
    must_be_clean(outcome)
}

fn has_replayed(scratch: &Scratch, sets: usize) -> bool {
    local_storage::events(scratch)
        .is_ok_and(|events| local_storage::all_have_replayed(&events, sets))
}

/// The second one since the job began: where the program waits is in its image.
fn is_in_image(scratch: &Scratch) -> bool {
    local_storage::events(scratch).is_ok_and(|all| all.matches(COMPLETE).count() > 1)
}

/// The last rank's program is restored, and runs, but is not told where others are.
fn early(program: &Program, reason: Option<&str>) -> Result<()> {
    let scratch = Scratch::new("files")?;
    let make = |name: &str| fs::write(scratch.0.join(name), "");
    let remove = |name: &str| fs::remove_file(scratch.0.join(name));
    make("go").context(|| "go".into())?;
    let job = || program.job_over(&Over::Component, (2, 2), ITERATIONS, &scratch);
    let known = program.answer(&job()?.run()?, &scratch)?;
    remove("go").context(|| "go".into())?;
    make("endpoints-3").context(|| "endpoints-3".into())?;
    let hold = format!("RUSTBTL_FAILPOINTS={}", scratch.0.display());
    let job = job()?.with(&DIES_ONCE).with(&["--env", &hold]).with(&INTERVAL);
    let job = local_storage::plain(job, &scratch);
    let begins = || is_in_image(&scratch) && make("go").is_ok();
    let held = scratch.0.join("endpoints-3.reached");
    let waits = || {
        held.exists() && {
            // For what it must not write meanwhile.
            thread::sleep(Duration::from_millis(500));
            remove("endpoints-3").is_ok()
        }
    };
    let happened = || has_replayed(&scratch, if reason.is_some() { 2 } else { 1 });
    let steps: [(&(dyn Fn() -> bool + Sync), u64); 3] =
        [(&begins, GATES.1), (&waits, GATES.1), (&happened, workloads::GATE_OPEN)];
    workloads::open_gate(&scratch, 0)?;
    let outcome = workloads::in_steps(&job, &scratch, &steps)?;
    outcome.must(held.exists(), "it was not restored")?;
    program.must_answer(&outcome, &scratch, &known)?;
    must_name(&outcome, &scratch, reason)
}

fn has_checkpoint(scratch: &Scratch) -> bool {
    local_storage::events(scratch).is_ok_and(|all| all.contains(COMPLETE))
}

/// It is named while nothing has happened; the program reads it, so that there is no rollback.
fn without_room() -> Result<()> {
    let scratch = Scratch::new("files")?;
    let limit = ["--mca", "vprotocol_correlated_file_undo_max", "100"];
    let job = IN_C
        .job((2, 1), ITERATIONS, &scratch)?
        .with(&limit)
        .with(&["--kill-rank-after-checkpoint", "1@1"]);
    let job = local_storage::plain(job, &scratch);
    let outcome =
        workloads::run_with_work(job, &scratch, GATES, || has_checkpoint(&scratch), || false)?;
    let said = outcome.said();
    let named = said.contains("more of this file is changed between two checkpoints");
    outcome.must(named, "no file was named")?;
    let again = said.contains("is not put back to what it was (") && said.contains("reads-*)");
    outcome.must(again && said.contains("vprotocol_correlated_file_undo_max"), "not again")?;
    // The program itself, which would notice it, was not restarted.
    outcome.must(outcome.code != 0 && outcome.code != 3, "it should not have been restored")?;
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

/// Two ranks write to one file. After a restart the files of one are put back long after the other
/// one has been restored: neither may what that one writes anew be undone, nor may it see the
/// future.
fn restored_late(shape: Shape) -> Result<()> {
    let program = mpi::compile(&paths::root().join("tests/workloads/file_halves.c"))?;
    let scratch = Scratch::new("halves")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let make = |name: &str| {
        let file = scratch.0.join(name);
        fs::write(&file, "").context(|| file.display().to_string())
    };
    let folder = scratch.0.display().to_string();
    let mut job = TestJob::new(shape.0, shape.1, &[program.display().to_string(), folder]);
    job.folder = scratch.0.clone();
    let job = workloads::with_checkpoints(job, &checkpoints).with(&[
        "--checkpoint-at",
        "0.3",
        "--kill-all-after",
        "2",
    ]);
    let first = thread::scope(|scope| {
        let run = scope.spawn(|| job.run());
        while !run.is_finished() && !is_complete(&checkpoints) {
            thread::sleep(Duration::from_millis(10));
        }
        make("go")?;
        run.join().map_err(|_| failure!("the first incarnation panicked"))?
    })?;
    first.must(first.code == 137, "it should have been killed")?;
    let written = fs::metadata(scratch.0.join("halves")).map_or(0, |file| file.len());
    first.must(written == 200_000, "both should have written before that")?;
    make("end")?;
    make("restore-1")?;
    let hold = format!("RUSTBTL_FAILPOINTS={}", scratch.0.display());
    let mut again = workloads::restart(shape, &checkpoints, &scratch).with(&["--env", &hold]);
    again.seconds = 60;
    let second = thread::scope(|scope| {
        let run = scope.spawn(|| again.run());
        while !run.is_finished() && !scratch.0.join("restore-1.reached").exists() {
            thread::sleep(Duration::from_millis(10));
        }
        // As long as the other one needs to run again, and more.
        thread::sleep(Duration::from_secs(1));
        fs::remove_file(scratch.0.join("restore-1")).context(|| "restore-1".into())?;
        run.join().map_err(|_| failure!("the restart panicked"))?
    })?;
    second.must(scratch.0.join("restore-1.reached").exists(), "its guardian should have waited")?;
    second.must(second.code == 0, "the restarted job should end")?;
    second.must(workloads::hash(&second)? == "HASH 0 bytes are wrong", "the file")
}

/// Is there a checkpoint that is complete?
fn is_complete(checkpoints: &Path) -> bool {
    let jobs = fs::read_dir(checkpoints).into_iter().flatten().flatten();
    jobs.into_iter().any(|job| job.path().join("checkpoint-1/manifest.json").exists())
}
