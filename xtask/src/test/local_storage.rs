//! The plain command: no folder that the nodes share. Programs and nodes are killed, with all that
//! a node had stored; the answer is that of an undisturbed run.

use super::guardians::ENDS;
use super::job::{Outcome, TestJob};
use super::mpi::{self, Over};
use super::node_failure::{ENDLESS, NOT_RECOVERED, must_be_clean};
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, GATE_OPEN, Program, RING, Shape, What};
use crate::error::{Context, Result};
use crate::paths;
use serde_json::Value;
use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs;

const ITERATIONS: u64 = 400;
/// As far as the program gets before everything has happened.
const GATE: u64 = 200;

/// What happens to whom, in a job of which shape, and how often a set completes its replay.
const SURVIVED: [(&str, Shape, &[&str], usize); 8] = [
    ("a program is killed: 2 × 2", (2, 2), &["--kill-rank-after-checkpoint", "3@1"], 1),
    (
        "a program is killed on the only node: 1 × 2",
        (1, 2),
        &["--kill-rank-after-checkpoint", "1@1"],
        1,
    ),
    ("a node is killed: 3 × 1", (3, 1), &["--kill-node-after-checkpoint", "1@1"], 1),
    ("a node is killed: 2 × 2", (2, 2), &["--kill-node-after-checkpoint", "1@1"], 1),
    ("a cable is pulled: 3 × 1", (3, 1), &["--cut-node-after-checkpoint", "2@1"], 1),
    (
        "a node is killed, and another one when there are replicas again: 3 × 1",
        (3, 1),
        &["--kill-node-after-replication", "1@1", "--kill-node-after-replication", "2@2"],
        3,
    ),
    (
        "a node is killed, and the guardian that its rank has got: 3 × 1",
        (3, 1),
        &[
            "--kill-node-after-checkpoint",
            "1@1",
            "--kill-at-event",
            "replay_completed@1=guardian:1",
        ],
        2,
    ),
    (
        "two nodes are killed at a time, with two copies: 3 × 1",
        (3, 1),
        &[
            "--mca",
            "vprotocol_correlated_image_replicas",
            "2",
            "--kill-node-after-checkpoint",
            "1@1",
            "--kill-node-after-checkpoint",
            "2@1",
        ],
        2,
    ),
];

/// More ranks than processors, which wait in all the ways that MPI has: who has work gets a
/// processor all the same, the coordinator, too (component/src/engine/backoff.rs).
const FARM: Program = Program {
    name: "farm",
    what: What::Hash { source: "farm_hash.c", iterations: TASKS, arguments: &["GATE"] },
};
const TASKS: u64 = 20_000;
/// Knows who is on its node.
const NEIGHBOURS: Program = Program {
    name: "neighbours",
    what: What::Hash { source: "neighbours.c", iterations: ITERATIONS, arguments: &["GATE"] },
};
const OVERSUBSCRIBED: [(&str, &[&str]); 2] = [
    ("a program is killed", &["--kill-rank-after-checkpoint", "6@1"]),
    ("a node is killed", &["--kill-node-after-checkpoint", "1@1"]),
];

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    run_over(tier, &Over::Component);
}

/// The same, in the tier that has begun.
pub fn run_over(tier: &mut Tier, over: &Over) {
    for (title, shape, faults, times) in &SURVIVED {
        let title = format!("plain command: {title}");
        tier.check(&title, || survives(over, *shape, faults, *times).map(drop));
    }
    for (title, faults) in OVERSUBSCRIBED {
        tier.check(&format!("plain command: oversubscribed: {title}: 2 × 4"), || {
            run_through(&FARM, TASKS, over, (2, 4), (faults, 1)).map(drop)
        });
    }
    tier.check("plain command: nothing is said, a node is killed: 3 × 1", || as_it_comes(over));
    let elsewhere = "plain command: mpirun's node has no ranks, a node is killed: 4 × 2";
    tier.check(elsewhere, || no_ranks_at_mpirun(over));
    let too_many_at_once = "plain command: two nodes are killed at a time: 3 × 1";
    tier.check(too_many_at_once, || too_many(over));
    // With so few Debian 13's PRRTE starts no job, without our component neither.
    if !matches!(over, Over::Debian(_)) {
        tier.check("plain command: few open files, a program is killed: 3 × 1", || {
            few_files(over)
        });
    }
    tier.check("plain command: exit codes are those of stock jobs: 2 × 1", || exit_codes(over));
    tier.check("plain command: no room for images: 2 × 1", || no_room(over));
}

