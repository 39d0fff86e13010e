//! The coordinator's process is killed and nothing else, before, during and after a recovery.
//! mpirun starts another one, which has the state of the one before: what fails then is recovered,
//! and the answer is that of an undisturbed run.

use super::job::Outcome;
use super::local_storage;
use super::node_failure::must_be_clean;
use super::scratch::Scratch;
use super::storage::Storage::{self, Nodes, Shared};
use super::storage::count;
use super::summary::Tier;
use super::workloads::{self, RING, Shape};
use crate::error::Result;

/// Of a job of which half is done when all has happened.
const ITERATIONS: u64 = 6000;
/// So often one is started in place of another that was killed.
pub const FAILOVERS_MAX: usize = 8;

/// Who is killed at which event of the job.
const SURVIVED: [(&str, Storage, Shape, &[&str]); 8] = [
    (
        "then a node",
        Shared,
        (3, 1),
        &["checkpoint_completed@1=coordinator", "failover_completed@1=node:1"],
    ),
    (
        "then a node, without a shared folder",
        Nodes,
        (3, 1),
        &["checkpoint_completed@1=coordinator", "failover_completed@1=node:1"],
    ),
    (
        "then a program",
        Shared,
        (2, 2),
        &["checkpoint_completed@1=coordinator", "failover_completed@1=rank:3"],
    ),
    (
        "with a node",
        Shared,
        (3, 1),
        &["checkpoint_completed@1=coordinator", "checkpoint_completed@1=node:1"],
    ),
    (
        "when a node's ranks are placed",
        Shared,
        (3, 1),
        &["checkpoint_completed@1=node:1", "rank_placed@1=coordinator"],
    ),
    (
        "when a program has failed",
        Nodes,
        (2, 2),
        &["checkpoint_completed@1=rank:3", "rank_failed@1=coordinator"],
    ),
    (
        "when a set has restarted",
        Nodes,
        (3, 1),
        &["checkpoint_completed@1=node:1", "set_restarted@1=coordinator"],
    ),
    (
        "after a recovery, then another node",
        Nodes,
        (3, 1),
        &["replication_ok@1=node:1", "replication_ok@2=coordinator", "failover_completed@1=node:2"],
    ),
];

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    for (title, storage, shape, faults) in SURVIVED {
        let title = format!("coordinator killed, {title}: {} × {}", shape.0, shape.1);
        tier.check(&title, || survives(storage, shape, faults));
    }
    tier.check("coordinator killed again and again: 2 × 1", killed_repeatedly);
}

/// A job that is not over before all of that has happened.
fn job(
    storage: Storage,
    shape: Shape,
    faults: &[&str],
    scratch: &Scratch,
    happened: impl Fn(&str) -> bool + Sync,
) -> Result<Outcome> {
    let mut job = RING.job(shape, ITERATIONS, scratch)?;
    for fault in faults {
        job = job.with(&["--kill-at-event", fault]);
    }
    let all_killed = scratch.0.join("all-killed");
    job = job.with(&["--write-when-failed", &all_killed.display().to_string()]);
    job = storage.with(job, scratch)?;
    let events = || storage.events(scratch);
    let happened = || all_killed.exists() && events().is_ok_and(|events| happened(&events));
    workloads::run_until(&job, scratch, ITERATIONS / 2, happened)
}

fn survives(storage: Storage, shape: Shape, faults: &[&str]) -> Result<()> {
    let scratch = Scratch::new("coordinator")?;
    let known = RING.answer(&RING.job(shape, ITERATIONS, &scratch)?.run()?, &scratch)?;
    let others = faults.iter().filter(|fault| !fault.ends_with("coordinator")).count();
    let happened = |events: &str| {
        count(events, "failover_completed") > 0 && local_storage::all_have_replayed(events, others)
    };
    let outcome = job(storage, shape, faults, &scratch, happened)?;
    RING.must_answer(&outcome, &scratch, &known)?;
    let broken = outcome.stderr.matches(": killed ").count();
    outcome.must(broken == faults.len(), "something did not break in time")?;
    let said = outcome.stderr.contains("has failed and was restarted");
    outcome.must(said, "it should be reported")?;
    let events = storage.events(&scratch)?;
    let once = count(&events, "failover_started") == 1 && count(&events, "failover_completed") == 1;
    outcome.must_by(once, "the failover should be complete", &events)?;
    let replayed = count(&events, "replay_completed") >= others;
    outcome.must_by(replayed, "a set did not roll back", &events)?;
    must_be_clean(&outcome)
}

/// In the end there is no other one: that is reported, and the job goes on.
fn killed_repeatedly() -> Result<()> {
    let scratch = Scratch::new("coordinator")?;
    let known = RING.answer(&RING.job((2, 1), ITERATIONS, &scratch)?.run()?, &scratch)?;
    let mut faults = vec!["checkpoint_completed@1=coordinator".to_string()];
    faults
        .extend((1..=FAILOVERS_MAX).map(|count| format!("failover_completed@{count}=coordinator")));
    let faults: Vec<&str> = faults.iter().map(String::as_str).collect();
    let happened = |events: &str| count(events, "failover_completed") == FAILOVERS_MAX;
    let outcome = job(Nodes, (2, 1), &faults, &scratch, happened)?;
    RING.must_answer(&outcome, &scratch, &known)?;
    let again = count(&Nodes.events(&scratch)?, "failover_started");
    outcome.must(again == FAILOVERS_MAX, "another number of coordinators")?;
    let said = outcome.stderr.matches("CONTINUES WITHOUT PROTECTION").count();
    outcome.must(said == 1, "it should be reported once")?;
    must_be_clean(&outcome)
}
