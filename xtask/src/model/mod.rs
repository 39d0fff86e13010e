//! `cargo xtask model`: what protection and failures cost at up to 10,000 nodes, on paper.

mod formulas;

use std::fs;

use clap::Args;

use crate::bench::chart::{Chart, Curve};
use crate::bench::document::replace;
use crate::bench::stats::Spread;
use crate::error::{Context, Result, failure};
use crate::paths;
use formulas::Job;

/// The command line of `cargo xtask model`.
#[derive(Args)]
pub struct ModelOptions {
    /// Write the tables of docs/performance.md and its figure anew
    #[arg(long)]
    write: bool,
    /// A program of one's own: payload that leaves a rank for other nodes, bytes a second
    #[arg(long, value_name = "BYTES")]
    leaving: Option<f64>,
    /// How fast it is copied into the log, bytes a second
    #[arg(long, value_name = "BYTES", default_value_t = COPYING)]
    copying: f64,
    /// Memory that a rank's log may take, bytes
    #[arg(long, value_name = "BYTES", default_value_t = BUDGET)]
    budget: f64,
    /// What a checkpoint costs the program: pause, and what it loses while images are stored
    #[arg(long, value_name = "SECS", default_value_t = 3.0)]
    checkpoint: f64,
    /// Until the ranks of a failed node run again
    #[arg(long, value_name = "SECS", default_value_t = RESTORE)]
    restore: f64,
    /// How long a failed set takes to repeat something, of the time that it took first
    #[arg(long, value_name = "PART", default_value_t = 1.0)]
    replay: f64,
    /// For which part of a recovery all others wait (1: a tight halo exchange, 0: nobody waits)
    #[arg(long, value_name = "PART", default_value_t = 1.0)]
    coupling: f64,
    /// Until a batch system runs a failed job again, without reading images
    #[arg(long, value_name = "SECS", default_value_t = QUEUE)]
    queue: f64,
    /// Mean time between failures of a node
    #[arg(long, value_name = "YEARS", default_value_t = NODE_MTBF_YEARS)]
    mtbf_years: f64,
}

/// Into memory that the log has not used before, two nodes at once: measured (docs/performance.md).
/// What it has used before is kept (docs/adr/0027), and is quicker.
const COPYING: f64 = 0.6e9;
/// The default of `log_budget`.
const BUDGET: f64 = (1u64 << 30) as f64;
const DETECT: f64 = 0.01;
/// Images of some GiB, from memory of a neighbour.
const RESTORE: f64 = 5.0;
const QUEUE: f64 = 60.0;
const NODE_MTBF_YEARS: f64 = 5.0;
const YEAR: f64 = 365.25 * 24.0 * 3600.0;
/// A checkpoint of 4 GiB a rank: pause and what is lost beside storing.
const CHECKPOINT: f64 = 3.0;

const NODES: [f64; 4] = [10.0, 100.0, 1_000.0, 10_000.0];
const FIGURE: &str = "docs/performance-model.svg";
const PAGE: &str = "docs/performance.md";

/// With everything that is not the program's as above.
const fn job(leaving: f64, replay: f64, coupling: f64) -> Job {
    Job {
        leaving,
        copying: COPYING,
        budget: BUDGET,
        checkpoint: CHECKPOINT,
        detect: DETECT,
        restore: RESTORE,
        replay,
        coupling,
        queue: QUEUE,
        node_mtbf: NODE_MTBF_YEARS * YEAR,
    }
}

/// Programs with the numbers that were measured of them (docs/performance.md, "A model").
const PROGRAMS: [(&str, Job); 5] = [
    ("task farm", job(0.1e6, 0.87, 0.1)),
    ("halo, 8 B", job(0.12e6, 0.13, 1.0)),
    ("halo, 64 KiB", job(27e6, 0.69, 1.0)),
    ("CG.B", job(34e6, 1.0, 1.0)),
    ("FT.B", job(170e6, 1.0, 1.0)),
];

/// Prints the model, or writes it.
pub fn run(options: &ModelOptions) -> Result<()> {
    let programs: Vec<(String, Job)> = match options.leaving {
        Some(leaving) => vec![("this program".into(), options.job(leaving))],
        None => PROGRAMS.iter().map(|(name, job)| ((*name).into(), *job)).collect(),
    };
    let (costs, nodes) = (costs(&programs), efficiency(&programs));
    if !options.write || options.leaving.is_some() {
        print!("{costs}\n{nodes}");
        return Ok(());
    }
    let page = paths::root().join(PAGE);
    let mut text = fs::read_to_string(&page).context(|| PAGE.into())?;
    for (name, by) in [("model-loss", costs), ("model-nodes", nodes)] {
        text = replace(&text, name, &by)
            .ok_or_else(|| failure!("{PAGE} has no marks <!-- bench:{name} -->"))?;
    }
    fs::write(&page, text).context(|| PAGE.into())?;
    let figure = figure().draw().ok_or_else(|| failure!("nothing to draw"))?;
    fs::write(paths::root().join(FIGURE), figure).context(|| FIGURE.into())
}

impl ModelOptions {
    fn job(&self, leaving: f64) -> Job {
        Job {
            leaving,
            copying: self.copying,
            budget: self.budget,
            checkpoint: self.checkpoint,
            detect: DETECT,
            restore: self.restore,
            replay: self.replay,
            coupling: self.coupling,
            queue: self.queue,
            node_mtbf: self.mtbf_years * YEAR,
        }
    }
}

