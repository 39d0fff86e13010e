//! `cargo xtask ompi-tree`: rustbtl inside an Open MPI source tree (configure-snippets/README.md).

mod autotools;
mod core;
mod files;
mod prepare;
mod source;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};

use crate::error::Result;

pub use autotools::{Installed, build, was_built};

/// The command line of `cargo xtask ompi-tree`.
#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Put everything for --with-rustbtl into an Open MPI source tree
    Prepare {
        /// Top of the tree (where autogen.pl is)
        dir: PathBuf,
    },
    /// Build and install a slim Open MPI with rustbtl in it, in a cache; prints where
    Build {
        /// Which Open MPI
        #[arg(long)]
        version: Version,
        /// How its components are linked, if not as that version does by default
        #[arg(long)]
        link: Option<Link>,
    },
}

/// The versions that rustbtl is written for.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Version {
    /// 4.1 (with ORTE)
    #[value(name = "4.1")]
    V41,
    /// 5.0 (with PRRTE)
    #[value(name = "5.0")]
    V50,
}

/// How components get into a process.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Link {
    /// Each is a file of its own, opened at run time (default of 4.1)
    Dso,
    /// They are part of libmpi (default of 5.0)
    Static,
}

impl Version {
    /// Both.
    pub const ALL: [Version; 2] = [Version::V41, Version::V50];

    /// As one says it.
    pub fn name(self) -> &'static str {
        match self {
            Version::V41 => "4.1",
            Version::V50 => "5.0",
        }
    }

    /// What configure does without being told.
    pub fn default_link(self) -> Link {
        match self {
            Version::V41 => Link::Dso,
            Version::V50 => Link::Static,
        }
    }
}

/// Puts everything into the tree: what it is, and how many files were touched.
pub fn prepare(tree: &Path) -> Result<(Version, usize)> {
    prepare::run(tree).map(|prepared| (prepared.version, prepared.touched))
}

/// Does what was asked for.
pub fn run(options: &Options) -> Result<()> {
    match &options.task {
        Task::Prepare { dir } => {
            let (version, _) = prepare(dir)?;
            println!(
                "{} is ready: ./autogen.pl && ./configure --with-rustbtl (Open MPI {})",
                dir.display(),
                version.name()
            );
        }
        Task::Build { version, link } => {
            let installed = build(*version, link.unwrap_or(version.default_link()))?;
            println!("{}", installed.prefix.display());
        }
    }
    Ok(())
}
