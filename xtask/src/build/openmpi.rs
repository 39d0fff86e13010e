//! What there is to know about the installed Open MPI.

use std::collections::HashSet;
use std::env;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

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

/// Its version, as `5.0.7`.
pub fn version() -> Result<&'static str> {
    static VERSION: OnceLock<String> = OnceLock::new();
    if let Some(version) = VERSION.get() {
        return Ok(version);
    }
    let mut info = Command::new("ompi_info");
    info.env(COMPONENT_PATH, "SYSTEM_DEFAULT");
    let text = run::output(info.args(["--parsable", "--version"]))
        .context(|| "asking the installed Open MPI (`cargo xtask setup` installs it)".into())?;
    let version = version_in(&text).ok_or_else(|| failure!("no version in `{}`", text.trim()))?;
    Ok(VERSION.get_or_init(|| version.to_string()))
}

/// The version in what `ompi_info --version` says.
fn version_in(text: &str) -> Option<&str> {
    let words = text.split([' ', ':', '\n', 'v']);
    words.into_iter().find(|word| {
        word.split('.').count() >= 3 && word.starts_with(|first: char| first.is_ascii_digit())
    })
}

/// Is its runtime PRRTE, as in 5.0? Versions that rustbtl is not written for are refused.
pub fn has_prrte() -> Result<bool> {
    runtime_of(version()?, env::var_os(ANY_RELEASE).is_some())
}

/// Releases of 5.0 whose sources were read: structures and PRRTE change within the series.
const KNOWN_5_0: RangeInclusive<u32> = 7..=10;
/// Those of them over which jobs were run.
const TRIED_5_0: RangeInclusive<u32> = 7..=7;
/// With this in the environment another release of the series is taken, too.
const ANY_RELEASE: &str = "RUSTBTL_ANY_RELEASE";

fn runtime_of(version: &str, any: bool) -> Result<bool> {
    let mut parts = version.split('.');
    match (parts.next(), parts.next()) {
        (Some("4"), Some("1")) => Ok(false),
        (Some("5"), Some("0")) => {
            let release = parts.next().and_then(|release| release.parse::<u32>().ok());
            if !any && !release.is_some_and(|release| KNOWN_5_0.contains(&release)) {
                fail!(
                    "the installed Open MPI is {version}; of 5.0 rustbtl knows 5.0.{} to 5.0.{}. \
                     Install one of these, or put it in front in PATH; `cargo xtask ompi-tree \
                     build --version 5.0` builds one. With {ANY_RELEASE}=1 this one is tried all \
                     the same",
                    KNOWN_5_0.start(),
                    KNOWN_5_0.end()
                );
            }
            Ok(true)
        }
        _ => fail!(
            "the installed Open MPI is {version}; rustbtl is written for 4.1 and 5.0. Install one \
             of these, or put it in front in PATH; `cargo xtask ompi-tree build --version 5.0` (or \
             4.1) builds one"
        ),
    }
}

/// What a user should know about the version, if there is something.
pub fn remark() -> Result<Option<String>> {
    let version = version()?;
    Ok((has_prrte()? && !was_tried(version)).then(|| {
        format!("no job was ever run over Open MPI {version}: try it before you rely on it")
    }))
}

fn was_tried(version: &str) -> bool {
    let release = version.strip_prefix("5.0.").and_then(|rest| rest.parse::<u32>().ok());
    release.is_some_and(|release| TRIED_5_0.contains(&release))
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
    let mut folders = vec![internal, include.clone()];
    if has_prrte()? {
        folders.extend([include.join("prte"), include.join("prte/src/include")]);
        let pmix = pmix_headers(&include)?;
        folders.extend(["", "pmix", "pmix/src/include"].map(|below| pmix.join(below)));
    }
    Ok(folders)
}

/// Where PMIx's headers are, with the internal ones: Debian's, or those that were installed with
/// Open MPI.
fn pmix_headers(include: &Path) -> Result<PathBuf> {
    let debians = format!("/usr/lib/{}-linux-gnu/pmix2/include", std::env::consts::ARCH);
    let places = [PathBuf::from(debians), include.to_path_buf()];
    let is_there = |place: &PathBuf| place.join("pmix/src/include/pmix_config.h").is_file();
    places
        .into_iter()
        .find(is_there)
        .ok_or_else(|| failure!("there are no headers of PMIx for components: install libpmix-dev"))
}

/// Where this library of Open MPI is.
pub fn library_of(name: &str) -> Result<PathBuf> {
    Ok(directory("libdir")?.join(name))
}

/// Every symbol that a process with this library of Open MPI offers to a component.
pub fn exported_symbols(library: &str) -> Result<HashSet<String>> {
    let first = library_of(library)?;
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
    fn a_version_that_is_not_known_is_refused_with_its_name() {
        assert_eq!(version_in("Open MPI v5.0.7\n\nhttps://x.y.z/help/\n"), Some("5.0.7"));
        assert_eq!(version_in("ompi:version:full:4.1.4\n"), Some("4.1.4"));
        assert!(!runtime_of("4.1.8", false).unwrap() && runtime_of("5.0.10", false).unwrap());
        for other in ["4.0.7", "5.0.6", "5.0.11", "5.0.11rc1", "5.1.0", "6.0.0a1", "6.0.0rc2"] {
            let message = runtime_of(other, false).unwrap_err().0;
            assert!(message.contains(other) && message.contains("ompi-tree build"), "{message}");
        }
        assert!(runtime_of("5.0.11", true).unwrap() && runtime_of("6.0.0", true).is_err());
        assert!(was_tried("5.0.7") && !was_tried("5.0.10") && !was_tried("5.0.11rc1"));
    }

    #[test]
    fn lines_of_ldd_and_nm_are_understood() {
        let line = "\tlibm.so.6 => /lib/libm.so.6 (0x00007f)";
        assert_eq!(library_file(line), Some(Path::new("/lib/libm.so.6")));
        assert_eq!(library_file("\tlinux-vdso.so.1 (0x0)"), None);
        assert_eq!(symbol_name("000 T sin@@GLIBC_2.2.5"), Some("sin"));
        assert_eq!(symbol_name("          U memcpy@GLIBC_2.14"), Some("memcpy"));
    }
}
