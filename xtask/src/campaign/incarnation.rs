//! One run of the campaign: incarnations that end by kill -9, and a last one that must end well.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::draw::{Incarnation, PROGRAMS, Plan};
use crate::cluster::KILLED;
use crate::error::{Failure, Result, fail};
use crate::test::job::{Outcome, TestJob};
use crate::test::scratch::Scratch;
use crate::test::workloads::{self, Program, Undisturbed};

/// How long an incarnation may last.
const SECONDS: u32 = 400;
/// How much longer a program runs than its incarnations need, and what an incarnation needs
/// besides: a machine that is busy now may be idle then.
const SPARE: f64 = 2.0;
const SECONDS_TO_START: f64 = 1.0;
/// Lines of the coordinator's log that are shown when a run fails.
const EVENTS_SHOWN: usize = 30;

/// Answers of undisturbed runs, by program, number of ranks and length.
#[derive(Default)]
pub struct KnownRuns {
    short: BTreeMap<(usize, u32), Undisturbed>,
    long: BTreeMap<(usize, u32, u64), Undisturbed>,
}

impl KnownRuns {
    fn get(&mut self, plan: &Plan) -> Result<Undisturbed> {
        let shape = plan.incarnations[0].shape;
        let key = (plan.program, shape.0 * shape.1);
        let program = &PROGRAMS[plan.program].0;
        let short = match self.short.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let scratch = Scratch::new("undisturbed")?;
                place.insert(program.undisturbed(shape, &scratch)?)
            }
        };
        let incarnations =
            plan.incarnations.iter().map(|incarnation| incarnation.seconds() + SECONDS_TO_START);
        // Of an undisturbed run, too, a good part is its start.
        let work = (short.seconds - 2.0 * SECONDS_TO_START).max(1.0);
        let factor = (SPARE * incarnations.sum::<f64>() / work).ceil().max(1.0) as u64;
        if short.iterations == 0 || factor == 1 {
            return Ok(short.clone());
        }
        let key = (key.0, key.1, factor);
        if let Some(known) = self.long.get(&key) {
            return Ok(known.clone());
        }
        let scratch = Scratch::new("undisturbed")?;
        let iterations = factor * short.iterations;
        let outcome = program.job(shape, iterations, &scratch)?.run()?;
        outcome.must(outcome.code == 0, "the undisturbed run failed")?;
        let answer = program.answer(&outcome, &scratch)?;
        let seconds = factor as f64 * short.seconds;
        let known = Undisturbed { iterations, answer, seconds };
        self.long.insert(key, known.clone());
        Ok(known)
    }
}

/// What has happened in a run.
#[derive(Default)]
pub struct IncarnationRun {
    /// Complete checkpoints.
    pub checkpoints: usize,
    /// Times that everything was killed.
    pub kills: usize,
    /// Times that the job was restarted.
    pub restarts: usize,
    /// What is worth a word although nothing is wrong.
    pub note: String,
}

impl IncarnationRun {
    /// Does what is planned; the answer must be that of an undisturbed run.
    pub fn go(&mut self, plan: &Plan, known: &mut KnownRuns) -> Result<()> {
        let known = known.get(plan)?;
        let scratch = Scratch::new("campaign")?;
        let checkpoints = workloads::checkpoint_folder(&scratch)?;
        let done = self.incarnations(plan, &known, &scratch, &checkpoints);
        done.map_err(|Failure(reason)| Failure(format!("{reason}\n{}", events(&checkpoints))))
    }

