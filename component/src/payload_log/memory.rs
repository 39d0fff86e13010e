//! Memory of the payload log: anonymous mappings within the budget, then a file.

use crate::payload_log::prefault::Pages;
use core::ptr::NonNull;
use rustbtl_checkpoint::{Place, SegmentMemory};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// From this size on, ask for huge pages.
const HUGE: usize = 2 << 20;

/// A mapping. Its bytes do not move; dropping it unmaps it.
#[derive(Debug)]
pub struct Segment {
    start: NonNull<u8>,
    bytes: usize,
    /// Part of the spill file.
    spilled: bool,
}

// SAFETY: plain memory, owned.
unsafe impl Send for Segment {}

impl Segment {
    /// Anonymous memory; large segments lie on the boundaries of huge pages.
    pub fn anonymous(bytes: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        if bytes < HUGE {
            return Self::map(bytes, flags, -1, 0);
        }
        let roomy = Self::map(bytes + HUGE, flags, -1, 0)?;
        let (first, all) = (roomy.start.as_ptr() as usize, roomy.bytes);
        core::mem::forget(roomy);
        let start = first.next_multiple_of(HUGE);
        let unmap = |from: usize, to: usize| {
            if to > from {
                // SAFETY: the ends of the mapping made above, which nothing refers to.
                unsafe { libc::munmap(from as *mut libc::c_void, to - from) };
            }
        };
        unmap(first, start);
        unmap(start + bytes, first + all);
        // SAFETY: what is left of our own mapping; only advice.
        unsafe { libc::madvise(start as *mut libc::c_void, bytes, libc::MADV_HUGEPAGE) };
        let start = NonNull::new(start as *mut u8).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { start, bytes, spilled: false })
    }

    fn map(bytes: usize, flags: libc::c_int, fd: libc::c_int, offset: u64) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let offset = offset as libc::off_t;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(core::ptr::null_mut(), bytes, access, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { start, bytes, spilled: fd >= 0 })
    }

    /// Its address, for [`Self::from_raw`]; nothing is unmapped. Not for a part of the spill file.
    pub fn into_raw(self) -> usize {
        debug_assert!(!self.spilled);
        let start = self.start.as_ptr() as usize;
        core::mem::forget(self);
        start
    }

    /// # Safety
    /// `start` came from [`Self::into_raw`] of a segment of this size, and is used once.
    pub unsafe fn from_raw(start: usize, bytes: usize) -> Option<Self> {
        let start = NonNull::new(start as *mut u8)?;
        Some(Self { start, bytes, spilled: false })
    }

    /// Have the kernel give pages for all of it now.
    pub fn touch(&mut self) {
        const MADV_POPULATE_WRITE: libc::c_int = 23;
        // SAFETY: our own mapping; where the kernel does not know the advice, nothing happens.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, MADV_POPULATE_WRITE) };
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if self.spilled {
            // Give the blocks back: the file must not grow with what was trimmed.
            // SAFETY: our own mapping, and no reference into it outlives `self`.
            unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, libc::MADV_REMOVE) };
        }
        // SAFETY: our own mapping, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl AsRef<[u8]> for Segment {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: mapped, readable, and initialised by the kernel; borrowed as `self` is.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl AsMut<[u8]> for Segment {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and writable; borrowed as `self` is.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

/// Where the log's memory comes from.
#[derive(Debug)]
pub struct LogMemory {
    /// `None`: never spill.
    directory: Option<PathBuf>,
    rank: u32,
    spill: Option<File>,
    spilled: u64,
    /// Why the last spill failed, for the message to the user.
    pub spill_error: Option<String>,
    /// Makes pages ahead of need.
    pages: Option<Pages>,
    /// There is a processor for that.
    ahead: bool,
}

impl LogMemory {
    /// Spill to an unnamed file in `directory`.
    pub fn new(directory: Option<PathBuf>, rank: u32) -> Self {
        let (spill, pages) = (None, None);
        Self { directory, rank, spill, spilled: 0, spill_error: None, pages, ahead: false }
    }

