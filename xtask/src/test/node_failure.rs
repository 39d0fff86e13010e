//! A node, its cable or a program breaks while a job runs. With recovery the ranks that are hit are
//! rolled back to their last checkpoint, on the same or on another node, while all others go on,
//! and the answer is that of an undisturbed run; without, the job ends as with stock Open MPI. In
//! either case nothing is left over, and nobody waits for ever.

use super::divergence;
use super::guardians::ENDS;
use super::in_place_replies;
use super::job::{Outcome, TestJob};
use super::local_storage;
use super::mpi;
use super::mpi::Over;
use super::scratch::Scratch;
use super::standstill;
use super::storage::count;
use super::summary::Tier;
use super::workloads::{self, BY_PID, CLOCK, INTER, Program, RING, Shape, THREADS, UPDATES};
use crate::build::openmpi;
use crate::error::{Context, Failure, Result, fail};
use crate::paths;
use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// More than any job here has time for.
pub const ENDLESS: u64 = 100_000_000;
/// Of a job that goes on for seconds when its first checkpoint is complete: it waits for each
/// determinant that others depend on to be stable.
pub const ITERATIONS: u64 = 6000;
/// Of one that waits at a gate.
const ITERATIONS_SHORT: u64 = 1500;
/// The same of [`BY_PID`].
const SENT: u64 = 1000;
/// What mpirun prints of a lost node if nobody stops it, in the order in which it notices.
const STOCK: [&str; 3] = [
    "ORTE has lost communication with a remote daemon",
    "ORTE was unable to reliably start one or more daemons",
    "PRTE has lost communication with a remote daemon",
];
/// In what the coordinator logs.
pub const COMPLETE: &str = "\"event\":\"checkpoint_completed\"";
/// What mpirun prints of one that cannot be recovered.
pub const NOT_RECOVERED: &str = "the ranks of that node cannot be restarted";

/// What happens to whom, in a job of which shape. The first checkpoint is taken when the job is
/// ready.
const SURVIVED: [(&str, Shape, &[&str]); 8] = [
    ("a node is killed: 3 × 1", (3, 1), &["--kill-node-after-checkpoint", "1@1"]),
    ("a node is killed: 2 × 2", (2, 2), &["--kill-node-after-checkpoint", "1@1"]),
    (
        "two nodes are killed: 3 × 1",
        (3, 1),
        &["--kill-node-after-checkpoint", "1@1", "--kill-node-after-checkpoint", "2@1"],
    ),
    ("a cable is pulled: 3 × 1", (3, 1), &["--cut-node-after-checkpoint", "2@1"]),
    ("a program is killed: 2 × 2", (2, 2), &["--kill-rank-after-checkpoint", "3@1"]),
    ("the program of rank 0 is killed: 2 × 2", (2, 2), &["--kill-rank-after-checkpoint", "0@1"]),
    (
        "programs of all nodes are killed: 3 × 2",
        (3, 2),
        &[
            "--kill-rank-after-checkpoint",
            "0@1",
            "--kill-rank-after-checkpoint",
            "3@1",
            "--kill-rank-after-checkpoint",
            "4@1",
        ],
    ),
    (
        "sets of single processes: 2 × 2",
        (2, 2),
        &[
            "--mca",
            "vprotocol_correlated_sets",
            "core",
            "--kill-rank-after-checkpoint",
            "1@1",
            "--kill-rank-after-checkpoint",
            "2@1",
        ],
    ),
];

/// The same for a program that decides by the clock, and how long it runs at least.
const BY_CLOCK: [(Shape, [&str; 2]); 2] = [
    ((3, 1), ["--kill-node-after-checkpoint", "1@1"]),
    ((2, 2), ["--kill-rank-after-checkpoint", "3@1"]),
];
/// Two of them together: others may depend on what only these two had.
const TOGETHER: [(Shape, [&str; 4]); 2] = [
    ((4, 1), ["--kill-node-after-checkpoint", "1@1", "--kill-node-after-checkpoint", "2@1"]),
    ((3, 2), ["--kill-node-after-checkpoint", "1@1", "--kill-node-after-checkpoint", "2@1"]),
];
const MILLISECONDS: u64 = 3000;

