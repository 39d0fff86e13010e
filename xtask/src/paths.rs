//! Where things are: the checkout, what is built, what is written.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Context, Result};

/// The checkout that this xtask was built from.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace")
}

/// Cargo's target directory, as cargo itself would choose it.
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |t| root().join(t))
}

/// Where the components that Open MPI loads are built.
pub fn mca() -> PathBuf {
    target().join("mca")
}

/// Where results for people go (figures, tables, reports).
pub fn out() -> PathBuf {
    root().join("out")
}

/// A program of the name in PATH, or where only root's PATH leads.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"];
    env::split_paths(&path)
        .chain(system.iter().map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Copies what is in a folder, and in folders in it, to another one.
pub fn copy_contents(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).context(|| from.display().to_string())?.flatten() {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let shown = || format!("copying {} to {}", source.display(), target.display());
        if source.is_dir() {
            fs::create_dir_all(&target).context(shown)?;
            copy_contents(&source, &target)?;
        } else {
            fs::copy(&source, &target).context(shown)?;
        }
    }
    Ok(())
}
