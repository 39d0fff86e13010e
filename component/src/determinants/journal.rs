//! For tests: everything that is recorded also goes to a file, and a process that is restored does
//! them, though nobody hands it anything. So replay can be proved with whole jobs: kill all,
//! restart, and compare what the program observed.
//!
//! `RUSTBTL_JOURNAL` names a directory that all nodes see. The file is open only while something is
//! written: files that are open when a snapshot is taken are cut to their length in the checkpoint.

use rustbtl_coordination::determinants::{Numbered, rank_batch};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

/// The file of one process.
#[derive(Debug)]
pub struct Journal(PathBuf);

impl Journal {
    /// If there is to be one.
    pub fn of(rank: u32) -> Option<Self> {
        let directory = std::env::var_os("RUSTBTL_JOURNAL")?;
        Some(Self(PathBuf::from(directory).join(rank.to_string())))
    }

    /// Add one. A test that cannot write fails by what it does not find.
    #[cold]
    pub fn add(&self, numbered: &Numbered) {
        let mut bytes = Vec::new();
        rank_batch::append(&mut bytes, numbered.number, &numbered.determinant);
        let file = OpenOptions::new().create(true).append(true).open(&self.0);
        let _ = file.and_then(|mut file| file.write_all(&bytes));
    }

    /// All of them.
    pub fn read(&self) -> Vec<Numbered> {
        rank_batch::read_numbered(&fs::read(&self.0).unwrap_or_default()).unwrap_or_default()
    }
}