/// The same for one that depends on what comes next nearly everywhere.
const BY_CHANCE: [(Shape, [&str; 2]); 2] = [
    ((3, 2), ["--kill-node-after-checkpoint", "1@1"]),
    ((2, 3), ["--kill-rank-after-checkpoint", "4@1"]),
];
const UPDATED: u64 = 8;

/// The same for one whose intercommunicators get the same context id again: each of the two groups
/// loses a rank that leads it.
const BY_GROUPS: [(Shape, [&str; 2]); 2] = [
    ((3, 1), ["--kill-rank-after-checkpoint", "0@1"]),
    ((2, 2), ["--kill-node-after-checkpoint", "1@1"]),
];
const MET: u64 = 2000;

/// The same for one whose threads all call MPI.
const BY_THREADS: [(Shape, u64, [&str; 2]); 2] = [
    ((2, 1), 3000, ["--kill-node-after-checkpoint", "1@1"]),
    ((2, 2), 1000, ["--kill-rank-after-checkpoint", "3@1"]),
];

/// Guardians that are killed alone, of a remote node and of mpirun's own, and all of a node.
const GUARDIANS: [(&str, Shape, &str); 4] = [
    ("a node's only guardian is killed: 2 × 1", (2, 1), "guardian:1"),
    ("the only guardian of mpirun's node is killed: 3 × 1", (3, 1), "guardian:0"),
    ("a guardian is killed: 2 × 2", (2, 2), "guardian:3"),
    ("a guardian of mpirun's node is killed: 2 × 2", (2, 2), "guardian:1"),
];

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    tier.check("node loss: without recovery as stock: 3 × 1", || as_stock((3, 1), true, &[]));
    tier.check("node loss: guarded, but without recovery as stock: 3 × 1", || {
        as_stock((3, 1), false, &["--mca", "vprotocol_correlated_protect_without_dir", "1"])
    });
    for (title, shape, faults) in &SURVIVED {
        tier.check(&format!("live recovery: {title}"), || {
            repeats(&RING, ITERATIONS_SHORT, *shape, faults)
        });
    }
    for (shape, faults) in BY_CLOCK {
        tier.check(
            &format!("live recovery: decisions by the clock: {} × {}", shape.0, shape.1),
            || repeats(&CLOCK, MILLISECONDS, shape, &faults),
        );
    }
    for (shape, faults) in TOGETHER {
        let title = format!("two nodes are killed: {} × {}", shape.0, shape.1);
        tier.check(&format!("live recovery: decisions by the clock, {title}"), || {
            repeats(&CLOCK, MILLISECONDS, shape, &faults)
        });
    }
    for (shape, faults) in BY_CHANCE {
        let title = format!("live recovery: random updates: {} × {}", shape.0, shape.1);
        tier.check(&title, || repeats(&UPDATES, UPDATED, shape, &faults));
    }
    for (shape, faults) in BY_GROUPS {
        let title = format!("live recovery: intercommunicators: {} × {}", shape.0, shape.1);
        tier.check(&title, || repeats(&INTER, MET, shape, &faults));
    }
    in_place_replies::tests(tier);
    for (shape, length, faults) in BY_THREADS {
        let title = format!("live recovery: MPI_THREAD_MULTIPLE: {} × {}", shape.0, shape.1);
        let yields = ["--mca", "mpi_yield_when_idle", "1"];
        let options = [&yields[..], &faults[..]].concat();
        tier.check(&title, || repeats(&THREADS, length, shape, &options));
    }
    guardians_over(tier, &Over::Component);
    tier.check("live recovery: slow storage: 2 × 2", slow_storage);
    // So that the check above is known to be one.
    tier.check("live recovery: a clock that is not recorded: 2 × 2", || {
        // Not before others have much of what is done otherwise then, on a busy machine, too.
        let scratch = Scratch::new("by-clock")?;
        let done = scratch.0.join("done").display().to_string();
        let variable = format!("DONE={done}");
        let mut faults = vec!["--mca", "vprotocol_correlated_record_clock", "0"];
        faults.extend(["--env", &variable, "--env", "DONE_BY=3", "--break-when", &done]);
        faults.extend(["--kill-rank-after-checkpoint", "3@1"]);
        match survives(&CLOCK, MILLISECONDS, (2, 2), &faults) {
            // The program sees it in what its neighbours have, or replay in its nondeterministic
            // calls: then all are rolled back.
            Err(Failure(reason)) if reason.contains("contradicts itself") => Ok(()),
            Ok(events) if diverged(&events) => Ok(()),
            Ok(events) => fail!("a rank did the same again by chance; its job:\n{events}"),
            Err(other) => Err(other),
        }
    });
    divergence::tests(tier);
    let lost = "live recovery: a file that was on the lost node ends the job: 2 × 1";
    tier.check(lost, || lost_file("/dev/shm/held", false));
    tier.check(&format!("{lost}, plain command, in /tmp"), || lost_file("/tmp/held", true));
    // So that the check below is known to be one: nobody compares what differs.
    let killed = ["--kill-node-after-checkpoint", "1@1"];
    tier.check("live recovery: other messages than before, unnoticed: 3 × 1", || {
        let unchecked =
            [&["--mca", "vprotocol_correlated_verify_sends", "0"], &killed[..]].concat();
        survives(&BY_PID, SENT, (3, 1), &unchecked).map(drop)
    });
    tier.check("live recovery: other messages than before are reported: 3 × 1", || {
        let events = survives(&BY_PID, SENT, (3, 1), &killed)?;
        if diverged(&events) { Ok(()) } else { fail!("nobody has noticed") }
    });
    standstill::tests(tier);
    tier.check("live recovery: contents are checked, and are the same: 3 × 1", || {
        repeats(&RING, ITERATIONS_SHORT, (3, 1), &killed)
    });
    tier.check("live recovery: from set checkpoints: 2 × 2", from_set_checkpoints);
    tier.check("live recovery: while the other one computes: 2 × 1", the_other_computes);
    let soon = "live recovery: a guardian of mpirun's node is killed, and soon all ends: 2 × 2";
    tier.check(soon, soon_over);
    tier.check("node loss: spare nodes are no loss: 2 × 1", spare);
    tier.check("node loss: after a checkpoint the job can be restarted: 2 × 2", restarted_job);
    tier.check("node loss: without one, exit codes are those of stock jobs: 3 × 1", other_ends);
    tier.check("node loss: a killed rank ends the job: 2 × 2", killed_rank);
}

