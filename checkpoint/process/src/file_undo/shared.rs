//! Files that ranks of several sets have opened together by MPI-IO (docs/adr/0023). Who is rolled
//! back alone leaves them as they are: what it has written is in them, perhaps below what others
//! have written since, and its replay writes nothing again. So it must not have read them, as it
//! would read its own future; and a file that the snapshot had under this name must still have it.

use crate::error::ProcessImageError;
use rustbtl_checkpoint::file_undo::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const READ: &str = "ranks of several sets have opened it together by MPI-IO, and this rank has \
                    read it since: it can be rolled back with the others only";
const REMOVED: &str = "ranks of several sets have opened it together by MPI-IO, and a file of this \
                       name was removed since: this rank can be rolled back with the others only";

/// Where an entry is: its epoch, and which of its journal.
type Place = (u64, usize);

/// See the module's documentation.
pub(super) struct SharedFiles {
    /// The epoch that began with the snapshot.
    since: u64,
    paths: BTreeSet<Vec<u8>>,
    /// The first entry by which a name was made or removed, and whether it was made.
    names: BTreeMap<Vec<u8>, (Place, bool)>,
}

impl SharedFiles {
    /// None are known. `since`: the epoch that began with the snapshot.
    pub(super) fn new(since: u64) -> Self {
        Self { since, paths: BTreeSet::new(), names: BTreeMap::new() }
    }

    /// An entry; those of a journal come in their order.
    pub(super) fn see(&mut self, place: Place, entry: &Entry<'_>) {
        match *entry {
            // What is in front belongs to the snapshot.
            Entry::Begun {} if place.0 == self.since => {
                self.names.retain(|_, (first, _)| first.0 != place.0);
            }
            Entry::Shared { path } => {
                self.paths.insert(path.to_vec());
            }
            Entry::Created { path, .. } => self.name(place, path, true),
            Entry::Removed { path, .. } => self.name(place, path, false),
            Entry::Moved { from, to } => {
                self.name(place, from, false);
                self.name(place, to, false);
            }
            _ => {}
        }
    }

    fn name(&mut self, place: Place, path: &[u8], is_made: bool) {
        let first = self.names.entry(path.to_vec()).or_insert((place, is_made));
        if place < first.0 {
            *first = (place, is_made);
        }
    }

    /// Those who have read `reads`: can they be rolled back alone?
    pub(super) fn check(&self, is_read: impl Fn(&[u8]) -> bool) -> Result<(), ProcessImageError> {
        for path in &self.paths {
            let is_removed = self.names.get(path).is_some_and(|(_, is_made)| !is_made);
            let reason = match (is_read(path), is_removed) {
                (true, _) => READ,
                (_, true) => REMOVED,
                _ => continue,
            };
            let path = Path::new(OsStr::from_bytes(path)).display();
            let what = format!("{path} is not put back to what it was");
            return Err(ProcessImageError::Refused { what, reason });
        }
        Ok(())
    }

    /// Their paths.
    pub(super) fn paths(&self) -> &BTreeSet<Vec<u8>> {
        &self.paths
    }
}
