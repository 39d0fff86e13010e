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
pub use files::hex;
pub use source::{cache, mirror};

/// The command line of `cargo xtask ompi-tree`.
#[derive(Args)]
pub struct TreeOptions {
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
        /// How it is configured, beside what is slim about it
        #[arg(long, default_value = "standard")]
        variant: Variant,
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

/// What rustbtl has to work with, beside a version as it is by default.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Variant {
    /// As the version does without being told: components are files in 4.1, and a part of the
    /// libraries in 5.0, which has ULFM, too
    Standard,
    /// Components are files, opened at run time (5.0)
    Dso,
    /// Components are a part of the libraries (4.1)
    Static,
    /// Without ULFM (5.0)
    NoFt,
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

    /// What it can be built as, beside the standard.
    pub fn variants(self) -> &'static [Variant] {
        match self {
            Version::V41 => &[Variant::Static],
            Version::V50 => &[Variant::Dso, Variant::NoFt],
        }
    }
}

impl Variant {
    /// As folders and users name it.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Standard => "standard",
            Variant::Dso => "dso",
            Variant::Static => "static",
            Variant::NoFt => "no-ft",
        }
    }
}

/// Puts everything into the tree: what it is, and how many files were touched.
pub fn prepare(tree: &Path) -> Result<(Version, usize)> {
    prepare::run(tree).map(|prepared| (prepared.version, prepared.touched))
}

/// Does what was asked for.
pub fn run(options: &TreeOptions) -> Result<()> {
    match &options.task {
        Task::Prepare { dir } => {
            let (version, _) = prepare(dir)?;
            println!(
                "{} is ready: ./autogen.pl && ./configure --with-rustbtl (Open MPI {})",
                dir.display(),
                version.name()
            );
        }
        Task::Build { version, variant } => {
            let installed = build(*version, *variant)?;
            println!("{}", installed.prefix.display());
        }
    }
    Ok(())
}