/// A job that does not end by itself, with its folder for checkpoints.
pub fn endless(shape: Shape, scratch: &Scratch, with_checkpoints: bool) -> Result<TestJob> {
    let mut job = RING.job(shape, ENDLESS, scratch)?;
    job.seconds = 60;
    Ok(if with_checkpoints {
        workloads::with_checkpoints(job, &workloads::checkpoint_folder(scratch)?)
    } else {
        job
    })
}

/// No process of the job is left on any node.
pub fn must_be_clean(outcome: &Outcome) -> Result<()> {
    outcome.must(!outcome.said().contains("still running"), "something was left over")
}

fn as_stock(shape: Shape, with_checkpoints: bool, options: &[&str]) -> Result<()> {
    let scratch = Scratch::new("node-loss")?;
    let job =
        endless(shape, &scratch, with_checkpoints)?.with(options).with(&["--kill-node", "1@0.3"]);
    let outcome = job.run()?;
    outcome.must(outcome.stderr.contains("killed node n1"), "no node was killed")?;
    ended_by_stock(&outcome)?;
    must_be_clean(&outcome)
}

/// Open MPI has ended the job for a lost node. (PRRTE 3.0's mpirun says so, and ends with 0, with
/// and without us.)
fn ended_by_stock(outcome: &Outcome) -> Result<()> {
    let is_error = outcome.code != 0 || openmpi::has_prrte()?;
    outcome.must(outcome.code != 124 && is_error, "the job should end with an error")?;
    let said = outcome.said();
    let stock = STOCK.iter().any(|text| said.contains(text)) && !said.contains(NOT_RECOVERED);
    outcome.must(stock, "the message should be Open MPI's")
}

/// The ranks that are hit are rolled back, the others go on, and the answer is the same. A program
/// with a gate does not end before all that is to break is broken and was replayed; others are long
/// enough. Returns what the coordinator has logged.
pub fn survives(program: &Program, length: u64, shape: Shape, faults: &[&str]) -> Result<String> {
    survives_by(program, length, shape, faults, false)
}

