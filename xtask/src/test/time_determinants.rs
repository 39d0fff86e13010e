//! Programs that decide by clocks and random numbers, and whose set is rolled back: they read and
//! draw the same again, or else contradict what others have received from them (docs/adr/0014,
//! docs/adr/0029).

use super::job::{Outcome, TestJob};
use super::local_storage;
use super::mpi;
use super::node_failure::must_be_clean;
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, Program, Shape, What};
use crate::error::{Context, Result};
use crate::paths;
use std::fs;

/// Rank 0, which draws, and rank 1, which is killed, are a set, and those that receive it another.
const SHAPE: Shape = (2, 2);
/// Rounds of a program that nobody ends, 20 ms each: more than it has time for.
const ENDLESS: u64 = 100_000;
const RECOVER: [&str; 3] = ["--mca", "vprotocol_correlated_recover", "1"];
const NOT_RECORDED: [&str; 3] = ["--mca", "vprotocol_correlated_record_clock", "0"];
/// Nor is what the set sends again compared: then nobody notices that it differs.
const NOT_NOTICED: [&str; 6] = [
    "--mca",
    "vprotocol_correlated_record_clock",
    "0",
    "--mca",
    "vprotocol_correlated_verify_sends",
    "0",
];

/// Rank 1 reads and draws in turns.
const fn sources(
    name: &'static str,
    source: &'static str,
    arguments: &'static [&'static str],
) -> Program {
    Program { name, what: What::Hash { source, iterations: 1, arguments } }
}

/// In C++, with all that C has; a node is lost.
const LOST: Program = sources("C and C++", "by_sources.cpp", &["GATE"]);
/// Rank 1 kills itself at a counted round after a checkpoint.
const KILLED: [Program; 4] = [
    sources("C and C++", "by_sources.cpp", &["FOLDER", "killed"]),
    // Another thread is not recorded.
    sources("C++ with threads", "by_sources.cpp", &["FOLDER", "killed", "threads"]),
    sources("Fortran", "by_sources_fortran.f90", &["FOLDER", "killed"]),
    sources("Python", "by_sources.py", &["FOLDER", "killed"]),
];

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    for program in &KILLED {
        let title = format!("clocks and random numbers: {}: 3 × 1", program.name);
        tier.check(&title, || {
            let outcome = killed(program, &[])?;
            outcome.must(outcome.stdout.contains("HASH consistent"), "it should be consistent")
        });
        // So that the check above is known to be one, for each of the sources.
        let title = format!("clocks and random numbers: {}, not recorded: 3 × 1", program.name);
        tier.check(&title, || {
            let outcome = killed(program, &NOT_NOTICED)?;
            outcome.must(all_contradict(&outcome.stdout), "some were the same by chance")
        });
        let title = format!("clocks and random numbers: {}, noticed: 3 × 1", program.name);
        tier.check(&title, || noticed(program));
    }
    tier.check("clocks and random numbers: a node is lost: 3 × 1", || {
        let outcome = node_lost(&LOST)?;
        outcome.must(outcome.stdout.contains("HASH consistent"), "it should be consistent")
    });
    tier.check("clocks and random numbers: of the processor: are named once: 2 × 2", processors);
    tier.check("time determinants: random numbers and roots are the same again: 2 × 2", || {
        let outcome = rolled_back("roots", &[])?;
        outcome.must(outcome.stdout.contains("HASH consistent"), "it should be consistent")
    });
    // So that the check above is known to be one; with roots ranks would wait for each other.
    tier.check("time determinants: those that are not recorded are others: 2 × 2", || {
        let outcome = rolled_back("data", &NOT_NOTICED)?;
        let other = outcome.stdout.contains("HASH contradicts itself");
        outcome.must(other, "rank 0 has drawn the same by chance")
    });
    tier.check("time determinants: in signal handlers that come inside of MPI: 2 × 2", in_handlers);
}

fn program() -> Result<String> {
    let source = paths::root().join("tests/workloads/by_date.c");
    Ok(mpi::compile(&source)?.display().to_string())
}

/// Did rank 1 get something else from all of its sources?
fn all_contradict(stdout: &str) -> bool {
    let Some((_, counts)) = stdout.split_once("HASH contradicts itself in ") else { return false };
    let mut words = counts.split(' ');
    words.next().is_some_and(|wrong| words.nth(1) == Some(wrong))
}

/// Rank 1 has read each source three times after a checkpoint when it kills itself; the job ends
/// some rounds after that.
fn killed(program: &Program, options: &[&str]) -> Result<Outcome> {
    let scratch = Scratch::new("sources")?;
    rolled_back_once(kills_itself(program, options, &scratch)?, &scratch)
}

fn kills_itself(program: &Program, options: &[&str], scratch: &Scratch) -> Result<Outcome> {
    let checkpoint = scratch.0.join("checkpoint").display().to_string();
    let job = program.job((3, 1), 1, scratch)?.with(options);
    let job = job.with(&["--checkpoint-at", "0", "--write-after", &checkpoint, "1"]);
    local_storage::plain(job, scratch).run()
}

