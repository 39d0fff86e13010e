//! A rank that is rolled back does something else than before: all are rolled back, and the user
//! reads what it was.

use super::job::TestJob;
use super::local_storage;
use super::mpi;
use super::node_failure::{COMPLETE, must_be_clean};
use super::scratch::Scratch;
use super::storage::count;
use super::summary::Tier;
use super::workloads;
use crate::error::Result;
use crate::paths;

/// Iterations of programs that are to do something else when they repeat them, and the gates
/// between which they do what is in no checkpoint.
const REPEATED: &str = "900";
const REPEATED_GATES: (u64, u64) = (300, 600);

/// Part of the tier of failing nodes.
pub fn tests(tier: &mut Tier) {
    tier.check("live recovery: replay diverges, and again after that: 2 × 2", || {
        diverges(&["tests_by_start", REPEATED], true, "replay diverges")
    });
    tier.check("live recovery: padding differs, and again after that: 2 × 2", || {
        let padding = ["other_sends", "padding", REPEATED];
        diverges(&padding, true, "another content or length than")
    });
    tier.check("live recovery: fewer messages than before: 2 × 2", || {
        diverges(&["other_sends", "fewer", REPEATED], false, "up to its end")
    });
}

/// A rank that does something else than before its failure has all rolled back, and the user reads
/// which one, and what it did. When its set fails `again`, nothing is replayed.
fn diverges(program: &[&str], again: bool, what: &str) -> Result<()> {
    let source = format!("tests/workloads/{}.c", program[0]);
    let compiled = mpi::compile(&paths::root().join(source))?.display().to_string();
    let scratch = Scratch::new("diverges")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let gate = workloads::gate(&scratch).display().to_string();
    let words = [&[compiled.as_str()], &program[1..], &[gate.as_str()]].concat();
    workloads::open_gate(&scratch, workloads::GATE_OPEN)?;
    let known = workloads::hash(&TestJob::new(2, 2, &words).run()?)?;
    let job = workloads::protected(TestJob::new(2, 2, &words), &checkpoints);
    let mut job = job.with(&["--kill-rank-after-checkpoint", "3@1"]);
    if again {
        job = job.with(&["--kill-at-event", "replay_completed@2=rank:3"]);
    }
    let rollbacks = 1 + usize::from(again);
    let events = || workloads::events(&checkpoints).unwrap_or_default();
    // What it should have sent besides is only missed in the end.
    let may_end = || match again {
        true => {
            let events = events();
            count(&events, "global_rollback") >= rollbacks
                && local_storage::all_have_replayed(&events, rollbacks)
        }
        false => count(&events(), "set_restarted") > 0,
    };
    let has_checkpoint = || events().contains(COMPLETE);
    let outcome = workloads::run_with_work(job, &scratch, REPEATED_GATES, has_checkpoint, may_end)?;
    outcome.must(outcome.code == 0, "the job failed")?;
    outcome.must(workloads::hash(&outcome)? == known, "the answer is another one")?;
    let events = events();
    let which = |name: &str| -> Vec<&str> {
        events.lines().filter(|line| line.contains(&format!("\"event\":\"{name}\""))).collect()
    };
    let (diverged, global) = (which("replay_diverged"), which("global_rollback"));
    outcome.must(diverged.len() == 1, &format!("it should diverge once: {diverged:?}"))?;
    outcome
        .must(global.len() == rollbacks, &format!("{rollbacks} global rollbacks: {global:?}"))?;
    let who = "on n1 did not repeat what it had done: ";
    let said = outcome.stderr.lines().any(|line| line.contains(who) && line.contains(what));
    outcome.must(said, "the user should read who has done what")?;
    must_be_clean(&outcome)
}
