//! What goes wrong while a line is taken: a rank, an agent, mpirun die, the disk is full, an image
//! is damaged. The last complete line stays usable, and nothing looks whole that is not.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::job::{Job, Outcome};
use super::lives::{self, RING, Shape};
use super::scratch::Scratch;
use super::summary::Summary;
use crate::error::{Context, Result, failure};

/// Where all of this runs.
const SHAPE: Shape = (2, 2);
/// How far the job goes, and how far before the lines are over: it cannot end earlier, however slow
/// the machine is.
const ITERATIONS: u64 = 2000;
const GATE: u64 = ITERATIONS / 2;
/// When the first line is asked for, and the second, in seconds; it waits for the first.
const LINES_AT: [&str; 2] = ["0.3", "0.6"];
/// When a line is asked for that a new agent takes part in.
const NEW_AGENT_AT: &str = "4";
/// When somebody dies, in seconds after the second line was asked for: while ranks fall silent,
/// while images are written, when they are about to be complete.
const DELAYS: [&str; 3] = ["2+0.02", "2+0.12", "2+0.3"];

/// Runs the tier.
pub fn run(summary: &mut Summary) {
    summary.tier("lines: faults while one is taken");
    let mut answer = String::new();
    let ready = summary.check("line faults: an undisturbed run", || {
        let scratch = Scratch::new("faults")?;
        lives::open_gate(&scratch, ITERATIONS)?;
        answer = lives::hash(&RING.job(SHAPE, ITERATIONS, &scratch)?.run()?)?;
        Ok(())
    });
    if !ready {
        return;
    }
    for delay in DELAYS {
        let after = format!("{} s after the order", &delay[2..]);
        summary
            .check(&format!("line faults: rank killed {after}"), || dies(&answer, "rank:1", delay));
        summary.check(&format!("line faults: mpirun killed {after}"), || {
            dies(&answer, "mpirun", delay)
        });
        summary.check(&format!("line faults: agent killed {after}"), || goes_on(&answer, delay));
    }
    summary.check("line faults: the disk is full", || full_disk(&answer));
    summary.check("line faults: damaged images are refused", || damaged(&answer));
    summary.check("line faults: a folder that cannot be written", unwritable);
}

/// A test's folders and its job.
struct Case {
    scratch: Scratch,
    lines: PathBuf,
    job: Job,
}

impl Case {
    fn new() -> Result<Case> {
        let scratch = Scratch::new("faults")?;
        let lines = lives::lines_folder(&scratch)?;
        lives::open_gate(&scratch, GATE)?;
        let mut job = RING.job(SHAPE, ITERATIONS, &scratch)?;
        job.seconds = 120;
        Ok(Case { job: lives::with_lines(job, &lines), scratch, lines })
    }

    /// Asks for lines at these times.
    fn lines_at(&self, times: &[&str]) -> Job {
        let mut job = self.job.clone();
        for time in times {
            job = job.with(&["--checkpoint-at", time]);
        }
        job
    }

    /// The job ends when these lines are over.
    fn ends_after(&self, job: Job) -> Job {
        let gate = lives::gate(&self.scratch).display().to_string();
        job.with(&["--write-after", &gate, &ITERATIONS.to_string()])
    }

    /// Every line that looks whole is whole, and the job goes on from the last one.
    fn restarts(&self, answer: &str) -> Result<()> {
        lives::verify(&self.lines)?;
        lives::open_gate(&self.scratch, ITERATIONS)?;
        let outcome = lives::restart(SHAPE, &self.lines, &self.scratch).run()?;
        RING.must_answer(&outcome, &self.scratch, answer)
    }
}

fn complete(outcome: &Outcome) -> usize {
    outcome.stdout.matches("is complete").count()
}

/// The job ends with it, as stock jobs do.
fn dies(answer: &str, who: &str, delay: &str) -> Result<()> {
    let case = Case::new()?;
    let outcome = case.lines_at(&LINES_AT).with(&["--kill", who, delay]).run()?;
    outcome.must(!outcome.stderr.contains("there is no"), "nobody was killed")?;
    outcome.must(outcome.code == 137, "the exit code should be 137")?;
    outcome.must(complete(&outcome) >= 1, "the first line should be complete")?;
    case.restarts(answer)
}