/// What it sends again differs: all are rolled back, and the answer is right.
fn noticed(program: &Program) -> Result<()> {
    let scratch = Scratch::new("sources")?;
    let outcome = kills_itself(program, &NOT_RECORDED, &scratch)?;
    outcome.must(outcome.code == 0, "the job failed")?;
    outcome.must(outcome.stdout.contains("HASH consistent"), "it should be consistent")?;
    let events = local_storage::events(&scratch)?;
    let count = |event: &str| events.matches(&format!("\"event\":\"{event}\"")).count();
    outcome.must(count("replay_diverged") == 1, "nobody has noticed that it differs")?;
    must_be_clean(&outcome)
}

/// The node of rank 1 is lost a second after the first checkpoint; the job ends some time after the
/// rank has replayed.
fn node_lost(program: &Program) -> Result<Outcome> {
    let scratch = Scratch::new("sources")?;
    let job = program.job((3, 1), ENDLESS, &scratch)?;
    let job = job.with(&["--kill-node-after-checkpoint", "1@1"]);
    let replayed = |events: &str| local_storage::all_have_replayed(events, 1);
    let outcome = local_storage::run_until(job, &scratch, replayed)?;
    rolled_back_once(outcome, &scratch)
}

fn rolled_back_once(outcome: Outcome, scratch: &Scratch) -> Result<Outcome> {
    outcome.must(outcome.code == 0, "the job failed")?;
    let events = local_storage::events(scratch)?;
    let replayed = local_storage::all_have_replayed(&events, 1);
    outcome.must(replayed, "the set was not rolled back")?;
    let back = events.matches("\"event\":\"set_rollback\"").count();
    outcome.must(back == 1, "another number of rollbacks")?;
    must_be_clean(&outcome)?;
    Ok(outcome)
}

/// The program's file is named, by one rank, and no other; without `verbose` nothing is.
fn processors() -> Result<()> {
    let source = paths::root().join("tests/workloads/by_processor.c");
    let program = mpi::compile(&source)?.display().to_string();
    let run = |verbose: &str| {
        let scratch = Scratch::new("sources")?;
        let job = TestJob::new(2, 2, &[&program]);
        let verbose = ["--mca", "vprotocol_correlated_verbose", verbose];
        let outcome = local_storage::plain(job.with(&verbose), &scratch).run()?;
        outcome.must(outcome.code == 0 && outcome.stdout.contains("HASH read"), "it failed")?;
        Ok::<_, crate::error::Failure>(outcome)
    };
    let outcome = run("1")?;
    let said = outcome.said();
    let named = said.matches("that cannot be recorded").count();
    outcome.must(named == 1, "not one file is named, once")?;
    let both = [&program, "(rdtsc)", "(rdrand)"].iter().all(|word| said.contains(*word));
    outcome.must(both, "the file is not named with what it does")?;
    let silent = run("0")?;
    silent.must(!silent.said().contains("cannot be recorded"), "it is named without being asked")
}

/// The set of ranks 0 and 1 fails two seconds after a checkpoint, and is restarted.
fn rolled_back(mode: &str, options: &[&str]) -> Result<Outcome> {
    let scratch = Scratch::new("dates")?;
    run_in(&scratch, mode, options, 1)
}

/// A timer's handler reads the date a thousand times a second while dates are recorded.
fn in_handlers() -> Result<()> {
    let scratch = Scratch::new("dates")?;
    // It takes rank 1 for one that has failed.
    let failed = scratch.0.join("failed");
    fs::write(&failed, "").context(|| failed.display().to_string())?;
    let outcome = run_in(&scratch, "signals", &[], 0)?;
    outcome.must(outcome.stdout.contains("HASH consistent"), "it should be consistent")
}

/// The program ends some time after the first checkpoint. `rolls_back`: so many sets are.
fn run_in(scratch: &Scratch, mode: &str, options: &[&str], rolls_back: usize) -> Result<Outcome> {
    let checkpoints = workloads::checkpoint_folder(scratch)?;
    let [failed, checkpoint] =
        ["failed", "checkpoint"].map(|name| scratch.0.join(name).display().to_string());
    let command = [program()?, ENDLESS.to_string(), failed, checkpoint.clone(), mode.to_string()];
    let job = workloads::protected(TestJob::new(SHAPE.0, SHAPE.1, &command), &checkpoints);
    let job = job.with(&["--checkpoint-at", "0", "--write-after", &checkpoint, "1"]).with(&RECOVER);
    let outcome = job.with(options).run()?;
    outcome.must(outcome.code == 0, "the job failed")?;
    let back = workloads::events(&checkpoints)?.matches("\"event\":\"set_restarted\"").count();
    outcome.must(back == rolls_back, "another number of sets rolled back")?;
    must_be_clean(&outcome)?;
    Ok(outcome)
}
