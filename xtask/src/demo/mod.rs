//! `cargo xtask demo`: what rustbtl does for a job, shown on emulated nodes.

pub mod hpcc;
mod recovery;
mod traffic;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::error::{Context, Result};
use crate::run;

/// The command line of `cargo xtask demo`.
#[derive(Args)]
pub struct DemoOptions {
    /// Instead of a node that is killed: HPCC stock and protected, what was logged and why
    #[arg(long)]
    traffic: bool,
}

/// Runs one of them.
pub fn run(options: &DemoOptions) -> Result<()> {
    if options.traffic { traffic::run() } else { recovery::run() }
}

/// Makes a PNG beside an SVG.
fn png(svg: &Path) -> Result<PathBuf> {
    let png = svg.with_extension("png");
    let mut convert = Command::new("rsvg-convert");
    run::check(convert.args(["--zoom", "2", "--output"]).arg(&png).arg(svg))
        .context(|| format!("the PNG (the figure is in {})", svg.display()))?;
    Ok(png)
}
