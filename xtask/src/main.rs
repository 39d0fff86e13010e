//! `cargo xtask`: the one door to building, running, testing and showing rustbtl.

mod autogroup;
mod bench;
mod build;
mod campaign;
mod clean;
mod cluster;
mod deb;
mod debian;
mod demo;
mod error;
mod install;
mod model;
mod paths;
mod report;
mod run;
mod setup;
mod sys;
mod test;
mod tree;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use cluster::rsh;

#[derive(Parser)]
#[command(name = "cargo xtask", about, disable_help_subcommand = true)]
struct Line {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install the Debian packages that are needed (as root), or say which
    Setup,
    /// Build the components into target/mca
    Build(build::BuildOptions),
    /// Put the components where Open MPI finds them
    Install(install::InstallOptions),
    /// Take back what `install` has done
    Uninstall(install::InstallOptions),
    /// Run a program with real mpirun on emulated nodes
    Cluster(Box<cluster::ClusterOptions>),
    /// Kill a node under a running job and show how it goes on; or what is logged of HPCC
    Demo(demo::DemoOptions),
    /// Run every test, from style to real programs
    Test(test::TestOptions),
    /// Checkpoint, kill and restart random jobs at random moments
    Campaign(campaign::CampaignOptions),
    /// Measure speed side by side with stock Open MPI
    Bench(bench::BenchOptions),
    /// What protection and failures cost at up to 10,000 nodes, by formulas
    Model(model::ModelOptions),
    /// A Debian package that puts the components into the installed Open MPI
    Deb(deb::DebOptions),
    /// Debian 13 with its Open MPI 5.0 in a folder, and commands that run inside
    DebianTree(debian::DebianOptions),
    /// rustbtl inside an Open MPI source tree (--with-rustbtl)
    OmpiTree(tree::TreeOptions),
    /// The parameter reference (docs/parameters.md), from the component itself
    Parameters(build::parameters::ParametersOptions),
    /// Remove what was built and what killed jobs have left
    Clean,
}

fn main() -> ExitCode {
    let words: Vec<OsString> = env::args_os().collect();
    if rsh::is_asked(&words) {
        return error::report(&rsh::run(&words), cluster::EMULATION_FAILED);
    }
    let done = match Line::parse().task {
        Task::Setup => setup::run(),
        Task::Build(options) => build::run(&options),
        Task::Install(options) => install::run(&options),
        Task::Uninstall(options) => install::take_back(&options),
        Task::Demo(options) => demo::run(&options),
        Task::Test(options) => test::run(&options),
        Task::Campaign(options) => campaign::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::Model(options) => model::run(&options),
        Task::Deb(options) => deb::run(&options),
        Task::DebianTree(options) => debian::run(&options),
        Task::OmpiTree(options) => tree::run(&options),
        Task::Parameters(options) => build::parameters::run(&options),
        Task::Clean => clean::run(),
        Task::Cluster(options) => {
            return match cluster::run(&options) {
                Ok(code) => ExitCode::from(code as u8),
                Err(failure) => error::report(&failure, cluster::EMULATION_FAILED),
            };
        }
    };
    done.map_or_else(|failure| error::report(&failure, 1), |()| ExitCode::SUCCESS)
}
