//! Objects that are mapped shared (or were files without a name): restored in memory that has no
//! name, or has the one that it had (`shared_name.rs`), so that the next snapshot finds them as
//! what they are. Where several processes share one, they find it by `shared_registry.rs`.
//!
//! Invariant: each page of an object is written once, by the first process that has it, before any
//! process runs that could change it; a page that is there is not overwritten. So the order in
//! which processes are restored does not matter.
//!
//! Where the kernel makes memory of larger pieces than pages (`shmem_enabled` in
//! /sys/kernel/mm/transparent_hugepage), one page that is written makes all of its piece be there,
//! zero. Then pages that are zero count as missing: all images are of one moment, and nobody runs.

use super::SharedRegistry;
use super::image_file::{ImageFile, ReadBuffers};
use super::shared_name::{NotNamed, SharedName};
use super::shared_registry::{RegistryEntry, memory};
use crate::error::ProcessImageError;
use crate::session_folders::{is_own_memory, is_pmix_folder, is_server_memory, is_session_folder};
use core::ops::Range;
use rustbtl_checkpoint::image::record::SharedObject;
use std::ffi::{CStr, OsStr};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const PAGE: usize = 4096;
/// As memory of the program is seen that has no name.
pub const SHARED: &CStr = c"rustbtl-shared";

