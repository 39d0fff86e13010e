//! The network is cut for a while, in one direction or both, and heals. A node that is cut off
//! alone has failed: its ranks run elsewhere, and what is left of it ends when it comes back. If it
//! is mpirun's own node, the job waits (docs/adr/0030). The answer is that of an undisturbed run.

use super::job::{Outcome, TestJob};
use super::node_failure::must_be_clean;
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, RING, Shape};
use super::{local_storage, mpi};
use crate::error::{Context, Result};
use crate::paths;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Longer than until the cut, which comes with the first checkpoint.
const ITERATIONS: u64 = 8000;
/// As far as the program gets before the network is whole again.
const GATE: u64 = 6000;
/// From when it is whole again until the program may go on: what was cut off has time to end.
const AFTER: Duration = Duration::from_secs(4);

/// The iteration at which `torn_set` shuts down its connections.
const TORN_AT: u64 = 100;

/// What follows from a cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follows {
    /// Nothing: it is shorter than the timeout.
    Nothing,
    /// The job waits, or does not notice: it is about as long as the timeout.
    MayWait,
    /// The job waits, and the user reads for what.
    Waits,
    /// The ranks of the node are restarted elsewhere.
    Recovers,
}

use Follows::{MayWait, Nothing, Recovers, Waits};

/// Title, shape, direction and node, seconds, further options.
type Case = (&'static str, Shape, &'static str, u64, &'static [&'static str], Follows);

const TEN: &[&str] = &["--mca", "vprotocol_correlated_failure_timeout", "10"];
const TWENTY: &[&str] = &["--mca", "vprotocol_correlated_failure_timeout", "20"];

const CASES: [Case; 11] = [
    ("mpirun's cable, 2 s of a timeout of 10 s: 3 × 1", (3, 1), "off:0", 2, TEN, Nothing),
    ("mpirun's cable, 5 s: 3 × 1", (3, 1), "off:0", 5, &[], MayWait),
    ("mpirun's cable, 15 s: 3 × 1", (3, 1), "off:0", 15, &[], Waits),
    ("mpirun's switch, 15 s: 3 × 1", (3, 1), "mute:0", 15, &[], Waits),
    ("a node's cable, 15 s: 3 × 1", (3, 1), "off:1", 15, &[], Recovers),
    ("a node's switch, 15 s: 3 × 1", (3, 1), "mute:2", 15, &[], Recovers),
    ("nothing reaches a node, 15 s: 3 × 1", (3, 1), "to:1", 15, &[], Recovers),
    ("nothing comes from a node, 15 s: 3 × 1", (3, 1), "from:1", 15, &[], Recovers),
    ("mpirun's cable, 15 s: 2 × 1", (2, 1), "off:0", 15, &[], Waits),
    ("the switch of the only other node, 15 s: 2 × 1", (2, 1), "mute:1", 15, &[], Recovers),
    ("a node's cable, 8 s of a timeout of 20 s: 3 × 1", (3, 1), "off:1", 8, TWENTY, Nothing),
];

const LONG: [Case; 4] = [
    ("mpirun's cable, 60 s: 3 × 1", (3, 1), "off:0", 60, &[], Waits),
    ("mpirun's switch, 60 s: 3 × 1", (3, 1), "mute:0", 60, &[], Waits),
    ("nothing reaches mpirun's node, 15 s: 3 × 1", (3, 1), "to:0", 15, &[], Waits),
    ("nothing comes from mpirun's node, 15 s: 3 × 1", (3, 1), "from:0", 15, &[], Waits),
];

/// Runs the tier.
pub fn run(tier: &mut Tier, long: bool) {
    let more: &[Case] = if long { &LONG } else { &[] };
    for case in CASES.iter().chain(more) {
        tier.check(&format!("partitions: {}", case.0), || survives(case));
    }
    for (sets, rolled_back) in [("all", 1), ("node", 0)] {
        let title = format!("partitions: a connection is shut down, sets by {sets}: 2 × 1");
        tier.check(&title, || torn(sets, rolled_back));
    }
    for value in ["1.9", "601", "-4", "x"] {
        tier.check(&format!("partitions: a timeout of {value} s is refused"), || refused(value));
    }
}

fn survives(&(_, shape, what, seconds, options, follows): &Case) -> Result<()> {
    let scratch = Scratch::new("partition")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let job = RING.job(shape, ITERATIONS, &scratch)?;
    let known = RING.answer(&job.run()?, &scratch)?;
    let cut = format!("checkpoint_completed@1={what}+{seconds}");
    let job = workloads::protected(job, &checkpoints).with(options).with(&["--partition", &cut]);
    let over = scratch.0.join("over");
    let job = job.with(&["--write-when-failed", &over.display().to_string()]);
    let healed = || {
        let when = fs::metadata(&over).and_then(|file| file.modified());
        when.is_ok_and(|when| when.elapsed().is_ok_and(|since| since >= AFTER))
    };
    let outcome = workloads::run_until(&job, &scratch, GATE, healed)?;
    RING.must_answer(&outcome, &scratch, &known)?;
    outcome.must(outcome.stderr.contains("can be reached again"), "the cut has not healed")?;
    check(&outcome, &workloads::events(&checkpoints)?, follows)?;
    must_be_clean(&outcome)
}

