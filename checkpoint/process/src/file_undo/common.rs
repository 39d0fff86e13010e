//! Files that several processes of those that are rolled back have changed. Each has recorded what
//! it found, so of the same bytes several have recorded something, and the first of them had what
//! the checkpoint had. So before a process undoes anything, it adds its part of such files to a
//! file that all of them have in common, and then undoes all that is there, the newest first:
//! whoever comes last has it all. Until then nobody runs, so what is in between does not matter.
//!
//! The order is that of the clocks of their nodes. What changes names is undone by each for itself,
//! before that. Then what one has made first is removed, if another one that had removed it has put
//! it back, and a folder is made again that one had removed first.

use super::rollback::{Left, Opened, Rollback, undo};
use crate::error::ProcessImageError;
use crate::private_files::{FileError, Folder};
use rustbtl_checkpoint::file_undo::Entry;
use rustix::fs::{FlockOperation, flock};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Of the ranks of all sets.
const OF_ALL: &str = "undone-all";
/// Of the ranks of one set, whose name follows.
const OF_SET: &str = "undone-";
/// In the folder of a process that has added something, until that rollback is over: if it is
/// interrupted, what was added is not in its journals any more.
const HAS_ADDED: &str = "undone";
/// Where there are more processes than that, those of other sets are not looked at: each looks at
/// all.
const PROCESSES_MAX: usize = 256;

/// See the module's documentation. The file is locked until all was added.
pub(super) struct Common {
    job: Folder,
    paths: BTreeSet<Vec<u8>>,
    file: RefCell<BufWriter<File>>,
    encoded: RefCell<Vec<u8>>,
    name: OsString,
}

/// The same when that was done.
pub(super) struct Added {
    job: Folder,
    paths: BTreeSet<Vec<u8>>,
    name: OsString,
}

/// The set in the name of a process's folder.
pub(super) fn set_of(process: &OsStr) -> Option<&str> {
    Some(process.to_str()?.split_once('.')?.0)
}

/// Name of the file.
fn name_of(alone: bool, set: &str) -> OsString {
    if alone { format!("{OF_SET}{set}").into() } else { OF_ALL.into() }
}

fn is_common(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(OF_SET.as_bytes())
}

/// Content or a size: undone in an order among all.
fn has_order(entry: &Entry<'_>) -> bool {
    matches!(entry, Entry::Content { .. } | Entry::Size { .. })
}

/// What was there under a name before it was changed.
#[derive(Clone, Copy)]
enum Before {
    Nothing,
    Something,
    Folder { mode: u32 },
}

/// What an entry says about that.
fn before<'e>(entry: &'e Entry<'_>) -> Vec<(&'e [u8], Before)> {
    match *entry {
        Entry::Created { path, .. } | Entry::MadeFolder { path } => vec![(path, Before::Nothing)],
        Entry::Removed { path, .. } => vec![(path, Before::Something)],
        Entry::RemovedFolder { path, mode } => vec![(path, Before::Folder { mode })],
        Entry::Moved { from, to } => vec![(from, Before::Something), (to, Before::Nothing)],
        _ => Vec::new(),
    }
}

/// Paths of what an entry has changed.
pub(super) fn changed<'e>(entry: &'e Entry<'_>) -> impl Iterator<Item = &'e [u8]> {
    let changes = !matches!(
        entry,
        Entry::Writes { .. } | Entry::Shared { .. } | Entry::Missing { .. } | Entry::Reads { .. }
    );
    entry.paths().into_iter().flatten().filter(move |_| changes)
}

