//! What a process has read since its snapshot, while it reads that again alone. Processes of other
//! sets continue: what they write meanwhile, it has not read before (invariant 8).

use super::held;
use super::others::{Whose, grown_by_others, named_by};
use super::readers::{Reads, shown};
use crate::error::ProcessImageError;
use crate::private_files::Folder;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const CHANGED_BY_OTHERS: &str = "this rank has read it since its checkpoint, and then others than \
                                 its own set have changed it: it can be rolled back with all only";

/// Of a file whose content cannot have changed while this is the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Identity {
    device: u64,
    inode: u64,
    changed_ns: i128,
}

impl Identity {
    fn of(found: &Metadata) -> Self {
        Self { device: found.dev(), inode: found.ino(), changed_ns: changed_ns(found) }
    }
}

/// When it was changed last.
pub(super) fn changed_ns(found: &Metadata) -> i128 {
    i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec())
}

/// As it is now. It is opened, if that is possible: a file system on the network may know only then
/// what other nodes have done to it.
pub(super) fn metadata(path: &[u8]) -> std::io::Result<Metadata> {
    let path = Path::new(OsStr::from_bytes(path));
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    opened.and_then(|file: File| file.metadata()).or_else(|_| std::fs::metadata(path))
}

/// See the head of this file.
#[derive(Debug)]
pub struct WatchedReads {
    folder: PathBuf,
    epoch: u64,
    /// What it had read, as it was when all ranks of the set had put back what they had changed;
    /// `None`: there is nothing.
    files: BTreeMap<Vec<u8>, Option<Identity>>,
    /// What others had made, or made longer, or have written behind where it ended. Where in it is
    /// not known.
    grown: BTreeSet<Vec<u8>>,
    /// What its own set has changed since: others' journals are not read for it again before
    /// the end.
    changed_again: BTreeSet<Vec<u8>>,
}

impl WatchedReads {
    /// All processes of the set were rolled back to the snapshot with which this epoch began, and
    /// none of them runs yet. Others continue. `folder`: of this process.
    ///
    /// # Errors
    /// What it has read is not known, or others have changed it already: the process cannot be
    /// rolled back alone.
    pub fn begin(folder: &Path, epoch: u64) -> Result<Self, ProcessImageError> {
        let reads = match Folder::open(folder) {
            Err(error) if error.is_missing() => Reads::default(),
            opened => Reads::since(&opened?, epoch)?,
        };
        let now = |path: &Vec<u8>| (path.clone(), identity(path));
        let files = reads.paths().map(now).collect();
        // Who writes says so first, so that their journals come behind the files.
        let theirs = named_by(Whose::OtherSets, folder, &reads.paths().cloned().collect());
        reads.must_be_alone(&theirs, &BTreeSet::new())?;
        // Also where no journal says so: by programs that are none of the job, or have been started
        // by one.
        let changed = reads.changed();
        let mut own = named_by(Whose::OwnSet, folder, &changed);
        own.extend(held::own(folder, &changed));
        if let Some(path) = changed.iter().find(|path| !own.contains(*path)) {
            let what = format!("{} is not what it was", shown(path));
            return Err(ProcessImageError::Refused { what, reason: CHANGED_BY_OTHERS });
        }
        let (folder, grown) = (folder.to_owned(), grown_by_others(folder, epoch)?);
        Ok(Self { folder, epoch, files, grown, changed_again: BTreeSet::new() })
    }

    /// Must what it is going to write to this file again be there already? Others may have written
    /// there since, and would lose it.
    pub fn is_left_as_it_is(&self, path: &[u8]) -> bool {
        self.grown.contains(path)
    }

    /// It is going to read this file. Was it there when it began, has it read it before, and have
    /// others changed it since, or removed it?
    ///
    /// # Errors
    /// They have, or may have.
    pub fn check_one(&mut self, path: &[u8]) -> Result<(), String> {
        let before = self.files.get(path).copied().flatten();
        if before.is_none() || before == identity(path) || self.changed_again.contains(path) {
            return Ok(());
        }
        self.check_changed([path.to_vec()].into())?;
        self.changed_again.insert(path.to_vec());
        Ok(())
    }

    /// The same of all that it has read until now; what it had not read before, others must not
    /// write.
    ///
    /// # Errors
    /// Which one was changed, or may have been.
    pub fn check(&self) -> Result<(), String> {
        let reads = Folder::open(&self.folder).ok().map(|folder| Reads::since(&folder, self.epoch));
        let again: BTreeSet<Vec<u8>> = match reads {
            None => BTreeSet::new(),
            Some(Ok(reads)) => reads.paths().cloned().collect(),
            Some(Err(error)) => return Err(error.to_string()),
        };
        let is_new = |path: &&Vec<u8>| !self.files.contains_key(*path);
        let mut changed: BTreeSet<Vec<u8>> = again.iter().filter(is_new).cloned().collect();
        let before = self.files.iter();
        let other = before.filter(|(path, before)| **before != identity(path));
        changed.extend(other.map(|(path, _)| path.clone()));
        self.check_changed(changed)
    }

    /// What only its own set changes it changes again. What it had not read before may have been
    /// there before, where nobody else of the job writes it.
    fn check_changed(&self, changed: BTreeSet<Vec<u8>>) -> Result<(), String> {
        if changed.is_empty() {
            return Ok(());
        }
        let theirs = named_by(Whose::OtherSets, &self.folder, &changed);
        let own = named_by(Whose::OwnSet, &self.folder, &changed);
        let is_own = |path: &&Vec<u8>| {
            let is_known = own.contains(*path) || !self.files.contains_key(*path);
            is_known && !theirs.contains(*path)
        };
        match changed.iter().find(|path| !is_own(path)) {
            None => Ok(()),
            Some(path) => Err(format!(
                "others have changed {} while this process repeated what it had read there",
                shown(path)
            )),
        }
    }
}

fn identity(path: &[u8]) -> Option<Identity> {
    metadata(path).ok().map(|found| Identity::of(&found))
}
