//! The memory that messages are received into and sent from, and that payloads of peers are read
//! into: one mapping, registered as a whole.
//!
//! No child inherits it (a frozen child would copy registered pages eagerly), and no image holds
//! it. Slots are of one size, first those of the shared receive queue, then those for sending;
//! behind them lie the bounce buffers for what is read, of another one.

use crate::os::OsError;
use crate::transports::verbs::adapter::Sizes;
use core::ops::Range;
use core::ptr::NonNull;
use core::slice;

/// Whose slot a work request has none of.
pub(super) const NO_SLOT: u16 = u16::MAX;
/// What a page is at most on the machines that this runs on.
const ALIGNMENT: usize = 64 << 10;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Buffers {
    start: NonNull<u8>,
    bytes: usize,
    slot_bytes: usize,
    receives: u16,
    /// Free slots for sending.
    free: Vec<u16>,
    sends: u16,
    bounce_bytes: usize,
    /// Free bounce buffers, numbered behind the slots.
    free_bounce_buffers: Vec<u16>,
}

// SAFETY: plain memory that only the owner, and the adapter by its order, access.
unsafe impl Send for Buffers {}

impl Buffers {
    /// With so many slots and bounce buffers of so many bytes.
    ///
    /// # Errors
    /// There is no memory.
    pub(super) fn new(sizes: &Sizes) -> Result<Self, OsError> {
        let Sizes { receives, sends, slot_bytes, bounce_buffers, bounce_bytes, .. } = *sizes;
        let slots = usize::from(receives) + usize::from(sends);
        let bytes = slots * slot_bytes + usize::from(bounce_buffers) * bounce_bytes;
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping, of nothing.
        let start = unsafe { libc::mmap(core::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        let on = || format!("{bytes} bytes");
        if start == libc::MAP_FAILED {
            return Err(OsError::last("mmap", on()));
        }
        // SAFETY: the mapping that was just made.
        let code = unsafe { libc::madvise(start, bytes, libc::MADV_DONTFORK) };
        let start = NonNull::new(start.cast()).expect("a mapping is not at 0");
        let free = (receives..receives + sends).rev().collect();
        let first = receives + sends;
        let free_bounce_buffers = (first..first + bounce_buffers).rev().collect();
        let buffers = Self {
            start,
            bytes,
            slot_bytes,
            receives,
            free,
            sends,
            bounce_bytes,
            free_bounce_buffers,
        };
        if code != 0 {
            return Err(OsError::last("madvise", on()));
        }
        Ok(buffers)
    }

    /// All of it.
    pub(super) fn range(&self) -> Range<usize> {
        let start = self.start.as_ptr() as usize;
        start..start + self.bytes
    }

    /// The first byte.
    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes of a slot.
    #[inline]
    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// The first byte of a slot.
    #[inline]
    pub(super) fn slot(&self, slot: u16) -> *mut u8 {
        debug_assert!(slot < self.receives + self.sends);
        self.start.as_ptr().wrapping_add(usize::from(slot) * self.slot_bytes)
    }

    /// A free slot for sending.
    #[inline]
    pub(super) fn take(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Is it a bounce buffer?
    #[inline]
    pub(super) fn is_bounce_buffer(&self, slot: u16) -> bool {
        slot != NO_SLOT && slot >= self.receives + self.sends
    }

    /// Free bounce buffers: how many.
    pub(super) fn bounce_buffers(&self) -> usize {
        self.free_bounce_buffers.len()
    }

    /// A free bounce buffer.
    pub(super) fn take_bounce_buffer(&mut self) -> Option<u16> {
        self.free_bounce_buffers.pop()
    }

    /// Bytes of a bounce buffer.
    pub(super) fn bounce_bytes(&self) -> usize {
        self.bounce_bytes
    }

    /// The first byte of a bounce buffer.
    pub(super) fn bounce_buffer(&self, slot: u16) -> *mut u8 {
        let slots = usize::from(self.receives) + usize::from(self.sends);
        let at = slots * self.slot_bytes + (usize::from(slot) - slots) * self.bounce_bytes;
        debug_assert!(self.is_bounce_buffer(slot) && at + self.bounce_bytes <= self.bytes);
        self.start.as_ptr().wrapping_add(at)
    }

    /// It is free again.
    #[inline]
    pub(super) fn give_back(&mut self, slot: u16) {
        if self.is_bounce_buffer(slot) {
            debug_assert!(!self.free_bounce_buffers.contains(&slot), "given back twice");
            self.free_bounce_buffers.push(slot);
        } else if slot != NO_SLOT {
            debug_assert!(!self.free.contains(&slot), "given back twice");
            self.free.push(slot);
        }
    }

    /// Is a slot for sending free?
    #[inline]
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Is less than half of the slots for sending free?
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.free.len() < usize::from(self.sends) / 2
    }

    /// Slots for sending that are in use.
    pub(super) fn in_use(&self) -> usize {
        usize::from(self.sends) - self.free.len()
    }

    /// The first bytes of a slot.
    ///
    /// # Safety
    /// The slot does not belong to the adapter, and nobody writes to it.
    pub(super) unsafe fn bytes(&self, slot: u16, len: usize) -> &[u8] {
        debug_assert!(len <= self.slot_bytes);
        // SAFETY: inside of the mapping; the caller's promise.
        unsafe { slice::from_raw_parts(self.slot(slot), len) }
    }

    /// The same, to be written.
    ///
    /// # Safety
    /// The slot does not belong to the adapter, and nobody else has it.
    #[inline]
    pub(super) unsafe fn bytes_mut(&mut self, slot: u16, len: usize) -> &mut [u8] {
        debug_assert!(len <= self.slot_bytes);
        // SAFETY: inside of the mapping; the caller's promise.
        unsafe { slice::from_raw_parts_mut(self.slot(slot), len) }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: ours, and the adapter does not use it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
