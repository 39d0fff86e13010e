//! `cargo xtask test`: everything, in tiers from quick to slow.

mod cluster;
mod errors;
mod guardians;
mod header;
mod job;
mod mpi;
mod programs;
mod scratch;
mod summary;
mod tiers;
mod trees;

use clap::Args;

use crate::error::{Result, fail};
use crate::{build, setup};
use summary::Summary;

/// The command line of `cargo xtask test`.
#[derive(Args)]
pub struct Options {
    /// Only what needs no MPI
    #[arg(long)]
    fast: bool,
    /// Only cases of the MPI tiers whose name contains TEXT
    #[arg(long, value_name = "TEXT", conflicts_with = "fast")]
    only: Option<String>,
    /// Only Open MPI 4.1 and 5.0 built with rustbtl in them; builds both where that was not done
    #[arg(long, conflicts_with = "fast")]
    trees: bool,
}

/// Runs the tests; fails if one fails.
pub fn run(options: &Options) -> Result<()> {
    setup::run()?;
    let mut summary = Summary::new(options.only.clone());
    if options.trees {
        trees::run(&mut summary);
        return if summary.finish() { Ok(()) } else { fail!("some tests failed") };
    }
    if options.only.is_none() {
        tiers::run(&mut summary);
    }
    if !options.fast {
        cluster::run(&mut summary);
        summary.tier("component");
        let built = summary.check("build of the component", build::ensure_fresh);
        mpi::run(&mut summary, built);
        if built {
            errors::run(&mut summary);
            guardians::run(&mut summary);
            programs::run(&mut summary);
            trees::quick(&mut summary);
        }
    }
    if summary.finish() { Ok(()) } else { fail!("some tests failed") }
}
