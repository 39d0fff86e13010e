//! What triggers a checkpoint besides commands and clocks: a log that is nearly full, a signal to
//! mpirun. And what a user sees of a job that has failed in between.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::job::{Outcome, TestJob};
use super::mpi;
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, RING, Shape, Undisturbed};
use crate::cluster::KILLED;
use crate::error::{Result, fail};
use crate::paths;
use crate::report::{self, ReportedRank};

const SHAPE: Shape = (2, 2);
/// Of the log of each rank, and what rank 0 sends to the other node.
const BUDGET: u64 = 16 << 20;
const TOTAL: u64 = 6 * BUDGET;
/// What a job does that gets a signal, and when it gets it at the latest.
const ITERATIONS: u64 = 60_000;
const SIGNAL_AT: f64 = 2.0;
/// Logs keep what was received before the first checkpoint, too.
const KEEPS_RECEIVED: [&str; 3] = ["--mca", "vprotocol_correlated_trim_received", "0"];
/// How long the sender waits for the log to be trimmed.
const PATIENCE: &str = "120";

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    tier.check("a log that is nearly full: checkpoints instead of a spill", || {
        checkpoints_for_a_log(&[])
    });
    tier.check("a log that is nearly full of answers to gets: the same", || {
        checkpoints_for_a_log(&["gets"])
    });
    tier.check("a log that is nearly full: logging is suspended instead", suspended_for_a_log);
    tier.check(
        "a log that is nearly full, no directory for checkpoints: it spills",
        no_directory_for_checkpoints,
    );
    let mut known = None;
    let ready = tier.check("signals: an undisturbed run", || {
        let scratch = Scratch::new("signals")?;
        let start = Instant::now();
        let whole = RING.job(SHAPE, ITERATIONS, &scratch)?.run()?;
        let answer = workloads::hash(&whole)?;
        let seconds = start.elapsed().as_secs_f64();
        let long = Undisturbed { iterations: ITERATIONS, answer, seconds };
        known = Some(long);
        Ok(())
    });
    if let (true, Some(known)) = (ready, known) {
        tier.check("signals: SIGUSR2 to mpirun, a checkpoint", || a_checkpoint_by_signal(&known));
        tier.check("signals: SIGUSR1 to mpirun, a checkpoint and the end", || the_end(&known));
    }
    tier.check("signals: a name that makes no sense", nonsense);
    tier.check("signals: not chosen, the programs get them", not_chosen);
    for part in [0.3, 0.45, 0.6] {
        let title = format!("output: a rank is killed after {part} of a run, each line once");
        tier.count(&title, || output(part, Ending::ReportedRank));
        let title = format!("output: all is killed after {part} of a run, nothing twice, in order");
        tier.count(&title, || output(part, Ending::Everything));
    }
}

fn source(name: &str) -> PathBuf {
    paths::root().join("tests/workloads").join(name)
}

/// The job that sends more than its log holds, and what its ranks report.
fn full_log(
    scratch: &Scratch,
    options: &[&str],
    (patience, more): (&str, &[&str]),
) -> Result<(Outcome, Vec<ReportedRank>)> {
    let program = mpi::compile(&source("full_log.c"))?.display().to_string();
    let file = scratch.0.join("report.json").display().to_string();
    let (budget, total) = (BUDGET.to_string(), TOTAL.to_string());
    let words = [&[&*program, &budget, &total, patience], more].concat();
    let mut job = TestJob::new(SHAPE.0, SHAPE.1, &words);
    job = job.with(&["--report", &file, "--mca", "vprotocol_correlated_log_budget", &budget]);
    let outcome = job.with(options).run()?;
    outcome.must(outcome.code == 0, "the job failed")?;
    let ranks = report::read(Path::new(&file))?.ranks;
    outcome.must(ranks.len() == 4, "not every rank has reported")?;
    Ok((outcome, ranks))
}

fn counter(rank: &ReportedRank, name: &str) -> u64 {
    rank.counters.get(name).copied().unwrap_or(u64::MAX)
}

/// Six times the budget goes through; nothing is spilled, because the log requests checkpoints of
/// the receivers' set, and of no others.
fn checkpoints_for_a_log(more: &[&str]) -> Result<()> {
    let scratch = Scratch::new("full-log")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?.display().to_string();
    let recover = "vprotocol_correlated_recover";
    let place =
        ["--mca", "vprotocol_correlated_checkpoint_dir", &checkpoints, "--mca", recover, "0"];
    let reaction = ["--mca", "vprotocol_correlated_log_full", "checkpoint"];
    // Nor a checkpoint of all because of what the log costs.
    let options = [&place[..], &reaction, &KEEPS_RECEIVED, &workloads::UNLIMITED].concat();
    let (outcome, ranks) = full_log(&scratch, &options, (PATIENCE, more))?;
    let asked = counter(&ranks[0], "log_checkpoints_requested");
    let [own, theirs] = [0, 3].map(|rank: usize| counter(&ranks[rank], "checkpoints"));
    let [spilled, peak] =
        ["log_spilled_bytes_peak", "log_bytes_peak"].map(|name| counter(&ranks[0], name));
    let what = format!("asked {asked}, checkpoints {own} {theirs}, spilled {spilled}, peak {peak}");
    outcome.must(spilled == 0 && peak <= BUDGET, &format!("it spilled: {what}"))?;
    // Each lets at most the budget be dropped.
    let least = TOTAL / BUDGET - 1;
    outcome.must(asked >= least && theirs >= least && own == 0, &what)
}