/// The same. `late`: it does nothing before its first checkpoint is complete, and half of its work
/// before something breaks.
fn survives_by(
    program: &Program,
    length: u64,
    shape: Shape,
    faults: &[&str],
    late: bool,
) -> Result<String> {
    let scratch = Scratch::new("recovery")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let job = program.job(shape, length, &scratch)?;
    let known = program.answer(&job.run()?, &scratch)?;
    let breaks = |word: &&&str| word.starts_with("--kill-") || word.starts_with("--cut-");
    let broken = faults.iter().filter(breaks).count();
    let all_broken = scratch.0.join("all-broken");
    let job = workloads::protected(job, &checkpoints).with(faults);
    let job = job.with(&["--write-when-failed", &all_broken.display().to_string()]);
    let replayed = || {
        workloads::events(&checkpoints)
            .is_ok_and(|events| local_storage::all_have_replayed(&events, broken))
    };
    let happened = || all_broken.exists() && replayed();
    let begins = || workloads::events(&checkpoints).is_ok_and(|all| all.contains(COMPLETE));
    let outcome = match late {
        true => workloads::run_with_work(job, &scratch, (0, length / 2), begins, happened)?,
        false => workloads::run_until(&job, &scratch, length / 2, happened)?,
    };
    program.must_answer(&outcome, &scratch, &known)?;
    let said = |what: &str| outcome.stderr.matches(what).count();
    outcome
        .must(said(": killed ") + said(": cut ") == broken, "something did not break in time")?;
    let events = workloads::events(&checkpoints)?;
    let rolled_back = events.matches("\"event\":\"set_restarted\"").count();
    outcome.must_by(rolled_back > 0, "no set rolled back", &events)?;
    must_be_clean(&outcome)?;
    Ok(events)
}

/// The same of a program that repeats what it did: nothing else may be reported of it.
pub fn repeats(program: &Program, length: u64, shape: Shape, faults: &[&str]) -> Result<()> {
    no_false_alarm(&survives(program, length, shape, faults)?)
}

/// All that it repeats it has done after its first checkpoint.
pub fn repeats_late(program: &Program, length: u64, shape: Shape, faults: &[&str]) -> Result<()> {
    no_false_alarm(&survives_by(program, length, shape, faults, true)?)
}

fn no_false_alarm(events: &str) -> Result<()> {
    match events.lines().find(|event| event.contains("replay_diverged")) {
        Some(alarm) => fail!("a false alarm: {alarm}\n{events}"),
        None => Ok(()),
    }
}

/// A replay has diverged, and all ranks were rolled back.
pub fn diverged(events: &str) -> bool {
    ["replay_diverged", "global_rollback"]
        .iter()
        .all(|event| events.contains(&format!("\"event\":\"{event}\"")))
}

/// A rank holds a file of its node open, and the node is lost: it can be restored nowhere.
fn lost_file(file: &str, plain: bool) -> Result<()> {
    let program = mpi::compile(&paths::root().join("tests/workloads/holds_file.c"))?;
    let program = program.display().to_string();
    let scratch = Scratch::new("lost-file")?;
    let job = TestJob::new(2, 1, &[program.as_str(), "100000", file, "1"]);
    let mut job = match plain {
        true => local_storage::plain(job, &scratch),
        false => workloads::protected(job, &workloads::checkpoint_folder(&scratch)?),
    };
    job.seconds = 60;
    let often = ["--mca", "vprotocol_correlated_checkpoint_interval", "1"];
    let killed = ["--kill-at-event", "checkpoint_completed@2=node:1"];
    let outcome = job.with(&often).with(&killed).run()?;
    outcome.must(![0, 124].contains(&outcome.code), "the job should end with an error")?;
    for text in ["rank 1 ", file, "on node n0", "in a folder that all nodes share"] {
        outcome.must(outcome.stderr.contains(text), &format!("it should say `{text}`"))?;
    }
    must_be_clean(&outcome)
}