impl Common {
    /// What a process has to do with others; `None`: nothing. `own`: paths in its journals;
    /// `moves`: which of them it has given which name; `left`: what is left as it is.
    pub(super) fn of(
        process: &Folder,
        what: &Rollback<'_>,
        (own, moves): (&BTreeSet<Vec<u8>>, &[[Vec<u8>; 2]]),
        left: &BTreeSet<Vec<u8>>,
    ) -> Result<Option<Self>, ProcessImageError> {
        let (Some(above), Some(mine)) = (what.folder.parent(), what.folder.file_name()) else {
            return Ok(None);
        };
        let again = process.file(HAS_ADDED).is_ok();
        let is_own = |path: &[u8]| own.contains(path) && !left.contains(path);
        let Some(set) = set_of(mine).filter(|_| again || own.iter().any(|path| is_own(path)))
        else {
            return Ok(None);
        };
        let job = Folder::open(above)?;
        let names = job.names()?;
        let processes = names.iter().filter(|name| set_of(name).is_some());
        let only_set = what.alone || processes.clone().count() > PROCESSES_MAX;
        let others: Vec<&OsString> = processes
            .filter(|name| *name != mine && (!only_set || set_of(name) == Some(set)))
            .collect();
        if others.is_empty() && !names.iter().any(|name| is_common(name)) {
            return Ok(None);
        }
        let failed = failed(process.path());
        let mut paths = BTreeSet::new();
        let mut see = |entry: &Entry<'_>, all: bool| {
            let both = changed(entry).filter(|path| all || is_own(path));
            paths.extend(both.map(<[u8]>::to_vec));
        };
        for other in others {
            let Ok(folder) = job.folder(other) else { continue };
            for journal in folder.names().unwrap_or_default() {
                let is_one = journal.to_str().is_some_and(|name| name.starts_with("epoch-"));
                // It may be removed meanwhile: then its content is with the others'.
                let Some(file) = is_one.then(|| folder.file(&journal).ok()).flatten() else {
                    continue;
                };
                // It may become shorter while it is read: then that is in the common file, too.
                let _ = Opened::read(file, |_, entry| see(entry, false), false);
            }
        }
        // Locked only now, so that all look at each other at the same time: who has shortened its
        // journals meanwhile has looked at this process before, and has added its part.
        let name = name_of(what.alone, set);
        let mut file = job.file_or_new(&name)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        for file in common_files(&job, &name)? {
            Opened::read(file, |_, entry| see(entry, again), false).map_err(&failed)?;
        }
        if paths.is_empty() {
            return Ok(None);
        }
        // All that is known of both names.
        let is_half = |paths: &BTreeSet<Vec<u8>>, both: &[Vec<u8>; 2]| {
            both.iter().filter(|path| paths.contains(*path)).count() == 1
        };
        while let Some(both) = moves.iter().find(|both| is_half(&paths, both)) {
            paths.extend(both.iter().cloned());
        }
        drop(process.file_or_new(HAS_ADDED)?);
        Opened::seek_end(&mut file, |_, _| ()).map_err(&failed)?;
        let (file, encoded) = (RefCell::new(BufWriter::new(file)), RefCell::new(Vec::new()));
        Ok(Some(Self { job, paths, file, encoded, name }))
    }

    /// Adds an entry of this process, if it is one of such a file.
    pub(super) fn add(&self, entry: &Entry<'_>, at_ns: u64) -> Result<(), ProcessImageError> {
        let is_one = changed(entry).any(|path| self.paths.contains(path));
        if !is_one || !has_order(entry) && before(entry).is_empty() {
            return Ok(());
        }
        let mut encoded = self.encoded.borrow_mut();
        entry.encode_at(&mut encoded, at_ns);
        let written = self.file.borrow_mut().write_all(&encoded);
        written.map_err(failed(&self.job.path().join(&self.name)))
    }

    /// All were added: others may add theirs.
    pub(super) fn added(self) -> Result<Added, ProcessImageError> {
        let Self { job, paths, file, name, .. } = self;
        let failed = failed(&job.path().join(&name));
        let file = file.into_inner().into_inner();
        let file = file.map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(&failed)?;
        Ok(Added { job, paths, name })
    }
}

/// Those of this rollback, and of earlier ones that were interrupted.
fn common_files(job: &Folder, name: &OsStr) -> Result<Vec<File>, FileError> {
    let of_all = name == OF_ALL;
    let is_one = |found: &OsString| {
        is_common(found) && (of_all || found == name || found.as_os_str() == OF_ALL)
    };
    job.names()?.iter().filter(|found| is_one(found)).map(|found| job.file(found)).collect()
}

fn has(paths: &BTreeSet<Vec<u8>>, entry: &Entry<'_>) -> bool {
    has_order(entry) && changed(entry).any(|path| paths.contains(path))
}

fn failed(what: &Path) -> impl Fn(io::Error) -> ProcessImageError + use<> {
    let what = format!("putting back what several processes have changed ({})", what.display());
    move |error| ProcessImageError::System { what: what.clone(), error }
}

impl Added {
    /// Is it undone with what others have changed?
    pub(super) fn has(&self, entry: &Entry<'_>) -> bool {
        has(&self.paths, entry)
    }

