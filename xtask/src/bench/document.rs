//! What is left of a bench: a JSON document with every value, and the tables in a Markdown file.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::judge::{Line, Verdict};
use super::machine::Machine;
use super::measured::{Measured, MeasuredRun};
use super::stats::Spread;
use super::table;
use crate::error::{Context, Result, failure};

/// Version of the document.
const VERSION: u32 = 1;
/// Lines of documents are no longer.
const LINE_CHARACTERS: usize = 120;

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    machine: &'a Machine,
    quick: bool,
    pairs: usize,
    rows: Vec<Judged<'a>>,
    runs: &'a [MeasuredRun],
}

#[derive(Serialize)]
struct Judged<'a> {
    title: &'a str,
    sides: &'a str,
    experiment: &'a str,
    label: &'a str,
    size: u64,
    base: Option<f64>,
    ours: Option<f64>,
    ratio: Option<f64>,
    quartiles: Option<[f64; 2]>,
    best: Option<f64>,
    floor: Option<f64>,
    pairs: usize,
    goal: String,
    verdict: Verdict,
}

fn judged(line: &Line) -> Judged<'_> {
    let row = &line.row;
    Judged {
        title: row.title,
        sides: row.sides,
        experiment: row.experiment,
        label: row.label,
        size: row.size,
        base: line.base,
        ours: line.ours,
        ratio: line.ratio.map(|r| r.median),
        quartiles: line.ratio.map(|Spread { low, high, .. }| [low, high]),
        best: line.best,
        floor: line.floor,
        pairs: line.pairs,
        goal: format!("{:?}", row.goal),
        verdict: line.verdict,
    }
}

/// Writes the JSON document.
pub fn write_json(
    file: &Path,
    machine: &Machine,
    (quick, pairs): (bool, usize),
    lines: &[Line],
    measured: &Measured,
) -> Result<()> {
    let rows = lines.iter().map(judged).collect();
    let document = Document { version: VERSION, machine, quick, pairs, rows, runs: &measured.runs };
    let text = serde_json::to_string_pretty(&document).context(|| "the JSON document".into())?;
    fs::write(file, text + "\n").context(|| file.display().to_string())
}

/// Replaces what is between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->`; other text stays.
pub fn replace(text: &str, name: &str, by: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- bench:{name} -->"), format!("<!-- /bench:{name} -->"));
    let (before, rest) = text.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n{}\n{end}{after}", by.trim()))
}

/// A new file, if there is none yet.
const EMPTY: &str = "# Performance\n\n<!-- bench:machine -->\n<!-- /bench:machine -->\n\n\
    <!-- bench:table -->\n<!-- /bench:table -->\n\n<!-- bench:functions -->\n\
    <!-- /bench:functions -->\n";

/// Brings the tables in the file up to date: those that there are marks for and numbers of.
pub fn write_markdown(
    file: &Path,
    machine: &Machine,
    pairs: usize,
    lines: &[Line],
    measured: &Measured,
) -> Result<()> {
    let mut text = fs::read_to_string(file).unwrap_or_else(|_| EMPTY.to_string());
    let about = format!(
        "{}. {} pairs of runs; load at the start {:.2}, {}. {}",
        machine.line(),
        pairs,
        machine.load,
        machine.quiet(),
        table::summary(lines, measured).trim()
    );
    let mut parts = vec![("machine", wrapped(&about)), ("table", table::markdown(lines))];
    if measured.runs.iter().any(|run| run.experiment == "instructions" && run.failure.is_none()) {
        parts.push(("functions", table::functions_markdown(measured)));
    }
    for (name, by) in parts {
        text = replace(&text, name, &by).ok_or_else(|| {
            failure!(
                "{} has no marks <!-- bench:{name} --> and <!-- /bench:{name} -->",
                file.display()
            )
        })?;
    }
    fs::write(file, text).context(|| file.display().to_string())
}

/// A paragraph in lines of a document.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= LINE_CHARACTERS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_wrapped_between_words() {
        let word = "µ".repeat(LINE_CHARACTERS / 2);
        assert_eq!(wrapped(&format!("a  b\n{word} {word}")), format!("a b {word}\n{word}"));
        assert_eq!(wrapped(""), "");
        let long = "x".repeat(LINE_CHARACTERS + 1);
        assert_eq!(wrapped(&format!("{long} y")), format!("{long}\ny"));
    }

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let text = "a\n<!-- bench:x -->\nold\n<!-- /bench:x -->\nb\n";
        let new = replace(text, "x", "new\n").unwrap();
        assert_eq!(new, "a\n<!-- bench:x -->\nnew\n<!-- /bench:x -->\nb\n");
        assert_eq!(replace(&new, "x", "new"), Some(new.clone()));
        assert_eq!(replace(text, "y", "new"), None);
    }

    #[test]
    fn a_new_file_has_all_marks() {
        for name in ["machine", "table", "functions"] {
            assert!(replace(EMPTY, name, "x").is_some(), "{name}");
        }
    }
}
