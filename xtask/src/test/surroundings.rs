//! Around a job: what the user says to Open MPI itself, unauthenticated peers, a kernel without
//! memory, and threads that never sleep.
//! Checkpoints are completed all the same, and a rank that is killed after that is rolled back.

use std::collections::BTreeSet;

use super::job::TestJob;
use super::local_storage;
use super::mpi;
use super::node_failure::must_be_clean;
use super::scratch::Scratch;
use super::storage::Storage;
use super::summary::Tier;
use super::workloads::{self, RING, Shape, WINDOW};
use crate::error::{Failure, Result};
use crate::paths;

const ITERATIONS: u64 = 400;
/// What happens last: checkpoints were completed since whatever else has happened.
const LAST: &str = "checkpoint_completed@3=rank:1";
const LOOPBACK: [&str; 9] = [
    "--mca",
    "oob_tcp_if_include",
    "lo",
    "--mca",
    "vprotocol_correlated_tcp_if_include",
    "lo",
    "--mca",
    "vprotocol_correlated_shm",
    "0",
];
/// More than a waiting process polls before it yields.
const CALLS: &str = "200000";
/// From the beginning, not from the first checkpoint on.
const RECORD: [&str; 2] = ["--env", "RUSTBTL_RECORD=1"];
const OFTEN: [&str; 3] = ["--mca", "vprotocol_correlated_checkpoint_interval", "0.5"];

/// Options, and how often sets are rolled back.
type Case = (&'static str, Shape, &'static [&'static str], usize);

const CASES: [Case; 8] = [
    ("--mca btl ^openib", (2, 1), &["--mca", "btl", "^openib"], 1),
    ("--mca btl tcp,self", (2, 1), &["--mca", "btl", "tcp,self"], 1),
    (
        "--mca btl ^openib, windows of Open MPI",
        (2, 1),
        &["--mca", "btl", "^openib", "--mca", "vprotocol_correlated_one_sided", "0"],
        1,
    ),
    (
        "an intruder at mpirun's node",
        (2, 1),
        &["--signal-at-event", "checkpoint_completed@1=INTRUDER/node:0"],
        1,
    ),
    (
        "an intruder at another node",
        (2, 2),
        &["--signal-at-event", "checkpoint_completed@1=INTRUDER/node:1"],
        1,
    ),
    (
        "intruders while a set is rolled back",
        (2, 2),
        &["--signal-at-event", "set_rollback@1=INTRUDER/node:0+node:1"],
        1,
    ),
    (
        "no memory for a rank",
        (2, 1),
        &["--signal-at-event", "checkpoint_completed@1=OOM/rank:0"],
        2,
    ),
    (
        "no memory for two ranks of a node",
        (2, 2),
        &["--signal-at-event", "checkpoint_completed@1=OOM/rank:2+rank:3"],
        2,
    ),
];

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    for (title, shape, options, rollbacks) in CASES {
        let title = format!("surroundings: {title}: {} × {}", shape.0, shape.1);
        tier.check(&title, || survives(shape, options, rollbacks));
    }
    tier.check("surroundings: windows without a word of Open MPI's: 2 × 2", windows);
    tier.check("surroundings: who listens where: 2 × 1", || {
        let allowed = |node, address: &str| {
            let own = [format!("10.77.0.{}", node + 1), format!("fd77::{}", node + 1)];
            address == "127.0.0.1" || own.iter().any(|own| own == address)
        };
        let ranks = [(0, "10.77.0.1"), (0, "fd77::1"), (1, "10.77.0.2"), (1, "fd77::2")];
        listens_at((2, 1), &[], allowed, &ranks)
    });
    tier.check("surroundings: who listens where, only the loopback is included: 1 × 2", || {
        let loopback = |_, address: &str| ["127.0.0.1", "::1"].contains(&address);
        listens_at((1, 2), &LOOPBACK, loopback, &[(0, "127.0.0.1"), (0, "::1")])
    });
    for (title, yields, percent) in [("once", "1", ["50", "110"]), ("never", "0", ["0", "10"])] {
        let title = format!("a call that finds nothing gives the processor away {title}: 2 × 1");
        let unprotected = ["--mca", "vprotocol_correlated_recover", "0"];
        for (how, options) in [("", &RECORD[..]), (", nothing recorded", &unprotected)] {
            tier.check(&format!("surroundings: {title}{how}"), || {
                gives_way(yields, percent, options)
            });
        }
    }
}

/// Processes of ours listen at addresses of their node that are `allowed` only, and ranks at
/// `ranks`: node and address of each listener.
fn listens_at(
    shape: Shape,
    options: &[&str],
    allowed: fn(node: u32, address: &str) -> bool,
    ranks: &[(u32, &str)],
) -> Result<()> {
    let scratch = Scratch::new("surroundings")?;
    let program = mpi::compile(&paths::root().join("tests/workloads/listeners.c"))?;
    let program = program.display().to_string();
    let job = TestJob::new(shape.0, shape.1, &[&program]);
    let outcome = Storage::Nodes.with(job, &scratch)?.with(options).run()?;
    outcome.must(outcome.code == 0, "the job failed")?;
    let mut found = BTreeSet::new();
    for line in outcome.stdout.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let &["LISTENER", rank, process, address] = &*words else { continue };
        let node = rank.parse::<u32>().map_or(u32::MAX, |rank| rank / shape.1);
        outcome.must(allowed(node, address), &format!("{process} of node {node}: {address}"))?;
        found.insert((node, process, address));
    }
    // The daemon that runs agents is started from the open file: its name is `exe`.
    let of = |name: &str| found.iter().filter(|(_, process, _)| *process == name).count();
    outcome.must(of("rustbtl") > 0 && of("exe") > 0, "where are coordinator and agents?")?;
    let seen: Vec<(u32, &str)> = found
        .iter()
        .filter(|(_, process, _)| *process == "listeners")
        .map(|&(node, _, address)| (node, address))
        .collect();
    outcome.must(seen == ranks, &format!("ranks listen at {seen:?}"))
}

