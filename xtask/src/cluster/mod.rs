//! `cargo xtask cluster`: real mpirun and orteds on emulated nodes.
//!
//! Three processes matter. The *supervisor* (the xtask that was typed) forwards signals and waits.
//! Its child is *init*, process 1 of new namespaces: it makes the nodes, starts mpirun in the
//! first, and kills what mpirun leaves. When init ends, or when the supervisor is killed and takes
//! init with it, the kernel removes processes, networks, mounts and shared memory by itself.
//! The *rsh agent* is how mpirun reaches the other nodes.

mod disk;
mod environment;
mod failpoint;
mod faults;
mod init;
mod intruder;
mod job_events;
mod memory_limit;
mod mpirun;
mod network;
mod nodes;
mod options;
mod own_tmp;
mod partition;
mod processes;
pub mod rsh;
mod signals;
mod slurm;
mod stage;
mod supervise;
mod timeline;
mod user_link;
mod victim;

pub use options::ClusterOptions;

use crate::build;
use crate::debian;
use crate::error::Result;

/// Exit code when the emulation itself fails, before or beside mpirun.
pub const EMULATION_FAILED: u8 = 125;
/// Exit code when `--timeout` ended the job, as of `timeout(1)`.
pub const TIMED_OUT: i32 = 124;
/// Exit code of a cluster whose processes were all killed (`--kill-all-at`).
pub const KILLED: i32 = 137;

/// Runs the job; the result is the exit code for the shell.
pub fn run(options: &ClusterOptions) -> Result<i32> {
    options.check()?;
    match &options.root {
        Some(tree) => debian::components(tree)?,
        None if options.plain || options.openmpi.is_some() => (),
        None => build::ensure_fresh()?,
    }
    supervise::run(options)
}