/// A connection is lost while the processes at both ends live. A set in which it is is rolled back:
/// nothing of what was under way is in a log. Between two sets nobody is.
fn torn(sets: &str, rolled_back: usize) -> Result<()> {
    let program = mpi::compile(&paths::root().join("tests/workloads/torn_set.c"))?;
    let scratch = Scratch::new("torn")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let (gate, done) = (workloads::gate(&scratch), scratch.0.join("done"));
    let words = [&program, &gate, &done].map(|word| word.display().to_string());
    fs::write(&done, "").context(|| done.display().to_string())?;
    workloads::open_gate(&scratch, workloads::GATE_OPEN)?;
    let known = workloads::hash(&TestJob::new(2, 1, &words).run()?)?;
    fs::remove_file(&done).context(|| done.display().to_string())?;
    workloads::open_gate(&scratch, TORN_AT - 1)?;
    let job = workloads::protected(TestJob::new(2, 1, &words), &checkpoints);
    let mut job = job.with(&["--mca", "vprotocol_correlated_sets", sets]);
    job.seconds = 90;
    let events = || workloads::events(&checkpoints).unwrap_or_default();
    let may_tear = || has_checkpoint(&checkpoints);
    let is_over = || match rolled_back {
        0 => done.exists(),
        _ => local_storage::all_have_replayed(&events(), rolled_back),
    };
    let steps: [(&(dyn Fn() -> bool + Sync), u64); 2] =
        [(&may_tear, TORN_AT + 1), (&is_over, workloads::GATE_OPEN)];
    let outcome = workloads::in_steps(&job, &scratch, &steps)?;
    outcome.must(outcome.code == 0, "the job failed")?;
    let found = workloads::hash(&outcome)?;
    outcome.must(found == known, &format!("it says `{found}`, it should say `{known}`"))?;
    outcome.must(done.exists(), "no connection was shut down")?;
    let count = events().matches("\"event\":\"set_rollback\"").count();
    outcome.must(count == rolled_back, &format!("{count} sets were rolled back"))?;
    let said =
        outcome.said().contains("The connection between two processes of one correlated set");
    outcome.must(said == (rolled_back > 0), "what it says of it")?;
    must_be_clean(&outcome)
}

fn has_checkpoint(checkpoints: &Path) -> bool {
    workloads::events(checkpoints).is_ok_and(|events| events.contains("checkpoint_completed"))
}

fn check(outcome: &Outcome, events: &str, follows: Follows) -> Result<()> {
    let count = |event: &str| events.matches(&format!("\"event\":\"{event}\"")).count();
    let waits = outcome.stderr.matches("seems to be cut off. The job waits").count();
    let found = [
        ("network_cut", count("network_cut")),
        ("network_restored", count("network_restored")),
        ("messages", waits),
        ("node_lost", count("node_lost")),
        ("set_restarted", count("set_restarted")),
    ];
    let wanted = match follows {
        Nothing => [0, 0, 0, 0, 0],
        MayWait => [found[0].1, found[0].1, found[0].1, 0, 0],
        Waits => [1, 1, 1, 0, 0],
        Recovers => [0, 0, 0, 1, 1],
    };
    let right = found.iter().map(|(_, count)| *count).eq(wanted);
    let names = ["network_", "node_lost", "set_restarted", "node_silent"];
    let is_of_it = |line: &&str| names.iter().any(|name| line.contains(name));
    let happened: Vec<&str> = events.lines().filter(is_of_it).collect();
    let happened = happened.join("\n");
    outcome.must(right, &format!("{found:?}, it should be {wanted:?}\n{happened}"))?;
    let silent = (count("node_silent") > 0) == (follows == Recovers);
    outcome.must(silent, &format!("another one has found the node silent\n{happened}"))
}

fn refused(value: &str) -> Result<()> {
    let scratch = Scratch::new("timeout")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let job = workloads::protected(RING.job((1, 1), 10, &scratch)?, &checkpoints);
    let outcome = job.with(&["--mca", "vprotocol_correlated_failure_timeout", value]).run()?;
    outcome.must(outcome.code != 0, "it is accepted")?;
    let names_it = outcome.stderr.contains("failure_timeout");
    outcome.must(names_it, "the message does not name the parameter")
}
