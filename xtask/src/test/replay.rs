//! Jobs whose programs depend on what comes first: checkpointed, killed altogether, started again,
//! and made to do again what they had done after the line: from journals that the ranks write
//! (`RUSTBTL_JOURNAL`), read by themselves or handed back by the coordinator (`RUSTBTL_JOURNALS`).
//! What they observed before they were killed must be the beginning of what they observe in the
//! end.

use std::fs;

use super::job::{Job, SECONDS};
use super::lives::{self, Shape};
use super::mpi;
use super::scratch::Scratch;
use super::summary::Summary;
use crate::error::{Context, Result, fail};
use crate::paths;

/// Shapes, and rounds that take longer than the first life.
const CASES: [(Shape, u32); 2] = [((1, 4), 8000), ((2, 2), 6000)];
/// When the line is taken, and how long the job lives after it.
const TIMES: [&str; 4] = ["--checkpoint-at", "0.5", "--kill-all-after", "0.5"];

/// Where the second life has its determinants from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Journal,
    Coordinator,
    Nobody,
}

/// Runs them all.
pub fn run(summary: &mut Summary) {
    summary.tier("replay: what was observed after a line is observed again");
    let handed = [(CASES[1], From::Coordinator)];
    for ((shape, rounds), from) in CASES.map(|case| (case, From::Journal)).into_iter().chain(handed)
    {
        let how = if from == From::Coordinator { ", by the coordinator" } else { "" };
        let title = format!("replay of observe: {} × {}{how}", shape.0, shape.1);
        summary.check(&title, || {
            let differing = lives_twice(shape, rounds, from)?;
            if differing.is_empty() { Ok(()) } else { fail!("{}", differing.join("\n")) }
        });
    }
    // So that the comparison above is known to be one.
    summary.check("replay of observe: without determinants the second life differs", || {
        let (shape, rounds) = CASES[0];
        let differing = lives_twice(shape, rounds, From::Nobody)?;
        if differing.is_empty() { fail!("both lives were the same by chance") } else { Ok(()) }
    });
}

/// Which ranks did not observe again what they had observed.
fn lives_twice(shape: Shape, rounds: u32, from: From) -> Result<Vec<String>> {
    let scratch = Scratch::new("replay")?;
    let lines = lives::lines_folder(&scratch)?;
    let program = mpi::compile_with(&paths::root().join("tests/lines/observe.c"), &[])?;
    let folder = scratch.0.display().to_string();
    let words = [program.display().to_string(), rounds.to_string(), folder.clone()];
    // Recorded from the line on, and nobody is to go on.
    let record = ["--env", "RUSTBTL_RECORD=line"];
    let job = Job::new(shape.0, shape.1, &words).with(&record);
    let mut job = lives::with_lines(job, &lines).with(&TIMES);
    let journals = scratch.0.join("journals");
    if from != From::Nobody {
        fs::create_dir(&journals).context(|| journals.display().to_string())?;
        job = job.with(&["--env", &format!("RUSTBTL_JOURNAL={}", journals.display())]);
    }
    job.folder = scratch.0.clone();
    let first = job.run()?;
    first.must(first.stdout.contains("is complete"), "the line is not complete")?;
    first.must(first.code == 137, "the job should have been killed in the middle")?;
    let before = observed(&scratch, shape)?;
    let mut second = lives::restart(shape, &lines, &scratch);
    second.seconds = SECONDS;
    if from == From::Coordinator {
        // The ranks do not find theirs any more.
        let moved = scratch.0.join("moved");
        fs::rename(&journals, &moved).context(|| journals.display().to_string())?;
        second = second.with(&["--env", &format!("RUSTBTL_JOURNALS={}", moved.display())]);
    }
    let second = second.run()?;
    second.must(second.code == 0 && second.stdout.contains("OK"), "the second life")?;
    let after = observed(&scratch, shape)?;
    let mut differing = Vec::new();
    for (rank, (before, after)) in before.iter().zip(&after).enumerate() {
        if after.len() != rounds as usize || before.len() >= after.len() {
            fail!("rank {rank}: {} rounds before, {} after", before.len(), after.len());
        }
        if let Some(at) = (0..before.len()).find(|&at| before[at] != after[at]) {
            differing.push(format!("rank {rank}: `{}` before, `{}` after", before[at], after[at]));
        }
    }
    Ok(differing)
}

/// What each rank has written down, by rounds; the last one may be half a line.
fn observed(scratch: &Scratch, (nodes, ppn): Shape) -> Result<Vec<Vec<String>>> {
    let read = |rank: u32| {
        let file = scratch.0.join(format!("observed.{rank}"));
        let text = fs::read_to_string(&file).context(|| file.display().to_string())?;
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        Ok(whole.lines().map(str::to_owned).collect())
    };
    (0..nodes * ppn).map(read).collect()
}
