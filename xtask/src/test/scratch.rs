//! A folder for one test, removed at its end.

use std::fs;
use std::path::PathBuf;

use crate::error::{Context, Result};

/// The folder.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Makes it. It is in /tmp, where every user gets at it.
    pub fn new(name: &str) -> Result<Scratch> {
        let folder = PathBuf::from(format!("/tmp/rustbtl-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).context(|| folder.display().to_string())?;
        Ok(Scratch(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
