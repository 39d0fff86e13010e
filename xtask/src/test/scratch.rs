//! A folder for one test, removed at its end.

use std::fs;
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Context, Result};

/// The folder.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Makes it. It is in /tmp, where every user gets at it; tests beside this one have others.
    pub fn new(name: &str) -> Result<Scratch> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let (process, number) = (process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = PathBuf::from(format!("/tmp/rustbtl-{process}-{number}-{name}"));
        fs::create_dir_all(&folder).context(|| folder.display().to_string())?;
        Ok(Scratch(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
