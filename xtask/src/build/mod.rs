//! `cargo xtask build`: from the Rust core and the C glue to what Open MPI loads.

mod fresh;
mod glue;
pub mod openmpi;
pub mod parameters;
mod symbols;

use std::env;
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
    /// `mca_<framework>_<name>`: with the project its file and, with `_component`, its symbol.
    pub name: &'static str,
    /// Where its C files are: folders of glue-c/.
    folders: &'static [&'static str],
    /// C files of other folders.
    others: &'static [&'static str],
    /// Macros that they are compiled with.
    macros: &'static [&'static str],
    /// Begins the names of symbols and of the file: the project that the component is for.
    project: &'static str,
    /// Is the Rust archive in it?
    rust: bool,
    /// The library of Open MPI that the processes have which load it.
    library: &'static str,
    /// Functions that it shows besides, for programs (glue-c/api/).
    functions: &'static [&'static str],
}

const VPROTOCOL: Component = Component {
    name: "mca_vprotocol_correlated",
    folders: &["vprotocol"],
    others: &[],
    macros: &[],
    project: "",
    rust: true,
    library: "libmpi.so",
    functions: &[
        "mca_vprotocol_correlated_btl",
        "mca_vprotocol_correlated_checkpoint",
        "mca_vprotocol_correlated_restarts",
    ],
};

/// A BTL over the transports that are in the first one (docs/adr/0043).
const BTL: Component = Component {
    name: "mca_btl_rustbtl",
    folders: &["btl"],
    others: &[],
    macros: &[],
    project: "",
    rust: false,
    library: "libopen-pal.so",
    functions: &[],
};

/// For Open MPI 4.1, with ORTE.
const WITH_ORTE: [Component; 3] = [
    VPROTOCOL,
    BTL,
    Component {
        name: "mca_errmgr_correlated",
        folders: &["errmgr", "errmgr/orte"],
        others: &[],
        macros: &[],
        project: "",
        rust: false,
        library: "libopen-rte.so",
        functions: &[],
    },
];

/// For Open MPI 5.0, with PRRTE: the parameters of protection are shown by the component that
/// ompi_info knows.
const WITH_PRRTE: [Component; 3] = [
    Component {
        others: &["errmgr/errmgr_correlated_params.c"],
        macros: &["CORRELATED_VPROTOCOL"],
        ..VPROTOCOL
    },
    BTL,
    Component {
        name: "mca_errmgr_correlated",
        folders: &["errmgr", "errmgr/prrte"],
        others: &[],
        macros: &["CORRELATED_PRRTE", "CORRELATED_DSO_NAMES"],
        project: "prte_",
        rust: false,
        library: "libprrte.so",
        functions: &["pmix_mca_errmgr_correlated_component"],
    },
];

/// Everything that is built for the installed Open MPI.
pub fn components() -> Result<&'static [Component]> {
    Ok(if openmpi::has_prrte()? { &WITH_PRRTE } else { &WITH_ORTE })
}

/// The program that lies beside the components: guardians, agents, coordinator, command.
pub const PROGRAM: &str = "rustbtl";

/// The command line of `cargo xtask build`.
#[derive(Args, Default)]
pub struct BuildOptions {
    /// Without optimisation, with assertions
    #[arg(long)]
    debug: bool,
    /// Only if a source is newer than what is there
    #[arg(long, hide = true)]
    unless_fresh: bool,
}

/// Names a folder in which the Rust part is compiled: cargo is not asked then.
pub const COMPILED: &str = "RUSTBTL_COMPILED";

impl Component {
    /// Everything that it shows.
    fn shown(&self) -> Vec<String> {
        let functions = self.functions.iter().map(|name| name.to_string());
        functions.chain([format!("{}{}_component", self.project, self.name)]).collect()
    }

    /// Is it one of Open MPI's own processes and programs? Else it is PRRTE's.
    pub fn is_openmpis(&self) -> bool {
        self.project.is_empty()
    }

    /// The library of Open MPI that it has to name. A program that opens libmpi for itself, as
    /// Python does for mpi4py, shows none of its symbols to others: Open MPI 4.1 opens it again for
    /// all, 5.0 does not.
    fn named_library(&self) -> Result<Option<PathBuf>> {
        let is_needed = self.is_openmpis() && openmpi::has_prrte()?;
        is_needed.then(|| openmpi::library_of(self.library)).transpose()
    }

    /// The name of the file that is loaded. PRRTE finds components in the folders that
    /// PMIx searches, under PMIx's name.
    pub fn installed_name(&self) -> String {
        let project = if self.is_openmpis() { "" } else { "pmix_" };
        format!("{project}{}.so", self.name)
    }

    /// The file that Open MPI loads.
    pub fn file(&self) -> PathBuf {
        paths::mca().join(self.installed_name())
    }
}

/// The program as it is built.
pub fn program() -> PathBuf {
    paths::mca().join(PROGRAM)
}

/// What is loaded in front of libibverbs, beside the program.
const SHADOW_VERBS: &str = "librustbtl_verbs.so";

/// Where it is, once it is built.
pub fn shadow_verbs() -> PathBuf {
    paths::mca().join(SHADOW_VERBS)
}

/// Builds all components.
pub fn run(options: &BuildOptions) -> Result<()> {
    if options.unless_fresh {
        return ensure_optimised();
    }
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
    // Every emulated cluster asks: which Open MPI there is shows in what was built for it.
    build_unless(|| [&WITH_ORTE, &WITH_PRRTE].into_iter().any(|built| is_fresh(built)))
}

/// The same for what is measured or given to others: it is optimised, too.
pub fn ensure_optimised() -> Result<()> {
    let components = components()?;
    build_unless(|| !debug_mark().exists() && is_fresh(components))
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

/// Are all files that are built newer than what they are made of?
fn is_fresh(components: &[Component]) -> bool {
    let mut built: Vec<PathBuf> =
        components.iter().map(Component::file).chain([program()]).collect();
    if compiled_elsewhere().is_none() {
        built.push(shadow_verbs());
    }
    fresh::all_newer_than_sources(&built)
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
    if compiled_elsewhere().is_none() {
        put(&made(options.debug, SHADOW_VERBS)?, &shadow_verbs(), start)?;
    }
    for component in components()? {
        let libraries = openmpi::exported_symbols(component.library)?;
        let objects = glue::compile(component, options.debug)?;
        let archive = component.rust.then_some(&archive);
        let named = component.named_library()?;
        let file = glue::link(component, &objects, archive, named.as_deref())?;
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
    if let Some(remark) = openmpi::remark()? {
        eprintln!("xtask: {remark}");
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
    if compiled_elsewhere().is_some() {
        return Ok(());
    }
    let mut cargo = Command::new("cargo");
    cargo.current_dir(paths::root()).args(["build", "--quiet", "--lib", "--bin", PROGRAM]);
    cargo.args(["--package", "rustbtl-component", "--package", "rustbtl-runtime"]);
    cargo.args(["--package", "rustbtl-verbs"]);
    if !debug {
        cargo.arg("--release");
    }
    cargo.arg("--target-dir").arg(paths::target());
    run::to_stderr(&mut cargo)?;
    run::check(&mut cargo)
}

fn compiled_elsewhere() -> Option<PathBuf> {
    env::var_os(COMPILED).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// A file that cargo has made.
fn made(debug: bool, name: &str) -> Result<PathBuf> {
    let own = || paths::target().join(if debug { "debug" } else { "release" });
    let file = compiled_elsewhere().unwrap_or_else(own).join(name);
    if !file.is_file() {
        return Err(failure!("cargo did not make {}", file.display()));
    }
    Ok(file)
}
