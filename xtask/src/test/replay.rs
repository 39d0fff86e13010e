//! Jobs whose programs depend on what comes first: checkpointed, killed altogether, restarted, and
//! made to replay what they had done after the checkpoint: from journals that the ranks write
//! (`RUSTBTL_JOURNAL`), read by themselves or handed back by the coordinator (`RUSTBTL_JOURNALS`).
//! What they observed before they were killed must be the beginning of what they observe in the
//! end.

use std::fs;
use std::sync::Mutex;

use super::job::{SECONDS, TestJob};
use super::mpi;
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, GATE_OPEN, Shape};
use crate::error::{Context, Result, fail};
use crate::paths;

const SHAPES: [Shape; 2] = [(1, 4), (2, 2)];
/// Of which the first incarnation does not do the last one.
const ROUNDS: usize = 4000;
/// Every rank has done so many since its checkpoint when all are killed.
const ROUNDS_AFTER: usize = 500;

/// Where the second incarnation has its determinants from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Journal,
    Coordinator,
    Nobody,
}

/// Runs them all.
pub fn run(tier: &mut Tier) {
    let handed = [(SHAPES[1], From::Coordinator)];
    for (shape, from) in SHAPES.map(|shape| (shape, From::Journal)).into_iter().chain(handed) {
        let how = if from == From::Coordinator { ", by the coordinator" } else { "" };
        let title = format!("replay of observe: {} × {}{how}", shape.0, shape.1);
        tier.check(&title, || {
            let differing = runs_twice(shape, from)?;
            if differing.is_empty() { Ok(()) } else { fail!("{}", differing.join("\n")) }
        });
    }
    for checkpoints in [1, 2] {
        let title =
            format!("replay of at_line: asking while checkpoint {checkpoints} is taken, 2 × 5");
        tier.check(&title, || {
            let differing = polls_while_checkpoints_are_taken(checkpoints)?;
            if differing.is_empty() { Ok(()) } else { fail!("{}", differing.join("\n")) }
        });
    }
    // So that the comparison above is known to be one.
    tier.check("replay of observe: without determinants the second incarnation differs", || {
        let differing = runs_twice(SHAPES[0], From::Nobody)?;
        if differing.is_empty() {
            fail!("both incarnations were the same by chance")
        } else {
            Ok(())
        }
    });
}

/// Which ranks did not observe again what they had observed.
fn runs_twice(shape: Shape, from: From) -> Result<Vec<String>> {
    let scratch = Scratch::new("replay")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let program = mpi::compile_with(&paths::root().join("tests/workloads/observe.c"), &[])?;
    let folder = scratch.0.display().to_string();
    let words = [program.display().to_string(), ROUNDS.to_string(), folder];
    let file = |name: &str| scratch.0.join(name).display().to_string();
    // Recorded from the checkpoint on, and nobody is to go on.
    let record = ["--env", "RUSTBTL_RECORD=line"];
    let job = TestJob::new(shape.0, shape.1, &words).with(&record);
    let mut job = workloads::with_checkpoints(job, &checkpoints)
        .with(&["--checkpoint-at", "0", "--checkpoint-when", &file("begun")])
        .with(&["--write-after", &file("complete"), "1", "--kill-all-when", &file("kill")]);
    let journals = scratch.0.join("journals");
    if from != From::Nobody {
        fs::create_dir(&journals).context(|| journals.display().to_string())?;
        job = job.with(&["--env", &format!("RUSTBTL_JOURNAL={}", journals.display())]);
    }
    job.folder = scratch.0.clone();
    let rounds_at_checkpoint = Mutex::new(None);
    let is_far = || {
        let all = observed(&scratch, shape).unwrap_or_default();
        let least = all.iter().map(Vec::len).min().unwrap_or(0);
        let is_complete = scratch.0.join("complete").exists();
        let mut from = rounds_at_checkpoint.lock().unwrap();
        is_complete
            && least >= *from.get_or_insert(least) + ROUNDS_AFTER
            && fs::write(file("kill"), "").is_ok()
    };
    let first = workloads::in_steps(&job, &scratch, &[(is_far, GATE_OPEN)])?;
    first.must(first.stdout.contains("is complete"), "the checkpoint is not complete")?;
    first.must(first.code == 137, "the job should have been killed in the middle")?;
    let before = observed(&scratch, shape)?;
    fs::write(file("end"), "").context(|| file("end"))?;
    let mut second = workloads::restart(shape, &checkpoints, &scratch);
    second.seconds = SECONDS;
    if from == From::Coordinator {
        // The ranks do not find theirs any more.
        let moved = scratch.0.join("moved");
        fs::rename(&journals, &moved).context(|| journals.display().to_string())?;
        second = second.with(&["--env", &format!("RUSTBTL_JOURNALS={}", moved.display())]);
    }
    let second = second.run()?;
    second.must(second.code == 0 && second.stdout.contains("OK"), "the second incarnation")?;
    let after = observed(&scratch, shape)?;
    let mut differing = Vec::new();
    for (rank, (before, after)) in before.iter().zip(&after).enumerate() {
        if after.len() != ROUNDS || before.len() >= after.len() {
            fail!("rank {rank}: {} rounds before, {} after", before.len(), after.len());
        }
        if let Some(at) = (0..before.len()).find(|&at| before[at] != after[at]) {
            let of = before.len();
            differing.push(format!(
                "rank {rank}, {of} rounds: `{}` before, `{}` after",
                before[at], after[at]
            ));
        }
    }
    Ok(differing)
}

