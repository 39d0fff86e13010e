//! Programs that use libibverbs beside MPI in protected jobs (docs/adr/0044), over a libibverbs in
//! memory (shadow/library/tests/fake_ibverbs.c), so on any machine that has its headers:
//! checkpoints under traffic, a rank that is killed and all roll back, a job that is restarted as a
//! whole; ranks and coordinators that fail while a drain waits for a rank that is suspended.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::coordinator_failover::FAILOVERS_MAX;
use super::local_storage;
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, RING};
use super::{job::Outcome, job::TestJob, mpi};
use crate::error::{Context, Result, fail};
use crate::{paths, run};

const HEADER: &str = "/usr/include/infiniband/verbs.h";
/// Ranks of one node, each a set of its own.
const RANKS: u32 = 3;
const ITERATIONS: u64 = 1500;
/// What a set needs is in no image of it alone, and the user is told.
const NOT_LOGGED: &str = "it uses verbs past MPI";
const SHADOWED: [&str; 9] = [
    "--mca",
    "vprotocol_correlated_shadow_verbs",
    "1",
    "--mca",
    "vprotocol_correlated_verbose",
    "20",
    "--mca",
    "vprotocol_correlated_incremental",
    "4",
];
const SINGLE: [&str; 3] = ["--mca", "vprotocol_correlated_sets", "core"];
/// All ranks are one set, which rolls back as a set.
const ONE_SET: [&str; 3] = ["--mca", "vprotocol_correlated_sets", "all"];
/// The third checkpoint waits for a rank: its drain cannot be over.
const HELD: [&str; 2] = ["--signal-at-event", "checkpoint_completed@2=STOP/rank:1"];
/// What a rank says that has asked for a name for a minute without an answer: each would, one after
/// the other, if the thread that asked were the one that is answered.
const NO_ANSWER: &str = "nobody knows any more what the names of its verbs";

/// All cases; without `every_case` not those which say little beside the others.
pub fn run(tier: &mut Tier, every_case: bool) {
    if !Path::new(HEADER).exists() {
        return tier.skip(&format!("shadow verbs in jobs: no {HEADER} (libibverbs-dev)"));
    }
    tier.check("shadow verbs: a rank is killed under traffic, all roll back: 1 × 3", rolls_back);
    if every_case {
        tier.check("shadow verbs: two rollbacks: 1 × 3", rolls_back_twice);
        tier.check("shadow verbs: a drain waits, a rank is ended: 1 × 3", loses_rank);
    }
    tier.check("shadow verbs: one set, an aborted checkpoint between rollbacks: 1 × 3", one_set);
    tier.check("shadow verbs: a drain waits, the coordinator is killed: 1 × 3", loses_coordinator);
    tier.check("shadow verbs: a connection is made without protection: 1 × 3", unprotected);
    tier.check("shadow verbs: the whole job is restarted: 1 × 3", restarts);
    tier.check("shadow verbs: a program that uses none: 2 × 2", none_are_used);
    tier.check("shadow verbs: a library that is not there", not_there);
}

fn compile(words: &[&str]) -> Result<()> {
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-pthread"]).args(words);
    compiler.arg(paths::root().join("shadow/library/tests/fake_ibverbs.c"));
    run::output(&mut compiler).map(drop)
}

/// The job, with the adapter in memory.
fn job(scratch: &Scratch) -> Result<TestJob> {
    let folder = &scratch.0;
    let [library, server, gate] =
        ["libibverbs.so.1", "server", "gate"].map(|name| folder.join(name).display().to_string());
    compile(&["-fPIC", "-shared", "-Wl,-soname,libibverbs.so.1", "-o", &library])?;
    compile(&["-DSERVER", "-o", &server])?;
    let source = paths::root().join("tests/workloads/verbs_ring.c");
    let program = mpi::compile_with(&source, &["-Wl,--no-as-needed", "-libverbs"])?;
    let program = program.display().to_string();
    let iterations = ITERATIONS.to_string();
    let job = TestJob::new(1, RANKS, &[&program, &iterations, "fake0,fake1", "-1", &gate]);
    let environment = [
        format!("LD_LIBRARY_PATH={}", folder.display()),
        format!("FAKE_IBVERBS_SERVER={server}"),
        // Adapters are not of an image: where they are mapped says what they are.
        "FAKE_IBVERBS_WORLD=/dev/shm/infiniband/world".to_owned(),
    ];
    Ok(environment.iter().fold(job, |job, variable| job.with(&["--env", variable])))
}

/// What it says without protection.
fn answer(scratch: &Scratch) -> Result<String> {
    workloads::open_gate(scratch, workloads::GATE_OPEN)?;
    let outcome = job(scratch)?.run()?;
    outcome.must(outcome.code == 0, "the undisturbed run failed")?;
    workloads::hash(&outcome)
}

