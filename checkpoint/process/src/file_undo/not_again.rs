//! What a replay does again although others have gone on: files that a process made, emptied,
//! resized, removed or renamed, or appends to. Of a file that only it writes to that is undone
//! before; what ranks of other sets write to is left as it is, and there the same would destroy, or
//! double, what they have written since; a folder with files of others in it cannot be made again.
//! So nobody is rolled back alone who would do that.

use crate::error::ProcessImageError;
use rustbtl_checkpoint::file_undo::Entry;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const DONE_AGAIN: &str = "this rank has made, emptied, resized, removed or renamed it since, or \
                          appends to it, and ranks of other sets write to it: it can be rolled \
                          back with them only";

/// Files to which the process has done since its snapshot what must not be done again where ranks
/// of other sets write to them.
pub(super) struct NotAgain {
    since: u64,
    /// True: noted by itself, maybe of a file that was open at the snapshot.
    paths: BTreeMap<Vec<u8>, bool>,
}

impl NotAgain {
    /// None are known. `since`: the epoch that began with the snapshot.
    pub(super) fn new(since: u64) -> Self {
        Self { since, paths: BTreeMap::new() }
    }

    /// An entry; those of a journal come in their order.
    pub(super) fn see(&mut self, epoch: u64, entry: &Entry<'_>) {
        match *entry {
            // What is in front belongs to the snapshot.
            Entry::Begun {} if epoch == self.since => self.paths.retain(|_, noted| *noted),
            Entry::NotAgain { path } => {
                self.paths.insert(path.to_vec(), true);
            }
            Entry::Created { path, .. }
            | Entry::Removed { path, .. }
            | Entry::MadeFolder { path }
            | Entry::RemovedFolder { path, .. } => self.add(path),
            Entry::Moved { from, to } => {
                self.add(from);
                self.add(to);
            }
            _ => {}
        }
    }

    fn add(&mut self, path: &[u8]) {
        self.paths.entry(path.to_vec()).or_insert(false);
    }

    /// Their paths.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.paths.keys()
    }

    /// Ranks of other sets write to `theirs`: can it be rolled back without them?
    pub(super) fn must_be_alone<'a>(
        &self,
        mut theirs: impl Iterator<Item = &'a Vec<u8>>,
    ) -> Result<(), ProcessImageError> {
        theirs.find(|path| self.paths.contains_key(*path)).map_or(Ok(()), |path| {
            let path = Path::new(OsStr::from_bytes(path)).display();
            let what = format!("{path} is not put back to what it was");
            Err(ProcessImageError::Refused { what, reason: DONE_AGAIN })
        })
    }
}
