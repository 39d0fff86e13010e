//! Vectors that grow without the allocator: memory mapped for the purpose, moved by the kernel.

use crate::raw::{self, Errno};
use core::ptr::NonNull;
use rustbtl_checkpoint::image::Sink;

/// A list of plain values in a mapping of its own.
#[derive(Debug)]
pub struct MmapVec<T: Copy> {
    at: NonNull<T>,
    count: usize,
    bytes: usize,
    failed: Option<Errno>,
}

/// What the process records of itself; see `image::record`.
pub type Description = MmapVec<u8>;

impl<T: Copy> MmapVec<T> {
    /// An empty one with this capacity (rounded up to pages).
    pub fn new(bytes: usize) -> Result<Self, Errno> {
        let bytes = bytes.next_multiple_of(1 << 16);
        let at = NonNull::new(raw::map(bytes)?.cast()).ok_or(Errno(libc::ENOMEM))?;
        Ok(Self { at, count: 0, bytes, failed: None })
    }

    /// Removes all items; capacity and pages stay.
    pub fn clear(&mut self) {
        self.count = 0;
        self.failed = None;
    }

    /// What is in it.
    pub fn items(&self) -> &[T] {
        // SAFETY: the first `count` items were written, and the mapping lives as long as `self`.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.count) }
    }

    /// What is in it.
    pub fn items_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `items`; the mapping is ours alone.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.count) }
    }

    /// Address of the first.
    pub fn address(&self) -> usize {
        self.at.as_ptr().addr()
    }

    /// Appends; `finish` returns the error if there is no memory.
    pub fn push(&mut self, item: T) {
        self.append(&[item]);
    }

    /// Appends; `finish` returns the error if there is no memory.
    pub fn append(&mut self, items: &[T]) {
        if let Err(errno) = self.reserve(items.len()) {
            self.failed = Some(errno);
            return;
        }
        // SAFETY: `reserve` has mapped memory for them behind the items there are.
        let end = unsafe { self.at.as_ptr().add(self.count) };
        // SAFETY: memory as above; `items` lies elsewhere (it is borrowed, the vector is `&mut`).
        unsafe { core::ptr::copy_nonoverlapping(items.as_ptr(), end, items.len()) };
        self.count += items.len();
    }

    /// Has `fill` write up to `more` items behind those there are; it returns how many it wrote.
    pub fn fill(
        &mut self,
        more: usize,
        fill: impl FnOnce(&mut [T]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        self.reserve(more)?;
        // SAFETY: `reserve` has mapped memory there.
        let end = unsafe { self.at.as_ptr().add(self.count) };
        // SAFETY: fresh pages are zero, used ones hold old items: either way valid plain values.
        let buffer = unsafe { core::slice::from_raw_parts_mut(end, more) };
        let written = fill(buffer)?.min(more);
        self.count += written;
        Ok(written)
    }

    /// Capacity for so many more: appending them does not move the vector.
    pub fn make_room(&mut self, more: usize) -> Result<(), Errno> {
        self.reserve(more)
    }

    fn reserve(&mut self, more: usize) -> Result<(), Errno> {
        let wanted = (self.count + more) * size_of::<T>();
        if wanted <= self.bytes {
            return Ok(());
        }
        let bytes = wanted.max(self.bytes * 2).next_multiple_of(1 << 16);
        let from = self.address();
        let flags = libc::MREMAP_MAYMOVE as usize;
        // SAFETY: our own mapping; nothing is borrowed from it while we have `&mut self`.
        let at = unsafe { raw::call(libc::SYS_mremap, [from, self.bytes, bytes, flags, 0, 0]) }?;
        let at = core::ptr::with_exposed_provenance_mut(at);
        self.at = NonNull::new(at).ok_or(Errno(libc::ENOMEM))?;
        self.bytes = bytes;
        Ok(())
    }

    /// Was everything appended?
    pub fn finish(&self) -> Result<(), Errno> {
        self.failed.map_or(Ok(()), Err)
    }

    /// The mapping.
    pub fn range(&self) -> core::ops::Range<usize> {
        self.address()..self.address() + self.bytes
    }
}

impl<T: Copy> Drop for MmapVec<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping; nothing is borrowed from it any more.
        let _ = unsafe { raw::call(libc::SYS_munmap, [self.address(), self.bytes, 0, 0, 0, 0]) };
    }
}

impl Sink for MmapVec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.append(bytes);
    }
}