/// With checkpoints, each as soon as the one before is complete.
fn protected(scratch: &Scratch, checkpoints: &Path, sets: &[&str]) -> Result<TestJob> {
    let job = workloads::protected(job(scratch)?, checkpoints).with(&SHADOWED).with(sets);
    Ok(job.with(&["--mca", "vprotocol_correlated_checkpoint_interval", "1"]))
}

fn count(events: &str, event: &str) -> usize {
    events.matches(&format!("\"event\":\"{event}\"")).count()
}

/// What happens, how often all ranks are rolled back by it, and which sets they are.
struct Case<'a> {
    faults: &'a [&'a [&'a str]],
    rollbacks: usize,
    sets: (&'a [&'a str], usize),
}

/// The answer is that of an undisturbed run.
fn survives(case: &Case<'_>) -> Result<(Outcome, String)> {
    let scratch = Scratch::new("shadow-verbs")?;
    let wanted = answer(&scratch)?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let (sets, count_of_sets) = case.sets;
    let job = protected(&scratch, &checkpoints, sets)?;
    let job = case.faults.iter().fold(job, |job, fault| job.with(fault));
    let events = || workloads::events(&checkpoints).unwrap_or_default();
    let outcome = workloads::run_until(&job, &scratch, ITERATIONS / 2, || {
        local_storage::all_have_replayed(&events(), case.rollbacks * count_of_sets)
    })?;
    outcome.must(outcome.code == 0, "the job failed")?;
    let found = workloads::hash(&outcome)?;
    outcome.must(found == wanted, &format!("it says `{found}`, it should say `{wanted}`"))?;
    outcome.must(!outcome.said().contains(NO_ANSWER), "somebody has waited for an answer")?;
    let events = events();
    let is_global = count_of_sets > 1;
    let rolled_back = if is_global { "global_rollback" } else { "set_rollback" };
    outcome.must(
        count(&events, rolled_back) == case.rollbacks,
        &format!("all should roll back, each time: {events}"),
    )?;
    outcome.must(!is_global || outcome.said().contains(NOT_LOGGED), "it should say why")?;
    let again = outcome.said().matches("verbs are made again").count();
    let wanted = RANKS as usize * case.rollbacks;
    outcome.must(again == wanted, &format!("verbs were made again {again} times, not {wanted}"))?;
    // The adapter in memory outlives its users: not `must_be_clean`.
    Ok((outcome, events))
}

/// Ranks are killed at these events, each a set of its own.
fn survives_kills(faults: &[&str]) -> Result<(Outcome, String)> {
    let faults: Vec<[&str; 2]> = faults.iter().map(|fault| ["--kill-at-event", *fault]).collect();
    let faults: Vec<&[&str]> = faults.iter().map(|fault| &fault[..]).collect();
    let rollbacks = faults.len();
    survives(&Case { faults: &faults, rollbacks, sets: (&SINGLE, RANKS as usize) })
}

fn rolls_back() -> Result<()> {
    let (outcome, events) = survives_kills(&["checkpoint_completed@3=rank:1"])?;
    outcome.must(count(&events, "checkpoint_completed") >= 3, "three checkpoints")?;
    // What an adapter writes is not noted by the kernel, where that notes anything.
    outcome.must(outcome.said().contains("is found by hashes"), "images are to be compared")
}

/// The second time what is rolled back was made again once.
fn rolls_back_twice() -> Result<()> {
    let again = "replays_over@1,checkpoint_completed@1=rank:2";
    survives_kills(&["checkpoint_completed@3=rank:0", again]).map(drop)
}

/// Between the rollbacks a checkpoint is given up in its drain: its agent is killed. (The first one
/// may be taken before ranks have opened an adapter; the failure may end one that has begun.)
fn one_set() -> Result<()> {
    let faults: [&[&str]; 4] = [
        &["--kill-at-event", "checkpoint_completed@3=rank:1"],
        &["--signal-at-event", "set_restarted@1,checkpoint_completed@1=PAUSE/rank:1"],
        &["--signal-at-event", "set_restarted@1,checkpoint_started@2=KILL/agent:0"],
        &["--kill-at-event", "agent_gone@1,checkpoint_completed@1=rank:2"],
    ];
    let (outcome, events) = survives(&Case { faults: &faults, rollbacks: 2, sets: (&ONE_SET, 1) })?;
    let lost = events.split_once("\"event\":\"agent_gone\"").unwrap_or_default().1;
    let given_up = lost.split("\"event\":\"set_rollback\"").next().unwrap_or_default();
    outcome.must(count(given_up, "checkpoint_aborted") > 0, "no checkpoint was given up")
}

/// The one that takes over gives the checkpoint up, takes others, and rolls back to them.
fn loses_coordinator() -> Result<()> {
    let faults: [&[&str]; 4] = [
        &HELD,
        &["--kill-at-event", "checkpoint_completed@2,checkpoint_started@1=coordinator"],
        &["--signal-at-event", "failover_completed@1=CONT/rank:1"],
        &["--kill-at-event", "checkpoint_completed@4=rank:2"],
    ];
    let sets = (&SINGLE[..], RANKS as usize);
    let (outcome, events) = survives(&Case { faults: &faults, rollbacks: 1, sets })?;
    outcome.must(count(&events, "failover_completed") == 1, "the coordinator was not lost")
}

