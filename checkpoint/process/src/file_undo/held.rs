//! Files that are not what they were, since a set that is rolled back alone has put them back to
//! its checkpoint, and not written them again yet. Processes of other sets, which go on, wait for
//! that before they open or read one (invariant 9 of `rustbtl_checkpoint::file_undo`).
//!
//! Whoever puts files back says first which ones ([`hold`]), and looks then who has read them; who
//! reads says so first, and looks then whether they are held: one of both sees the other.
//!
//! In a process' folder is `held`, the list; in the job's folder is `held`, whose lists there are.
//! Both are empty where nothing is held, and not removed: that a file on the network has another
//! size is known at once to who asks its server, that it is there maybe later.

use super::common::set_of;
use super::epoch_of;
use super::others::Whose;
use super::rollback::Opened;
use crate::error::ProcessImageError;
use crate::private_files::{FileError, Folder};
use rustbtl_checkpoint::file_undo::Entry;
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Name of the lists.
pub(super) const HELD: &str = "held";
const READ_BY_OTHERS: &str = "ranks of other sets have read it since, and may read it while it is \
                              put back: it can be rolled back with them only";

/// Where it is written whose lists there are. `process`: the folder of one.
pub fn holders(process: &Path) -> PathBuf {
    process.with_file_name(HELD)
}

/// The paths in a list.
fn paths_in(file: File) -> io::Result<BTreeSet<Vec<u8>>> {
    let mut paths = BTreeSet::new();
    Opened::read(file, |_, entry| paths.extend(named(entry).map(<[u8]>::to_vec)), false)?;
    Ok(paths)
}

fn named<'e>(entry: &'e Entry<'_>) -> impl Iterator<Item = &'e [u8]> {
    entry.paths().into_iter().flatten()
}

/// What is not in a list yet is added.
fn add<'p>(file: &mut File, paths: impl Iterator<Item = &'p [u8]>) -> io::Result<()> {
    let mut known = BTreeSet::new();
    Opened::seek_end(file, |_, entry| known.extend(named(entry).map(<[u8]>::to_vec)))?;
    let (mut all, mut encoded) = (Vec::new(), Vec::new());
    for path in paths.filter(|path| !known.contains(*path)) {
        Entry::Writes { path }.encode(&mut encoded);
        all.extend_from_slice(&encoded);
    }
    file.write_all(&all)?;
    file.sync_all()
}

fn lock(file: &File) -> io::Result<()> {
    flock(file, FlockOperation::LockExclusive).map_err(Into::into)
}

/// The process with this folder is going to put these files back alone.
///
/// # Errors
/// Processes of other sets have read one of them, or nobody can say.
pub(super) fn hold(process: &Folder, paths: &BTreeSet<Vec<u8>>) -> Result<(), ProcessImageError> {
    let (Some(above), Some(mine)) = (process.path().parent(), process.path().file_name()) else {
        return Ok(());
    };
    if paths.is_empty() {
        return Ok(());
    }
    let job = Folder::open(above)?;
    let failed =
        ProcessImageError::system(format!("noting what is put back in {}", above.display()));
    let mut list = process.file_or_new(HELD)?;
    let mut holders = job.file_or_new(HELD)?;
    let noted = add(&mut list, paths.iter().map(Vec::as_slice))
        .and_then(|()| lock(&holders))
        .and_then(|()| add(&mut holders, core::iter::once(mine.as_bytes())));
    noted.map_err(failed)?;
    drop(holders);
    match read_by_others(&job, mine, paths)? {
        None => Ok(()),
        Some(path) => {
            let what = format!("{} is not put back to what it was", super::readers::shown(&path));
            Err(ProcessImageError::Refused { what, reason: READ_BY_OTHERS })
        }
    }
}