/// A rank is rolled back and replays what it did with what another one has sent, which is in no
/// call of MPI until that is done.
fn the_other_computes() -> Result<()> {
    let program = mpi::compile(&paths::root().join("tests/workloads/computes_alone.c"))?;
    let program = program.display().to_string();
    let run = |faults: &[&str]| -> Result<Outcome> {
        let scratch = Scratch::new("computes")?;
        let checkpoints = workloads::checkpoint_folder(&scratch)?;
        let [failed, done] = ["failed", "done"].map(|name| scratch.0.join(name));
        let words = [&program, "200", &failed.display().to_string(), &done.display().to_string()];
        if faults.is_empty() {
            fs::write(&failed, "").context(|| failed.display().to_string())?;
        }
        let mut job = workloads::protected(TestJob::new(2, 1, &words), &checkpoints);
        job.seconds = 100;
        let option = ["--write-when-failed".to_owned(), failed.display().to_string()];
        let outcome = job.with(&option.each_ref().map(String::as_str)).with(faults).run()?;
        outcome.must(outcome.code == 0, "the job failed")?;
        must_be_clean(&outcome)?;
        Ok(outcome)
    };
    let answer = |outcome: &Outcome| -> BTreeSet<String> {
        outcome.stdout.lines().filter(|line| line.starts_with("HASH")).map(str::to_owned).collect()
    };
    let known = run(&[])?;
    let outcome = run(&["--kill-node-after-checkpoint", "1@1+1.5"])?;
    outcome.must(outcome.stderr.contains("killed node n1"), "no node was killed")?;
    let same = answer(&outcome) == answer(&known) && answer(&known).len() == 2;
    outcome.must(same, "the answer is another one")
}

/// What waits for the storage does not keep the coordinator from handling a failure, nor do ranks
/// give up meanwhile.
fn slow_storage() -> Result<()> {
    let scratch = Scratch::new("slow-storage")?;
    let library = workloads::library("slow_storage", &scratch)?;
    let seen = scratch.0.join("seen");
    let preload = format!("LD_PRELOAD={}", library.display());
    let seen_by = format!("SLOW_SEEN={}", seen.display());
    let slow = ["--env", &preload, "--env", &seen_by, "--env", "SLOW_SECONDS=12"];
    let often = ["--mca", "vprotocol_correlated_checkpoint_interval", "1"];
    // While it takes so long.
    let in_file = seen.display().to_string();
    let killed = ["--break-when", &in_file, "--kill-rank-after-checkpoint", "3@1"];
    survives(&CLOCK, MILLISECONDS, (2, 2), &[&slow[..], &often, &killed].concat())?;
    if seen.exists() { Ok(()) } else { fail!("the storage was as quick as ever") }
}

/// Guardians fail alone, in jobs of this Open MPI.
pub fn guardians_over(tier: &mut Tier, over: &Over) {
    for (title, shape, guardian) in GUARDIANS {
        tier.check(&format!("live recovery: {title}"), || without_guardian(over, shape, guardian));
    }
    let title = "live recovery: all guardians of a node are killed: 2 × 2";
    tier.check(title, || without_those_of_a_node(over));
    let title = "live recovery: the loss of the last guardian ends the job: 1 × 1";
    tier.check(title, || without_the_only_guardian(over));
}

/// The rank of a guardian that is killed is rolled back, and mpirun takes no notice.
fn without_guardian(over: &Over, shape: Shape, guardian: &str) -> Result<()> {
    let killed = ["--checkpoint-at", "0", "--kill-after", guardian, "0"];
    without(over, shape, &killed, 1)
}

/// The same of all of a node. What the first one's loss begins may be in vain.
fn without_those_of_a_node(over: &Over) -> Result<()> {
    let killed = ["--signal-at-event", "checkpoint_completed@1=KILL/guardian:2+guardian:3"];
    without(over, (2, 2), &killed, 2)
}

fn without(over: &Over, shape: Shape, faults: &[&str], most: usize) -> Result<()> {
    let scratch = Scratch::new("recovery")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let job = RING.job_over(over, shape, ITERATIONS, &scratch)?;
    let known = RING.answer(&job.run()?, &scratch)?;
    let job = workloads::protected(job, &checkpoints).with(faults);
    let job = job.with(&["--mca", "vprotocol_correlated_recover", "1"]);
    let replayed = || {
        let events = workloads::events(&checkpoints);
        events.is_ok_and(|events| local_storage::all_have_replayed(&events, 1))
    };
    let outcome = workloads::run_until(&job, &scratch, ITERATIONS / 2, replayed)?;
    RING.must_answer(&outcome, &scratch, &known)?;
    let lost = workloads::events(&checkpoints)?.matches("\"event\":\"guardian_lost\"").count();
    outcome.must((1..=most).contains(&lost), "another number of guardians was lost")?;
    must_be_clean(&outcome)
}

