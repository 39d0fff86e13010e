//! The C side: compile glue-c/, link it with the Rust archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Component, openmpi};
use crate::error::{Context, Result, fail};
use crate::{paths, run};

/// A missing declaration would only show when the symbol is called; `-mcx16` keeps Open MPI's
/// atomics inline; hidden visibility keeps components apart.
const CFLAGS: [&str; 8] = [
    "-std=gnu11",
    "-g",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-Wall",
    "-Wextra",
    "-Werror=implicit-function-declaration",
];

/// `nodelete`: our close hooks close the framework that unloads us.
const LDFLAGS: [&str; 5] =
    ["-shared", "-static-libgcc", "-Wl,-z,nodelete", "-Wl,--gc-sections", "-Wl,--exclude-libs,ALL"];

fn folder() -> PathBuf {
    paths::root().join("glue-c")
}

fn build_folder() -> PathBuf {
    paths::mca().join("build")
}

/// Headers that several components include.
const INCLUDE: &str = "include";
/// Those that Debian's packages leave out: used where there are no others of their names.
const SHIMS: [&str; 2] = ["include/shim", "include/shim/prrte"];

/// The files of some folders of glue-c that are `wanted` by name, in order of path.
pub fn files_in(folders: &[&str], wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for place in folders.iter().map(|name| folder().join(name)) {
        let entries = fs::read_dir(&place).context(|| place.display().to_string())?;
        files.extend(entries.flatten().map(|entry| entry.path()).filter(|file| {
            file.is_file() && wanted(&file.file_name().unwrap_or_default().to_string_lossy())
        }));
    }
    files.sort();
    Ok(files)
}

/// Compiles the component's C files.
pub fn compile(component: &Component, debug: bool) -> Result<Vec<PathBuf>> {
    let folders = component.folders;
    let mut sources = files_in(folders, |name| name.ends_with(".c"))?;
    if sources.is_empty() {
        fail!("{folders:?} of glue-c have no C files: there is no component to build");
    }
    sources.extend(component.others.iter().map(|file| folder().join(file)));
    let elsewhere = component.others.iter().filter_map(|file| Path::new(file).parent()?.to_str());
    let own = folders.iter().copied().chain(elsewhere).chain([INCLUDE]);
    let own: Vec<PathBuf> = own.map(|name| folder().join(name)).collect();
    let openmpi = openmpi::include_folders()?;
    let objects = build_folder().join(component.name);
    fs::create_dir_all(&objects).context(|| objects.display().to_string())?;
    let one = |source: &PathBuf| compile_one(component, source, &own, &openmpi, debug);
    sources.iter().map(one).collect()
}

fn compile_one(
    component: &Component,
    source: &Path,
    own: &[PathBuf],
    openmpi: &[PathBuf],
    debug: bool,
) -> Result<PathBuf> {
    let name = source.file_stem().unwrap_or_default();
    let object = build_folder().join(component.name).join(name).with_extension("o");
    let mut gcc = Command::new("gcc");
    gcc.args(CFLAGS).arg(if debug { "-O0" } else { "-O2" });
    if cfg!(target_arch = "x86_64") {
        gcc.arg("-mcx16");
    }
    for include in own {
        gcc.arg("-I").arg(include);
    }
    for include in openmpi {
        gcc.arg("-isystem").arg(include);
    }
    for include in SHIMS {
        gcc.arg("-idirafter").arg(folder().join(include));
    }
    gcc.args(component.macros.iter().map(|name| format!("-D{name}")));
    run::check(gcc.arg("-c").arg(source).arg("-o").arg(&object))?;
    Ok(object)
}

/// Links a component under a temporary name, which is returned. `library`: one of Open MPI's that
/// is named in it. Without, its symbols are found among those that the process shows to all.
pub fn link(
    component: &Component,
    objects: &[PathBuf],
    archive: Option<&PathBuf>,
    library: Option<&Path>,
) -> Result<PathBuf> {
    let script = build_folder().join(format!("{}.map", component.name));
    let exports = format!("{{ global: {}; local: *; }};\n", component.shown().join("; "));
    fs::write(&script, exports).context(|| script.display().to_string())?;
    let file = build_folder().join(format!("{}.so.new", component.name));
    let mut gcc = Command::new("gcc");
    gcc.args(LDFLAGS).arg(format!("-Wl,--version-script={}", script.display()));
    gcc.args(objects).args(archive).args(["-lm", "-lpthread"]).arg("-o").arg(&file);
    if let Some(library) = library {
        gcc.arg("-Wl,--no-as-needed").arg(library);
    }
    run::check(&mut gcc)?;
    Ok(file)
}

/// Builds the library for programs that ask for checkpoints themselves, and puts its header and
/// its Python module beside it.
pub fn link_api() -> Result<()> {
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-O2", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-o"]);
    gcc.arg(paths::mca().join(API_LIBRARY)).arg(folder().join("api/mpix_correlated.c"));
    run::check(gcc.arg("-ldl"))?;
    for name in API_TEXTS {
        let (from, to) = (folder().join("api").join(name), paths::mca().join(name));
        fs::copy(&from, &to).context(|| to.display().to_string())?;
    }
    Ok(())
}

const API_LIBRARY: &str = "libmpix_correlated.so";
const API_TEXTS: [&str; 2] = ["mpix_correlated.h", "mpix_correlated.py"];

/// What programs need that ask for checkpoints themselves.
pub fn api_files() -> Vec<PathBuf> {
    [API_LIBRARY].iter().chain(&API_TEXTS).map(|name| paths::mca().join(name)).collect()
}

/// The texts of show_help; the component looks for them beside itself.
pub fn help_files() -> Result<Vec<PathBuf>> {
    files_in(&["vprotocol", "errmgr", "btl"], |name| {
        name.starts_with("help-") && name.ends_with(".txt")
    })
}