    /// Let a thread prepare large segments from now on; only where a processor is free for it.
    pub fn prepare_ahead(&mut self) {
        self.ahead = true;
    }

    /// A large segment whose pages are there already, if one is ready. The thread starts when
    /// the log first grows to large segments.
    fn prepared(&mut self, bytes: usize) -> Option<Segment> {
        if !self.ahead || bytes < HUGE {
            return None;
        }
        if self.pages.is_none() {
            self.pages = Pages::start();
            self.ahead = self.pages.is_some();
        }
        self.pages.as_mut()?.take(bytes)
    }

    /// Make the file now, to find out early that it cannot be made.
    pub fn open_spill(&mut self) -> io::Result<()> {
        let Some(directory) = &self.directory else {
            return Err(io::Error::other("spilling is switched off"));
        };
        if self.spill.is_some() {
            return Ok(());
        }
        let path = directory.join(format!("rustbtl-log-{}-{}", std::process::id(), self.rank));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&path)?;
        // Unnamed from now on: it goes with the process, however that ends.
        std::fs::remove_file(&path)?;
        self.spill = Some(file);
        Ok(())
    }

    fn spill(&mut self, bytes: usize) -> io::Result<Segment> {
        self.open_spill()?;
        let Some(file) = &self.spill else { return Err(io::Error::other("no file")) };
        let (offset, length) = (self.spilled as libc::off_t, bytes as libc::off_t);
        // SAFETY: a call on our own descriptor. Reserves the blocks: a full disk must be an error
        // here, not a signal later.
        let code = unsafe { libc::posix_fallocate(file.as_raw_fd(), offset, length) };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        let segment = Segment::map(bytes, libc::MAP_SHARED, file.as_raw_fd(), self.spilled)?;
        self.spilled += bytes as u64;
        Ok(segment)
    }
}

impl SegmentMemory for LogMemory {
    type Segment = Segment;
    type Error = io::Error;

    fn allocate(&mut self, bytes: usize, place: Place) -> io::Result<Segment> {
        match place {
            Place::Memory => self.prepared(bytes).map_or_else(|| Segment::anonymous(bytes), Ok),
            Place::Spill => self.spill(bytes).inspect_err(|error| {
                self.spill_error = Some(error.to_string());
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spilled_segments_are_memory_like_any_other() {
        let mut memory = LogMemory::new(Some(std::env::temp_dir()), 0);
        let mut one = memory.allocate(1 << 16, Place::Spill).unwrap();
        let mut two = memory.allocate(1 << 16, Place::Spill).unwrap();
        one.as_mut().fill(1);
        two.as_mut().fill(2);
        assert!(one.as_ref().iter().all(|&b| b == 1) && two.as_ref().iter().all(|&b| b == 2));
        let mut three = memory.allocate(4 << 20, Place::Memory).unwrap();
        three.touch();
        assert_eq!(three.as_ref().len(), 4 << 20);
        assert_eq!(three.as_ref().as_ptr() as usize % HUGE, 0, "on a huge page's boundary");
    }

    #[test]
    fn dropped_segments_give_their_blocks_back() {
        use std::os::unix::fs::MetadataExt;
        let mut memory = LogMemory::new(Some(std::env::temp_dir()), 1);
        let mut one = memory.allocate(4 << 20, Place::Spill).unwrap();
        one.as_mut().fill(1);
        let blocks = |memory: &LogMemory| {
            memory.spill.as_ref().map_or(0, |file| file.metadata().map_or(0, |data| data.blocks()))
        };
        let before = blocks(&memory);
        assert!(before >= (4 << 20) / 512);
        drop(one);
        assert!(blocks(&memory) < before / 2, "{} of {before} blocks stay", blocks(&memory));
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_an_error() {
        let mut memory = LogMemory::new(Some(PathBuf::from("/proc/self/nowhere")), 0);
        assert!(memory.allocate(1 << 16, Place::Spill).is_err());
        assert!(memory.spill_error.is_some());
        assert!(LogMemory::new(None, 0).allocate(1 << 16, Place::Spill).is_err());
    }
}