/// Ranks that were rolled back finish while mpirun still handles the guardian's loss; and it is
/// killed while another checkpoint is taken.
fn soon_over() -> Result<()> {
    let program = mpi::compile(&paths::root().join("tests/workloads/print_lines.c"))?;
    for _ in 0..3 {
        let scratch = Scratch::new("recovery")?;
        let checkpoints = workloads::checkpoint_folder(&scratch)?;
        // The second half is short, and begins when the guardian is killed.
        let half = scratch.0.join("half").display().to_string();
        let words = [&program.display().to_string(), "1000", "500", "1", &half];
        let mut job = TestJob::new(2, 2, &words);
        job.seconds = 60;
        let killed = [
            "--checkpoint-at",
            "0",
            "--kill-at-event",
            "checkpoint_completed@1=guardian:1",
            "--write-when-failed",
            &half,
        ];
        let outcome = workloads::protected(job, &checkpoints).with(&killed).run()?;
        outcome.must(outcome.code == 0, "the job failed")?;
        let events = workloads::events(&checkpoints)?;
        let replayed = events.contains("\"replay_completed\"");
        outcome.must_by(replayed, "no set rolled back", &events)?;
        must_be_clean(&outcome)?;
    }
    Ok(())
}

/// mpirun prints which rank it was, and what is lost.
fn without_the_only_guardian(over: &Over) -> Result<()> {
    let scratch = Scratch::new("recovery")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let mut job = RING.job_over(over, (1, 1), ENDLESS, &scratch)?;
    job.seconds = 60;
    let killed = ["--checkpoint-at", "0", "--kill-after", "guardian:0", "0"];
    let outcome = workloads::protected(job, &checkpoints).with(&killed).run()?;
    outcome.must(outcome.code == 137, "the exit code should be 137")?;
    let said = outcome.said();
    outcome.must(said.contains("rank 0 with PID"), "it should say which rank")?;
    let set =
        "set 0 (ranks 0) is not rolled back: the guardian of rank 0 on node n0 was killed, and";
    outcome.must(said.contains(set), "it should say what is lost")?;
    let (folder, command) = (checkpoints.display(), "to continue from it: rustbtl restart");
    let way_out = format!("{command} {folder}/");
    outcome.must(said.contains(&way_out), "it should say what can be done")?;
    must_be_clean(&outcome)
}

/// Sets take checkpoints each by itself, and one is rolled back to a checkpoint of its own, of
/// which the others have no snapshot.
fn from_set_checkpoints() -> Result<()> {
    let scratch = Scratch::new("set-checkpoints")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    workloads::open_gate(&scratch, ITERATIONS_SHORT)?;
    let job = RING.job((2, 2), ITERATIONS_SHORT, &scratch)?;
    let known = RING.answer(&job.run()?, &scratch)?;
    // It cannot end before a set is restarted. After the first checkpoint, of all, the two sets
    // take turns.
    workloads::open_gate(&scratch, ITERATIONS_SHORT / 2)?;
    let options = ["--mca", "vprotocol_correlated_set_checkpoint_interval", "0.3"];
    let job = workloads::protected(job, &checkpoints).with(&options);
    let job = job.with(&["--kill-rank-after-checkpoint", "3@5"]);
    let ended = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            let rolled_back = || {
                workloads::events(&checkpoints).is_ok_and(|all| all.contains("\"set_restarted\""))
            };
            while !ended.load(Ordering::Relaxed) && !rolled_back() {
                thread::sleep(Duration::from_millis(50));
            }
            workloads::open_gate(&scratch, ITERATIONS_SHORT)
        });
        let outcome = job.run();
        ended.store(true, Ordering::Relaxed);
        outcome
    })?;
    RING.must_answer(&outcome, &scratch, &known)?;
    let broken = outcome.stderr.matches(": killed ").count();
    outcome.must(broken == 1, "the program did not die in time")?;
    let events = workloads::events(&checkpoints)?;
    let number = |text: &str| -> Option<u64> {
        let rest = &text[text.find("\"checkpoint\":")? + 13..];
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let of = |what: &str| {
        let what = what.to_string();
        events.lines().filter(move |line| line.contains(&what)).filter_map(number)
    };
    let own: Vec<u64> = of("\"kind\":\"set\"").collect();
    let mut rolled_back = of("\"event\":\"set_restarted\"").peekable();
    outcome.must_by(rolled_back.peek().is_some(), "no set rolled back", &events)?;
    let to_own = rolled_back.all(|line| own.contains(&line));
    outcome.must_by(to_own, "it rolled back to a checkpoint of all sets", &events)?;
    must_be_clean(&outcome)
}

