//! Jobs of an Open MPI other than the installed one lose a program, a node or everything, and go
//! on.

use std::path::Path;

use crate::error::Result;
use crate::test::job::TestJob;
use crate::test::mpi::Over;
use crate::test::node_failure::must_be_clean;
use crate::test::scratch::Scratch;
use crate::test::summary::Tier;
use crate::test::workloads::{self, RING, Shape};

/// It waits half-way for what is to happen, on a machine of any speed.
const ITERATIONS: u64 = 200;

/// What happens to whom, in a job of which shape, once its first checkpoint is complete.
const SURVIVED: [(&str, Shape, &[&str]); 3] = [
    ("a program is killed: 2 × 2", (2, 2), &["--kill-rank-after-checkpoint", "3@1"]),
    ("a node is killed: 3 × 2", (3, 2), &["--kill-node-after-checkpoint", "1@1"]),
    ("a cable is pulled: 3 × 1", (3, 1), &["--cut-node-after-checkpoint", "2@1"]),
];

/// Runs them all.
pub fn run(tier: &mut Tier, over: &Over) {
    tier.check("everything is killed, and restarted: 2 × 2", || killed_altogether(over));
    for (title, shape, faults) in &SURVIVED {
        tier.check(&format!("live recovery: {title}"), || survives(over, *shape, faults));
    }
}

/// Programs alone are lost.
pub fn run_programs(tier: &mut Tier, over: &Over, of: &str) {
    for (title, shape, faults) in &SURVIVED[..1] {
        tier.check(&format!("{of}live recovery: {title}"), || survives(over, *shape, faults));
    }
}

/// The quick part of it.
pub fn run_one(tier: &mut Tier, over: &Over) {
    for (title, shape, faults) in &SURVIVED[1..2] {
        tier.check(&format!("live recovery: {title}"), || survives(over, *shape, faults));
    }
}

/// The ring with a hash, which a gate can stop.
fn ring(shape: Shape, over: &Over, scratch: &Scratch) -> Result<TestJob> {
    workloads::open_gate(scratch, workloads::GATE_OPEN)?;
    RING.job_over(over, shape, ITERATIONS, scratch)
}

/// Some ranks are rolled back, the others go on, and the answer is the same.
fn survives(over: &Over, shape: Shape, faults: &[&str]) -> Result<()> {
    let scratch = Scratch::new("tree-recovery")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let job = ring(shape, over, &scratch)?;
    let known = RING.answer(&job.run()?, &scratch)?;
    let job = workloads::protected(job, &checkpoints).with(faults);
    let is_back = || {
        workloads::events(&checkpoints)
            .is_ok_and(|events| events.contains("\"event\":\"set_restarted\""))
    };
    let outcome = workloads::run_until(&job, &scratch, ITERATIONS / 2, is_back)?;
    RING.must_answer(&outcome, &scratch, &known)?;
    let broken = outcome.stderr.contains(": killed ") || outcome.stderr.contains(": cut ");
    outcome.must(broken, "nothing broke in time")?;
    let back = workloads::events(&checkpoints)?.matches("\"event\":\"set_restarted\"").count();
    outcome.must(back > 0, "no set rolled back")?;
    must_be_clean(&outcome)
}

/// SIGKILL for all processes of all nodes; the job goes on from its checkpoint on the same nodes
/// and as one node.
fn killed_altogether(over: &Over) -> Result<()> {
    let scratch = Scratch::new("tree-restart")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let job = ring((2, 2), over, &scratch)?;
    let known = RING.answer(&job.run()?, &scratch)?;
    workloads::open_gate(&scratch, ITERATIONS / 2)?;
    let faults = ["--checkpoint-at", "0.3", "--kill-all-after", "0.3"];
    let outcome = workloads::with_checkpoints(job, &checkpoints).with(&faults).run()?;
    outcome.must(outcome.stdout.contains("is complete"), "the checkpoint is not complete")?;
    outcome.must(outcome.code == 137, "the job should have been killed in the middle")?;
    workloads::open_gate(&scratch, workloads::GATE_OPEN)?;
    for shape in [(2, 2), (1, 4)] {
        restarted_job(over, shape, &checkpoints, &scratch, &known)?;
    }
    Ok(())
}

fn restarted_job(
    over: &Over,
    shape: Shape,
    checkpoints: &Path,
    scratch: &Scratch,
    known: &str,
) -> Result<()> {
    let outcome = over.job(workloads::restart(shape, checkpoints, scratch)).run()?;
    RING.must_answer(&outcome, scratch, known)?;
    must_be_clean(&outcome)
}