/// Without any parameter about protection a killed node is recovered from, and the user reads it in
/// one line, unless he does not want to.
fn as_it_comes(over: &Over) -> Result<()> {
    let shape = (3, 1);
    let notices = "vprotocol_correlated_notices";
    for (options, is_told) in [(&[][..], true), (&["--mca", notices, "0"], false)] {
        let scratch = Scratch::new("local")?;
        let mut job = RING.job_over(over, shape, ITERATIONS, &scratch)?;
        let known = RING.answer(&job.run()?, &scratch)?;
        let to = format!("RUSTBTL_EVENTS={}", scratch.0.display());
        job = job.with(&["--kill-node-after-checkpoint", "1@1", "--env", &to]).with(options);
        job.as_it_comes = true;
        let replayed = || all_have_replayed(&events(&scratch).unwrap_or_default(), 1);
        let outcome = workloads::run_until(&job, &scratch, ITERATIONS / 2, replayed)?;
        RING.must_answer(&outcome, &scratch, &known)?;
        outcome.must(replayed(), "no set was rolled back")?;
        // What protection may cost is limited: on a slow machine logging may be suspended.
        let events = events(&scratch)?;
        let of = |text: &str| events.lines().filter(|line| line.contains(text)).collect::<Vec<_>>();
        let (global, suspended) = (of("\"global_rollback\""), of("\"logging_suspended\""));
        let may_be = global.is_empty() || !suspended.is_empty();
        outcome.must(may_be, &format!("the others should keep running: {global:?}"))?;
        let text = match global.is_empty() {
            true => "all others kept running",
            false => "all ranks run again from checkpoint",
        };
        let told: Vec<&str> = outcome.stderr.lines().filter(|line| line.contains(text)).collect();
        outcome.must(told.len() == usize::from(is_told), "one line about the recovery, or none")?;
        // Who, from where, and how long it took.
        let words = match global.is_empty() {
            true => ["rank 1 failed: rolled back to checkpoint ", ", caught up after ", " s; all"],
            false => ["all ranks run again ", "from checkpoint ", ", after "],
        };
        let is_whole = |line: &&str| words.iter().all(|word| line.contains(word));
        outcome.must(told.iter().all(is_whole), &format!("{words:?} in {told:?}"))?;
        must_be_clean(&outcome)?;
    }
    Ok(())
}

/// Protected jobs end as stock ones: MPI programs in all the ways of `ends.c`, and others.
fn exit_codes(over: &Over) -> Result<()> {
    let program = mpi::compile_over(&paths::root().join("xtask/programs/ends.c"), over)?;
    let program = program.display().to_string();
    let ends = ENDS.iter().filter(|(how, _)| *how != "exit 0 without finalize");
    let commands = ends.map(|&(how, code)| (vec![program.as_str(), how], code));
    let other = (vec!["sh", "-c", "exit 3"], 3);
    for (command, code) in commands.chain([other]) {
        let scratch = Scratch::new("local")?;
        let mut job = plain(over.job(TestJob::new(2, 1, &command)), &scratch);
        job.seconds = 60;
        let outcome = job.run()?;
        outcome.must(outcome.code == code, &format!("the exit code should be {code}"))?;
        must_be_clean(&outcome)?;
    }
    Ok(())
}

/// What a user types; the coordinator's log outlives the job.
pub fn plain(job: TestJob, scratch: &Scratch) -> TestJob {
    let events = format!("RUSTBTL_EVENTS={}", scratch.0.display());
    // The default; tests switch it off where they say nothing.
    let job = job.with(&["--mca", "vprotocol_correlated_recover", "1", "--env", &events]);
    job.with(&workloads::UNLIMITED)
}

