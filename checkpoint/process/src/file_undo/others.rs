//! What the journals of other processes of the job name.

use super::common::set_of;
use super::epoch_of;
use super::rollback::Opened;
use crate::error::ProcessImageError;
use crate::private_files::Folder;
use rustbtl_checkpoint::file_undo::{Entry, Ranges};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whose journals are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whose {
    /// Those of the processes of all other sets.
    OtherSets,
    /// Those of the process' own set, its own, too.
    OwnSet,
}

/// All journals of such processes. `folder`: of the process that asks.
fn each_journal(whose: Whose, folder: &Path, mut seen: impl FnMut(File)) {
    let (Some(job), Some(mine)) = (folder.parent(), folder.file_name().and_then(set_of)) else {
        return;
    };
    let Ok(job) = Folder::open(job) else { return };
    for name in job.names().unwrap_or_default() {
        let is_asked = |of: &str| (of == mine) == (whose == Whose::OwnSet);
        if !set_of(&name).is_some_and(is_asked) {
            continue;
        }
        let Ok(process) = job.folder(&name) else { continue };
        for journal in process.names().unwrap_or_default() {
            let is_one = journal.to_str().is_some_and(|name| name.starts_with("epoch-"));
            // It may be removed meanwhile.
            if let Some(file) = is_one.then(|| process.file(&journal).ok()).flatten() {
                seen(file);
            }
        }
    }
}

/// Of these files and folders, those that such processes write to, or have changed something in.
pub(super) fn named_by(
    whose: Whose,
    folder: &Path,
    wanted: &BTreeSet<Vec<u8>>,
) -> BTreeSet<Vec<u8>> {
    let mut named = BTreeSet::new();
    if wanted.is_empty() {
        return named;
    }
    let mut see = |entry: &Entry<'_>| {
        let paths = entry.paths().into_iter().flatten();
        let with_folders = paths.flat_map(|path| {
            Path::new(OsStr::from_bytes(path)).ancestors().map(|at| at.as_os_str().as_bytes())
        });
        named.extend(with_folders.filter(|path| wanted.contains(*path)).map(<[u8]>::to_vec));
    };
    each_journal(whose, folder, |file| {
        let _ = Opened::read(file, |_, entry| see(entry), true);
    });
    named
}

/// Files that processes of other sets have made, or made longer, or have overwritten behind the end
/// that they had for this one, which has made them longer itself. `folder`: of this process, whose
/// snapshot this epoch began with.
pub(super) fn grown_by_others(
    folder: &Path,
    epoch: u64,
) -> Result<BTreeSet<Vec<u8>>, ProcessImageError> {
    let (mut grown, ends) = (BTreeSet::new(), own_ends(folder, epoch)?);
    let mut see = |entry: &Entry<'_>| {
        if let Entry::Size { path, .. } | Entry::Created { path, .. } = *entry {
            grown.insert(path.to_vec());
        }
    };
    each_journal(Whose::OtherSets, folder, |file| {
        let _ = Opened::read(file, |_, entry| see(entry), true);
    });
    if !ends.is_empty() {
        each_journal(Whose::OtherSets, folder, |file| {
            let _ = Opened::each_content(file, |path, range| {
                if ends.get(path).is_some_and(|end| range.end > *end) {
                    grown.insert(path.to_vec());
                }
            });
        });
    }
    Ok(grown)
}

/// Files that this process has made, or made longer, and where they ended before.
fn own_ends(folder: &Path, epoch: u64) -> Result<BTreeMap<Vec<u8>, u64>, ProcessImageError> {
    let mut ends = BTreeMap::new();
    let own = match Folder::open(folder) {
        Err(error) if error.is_missing() => return Ok(ends),
        opened => opened?,
    };
    for name in own.names()? {
        if name.to_str().and_then(|name| epoch_of(name, "epoch-")).is_none_or(|of| of < epoch) {
            continue;
        }
        let seen = |_: usize, entry: &Entry<'_>| {
            let (path, end) = match *entry {
                Entry::Size { path, size, .. } => (path, size),
                Entry::Created { path, .. } => (path, 0),
                _ => return,
            };
            let least = ends.entry(path.to_vec()).or_insert(end);
            *least = end.min(*least);
        };
        let shown = folder.join(&name).display().to_string();
        let read = Opened::read(own.file(&name)?, seen, true);
        read.map_err(ProcessImageError::system(shown))?;
    }
    Ok(ends)
}

/// A file of which processes of other sets have overwritten some of these parts, too.
pub(super) fn overwritten_by_others<'p>(
    folder: &Path,
    parts: &BTreeMap<&'p [u8], Ranges>,
) -> Option<&'p [u8]> {
    let mut found = None;
    if parts.is_empty() {
        return found;
    }
    each_journal(Whose::OtherSets, folder, |file| {
        let _ = Opened::each_content(file, |path, range| {
            if let Some((path, ranges)) = parts.get_key_value(path)
                && ranges.has_any_of(&range)
            {
                found = Some(*path);
            }
        });
    });
    found
}