/// Makes the object, or finds it, and fills what is missing. `origin`: the machine that it is of;
/// `name`: where it is to have one; else this is what is seen of it.
pub fn make(
    image: &ImageFile,
    object: &SharedObject<'_>,
    origin: &str,
    (seen_as, name): (&CStr, Option<&SharedName<'_>>),
    bytes: u64,
    registry: Option<&SharedRegistry>,
) -> Result<(File, Option<NotNamed>), ProcessImageError> {
    let shown = String::from_utf8_lossy(object.path).into_owned();
    let failed = || ProcessImageError::system(format!("shared memory {shown}"));
    // No other process fills it, or uses what is not filled, until this is dropped.
    let entry = match registry {
        Some(registry) => {
            let of = format!("{origin}-{:x}-{:x}", object.device, object.inode);
            Some(RegistryEntry::lock(registry, &of)?)
        }
        None => None,
    };
    let mut not_named = None;
    let mut new = || match name.map(|name| name.memory(bytes)) {
        Some(Ok(named)) => Ok(named),
        Some(Err(reason)) => {
            not_named = name.and_then(|name| name.not_given(reason));
            memory(seen_as)
        }
        None => memory(seen_as),
    };
    let file = match &entry {
        Some(entry) => entry.object(new)?,
        None => new()?,
    };
    if file.metadata().map_err(failed())?.len() < bytes {
        file.set_len(bytes).map_err(failed())?;
    }
    // A file system may make larger pieces, too.
    let in_pieces = name.is_some() || memory_is_in_pieces().map_err(failed())?;
    let mut buffers = ReadBuffers::default();
    let own = image.blocks.iter().filter(|block| u32::from(block.space) == object.space);
    for block in own {
        let data = image.block(block, &mut buffers)?;
        fill(&file, block.address, data, in_pieces).map_err(failed())?;
    }
    Ok((file, not_named))
}

/// What a shared mapping was of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind<'a> {
    /// A file that was written to: its content is restored there.
    File(&'a Path),
    /// Memory under a name: it lies in a folder that is `detached`, or in a session folder of Open
    /// MPI and was written to.
    NamedMemory(&'a Path),
    /// Memory whose name was removed, or that had none; or a file that was only read.
    Memory,
    /// The component's own: its processes agree on it anew, and it needs no name.
    Own,
    /// Made by a server, of PMIx or of Open MPI's daemons, which may be another one now.
    OfServer,
}

impl<'a> Kind<'a> {
    /// By the path in /proc/PID/maps.
    pub fn of(path: &'a [u8], writes: bool, detached: &[PathBuf]) -> Self {
        let mut folders = path.split(|byte| *byte == b'/');
        let pmix = folders.clone().any(is_pmix_folder);
        let session = folders.any(is_session_folder);
        if pmix || session && !writes || is_server_memory(path) {
            return Self::OfServer;
        }
        if is_own_memory(path) {
            return Self::Own;
        }
        if !path.starts_with(b"/") || path.ends_with(b" (deleted)") {
            return Self::Memory;
        }
        let path = Path::new(OsStr::from_bytes(path));
        match detached.iter().any(|folder| path.starts_with(folder)) {
            true => Self::NamedMemory(path),
            false if session => Self::NamedMemory(path),
            false if writes => Self::File(path),
            false => Self::Memory,
        }
    }
}

/// Restores the content in the file itself: what the mapping had at the checkpoint.
pub fn write_back(
    image: &ImageFile,
    object: &SharedObject<'_>,
    path: &Path,
) -> Result<File, ProcessImageError> {
    let failed = || ProcessImageError::system(format!("{} (it was mapped shared)", path.display()));
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed())?;
    let mut buffers = ReadBuffers::default();
    let bytes = file.metadata().map_err(failed())?.len();
    for block in image.blocks.iter().filter(|block| u32::from(block.space) == object.space) {
        let data = image.block(block, &mut buffers)?;
        // The last page of a file is only partly the file's.
        let inside = bytes.saturating_sub(block.address).min(data.len() as u64) as usize;
        file.write_all_at(&data[..inside], block.address).map_err(failed())?;
    }
    Ok(file)
}

/// Does a page that is written bring others with it?
fn memory_is_in_pieces() -> std::io::Result<bool> {
    /// More than the largest piece of any kernel.
    const BYTES: u64 = 64 << 20;
    let probe = memory(SHARED).map_err(std::io::Error::other)?;
    probe.set_len(BYTES)?;
    probe.write_all_at(&[1; PAGE], 0)?;
    // SAFETY: moves only the offset of this file.
    let hole = unsafe { libc::lseek(probe.as_raw_fd(), 0, libc::SEEK_HOLE) };
    Ok(hole != PAGE as i64)
}

/// Writes those pages from there to `end` that are zero. `data`: all of the block from `start` on.
fn fill_zero(file: &File, start: u64, data: &[u8], range: Range<u64>) -> std::io::Result<()> {
    let mut page = [0; PAGE];
    let mut at = range.start;
    while at < range.end {
        let next = (at + 1).next_multiple_of(PAGE as u64).min(range.end);
        let (own, there) = (&data[(at - start) as usize..(next - start) as usize], &mut page);
        let there = &mut there[..own.len()];
        file.read_exact_at(there, at)?;
        if there.iter().all(|&byte| byte == 0) && own.iter().any(|&byte| byte != 0) {
            file.write_all_at(own, at)?;
        }
        at = next;
    }
    Ok(())
}

/// Writes the parts of a block that are not there yet.
fn fill(file: &File, start: u64, data: &[u8], in_pieces: bool) -> std::io::Result<()> {
    let seek = |from: u64, whence| {
        // SAFETY: moves only the offset of this file.
        let at = unsafe { libc::lseek(file.as_raw_fd(), from as i64, whence) };
        if at >= 0 { Ok(Some(at as u64)) } else { nothing_there() }
    };
    let end = start + data.len() as u64;
    let mut at = start;
    while at < end {
        let there = seek(at, libc::SEEK_DATA)?.unwrap_or(u64::MAX).min(end);
        if there > at {
            let part = (at - start) as usize..(there - start) as usize;
            file.write_all_at(&data[part], at)?;
        }
        let hole = match seek(there, libc::SEEK_HOLE)? {
            Some(hole) if there < end => hole.min(end),
            _ => end,
        };
        if in_pieces {
            fill_zero(file, start, data, there..hole)?;
        }
        at = hole;
    }
    Ok(())
}

/// ENXIO: there is no data behind.
fn nothing_there() -> std::io::Result<Option<u64>> {
    let error = std::io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENXIO) { Ok(None) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_there_stay_and_others_are_filled() {
        let block: Vec<u8> = (0..4 * PAGE).map(|at| 1 + (at / PAGE) as u8).collect();
        let start = PAGE as u64;
        for in_pieces in [false, true] {
            let file = memory(SHARED).unwrap();
            file.set_len(8 * PAGE as u64).unwrap();
            // Of somebody else: a page with something, and one that is zero.
            file.write_all_at(&[9; PAGE], start + PAGE as u64).unwrap();
            file.write_all_at(&[0; PAGE], start + 2 * PAGE as u64).unwrap();
            fill(&file, start, &block, in_pieces).unwrap();
            let mut all = vec![7; 6 * PAGE];
            file.read_exact_at(&mut all, 0).unwrap();
            let pages: Vec<u8> = all.chunks(PAGE).map(|page| page[0]).collect();
            assert!(all.chunks(PAGE).all(|page| page.iter().all(|&byte| byte == page[0])));
            assert_eq!(pages, [0, 1, 9, if in_pieces { 3 } else { 0 }, 4, 0], "{in_pieces}");
        }
    }

    #[test]
    fn memory_with_a_name_is_told_from_files() {
        let detached = [PathBuf::from("/dev/shm")];
        let of = |path: &'static str| Kind::of(path.as_bytes(), true, &detached);
        let read = |path: &'static str| Kind::of(path.as_bytes(), false, &detached);
        for path in ["/dev/shm/of the program", "/tmp/ompi.n1.0/pid.7/1/shared_window_3.n1"] {
            assert_eq!(of(path), Kind::NamedMemory(Path::new(path)));
        }
        assert_eq!(of("/scratch/table"), Kind::File(Path::new("/scratch/table")));
        let other = "/dev/shm/of another";
        assert_eq!(read(other), Kind::NamedMemory(Path::new(other)));
        assert_eq!(read("/scratch/table"), Kind::Memory);
        assert_eq!(read("/tmp/ompi.n1.0/pid.7/hwloc.sm"), Kind::OfServer);
        for path in ["/dev/shm/a (deleted)", "/memfd:a (deleted)", "", "[heap]"] {
            assert_eq!(of(path), Kind::Memory, "{path}");
        }
        let own = "/dev/shm/rustbtl-0-8e367fff57e7836f4f64627023d87d40";
        assert_eq!((of(own), of("/memfd:rustbtl-own (deleted)")), (Kind::Own, Kind::Own));
        let segment = "/tmp/ompi.n1.0/pid.7/pmix_dstor_ds21_7/smlockseg-0";
        let deleted = "/tmp/ompi.n1.0/pid.7/pmix_dstor_ds21_7/smlockseg-0 (deleted)";
        for path in [segment, deleted, "/memfd:rustbtl-of-server (deleted)"] {
            assert_eq!(of(path), Kind::OfServer, "{path}");
        }
    }

    #[test]
    fn pieces_are_noticed() {
        // As this kernel is set; it must not fail, and says the same again.
        assert_eq!(memory_is_in_pieces().unwrap(), memory_is_in_pieces().unwrap());
    }
}
