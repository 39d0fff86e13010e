//! `cargo xtask clean`: what was built, what was written, and what jobs that were killed left.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Context, Result};
use crate::{paths, run, sys};

/// Shared memory of our components.
const SHARED_MEMORY: &str = "/dev/shm";
const OURS: &str = "rustbtl-";

/// Removes all of it.
pub fn run() -> Result<()> {
    for folder in [paths::mca(), paths::out()] {
        if folder.exists() {
            fs::remove_dir_all(&folder).context(|| format!("removing {}", folder.display()))?;
        }
    }
    for stale in stale_segments() {
        fs::remove_file(&stale).context(|| format!("removing {}", stale.display()))?;
        eprintln!("clean: removed {}, which no process has mapped", stale.display());
    }
    run::check(Command::new("cargo").current_dir(paths::root()).args(["clean", "--quiet"]))
}

/// Segments of ours in /dev/shm, owned by us, that no process has mapped or open.
fn stale_segments() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(SHARED_MEMORY) else { return Vec::new() };
    let candidates: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(OURS))
        .filter(|entry| entry.metadata().is_ok_and(|m| m.uid() == sys::euid()))
        .map(|entry| entry.path())
        .collect();
    if candidates.is_empty() {
        return candidates;
    }
    let used = used_files();
    candidates.into_iter().filter(|file| !used.iter().any(|line| mentions(line, file))).collect()
}

/// True if a line of /proc/PID/maps, or a link in /proc/PID/fd, is about the file.
fn mentions(line: &str, file: &Path) -> bool {
    file.to_str().is_some_and(|file| line.ends_with(file))
}

/// What the processes of this machine have mapped or open in /dev/shm.
fn used_files() -> Vec<String> {
    let mut used = Vec::new();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|e| e.path());
    for process in processes {
        let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
        used.extend(maps.lines().filter(|l| l.contains(SHARED_MEMORY)).map(str::to_string));
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let files = open.filter_map(|fd| fs::read_link(fd.path()).ok());
        used.extend(files.map(|file| file.display().to_string()));
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_names_its_file_at_the_end() {
        let line = "7f00-7f01 rw-s 00000000 00:1a 5   /dev/shm/rustbtl-1";
        assert!(mentions(line, Path::new("/dev/shm/rustbtl-1")));
        assert!(!mentions(line, Path::new("/dev/shm/rustbtl-12")));
    }
}
