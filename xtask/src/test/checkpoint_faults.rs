//! What goes wrong while a checkpoint is taken: a rank, an agent, mpirun fail, the disk is full, an
//! image is damaged. The last complete checkpoint stays usable, and nothing looks complete that is
//! not.

use std::cell::OnceCell;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::job::{Outcome, TestJob};
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, RING, Shape};
use crate::error::{Context, Result, failure};
use crate::{paths, run};

/// Where all of this runs.
const SHAPE: Shape = (2, 2);
/// How far the job goes, and how far before the checkpoints are over: it cannot end earlier,
/// however slow the machine is.
const ITERATIONS: u64 = 2000;
const GATE: u64 = ITERATIONS / 2;
/// When checkpoints are requested: when there is a job, one after the other.
const ONE_CHECKPOINT: [&str; 1] = ["0"];
const TWO_CHECKPOINTS: [&str; 2] = ["0", "0"];
/// Points at which the second checkpoint waits for the failure. At each of them the rank that is
/// killed is another one: of the set that becomes quiescent; whose image is stored; whose image is
/// the last.
const POINTS: [(&str, &str); 3] =
    [("quiescence", "rank:2"), ("images", "rank:1"), ("manifest", "rank:3")];
/// When a process is killed by the clock, in seconds after the second checkpoint was requested:
/// while ranks become quiescent, while images are written, when they are about to be complete.
const DELAYS: [&str; 3] = ["2+0.02", "2+0.12", "2+0.3"];

/// What an undisturbed run has shown.
struct Known {
    answer: String,
    /// Of the images of its checkpoint.
    bytes: u64,
}

/// Runs the tier; with moments by the clock, too, if that is wanted.
pub fn run(tier: &mut Tier, by_the_clock: bool) {
    let known = OnceCell::new();
    // Of one case that was asked for, too.
    let known = || -> Result<&Known> {
        match known.get() {
            Some(known) => Ok(known),
            None => undisturbed().map(|found| known.get_or_init(|| found)),
        }
    };
    if !tier.check("checkpoint faults: an undisturbed run", || known().map(drop)) {
        return;
    }
    let answer = || known().map(|known| known.answer.as_str());
    for (point, rank) in POINTS {
        tier.check(&format!("checkpoint faults: a rank is killed at its {point}"), || {
            ends(answer()?, &["--kill-in-checkpoint", rank, point])
        });
        tier.check(&format!("checkpoint faults: mpirun is killed at its {point}"), || {
            ends(answer()?, &["--kill-in-checkpoint", "mpirun", point])
        });
        tier.check(&format!("checkpoint faults: an agent is killed at its {point}"), || {
            goes_on(answer()?, &["--kill-in-checkpoint", "agent", point])
        });
    }
    tier.check("checkpoint faults: the coordinator is killed at its manifest", || alone(answer()?));
    tier.check("checkpoint faults: the disk is full", || full_disk(answer()?, known()?.bytes));
    tier.check("checkpoint faults: damaged images are refused", || damaged(answer()?));
    tier.check("checkpoint faults: images of another machine are refused", || foreign(answer()?));
    tier.check("checkpoint faults: a folder that cannot be written", unwritable);
    for delay in DELAYS.iter().filter(|_| by_the_clock) {
        let after = format!("{} s after the order", &delay[2..]);
        for who in ["rank:1", "mpirun"] {
            tier.check(&format!("checkpoint faults: {who} killed {after}"), || {
                ends(answer()?, &["--kill", who, delay])
            });
        }
        tier.check(&format!("checkpoint faults: agent killed {after}"), || {
            goes_on(answer()?, &["--kill", "agent", delay])
        });
    }
}

/// Its answer, and how much its images take.
fn undisturbed() -> Result<Known> {
    let case = Case::new()?;
    let outcome = case.ends_after(case.checkpoints_at(&ONE_CHECKPOINT)).run()?;
    outcome.must(complete(&outcome) == 1, "a checkpoint should be complete")?;
    let bytes = workloads::images(&case.checkpoints)?
        .iter()
        .map(|image| size(image))
        .sum::<Result<u64>>()?;
    Ok(Known { answer: workloads::hash(&outcome)?, bytes })
}

/// A test's folders and its job.
struct Case {
    scratch: Scratch,
    checkpoints: PathBuf,
    job: TestJob,
}

