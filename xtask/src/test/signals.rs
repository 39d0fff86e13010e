//! Signals to parts of a job, as batch systems, administrators and systemd send them: to daemons,
//! agents, guardians, programs and whole nodes, alone and in pairs. Either the answer is that of an
//! undisturbed run, or the job ends with an error; it never hangs. Signals to mpirun end the job as
//! they end a stock one.

use std::collections::BTreeMap;
use std::fs;

use super::job::{Outcome, TestJob};
use super::local_storage;
use super::mpi::Over;
use super::node_failure::{NOT_RECOVERED, must_be_clean};
use super::scratch::Scratch;
use super::storage::Storage::{self, Nodes, Shared};
use super::storage::count;
use super::summary::Tier;
use super::suspension::{FULL_SOON, OFTEN};
use super::workloads::{self, GATE_OPEN, RING, Shape};
use crate::error::{Context, Result};

const ITERATIONS: u64 = 1200;
/// For the job and its replay.
const SECONDS: u32 = 240;
/// A job that hangs must not hang for long.
const SECONDS_TO_END: u32 = 60;

/// Who is suspended for two seconds is silent for longer on a busy machine.
const LONG_TIMEOUT: [&str; 3] = ["--mca", "vprotocol_correlated_failure_timeout", "10"];

/// Begins the titles of cases in which a process does not go on.
const FOR_GOOD: &str = "suspended for good";

/// What must have happened before the program may end.
#[derive(Clone, Copy, PartialEq)]
enum Until {
    /// Sets were rolled back so often, and have completed their replay.
    Recovered(usize),
    /// So many checkpoints are complete, and nothing was lost.
    Checkpoints(usize),
}
use Until::{Checkpoints, Recovered};

/// Where checkpoints go, options, and which event sends which signal to whom.
type Case = (
    &'static str,
    Storage,
    Shape,
    &'static [&'static [&'static str]],
    &'static [&'static str],
    Until,
);