/// As often as with stock. Beside threads that never sleep each time costs a slice of theirs.
/// `percent`: of the calls, at least and at most.
fn gives_way(yields: &str, percent: [&str; 2], options: &[&str]) -> Result<()> {
    let scratch = Scratch::new("surroundings")?;
    let source = paths::root().join("tests/workloads/yields.c");
    let program = mpi::compile_with(&source, &["-rdynamic"])?.display().to_string();
    let job = TestJob::new(2, 1, &[&program, CALLS, percent[0], percent[1]]);
    let job = job.with(&["--mca", "mpi_yield_when_idle", yields]);
    let outcome = Storage::Nodes.with(job, &scratch)?.with(options).run()?;
    let counted = outcome.stdout.matches(" yields").count();
    outcome.must(outcome.code == 0 && counted == 7, "the processor: too often, or seldom")
}

/// Open MPI's own one-sided components find no BTL, and are not asked.
fn windows() -> Result<()> {
    let scratch = Scratch::new("surroundings")?;
    let job = WINDOW.job((2, 2), ITERATIONS, &scratch)?;
    let outcome = Storage::Nodes.with(job, &scratch)?.run()?;
    outcome.must(outcome.code == 0, "the job failed")?;
    outcome.must(!outcome.said().contains("unable to reach each other"), "nobody has to")
}

fn survives(shape: Shape, options: &[&str], rollbacks: usize) -> Result<()> {
    let scratch = Scratch::new("surroundings")?;
    let storage = Storage::Nodes;
    let known = RING.answer(&RING.job(shape, ITERATIONS, &scratch)?.run()?, &scratch)?;
    let job = storage.with(RING.job(shape, ITERATIONS, &scratch)?, &scratch)?;
    let all_broken = scratch.0.join("all-broken");
    let mut job = job.with(&OFTEN).with(options).with(&["--kill-at-event", LAST]);
    job = job.with(&["--write-when-failed", &all_broken.display().to_string()]);
    job.seconds = 240;
    // A rank that is rolled back finds the gate as it was.
    let replayed = |events: String| local_storage::all_have_replayed(&events, rollbacks);
    let happened = || all_broken.exists() && storage.events(&scratch).is_ok_and(replayed);
    let outcome = workloads::run_until(&job, &scratch, ITERATIONS / 2, happened)?;
    RING.must_answer(&outcome, &scratch, &known).map_err(|Failure(reason)| {
        Failure(format!("{reason}\n{}", storage.events(&scratch).unwrap_or_default()))
    })?;
    outcome.must(outcome.stderr.contains(": killed rank 1"), "the rank was not killed")?;
    must_be_clean(&outcome)
}