impl Case {
    fn new() -> Result<Case> {
        let scratch = Scratch::new("faults")?;
        let checkpoints = workloads::checkpoint_folder(&scratch)?;
        workloads::open_gate(&scratch, GATE)?;
        let mut job = RING.job(SHAPE, ITERATIONS, &scratch)?;
        job.seconds = 120;
        Ok(Case { job: workloads::with_checkpoints(job, &checkpoints), scratch, checkpoints })
    }

    /// Requests checkpoints at these times.
    fn checkpoints_at(&self, times: &[&str]) -> TestJob {
        let mut job = self.job.clone();
        for time in times {
            job = job.with(&["--checkpoint-at", time]);
        }
        job
    }

    /// The job ends when these checkpoints are over.
    fn ends_after(&self, job: TestJob) -> TestJob {
        let gate = workloads::gate(&self.scratch).display().to_string();
        job.with(&["--write-after", &gate, &ITERATIONS.to_string()])
    }

    /// Checkpoints that look complete.
    fn manifests(&self) -> Result<usize> {
        let mut find = Command::new("find");
        let listed = run::output(find.arg(&self.checkpoints).args(["-name", "manifest.json"]))?;
        Ok(listed.lines().count())
    }

    /// Is it sure that a checkpoint in which a process is killed like this is not complete? A rank
    /// whose image is stored may fail: then it matters what is handled first, that or the last
    /// image.
    fn must_be_torn(&self, how: &[&str]) -> bool {
        let has_image = how[1].starts_with("rank:") && how[2] == "images";
        how[0] == "--kill-in-checkpoint" && how[2] != "manifest" && !has_image
    }

    /// Every checkpoint that looks complete is, and the job goes on from the last one.
    fn restarts(&self, answer: &str) -> Result<()> {
        workloads::verify(&self.checkpoints)?;
        workloads::open_gate(&self.scratch, ITERATIONS)?;
        let outcome = workloads::restart(SHAPE, &self.checkpoints, &self.scratch).run()?;
        RING.must_answer(&outcome, &self.scratch, answer)
    }
}

fn complete(outcome: &Outcome) -> usize {
    outcome.stdout.matches("is complete").count()
}

/// Somebody was killed, and where that can be known, at the point where it should be.
fn must_be_hit(outcome: &Outcome, how: &[&str]) -> Result<()> {
    outcome.must(!outcome.stderr.contains("there is no "), "nobody was killed")?;
    let held =
        how[0] != "--kill-in-checkpoint" || outcome.stderr.contains(" of the last checkpoint)");
    outcome.must(held, "the checkpoint did not come to this point")
}

/// The job ends with it, as stock jobs do.
fn ends(answer: &str, how: &[&str]) -> Result<()> {
    let case = Case::new()?;
    let outcome = case.checkpoints_at(&TWO_CHECKPOINTS).with(how).run()?;
    must_be_hit(&outcome, how)?;
    outcome.must(outcome.code == 137, "the exit code should be 137")?;
    // The killer of mpirun gets the exit code from its shell.
    let reported = how[1] == "mpirun" || outcome.stderr.contains("signal 9");
    outcome.must(reported, "it should say which process was killed")?;
    let whole = complete(&outcome);
    let most = if case.must_be_torn(how) { 1 } else { 2 };
    outcome.must((1..=most).contains(&whole), "the first checkpoint should be complete")?;
    outcome.must(case.manifests()? <= most, "the second checkpoint looks complete")?;
    case.restarts(answer)
}

/// The agent is replaced, the job goes on, and the checkpoint is taken after all.
fn goes_on(answer: &str, how: &[&str]) -> Result<()> {
    let case = Case::new()?;
    let outcome = case.ends_after(case.checkpoints_at(&TWO_CHECKPOINTS).with(how)).run()?;
    must_be_hit(&outcome, how)?;
    RING.must_answer(&outcome, &case.scratch, answer)?;
    outcome.must(complete(&outcome) == 2, "a checkpoint with the new agent should be complete")?;
    workloads::none_unfinished_but(&[], &case.checkpoints)?;
    case.restarts(answer)
}

/// All images are there, and nobody is left to write the manifest: it is no checkpoint. The job
/// goes on.
fn alone(answer: &str) -> Result<()> {
    let case = Case::new()?;
    let how = ["--kill-in-checkpoint", "coordinator", "manifest"];
    let outcome = case.ends_after(case.checkpoints_at(&TWO_CHECKPOINTS).with(&how)).run()?;
    must_be_hit(&outcome, &how)?;
    RING.must_answer(&outcome, &case.scratch, answer)?;
    outcome.must(complete(&outcome) == 1, "there should be one complete checkpoint")?;
    outcome.must(case.manifests()? == 1, "the second checkpoint looks complete")?;
    case.restarts(answer)
}