/// All are rolled back, also the one that is suspended.
fn loses_rank() -> Result<()> {
    let ended = "checkpoint_completed@2,checkpoint_started@1=TERM/rank:0";
    let faults: [&[&str]; 2] = [&HELD, &["--signal-at-event", ended]];
    let sets = (&SINGLE[..], RANKS as usize);
    let (outcome, events) = survives(&Case { faults: &faults, rollbacks: 1, sets })?;
    let given_up = count(&events, "checkpoint_aborted") > 0;
    outcome.must_by(given_up, "no checkpoint was given up", &events)
}

/// All coordinators are killed. Then nobody knows names: that is said, and nobody waits for them.
fn unprotected() -> Result<()> {
    let scratch = Scratch::new("shadow-verbs")?;
    let wanted = answer(&scratch)?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let mut job = protected(&scratch, &checkpoints, &SINGLE)?;
    job = job.with(&["--kill-at-event", "checkpoint_completed@1=coordinator"]);
    for number in 1..=FAILOVERS_MAX {
        job = job.with(&["--kill-at-event", &format!("failover_completed@{number}=coordinator")]);
    }
    // Who needs a name for the first time after that cannot connect: it is said so.
    let connected = scratch.0.join("gate.connected");
    // Of the undisturbed run.
    fs::remove_file(&connected).context(|| connected.display().to_string())?;
    let job = job.with(&["--break-when", &connected.display().to_string()]);
    let all_killed = scratch.0.join("all-killed");
    let job = job.with(&["--write-when-failed", &all_killed.display().to_string()]);
    let outcome = workloads::run_until(&job, &scratch, ITERATIONS / 2, || all_killed.exists())?;
    outcome.must(outcome.code == 0, "the job failed")?;
    let found = workloads::hash(&outcome)?;
    outcome.must(found == wanted, &format!("it says `{found}`, it should say `{wanted}`"))?;
    outcome.must(outcome.said().contains(NO_ANSWER), "it should say that names are not known")
}

/// In other processes, over an adapter that knows nothing of them.
fn restarts() -> Result<()> {
    let scratch = Scratch::new("shadow-verbs")?;
    let wanted = answer(&scratch)?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    workloads::open_gate(&scratch, ITERATIONS / 2)?;
    let job = workloads::with_checkpoints(job(&scratch)?, &checkpoints).with(&SHADOWED);
    let job = job.with(&SINGLE).with(&["--checkpoint-at", "2", "--kill-all-after", "0"]);
    let first = job.run()?;
    first.must(first.code == 137, "it should have been killed")?;
    first.must(first.stdout.contains("is complete"), "the checkpoint is not complete")?;
    workloads::open_gate(&scratch, workloads::GATE_OPEN)?;
    let second = workloads::restart((1, RANKS), &checkpoints, &scratch).run()?;
    second.must(second.code == 0, "the restarted job failed")?;
    second.must(!second.said().contains(NO_ANSWER), "somebody has waited for an answer")?;
    let found = workloads::hash(&second)?;
    second.must(found == wanted, &format!("it says `{found}`, it should say `{wanted}`"))
}

/// Nothing is asked of a job that only might use them: one set rolls back alone.
fn none_are_used() -> Result<()> {
    let scratch = Scratch::new("shadow-verbs")?;
    let wanted = workloads::hash(&RING.job((2, 2), 400, &scratch)?.run()?)?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let job = workloads::protected(RING.job((2, 2), 400, &scratch)?, &checkpoints);
    let job = job.with(&SHADOWED).with(&["--kill-at-event", "checkpoint_completed@1=rank:3"]);
    let events = || workloads::events(&checkpoints).unwrap_or_default();
    let outcome = workloads::run_until(&job, &scratch, 200, || {
        local_storage::all_have_replayed(&events(), 1)
    })?;
    let found = workloads::hash(&outcome)?;
    outcome.must(outcome.code == 0 && found == wanted, "it should survive")?;
    let events = events();
    outcome.must_by(count(&events, "global_rollback") == 0, "the others should go on", &events)
}

fn not_there() -> Result<()> {
    let scratch = Scratch::new("shadow-verbs")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let job = workloads::protected(RING.job((1, 2), 10, &scratch)?, &checkpoints);
    let nowhere = ["--mca", "vprotocol_correlated_shadow_verbs", "/nowhere/librustbtl_verbs.so"];
    let outcome = job.with(&nowhere).run()?;
    let said = outcome.said();
    if outcome.code == 0 || !said.contains("there is no /nowhere/librustbtl_verbs.so") {
        fail!("{said}\nexpected a message, and an exit code: {}", outcome.code);
    }
    Ok(())
}
