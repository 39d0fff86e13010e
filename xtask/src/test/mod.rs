//! `cargo xtask test`: everything, in tiers from quick to slow.

mod bad_moments;
mod cluster;
mod coordinator;
mod dates;
mod errors;
mod examples;
mod guardians;
mod header;
pub mod job;
mod line_faults;
mod lines;
pub mod lives;
mod local_storage;
mod lost_output;
pub mod mpi;
mod node_loss;
mod one_sided;
mod programs;
mod replay;
pub mod scratch;
mod slurm;
mod spares;
mod summary;
mod tiers;
mod trees;
mod triggers;

use clap::Args;

use crate::error::{Result, fail};
use crate::tree::{Variant, Version};
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
    /// Also faults at moments by the clock while a line is taken
    #[arg(long, conflicts_with = "fast")]
    line_faults: bool,
    /// Only our MPI programs, as protected jobs whose lines have a directory, so that the outcomes
    /// of nondeterministic calls are recorded
    #[arg(long, conflicts_with = "fast")]
    protected: bool,
    /// Only Open MPI built with rustbtl in it, one version or both; builds what was not built yet
    #[arg(long, value_name = "VERSION", num_args = 0..=1, conflicts_with = "fast")]
    trees: Option<Option<Version>>,
    /// Of those, only the ones that are built like this; with --only as they are by default, unless
    /// this says otherwise
    #[arg(long, requires = "trees")]
    variant: Option<Variant>,
    /// Without Open MPI built with rustbtl in it, which takes 8 minutes and network where that was
    /// not done before
    #[arg(long, conflicts_with_all = ["fast", "trees"])]
    no_trees: bool,
}

/// Runs the tests; fails if one fails.
pub fn run(options: &Options) -> Result<()> {
    setup::run()?;
    let mut summary = Summary::new(options.only.clone());
    if let Some(version) = options.trees {
        // What --only leaves out has to be built all the same.
        let default = options.only.as_ref().map(|_| Variant::Standard);
        trees::run(&mut summary, version, options.variant.or(default));
        return if summary.finish() { Ok(()) } else { fail!("some tests failed") };
    }
    if options.protected {
        if summary.check("build of the component", build::ensure_fresh) {
            summary.tier("MPI programs (tests/mpi), outcomes recorded");
            mpi::run_over(&mut summary, &mpi::Over::Protected);
        }
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
            lines::run(&mut summary);
            replay::run(&mut summary);
            triggers::run(&mut summary);
            slurm::run(&mut summary);
            line_faults::run(&mut summary, options.line_faults);
            guardians::run(&mut summary);
            node_loss::run(&mut summary);
            dates::run(&mut summary);
            local_storage::run(&mut summary);
            lost_output::run(&mut summary);
            coordinator::run(&mut summary);
            spares::run(&mut summary);
            bad_moments::run(&mut summary);
            one_sided::run(&mut summary);
            programs::run(&mut summary);
            examples::run(&mut summary);
            trees::quick(&mut summary);
            // What is wanted of a tree is said with --trees.
            if options.only.is_none() && !options.no_trees {
                trees::some(&mut summary);
            }
        }
    }
    if summary.finish() { Ok(()) } else { fail!("some tests failed") }
}
