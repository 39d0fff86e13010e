//! Sets that are smaller than a node, and memory that ranks of several of them share: snapshots of
//! all of them are of one moment, and none is rolled back alone. Memory that is not on one node
//! after a restart, and what else ranks of a node share that is in no image.

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
/// Windows over components of Open MPI.
const THEIRS: [&str; 3] = ["--mca", "vprotocol_correlated_one_sided", "0"];
const PARTED_WINDOW: &str = "Two processes that share the memory of a window";
const PARTED_MEMORY: &str = "Two processes that shared memory of a node";

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
    for (memory, options, reason) in [
        ("window", &[][..], PARTED_WINDOW),
        ("window", &THEIRS[..], PARTED_MEMORY),
        ("own", &[][..], PARTED_MEMORY),
    ] {
        let title = format!("memory of a node, {memory} {}: not on two nodes", options.join(" "));
        tier.check(&title, || parted(memory, options, reason));
    }
    tier.check("System V semaphores: a checkpoint when they are gone: 1 × 2", system_v);
}

fn job(scratch: &Scratch, memory: &str) -> Result<TestJob> {
    Ok(job_of_a_node(scratch, memory)?.with(&SINGLE))
}

fn job_of_a_node(scratch: &Scratch, memory: &str) -> Result<TestJob> {
    let program = mpi::compile(&paths::root().join("tests/workloads/shared_counters.c"))?;
    let words = [program.display().to_string(), file(scratch, "go"), memory.to_owned()];
    let hold = format!("RUSTBTL_FAILPOINTS={}", scratch.0.display());
    let mut job = TestJob::new(1, 2, &words).with(&["--env", &hold]);
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
    run_while(job, |wait| {
        wait(&|| scratch.0.join("begin-1.reached").exists());
        thread::sleep(LATE);
        fs::remove_file(file(scratch, "begin-1")).context(|| "begin-1".into())?;
        wait(&happened);
        make(scratch, "go")
    })
}

/// Runs it, and does this meanwhile, which is given a way to wait for something.
fn run_while(
    job: &TestJob,
    meanwhile: impl FnOnce(&dyn Fn(&dyn Fn() -> bool)) -> Result<()> + Send,
) -> Result<Outcome> {
    let over = AtomicBool::new(false);
    let begin = Instant::now();
    let wait = |for_what: &dyn Fn() -> bool| {
        let waits = || !over.load(Ordering::Relaxed) && begin.elapsed() < PATIENCE;
        while waits() && !for_what() {
            thread::sleep(Duration::from_millis(10));
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| meanwhile(&wait));
        let outcome = job.run();
        over.store(true, Ordering::Relaxed);
        outcome
    })
}

fn must_be_right(outcome: &Outcome, scratch: &Scratch) -> Result<()> {
    outcome.must(scratch.0.join("begin-1.reached").exists(), "nothing was held back")?;
    must_end_right(outcome)
}

fn must_end_right(outcome: &Outcome) -> Result<()> {
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

/// The first run has the memory on one node, the second one has two: each would have a copy.
fn parted(memory: &str, options: &[&str], reason: &str) -> Result<()> {
    let scratch = Scratch::new("parted-memory")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let on_request = ["--mca", "vprotocol_correlated_checkpoint_interval", "0"];
    let times = ["--checkpoint-at", "0.5", "--kill-all-after", "0.3"];
    let first = job_of_a_node(&scratch, memory)?.with(options);
    let first = workloads::with_checkpoints(first, &checkpoints).with(&on_request).with(&times);
    let first = first.run()?;
    first.must(first.code == 137, "it should have been killed in the middle")?;
    make(&scratch, "go")?;
    let mut second = workloads::restart((2, 1), &checkpoints, &scratch);
    second.seconds = PATIENCE.as_secs() as u32;
    let second = second.run()?;
    second.must(second.code != 0, "it should end with an error")?;
    second.must(second.said().contains(reason), &format!("it should say: {reason}"))?;
    // Nothing is lost by that.
    must_end_right(&workloads::restart((1, 2), &checkpoints, &scratch).run()?)
}

/// What they hold is in no image: the program goes on, and is told; when it has removed them there
/// is a checkpoint.
fn system_v() -> Result<()> {
    let program = mpi::compile(&paths::root().join("tests/workloads/system_v.c"))?;
    let scratch = Scratch::new("system-v")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let words = [program.display().to_string(), file(&scratch, "go"), file(&scratch, "end")];
    let mut job = workloads::protected(TestJob::new(1, 2, &words), &checkpoints).with(&[
        "--mca",
        "vprotocol_correlated_checkpoint_interval",
        "1",
    ]);
    job.seconds = 2 * PATIENCE.as_secs() as u32;
    let events = || workloads::events(&checkpoints).unwrap_or_default();
    let last = |name: &str| events().rfind(&format!("\"event\":\"{name}\""));
    let outcome = run_while(&job, |wait| {
        // The first one is taken again without a word.
        wait(&|| events().matches("\"event\":\"checkpoint_aborted\"").count() > 1);
        make(&scratch, "go")?;
        wait(&|| last("checkpoint_completed") > last("checkpoint_aborted"));
        make(&scratch, "end")
    })?;
    outcome.must(outcome.code == 0, "it should end well")?;
    outcome.must(workloads::hash(&outcome)? == "HASH 0 turns more", "another answer")?;
    let is_named = outcome.said().contains("System V semaphores (semop)");
    outcome.must(is_named, "it should say why there was no checkpoint")?;
    let events = events();
    let is_late = last("checkpoint_completed") > last("checkpoint_aborted");
    outcome.must_by(
        is_late && events.contains("semop"),
        "no checkpoint when they are gone",
        &events,
    )
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