    fn incarnations(
        &mut self,
        plan: &Plan,
        known: &Undisturbed,
        scratch: &Scratch,
        checkpoints: &Path,
    ) -> Result<()> {
        let program = &PROGRAMS[plan.program].0;
        for (number, incarnation) in plan.incarnations.iter().enumerate() {
            let job = match number {
                0 => program.job(incarnation.shape, known.iterations, scratch)?,
                _ => self.restart(incarnation.shape, checkpoints, scratch),
            };
            // HPCC and ScaLAPACK are as long as they are.
            let longest = incarnation.checkpoints.last().copied().unwrap_or_default();
            let left = 0.8 * known.seconds / (number + 1) as f64;
            let scale = if known.iterations == 0 { (left / longest).min(1.0) } else { 1.0 };
            let outcome = killed(job, incarnation, scale, checkpoints)?;
            let complete = complete(&outcome);
            self.checkpoints += complete.iter().collect::<BTreeSet<_>>().len();
            if outcome.code != KILLED {
                return self.survived(&outcome, program, known, scratch);
            }
            self.kills += 1;
            outcome.must(
                complete.len() == incarnation.checkpoints.len(),
                "not every checkpoint is complete",
            )?;
        }
        workloads::verify(checkpoints)?;
        let unfinished = workloads::unfinished(checkpoints)?;
        let outcome = self.restart(plan.last, checkpoints, scratch).run()?;
        program.must_answer(&outcome, scratch, &known.answer)?;
        workloads::none_unfinished_but(&unfinished, checkpoints)
    }

    fn restart(
        &mut self,
        shape: workloads::Shape,
        checkpoints: &Path,
        scratch: &Scratch,
    ) -> TestJob {
        self.restarts += 1;
        let mut job = workloads::restart(shape, checkpoints, scratch);
        job.seconds = SECONDS;
        job
    }

    /// The job ended before it was killed; its answer counts nevertheless, and so do its
    /// checkpoints.
    fn survived(
        &mut self,
        outcome: &Outcome,
        program: &Program,
        known: &Undisturbed,
        scratch: &Scratch,
    ) -> Result<()> {
        self.note += ", ended before it was killed";
        program.must_answer(outcome, scratch, &known.answer)?;
        match refused(outcome) {
            // A checkpoint that comes too late is refused, which is right.
            Some(line) if line.contains("ended") || line.contains("has died") => {
                self.note += &format!(" ({line})")
            }
            Some(line) => fail!("{}\na checkpoint failed: {line}", outcome.line),
            None => (),
        }
        Ok(())
    }
}

/// Numbers of the checkpoints that were requested and are complete; one may serve several requests.
fn complete(outcome: &Outcome) -> Vec<u64> {
    let number = |line: &str| line.split_whitespace().find_map(|word| word.parse().ok());
    let checkpoints = outcome.stdout.lines().filter(|line| line.contains("is complete"));
    checkpoints.filter_map(number).collect()
}

/// Why the first checkpoint that was not taken was refused.
fn refused(outcome: &Outcome) -> Option<&str> {
    let mut said = outcome.stderr.lines().filter_map(|line| line.strip_prefix("rustbtl: "));
    said.find(|line| !line.starts_with("restarting "))
}

/// One incarnation with its checkpoints and its end.
fn killed(
    job: TestJob,
    incarnation: &Incarnation,
    scale: f64,
    checkpoints: &Path,
) -> Result<Outcome> {
    let mut job = workloads::with_checkpoints(job, checkpoints);
    job.seconds = SECONDS;
    for at in &incarnation.checkpoints {
        job = job.with(&["--checkpoint-at", &format!("{:.3}", at * scale)]);
    }
    job.with(&["--kill-all-after", &format!("{:.3}", incarnation.killed_after)]).run()
}

/// What the coordinators have logged.
pub fn events(checkpoints: &Path) -> String {
    let Ok(jobs) = fs::read_dir(checkpoints) else { return String::new() };
    let mut text = String::new();
    for job in jobs.flatten() {
        let notes = fs::read_to_string(job.path().join("events.jsonl")).unwrap_or_default();
        text += &format!("  {}:\n{}", job.path().display(), last_events(&notes));
    }
    text
}

/// The last lines of what a coordinator has logged.
pub fn last_events(events: &str) -> String {
    let lines: Vec<&str> = events.lines().collect();
    let shown = &lines[lines.len().saturating_sub(EVENTS_SHOWN)..];
    format!("    {}\n", shown.join("\n    "))
}
