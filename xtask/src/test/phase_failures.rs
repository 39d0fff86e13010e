//! Programs and nodes fail in MPI_Finalize, and while checkpoints are taken. The answer is that of
//! an undisturbed run, and nobody waits for ever.

use super::local_storage;
use super::mpi::Over;
use super::node_failure::must_be_clean;
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, GATE_OPEN, Program, RING, Shape, What};
use crate::error::Result;

/// Rank 0 comes late to MPI_Finalize: so late that something has happened meanwhile.
const LATE: Program = Program {
    name: "rank 0 is late",
    what: What::Hash { source: "late_finish.c", iterations: 300, arguments: &["0", "GATE"] },
};
const ITERATIONS: u64 = 300;
/// Where programs wait, the ring until sets were rolled back.
const GATE: u64 = 100;

/// All have left MPI_Finalize, and the last rank is not done: it waits for a minute.
const NOT_DONE: Program = Program {
    name: "the last rank is not done",
    what: What::Hash { source: "after_finish.c", iterations: 300, arguments: &["/no/gate"] },
};

/// Of four ranks three are in MPI_Finalize, and rank 0 is not.
const FINALIZE: [(&str, Shape, &[&str]); 4] = [
    ("a program that is in it is killed: 2 × 2", (2, 2), &["--kill-rank-after-finishing", "3@3"]),
    (
        "one whose set is not all in it is killed: 2 × 2",
        (2, 2),
        &["--kill-rank-after-finishing", "1@3"],
    ),
    ("the one that is not in it is killed: 2 × 2", (2, 2), &["--kill-rank-after-finishing", "0@3"]),
    ("a node that is in it is killed: 3 × 1", (3, 1), &["--kill-node-after-finishing", "1@2"]),
];

/// Who is killed when which checkpoint is ordered, and how often sets are rolled back.
type InCheckpoint = (&'static str, Shape, &'static [&'static str], usize);

/// Checkpoints of single sets, in turns; they need a directory.
const OF_SETS: [InCheckpoint; 2] = [
    (
        "a program is killed while sets take checkpoints: 2 × 2",
        (2, 2),
        &[
            "--kill-rank-after-order",
            "3@3",
            "--kill-at-event",
            "replays_over@1,checkpoint_started@2=rank:3",
        ],
        2,
    ),
    (
        "a node is killed while sets take checkpoints: 3 × 1",
        (3, 1),
        &["--kill-node-after-order", "1@4"],
        1,
    ),
];

/// Checkpoints of all sets.
const OF_ALL: [InCheckpoint; 2] = [
    (
        "a program is killed while a checkpoint of all is taken: 2 × 2",
        (2, 2),
        &["--kill-rank-after-order", "3@2", "--kill-rank-after-order", "0@5"],
        2,
    ),
    (
        "a node is killed while a checkpoint of all is taken: 3 × 1",
        (3, 1),
        &["--kill-node-after-order", "1@2"],
        1,
    ),
];

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    for (title, shape, faults) in FINALIZE {
        tier.check(&format!("failures in phases: MPI_Finalize: {title}"), || {
            finalize(shape, faults)
        });
    }
    tier.check(
        "failures in phases: after MPI_Finalize a node is killed: no success: 2 × 1",
        || after_finish("ended@1=KILL/node:1"),
    );
    tier.check(
        "failures in phases: after MPI_Finalize a daemon is ended: no success: 2 × 1",
        || after_finish("ended@1=INT/daemon:1"),
    );
    for (title, shape, faults, times) in OF_SETS {
        let every = ["--mca", "vprotocol_correlated_set_checkpoint_interval", "0.3"];
        tier.check(&format!("failures in phases: {title}"), || {
            in_checkpoints(shape, &[&every[..], faults].concat(), times)
        });
    }
    for (title, shape, faults, times) in OF_ALL {
        let every = ["--mca", "vprotocol_correlated_checkpoint_interval", "0.3"];
        let faults = [&every[..], faults].concat();
        tier.check(&format!("failures in phases: {title}"), || {
            in_checkpoints(shape, &faults, times)
        });
        tier.check(&format!("failures in phases: plain command: {title}"), || {
            local_storage::survives(&Over::Component, shape, &faults, times).map(drop)
        });
    }
}

/// The program goes on when its first checkpoint is complete, and rank 0 comes to MPI_Finalize when
/// the coordinator has ordered a rollback.
fn finalize(shape: Shape, faults: &[&str]) -> Result<()> {
    let scratch = Scratch::new("finalize")?;
    let job = LATE.job(shape, ITERATIONS, &scratch)?;
    let known = LATE.answer(&job.run()?, &scratch)?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    workloads::open_gate(&scratch, GATE)?;
    let job = workloads::protected(job, &checkpoints).with(faults);
    let written = |word| {
        let checkpoints = &checkpoints;
        move || workloads::events(checkpoints).is_ok_and(|events| events.contains(word))
    };
    let steps = [
        (written("\"checkpoint_completed\""), ITERATIONS),
        (written("\"set_rollback\""), GATE_OPEN),
    ];
    let outcome = workloads::in_steps(&job, &scratch, &steps)?;
    LATE.must_answer(&outcome, &scratch, &known)?;
    outcome.must(outcome.stderr.contains(": killed "), "nobody was killed in time")?;
    let events = workloads::events(&checkpoints)?;
    let finishing = events.find("\"finishing\"");
    let in_it = finishing.is_some() && finishing < events.find("\"set_rollback\"");
    outcome.must(in_it, "nobody was in MPI_Finalize")?;
    must_be_clean(&outcome)
}

/// What a rank does after MPI_Finalize nobody can repeat: if its node is lost then, the job has not
/// succeeded, although all others have ended.
fn after_finish(fault: &str) -> Result<()> {
    let scratch = Scratch::new("after-finish")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let job = workloads::protected(NOT_DONE.job((2, 1), ITERATIONS, &scratch)?, &checkpoints);
    let outcome = job.with(&["--signal-at-event", fault]).run()?;
    outcome.must(outcome.code != 0, "exit code 0, though a rank was lost")?;
    outcome.must(!outcome.stdout.contains("SUM"), "the last rank was done")?;
    let said = outcome.stderr.contains("all ranks were past MPI_Finalize");
    outcome.must(said, "nothing says what was lost")
}

/// The ring cannot end before sets were rolled back so often.
fn in_checkpoints(shape: Shape, faults: &[&str], times: usize) -> Result<()> {
    let scratch = Scratch::new("in-checkpoints")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let job = RING.job(shape, ITERATIONS, &scratch)?;
    let known = RING.answer(&job.run()?, &scratch)?;
    let job = workloads::protected(job, &checkpoints).with(faults);
    // Rank 0 reads the gate: if it opened during replay, the replay would diverge.
    let rolled_back = |events: &str| local_storage::all_have_replayed(events, times);
    let all_rolled_back = || workloads::events(&checkpoints).is_ok_and(|all| rolled_back(&all));
    let outcome = workloads::run_until(&job, &scratch, GATE, all_rolled_back)?;
    RING.must_answer(&outcome, &scratch, &known)?;
    let broken = faults.iter().filter(|word| word.starts_with("--kill-")).count();
    let killed = outcome.stderr.matches(": killed ").count();
    outcome.must(killed == broken, "something did not break in time")?;
    let events = workloads::events(&checkpoints)?;
    outcome.must_by(rolled_back(&events), "not every set that was hit rolled back", &events)?;
    must_be_clean(&outcome)
}