/// By default, the set that holds most of the log acknowledges until its next checkpoint: nothing
/// is spilled, no checkpoint is taken for it, and the program goes on without a wait.
fn suspended_for_a_log() -> Result<()> {
    let scratch = Scratch::new("full-log")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let place = checkpoints.display().to_string();
    let place = ["--mca", "vprotocol_correlated_checkpoint_dir", &place];
    let options = [&place[..], &workloads::UNLIMITED].concat();
    let (outcome, ranks) = full_log(&scratch, &options, (PATIENCE, &[]))?;
    let [spilled, peak] =
        ["log_spilled_bytes_peak", "log_bytes_peak"].map(|name| counter(&ranks[0], name));
    let taken = counter(&ranks[3], "checkpoints");
    let what = format!("checkpoints {taken}, spilled {spilled}, peak {peak}");
    outcome.must(spilled == 0 && peak <= BUDGET && taken == 1, &what)?;
    let events = workloads::events(&checkpoints)?;
    outcome.must(events.contains("\"event\":\"logging_suspended\""), "nothing was suspended")
}

/// The same program, and the same answer.
fn no_directory_for_checkpoints() -> Result<()> {
    let scratch = Scratch::new("full-log")?;
    let guard = ["--mca", "vprotocol_correlated_protect_without_dir", "1"];
    let mut answers = Vec::new();
    for options in [&guard[..], &[]] {
        let options = [options, &KEEPS_RECEIVED].concat();
        let (outcome, ranks) = full_log(&scratch, &options, ("0", &[]))?;
        let spilled = counter(&ranks[0], "log_spilled_bytes_peak");
        let checkpoints: u64 = ranks.iter().map(|rank| counter(rank, "checkpoints")).sum();
        outcome
            .must(spilled > TOTAL / 2 && checkpoints == 0, &format!("{spilled} {checkpoints}"))?;
        answers.push(workloads::hash(&outcome)?);
    }
    if answers[0] == answers[1] { Ok(()) } else { fail!("answers: {answers:?}") }
}

/// A job that gets this signal in the middle.
fn signalled(
    known: &Undisturbed,
    scratch: &Scratch,
    checkpoints: &Path,
    number: libc::c_int,
) -> Result<Outcome> {
    let at = (0.4 * known.seconds).min(SIGNAL_AT).to_string();
    let job = RING.job(SHAPE, known.iterations, scratch)?;
    let options = [
        "--mca",
        "vprotocol_correlated_checkpoint_signal",
        "USR2,USR1:exit",
        "--signal",
        &number.to_string(),
        &at,
    ];
    workloads::with_checkpoints(job, checkpoints).with(&options).run()
}

/// The program has no handler: the signal would end it. It goes on, and there is a checkpoint.
fn a_checkpoint_by_signal(known: &Undisturbed) -> Result<()> {
    let scratch = Scratch::new("signal")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let outcome = signalled(known, &scratch, &checkpoints, libc::SIGUSR2)?;
    RING.must_answer(&outcome, &scratch, &known.answer)?;
    outcome.must(outcome.stderr.contains("checkpoint 1 is complete"), "mpirun should report it")?;
    let again = workloads::restart((1, 4), &checkpoints, &scratch).run()?;
    RING.must_answer(&again, &scratch, &known.answer)
}

fn the_end(known: &Undisturbed) -> Result<()> {
    let scratch = Scratch::new("signal")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let outcome = signalled(known, &scratch, &checkpoints, libc::SIGUSR1)?;
    let ended = outcome.code == 0 && !outcome.stdout.contains("HASH");
    outcome.must(ended, "it should have ended at the checkpoint, with 0")?;
    outcome.must(outcome.stderr.contains("checkpoint 1 is complete"), "mpirun should report it")?;
    let again = workloads::restart(SHAPE, &checkpoints, &scratch).run()?;
    RING.must_answer(&again, &scratch, &known.answer)
}

/// Reported before anything is started.
fn nonsense() -> Result<()> {
    let scratch = Scratch::new("signal")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    for name in ["KILL", "USR1:later", "TERM", "RTMIN+99", "USR2,what"] {
        let job =
            workloads::with_checkpoints(TestJob::new(1, 2, &["echo", "started"]), &checkpoints);
        let outcome = job.with(&["--mca", "vprotocol_correlated_checkpoint_signal", name]).run()?;
        outcome.must(outcome.code != 0 && !outcome.stdout.contains("started"), name)?;
        outcome.must(
            outcome.said().contains("vprotocol_correlated_checkpoint_signal is"),
            "no reason",
        )?;
    }
    Ok(())
}

