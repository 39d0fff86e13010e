//! Files that ranks of several sets have opened together by MPI-IO (docs/adr/0023). Who is rolled
//! back alone leaves them as they are: what it has written is in them, perhaps below what others
//! have written since, and its replay writes nothing again. So it must not have read them, as it
//! would read its own future. What is removed once it is known to be shared is not removed again.
//! What was made, emptied or removed before that is again, so that must not have been since the
//! snapshot.

use crate::error::ProcessImageError;
use rustbtl_checkpoint::file_undo::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const READ: &str = "ranks of several sets have opened it together by MPI-IO, and this rank has \
                    read it since: it can be rolled back with the others only";
const REMOVED: &str = "ranks of several sets have opened it together by MPI-IO, and before that, \
                       but after the checkpoint, this rank has made, emptied or removed a file of \
                       this name by itself: it can be rolled back with the others only";

/// Where an entry is: its epoch, and which of its journal.
type Place = (u64, usize);

/// See the module's documentation.
pub(super) struct SharedFiles {
    /// The epoch that began with the snapshot.
    since: u64,
    /// With the first entry that names it as one.
    paths: BTreeMap<Vec<u8>, Place>,
    /// The first entry by which a name was made or removed, and whether it was made.
    names: BTreeMap<Vec<u8>, (Place, bool)>,
}

impl SharedFiles {
    /// None are known. `since`: the epoch that began with the snapshot.
    pub(super) fn new(since: u64) -> Self {
        Self { since, paths: BTreeMap::new(), names: BTreeMap::new() }
    }

    /// An entry; those of a journal come in their order.
    pub(super) fn see(&mut self, place: Place, entry: &Entry<'_>) {
        match *entry {
            // What is in front belongs to the snapshot.
            Entry::Begun {} if place.0 == self.since => {
                self.names.retain(|_, (first, _)| first.0 != place.0);
            }
            Entry::Shared { path } => {
                let first = self.paths.entry(path.to_vec()).or_insert(place);
                *first = place.min(*first);
            }
            Entry::Created { path, .. } => self.name(place, path, true),
            // Its removal, or a failed one, or it was made by others than MPI_File_open.
            Entry::Removed { path, .. } | Entry::NotAgain { path } => {
                self.name(place, path, false);
            }
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
        for (path, known) in &self.paths {
            let was_anothers = |(first, is_made): &(Place, bool)| !is_made && first < known;
            let is_removed = self.names.get(path).is_some_and(was_anothers);
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

    /// Is it one of them?
    pub(super) fn has(&self, path: &[u8]) -> bool {
        self.paths.contains_key(path)
    }

    /// Their paths.
    pub(super) fn into_paths(self) -> BTreeSet<Vec<u8>> {
        self.paths.into_keys().collect()
    }
}
