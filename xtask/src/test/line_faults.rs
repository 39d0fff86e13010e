//! What goes wrong while a line is taken: a rank, an agent, mpirun die, the disk is full, an image
//! is damaged. The last complete line stays usable, and nothing looks whole that is not.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::job::{Job, Outcome};
use super::lives::{self, RING, Shape, Undisturbed};
use super::scratch::Scratch;
use super::summary::Summary;
use crate::error::{Context, Result, failure};

/// Where all of this runs.
const SHAPE: Shape = (2, 2);
/// When the first line is asked for, and the second, as a part of an undisturbed run.
const LINES_AT: [f64; 2] = [0.35, 0.6];
/// Moments are parts of at most so much: a run on a busy machine says little about the next.
const SECONDS_COUNTED: f64 = 8.0;
/// When somebody dies, in seconds after the second line was asked for: while ranks fall silent,
/// while images are written, when they are about to be complete.
const DELAYS: [f64; 3] = [0.02, 0.12, 0.3];

/// Runs the tier.
pub fn run(summary: &mut Summary) {
    summary.tier("lines: faults while one is taken");
    let mut known = Err(failure!("not run"));
    let ready = summary.check("line faults: an undisturbed run", || {
        let scratch = Scratch::new("faults")?;
        known = RING.undisturbed(SHAPE, &scratch).map(|mut known| {
            // Time for two lines and what happens then.
            known.iterations *= 2;
            known.seconds = (2.0 * known.seconds).min(SECONDS_COUNTED);
            known
        });
        let known = known.as_mut().map_err(|f| failure!("{f}"))?;
        let whole = RING.job(SHAPE, known.iterations, &scratch)?.run()?;
        known.answer = lives::hash(&whole)?;
        Ok(())
    });
    let (true, Ok(known)) = (ready, known) else { return };
    for delay in DELAYS {
        let after = format!("{:.0} ms after the order", delay * 1e3);
        summary
            .check(&format!("line faults: rank killed {after}"), || dies(&known, "rank:1", delay));
        summary.check(&format!("line faults: mpirun killed {after}"), || {
            dies(&known, "mpirun", delay)
        });
        summary.check(&format!("line faults: agent killed {after}"), || goes_on(&known, delay));
    }
    summary.check("line faults: the disk is full", || full_disk(&known));
    summary.check("line faults: damaged images are refused", || damaged(&known));
    summary.check("line faults: a folder that cannot be written", unwritable);
}

/// A test's folders and its job.
struct Case {
    scratch: Scratch,
    lines: PathBuf,
    job: Job,
}

impl Case {
    fn new(known: &Undisturbed) -> Result<Case> {
        let scratch = Scratch::new("faults")?;
        let lines = lives::lines_folder(&scratch)?;
        let mut job = RING.job(SHAPE, known.iterations, &scratch)?;
        job.seconds = 120;
        Ok(Case { job: lives::with_lines(job, &lines), scratch, lines })
    }

    /// Asks for lines at these parts of the run.
    fn lines_at(&self, known: &Undisturbed, parts: &[f64]) -> Job {
        let mut job = self.job.clone();
        for part in parts {
            job = job.with(&["--checkpoint-at", &format!("{:.3}", part * known.seconds)]);
        }
        job
    }

    /// Every line that looks whole is whole, and the job goes on from the last one.
    fn restarts(&self, known: &Undisturbed) -> Result<()> {
        lives::verify(&self.lines)?;
        let outcome = lives::restart(SHAPE, &self.lines, &self.scratch).run()?;
        RING.must_answer(&outcome, &self.scratch, &known.answer)
    }
}

fn kill(job: Job, known: &Undisturbed, who: &str, delay: f64) -> Job {
    job.with(&["--kill", who, &format!("{:.3}", LINES_AT[1] * known.seconds + delay)])
}

fn complete(outcome: &Outcome) -> usize {
    outcome.stdout.matches("is complete").count()
}

/// The job ends with it, as stock jobs do.
fn dies(known: &Undisturbed, who: &str, delay: f64) -> Result<()> {
    let case = Case::new(known)?;
    let job = kill(case.lines_at(known, &LINES_AT), known, who, delay);
    let outcome = job.run()?;
    outcome.must(!outcome.stderr.contains("there is no"), "nobody was killed")?;
    outcome.must(outcome.code == 137, "the exit code should be 137")?;
    outcome.must(complete(&outcome) >= 1, "the first line should be complete")?;
    case.restarts(known)
}

/// The agent is replaced, the job goes on, and later lines are taken.
fn goes_on(known: &Undisturbed, delay: f64) -> Result<()> {
    let case = Case::new(known)?;
    let job = case.lines_at(known, &[LINES_AT[0], LINES_AT[1], 0.8]);
    let outcome = kill(job, known, "agent", delay).run()?;
    outcome.must(!outcome.stderr.contains("there is no"), "nobody was killed")?;
    RING.must_answer(&outcome, &case.scratch, &known.answer)?;
    outcome.must(complete(&outcome) >= 2, "a line with the new agent should be complete")?;
    lives::nothing_left(&case.lines)?;
    case.restarts(known)
}

/// The second line does not fit: it fails with a message; the job and the first line do not.
fn full_disk(known: &Undisturbed) -> Result<()> {
    let case = Case::new(known)?;
    let killed = ["--kill-all-after", "0.1"];
    case.lines_at(known, &LINES_AT[..1]).with(&killed).run()?;
    let bytes = lives::images(&case.lines)?.iter().map(|image| size(image)).sum::<Result<u64>>()?;
    let case = Case::new(known)?;
    let disk = ["--disk", &case.lines.display().to_string(), &format!("{}k", bytes * 3 / 2048)];
    let outcome = case.lines_at(known, &LINES_AT).with(&disk).run()?;
    RING.must_answer(&outcome, &case.scratch, &known.answer)?;
    outcome.must(complete(&outcome) == 1, "one line should be complete")?;
    let said = outcome.stderr.contains("No space left on device");
    outcome.must(said, "it should say that the disk is full")?;
    lives::nothing_left(&case.lines)?;
    case.restarts(known)
}

fn size(file: &Path) -> Result<u64> {
    fs::metadata(file).map(|found| found.len()).context(|| file.display().to_string())
}

/// Refused with the reason, before any process is started.
fn damaged(known: &Undisturbed) -> Result<()> {
    let case = Case::new(known)?;
    let killed = ["--kill-all-after", "0.1"];
    case.lines_at(known, &LINES_AT[..1]).with(&killed).run()?;
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
    case.restarts(known)
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
