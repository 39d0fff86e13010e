//! A restarted program that waits for what nobody sends (docs/adr/0034): all wait, and it is
//! noticed, also where busy programs of others hardly leave them a processor.

use super::job::TestJob;
use super::mpi;
use super::node_failure::{diverged, must_be_clean};
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads;
use crate::error::{Context, Result};
use crate::paths;
use std::fs;
use std::process::{Child, Command};
use std::thread;

/// Of each processor.
const BUSY: usize = 3;

/// Add them.
pub fn tests(tier: &mut Tier) {
    let processors = thread::available_parallelism().map_or(1, |p| p.get());
    for (surroundings, busy) in [("", 0), (", on a busy machine", BUSY * processors)] {
        let title = "live recovery: a replay that waits for what nobody sends: 3 × 1";
        tier.check(&format!("{title}{surroundings}"), || stands_still(busy));
    }
}

/// Programs that use processors up until this is dropped.
struct BusyPrograms(Vec<Child>);

impl BusyPrograms {
    fn start(count: usize) -> Result<Self> {
        let mut all = Self(Vec::new());
        for _ in 0..count {
            let mut loops = Command::new("timeout");
            loops.args(["300", "sh", "-c", "while :; do :; done"]);
            all.0.push(loops.spawn().context(|| "a busy loop".to_string())?);
        }
        Ok(all)
    }
}

impl Drop for BusyPrograms {
    fn drop(&mut self) {
        for program in &mut self.0 {
            // timeout passes SIGTERM on, which `Child::kill` would not send.
            // SAFETY: a process of ours that nobody has waited for.
            unsafe { libc::kill(program.id() as libc::pid_t, libc::SIGTERM) };
            let _ = program.wait();
        }
    }
}

/// Rank 0 finds a file in its replay that was not there before its failure, and goes another way:
/// all wait, until all are rolled back.
/// `busy`: so many programs of others use the processors up meanwhile.
fn stands_still(busy: usize) -> Result<()> {
    let program = mpi::compile(&paths::root().join("tests/workloads/by_file.c"))?;
    let scratch = Scratch::new("stands-still")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let file = scratch.0.join("stop").display().to_string();
    let words = [program.display().to_string(), file.clone()];
    fs::write(&file, "").context(|| file.clone())?;
    let known = workloads::hash(&TestJob::new(3, 1, &words).run()?)?;
    fs::remove_file(&file).context(|| file.clone())?;
    let _busy = BusyPrograms::start(busy)?;
    // Late enough that others have more than the last messages of what it sends another way.
    let job = workloads::protected(TestJob::new(3, 1, &words), &checkpoints);
    let failure = ["--kill-rank-after-checkpoint", "0@1+2", "--write-when-failed", &file];
    let outcome = job.with(&failure).run()?;
    outcome.must(outcome.code == 0, "the job failed")?;
    outcome.must(workloads::hash(&outcome)? == known, "the answer is another one")?;
    let events = workloads::events(&checkpoints)?;
    outcome.must_by(diverged(&events), "all should be rolled back", &events)?;
    outcome.must(
        outcome.stderr.contains("waits for messages that nobody sends"),
        "it should say why",
    )?;
    must_be_clean(&outcome)
}
