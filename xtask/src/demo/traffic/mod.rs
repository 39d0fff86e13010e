//! `cargo xtask demo --traffic`: HPCC on emulated nodes, stock and protected, and what protection
//! logged.

mod figure;
mod plot;
mod runs;
mod table;
mod units;

use std::fs;

use super::png;
use crate::error::{Context, Result};
use crate::{build, paths, setup};

/// Emulated nodes, and ranks on each.
const NODES: u32 = 3;
const PPN: u32 = 2;

/// The ways to make sets that are compared; the figure shows the traffic of the second.
const POLICIES: [&str; 3] = ["core", "node", "all"];

/// Runs everything and shows the results.
pub fn run() -> Result<()> {
    setup::run()?;
    println!(
        "HPCC (HPL, PTRANS, RandomAccess, FFT, STREAM, DGEMM, latency and bandwidth), unchanged \
         from Debian,\non {NODES} emulated nodes × {PPN} ranks: first stock Open MPI, then \
         protected with three kinds of sets.\n"
    );
    build::ensure_optimised()?;
    let stock = runs::stock()?;
    let mut protected = Vec::new();
    for policy in POLICIES {
        protected.push(runs::protected(policy)?);
    }
    println!();
    print!("{}", table::verification(&stock, &protected));
    print!("{}", table::speed(&stock, &protected));
    print!("{}", table::logs(&protected));
    for run in &protected {
        run.check_log()?;
    }
    draw(&protected)
}

fn draw(protected: &[runs::TrafficRun]) -> Result<()> {
    let jobs: Vec<_> = protected.iter().filter_map(|run| run.job.as_ref()).collect();
    let folder = paths::out().join("demo");
    let svg = folder.join("traffic.svg");
    fs::write(&svg, figure::draw(&jobs)).context(|| svg.display().to_string())?;
    println!("\nFigure: {} and .svg", png(&svg)?.display());
    println!("Reports: {}/*/report.json", folder.display());
    Ok(())
}
