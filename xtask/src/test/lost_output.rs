//! What ranks print while their node is lost: each line is printed once and in order, under the
//! name of its rank, also those that were on their way through a daemon that is gone, or through
//! the node on which a rank goes on.

use super::job::TestJob;
use super::local_storage::plain;
use super::mpi::{self, Over};
use super::node_failure::must_be_clean;
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads;
use crate::error::{Result, fail};
use crate::paths;
use std::collections::BTreeMap;

const NODES: u32 = 3;
const PPN: u32 = 2;
const ITERATIONS: u64 = 60;
/// Lines of a rank on each stream between two moments in which it needs the others: what a node
/// prints that nobody can receive.
const LINES: u64 = 50;
const PAUSE_US: &str = "2000";

/// What happens, and whether the nodes share a folder.
const LOSSES: [(&str, &[&str], bool); 8] = [
    ("a cable is pulled", &["--cut-node-after-checkpoint", "1@1"], true),
    ("a node is killed", &["--kill-node-after-checkpoint", "1@1"], true),
    (
        "a node is killed, and the spare one on which its ranks go on",
        &[
            "--spare",
            "1",
            "--kill-node-after-checkpoint",
            "1@1",
            "--kill-at-event",
            "replay_completed@1=node:3",
        ],
        true,
    ),
    (
        "a node is killed, then a program of its ranks, then the coordinator",
        &[
            "--kill-node-after-checkpoint",
            "1@1",
            "--kill-at-event",
            "replay_completed@1=rank:2",
            "--kill-at-event",
            "replay_completed@2=coordinator",
        ],
        true,
    ),
    (
        "a node is killed, and the guardian that one of its ranks has got",
        &[
            "--kill-node-after-checkpoint",
            "1@1",
            "--kill-at-event",
            "replay_completed@1=guardian:2",
        ],
        true,
    ),
    ("a cable is pulled, plain command", &["--cut-node-after-checkpoint", "1@1"], false),
    ("a node is killed, plain command", &["--kill-node-after-checkpoint", "1@1"], false),
    (
        "a node is killed, and the one on which its ranks go on, plain command",
        &["--kill-node-after-replication", "1@1", "--kill-node-after-replication", "2@2"],
        false,
    ),
];

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    run_over(tier, &Over::Component);
}

/// The same, in the tier that has begun.
pub fn run_over(tier: &mut Tier, over: &Over) {
    for (title, faults, shared) in LOSSES {
        let title = format!("lost output: {title}, each line once: {NODES} × {PPN}");
        tier.check(&title, || each_line_once(over, faults, shared));
    }
    tier.check("lost output: lines shorter than their tags: 3 × 1", || short_lines(over));
}

/// What a restarted rank prints has room for the tags of its lines. (mpirun of 4.1 loses a part of
/// what others print, with and without us: they are not looked at.)
fn short_lines(over: &Over) -> Result<()> {
    const SHORT: u64 = 600;
    let scratch = Scratch::new("lost-output")?;
    let program = mpi::compile_over(&paths::root().join("tests/workloads/short_lines.c"), over)?;
    let program = program.display().to_string();
    let (iterations, lines) = (ITERATIONS.to_string(), SHORT.to_string());
    let failed = scratch.0.join("failed").display().to_string();
    let job = over.job(TestJob::new(3, 1, &[&program, &iterations, &lines, &failed]));
    let job = job.with(&["--tag-output", "--write-when-failed", &failed]);
    let job = job.with(&["--kill-node-after-checkpoint", "1@1"]);
    let outcome = workloads::protected(job, &workloads::checkpoint_folder(&scratch)?).run()?;
    outcome.must(outcome.code == 0, "the job failed")?;
    let printed = outcome.stdout.matches(",1]<stdout>:").count() as u64;
    let wanted = ITERATIONS * SHORT;
    outcome.must(printed == wanted, &format!("{printed} lines of rank 1, not {wanted}"))?;
    must_be_clean(&outcome)
}