/// The agent is replaced, the job goes on, and later lines are taken.
fn goes_on(answer: &str, delay: &str) -> Result<()> {
    let case = Case::new()?;
    let job = case.lines_at(&[LINES_AT[0], LINES_AT[1], NEW_AGENT_AT]);
    let outcome = case.ends_after(job.with(&["--kill", "agent", delay])).run()?;
    outcome.must(!outcome.stderr.contains("there is no"), "nobody was killed")?;
    RING.must_answer(&outcome, &case.scratch, answer)?;
    outcome.must(complete(&outcome) >= 2, "a line with the new agent should be complete")?;
    lives::none_unfinished_but(&[], &case.lines)?;
    case.restarts(answer)
}

/// The second line does not fit: it fails with a message; the job and the first line do not.
fn full_disk(answer: &str) -> Result<()> {
    let case = Case::new()?;
    case.lines_at(&LINES_AT[..1]).with(&["--kill-all-after", "0.1"]).run()?;
    let bytes = lives::images(&case.lines)?.iter().map(|image| size(image)).sum::<Result<u64>>()?;
    // Its folders have the same names.
    drop(case);
    let case = Case::new()?;
    let disk = ["--disk", &case.lines.display().to_string(), &format!("{}k", bytes * 3 / 2048)];
    let outcome = case.ends_after(case.lines_at(&LINES_AT)).with(&disk).run()?;
    RING.must_answer(&outcome, &case.scratch, answer)?;
    outcome.must(complete(&outcome) == 1, "one line should be complete")?;
    let said = outcome.stderr.contains("No space left on device");
    outcome.must(said, "it should say that the disk is full")?;
    lives::none_unfinished_but(&[], &case.lines)?;
    case.restarts(answer)
}

fn size(file: &Path) -> Result<u64> {
    fs::metadata(file).map(|found| found.len()).context(|| file.display().to_string())
}

/// Refused with the reason, before any process is started.
fn damaged(answer: &str) -> Result<()> {
    let case = Case::new()?;
    case.lines_at(&LINES_AT[..1]).with(&["--kill-all-after", "0.1"]).run()?;
    let images = lives::images(&case.lines)?;
    let image = images.last().ok_or_else(|| failure!("there are no images"))?;
    let shown = || image.display().to_string();
    let name = image.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let good = fs::read(image).context(shown)?;
    let refused = |what: &str| {
        let outcome = lives::restart(SHAPE, &case.lines, &case.scratch).run()?;
        outcome.must(outcome.code != 0, &format!("{what}: it should be refused"))?;
        let said = outcome.said();
        outcome.must(said.contains(&name), &format!("{what}: it should name the image"))?;
        let started = said.contains("mpirun") || said.contains("HASH");
        outcome.must(!started, &format!("{what}: nothing should be started"))
    };
    let file = OpenOptions::new().write(true).open(image).context(shown)?;
    for at in [9, good.len() / 2, good.len() - 5] {
        let byte = [good[at] ^ 0x40];
        file.write_all_at(&byte, at as u64).context(shown)?;
        refused(&format!("byte {at} changed"))?;
        file.write_all_at(&good[at..=at], at as u64).context(shown)?;
    }
    file.set_len(good.len() as u64 - 1).context(shown)?;
    refused("truncated")?;
    fs::remove_file(image).context(shown)?;
    refused("not there")?;
    fs::write(image, &good).context(shown)?;
    case.restarts(answer)
}

/// Said at once, not when the first line is due.
fn unwritable() -> Result<()> {
    let scratch = Scratch::new("unwritable")?;
    let file = scratch.0.join("a-file");
    fs::write(&file, "").context(|| file.display().to_string())?;
    for folder in [file.join("lines"), PathBuf::from("/proc/lines")] {
        let job = lives::with_lines(Job::new(2, 1, &["sleep", "2"]), &folder);
        let outcome = job.run()?;
        let name = folder.display().to_string();
        outcome.must(outcome.said().contains(&name), "the message should name the folder")?;
    }
    Ok(())
}
