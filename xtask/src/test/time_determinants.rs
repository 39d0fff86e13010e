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

/// In C++, with all that C has.
const SOURCES: Program = Program {
    name: "C and C++",
    what: What::Hash { source: "by_sources.cpp", iterations: ENDLESS, arguments: &["GATE"] },
};
/// With another thread, which is not recorded.
const THREADS: Program = Program {
    name: "C++ with threads",
    what: What::Hash {
        source: "by_sources.cpp",
        iterations: ENDLESS,
        arguments: &["GATE", "threads"],
    },
};
const FORTRAN: Program = Program {
    name: "Fortran",
    what: What::Hash {
        source: "by_sources_fortran.f90",
        iterations: ENDLESS,
        arguments: &["GATE"],
    },
};
const PYTHON: Program = Program {
    name: "Python",
    what: What::Hash { source: "by_sources.py", iterations: ENDLESS, arguments: &["GATE"] },
};

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    for program in [&SOURCES, &THREADS, &FORTRAN, &PYTHON] {
        let title = format!("clocks and random numbers: {}: 3 × 1", program.name);
        tier.check(&title, || {
            let outcome = node_lost(program, &[])?;
            outcome.must(outcome.stdout.contains("HASH consistent"), "it should be consistent")
        });
    }
    // So that those above are known to be checks.
    tier.check("clocks and random numbers: not recorded: 3 × 1", || {
        let outcome = node_lost(&SOURCES, &NOT_RECORDED)?;
        let others = ["CLOCK_MONOTONIC", "gettimeofday", "std::chrono", "getrandom"];
        let all = others.iter().all(|name| outcome.stderr.contains(name));
        outcome.must(all, "rank 1 has read or drawn the same by chance")
    });
    tier.check("time determinants: random numbers and roots are the same again: 2 × 2", || {
        let outcome = rolled_back("roots", &[])?;
        outcome.must(outcome.stdout.contains("HASH consistent"), "it should be consistent")
    });
    // So that the check above is known to be one; with roots ranks would wait for each other.
    tier.check("time determinants: those that are not recorded are others: 2 × 2", || {
        let outcome = rolled_back("data", &NOT_RECORDED)?;
        let other = outcome.stdout.contains("HASH contradicts itself");
        outcome.must(other, "rank 0 has drawn the same by chance")
    });
    tier.check("time determinants: in signal handlers that come inside of MPI: 2 × 2", in_handlers);
}

fn program() -> Result<String> {
    let source = paths::root().join("tests/workloads/by_date.c");
    Ok(mpi::compile(&source)?.display().to_string())
}

/// The node of rank 1, which reads and draws, is lost a second after the first checkpoint; the job
/// ends some time after the rank has replayed.
fn node_lost(program: &Program, options: &[&str]) -> Result<Outcome> {
    let scratch = Scratch::new("sources")?;
    let job = program.job((3, 1), ENDLESS, &scratch)?.with(options);
    let job = job.with(&["--kill-node-after-checkpoint", "1@1"]);
    let replayed = |events: &str| local_storage::all_have_replayed(events, 1);
    let outcome = local_storage::run_until(job, &scratch, replayed)?;
    outcome.must(outcome.code == 0, "the job failed")?;
    outcome.must(replayed(&local_storage::events(&scratch)?), "the set was not rolled back")?;
    must_be_clean(&outcome)?;
    Ok(outcome)
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