/// What the coordinators of jobs with a gate ([`run_until`]) have logged.
pub fn events(scratch: &Scratch) -> Result<String> {
    let mut all = String::new();
    for file in fs::read_dir(&scratch.0).context(|| scratch.0.display().to_string())?.flatten() {
        if file.path().extension().is_some_and(|ending| ending == "jsonl") {
            all += &fs::read_to_string(file.path()).context(|| "events".into())?;
        }
    }
    Ok(all)
}

/// Runs a job that cannot end before the coordinator has logged what is waited for.
pub fn run_until(
    job: TestJob,
    scratch: &Scratch,
    until: impl Fn(&str) -> bool + Sync,
) -> Result<Outcome> {
    workloads::run_until(&plain(job, scratch), scratch, GATE, || {
        until(&events(scratch).unwrap_or_default())
    })
}

/// Were sets rolled back so often, and are all replays over since? That each set believes to have
/// completed its replay is not enough: others may not have reached it yet (docs/adr/0016).
pub fn all_have_replayed(events: &str, times: usize) -> bool {
    let (mut rolled_back, mut over) = (0, false);
    for event in events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        match event["event"].as_str() {
            Some("set_rollback") => (rolled_back, over) = (rolled_back + 1, false),
            Some("replays_over") => over = true,
            _ => {}
        }
    }
    rolled_back >= times && (over || rolled_back == 0)
}

/// The sets that were rolled back.
pub fn rolled_back(events: &str) -> BTreeSet<u64> {
    let events = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let back = events.filter(|event| event["event"] == "set_rollback");
    back.filter_map(|event| event["set"].as_u64()).collect()
}

/// The program cannot end before sets were rolled back so often and have completed their replay.
/// Returns what the coordinator has logged.
pub fn survives(over: &Over, shape: Shape, faults: &[&str], times: usize) -> Result<String> {
    run_through(&RING, ITERATIONS, over, shape, (faults, times))
}

/// The same for any program; `failures`: faults, and how often sets complete their replay.
fn run_through(
    program: &Program,
    iterations: u64,
    over: &Over,
    shape: Shape,
    failures: (&[&str], usize),
) -> Result<String> {
    let (faults, times) = failures;
    let scratch = Scratch::new("local")?;
    let job = program.job_over(over, shape, iterations, &scratch)?;
    let known = program.answer(&job.run()?, &scratch)?;
    let all_broken = scratch.0.join("all-broken");
    let note = ["--write-when-failed", &all_broken.display().to_string()];
    let outcome = run_until(job.with(faults).with(&note), &scratch, |events| {
        all_broken.exists() && all_have_replayed(events, times)
    })?;
    program.must_answer(&outcome, &scratch, &known)?;
    let breaks = |word: &str| word.contains("-after-") || word == "--kill-at-event";
    let broken = faults.iter().filter(|word| breaks(word)).count();
    let said = |what: &str| outcome.stderr.matches(what).count();
    let done = said(": killed ") + said(": cut ");
    outcome.must(done == broken, "something did not break in time")?;
    let events = events(&scratch)?;
    let rolled_back = all_have_replayed(&events, times);
    outcome.must_by(rolled_back, "not every set that was hit rolled back", &events)?;
    must_be_clean(&outcome)?;
    Ok(events)
}

/// As on a login node. The program checks who its neighbours are, by host names and by MPI.
fn no_ranks_at_mpirun(over: &Over) -> Result<()> {
    let placed = ["--np", "4", "--mca", "rmaps_base_no_schedule_local", "1"];
    let scratch = Scratch::new("local")?;
    let job = NEIGHBOURS.job_over(over, (4, 2), ITERATIONS, &scratch)?.with(&placed);
    let known = NEIGHBOURS.answer(&job.run()?, &scratch)?;
    let job = job.with(&["--kill-node-after-checkpoint", "2@1"]);
    let replayed = |events: &str| all_have_replayed(events, 1);
    let outcome = run_until(job, &scratch, replayed)?;
    NEIGHBOURS.must_answer(&outcome, &scratch, &known)?;
    let events = events(&scratch)?;
    outcome.must_by(replayed(&events), "the set was not rolled back", &events)?;
    must_be_clean(&outcome)
}

