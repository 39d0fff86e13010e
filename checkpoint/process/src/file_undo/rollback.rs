//! Undoing journals, before the process is made.

use super::common::{self, Common, changed};
use super::held;
use super::not_again::NotAgain;
use super::others::{Whose, named_by, overwritten_by_others};
use super::readers::{self, Missing, Reads};
use super::shared::SharedFiles;
use super::{epoch_of, journal_name};
use crate::error::ProcessImageError;
use crate::private_files::Folder;
use core::ops::Range;
use rustbtl_checkpoint::file_undo::{
    CONTENT_PLACE_BYTES, Entry, HEAD_BYTES, Head, Ranges, Shape, Step, steps,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What is rolled back.
#[derive(Clone, Copy, Debug)]
pub struct Rollback<'a> {
    /// Folder of the process.
    pub folder: &'a Path,
    /// The epoch that began with the snapshot.
    pub epoch: u64,
    /// Processes of other sets continue: what they write to, too, is left as it is.
    pub alone: bool,
}

/// What came of a rollback.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RolledBack {
    /// What could not be put back.
    pub not_put_back: Vec<NotPutBack>,
    /// Paths that ranks of several sets have opened together by MPI-IO, where the process is rolled
    /// back alone: those files were left as they are.
    pub shared: BTreeSet<Vec<u8>>,
}

/// A file that is not what it was at the checkpoint, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotPutBack {
    /// Where it is.
    pub path: PathBuf,
    /// Why.
    pub reason: &'static str,
}

const NO_ROOM: &str = "more of it was changed than vprotocol_correlated_file_undo_max permits, or \
                       it could not be read";
const SHARED: &str = "ranks of other sets write to it, too";
const OVERWRITTEN: &str = "this rank and ranks of other sets have overwritten the same part of it \
                           since: it can be rolled back with them only";

/// A journal, and where its entries are.
pub(super) struct Opened {
    file: File,
    entries: Vec<(u64, Head)>,
}