fn bytes(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{:.1} GB", value / 1e9),
        value if value >= 1e7 => format!("{:.0} MB", value / 1e6),
        value => format!("{:.1} MB", value / 1e6),
    }
}

/// Overhead, memory, and what a failure costs.
fn costs(programs: &[(String, Job)]) -> String {
    let mut text =
        "| program | leaves a rank | interval | log | overhead | suspended | one set alone | \
                    all, in the job | expected | whole restart | expected / restart |\n\
                    |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
            .to_string();
    for (name, job) in programs {
        let loss = job.loss();
        text += &format!(
            "| {name} | {}/s | {:.0} s | {} | {:.1} % | {:.0} % | {:.0} s | {:.0} s | \
             **{:.0} s** | {:.0} s | {:.2} |\n",
            bytes(job.leaving),
            job.interval(),
            bytes(job.log_bytes()),
            job.overhead() * 100.0,
            job.suspended() * 100.0,
            loss.alone,
            loss.global,
            loss.expected,
            loss.restart,
            loss.expected / loss.restart
        );
    }
    text
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// Efficiency for each number of nodes.
fn efficiency(programs: &[(String, Job)]) -> String {
    let heads: Vec<String> = NODES.iter().map(|nodes| thousands(*nodes)).collect();
    let mut text = format!("| program | {} |\n|---|--:|--:|--:|--:|\n", heads.join(" nodes | "));
    for (name, job) in programs {
        let cells: Vec<String> =
            NODES.iter().map(|nodes| percent(job.efficiency(*nodes))).collect();
        text += &format!("| {name} | {} |\n", cells.join(" | "));
    }
    // Of what is the program's own it knows nothing.
    if let Some((_, job)) = programs.first() {
        let cells: Vec<String> =
            NODES.iter().map(|nodes| percent(job.efficiency_of_restarts(*nodes))).collect();
        text += &format!("| any, whole restart | {} |\n", cells.join(" | "));
    }
    text
}

fn thousands(nodes: f64) -> String {
    if nodes >= 1e3 { format!("{:.0},000", nodes / 1e3) } else { format!("{nodes:.0}") }
}

/// What is lost of the time, for each program and for whole restarts.
fn figure() -> Chart {
    // The others lose as much as one of these.
    let shown = [
        ("task farm: a set is rolled back alone", PROGRAMS[0].1, "#2a9d8f"),
        ("halo, 64 KiB: mostly all, in the job", PROGRAMS[2].1, "#0c5c8c"),
    ];
    let exact = |value: f64| Spread { low: value, median: value, high: value };
    let points = |lost: &dyn Fn(f64) -> f64| {
        let at = |step: i32| 10f64.powf(1.0 + f64::from(step) / 4.0);
        (0..=12).map(|step| (at(step), exact(lost(at(step)) * 100.0))).collect()
    };
    let mut curves: Vec<Curve> = shown
        .into_iter()
        .map(|(name, job, colour)| Curve {
            name: name.into(),
            colour,
            dash: "",
            points: points(&|nodes| 1.0 - job.efficiency(nodes)),
        })
        .collect();
    let restarts = PROGRAMS[0].1;
    curves.push(Curve {
        name: "either, whole restart".into(),
        colour: "#6c757d",
        dash: "7 4",
        points: points(&|nodes| 1.0 - restarts.efficiency_of_restarts(nodes)),
    });
    Chart {
        title: "Time lost to protection and failures (model)".into(),
        subtitle: format!(
            "a node fails once in {NODE_MTBF_YEARS:.0} years; a checkpoint costs \
             {CHECKPOINT:.0} s; a restart by the batch system {QUEUE:.0} s"
        ),
        across: "nodes",
        across_marks: (thousands, 10.0),
        upwards: "lost, of all time",
        write: |percent| format!("{percent} %"),
        curves,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_a_row_for_each_program_and_the_figure_is_drawn() {
        let programs = [("a".to_owned(), formulas::tests::JOB)];
        let row = "| a | 10 MB/s | 200 s | 4.0 GB | 2.0 % | 0 % | 53 s | 103 s | **53 s** | \
                   163 s | 0.33 |\n";
        assert!(costs(&programs).ends_with(row), "{}", costs(&programs));
        let nodes = efficiency(&programs);
        assert!(nodes.contains("| 10 nodes | 100 nodes | 1,000 nodes | 10,000 |"), "{nodes}");
        assert!(nodes.contains("| a | 98.0 % | 98.0 % | 97.9 % | 97.5 % |\n"), "{nodes}");
        let drawn = figure().draw().unwrap();
        assert_eq!(drawn.matches("<polyline").count(), 3);
    }

    #[test]
    fn the_page_has_what_the_model_says() {
        let page = fs::read_to_string(paths::root().join(PAGE)).unwrap();
        let programs: Vec<(String, Job)> =
            PROGRAMS.iter().map(|(name, job)| ((*name).into(), *job)).collect();
        for (name, by) in [("model-loss", costs(&programs)), ("model-nodes", efficiency(&programs))]
        {
            assert_eq!(
                replace(&page, name, &by).as_ref(),
                Some(&page),
                "cargo xtask model --write"
            );
        }
    }
}