    /// Undoes what is there of these files.
    pub(super) fn undo(self, process: &Folder, left: &mut Left) -> Result<(), ProcessImageError> {
        let failed = failed(&self.job.path().join(&self.name));
        let lock = self.job.file_or_new(&self.name)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        restore_names(&self.job, &self.name)?;
        let (mut opened, mut order) = (Vec::new(), Vec::new());
        for file in common_files(&self.job, &self.name)? {
            let (number, mut found) = (opened.len(), Vec::new());
            let seen = |index: usize, entry: &Entry<'_>| {
                if has(&self.paths, entry) {
                    found.push(index);
                }
            };
            let file = Opened::read(file, seen, false).map_err(&failed)?;
            order.extend(found.into_iter().map(|index| (file.at_ns(index), number, index)));
            opened.push(file);
        }
        order.sort_unstable();
        for (_, file, entry) in order.into_iter().rev() {
            let body = opened[file].body(entry).map_err(&failed)?;
            if let Ok(entry) = Entry::decode(&body) {
                undo(&entry, process, left).map_err(&failed)?;
            }
        }
        Ok(())
    }
}

/// What was not there before its first change is removed, a folder that was is there. Only with the
/// lock.
fn restore_names(job: &Folder, name: &OsStr) -> Result<(), ProcessImageError> {
    let mut first: BTreeMap<Vec<u8>, (u64, Before)> = BTreeMap::new();
    for file in common_files(job, name)? {
        let mut names = Vec::new();
        let seen = |index: usize, entry: &Entry<'_>| {
            names.extend(before(entry).into_iter().map(|(path, was)| (index, path.to_vec(), was)));
        };
        let file = Opened::read(file, seen, false).map_err(failed(&job.path().join(name)))?;
        // Of one process, the first one of the same time comes first.
        for (index, path, was) in names {
            let (at_ns, known) = (file.at_ns(index), first.get(&path).map(|known| known.0));
            if known.is_none_or(|known| at_ns < known) {
                first.insert(path, (at_ns, was));
            }
        }
    }
    // What is in a folder comes behind it.
    for (path, (_, was)) in first.iter().rev() {
        let path = Path::new(OsStr::from_bytes(path));
        let Ok(is) = path.symlink_metadata() else { continue };
        // A folder that is not empty has what nobody has recorded, or has not undone yet.
        let _ = match was {
            Before::Nothing if is.is_dir() => std::fs::remove_dir(path),
            Before::Nothing => std::fs::remove_file(path),
            _ => Ok(()),
        };
    }
    for (path, (_, was)) in first {
        if let Before::Folder { mode } = was {
            let _ = std::fs::DirBuilder::new().mode(mode).create(OsStr::from_bytes(&path));
        }
    }
    Ok(())
}

/// The process has undone everything, but `left` folders that it had made: another one may still
/// have files in them, and removes them when it has undone that. Whoever comes last does.
pub(super) fn remove_folders(
    what: &Rollback<'_>,
    left: &[Vec<u8>],
) -> Result<(), ProcessImageError> {
    let (Some(above), Some(set)) = (what.folder.parent(), what.folder.file_name().and_then(set_of))
    else {
        return Ok(());
    };
    let (job, name) = (Folder::open(above)?, name_of(what.alone, set));
    if left.is_empty() && job.file(&name).is_err() {
        return Ok(());
    }
    let failed = failed(&above.join(&name));
    let mut file = job.file_or_new(&name)?;
    flock(&file, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
    file.seek(SeekFrom::End(0)).map_err(&failed)?;
    let mut encoded = Vec::new();
    for path in left {
        // What several have changed is there with its time, and that counts.
        Entry::MadeFolder { path }.encode_at(&mut encoded, u64::MAX);
        file.write_all(&encoded).map_err(&failed)?;
    }
    restore_names(&job, &name)
}

/// All processes of a rollback have put back what they have changed, and none runs yet. `process`:
/// the folder of one of them.
pub fn is_over(process: &Path) {
    forget(process);
}

pub(super) fn forget(process: &Path) {
    let (Some(above), Some(set)) = (process.parent(), process.file_name().and_then(set_of)) else {
        return;
    };
    if let Ok(process) = Folder::open(process) {
        let _ = process.remove(HAS_ADDED);
    }
    let Ok(job) = Folder::open(above) else { return };
    for name in [OF_ALL.to_owned(), format!("{OF_SET}{set}")] {
        let _ = job.remove(name);
    }
}
