//! What the coordination of a checkpoint costs, beside one message of 10 KB from each process to
//! the next (Figure 3 of the paper): threads over in-process rings, by the example
//! `checkpoint_bench`.
//!
//! With more threads than processors, and with other work on the machine, single runs depend on the
//! scheduler. So each size has the run with the shortest checkpoint, and the message of that run
//! beside it (and the checkpoint of a set without shared memory, which sends frames); the band goes
//! up to the median of all runs, and the ratio is that of the pairs: the median of all runs.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::chart::{Chart, Curve};
use super::curves::write_time;
use super::machine::Machine;
use super::stats::Spread;
use crate::error::{Context, Result, fail};
use crate::{paths, run};

/// Processes of a set.
const SIZES: [&str; 6] = ["2", "4", "8", "16", "32", "48"];
/// Checkpoints in a run, of which the median counts.
const ROUNDS: &str = "200";

/// A size in one run: microseconds of a checkpoint and of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    processes: u32,
    checkpoint: f64,
    frames: f64,
    message: f64,
}

/// What is known of a size: its best run, medians of checkpoints, of checkpoints by frames, of
/// messages, and of the ratios of checkpoint and message in each run.
type Size = (Row, [f64; 4]);

/// The rows of the example's table.
fn rows(text: &str) -> Vec<Row> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [processes, checkpoint, frames, message] = words[..] else { return None };
        let [checkpoint, frames, message] =
            [checkpoint, frames, message].map(|word| word.parse().ok());
        let (checkpoint, frames, message) = (checkpoint?, frames?, message?);
        Some(Row { processes: processes.parse().ok()?, checkpoint, frames, message })
    };
    text.lines().filter_map(row).collect()
}

/// Of each size the row with the shortest checkpoint, and the medians of all of them and of all
/// messages.
fn best(all: &[Row]) -> Vec<Size> {
    let mut sizes: Vec<u32> = all.iter().map(|row| row.processes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let one = |size: u32| {
        let rows: Vec<Row> = all.iter().copied().filter(|row| row.processes == size).collect();
        let shortest = rows.iter().copied().min_by(|a, b| a.checkpoint.total_cmp(&b.checkpoint))?;
        let median = |of: fn(&Row) -> f64| {
            let values: Vec<f64> = rows.iter().map(of).collect();
            Spread::of(&values).map(|spread| spread.median)
        };
        let medians = [
            median(|row| row.checkpoint)?,
            median(|row| row.frames)?,
            median(|row| row.message)?,
            median(|row| row.checkpoint / row.message)?,
        ];
        Some((shortest, medians))
    };
    sizes.into_iter().filter_map(one).collect()
}

fn table(best: &[Size]) -> String {
    let mut text = "| processes | checkpoint, µs | by frames, µs | 10 KB message, µs | \
                    checkpoint / message | medians of all runs | checkpoint / message |\n\
                    |---|---|---|---|---|---|---|\n"
        .to_string();
    for (row, [checkpoint, frames, message, ratio]) in best {
        text += &format!(
            "| {} | {:.1} | {:.1} | {:.1} | {:.2} | {checkpoint:.0} / {frames:.0} / {message:.0} | \
             {ratio:.2} |\n",
            row.processes,
            row.checkpoint,
            row.frames,
            row.message,
            row.checkpoint / row.message
        );
    }
    text
}

fn chart(best: &[Size], subtitle: String) -> Chart {
    let curve = |name: &str, colour, dash, of: fn(&Size) -> (f64, f64)| {
        let point = |point: &Size| {
            let (shortest, median) = of(point);
            let high = median.max(shortest);
            (f64::from(point.0.processes), Spread { low: shortest, median: shortest, high })
        };
        Curve { name: name.into(), colour, dash, points: best.iter().map(point).collect() }
    };
    Chart {
        title: "Coordination of a checkpoint, without snapshots".into(),
        subtitle,
        across: "processes of the set",
        across_marks: (|n| format!("{n:.0}"), 2.0),
        upwards: "time of the slowest process",
        write: write_time,
        curves: vec![
            curve("one checkpoint, shared memory", "#0c5c8c", "", |(row, of)| {
                (row.checkpoint, of[0])
            }),
            curve("one checkpoint by frames", "#b0413e", "2 3", |(row, of)| (row.frames, of[1])),
            curve("one message of 10 KB each", "#6c757d", "7 4", |(row, of)| (row.message, of[2])),
        ],
    }
}

/// Measures, prints the table, draws the figure beside `markdown` if that is given.
pub fn run(runs: usize, markdown: Option<&Path>) -> Result<()> {
    let mut build = Command::new("cargo");
    build.current_dir(paths::root()).args(["build", "--release", "--package"]);
    run::check(build.args(["rustbtl-conformance", "--example", "checkpoint_bench"]))?;
    let program = paths::target().join("release/examples/checkpoint_bench");
    let mut all = Vec::new();
    let machine = Machine::ask();
    for _ in 0..runs {
        let text = run::output(Command::new(&program).arg(ROUNDS).args(SIZES))?;
        all.extend(rows(&text));
    }
    let best = best(&all);
    if best.is_empty() {
        fail!("nothing was measured: give at least one run");
    }
    println!("{}; load before {:.1}\n\n{}", machine.line(), machine.load, table(&best));
    let subtitle = format!("shortest of {runs} runs; {}", machine.line());
    let Some(svg) = chart(&best, subtitle).draw() else { return Ok(()) };
    let file = match markdown {
        Some(file) => file.with_file_name("performance-checkpoints.svg"),
        None => paths::out().join("bench/checkpoints.svg"),
    };
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).context(|| folder.display().to_string())?;
    }
    fs::write(&file, svg).context(|| file.display().to_string())?;
    println!("SnapshotMemory: {}", file.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "processes  counted µs  by frames µs  10 KB message µs   (medians of 200, the slowest)
        2      3.8          4.8               7.2
       48    288.7       1388.7             203.5
";

    #[test]
    fn the_shortest_checkpoint_counts_and_what_was_measured_beside_it() {
        let (first, mut second) = (rows(TEXT), rows(TEXT));
        assert_eq!(first[0], Row { processes: 2, checkpoint: 3.8, frames: 4.8, message: 7.2 });
        second[1] = Row { processes: 48, checkpoint: 150.0, frames: 900.0, message: 300.0 };
        let best = best(&[first, second].concat());
        assert_eq!(
            (best[0].0.checkpoint, best[1].0.checkpoint, best[1].0.message),
            (3.8, 150.0, 300.0)
        );
        assert!(table(&best).contains("| 48 | 150.0 | 900.0 | 300.0 | 0.50 |"));
        assert!(chart(&best, String::new()).draw().is_some_and(|svg| !svg.contains("NaN")));
    }
}
