//! A process that was restored on another node is told the name and the size of the node that it
//! had (docs/adr/0028): programs group their ranks by it, and the other ranks know the group. After
//! one failure and several, after a global rollback, and after a restart of the whole job.

use super::local_storage;
use super::mpi::Over;
use super::node_failure::must_be_clean;
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, Program, Shape, What};
use crate::error::Result;

/// In C.
const NAMES: Program = Program {
    name: "names of nodes",
    what: What::Hash { source: "node_names.c", iterations: ITERATIONS, arguments: &["GATE"] },
};
/// With a window of Open MPI's own, for which all sets are rolled back together.
const TOGETHER: Program = Program {
    name: "names of nodes, and a window",
    what: What::Hash {
        source: "node_names.c",
        iterations: ITERATIONS,
        arguments: &["GATE", "window"],
    },
};
/// In Python.
const PYTHON: Program = Program {
    name: "names of nodes, Python",
    what: What::Hash { source: "node_names.py", iterations: ITERATIONS, arguments: &["GATE"] },
};
const ITERATIONS: u64 = 400;

/// What happens to a job of three nodes, and how many sets are rolled back.
const LIVE: [(&str, &Program, &[&str], usize); 4] = [
    ("a node is killed: 3 × 1", &NAMES, &["--kill-node-after-checkpoint", "1@1"], 1),
    ("a node is killed, Python: 3 × 1", &PYTHON, &["--kill-node-after-checkpoint", "1@1"], 1),
    (
        "a node is killed, and then the spare one: 3 × 1",
        &NAMES,
        &[
            "--spare",
            "1",
            "--kill-node-after-replication",
            "1@1",
            "--kill-node-after-replication",
            "3@2",
        ],
        2,
    ),
    (
        "all are rolled back: 3 × 1",
        &TOGETHER,
        &[
            "--mca",
            "vprotocol_correlated_checkpoint_interval",
            "1",
            "--mca",
            "vprotocol_correlated_one_sided",
            "0",
            "--kill-at-event",
            "not_replayable@1,checkpoint_completed@1=node:1",
        ],
        3,
    ),
];

/// Where a job of 3 × 1 is restarted, one after the other; all but the last are killed again.
const RESTARTS: [Shape; 3] = [(1, 3), (3, 1), (1, 3)];

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    live(tier, &Over::Component, LIVE.len());
    for program in [&NAMES, &PYTHON] {
        let title = format!("{}: restarted on other nodes: 3 × 1", program.name);
        tier.check(&title, || restarted(program));
    }
}

/// In a job that goes on, over another Open MPI: a program in C alone.
pub fn run_one(tier: &mut Tier, over: &Over) {
    live(tier, over, 1);
}

fn live(tier: &mut Tier, over: &Over, count: usize) {
    for (title, program, faults, sets) in LIVE.into_iter().take(count) {
        tier.check(&format!("names of nodes: {title}"), || survives(over, program, faults, sets));
    }
}

/// The program itself compares what it is told; its answer depends on the groups.
fn survives(over: &Over, program: &Program, faults: &[&str], sets: usize) -> Result<()> {
    let scratch = Scratch::new("node-names")?;
    let shape = (3, 1);
    let undisturbed = program.job_over(over, shape, ITERATIONS, &scratch)?.run()?;
    let known = program.answer(&undisturbed, &scratch)?;
    let job = program.job_over(over, shape, ITERATIONS, &scratch)?.with(faults);
    let replayed = |events: &str| local_storage::all_have_replayed(events, sets);
    let outcome = local_storage::run_until(job, &scratch, replayed)?;
    program.must_answer(&outcome, &scratch, &known)?;
    let events = local_storage::events(&scratch)?;
    outcome.must_by(replayed(&events), "not every set was rolled back", &events)?;
    must_be_clean(&outcome)
}

fn restarted(program: &Program) -> Result<()> {
    let scratch = Scratch::new("node-names")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let job = program.job((3, 1), ITERATIONS, &scratch)?;
    let known = program.answer(&job.run()?, &scratch)?;
    let killed = ["--checkpoint-at", "0.3", "--kill-all-after", "0.3"];
    let steps = RESTARTS.len() as u64 + 1;
    workloads::open_gate(&scratch, ITERATIONS / steps)?;
    let mut outcome = workloads::with_checkpoints(job, &checkpoints).with(&killed).run()?;
    for (shape, step) in RESTARTS.into_iter().zip(2..) {
        outcome.must(outcome.code == 137, "it should have been killed in the middle")?;
        workloads::open_gate(&scratch, ITERATIONS * step / steps)?;
        let job = workloads::restart(shape, &checkpoints, &scratch);
        outcome = if step < steps {
            workloads::with_checkpoints(job, &checkpoints).with(&killed).run()?
        } else {
            job.run()?
        };
    }
    program.must_answer(&outcome, &scratch, &known)
}