/// The second checkpoint does not fit: it fails with a message; the job and the first checkpoint do
/// not.
fn full_disk(answer: &str, bytes: u64) -> Result<()> {
    let case = Case::new()?;
    let disk =
        ["--disk", &case.checkpoints.display().to_string(), &format!("{}k", bytes * 3 / 2048)];
    let outcome = case.ends_after(case.checkpoints_at(&TWO_CHECKPOINTS)).with(&disk).run()?;
    RING.must_answer(&outcome, &case.scratch, answer)?;
    outcome.must(complete(&outcome) == 1, "one checkpoint should be complete")?;
    outcome.must(case.manifests()? == 1, "the second checkpoint looks complete")?;
    let said = outcome.stderr.contains("No space left on device");
    outcome.must(said, "it should say that the disk is full")?;
    workloads::none_unfinished_but(&[], &case.checkpoints)?;
    case.restarts(answer)
}

fn size(file: &Path) -> Result<u64> {
    fs::metadata(file).map(|found| found.len()).context(|| file.display().to_string())
}

/// Refused with the reason, before any process is started.
fn damaged(answer: &str) -> Result<()> {
    let case = Case::new()?;
    case.checkpoints_at(&ONE_CHECKPOINT).with(&["--kill-all-after", "0"]).run()?;
    let images = workloads::images(&case.checkpoints)?;
    let image = images.last().ok_or_else(|| failure!("there are no images"))?;
    let shown = || image.display().to_string();
    let name = image.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let good = fs::read(image).context(shown)?;
    let refused = |what: &str| {
        let outcome = workloads::restart(SHAPE, &case.checkpoints, &case.scratch).run()?;
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

/// One rank's image is of another kernel, of another C library: the job ends with the reason before
/// a program goes on, and the checkpoint is as good as before.
fn foreign(answer: &str) -> Result<()> {
    let case = Case::new()?;
    case.checkpoints_at(&ONE_CHECKPOINT).with(&["--kill-all-after", "0"]).run()?;
    let images = workloads::images(&case.checkpoints)?;
    let image = images.last().ok_or_else(|| failure!("there are no images"))?;
    let checkpoint = image.parent().ok_or_else(|| failure!("an image without a folder"))?;
    let files = [image.clone(), checkpoint.join("manifest.json")];
    let read = |file: &PathBuf| fs::read(file).context(|| file.display().to_string());
    let good = files.iter().map(read).collect::<Result<Vec<_>>>()?;
    // A process that went on would get to its end.
    workloads::open_gate(&case.scratch, ITERATIONS)?;
    for (difference, says) in [
        ("kernel", "the kernel's code (vdso)"),
        ("library", "libc.so.6: the program had mapped another version of it"),
    ] {
        doctor(checkpoint, difference)?;
        let job = workloads::restart(SHAPE, &case.checkpoints, &case.scratch);
        let outcome = job.run()?;
        outcome.must(![0, 124].contains(&outcome.code), "it should be refused")?;
        let words: Vec<String> = outcome.said().split_whitespace().map(str::to_owned).collect();
        let said = words.join(" ");
        let why = said.contains("this machine differs in ") && said.contains(says);
        outcome.must(why, &format!("it should say `{says}`"))?;
        outcome.must(!said.contains("HASH"), "the programs went on")?;
        for (file, bytes) in files.iter().zip(&good) {
            fs::write(file, bytes).context(|| file.display().to_string())?;
        }
    }
    case.restarts(answer)
}

/// Changes the image of the last rank, and the manifest that has its checksum.
fn doctor(checkpoint: &Path, difference: &str) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(paths::root()).args(["run", "--quiet", "--package", "rustbtl-runtime"]);
    cargo.args(["--example", "doctor", "--"]).arg(checkpoint).args(["3", difference]);
    run::check(&mut cargo)
}

/// Reported at once, not when the first checkpoint is due.
fn unwritable() -> Result<()> {
    let scratch = Scratch::new("unwritable")?;
    let file = scratch.0.join("a-file");
    fs::write(&file, "").context(|| file.display().to_string())?;
    for folder in [file.join("checkpoints"), PathBuf::from("/proc/checkpoints")] {
        let job = workloads::with_checkpoints(TestJob::new(2, 1, &["sleep", "2"]), &folder);
        let outcome = job.run()?;
        let name = folder.display().to_string();
        outcome.must(outcome.said().contains(&name), "the message should name the folder")?;
    }
    Ok(())
}
