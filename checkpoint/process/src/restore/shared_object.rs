//! Objects that are mapped shared (or were files without a name): restored in memory that has no
//! name, so that the next snapshot finds them as what they are. Where several processes share one,
//! they find it by `shared_registry.rs`.
//!
//! Invariant: each page of an object is written once, by the first process that has it, before any
//! process runs that could change it; a page that is there is not overwritten. So the order in
//! which processes are restored does not matter, nor that some of them run already.

use super::SharedRegistry;
use super::image_file::{ImageFile, ReadBuffers};
use super::shared_registry::{RegistryEntry, memory};
use crate::error::ProcessImageError;
use rustbtl_checkpoint::image::Block;
use rustbtl_checkpoint::image::record::SharedObject;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Makes the object, or finds it, and fills what is missing. `origin`: the machine that it is of.
pub fn make(
    image: &ImageFile,
    object: &SharedObject<'_>,
    origin: &str,
    bytes: u64,
    registry: Option<&SharedRegistry>,
) -> Result<File, ProcessImageError> {
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
    let file = entry.as_ref().map_or_else(memory, RegistryEntry::object)?;
    if file.metadata().map_err(failed())?.len() < bytes {
        file.set_len(bytes).map_err(failed())?;
    }
    let mut buffers = ReadBuffers::default();
    let own = image.blocks.iter().filter(|block| u32::from(block.space) == object.space);
    for block in own {
        let data = image.block(block, &mut buffers)?;
        fill(&file, block, data).map_err(failed())?;
    }
    Ok(file)
}

/// The file that a shared mapping wrote to, if its content is to be restored: it has a name, and
/// lies neither in a folder that is `detached` nor in a session folder of Open MPI or PMIx, whose
/// processes may have ended, or be others.
pub fn path_of<'a>(path: &'a [u8], detached: &[PathBuf]) -> Option<&'a Path> {
    let named = path.starts_with(b"/") && !path.ends_with(b" (deleted)");
    let path = Some(Path::new(OsStr::from_bytes(path))).filter(|_| named)?;
    let session = path.components().any(|part| {
        let part = part.as_os_str().as_bytes();
        part.starts_with(b"ompi.") || part.starts_with(b"pmix")
    });
    let apart = session || detached.iter().any(|folder| path.starts_with(folder));
    (!apart).then_some(path)
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

/// Writes the parts of a block that are not there yet.
fn fill(file: &File, block: &Block, data: &[u8]) -> std::io::Result<()> {
    let seek = |from: u64, whence| {
        // SAFETY: moves only the offset of this file.
        let at = unsafe { libc::lseek(file.as_raw_fd(), from as i64, whence) };
        if at >= 0 { Ok(Some(at as u64)) } else { nothing_there() }
    };
    let mut at = block.address;
    while at < block.end() {
        let there = seek(at, libc::SEEK_DATA)?.unwrap_or(u64::MAX).min(block.end());
        if there > at {
            let part = (at - block.address) as usize..(there - block.address) as usize;
            file.write_all_at(&data[part], at)?;
        }
        at = match seek(there, libc::SEEK_HOLE)? {
            Some(hole) if there < block.end() => hole,
            _ => block.end(),
        };
    }
    Ok(())
}

/// ENXIO: there is no data behind.
fn nothing_there() -> std::io::Result<Option<u64>> {
    let error = std::io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENXIO) { Ok(None) } else { Err(error) }
}