const SURVIVED: [Case; 19] = [
    (
        "daemons, one after the other",
        Nodes,
        (4, 1),
        &[],
        &[
            "replication_ok@1=TERM/daemon:1",
            "replication_ok@2=INT/daemon:2",
            "replication_ok@3=HUP/daemon:3",
        ],
        Recovered(3),
    ),
    (
        "whole nodes, one after the other",
        Nodes,
        (4, 1),
        &[],
        &[
            "replication_ok@1=TERM/node:1",
            "replication_ok@2=INT/node:2",
            "replication_ok@3=HUP/node:3",
        ],
        Recovered(3),
    ),
    (
        "two daemons at a time",
        Shared,
        (3, 1),
        &[],
        &["checkpoint_completed@1=TERM/daemon:1+daemon:2"],
        Recovered(2),
    ),
    (
        "a daemon of several ranks",
        Shared,
        (2, 2),
        &[],
        &["checkpoint_completed@1=TERM/daemon:1"],
        Recovered(1),
    ),
    (
        "a daemon beside a spare node, then that of the spare node",
        Shared,
        (2, 1),
        &[&["--spare", "1"], &OFTEN],
        &["spare@1,checkpoint_completed@1=TERM/daemon:1", "replay_completed@1=TERM/daemon:2"],
        Recovered(2),
    ),
    (
        "a daemon and its rank, then a rank and its daemon",
        Shared,
        (3, 1),
        &[],
        &["checkpoint_completed@1=TERM/daemon:1+rank:1", "replay_completed@1=TERM/rank:2+daemon:2"],
        Recovered(2),
    ),
    (
        "an agent and its daemon, then a daemon and its agent",
        Nodes,
        (3, 1),
        &[],
        &["replication_ok@1=TERM/agent:1+daemon:1", "replication_ok@2=TERM/daemon:2+agent:2"],
        Recovered(2),
    ),
    (
        "a guardian and its daemon, then a daemon and its guardian",
        Nodes,
        (3, 1),
        &[],
        &["replication_ok@1=TERM/guardian:1+daemon:1", "replication_ok@2=INT/daemon:2+guardian:2"],
        Recovered(2),
    ),
    (
        "a guardian and its rank, then a rank and its guardian",
        Nodes,
        (3, 1),
        &[],
        &["replication_ok@1=TERM/guardian:1+rank:1", "replay_completed@1=HUP/rank:2+guardian:2"],
        Recovered(2),
    ),
    (
        "an agent and a guardian, then a guardian and an agent",
        Nodes,
        (3, 1),
        &[],
        &["replication_ok@1=TERM/agent:1+guardian:1", "replay_completed@1=HUP/guardian:2+agent:2"],
        Recovered(2),
    ),
    (
        "an agent and a rank, then a rank and an agent, then all but the daemon",
        Nodes,
        (3, 1),
        &[],
        &[
            "replication_ok@1=TERM/agent:1+rank:1",
            "replay_completed@1=INT/rank:2+agent:2",
            "replay_completed@2=TERM/rank:0+guardian:0",
            "replay_completed@2=TERM/agent:0",
        ],
        Recovered(3),
    ),
    (
        "ranks",
        Nodes,
        (3, 1),
        &[],
        &[
            "replication_ok@1=TERM/rank:1",
            "replay_completed@1=INT/rank:2",
            "replay_completed@2=HUP/rank:0",
        ],
        Recovered(3),
    ),
    (
        "guardians",
        Nodes,
        (3, 1),
        &[],
        &[
            "replication_ok@1=TERM/guardian:1",
            "replay_completed@1=INT/guardian:2",
            "replay_completed@2=HUP/guardian:0",
        ],
        Recovered(3),
    ),
    (
        "agents, and then a rank",
        Nodes,
        (3, 1),
        &[&OFTEN],
        &[
            "checkpoint_completed@1=TERM/agent:1",
            "checkpoint_completed@2=INT/agent:1",
            "checkpoint_completed@3=HUP/agent:2",
            "checkpoint_completed@4=KILL/rank:1",
        ],
        Recovered(1),
    ),
    (
        "a node is suspended for two seconds",
        Nodes,
        (3, 1),
        &[&OFTEN, &LONG_TIMEOUT],
        &["checkpoint_completed@1=PAUSE/node:1"],
        Checkpoints(4),
    ),
    (
        "suspended for good: the coordinator, then an agent, then a guardian",
        Nodes,
        (2, 2),
        &[&OFTEN],
        &[
            "checkpoint_completed@1=STOP/coordinator",
            "failover_completed@1=STOP/agent:1",
            "agent_gone@1=STOP/guardian:3",
        ],
        Recovered(1),
    ),
    (
        "logging suspended: a daemon",
        Shared,
        (3, 1),
        &[&FULL_SOON],
        &["logging_suspended@3=TERM/daemon:1"],
        Recovered(1),
    ),
    (
        "logging suspended: a node is suspended for two seconds, a rank killed",
        Nodes,
        (3, 1),
        &[&FULL_SOON, &LONG_TIMEOUT],
        &["logging_suspended@2=PAUSE/node:2", "logging_suspended@3=KILL/rank:1"],
        Recovered(1),
    ),
    (
        "logging suspended: a rank",
        Nodes,
        (3, 1),
        &[&FULL_SOON],
        &["logging_suspended@3=TERM/rank:2"],
        Recovered(1),
    ),
];

/// Which events send which signals to whom: the job ends.
const ENDED: [(&str, &[&str]); 5] = [
    ("SIGINT to mpirun", &["checkpoint_completed@1=INT/mpirun"]),
    ("SIGTERM to mpirun", &["checkpoint_completed@1=TERM/mpirun"]),
    (
        "to all, as a batch system does",
        &["checkpoint_completed@1=TERM/node:1+node:2", "checkpoint_completed@1=TERM/mpirun"],
    ),
    (
        "SIGINT to mpirun while a daemon ends",
        &["checkpoint_completed@1=TERM/daemon:1", "ended@1=INT/mpirun"],
    ),
    (
        "SIGINT to mpirun when a node is lost",
        &["checkpoint_completed@1=TERM/daemon:1", "set_rollback@1=INT/mpirun"],
    ),
];