/// mpirun releases nodes on which nothing of the job runs, and ends well without them: one that is
/// lost at once, and two that wait for ranks when they are.
fn spare() -> Result<()> {
    let known = RING.undisturbed((2, 1), &Scratch::new("node-loss")?)?;
    let both = ["--kill-at-event", "spare@2=node:2", "--kill-at-event", "spare@2=node:3"];
    let cases: [(&str, &[&str], usize); 2] = [("1", &["--kill-node", "2@0"], 0), ("2", &both, 2)];
    for (spares, faults, waited) in cases {
        let scratch = Scratch::new("node-loss")?;
        let job = RING.job((2, 1), known.iterations, &scratch)?;
        let job = job.with(&["--spare", spares]).with(faults);
        let all_broken = scratch.0.join("all-broken");
        let job = job.with(&["--write-when-failed", &all_broken.display().to_string()]);
        let lost = |events: &str| all_broken.exists() && count(events, "node_lost") >= waited;
        let outcome = local_storage::run_until(job, &scratch, lost)?;
        let killed = outcome.stderr.matches("killed node n").count();
        outcome.must(killed == waited.max(1), "not all nodes were killed")?;
        RING.must_answer(&outcome, &scratch, &known.answer)?;
        must_be_clean(&outcome)?;
    }
    Ok(())
}

/// Without recovery there is still the restart of the whole job.
fn restarted_job() -> Result<()> {
    let scratch = Scratch::new("node-loss")?;
    let known = RING.undisturbed((2, 2), &scratch)?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let job =
        workloads::with_checkpoints(RING.job((2, 2), known.iterations, &scratch)?, &checkpoints);
    // Requested while the job starts: it is taken as soon as all ranks are ready, however long a
    // run takes on this machine.
    let broken = ["--checkpoint-at", "0", "--kill-node-after-checkpoint", "1@1"];
    let outcome = job.with(&broken).run()?;
    ended_by_stock(&outcome)?;
    must_be_clean(&outcome)?;
    let outcome = workloads::restart((2, 2), &checkpoints, &scratch).run()?;
    RING.must_answer(&outcome, &scratch, &known.answer)
}

/// Daemons go at the end of every job: that is no loss.
fn other_ends() -> Result<()> {
    let program = mpi::compile(&paths::root().join("xtask/programs/ends.c"))?;
    for (how, code) in ENDS.iter().filter(|(how, _)| *how != "exit 0 without finalize") {
        let scratch = Scratch::new("node-loss")?;
        let job = TestJob::new(3, 1, &[program.as_os_str(), how.as_ref()]);
        let mut job = workloads::protected(job, &workloads::checkpoint_folder(&scratch)?);
        job.seconds = 60;
        let outcome = job.run()?;
        outcome.must(outcome.code == *code, &format!("the exit code should be {code}"))?;
        outcome.must(!outcome.said().contains(NOT_RECOVERED), "no node was lost")?;
        must_be_clean(&outcome)?;
    }
    Ok(())
}

fn killed_rank() -> Result<()> {
    let scratch = Scratch::new("node-loss")?;
    let job = endless((2, 2), &scratch, true)?.with(&["--kill-rank", "3@0.3"]);
    let outcome = job.run()?;
    outcome.must(outcome.stderr.contains("killed rank 3"), "no rank was killed")?;
    outcome.must(outcome.code == 137, "the exit code should be 137")?;
    must_be_clean(&outcome)
}
