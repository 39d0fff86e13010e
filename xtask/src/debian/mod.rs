//! `cargo xtask debian-tree`: Debian 13 in a folder, made of its packages, with the Open MPI 5.0
//! that it has: what a user of that release has, on the machine where we build.

mod enter;
mod make;

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, Subcommand};

use crate::error::{Context, Result, failure};
use crate::{build, paths, run, sys};

pub use enter::{enter, storage, target};
pub use make::{made, make};

/// The command line of `cargo xtask debian-tree`.
#[derive(Args)]
pub struct DebianOptions {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Make the tree, in a cache (as root; some minutes), and print where it is
    Build,
    /// Build our components inside it, for the Open MPI that it has
    Components,
    /// Run a command inside it. What it changes there is gone afterwards
    Run {
        /// The tree, if it is another one
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
        /// Show this folder of the machine inside. Several times if given several times
        #[arg(long, value_name = "FOLDER")]
        show: Vec<PathBuf>,
        /// The command and its arguments, after `--`
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// What `run` starts in namespaces of its own
    #[command(hide = true)]
    Enter {
        tree: PathBuf,
        #[arg(long)]
        show: Vec<PathBuf>,
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

/// Does what was asked for.
pub fn run(options: &DebianOptions) -> Result<()> {
    match &options.task {
        Task::Build => println!("{}", make()?.display()),
        Task::Components => components(&make()?)?,
        Task::Run { root, show, command } => {
            let tree = match root {
                Some(root) => root.clone(),
                None => make()?,
            };
            run::check(&mut inside_with(&tree, show, command)?)?;
        }
        Task::Enter { tree, show, command } => {
            let folder = enter::storage()?;
            sys::mount("", "/", "", libc::MS_REC | libc::MS_PRIVATE, "")
                .context(|| "making the mounts private".into())?;
            enter(tree, &folder, show)?;
            let program = command[0].display();
            let failed = Command::new(&command[0]).args(&command[1..]).exec();
            return Err(failure!("starting {program} in {}: {failed}", tree.display()));
        }
    }
    Ok(())
}

/// A command that runs inside the tree, with mounts of its own.
pub fn inside(tree: &Path, command: &[OsString]) -> Result<Command> {
    inside_with(tree, &[], command)
}

fn inside_with(tree: &Path, show: &[PathBuf], command: &[OsString]) -> Result<Command> {
    let me = env::current_exe().context(|| "this program's file".into())?;
    let mut unshare = Command::new("unshare");
    if sys::euid() != 0 {
        unshare.arg("--map-root-user");
    }
    unshare.arg("--mount").arg(me).args(["debian-tree", "enter"]).arg(tree);
    for folder in show {
        unshare.arg("--show").arg(folder);
    }
    unshare.arg("--");
    unshare.args(command).envs(variables());
    Ok(unshare)
}

/// The same for who is inside already.
pub fn within(program: &str) -> Command {
    let mut command = Command::new(program);
    command.envs(variables());
    command
}

/// With these, xtask builds and installs for the tree's Open MPI.
pub fn variables() -> impl Iterator<Item = (&'static str, OsString)> {
    let compiled = paths::target().join("release");
    let target = enter::target();
    [("CARGO_TARGET_DIR", target.into()), (build::COMPILED, compiled.into())].into_iter()
}

/// Builds our components for the tree's Open MPI, with its compiler. What is Rust is the same for
/// all, and is compiled outside.
pub fn components(tree: &Path) -> Result<()> {
    build::compile()?;
    let me = env::current_exe().context(|| "this program's file".into())?;
    let mut build = inside(tree, &[me.into(), "build".into(), "--unless-fresh".into()])?;
    run::to_stderr(&mut build)?;
    run::check(&mut build)
}
