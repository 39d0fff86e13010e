//! A folder on a small disk of its own, so that it can be full. What it holds in the end is copied
//! to where it lies outside the cluster.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::stage;
use crate::error::{Context, Result, fail};
use crate::paths;

/// The folder.
pub struct Disk {
    folder: PathBuf,
    /// What it covers.
    below: File,
}

impl Disk {
    /// Covers the folder with a disk of this size.
    pub fn mount(folder: &Path, size: &str) -> Result<Disk> {
        let folder = folder.canonicalize().context(|| folder.display().to_string())?;
        let below = File::open(&folder).context(|| folder.display().to_string())?;
        let found = fs::read_dir(&folder).context(|| folder.display().to_string())?;
        if found.count() > 0 {
            fail!("--disk {}: choose an empty folder", folder.display());
        }
        stage::mount_tmpfs(&folder, &format!("mode=755,size={size}"))?;
        Ok(Disk { folder, below })
    }

    /// Copies what is there to below.
    pub fn keep(&self) -> Result<()> {
        paths::copy_contents(
            &self.folder,
            Path::new(&format!("/proc/self/fd/{}", self.below.as_raw_fd())),
        )
    }
}