/// What undisturbed runs print, by shape.
type Answers = BTreeMap<Shape, String>;

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    let mut answers = Answers::new();
    survived(tier, &Over::Component, &mut answers, |_| true);
    let title = "signalled: a daemon whose rank handles SIGTERM and exits: 3 × 1";
    tier.check(title, || exits_on_term(&mut answers));
    for (title, faults) in ENDED {
        tier.check(&format!("signalled: {title}: 3 × 1"), || ends(faults).map(drop));
    }
    let title = "signalled: a rank is killed before its first checkpoint: 3 × 1";
    tier.check(title, ends_without_checkpoint);
    for (name, number) in [("INT", libc::SIGINT), ("TERM", libc::SIGTERM)] {
        let title =
            format!("signalled: SIG{name} to mpirun gives the exit code of stock jobs: 3 × 1");
        tier.check(&title, || ends_as_stock(name, number));
    }
}

/// Of other Open MPIs: who is suspended for good.
pub fn suspended_over(tier: &mut Tier, over: &Over) {
    survived(tier, over, &mut Answers::new(), |title| title.starts_with(FOR_GOOD));
}

fn survived(tier: &mut Tier, over: &Over, answers: &mut Answers, wanted: fn(&str) -> bool) {
    for (title, storage, shape, options, faults, until) in SURVIVED {
        if !wanted(title) {
            continue;
        }
        let title = format!("signalled: {title}: {} × {}", shape.0, shape.1);
        tier.check(&title, || {
            let options = options.concat();
            survives(over, (storage, shape), &options, faults, until, answers)
        });
    }
}

fn answer(over: &Over, shape: Shape, answers: &mut Answers) -> Result<String> {
    if let Some(answer) = answers.get(&shape) {
        return Ok(answer.clone());
    }
    let scratch = Scratch::new("signals")?;
    let job = RING.job_over(over, shape, ITERATIONS, &scratch)?;
    let answer = RING.answer(&job.run()?, &scratch)?;
    answers.insert(shape, answer.clone());
    Ok(answer)
}

fn with_faults(job: TestJob, faults: &[&str]) -> TestJob {
    // Under nohup everything ignores SIGHUP, ranks and daemons too.
    let hangs_up = !ignores(libc::SIGHUP);
    // Where Open MPI is built with UCX, that takes SIGHUP to be an order to trace.
    let job = job.with(&["--env", "UCX_DEBUG_SIGNO=0"]);
    faults.iter().fold(job, |job, fault| {
        let fault = if hangs_up { fault.to_string() } else { fault.replace("=HUP", "=TERM") };
        job.with(&["--signal-at-event", &fault])
    })
}

/// Does this process, and so whatever it starts?
fn ignores(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 << (signal - 1) != 0)
}

fn survives(
    over: &Over,
    (storage, shape): (Storage, Shape),
    options: &[&str],
    faults: &[&str],
    until: Until,
    answers: &mut Answers,
) -> Result<()> {
    let known = answer(over, shape, answers)?;
    let scratch = Scratch::new("signals")?;
    let job = RING.job_over(over, shape, ITERATIONS, &scratch)?;
    let job = storage.with(job, &scratch)?.with(options);
    let mut job = with_faults(job, faults);
    job.seconds = SECONDS;
    // A daemon takes two seconds to end its ranks, and who is in MPI_Finalize by then cannot be
    // recovered.
    let ends = |fault: &&&str| !fault.contains("PAUSE") && !fault.contains("KILL");
    let nodes = |fault: &&str| fault.matches("daemon:").count() + fault.matches("node:").count();
    let lost: usize = faults.iter().filter(ends).map(nodes).sum();
    let happened = || {
        storage.events(&scratch).is_ok_and(|events| match until {
            Recovered(times) => {
                let known = count(&events, "node_lost") >= lost;
                known && local_storage::all_have_replayed(&events, times)
            }
            Checkpoints(all) => count(&events, "checkpoint_completed") >= all,
        })
    };
    let outcome = workloads::run_until(&job, &scratch, ITERATIONS / 2, happened)?;
    RING.must_answer(&outcome, &scratch, &known)?;
    must_have_come(&outcome)?;
    if let Checkpoints(_) = until {
        let events = storage.events(&scratch)?;
        let lost = ["node_lost", "set_rollback", "protection_disabled", "agent_gone"];
        let names = lost.map(|name| format!("\"event\":\"{name}\""));
        let is_lost = |line: &&str| names.iter().any(|name| line.contains(name));
        let taken: Vec<&str> = events.lines().filter(is_lost).collect();
        outcome.must(taken.is_empty(), &format!("taken for lost: {}", taken.join(" ")))?;
    }
    must_be_clean(&outcome)
}

