//! Whether the built components are newer than everything they are made of.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::paths;

/// Folders and files that components are made of.
const SOURCES: [&str; 10] = [
    "Cargo.lock",
    "Cargo.toml",
    "rust-toolchain.toml",
    "checkpoint",
    "component",
    "coordination",
    "fragments",
    "glue-c",
    "runtime",
    "shadow",
];

/// True if nothing has to be built.
pub fn all_newer_than_sources(files: &[PathBuf]) -> bool {
    let newest = SOURCES.iter().filter_map(|s| newest_in(&paths::root().join(s))).max();
    files.iter().all(|file| {
        let built = fs::metadata(file).and_then(|m| m.modified()).ok();
        built.is_some() && built > newest
    })
}

/// Time of the last change of the file, or of any file below the folder.
fn newest_in(place: &Path) -> Option<SystemTime> {
    if place.extension().is_some_and(|ending| ending == "md") {
        return None;
    }
    let own = fs::metadata(place).and_then(|m| m.modified()).ok();
    let Ok(entries) = fs::read_dir(place) else { return own };
    entries.flatten().filter_map(|e| newest_in(&e.path())).chain(own).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_as_new_as_its_newest_file() {
        let source = paths::root().join("xtask");
        let this = fs::metadata(source.join("src/build/fresh.rs")).unwrap().modified().unwrap();
        assert!(newest_in(&source).unwrap() >= this);
        assert_eq!(newest_in(Path::new("/no/such/place")), None);
        assert_eq!(newest_in(&paths::root().join("README.md")), None, "nobody compiles it");
    }
}
