//! The command line of the `rustbtl` program: what users type, and what jobs run beside their
//! ranks.

use crate::command;
use crate::command::Restart;
use crate::coordinator::driver::event_loop;
use crate::guardian::images::ImageStore;
use crate::{agent, guardian, pmix, spare};
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

#[cfg(test)]
mod man;

/// Checkpoints of running MPI jobs, and restarts from them
#[derive(Parser)]
#[command(name = "rustbtl", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Take a checkpoint of a running job
    ///
    /// Without --all each correlated set takes a set checkpoint; a job can be restarted only from a
    /// global checkpoint.
    Checkpoint {
        /// A global checkpoint: of all sets at once, from which the whole job can be restarted
        #[arg(long)]
        all: bool,
        /// Return when the checkpoint is complete, not when it is ordered
        #[arg(long)]
        wait: bool,
        /// End the job when the checkpoint is complete (implies --all and --wait)
        #[arg(long)]
        then_exit: bool,
        /// Name of the job, or the beginning of it; can be left out if there is only one
        job: Option<String>,
    },
    /// Show a running job: ranks, nodes, sets, checkpoints, logs
    Status {
        /// As a JSON document
        #[arg(long)]
        json: bool,
        /// Name of the job, or the beginning of it; can be left out if there is only one
        job: Option<String>,
    },
    /// List the checkpoints in a directory
    #[command(alias = "lines")]
    List {
        /// What was given to mpirun as vprotocol_correlated_checkpoint_dir, or a folder in it
        directory: PathBuf,
        /// Read every image to see whether it is undamaged
        #[arg(long)]
        verify: bool,
    },
    /// Draw the timeline of a job (SVG)
    Report {
        /// Folder of a job, in what was given to mpirun as vprotocol_correlated_checkpoint_dir
        folder: PathBuf,
        /// Where the drawing goes, if not to timeline.svg in that folder
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Restart a job from its newest complete global checkpoint
    ///
    /// The exit code is that of the job.
    Restart {
        /// What was given to mpirun as vprotocol_correlated_checkpoint_dir, or a folder in it
        directory: PathBuf,
        /// Print again what any incarnation of the job has printed since the checkpoint
        #[arg(long)]
        again: bool,
        /// The mpirun to use
        #[arg(long, default_value = "mpirun", value_name = "PATH")]
        mpirun: PathBuf,
        /// Do not read all images beforehand; a damaged one is refused by its rank's node
        #[arg(long)]
        no_verify: bool,
        /// Options for mpirun: hostfile, MCA parameters, ... (the number of ranks is known)
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
        options: Vec<OsString>,
    },
    /// Started by the first guardian of a node
    #[command(hide = true)]
    Agent { directory: PathBuf, local: Option<PathBuf> },
    /// Started by mpirun
    #[command(hide = true)]
    Coordinator,
    /// Started by a guardian whose program cannot disconnect from Open MPI's runtime
    #[command(hide = true)]
    Leave,
    /// Started by the daemon of a node without ranks
    #[command(hide = true)]
    Spare,
    /// Started by the guardian that waits for a rank on such a node
    #[command(hide = true)]
    Proxy(spare::Proxy),
    /// In the command line of a restarted job, in place of its program
    #[command(hide = true)]
    Restored,
}

fn run(command: Command, images: &dyn ImageStore) -> Result<(), String> {
    match command {
        Command::Checkpoint { all, wait, then_exit, job } => {
            command::checkpoint(job.as_deref(), all, wait, then_exit)
        }
        Command::Status { json, job } => command::status(job.as_deref(), json),
        Command::List { directory, verify } => command::list(&directory, verify, images),
        Command::Report { folder, output } => command::report(&folder, output.as_deref()),
        Command::Restart { directory, again, mpirun, no_verify, options } => {
            command::restart(&Restart { directory, again, mpirun, no_verify, options }, images)
        }
        Command::Agent { directory, local } => agent::run(&directory, local.as_deref()),
        Command::Coordinator => event_loop::run(),
        Command::Leave => pmix::leave(),
        Command::Spare => spare::run(),
        Command::Proxy(proxy) => proxy.run(),
        Command::Restored => {
            Err("nothing was restored: use `rustbtl restart DIR`, with rustbtl's components \
                 where mpirun finds them on all nodes"
                .into())
        }
    }
}

/// The program; `images` writes and restores images.
pub fn main(images: Arc<dyn ImageStore>) -> ExitCode {
    // Started by orted in place of each rank's program, whose arguments are not parsed here.
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some((first, program)) = words.split_first()
        && first == "guardian"
    {
        guardian::run(program, images);
    }
    match run(Cli::parse().command, &*images) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            report!("{problem}");
            ExitCode::FAILURE
        }
    }
}
