//! `cargo xtask test`: everything, in tiers that run beside each other where that is safe.

mod btl;
mod checkpoint_faults;
mod checkpoint_restart;
mod cluster;
mod collective_clock;
pub mod collectives_component;
mod coordinator_failover;
mod crates;
mod debian;
mod divergence;
mod errors;
mod examples;
pub mod file_contents;
mod fuzz;
mod global_arrays;
mod guardians;
mod header;
mod in_place_replies;
pub mod job;
mod local_storage;
mod lost_output;
mod miri;
pub mod mpi;
mod mpi_io;
mod mpich;
mod node_failure;
mod node_names;
mod one_sided;
pub mod one_sided_component;
mod parameters;
mod partitions;
mod phase_failures;
mod plan;
mod programs;
mod rdma;
mod replay;
mod room;
mod schedule;
pub mod scratch;
mod screen;
mod shadow_verbs;
mod shared_by_sets;
mod signals;
mod slurm;
mod slurm_cluster;
mod source;
mod spare_nodes;
mod spawned;
mod standard_input;
mod standstill;
pub mod storage;
mod summary;
mod surroundings;
mod suspension;
mod time_determinants;
mod trees;
mod triggers;
pub mod workloads;

use clap::Args;

use crate::autogroup::NoGroups;
use crate::error::{Result, fail};
use crate::setup;
use crate::tree::{Variant, Version};
use summary::Summary;

/// The command line of `cargo xtask test`.
#[derive(Args)]
pub struct TestOptions {
    /// Only what needs no MPI
    #[arg(long)]
    fast: bool,
    /// Everything, before a release: also the source trees of both versions of Open MPI, built and
    /// tested in all variants (--trees), our MPI programs as protected jobs (--protected), faults
    /// by the clock (--checkpoint-faults), cargo-deny, and the fuzz targets for five minutes each.
    /// Takes hours
    #[arg(long, conflicts_with_all = ["fast", "trees", "protected", "no_trees"])]
    long: bool,
    /// Only cases of the MPI tiers whose name contains TEXT
    #[arg(long, value_name = "TEXT", conflicts_with = "fast")]
    only: Option<String>,
    /// Also faults at moments by the clock while a checkpoint is taken
    #[arg(long, conflicts_with = "fast")]
    checkpoint_faults: bool,
    /// Only our MPI programs, as protected jobs that have a directory for checkpoints, so that
    /// determinants are recorded
    #[arg(long, conflicts_with = "fast")]
    protected: bool,
    /// Only jobs under real Slurm, on emulated nodes: all of them, also those that take minutes,
    /// of which a run without options does some
    #[arg(long, conflicts_with_all = ["fast", "protected", "trees"])]
    slurm: bool,
    /// Only verbs over two Soft-RoCE adapters, in a virtual machine whose kernel and qemu are
    /// fetched once
    #[arg(long, conflicts_with_all = ["fast", "protected", "trees", "slurm"])]
    rdma: bool,
    /// Only Debian 13 with its own Open MPI 5.0, in a tree of its packages, which is made once (as
    /// root). With --long also on three nodes and with our one-sided component
    #[arg(long, conflicts_with_all = ["fast", "protected", "trees", "slurm", "rdma"])]
    debian13: bool,
    /// Only Open MPI built with rustbtl in it, one version or both; builds what was not built yet
    #[arg(long, value_name = "VERSION", num_args = 0..=1, conflicts_with = "fast")]
    trees: Option<Option<Version>>,
    /// Of those, only the ones that are built like this; with --only as they are by default, unless
    /// this says otherwise
    #[arg(long, requires = "trees")]
    variant: Option<Variant>,
    /// Without Open MPI built with rustbtl in it. A run tests what was built before, and builds
    /// nothing (--trees or --long do)
    #[arg(long, conflicts_with_all = ["fast", "trees"])]
    no_trees: bool,
    /// So many jobs on emulated nodes at a time
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=16))]
    lanes: u8,
}

/// Runs the tests; fails if one fails.
pub fn run(options: &TestOptions) -> Result<()> {
    setup::check()?;
    room::check(options.fast)?;
    let _no_groups = (!options.fast).then(NoGroups::begin);
    let summary = Summary::new(options.only.clone());
    schedule::run(&summary, plan::tasks(options), options.lanes.into());
    if summary.finish() { Ok(()) } else { fail!("some tests failed") }
}
