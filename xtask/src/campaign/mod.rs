//! `cargo xtask campaign`: random programs, shapes, moments of lines and of deaths; each run must
//! give the answer of an undisturbed one.

mod draw;
mod life;
mod live;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use crate::error::{Context, Failure, Result, fail};
use crate::{build, paths};
use draw::{PROGRAMS, Plan};
use life::{Known, Run};

/// The command line of `cargo xtask campaign`.
#[derive(Args)]
pub struct Options {
    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 25)]
    runs: u64,
    /// What is drawn; the same seed gives the same runs
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Number of the first run
    #[arg(long, value_name = "K", default_value_t = 0)]
    first: u64,
    /// Lines that are asked for in each life (default: 1 to 5, by chance)
    #[arg(long, value_name = "L")]
    lines: Option<u32>,
    /// Break programs, nodes and cables of jobs that go on, in place of whole jobs
    #[arg(long, conflicts_with = "lines")]
    live: bool,
    /// Begin no run after so many minutes
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,
    /// Where the result goes (default: out/campaign.json)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What all runs together have done.
#[derive(Default)]
struct Sum {
    runs: u64,
    lines: usize,
    deaths: usize,
    restarts: usize,
    failed: Vec<u64>,
    all: Vec<Value>,
}

/// Runs the campaign; fails if a run failed.
pub fn run(options: &Options) -> Result<()> {
    build::ensure_fresh()?;
    let end = options.minutes.map(|m| Instant::now() + Duration::from_secs_f64(m * 60.0));
    let (mut known, mut known_live) = (Known::default(), live::Known::default());
    let mut sum = Sum::default();
    for number in options.first..options.first + options.runs {
        if end.is_some_and(|end| Instant::now() >= end) {
            println!("time is over: {} of {} runs", sum.runs, options.runs);
            break;
        }
        if options.live {
            one_live(options, number, &mut known_live, &mut sum);
        } else {
            one(options, number, &mut known, &mut sum);
        }
        write(options, &sum)?;
    }
    println!(
        "\n{} runs, seed {}: {} lines, {} deaths, {} restarts, {} runs failed",
        sum.runs,
        options.seed,
        sum.lines,
        sum.deaths,
        sum.restarts,
        sum.failed.len()
    );
    if sum.failed.is_empty() { Ok(()) } else { fail!("runs that failed: {:?}", sum.failed) }
}

fn one_live(options: &Options, number: u64, known: &mut live::Known, sum: &mut Sum) {
    let plan = live::Plan::draw(options.seed, number);
    let name = PROGRAMS[plan.program].0.name;
    let start = Instant::now();
    let mut run = live::Run::default();
    let result = run.go(&plan, known);
    let seconds = start.elapsed().as_secs_f64();
    let word = if result.is_ok() { "ok  " } else { "FAIL" };
    let (nodes, ppn) = plan.shape;
    let faults = plan.faults.join(" ");
    println!(
        "{word} {number:4}  {name}: {nodes} × {ppn}; {faults}; {} broke, {} went back \
         ({seconds:.0} s){}",
        run.broken, run.back, run.note
    );
    if let Err(Failure(reason)) = &result {
        let again = format!("--live --seed {} --first {number} --runs 1", options.seed);
        println!("{reason}\n  again: cargo xtask campaign {again}");
        sum.failed.push(number);
    }
    sum.runs += 1;
    sum.deaths += run.broken;
    sum.restarts += run.back;
    sum.all.push(json!({
        "run": number, "program": name, "shape": format!("{nodes} × {ppn}"), "faults": faults,
        "broken": run.broken, "back": run.back, "seconds": seconds,
        "note": run.note, "failure": result.err().map(|Failure(reason)| reason),
    }));
}

fn one(options: &Options, number: u64, known: &mut Known, sum: &mut Sum) {
    let plan = Plan::draw(options.seed, number, options.lines);
    let name = PROGRAMS[plan.program].0.name;
    let start = Instant::now();
    let mut run = Run::default();
    let result = run.go(&plan, known);
    let seconds = start.elapsed().as_secs_f64();
    let path = shapes(&plan);
    let word = if result.is_ok() { "ok  " } else { "FAIL" };
    println!(
        "{word} {number:4}  {name}: {path}; {} lines, {} restarts ({seconds:.0} s){}",
        run.lines, run.restarts, run.note
    );
    if let Err(Failure(reason)) = &result {
        let seed = options.seed;
        let lines = options.lines.map_or(String::new(), |lines| format!(" --lines {lines}"));
        let again = format!("--seed {seed} --first {number} --runs 1{lines}");
        println!("{reason}\n  again: cargo xtask campaign {again}");
        sum.failed.push(number);
    }
    sum.runs += 1;
    sum.lines += run.lines;
    sum.deaths += run.deaths;
    sum.restarts += run.restarts;
    sum.all.push(json!({
        "run": number, "program": name, "shapes": path, "lines": run.lines,
        "deaths": run.deaths, "restarts": run.restarts, "seconds": seconds,
        "note": run.note.trim(), "failure": result.err().map(|Failure(reason)| reason),
    }));
}

/// Where the job lives, and lives again.
fn shapes(plan: &Plan) -> String {
    let all = plan.lives.iter().map(|life| life.shape).chain([plan.last]);
    let texts: Vec<String> = all.map(|(nodes, ppn)| format!("{nodes} × {ppn}")).collect();
    texts.join(" → ")
}

fn write(options: &Options, sum: &Sum) -> Result<()> {
    let file = options.json.clone().unwrap_or_else(|| paths::out().join("campaign.json"));
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).context(|| folder.display().to_string())?;
    }
    let document = json!({
        "seed": options.seed, "lines_a_life": options.lines, "first": options.first,
        "runs": sum.runs, "lines": sum.lines,
        "deaths": sum.deaths, "restarts": sum.restarts, "failed": sum.failed, "all": sum.all,
    });
    fs::write(&file, format!("{document:#}\n")).context(|| file.display().to_string())
}
