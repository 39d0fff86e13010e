//! Protected programs that start others (MPI_Comm_spawn). On one node: Open MPI 4.1.4 itself does
//! not start processes that find each other on several.

use super::job::{Outcome, TestJob};
use super::local_storage;
use super::mpi::{self, Over};
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads;
use crate::error::Result;
use crate::paths;

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    run_over(tier, &Over::Component);
}

/// The same over another Open MPI.
pub fn run_over(tier: &mut Tier, over: &Over) {
    tier.check("spawned processes: they are started, and part from the others", || {
        let outcome = spawner(over, &[], |_| true)?;
        outcome.must(outcome.code == 0 && outcome.stdout == "OK\n", "it should end well")
    });
    tier.check("spawned processes: a restored rank cannot, and says so", || {
        let replayed = |events: &str| local_storage::all_have_replayed(events, 1);
        let outcome = spawner(over, &["--kill-rank-after-checkpoint", "1@1"], replayed)?;
        outcome.must(![0, 124].contains(&outcome.code), "it should end with an error")?;
        let said = outcome.said();
        outcome.must(said.contains("MPI_Comm_spawn"), "the function is not named")
    });
}

/// A job whose program begins when the events are as they should be.
fn spawner(over: &Over, faults: &[&str], ready: impl Fn(&str) -> bool + Sync) -> Result<Outcome> {
    let program = mpi::compile_over(&paths::root().join("xtask/programs/spawner.c"), over)?;
    let scratch = Scratch::new("spawn")?;
    let gate = workloads::gate(&scratch);
    let mut job = TestJob::new(1, 2, &[program.as_os_str(), gate.as_os_str()]).with(faults);
    job.seconds = 60;
    let job = local_storage::plain(over.job(job), &scratch);
    let happened = || ready(&local_storage::events(&scratch).unwrap_or_default());
    workloads::run_until(&job, &scratch, 0, happened)
}