/// One of these files that a process of another set has read since its newest snapshot.
fn read_by_others(
    job: &Folder,
    mine: &OsStr,
    paths: &BTreeSet<Vec<u8>>,
) -> Result<Option<Vec<u8>>, ProcessImageError> {
    for name in job.names()? {
        if set_of(&name).is_none_or(|set| Some(set) == set_of(mine)) {
            continue;
        }
        let Ok(process) = job.folder(&name) else { continue };
        let names = process.names().unwrap_or_default();
        let epoch = |name: &OsString| {
            let name = name.to_str()?;
            epoch_of(name, "reads-").or_else(|| epoch_of(name, "epoch-"))
        };
        // Where it has neither read nor changed anything since: of the one before.
        let Some(newest) = names.iter().filter_map(epoch).max() else { continue };
        let file = match process.file(super::reads_name(newest)) {
            // It may be removed meanwhile.
            Err(error) if error.is_missing() => continue,
            opened => opened?,
        };
        let shown = process.path().display().to_string();
        let read = paths_in(file).map_err(ProcessImageError::system(shown))?;
        if let Some(path) = read.into_iter().find(|path| has(paths, path)) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Is it one of these, or in a folder that is?
fn has(paths: &BTreeSet<Vec<u8>>, path: &[u8]) -> bool {
    let mut above = Path::new(OsStr::from_bytes(path)).ancestors();
    above.any(|path| paths.contains(path.as_os_str().as_bytes()))
}

/// The process with this folder has written again what it had put back, or all are rolled back.
pub fn release(process: &Path) {
    // Without a list there is nothing.
    let _ = emptied(process);
}

fn emptied(process: &Path) -> Result<(), FileError> {
    let Some(above) = process.parent() else { return Ok(()) };
    let path = process.join(HELD);
    let system = |error: io::Error| FileError::System { path: path.clone(), error };
    let process = Folder::open(process)?;
    if process.file(HELD)?.metadata().map_err(system)?.len() == 0 {
        return Ok(());
    }
    process.file_or_new(HELD)?.set_len(0).map_err(system)?;
    let job = Folder::open(above)?;
    let holders = job.file_or_new(HELD)?;
    lock(&holders).map_err(system)?;
    let names = paths_in(holders.try_clone().map_err(system)?).map_err(system)?;
    let holds = |name: &Vec<u8>| !is_empty(&job, OsStr::from_bytes(name));
    if !names.iter().any(holds) {
        holders.set_len(0).map_err(system)?;
    }
    Ok(())
}

fn is_empty(job: &Folder, process: &OsStr) -> bool {
    let list = job.folder(process).and_then(|process| process.file(HELD));
    list.ok().and_then(|list| list.metadata().ok()).is_none_or(|found| found.len() == 0)
}

/// Of these files, those that the process' own set has put back.
pub(super) fn own(process: &Path, wanted: &BTreeSet<Vec<u8>>) -> BTreeSet<Vec<u8>> {
    let lists = lists(Whose::OwnSet, process);
    wanted.iter().filter(|path| lists.iter().any(|held| has(held, path))).cloned().collect()
}

/// Of such processes. `process`: the folder of the one that asks.
fn lists(whose: Whose, process: &Path) -> Vec<BTreeSet<Vec<u8>>> {
    let (Some(above), Some(mine)) = (process.parent(), process.file_name().and_then(set_of)) else {
        return Vec::new();
    };
    let Ok(job) = Folder::open(above) else { return Vec::new() };
    let is_wanted = |set: &str| (set == mine) == (whose == Whose::OwnSet);
    let names = job.file(HELD).ok().and_then(|holders| paths_in(holders).ok()).unwrap_or_default();
    let names = names.iter().map(|name| OsStr::from_bytes(name));
    let names = names.filter(|name| set_of(name).is_some_and(is_wanted));
    names.filter_map(|name| paths_in(job.folder(name).ok()?.file(HELD).ok()?).ok()).collect()
}

/// Makes both lists, empty. Process and job have their folders.
pub(super) fn prepare(process: &Folder) -> Result<(), FileError> {
    process.file_or_new(HELD)?;
    let Some(job) = process.path().parent() else { return Ok(()) };
    Folder::open(job)?.file_or_new(HELD).map(drop)
}

/// The folders of the process and of the job are not needed any more.
pub(super) fn remove(process: &Path) {
    release(process);
    let remove = |folder: &Path| Folder::open(folder).map(|folder| folder.remove(HELD));
    let _ = remove(process);
    let _ = std::fs::remove_dir(process);
    if let Some(job) = process.parent() {
        let names = Folder::open(job).and_then(|job| job.names()).unwrap_or_default();
        if names.iter().all(|name| name == HELD) {
            let _ = remove(job);
            let _ = std::fs::remove_dir(job);
        }
    }
}

/// Is this file held by a process of another set? `process`: the folder of the one that asks.
pub fn is_held(process: &Path, path: &[u8]) -> bool {
    lists(Whose::OtherSets, process).iter().any(|held| has(held, path))
}

/// Is anything in this folder?
pub fn is_any_held_in(process: &Path, folder: &[u8]) -> bool {
    let folder = Path::new(OsStr::from_bytes(folder));
    let is_in = |path: &Path| path.parent() == Some(folder);
    is_any_held(process, is_in)
}

/// Is anything below this folder?
pub fn is_any_held_below(process: &Path, folder: &[u8]) -> bool {
    let folder = Path::new(OsStr::from_bytes(folder));
    is_any_held(process, |path| path != folder && path.starts_with(folder))
}

fn is_any_held(process: &Path, is_wanted: impl Fn(&Path) -> bool) -> bool {
    let is_wanted = |path: &Vec<u8>| is_wanted(Path::new(OsStr::from_bytes(path)));
    lists(Whose::OtherSets, process).iter().any(|held| held.iter().any(is_wanted))
}
