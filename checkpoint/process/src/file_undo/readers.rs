//! Which files a process has read since its snapshot, and may not find as they were (invariant 6).
//!
//! A rollback that leaves a file as it is must not give another answer: what a process reads again
//! has to be what it read before. So nobody is rolled back alone who has read a file that ranks of
//! other sets write to, and nobody at all who has read one that is not put back.

use super::common::set_of;
use super::epoch_of;
use super::rollback::Opened;
use super::watched::{changed_ns, metadata};
use crate::error::ProcessImageError;
use crate::private_files::{FileError, Folder};
use rustbtl_checkpoint::file_undo::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const WRITTEN_BY_OTHERS: &str = "this rank has read it since, and ranks of other sets have opened \
                                 it to write to it: it can be rolled back with them only";
const NO_ROOM: &str = "more of it was changed than vprotocol_correlated_file_undo_max permits, or \
                       it could not be read, and ranks read it after that checkpoint: their \
                       results could be wrong. Permit more with a higher value; if the program \
                       does not depend on what it finds there, remove these notes and restart";

/// Files that a process has read.
#[derive(Debug, Default)]
pub(super) struct Reads(BTreeMap<Vec<u8>, Read>);

/// What is known of one, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Read {
    /// When it had been changed last at that moment, the least of all notes; 0: nobody can say.
    changed_ns: u64,
    /// The same of the first note, and when that was made.
    first: [u64; 2],
}

impl Reads {
    /// What the process with this folder has read since an epoch began.
    pub(super) fn since(folder: &Folder, epoch: u64) -> Result<Self, ProcessImageError> {
        let mut reads = BTreeMap::new();
        for name in folder.names()? {
            let of = name.to_str().and_then(|name| epoch_of(name, "reads-"));
            if of.is_none_or(|of| of < epoch) {
                continue;
            }
            let mut noted = Vec::new();
            let seen = |index: usize, entry: &Entry<'_>| {
                if let Entry::Reads { path, changed_ns } = *entry {
                    noted.push((index, path.to_vec(), changed_ns));
                }
            };
            let file = match folder.file(&name) {
                // A process that runs removes what nobody needs any more.
                Err(FileError::System { error, .. })
                    if error.kind() == std::io::ErrorKind::NotFound =>
                {
                    continue;
                }
                opened => opened?,
            };
            let shown = folder.path().join(&name).display().to_string();
            let opened =
                Opened::read(file, seen, false).map_err(ProcessImageError::system(shown))?;
            for (index, path, changed_ns) in noted {
                let first = [changed_ns, opened.at_ns(index)];
                let read = reads.entry(path).or_insert(Read { changed_ns, first });
                read.changed_ns = changed_ns.min(read.changed_ns);
                if first[1] < read.first[1] {
                    read.first = first;
                }
            }
        }
        Ok(Self(reads))
    }

    /// Their paths.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.0.keys()
    }

    /// Is it one of them?
    pub(super) fn has(&self, path: &[u8]) -> bool {
        self.0.contains_key(path)
    }

    /// Those that somebody has changed since they were read first, or removed; as far as that can
    /// be said.
    pub(super) fn changed(&self) -> BTreeSet<Vec<u8>> {
        let is_changed = |(path, read): &(&Vec<u8>, &Read)| {
            let Ok(now) = metadata(path) else { return true };
            let [before, noted_ns] = read.first.map(i128::from);
            // Where nobody can say it was changed just before that.
            if before == 0 { changed_ns(&now) > noted_ns } else { changed_ns(&now) != before }
        };
        self.0.iter().filter(is_changed).map(|(path, _)| path.clone()).collect()
    }

    /// Nobody has changed it since it was read first.
    fn is_unchanged(&self, path: &[u8]) -> bool {
        let before = self.0.get(path).map(|read| read.changed_ns).filter(|before| *before != 0);
        let Ok(now) = metadata(path) else { return false };
        before.is_some_and(|before| changed_ns(&now) == i128::from(before))
    }

    /// Ranks of other sets write to `theirs`, or may: can it be rolled back without them? What
    /// nobody has changed since it was read first is what it was, unless this process, which does
    /// it again, has `changed` it before.
    pub(super) fn must_be_alone(
        &self,
        theirs: &BTreeSet<Vec<u8>>,
        changed: &BTreeSet<Vec<u8>>,
    ) -> Result<(), ProcessImageError> {
        let is_what_it_was = |path: &Vec<u8>| !changed.contains(path) && self.is_unchanged(path);
        let read = theirs.iter().find(|path| self.has(path) && !is_what_it_was(path));
        read.map_or(Ok(()), |path| {
            let what = format!("{} is not put back to what it was", shown(path));
            Err(ProcessImageError::Refused { what, reason: WRITTEN_BY_OTHERS })
        })
    }
}

/// Files that are not put back. True: since the snapshot itself, whether they were changed after it
/// or not.
pub(super) type Missing = BTreeMap<Vec<u8>, bool>;

/// Nobody who is rolled back to this epoch may have read what is not put back. Who is: the ranks of
/// this set, or all of the job.
pub(super) fn must_be_unread(
    folder: &Folder,
    epoch: u64,
    missing: &Missing,
    alone: bool,
) -> Result<(), ProcessImageError> {
    let (Some(job), Some(own)) = (folder.path().parent(), folder.path().file_name()) else {
        return Ok(());
    };
    if missing.is_empty() {
        return Ok(());
    }
    let own_reads = Reads::since(folder, epoch)?;
    let is_other = |(path, always): &(&Vec<u8>, &bool)| !**always || !own_reads.is_unchanged(path);
    let missing: Vec<&Vec<u8>> = missing.iter().filter(is_other).map(|(path, _)| path).collect();
    let refused = |path: &Vec<u8>, by: &OsString| {
        let notes = job.join(by).join("reads-*");
        let what = format!("{} is not put back to what it was ({})", shown(path), notes.display());
        Err(ProcessImageError::Refused { what, reason: NO_ROOM })
    };
    let is_read = |reads: &Reads| missing.iter().find(|path| reads.0.contains_key(**path)).copied();
    if let Some(path) = is_read(&own_reads) {
        return refused(path, &own.to_owned());
    }
    let all = Folder::open(job)?;
    for name in all.names()? {
        if name == own || alone && set_of(&name) != set_of(own) {
            continue;
        }
        let Ok(of) = all.folder(&name) else { continue };
        // Whatever epoch of its own it was.
        if let Some(path) = is_read(&Reads::since(&of, 0)?) {
            return refused(path, &name);
        }
    }
    Ok(())
}

pub(super) fn shown(path: &[u8]) -> impl core::fmt::Display + '_ {
    Path::new(OsStr::from_bytes(path)).display()
}
