//! What ranks print while their node is lost: each line is printed once and in order, also those
//! that were on their way through a daemon that has gone.

use super::job::Job;
use super::lives;
use super::local_storage::plain;
use super::mpi;
use super::node_loss::must_be_clean;
use super::scratch::Scratch;
use super::summary::Summary;
use crate::error::{Result, fail};
use crate::paths;
use std::collections::BTreeMap;

const NODES: u32 = 3;
const PPN: u32 = 2;
const ITERATIONS: u64 = 60;
/// Lines of a rank on each stream between two moments in which it needs the others: what a node
/// prints that nobody can hear.
const LINES: u64 = 50;
const PAUSE_US: &str = "2000";

/// What happens, and whether the nodes share a folder.
const LOSSES: [(&str, &str, bool); 4] = [
    ("a cable is pulled", "--cut-node-after-line", true),
    ("a node is killed", "--kill-node-after-line", true),
    ("a cable is pulled, plain command", "--cut-node-after-line", false),
    ("a node is killed, plain command", "--kill-node-after-line", false),
];

/// Runs the tier.
pub fn run(summary: &mut Summary) {
    summary.tier("output of lost nodes");
    for (title, fault, shared) in LOSSES {
        let title = format!("lost output: {title}, each line once: {NODES} × {PPN}");
        summary.check(&title, || each_line_once(fault, shared));
    }
}

fn each_line_once(fault: &str, shared: bool) -> Result<()> {
    let scratch = Scratch::new("lost-output")?;
    let program = mpi::compile(&paths::root().join("tests/lines/print_lines.c"))?;
    let program = program.display().to_string();
    let (iterations, lines) = (ITERATIONS.to_string(), LINES.to_string());
    let struck = scratch.0.join("struck").display().to_string();
    let job = Job::new(NODES, PPN, &[&program, &iterations, PAUSE_US, &lines, &struck]);
    let job = job.with(&["--mca", "orte_tag_output", "1", "--write-when-struck", &struck]);
    let job = job.with(&[fault, "1@1"]);
    let outcome = if shared {
        lives::protected(job, &lives::lines_folder(&scratch)?).run()?
    } else {
        plain(job, &scratch).run()?
    };
    outcome.must(outcome.code == 0, "the job failed")?;
    let gone = [": cut ", ": killed "].map(|what| outcome.stderr.matches(what).count());
    outcome.must(gone.iter().sum::<usize>() == 1, "the node was not lost in time")?;
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
/// piece of output with the rank by whose way it came, and cuts lines into pieces.
fn numbers(name: &str, tag: &str, text: &str) -> Result<BTreeMap<u32, Vec<u64>>> {
    let mut lines: Vec<(usize, String)> = Vec::new();
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
                lines.extend(begun.remove(way));
            }
        }
    }
    lines.sort();
    let mut all: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for (_, line) in lines.iter().filter(|(_, line)| line.starts_with(&format!("{name} "))) {
        let words: Vec<u64> =
            line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [rank, number, _] = words[..] else { fail!("a line in pieces: `{line}`") };
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

/// `[1,RANK]<stdout>:` and what is between these marks, with its place.
fn pieces<'a>(text: &'a str, tag: &str) -> Vec<(usize, Piece<'a>)> {
    let mut found = Vec::new();
    let mut begin = 0;
    for (at, _) in text.match_indices(tag) {
        let Some(mark) = text[begin..at].rfind("[1,") else { continue };
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
        let text = "[1,0]<o>:out 0 1 9\n[1,2]<o>:out 2 7[1,0]<o>: nobody\n[1,2]<o>: 9\nout 0 2 9\n";
        let found = numbers("out", "<o>:", text).unwrap();
        assert_eq!(found, BTreeMap::from([(0, vec![1, 2]), (2, vec![7])]));
    }
}