fn each_line_once(over: &Over, faults: &[&str], shared: bool) -> Result<()> {
    let scratch = Scratch::new("lost-output")?;
    let program = mpi::compile_over(&paths::root().join("tests/workloads/print_lines.c"), over)?;
    let program = program.display().to_string();
    let (iterations, lines) = (ITERATIONS.to_string(), LINES.to_string());
    let failed = scratch.0.join("failed").display().to_string();
    let job = TestJob::new(NODES, PPN, &[&program, &iterations, PAUSE_US, &lines, &failed]);
    let job = over.job(job).with(&["--tag-output", "--write-when-failed", &failed]);
    let job = job.with(faults);
    let outcome = if shared {
        workloads::protected(job, &workloads::checkpoint_folder(&scratch)?).run()?
    } else {
        plain(job, &scratch).run()?
    };
    outcome.must(outcome.code == 0, "the job failed")?;
    let gone = [": cut ", ": killed "].map(|what| outcome.stderr.matches(what).count());
    let wanted = faults.iter().filter(|word| word.contains('@')).count();
    outcome.must(gone.iter().sum::<usize>() == wanted, "not all was lost in time")?;
    for (name, tag, text) in
        [("out", "<stdout>:", &outcome.stdout), ("err", "<stderr>:", &outcome.stderr)]
    {
        let printed = numbers(name, tag, text)?;
        for rank in 0..NODES * PPN {
            let of = printed.get(&rank).map_or(&[][..], Vec::as_slice);
            let wrong = (0..).zip(of).find(|(wanted, found)| wanted != *found);
            let whole = of.len() as u64 == ITERATIONS * LINES && wrong.is_none();
            let what =
                format!("{name} of rank {rank}: {} lines; wanted, found: {wrong:?}", of.len());
            outcome.must(whole, &what)?;
        }
    }
    must_be_clean(&outcome)
}

/// Numbers of the lines of each rank, in the order in which they were begun. mpirun marks each
/// piece of output with its rank, and cuts lines into pieces.
fn numbers(name: &str, tag: &str, text: &str) -> Result<BTreeMap<u32, Vec<u64>>> {
    let mut lines: Vec<(usize, String, &str)> = Vec::new();
    let mut begun: BTreeMap<&str, (usize, String)> = BTreeMap::new();
    let mut way = "";
    for (at, piece) in pieces(text, tag) {
        let piece = match piece {
            Piece::From(from) => {
                way = from;
                continue;
            }
            Piece::Text(piece) => piece,
        };
        for part in piece.split_inclusive('\n') {
            let (_, line) = begun.entry(way).or_insert_with(|| (at, String::new()));
            line.push_str(part);
            if part.ends_with('\n') {
                lines.extend(begun.remove(way).map(|(at, line)| (at, line, way)));
            }
        }
    }
    lines.sort();
    let mut all: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let begin = format!("{name} ");
    // In 5.0 what mpirun itself prints leaves a zero before the next line.
    let is_of = |line: &str| line.trim_start_matches(['\0', ' ']).starts_with(&begin);
    for (_, line, way) in lines.iter().filter(|(_, line, _)| is_of(line)) {
        let words: Vec<u64> =
            line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [rank, number, _] = words[..] else { fail!("a line in pieces: `{line}`") };
        if !way.ends_with(&format!(",{rank}]")) {
            fail!("a line under another name: `{way}: {line}`");
        }
        all.entry(rank as u32).or_default().push(number);
    }
    Ok(all)
}

#[derive(PartialEq, Eq, Debug)]
enum Piece<'a> {
    /// What follows came by this rank's way.
    From(&'a str),
    Text(&'a str),
}

/// `[JOB,RANK]<stdout>:` and what is between these marks, with its place.
fn pieces<'a>(text: &'a str, tag: &str) -> Vec<(usize, Piece<'a>)> {
    let mut found = Vec::new();
    let mut begin = 0;
    for (at, _) in text.match_indices(tag) {
        let Some(mark) = text[begin..at].rfind('[') else { continue };
        let mark = begin + mark;
        found.push((begin, Piece::Text(&text[begin..mark])));
        found.push((mark, Piece::From(&text[mark..at])));
        begin = at + tag.len();
    }
    found.push((begin, Piece::Text(&text[begin..])));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together_from_pieces() {
        let text = "[1,0]<o>:out 0 1 9\n[1,2]<o>:out 2 7[1,0]<o>: nobody\n[1,2]<o>: 9\n\
                    [1,0]<o>:out 0 2 9\n";
        let found = numbers("out", "<o>:", text).unwrap();
        assert_eq!(found, BTreeMap::from([(0, vec![1, 2]), (2, vec![7])]));
        let other = "[1,2]<o>:out 0 1 9\n";
        assert!(numbers("out", "<o>:", other).unwrap_err().0.contains("under another name"));
    }
}
