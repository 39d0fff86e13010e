//! `cargo xtask bench`: every promise about speed, measured side by side with stock Open MPI.
//!
//! Sides take turns (A B A B …), each run is a job of its own, ratios are taken within a pair: what
//! drifts on the machine goes out of them. Nothing here decides; the table shows the goals.

mod applications;
mod btl;
mod busy;
mod callgrind;
pub mod chart;
mod checkpoints;
mod collectives;
mod curves;
pub mod document;
mod experiments;
mod hpcc;
mod judge;
mod launch;
mod log_append;
mod machine;
mod measured;
mod nas;
mod one_sided;
mod rows;
pub mod stats;
mod table;
mod ucx;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use crate::error::{Context, Result, fail};
use crate::{paths, setup};
use experiments::Experiment;
use launch::Bench;
use machine::Machine;
use measured::Measured;

const PAIRS: usize = 7;
const PAIRS_QUICK: usize = 3;
/// A pair is not begun if it would end later than this. A pair of everything takes some twelve
/// minutes.
const LIMIT: Duration = Duration::from_secs(100 * 60);
const LIMIT_QUICK: Duration = Duration::from_secs(4 * 60);

/// The command line of `cargo xtask bench`.
#[derive(Args)]
pub struct BenchOptions {
    /// Fewer pairs, smaller problems: an impression within four minutes
    #[arg(long)]
    quick: bool,
    /// Write machine, versions and every single value
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Bring the tables in a file like docs/performance.md up to date, and the figures beside it
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Only experiments whose name begins with NAME (--list shows them)
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// Runs of each side, however long they take, instead of 7 (with --quick 3)
    #[arg(long, value_name = "N")]
    pairs: Option<usize>,
    /// Measure only what the coordination of a checkpoint costs beside one message of 10 KB, so
    /// often, and draw it (docs/performance-checkpoints.svg with --markdown docs/performance.md)
    #[arg(long, alias = "lines", value_name = "RUNS")]
    checkpoints: Option<usize>,
    /// Show the names of all experiments and end
    #[arg(long)]
    list: bool,
}

/// Measures and shows everything that was asked for.
pub fn run(options: &BenchOptions) -> Result<()> {
    if options.list {
        for e in experiments::all() {
            let sides: Vec<_> = e.sides.iter().map(|side| side.name).collect();
            println!("{:20} {}", e.name, sides.join(", "));
        }
        return Ok(());
    }
    if let Some(runs) = options.checkpoints {
        return checkpoints::run(runs, options.markdown.as_deref());
    }
    let (usual, limit) = if options.quick { (PAIRS_QUICK, LIMIT_QUICK) } else { (PAIRS, LIMIT) };
    let pairs = options.pairs.unwrap_or(usual);
    let mut experiments = experiments::chosen(&options.only);
    if options.quick {
        experiments::leave_out_long(&mut experiments, &options.only);
    }
    nas::keep_possible(&mut experiments);
    applications::keep_possible(&mut experiments);
    // Programs that somebody has provided get the time that they take.
    let endless = options.pairs.is_some() || experiments.iter().any(nas::is);
    let limit = if endless { Duration::MAX } else { limit };
    if experiments.is_empty() || pairs == 0 {
        fail!("nothing to measure (names: `cargo xtask bench --list`; at least one pair)");
    }
    if experiments.iter().any(Experiment::needs_tools) {
        setup::run_for_bench()?;
    }
    let mut machine = Machine::ask();
    eprintln!("bench: {}", machine.line());
    if machine.load > 0.5 {
        eprintln!("bench: warning: the load is {} before anything has started", machine.load);
    }
    eprintln!("bench: building");
    let bench = Bench::prepare(options.quick, &experiments)?;
    let (measured, pairs) = measure(&bench, &experiments, pairs, limit, &mut machine.taken_away);
    show(options, &machine, pairs, &experiments, &measured)
}

/// All experiments once for each pair: what drifts meets all of them alike, and when time runs out
/// each has the same number of pairs. Gives that number, too.
fn measure(
    bench: &Bench,
    experiments: &[Experiment],
    pairs: usize,
    limit: Duration,
    taken_away: &mut Vec<f64>,
) -> (Measured, usize) {
    let start = Instant::now();
    let mut measured = Measured::default();
    for pair in 0..pairs {
        let begin = Instant::now();
        let away = machine::taken_away();
        taken_away.push(away);
        eprintln!("bench: pair {} of {pairs}; processors away {:.0} %", pair + 1, away * 100.0);
        for experiment in experiments.iter().filter(|e| pair == 0 || !e.once) {
            measure_pair(bench, experiment, pair, &mut measured);
        }
        let (taken, all) = (begin.elapsed(), start.elapsed());
        eprintln!("  {:18} {:6.1} s, {:.0} s in all", "", taken.as_secs_f64(), all.as_secs_f64());
        if pair + 1 < pairs && all + taken > limit {
            eprintln!("bench: warning: the machine is slow; ending after {} pairs", pair + 1);
            return (measured, pair + 1);
        }
    }
    (measured, pairs)
}

/// Each side of an experiment in turn, with a line that shows how far it is.
fn measure_pair(bench: &Bench, experiment: &Experiment, pair: usize, measured: &mut Measured) {
    let begin = Instant::now();
    eprint!("  {:18} ", experiment.name);
    let _ = io::stderr().flush();
    for side in experiment.sides {
        let run = bench.measure(experiment, side, pair);
        eprint!("{}{} ", side.name, if run.failure.is_some() { "!" } else { "" });
        let _ = io::stderr().flush();
        measured.runs.push(run);
    }
    eprintln!("{:.1} s", begin.elapsed().as_secs_f64());
}

fn show(
    options: &BenchOptions,
    machine: &Machine,
    pairs: usize,
    experiments: &[Experiment],
    measured: &Measured,
) -> Result<()> {
    let lines = judge::all(rows::of(experiments), measured);
    println!("{}; {}\n", machine.line(), machine.quiet());
    print!("{}\n{}", table::text(&lines), table::summary(&lines, measured));
    if let Some(file) = &options.json {
        document::write_json(file, machine, (options.quick, pairs), &lines, measured)?;
    }
    let folder = paths::out().join("bench");
    let figures = curves::draw(measured, &machine.line(), &folder)?;
    for svg in &figures {
        println!("SnapshotMemory: {} and .png", svg.display());
    }
    if let Some(file) = &options.markdown {
        document::write_markdown(file, machine, pairs, &lines, measured)?;
        copy_beside(file, &figures)?;
    }
    report_failures(measured)
}

/// `docs/performance.md` gets `docs/performance-shm-latency.svg`, …
fn copy_beside(file: &Path, figures: &[PathBuf]) -> Result<()> {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    for svg in figures {
        let name = svg.file_name().unwrap_or_default().to_string_lossy();
        let to = file.with_file_name(format!("{stem}-{name}"));
        fs::copy(svg, &to).context(|| to.display().to_string())?;
    }
    Ok(())
}

/// The first failure of each experiment and side in full.
fn report_failures(measured: &Measured) -> Result<()> {
    let mut seen = Vec::new();
    for (run, why) in measured.failures() {
        if !seen.contains(&(run.experiment, run.side)) {
            eprintln!("bench: {} ({}), pair {}: {why}", run.experiment, run.side, run.pair);
            seen.push((run.experiment, run.side));
        }
    }
    match measured.failures().count() {
        0 => Ok(()),
        count => fail!("{count} of {} runs have failed", measured.runs.len()),
    }
}
