//! What there is to know about the installed Open MPI.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Context, Result, fail, failure};
use crate::run;

/// The environment variable that says where Open MPI looks for components.
pub const COMPONENT_PATH: &str = "OMPI_MCA_mca_base_component_path";

/// A directory of the installation, as `ompi_info --path` names it.
fn directory(kind: &str) -> Result<PathBuf> {
    let mut info = Command::new("ompi_info");
    // A broken component that is installed for the user must not stop the build of a better one.
    info.env(COMPONENT_PATH, "SYSTEM_DEFAULT");
    let text = run::output(info.args(["--parsable", "--path", kind]))
        .context(|| "asking the installed Open MPI (`cargo xtask setup` installs it)".into())?;
    let start = format!("path:{kind}:");
    let found = text.lines().find_map(|line| line.strip_prefix(&start));
    found.map(PathBuf::from).ok_or_else(|| failure!("ompi_info has no path {kind}"))
}

/// Where the installation was configured to live.
pub fn prefix() -> Result<PathBuf> {
    directory("prefix")
}

/// Where the installation keeps its own components.
pub fn component_folder() -> Result<PathBuf> {
    directory("pkglibdir")
}

/// Folders of the headers that components need, in order of search.
pub fn include_folders() -> Result<Vec<PathBuf>> {
    let include = directory("incdir")?;
    let internal = include.join("openmpi");
    if !internal.join("ompi/mca/mca.h").exists() && !internal.join("opal/mca/mca.h").exists() {
        fail!(
            "{} has no headers for components: run `cargo xtask setup`, or install Open MPI \
             with --with-devel-headers",
            internal.display()
        );
    }
    Ok(vec![internal, include])
}

/// Every symbol that a process with this library of Open MPI offers to a component.
pub fn exported_symbols(library: &str) -> Result<HashSet<String>> {
    let first = directory("libdir")?.join(library);
    let mut ldd = Command::new("ldd");
    let libraries = run::output(ldd.arg(&first))?;
    let mut symbols = HashSet::new();
    let needed = libraries.lines().filter_map(library_file);
    for library in std::iter::once(first.as_path()).chain(needed) {
        let mut nm = Command::new("nm");
        let text = run::output(nm.args(["-D", "--defined-only"]).arg(library))?;
        symbols.extend(text.lines().filter_map(symbol_name).map(str::to_string));
    }
    Ok(symbols)
}

/// The file in a line of ldd.
fn library_file(line: &str) -> Option<&Path> {
    let word = line.split_whitespace().find(|word| word.starts_with('/'))?;
    Some(Path::new(word))
}

/// The symbol in a line of nm, without its version.
pub fn symbol_name(line: &str) -> Option<&str> {
    let name = line.split_whitespace().last()?;
    name.split('@').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ldd_and_nm_are_understood() {
        let line = "\tlibm.so.6 => /lib/libm.so.6 (0x00007f)";
        assert_eq!(library_file(line), Some(Path::new("/lib/libm.so.6")));
        assert_eq!(library_file("\tlinux-vdso.so.1 (0x0)"), None);
        assert_eq!(symbol_name("000 T sin@@GLIBC_2.2.5"), Some("sin"));
        assert_eq!(symbol_name("          U memcpy@GLIBC_2.14"), Some("memcpy"));
    }
}
