//! Sets that are smaller than a node, and memory that ranks of several of them share: snapshots of
//! all of them are of one moment, and none is rolled back alone.

use super::job::{Outcome, TestJob};
use super::local_storage::all_have_replayed;
use super::mpi;
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads;
use crate::error::{Context, Result};
use crate::paths;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Ranks of one node, each a set of its own.
const SINGLE: [&str; 3] = ["--mca", "vprotocol_correlated_sets", "core"];
/// Whose memory it is.
const MEMORY: [&str; 2] = ["window", "own"];
/// The guardian of rank 1 holds the beginning of a checkpoint back for so long: rank 0 is there
/// long before.
const LATE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(60);
const RIGHT: &str = "HASH 0 counters are wrong";

/// All cases.
pub fn run(tier: &mut Tier) {
    for memory in MEMORY {
        tier.check(&format!("memory of several sets, {memory}: all are restarted: 1 × 2"), || {
            restarted(memory)
        });
        tier.check(&format!("memory of several sets, {memory}: a rank is killed: 1 × 2"), || {
            rolled_back(memory)
        });
    }
}

fn job(scratch: &Scratch, memory: &str) -> Result<TestJob> {
    let program = mpi::compile(&paths::root().join("tests/workloads/shared_counters.c"))?;
    let words = [program.display().to_string(), file(scratch, "go"), memory.to_owned()];
    let hold = format!("RUSTBTL_FAILPOINTS={}", scratch.0.display());
    let mut job = TestJob::new(1, 2, &words).with(&SINGLE).with(&["--env", &hold]);
    job.seconds = 2 * PATIENCE.as_secs() as u32;
    Ok(job)
}

fn file(scratch: &Scratch, name: &str) -> String {
    scratch.0.join(name).display().to_string()
}

fn make(scratch: &Scratch, name: &str) -> Result<()> {
    fs::write(file(scratch, name), "").context(|| name.into())
}

/// Runs it; its first checkpoint is held back, and when `happened` it may end.
fn run_held(
    job: &TestJob,
    scratch: &Scratch,
    happened: impl Fn() -> bool + Sync,
) -> Result<Outcome> {
    make(scratch, "begin-1")?;
    let over = AtomicBool::new(false);
    let begin = Instant::now();
    let wait = |for_what: &dyn Fn() -> bool| {
        let waits = || !over.load(Ordering::Relaxed) && begin.elapsed() < PATIENCE;
        while waits() && !for_what() {
            thread::sleep(Duration::from_millis(10));
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            wait(&|| scratch.0.join("begin-1.reached").exists());
            thread::sleep(LATE);
            fs::remove_file(file(scratch, "begin-1")).context(|| "begin-1".into())?;
            wait(&happened);
            make(scratch, "go")
        });
        let outcome = job.run();
        over.store(true, Ordering::Relaxed);
        outcome
    })
}

fn must_be_right(outcome: &Outcome, scratch: &Scratch) -> Result<()> {
    outcome.must(scratch.0.join("begin-1.reached").exists(), "nothing was held back")?;
    outcome.must(outcome.code == 0, "it should end well")?;
    outcome.must(workloads::hash(outcome)? == RIGHT, "its memory is of two moments")
}

fn restarted(memory: &str) -> Result<()> {
    let scratch = Scratch::new("shared-by-sets")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    // The only one.
    let on_request = ["--mca", "vprotocol_correlated_checkpoint_interval", "0"];
    let times = ["--checkpoint-at", "0.5", "--kill-all-after", "0.3"];
    let first = workloads::with_checkpoints(job(&scratch, memory)?, &checkpoints);
    let first = first.with(&on_request).with(&times);
    let first = run_held(&first, &scratch, || false)?;
    first.must(first.code == 137, "it should have been killed in the middle")?;
    make(&scratch, "go")?;
    let second = workloads::restart((1, 2), &checkpoints, &scratch).run()?;
    must_be_right(&second, &scratch)
}

fn rolled_back(memory: &str) -> Result<()> {
    let scratch = Scratch::new("shared-by-sets")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let killed = ["--kill-rank-after-checkpoint", "1@1+0.5"];
    let job = workloads::protected(job(&scratch, memory)?, &checkpoints);
    let events = || workloads::events(&checkpoints).unwrap_or_default();
    let outcome = run_held(&job.with(&killed), &scratch, || all_have_replayed(&events(), 1))?;
    must_be_right(&outcome, &scratch)?;
    let events = events();
    let both = events.contains("\"global_rollback\"");
    outcome.must_by(both, "both should be rolled back", &events)
}
