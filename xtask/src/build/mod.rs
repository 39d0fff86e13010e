//! `cargo xtask build`: from the Rust core and the C glue to what Open MPI loads.

mod fresh;
mod glue;
pub mod openmpi;
pub mod parameters;
mod symbols;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use clap::Args;

use crate::error::{Context, Result, failure};
use crate::{paths, run, sys};

pub use glue::{api_files, files_in as glue_files, help_files};
pub use openmpi::{COMPONENT_PATH, component_folder, prefix};

/// A shared object that Open MPI loads.
pub struct Component {
    /// `mca_<framework>_<name>`: its file and, with `_component`, its one exported symbol.
    pub name: &'static str,
    /// Where its C files are: folders of glue-c/.
    folders: &'static [&'static str],
    /// Is the Rust archive in it?
    rust: bool,
    /// The library of Open MPI that the processes have which load it.
    library: &'static str,
    /// Functions that it shows besides, for programs (glue-c/api/).
    functions: &'static [&'static str],
}

/// Everything that is built.
pub const COMPONENTS: [Component; 2] = [
    Component {
        name: "mca_vprotocol_correlated",
        folders: &["vprotocol"],
        rust: true,
        library: "libmpi.so",
        functions: &["mca_vprotocol_correlated_checkpoint", "mca_vprotocol_correlated_restarts"],
    },
    Component {
        name: "mca_errmgr_correlated",
        folders: &["errmgr", "errmgr/orte"],
        rust: false,
        library: "libopen-rte.so",
        functions: &[],
    },
];

/// The program that lies beside the components: guardians, agents, coordinator, command.
pub const PROGRAM: &str = "rustbtl";

/// The command line of `cargo xtask build`.
#[derive(Args, Default)]
pub struct BuildOptions {
    /// Without optimisation, with assertions
    #[arg(long)]
    debug: bool,
}

impl Component {
    /// Everything that it shows.
    fn shown(&self) -> Vec<String> {
        let functions = self.functions.iter().map(|name| name.to_string());
        functions.chain([format!("{}_component", self.name)]).collect()
    }

    /// The file that Open MPI loads.
    pub fn file(&self) -> PathBuf {
        paths::mca().join(format!("{}.so", self.name))
    }
}

/// The program as it is built.
pub fn program() -> PathBuf {
    paths::mca().join(PROGRAM)
}

/// Builds all components.
pub fn run(options: &BuildOptions) -> Result<()> {
    let _lock = lock()?;
    build_all(options)
}

/// Compiles what is Rust of all, as [`ensure_fresh`] will want it: it needs no Open MPI.
pub fn compile() -> Result<()> {
    let _lock = lock()?;
    compile_rust(false)
}

/// Builds only if a source is newer than what is there.
pub fn ensure_fresh() -> Result<()> {
    build_unless(|| fresh::all_newer_than_sources(&built()))
}

/// The same for what is measured or given to others: it is optimised, too.
pub fn ensure_optimised() -> Result<()> {
    build_unless(|| !debug_mark().exists() && fresh::all_newer_than_sources(&built()))
}

fn build_unless(there: impl Fn() -> bool) -> Result<()> {
    if there() {
        return Ok(());
    }
    let _lock = lock()?;
    if there() {
        return Ok(()); // somebody else has built it while we waited
    }
    build_all(&BuildOptions::default())
}

/// A file that is there while what is there was built with `--debug`.
fn debug_mark() -> PathBuf {
    paths::mca().join(".debug")
}

/// All files that are built.
fn built() -> Vec<PathBuf> {
    COMPONENTS.iter().map(Component::file).chain([program()]).collect()
}

/// One build at a time.
fn lock() -> Result<File> {
    let file = paths::mca().join(".lock");
    fs::create_dir_all(paths::mca()).context(|| paths::mca().display().to_string())?;
    let lock = File::create(&file).context(|| format!("locking {}", file.display()))?;
    sys::lock(&lock).context(|| format!("locking {}", file.display()))?;
    Ok(lock)
}

fn build_all(options: &BuildOptions) -> Result<()> {
    let start = SystemTime::now();
    if options.debug {
        File::create(debug_mark()).context(|| debug_mark().display().to_string())?;
    }
    compile_rust(options.debug)?;
    let archive = made(options.debug, "librustbtl_component.a")?;
    let program = made(options.debug, PROGRAM)?;
    put(&program, &self::program(), start)?;
    for component in &COMPONENTS {
        let libraries = openmpi::exported_symbols(component.library)?;
        let objects = glue::compile(component.folders, options.debug)?;
        let file = glue::link(component, &objects, component.rust.then_some(&archive))?;
        symbols::check(&file, component, &libraries).inspect_err(|_| {
            let _ = fs::remove_file(&file);
        })?;
        put(&file, &component.file(), start)?;
        fs::remove_file(&file).context(|| file.display().to_string())?;
    }
    glue::link_api()?;
    for text in help_files()? {
        let to = paths::mca().join(text.file_name().unwrap_or_default());
        fs::copy(&text, &to).context(|| to.display().to_string())?;
    }
    if !options.debug && debug_mark().exists() {
        fs::remove_file(debug_mark()).context(|| debug_mark().display().to_string())?;
    }
    let kind = if options.debug { "without optimisation" } else { "optimised" };
    eprintln!("xtask: built {} ({kind}) from {}", paths::mca().display(), source());
    Ok(())
}

/// What was built: the commit, and whether files differ from it.
fn source() -> String {
    let root = paths::root();
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
    match (commit, changed) {
        (Some(commit), Some(changed)) if changed.is_empty() => format!("commit {commit}"),
        (Some(commit), _) => format!("commit {commit} with changes"),
        _ => root.display().to_string(),
    }
}

/// Copies what was built to where it is used, whole or not at all: a job that starts meanwhile has
/// the old file or the new one.
fn put(file: &Path, to: &Path, start: SystemTime) -> Result<()> {
    let temporary = to.with_extension("new-file");
    // A source that is changed during the build is newer than what was built.
    fs::copy(file, &temporary)
        .and_then(|_| File::options().write(true).open(&temporary))
        .and_then(|copy| copy.set_modified(start))
        .and_then(|()| fs::rename(&temporary, to))
        .context(|| to.display().to_string())
}

/// The Rust in the components and the program, in one go: each of them is optimised as a whole, by
/// one thread.
fn compile_rust(debug: bool) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(paths::root()).args(["build", "--quiet", "--lib", "--bin", PROGRAM]);
    cargo.args(["--package", "rustbtl-component", "--package", "rustbtl-runtime"]);
    if !debug {
        cargo.arg("--release");
    }
    cargo.arg("--target-dir").arg(paths::target());
    run::to_stderr(&mut cargo)?;
    run::check(&mut cargo)
}

/// A file that cargo has made.
fn made(debug: bool, name: &str) -> Result<PathBuf> {
    let file = paths::target().join(if debug { "debug" } else { "release" }).join(name);
    if !file.is_file() {
        return Err(failure!("cargo did not make {}", file.display()));
    }
    Ok(file)
}