/// Which ranks did not observe again what they were polling for while checkpoints were taken (the
/// last one is rolled back to). What they poll for comes in another order in the second
/// incarnation.
fn polls_while_checkpoints_are_taken(checkpoints: u32) -> Result<Vec<String>> {
    const SHAPE: Shape = (2, 5);
    let scratch = Scratch::new("at-checkpoint")?;
    let folder = workloads::checkpoint_folder(&scratch)?;
    let program = mpi::compile_with(&paths::root().join("tests/workloads/at_checkpoint.c"), &[])?;
    let words = [program.display().to_string(), scratch.0.display().to_string()];
    let mut job = TestJob::new(SHAPE.0, SHAPE.1, &words).with(&["--env", "RUSTBTL_RECORD=line"]);
    job = workloads::with_checkpoints(job, &folder);
    for _ in 0..checkpoints {
        job = job.with(&["--checkpoint-at", "1"]);
    }
    let journals = scratch.0.join("journals");
    fs::create_dir(&journals).context(|| journals.display().to_string())?;
    job = job.with(&["--env", &format!("RUSTBTL_JOURNAL={}", journals.display())]);
    job = job.with(&["--write-after", &scratch.0.join("go").display().to_string(), "1"]);
    let first = job.run()?;
    first.must(first.code == 137, "rank 0 should have killed itself")?;
    let complete = first.stdout.matches("is complete").count();
    first.must(
        complete == checkpoints as usize,
        &format!("{checkpoints} checkpoints should be complete"),
    )?;
    let observers = 1..SHAPE.0 * SHAPE.1 - 1;
    let look = |rank: u32| {
        let file = scratch.0.join(format!("observed.{rank}"));
        fs::read_to_string(&file).context(|| file.display().to_string())
    };
    let before = observers.clone().map(look).collect::<Result<Vec<_>>>()?;
    fs::write(scratch.0.join("second"), "").context(|| scratch.0.display().to_string())?;
    let second = workloads::restart(SHAPE, &folder, &scratch).run()?;
    second.must(second.code == 0 && second.stdout.contains("OK"), "the second incarnation")?;
    let after = observers.clone().map(look).collect::<Result<Vec<_>>>()?;
    let differs = |rank: u32, before: &str, after: &str| {
        format!("rank {rank}: `{}` before, `{}` after", before.trim(), after.trim())
    };
    let all = observers.zip(before.iter().zip(&after));
    let differing = all.filter(|(_, (before, after))| before != after);
    Ok(differing.map(|(rank, (before, after))| differs(rank, before, after)).collect())
}

/// What each rank has logged, by rounds; the last one may be half a line.
fn observed(scratch: &Scratch, (nodes, ppn): Shape) -> Result<Vec<Vec<String>>> {
    let read = |rank: u32| {
        let file = scratch.0.join(format!("observed.{rank}"));
        let text = fs::read_to_string(&file).context(|| file.display().to_string())?;
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        Ok(whole.lines().map(str::to_owned).collect())
    };
    (0..nodes * ppn).map(read).collect()
}