impl Opened {
    /// Invariant 5: up to the first entry that is not whole. `names_only`: content is not read.
    pub(super) fn read(
        file: File,
        mut seen: impl FnMut(usize, &Entry<'_>),
        names_only: bool,
    ) -> io::Result<Self> {
        let bytes = file.metadata()?.len();
        let (mut at, mut entries, mut body) = (0u64, Vec::new(), Vec::new());
        while at + (HEAD_BYTES as u64) < bytes {
            let mut head = [0; HEAD_BYTES];
            file.read_exact_at(&mut head, at)?;
            let Some(head) = Head::decode(head) else { break };
            let end = at + (HEAD_BYTES + head.bytes) as u64;
            if end > bytes {
                break;
            }
            // Others' content is not looked at: only the names of their files.
            if !names_only || head.bytes < 2 * 4096 + 64 {
                body.resize(head.bytes, 0);
                file.read_exact_at(&mut body, at + HEAD_BYTES as u64)?;
                if !head.is_of(&body) {
                    break;
                }
                let Ok(entry) = Entry::decode(&body) else { break };
                seen(entries.len(), &entry);
            }
            entries.push((at, head));
            at = end;
        }
        Ok(Self { file, entries })
    }

    /// Which parts of files have entries with their content.
    pub(super) fn each_content(
        file: File,
        mut seen: impl FnMut(&[u8], Range<u64>),
    ) -> io::Result<()> {
        let opened = Self::read(file, |_, _| (), true)?;
        let mut beginning = [0; CONTENT_PLACE_BYTES];
        for (at, head) in opened.entries {
            let beginning = &mut beginning[..head.bytes.min(CONTENT_PLACE_BYTES)];
            opened.file.read_exact_at(beginning, at + HEAD_BYTES as u64)?;
            if let Some((path, range)) = Entry::content_place(beginning) {
                seen(path, range);
            }
        }
        Ok(())
    }

    /// Moves a file that is going to be appended to behind its last whole entry: behind half an
    /// entry nothing would be read.
    pub(super) fn seek_end(file: &mut File, seen: impl FnMut(usize, &Entry<'_>)) -> io::Result<()> {
        let end = Self::read(file.try_clone()?, seen, false)?.end();
        file.set_len(end)?;
        file.seek(SeekFrom::Start(end)).map(drop)
    }

    /// Time of an entry.
    pub(super) fn at_ns(&self, entry: usize) -> u64 {
        self.entries[entry].1.at_ns
    }

    /// Where the last whole entry ends.
    pub(super) fn end(&self) -> u64 {
        self.entries.last().map_or(0, |(at, head)| at + (HEAD_BYTES + head.bytes) as u64)
    }

    pub(super) fn body(&self, entry: usize) -> io::Result<Vec<u8>> {
        let (at, head) = self.entries[entry];
        let mut body = vec![0; head.bytes];
        self.file.read_exact_at(&mut body, at + HEAD_BYTES as u64)?;
        Ok(body)
    }
}

/// Puts back what the process has changed since its snapshot. May be repeated where it has failed
/// or was killed (invariant 3).
pub fn roll_back(what: &Rollback<'_>) -> Result<RolledBack, ProcessImageError> {
    let folder = match Folder::open(what.folder) {
        // It has never written to a file; or its folder is gone with its node, and so are those
        // files.
        Err(error) if error.is_missing() => return Ok(RolledBack::default()),
        opened => opened?,
    };
    // Of a rollback that was interrupted, maybe one to another snapshot.
    for name in folder.names()? {
        if let Some(epoch) = name.to_str().and_then(|name| epoch_of(name, "kept-")) {
            Kept::named(epoch).put_back(&folder, epoch)?;
        }
    }
    let mut journals = BTreeMap::new();
    let (mut own, mut missing, mut shapes) = (BTreeSet::new(), Missing::new(), Vec::new());
    let (mut moves, mut changes, mut overwritten) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
    let mut by_mpi_io = SharedFiles::new(what.epoch);
    let mut not_again = NotAgain::new(what.epoch);
    for name in folder.names()? {
        let Some(epoch) = name.to_str().and_then(|name| epoch_of(name, "epoch-")) else { continue };
        if epoch < what.epoch {
            continue;
        }
        let mut begun = 0;
        let mut without_room = Vec::new();
        let seen = |index: usize, entry: &Entry<'_>| {
            if *entry == (Entry::Begun {}) {
                begun = index + 1;
            }
            if let Entry::Missing { path } = *entry {
                without_room.push((index, path.to_vec()));
            }
            if let Entry::Moved { from, to } = *entry {
                moves.push([from.to_vec(), to.to_vec()]);
            }
            own.extend(entry.paths().into_iter().flatten().map(<[u8]>::to_vec));
            changes.extend(changed(entry).map(<[u8]>::to_vec));
            if let Entry::Content { path, offset, bytes } = *entry {
                let range = offset..offset.saturating_add(bytes.len() as u64);
                overwritten.entry(path.to_vec()).or_insert_with(Ranges::default).add(range);
            }
            by_mpi_io.see((epoch, index), entry);
            not_again.see(epoch, entry);
        };
        let journal = folder.file_or_new(&name)?;
        let shown = what.folder.join(&name).display().to_string();
        let journal =
            Opened::read(journal, seen, false).map_err(ProcessImageError::system(shown))?;
        for (index, path) in without_room {
            *missing.entry(path).or_insert(true) &= index < begun;
        }
        shapes.push(Shape { epoch, entries: journal.entries.len(), begun });
        journals.insert(epoch, journal);
    }
    // Before anything is changed: others may have to be rolled back, too (6).
    readers::must_be_unread(&folder, what.epoch, &missing, what.alone)?;
    let shared = if what.alone {
        let reads = Reads::since(&folder, what.epoch)?;
        let names = own.iter().chain(reads.paths()).chain(not_again.paths()).cloned().collect();
        let theirs = named_by(Whose::OtherSets, what.folder, &names);
        reads.must_be_alone(&theirs, &changes)?;
        not_again.must_be_alone(theirs.iter().filter(|path| !by_mpi_io.has(path)))?;
        by_mpi_io.check(|path| reads.has(path))?;
        let both = |path: &Vec<u8>| theirs.contains(path) && !by_mpi_io.has(path);
        let parts = overwritten.iter().filter(|(path, _)| both(path));
        let parts = parts.map(|(path, ranges)| (path.as_slice(), ranges.clone())).collect();
        if let Some(path) = overwritten_by_others(what.folder, &parts) {
            let what = format!("{} is not put back to what it was", readers::shown(path));
            return Err(ProcessImageError::Refused { what, reason: OVERWRITTEN });
        }
        let is_left = |path: &&Vec<u8>| theirs.contains(*path) || by_mpi_io.has(path);
        held::hold(&folder, &changes.iter().filter(|path| !is_left(path)).cloned().collect())?;
        own.iter().filter(is_left).cloned().collect()
    } else {
        BTreeSet::new()
    };
    let kept = if shared.is_empty() && missing.is_empty() {
        Kept::named(what.epoch)
    } else {
        Kept::before(&folder, what.epoch, &journals, &shapes, &shared)?
    };
    let common = Common::of(&folder, what, (&own, &moves), &shared)?;
    for (&epoch, journal) in journals.iter().filter(|_| common.is_some()) {
        for index in 0..journal.entries.len() {
            let body = journal.body(index).map_err(|error| ProcessImageError::System {
                what: format!("reading {}", what.folder.join(journal_name(epoch)).display()),
                error,
            })?;
            if let (Some(common), Ok(entry)) = (&common, Entry::decode(&body)) {
                common.add(&entry, journal.at_ns(index))?;
            }
        }
    }
    let common = common.map(Common::added).transpose()?;
    let mut left = Left::default();
    for step in steps(&shapes, what.epoch) {
        let failed = |error: io::Error| ProcessImageError::System {
            what: format!("putting files back from {}", what.folder.display()),
            error,
        };
        match step {
            Step::Undo { epoch, entry } => {
                let body = journals[&epoch].body(entry).map_err(failed)?;
                let Ok(entry) = Entry::decode(&body) else { continue };
                let paths = || entry.paths().into_iter().flatten();
                if let Some(path) = paths().find(|path| shared.contains(*path)) {
                    let is_change = !matches!(entry, Entry::Writes { .. } | Entry::Missing { .. });
                    if is_change && !by_mpi_io.has(path) {
                        left.add(path, SHARED);
                    }
                    continue;
                }
                if common.as_ref().is_some_and(|common| common.has(&entry)) {
                    continue;
                }
                undo(&entry, &folder, &mut left).map_err(|error| {
                    let path = paths().next().unwrap_or_default();
                    ProcessImageError::System {
                        what: format!(
                            "putting {} back to what it was at the checkpoint",
                            Path::new(OsStr::from_bytes(path)).display()
                        ),
                        error,
                    }
                })?;
            }
            Step::Cut { epoch, entry } => {
                let journal = &journals[&epoch];
                journal.file.set_len(journal.entries[entry].0).map_err(failed)?;
            }
            Step::Remove { epoch } => folder.remove(journal_name(epoch))?,
        }
    }
    if let Some(common) = common {
        common.undo(&folder, &mut left)?;
    }
    common::remove_folders(what, &left.folders)?;
    // Of an entry that is not whole.
    if let (Some(journal), Some(shape)) =
        (journals.get(&what.epoch), shapes.iter().find(|shape| shape.epoch == what.epoch))
        && let Some((at, head)) = shape.begun.checked_sub(1).map(|last| journal.entries[last])
    {
        let end = at + (HEAD_BYTES + head.bytes) as u64;
        let shown = what.folder.display().to_string();
        journal.file.set_len(end).map_err(ProcessImageError::system(shown))?;
    }
    drop(journals);
    kept.put_back(&folder, what.epoch)?;
    let shared = if what.alone { by_mpi_io.into_paths() } else { BTreeSet::new() };
    Ok(RolledBack { not_put_back: left.files, shared })
}

/// What is not undone, and stays in the journal for a rollback of all: entries of files that others
/// write to, and what has no room. Beside it from before the first change until it is there again,
/// so that a rollback may end anywhere (invariant 3).
struct Kept(OsString);

impl Kept {
    fn named(to: u64) -> Self {
        Self(format!("kept-{to}").into())
    }