/// With one replica, two nodes at a time are too many: the end reports what is lost.
fn too_many(over: &Over) -> Result<()> {
    let scratch = Scratch::new("local")?;
    // It hears of both at once, whatever time passes between the two.
    let at_once = ["STOP/coordinator", "KILL/node:1+node:2", "CONT/coordinator"];
    let mut job = RING.job_over(over, (3, 1), ENDLESS, &scratch)?;
    for what in at_once {
        job = job.with(&["--signal-at-event", &format!("checkpoint_completed@1={what}")]);
    }
    job = job.with(&["--mca", "vprotocol_correlated_failure_timeout", "60"]);
    job.seconds = 120;
    let outcome = plain(job, &scratch).run()?;
    let killed = ["n1", "n2"].map(|node| format!("sent KILL to all of node {node} "));
    let both = killed.iter().all(|text| outcome.stderr.contains(text));
    outcome.must(both, "two nodes should be killed")?;
    outcome.must(![0, 124].contains(&outcome.code), "the job should end with an error")?;
    let words: Vec<String> = outcome.said().split_whitespace().map(str::to_owned).collect();
    let said = words.join(" ");
    outcome.must(said.contains(NOT_RECOVERED), "the end should be explained")?;
    for text in [
        "of rank 1 in checkpoint 1 are lost",
        "Set 1, rank 1, image of checkpoint 1: written on n1 (lost), replicated to n2 (lost)",
        "There is nothing to restart the job from: without vprotocol_correlated_checkpoint_dir",
        "Of recorded outcomes (determinants) nothing is lost",
    ] {
        outcome.must(said.contains(text), &format!("it should say `{text}`"))?;
    }
    must_be_clean(&outcome)
}

/// With a limit of open files below the number of the socket that each rank has to its guardian.
fn few_files(over: &Over) -> Result<()> {
    let scratch = Scratch::new("local")?;
    let job = RING.job_over(over, (3, 1), ITERATIONS, &scratch)?;
    let known = RING.answer(&job.run()?, &scratch)?;
    let job = plain(job.with(&["--kill-rank-after-checkpoint", "1@1"]), &scratch);
    let xtask = env::current_exe().context(|| "finding this program".into())?;
    let limited = ["sh", "-c", "ulimit -Sn 64; exec \"$@\"", "sh"].map(OsStr::new);
    let program = [&limited[..], &[xtask.as_os_str()]].concat();
    let happened = || all_have_replayed(&events(&scratch).unwrap_or_default(), 1);
    workloads::open_gate(&scratch, GATE)?;
    let outcome =
        workloads::run_in_steps(&scratch, &[(happened, GATE_OPEN)], || job.run_under(&program))?;
    RING.must_answer(&outcome, &scratch, &known)?;
    outcome.must(outcome.stderr.contains(": killed "), "no program was killed")?;
    must_be_clean(&outcome)
}

/// The job goes on unprotected, and reports it once.
fn no_room(over: &Over) -> Result<()> {
    let scratch = Scratch::new("local")?;
    let job = RING.job_over(over, (2, 1), ITERATIONS, &scratch)?;
    let known = RING.answer(&job.run()?, &scratch)?;
    let full = ["--mca", "vprotocol_correlated_local_dir", "/dev/shm", "--shm-size", "24m"];
    // The first checkpoint fails twice before it is a matter for the user.
    let twice = |events: &str| events.matches("\"event\":\"checkpoint_aborted\"").count() >= 2;
    let outcome = run_until(job.with(&full), &scratch, twice)?;
    RING.must_answer(&outcome, &scratch, &known)?;
    outcome.must(outcome.stderr.contains("has no room for"), "it should say why")?;
    let reported = outcome.stderr.matches("was given up").count();
    outcome.must(reported == 1, "it should be said once that there is no checkpoint")?;
    must_be_clean(&outcome)
}
