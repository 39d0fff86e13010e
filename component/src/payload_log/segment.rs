//! A piece of memory of the payload log: an anonymous mapping, or a part of the spill file.

use core::ops::Range;
use core::ptr::NonNull;
use std::io;

/// From this size on, ask for huge pages.
const HUGE: usize = 2 << 20;

/// A mapping. Its bytes do not move; dropping it unmaps it.
#[derive(Debug)]
pub struct Segment {
    start: NonNull<u8>,
    bytes: usize,
    /// Part of the spill file.
    pub(crate) spilled: bool,
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

    pub(crate) fn map(
        bytes: usize,
        flags: libc::c_int,
        fd: libc::c_int,
        offset: u64,
    ) -> io::Result<Self> {
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

    /// Where it is, if it is no part of the spill file.
    pub fn anonymous_range(&self) -> Option<Range<usize>> {
        let start = self.start.as_ptr() as usize;
        (!self.spilled).then_some(start..start + self.bytes)
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