    fn before(
        folder: &Folder,
        to: u64,
        journals: &BTreeMap<u64, Opened>,
        shapes: &[Shape],
        shared: &BTreeSet<Vec<u8>>,
    ) -> Result<Self, ProcessImageError> {
        let kept = Self::named(to);
        let written = kept.write(folder, to, journals, shapes, shared);
        written.map_err(|error| ProcessImageError::System {
            what: format!("keeping what is not put back in {}", folder.path().display()),
            error,
        })?;
        Ok(kept)
    }

    fn write(
        &self,
        folder: &Folder,
        to: u64,
        journals: &BTreeMap<u64, Opened>,
        shapes: &[Shape],
        shared: &BTreeSet<Vec<u8>>,
    ) -> io::Result<()> {
        let new = folder.path().join(format!("kept-{to}.new"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = BufWriter::new(options.custom_flags(libc::O_NOFOLLOW).open(&new)?);
        let mut encoded = Vec::new();
        let mut shapes: Vec<&Shape> = shapes.iter().collect();
        shapes.sort_by_key(|shape| shape.epoch);
        for shape in shapes {
            // What belongs to later snapshots is undone as well.
            let first = if shape.epoch == to { shape.begun } else { 0 };
            for index in first..shape.entries {
                let body = journals[&shape.epoch].body(index)?;
                let Ok(entry) = Entry::decode(&body) else { continue };
                let is_shared = entry.paths().into_iter().flatten().any(|of| shared.contains(of));
                if is_shared || matches!(entry, Entry::Missing { .. }) {
                    entry.encode(&mut encoded);
                    file.write_all(&encoded)?;
                }
            }
        }
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&new, folder.path().join(&self.0))
    }

    fn put_back(self, folder: &Folder, to: u64) -> Result<(), ProcessImageError> {
        let from = folder.path().join(&self.0);
        let mut kept = match File::open(&from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.map_err(ProcessImageError::system(from.display().to_string()))?,
        };
        let journal = folder.path().join(journal_name(to));
        let mut options = OpenOptions::new();
        let to_append = options.read(true).append(true).create(true).mode(0o600);
        let appended =
            to_append.custom_flags(libc::O_NOFOLLOW).open(&journal).and_then(|mut file| {
                Opened::seek_end(&mut file, |_, _| ())?;
                io::copy(&mut kept, &mut file)?;
                file.sync_all()
            });
        appended.map_err(ProcessImageError::system(journal.display().to_string()))?;
        folder.remove(&self.0)?;
        Ok(())
    }
}

/// What could not be undone.
#[derive(Default)]
pub(super) struct Left {
    files: Vec<NotPutBack>,
    /// Folders with something in them, maybe of another process that has not undone it yet.
    pub(super) folders: Vec<Vec<u8>>,
}

impl Left {
    fn add(&mut self, path: &[u8], reason: &'static str) {
        let path = PathBuf::from(OsStr::from_bytes(path));
        let new = NotPutBack { path, reason };
        if !self.files.contains(&new) {
            self.files.push(new);
        }
    }
}

pub(super) fn undo(entry: &Entry<'_>, folder: &Folder, left: &mut Left) -> io::Result<()> {
    let path = |bytes: &'_ [u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let exists = |path: &Path| path.symlink_metadata().is_ok();
    let done = match *entry {
        Entry::Writes { .. }
        | Entry::Begun {}
        | Entry::Reads { .. }
        | Entry::Shared { .. }
        | Entry::NotAgain { .. } => Ok(()),
        Entry::Missing { path } => {
            left.add(path, NO_ROOM);
            Ok(())
        }
        Entry::Created { path: bytes, inode } => {
            let path = path(bytes);
            match path.symlink_metadata() {
                Ok(found) if inode == 0 || found.ino() == inode => fs::remove_file(&path),
                _ => Ok(()),
            }
        }
        Entry::Size { path: bytes, size, extend } => writable(&path(bytes)).and_then(|file| {
            let now = file.metadata()?.len();
            if now > size || extend && now < size { file.set_len(size) } else { Ok(()) }
        }),
        Entry::Content { path: at, offset, bytes } => {
            writable(&path(at)).and_then(|file| file.write_all_at(bytes, offset))
        }
        Entry::Moved { from, to } => {
            let (from, to) = (path(from), path(to));
            if exists(&to) && !exists(&from) { fs::rename(to, from) } else { Ok(()) }
        }
        Entry::Removed { path: bytes, saved } => {
            let saved = folder.path().join(OsStr::from_bytes(saved));
            if exists(&saved) { put_back(&saved, &path(bytes)) } else { Ok(()) }
        }
        Entry::MadeFolder { path: bytes } => match fs::remove_dir(path(bytes)) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                left.folders.push(bytes.to_vec());
                Ok(())
            }
            other => other,
        },
        Entry::RemovedFolder { path: bytes, mode } => {
            match fs::DirBuilder::new().mode(mode).create(path(bytes)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                other => other,
            }
        }
    };
    match done {
        // Made and removed since the checkpoint, or removed by another process.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn writable(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

/// Gives what was removed its name again; on another file system as a copy.
fn put_back(saved: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(saved, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            let mut name = to.file_name().unwrap_or_default().to_owned();
            name.push(".rustbtl-tmp");
            let temporary = to.with_file_name(name);
            fs::copy(saved, &temporary)?;
            fs::rename(&temporary, to)?;
            fs::remove_file(saved)
        }
        // Of two names of one file both stay: it was not removed yet.
        Ok(()) => match fs::remove_file(saved) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        },
        other => other,
    }
}
