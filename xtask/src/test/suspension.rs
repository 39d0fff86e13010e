//! Logging towards sets is suspended, since it costs too much or logs are full, and resumed by
//! their next checkpoint: at any moment of that, whoever fails is recovered, alone or with all
//! others, and the answer is that of an undisturbed run (docs/adr/0026).

use super::job::Outcome;
use super::local_storage;
use super::node_failure::must_be_clean;
use super::scratch::Scratch;
use super::storage::Storage::{self, Nodes, Shared};
use super::storage::count;
use super::summary::Tier;
use super::workloads::{self, Program, RING, Shape, UPDATES};
use crate::error::Result;

const ITERATIONS: u64 = 6000;
const UPDATED: u64 = 30;

/// So little that every log is full after some messages.
pub const FULL_SOON: [&str; 6] = [
    "--mca",
    "vprotocol_correlated_log_budget",
    "256k",
    "--mca",
    "vprotocol_correlated_log_segment_max",
    "64k",
];
/// Mostly not before a checkpoint is stored, even by a ring with a processor of its own: so logging
/// is resumed.
const FULL_LATER: [&str; 6] = [
    "--mca",
    "vprotocol_correlated_log_budget",
    "4m",
    "--mca",
    "vprotocol_correlated_log_segment_max",
    "1m",
];
/// Each message is above what protection may cost.
const DEAR: [&str; 3] = ["--mca", "vprotocol_correlated_overhead_max", "0.1"];
pub const OFTEN: [&str; 3] = ["--mca", "vprotocol_correlated_checkpoint_interval", "1"];
const SINGLE: [&str; 3] = ["--mca", "vprotocol_correlated_sets", "core"];

/// What must have happened.
#[derive(Clone, Copy, PartialEq)]
enum Expected {
    /// All were rolled back: everybody's logging was suspended.
    Global,
    /// Whoever has failed was rolled back, alone or not: it depends on the moment.
    Either,
}
use Expected::{Either, Global};

/// Options, and who is killed at which event of the job.
type Case = (
    &'static str,
    Storage,
    Shape,
    &'static [&'static [&'static str]],
    &'static [&'static str],
    Expected,
);
const SURVIVED: [Case; 7] = [
    ("a node is killed", Shared, (3, 1), &[&FULL_SOON], &["logging_suspended@3=node:1"], Global),
    (
        "a node is killed, without a shared folder",
        Nodes,
        (3, 1),
        &[&FULL_SOON],
        &["logging_suspended@3=node:2"],
        Global,
    ),
    (
        "a program of single sets is killed",
        Shared,
        (2, 2),
        &[&FULL_SOON, &SINGLE],
        &["logging_suspended@4=rank:1"],
        Global,
    ),
    (
        "the coordinator is killed, then a node",
        Shared,
        (3, 1),
        &[&FULL_SOON],
        &["logging_suspended@3=coordinator", "failover_completed@1=node:1"],
        Global,
    ),
    (
        "the coordinator is killed at the first, then a node, without a shared folder",
        Nodes,
        (3, 1),
        &[&FULL_SOON],
        &["logging_suspended@1=coordinator", "failover_completed@1=node:1"],
        Either,
    ),
    (
        "a program is killed when logging is resumed",
        Shared,
        (2, 2),
        &[&FULL_LATER, &OFTEN],
        &["logging_resumed@2=rank:3"],
        Either,
    ),
    (
        "a node is killed again and again, too dear",
        Nodes,
        (3, 1),
        &[&FULL_SOON, &DEAR, &OFTEN],
        &["logging_suspended@2=node:1", "replication_ok@2=rank:0"],
        Either,
    ),
];

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    for (title, storage, shape, options, faults, expected) in SURVIVED {
        let title = format!("logging suspended: {title}: {} × {}", shape.0, shape.1);
        tier.check(&title, || {
            survives(&RING, ITERATIONS, (storage, shape), options, faults, expected)
        });
    }
    let title = "logging suspended: random updates, a program is killed: 2 × 3";
    tier.check(title, || {
        let options: &[&[&str]] = &[&FULL_SOON, &OFTEN];
        let faults = &["logging_suspended@3=rank:4"];
        survives(&UPDATES, UPDATED, (Shared, (2, 3)), options, faults, Either)
    });
}

fn survives(
    program: &Program,
    length: u64,
    (storage, shape): (Storage, Shape),
    options: &[&[&str]],
    faults: &[&str],
    expected: Expected,
) -> Result<()> {
    let scratch = Scratch::new("suspension")?;
    let job = program.job(shape, length, &scratch)?;
    let known = program.answer(&job.run()?, &scratch)?;
    let mut job = storage.with(job, &scratch)?;
    for option in options {
        job = job.with(option);
    }
    for fault in faults {
        job = job.with(&["--kill-at-event", fault]);
    }
    let kills = faults.iter().filter(|fault| !fault.ends_with("coordinator")).count();
    let failovers = faults.len() - kills;
    let killed = |what: &str| faults.iter().filter(|fault| fault.contains(what)).count();
    let (nodes, ranks) = (killed("=node:"), killed("=rank:"));
    let happened = || {
        storage.events(&scratch).is_ok_and(|events| {
            count(&events, "failover_completed") >= failovers
                && count(&events, "node_lost") >= nodes
                && count(&events, "rank_failed") >= ranks
                && local_storage::all_have_replayed(&events, kills)
        })
    };
    // Where there is no gate, the job is long enough.
    let outcome: Outcome = workloads::run_until(&job, &scratch, length / 2, happened)?;
    program.must_answer(&outcome, &scratch, &known)?;
    let broken = outcome.stderr.matches(": killed ").count();
    outcome.must(broken == faults.len(), "something did not break in time")?;
    let events = storage.events(&scratch)?;
    let is_there = |event: &str| count(&events, event) > 0;
    outcome.must_by(is_there("logging_suspended"), "nothing was suspended", &events)?;
    outcome.must_by(is_there("set_restarted"), "no set was rolled back", &events)?;
    let right = expected == Either || is_there("global_rollback");
    outcome.must_by(right, "all should be rolled back", &events)?;
    must_be_clean(&outcome)
}