/// As ever: mpirun passes them on. A rank that has no handler yet is ended by it, which shows the
/// same.
fn not_chosen() -> Result<()> {
    let scratch = Scratch::new("signal")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let script = "trap 'echo GOT; exit 0' USR1; for i in $(seq 200); do sleep 0.1; done";
    let job = workloads::with_checkpoints(TestJob::new(1, 2, &["sh", "-c", script]), &checkpoints);
    let options =
        ["--mca", "vprotocol_correlated_checkpoint_signal", "USR2", "--signal", "10", "3"];
    let outcome = job.with(&options).run()?;
    let both = outcome.stdout.matches("GOT").count() == 2;
    outcome.must(both || outcome.code == 128 + libc::SIGUSR1, "they should have got it")
}

/// Iterations of the program that prints, and their length.
const PRINTED: u64 = 600;
const PAUSE_US: &str = "5000";

/// What an incarnation has printed: numbers by stream and rank.
type Printed = BTreeMap<(String, u32), Vec<u64>>;

fn printed(outcome: &Outcome) -> Result<Printed> {
    let mut all = Printed::new();
    for (name, text) in [("out", &outcome.stdout), ("err", &outcome.stderr)] {
        for line in text.lines().filter(|line| line.starts_with(&format!("{name} "))) {
            let words: Vec<u64> =
                line.split(' ').skip(1).filter_map(|word| word.parse().ok()).collect();
            let [rank, number, sum] = words[..] else { fail!("a line in pieces: `{line}`") };
            if sum != u64::from(SHAPE.0 * SHAPE.1) * number {
                fail!("a wrong sum: `{line}`");
            }
            all.entry((name.to_string(), rank as u32)).or_default().push(number);
        }
    }
    Ok(all)
}

/// How the first incarnation ends.
#[derive(Clone, Copy, PartialEq)]
enum Ending {
    /// mpirun prints what has reached it, and ends.
    ReportedRank,
    /// mpirun has no time to print what is on its way to it.
    Everything,
}

/// Both incarnations together: each line once and in order. What mpirun had not printed yet when it
/// was killed is lost; nothing else is.
fn output(part: f64, ending: Ending) -> Result<(usize, String)> {
    let scratch = Scratch::new("output")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let program = mpi::compile(&source("print_lines.c"))?.display().to_string();
    // The second half is printed when the checkpoint is there, however long that takes.
    let file = scratch.0.join("half").display().to_string();
    let job =
        TestJob::new(SHAPE.0, SHAPE.1, &[&program, &PRINTED.to_string(), PAUSE_US, "1", &file]);
    let job = job.with(&["--write-after", &file, "go on"]);
    let seconds = PRINTED as f64 * 5e-3 + 1.0;
    let after: &[&str] = match ending {
        Ending::ReportedRank => &["--kill-after", "rank:2", "0.21"],
        Ending::Everything => &["--kill-all-after", "0.21"],
    };
    let job = job.with(&["--checkpoint-at", &(part * seconds).to_string()]).with(after);
    let first = workloads::with_checkpoints(job, &checkpoints).run()?;
    first.must(first.code == KILLED, "it should have been killed in the middle")?;
    let nothing: [&str; 0] = [];
    let folder = checkpoints.display().to_string();
    let again = TestJob::new(SHAPE.0, SHAPE.1, &nothing).with(&["--restart", &folder]);
    let second = again.run()?;
    second.must(second.code == 0, "the restarted job failed")?;
    let (before, after) = (printed(&first)?, printed(&second)?);
    let mut lost = 0;
    for stream in ["out", "err"] {
        for rank in 0..SHAPE.0 * SHAPE.1 {
            let key = (stream.to_string(), rank);
            let none = Vec::new();
            let (one, two) = (before.get(&key).unwrap_or(&none), after.get(&key).unwrap_or(&none));
            let seam = two.first().copied().unwrap_or(PRINTED);
            let whole = one.iter().copied().eq(0..one.len() as u64)
                && two.iter().copied().eq(seam..PRINTED)
                && one.len() as u64 <= seam;
            let ends = (one.len(), seam);
            first.must(whole, &format!("{stream} of rank {rank}: {ends:?}\n{one:?}\n{two:?}"))?;
            lost += seam - one.len() as u64;
        }
    }
    // What was under way, not what was printed long before.
    let most = if ending == Ending::ReportedRank { 0 } else { 8 * 100 };
    first.must(lost <= most, &format!("{lost} lines are lost"))?;
    Ok((1, format!("; lines on their way to mpirun that are lost: {lost}")))
}
