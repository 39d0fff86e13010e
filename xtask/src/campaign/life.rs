//! One run of the campaign: lives that end by kill -9, and a last one that must end well.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::draw::{Life, PROGRAMS, Plan};
use crate::cluster::KILLED;
use crate::error::{Failure, Result, fail};
use crate::test::job::{Job, Outcome};
use crate::test::scratch::Scratch;
use crate::test::workloads::{self, Program, Undisturbed};

/// How long a life may last.
const SECONDS: u32 = 400;
/// How much longer a program runs than its lives need, and what a life needs besides: a machine
/// that is busy now may be idle then.
const SPARE: f64 = 2.0;
const SECONDS_TO_START: f64 = 1.0;
/// Lines of the coordinator's notes that are shown when a run fails.
const EVENTS_SHOWN: usize = 30;

/// Answers of undisturbed runs, by program, number of ranks and length.
#[derive(Default)]
pub struct Known {
    short: BTreeMap<(usize, u32), Undisturbed>,
    long: BTreeMap<(usize, u32, u64), Undisturbed>,
}

impl Known {
    fn get(&mut self, plan: &Plan) -> Result<Undisturbed> {
        let shape = plan.lives[0].shape;
        let key = (plan.program, shape.0 * shape.1);
        let program = &PROGRAMS[plan.program].0;
        let short = match self.short.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let scratch = Scratch::new("undisturbed")?;
                place.insert(program.undisturbed(shape, &scratch)?)
            }
        };
        let lives = plan.lives.iter().map(|life| life.seconds() + SECONDS_TO_START);
        // Of an undisturbed run, too, a good part is its start.
        let work = (short.seconds - 2.0 * SECONDS_TO_START).max(1.0);
        let factor = (SPARE * lives.sum::<f64>() / work).ceil().max(1.0) as u64;
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
pub struct Run {
    /// Complete lines.
    pub lines: usize,
    /// Times that everything was killed.
    pub deaths: usize,
    /// Times that the job was started again.
    pub restarts: usize,
    /// What is worth a word although nothing is wrong.
    pub note: String,
}

impl Run {
    /// Does what is planned; the answer must be that of an undisturbed run.
    pub fn go(&mut self, plan: &Plan, known: &mut Known) -> Result<()> {
        let known = known.get(plan)?;
        let scratch = Scratch::new("campaign")?;
        let lines = workloads::checkpoint_folder(&scratch)?;
        let done = self.lives(plan, &known, &scratch, &lines);
        done.map_err(|Failure(reason)| Failure(format!("{reason}\n{}", events(&lines))))
    }

    fn lives(
        &mut self,
        plan: &Plan,
        known: &Undisturbed,
        scratch: &Scratch,
        lines: &Path,
    ) -> Result<()> {
        let program = &PROGRAMS[plan.program].0;
        for (number, life) in plan.lives.iter().enumerate() {
            let job = match number {
                0 => program.job(life.shape, known.iterations, scratch)?,
                _ => self.again(life.shape, lines, scratch),
            };
            // HPCC and ScaLAPACK are as long as they are.
            let longest = life.lines.last().copied().unwrap_or_default();
            let left = 0.8 * known.seconds / (number + 1) as f64;
            let scale = if known.iterations == 0 { (left / longest).min(1.0) } else { 1.0 };
            let outcome = killed(job, life, scale, lines)?;
            let complete = complete(&outcome);
            self.lines += complete.iter().collect::<BTreeSet<_>>().len();
            if outcome.code != KILLED {
                return self.survived(&outcome, program, known, scratch);
            }
            self.deaths += 1;
            outcome.must(complete.len() == life.lines.len(), "not every line is complete")?;
        }
        workloads::verify(lines)?;
        let unfinished = workloads::unfinished(lines)?;
        let outcome = self.again(plan.last, lines, scratch).run()?;
        program.must_answer(&outcome, scratch, &known.answer)?;
        workloads::none_unfinished_but(&unfinished, lines)
    }

    fn again(&mut self, shape: workloads::Shape, lines: &Path, scratch: &Scratch) -> Job {
        self.restarts += 1;
        let mut job = workloads::restart(shape, lines, scratch);
        job.seconds = SECONDS;
        job
    }

    /// The job was faster than its death; its answer counts nevertheless, and so do its lines.
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
            // A line that comes too late is refused, which is right.
            Some(line) if line.contains("ended") || line.contains("has died") => {
                self.note += &format!(" ({line})")
            }
            Some(line) => fail!("{}\na line failed: {line}", outcome.line),
            None => (),
        }
        Ok(())
    }
}

/// Numbers of the lines that were asked for and are complete; one may serve several who ask.
fn complete(outcome: &Outcome) -> Vec<u64> {
    let number = |line: &str| line.split_whitespace().find_map(|word| word.parse().ok());
    let lines = outcome.stdout.lines().filter(|line| line.contains("is complete"));
    lines.filter_map(number).collect()
}

/// What the first line that was not taken was refused for.
fn refused(outcome: &Outcome) -> Option<&str> {
    let mut said = outcome.stderr.lines().filter_map(|line| line.strip_prefix("rustbtl: "));
    said.find(|line| !line.starts_with("restarting "))
}

/// One life with its lines and its end.
fn killed(job: Job, life: &Life, scale: f64, lines: &Path) -> Result<Outcome> {
    let mut job = workloads::with_checkpoints(job, lines);
    job.seconds = SECONDS;
    for at in &life.lines {
        job = job.with(&["--checkpoint-at", &format!("{:.3}", at * scale)]);
    }
    job.with(&["--kill-all-after", &format!("{:.3}", life.killed_after)]).run()
}

/// What the coordinators have noted.
pub fn events(lines: &Path) -> String {
    let Ok(jobs) = fs::read_dir(lines) else { return String::new() };
    let mut text = String::new();
    for job in jobs.flatten() {
        let notes = fs::read_to_string(job.path().join("events.jsonl")).unwrap_or_default();
        let notes: Vec<&str> = notes.lines().collect();
        let shown = &notes[notes.len().saturating_sub(EVENTS_SHOWN)..];
        text += &format!("  {}:\n    {}\n", job.path().display(), shown.join("\n    "));
    }
    text
}