/// Every signal found somebody.
fn must_have_come(outcome: &Outcome) -> Result<()> {
    let missed = outcome.stderr.contains("cluster: ") && outcome.stderr.contains("there is no ");
    outcome.must(!missed && outcome.stderr.contains("sent "), "somebody got no signal")
}

/// The daemon ends its rank, whose exit code is 0: that is no end of the rank.
fn exits_on_term(answers: &mut Answers) -> Result<()> {
    let scratch = Scratch::new("signals")?;
    let library = workloads::library("exit_on_term", &scratch)?;
    let preload = format!("LD_PRELOAD={}", library.display());
    let faults = ["checkpoint_completed@1=TERM/daemon:1"];
    let options = ["--env", &preload];
    survives(&Over::Component, (Shared, (3, 1)), &options, &faults, Recovered(1), answers)
}

/// The job does not end by itself. It ends soon, with an error, and nothing of it stays.
fn ends(faults: &[&str]) -> Result<Outcome> {
    let scratch = Scratch::new("signals")?;
    let outcome = endless(faults, &scratch)?.run()?;
    must_have_ended(&outcome)?;
    Ok(outcome)
}

fn endless(faults: &[&str], scratch: &Scratch) -> Result<TestJob> {
    let mut job = with_faults(Nodes.with(RING.job((3, 1), GATE_OPEN, scratch)?, scratch)?, faults);
    job.seconds = SECONDS_TO_END;
    Ok(job)
}

fn must_have_ended(outcome: &Outcome) -> Result<()> {
    outcome.must(![0, 124].contains(&outcome.code), "the job should end with an error")?;
    must_have_come(outcome)?;
    must_be_clean(outcome)
}

/// The guardian of rank 2 holds the first checkpoint back until the coordinator knows that rank 1
/// has failed.
fn ends_without_checkpoint() -> Result<()> {
    let scratch = Scratch::new("signals")?;
    let held = scratch.0.join("begin-2");
    fs::write(&held, "").context(|| held.display().to_string())?;
    let hold = format!("RUSTBTL_FAILPOINTS={}", scratch.0.display());
    let job = endless(&["ready@1=KILL/rank:1"], &scratch)?.with(&["--env", &hold]);
    let is_known = || {
        let failed = Nodes.events(&scratch).is_ok_and(|events| count(&events, "rank_failed") > 0);
        failed && fs::remove_file(&held).is_ok()
    };
    let outcome = workloads::in_steps(&job, &scratch, &[(is_known, GATE_OPEN)])?;
    outcome.must(!held.exists(), "nobody has noticed that the rank was killed")?;
    let events = Nodes.events(&scratch)?;
    let complete = count(&events, "checkpoint_completed");
    outcome.must(complete == 0, &format!("there was a checkpoint: {events}"))?;
    outcome.must(outcome.code == 137, "the exit code should be that of a killed program")?;
    let why = "is complete yet, so there is nothing to roll back to";
    outcome.must(outcome.said().contains(why), &format!("it should say: {why}"))?;
    must_have_ended(&outcome)
}

fn ends_as_stock(name: &str, number: i32) -> Result<()> {
    let scratch = Scratch::new("signals")?;
    let number = number.to_string();
    let job = RING.job((3, 1), GATE_OPEN, &scratch)?;
    let mut stock = job.with(&["--plain", "--signal", &number, "4"]);
    stock.seconds = SECONDS_TO_END;
    let stock = stock.run()?;
    let ours = ends(&[&format!("checkpoint_completed@1={name}/mpirun")])?;
    ours.must(ours.code == stock.code, &format!("the exit code should be {}", stock.code))?;
    let silent = !ours.said().contains(NOT_RECOVERED) && !ours.said().contains("rustbtl");
    ours.must(silent, "it says something of its own")
}
