//! `cargo xtask build`: from the Rust core and the C glue to what Open MPI loads.

mod fresh;
mod glue;
pub mod openmpi;
mod symbols;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;

use clap::Args;

use crate::error::{Context, Result, failure};
use crate::{paths, run, sys};

pub use glue::help_files;
pub use openmpi::{COMPONENT_PATH, component_folder, prefix};

/// A shared object that Open MPI loads.
pub struct Component {
    /// `mca_<framework>_<name>`: its file and, with `_component`, its one exported symbol.
    pub name: &'static str,
    /// Its C files: all in glue-c/ that start with one of these.
    sources: &'static [&'static str],
}

/// Everything that is built.
pub const COMPONENTS: [Component; 1] =
    [Component { name: "mca_vprotocol_correlated", sources: &[""] }];

/// The command line of `cargo xtask build`.
#[derive(Args, Default)]
pub struct Options {
    /// Without optimisation, with assertions
    #[arg(long)]
    debug: bool,
}

impl Component {
    /// The file that Open MPI loads.
    pub fn file(&self) -> PathBuf {
        paths::mca().join(format!("{}.so", self.name))
    }
}

/// Builds all components.
pub fn run(options: &Options) -> Result<()> {
    let _lock = lock()?;
    build_all(options)
}

/// Builds only if a source is newer than what is there.
pub fn ensure_fresh() -> Result<()> {
    if fresh::all_newer_than_sources(&COMPONENTS) {
        return Ok(());
    }
    let _lock = lock()?;
    if fresh::all_newer_than_sources(&COMPONENTS) {
        return Ok(()); // somebody else has built it while we waited
    }
    build_all(&Options::default())
}

/// One build at a time.
fn lock() -> Result<File> {
    let file = paths::mca().join(".lock");
    fs::create_dir_all(paths::mca()).context(|| paths::mca().display().to_string())?;
    let lock = File::create(&file).context(|| format!("locking {}", file.display()))?;
    sys::lock(&lock).context(|| format!("locking {}", file.display()))?;
    Ok(lock)
}

fn build_all(options: &Options) -> Result<()> {
    let start = SystemTime::now();
    let archive = rust_archive(options.debug)?;
    let libraries = openmpi::exported_symbols()?;
    for component in &COMPONENTS {
        let objects = glue::compile(component.sources, options.debug)?;
        let file = glue::link(component, &objects, &archive)?;
        symbols::check(&file, component.name, &libraries).inspect_err(|_| {
            let _ = fs::remove_file(&file);
        })?;
        // A source that is changed during the build is newer than what was built.
        File::options()
            .write(true)
            .open(&file)
            .and_then(|f| f.set_modified(start))
            .and_then(|()| fs::rename(&file, component.file()))
            .context(|| component.file().display().to_string())?;
    }
    for text in help_files()? {
        let to = paths::mca().join(text.file_name().unwrap_or_default());
        fs::copy(&text, &to).context(|| to.display().to_string())?;
    }
    Ok(())
}

/// Compiles everything that is Rust.
fn rust_archive(debug: bool) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(paths::root()).args(["build", "--quiet", "--package", "rustbtl-component"]);
    if !debug {
        cargo.arg("--release");
    }
    cargo.arg("--lib").arg("--target-dir").arg(paths::target());
    run::to_stderr(&mut cargo)?;
    run::check(&mut cargo)?;
    let folder = paths::target().join(if debug { "debug" } else { "release" });
    let archive = folder.join("librustbtl_component.a");
    if !archive.is_file() {
        return Err(failure!("cargo did not make {}", archive.display()));
    }
    Ok(archive)
}
