//! One run of the campaign: lives that end by kill -9, and a last one that must end well.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::draw::{Life, PROGRAMS, Plan};
use crate::cluster::KILLED;
use crate::error::{Failure, Result, fail};
use crate::test::job::{Job, Outcome};
use crate::test::lives::{self, Program, Undisturbed};
use crate::test::scratch::Scratch;

/// How long a life may last.
const SECONDS: u32 = 150;
/// Moments are drawn from so much of a run: on a machine with other work the next one can be far
/// shorter than the undisturbed one.
const SECONDS_COUNTED: f64 = 7.0;
/// Lines of the coordinator's notes that are shown when a run fails.
const EVENTS_SHOWN: usize = 30;

/// Answers of undisturbed runs, by program and number of ranks.
#[derive(Default)]
pub struct Known(BTreeMap<(usize, u32), Undisturbed>);

impl Known {
    fn get(&mut self, plan: &Plan) -> Result<Undisturbed> {
        let shape = plan.lives[0].shape;
        let key = (plan.program, shape.0 * shape.1);
        if let Some(known) = self.0.get(&key) {
            return Ok(known.clone());
        }
        let scratch = Scratch::new("undisturbed")?;
        let known = PROGRAMS[plan.program].0.undisturbed(shape, &scratch)?;
        self.0.insert(key, known.clone());
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
        let lines = lives::lines_folder(&scratch)?;
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
            // What is left to do gets less from life to life.
            let seconds = known.seconds.min(SECONDS_COUNTED) / (number + 1) as f64;
            let outcome = killed(job, life, seconds, lines)?;
            let complete = outcome.stdout.matches("is complete").count();
            self.lines += complete;
            if outcome.code != KILLED {
                return self.survived(&outcome, program, known, scratch);
            }
            self.deaths += 1;
            outcome.must(complete == life.lines.len(), "not every line is complete")?;
        }
        lives::verify(lines)?;
        let outcome = self.again(plan.last, lines, scratch).run()?;
        program.must_answer(&outcome, scratch, &known.answer)?;
        lives::nothing_left(lines)
    }

    fn again(&mut self, shape: lives::Shape, lines: &Path, scratch: &Scratch) -> Job {
        self.restarts += 1;
        let mut job = lives::restart(shape, lines, scratch);
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

/// What the first line that was not taken was refused for.
fn refused(outcome: &Outcome) -> Option<&str> {
    let mut said = outcome.stderr.lines().filter_map(|line| line.strip_prefix("rustbtl: "));
    said.find(|line| !line.starts_with("restarting "))
}

/// One life with its lines and its end.
fn killed(job: Job, life: &Life, seconds: f64, lines: &Path) -> Result<Outcome> {
    let mut job = lives::with_lines(job, lines);
    job.seconds = SECONDS;
    for at in &life.lines {
        job = job.with(&["--checkpoint-at", &format!("{:.3}", at * seconds)]);
    }
    job.with(&["--kill-all-after", &format!("{:.3}", life.killed_after)]).run()
}

/// What the coordinators have noted.
fn events(lines: &Path) -> String {
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
