//! The memory of a ring: words that two processes poll, and plain bytes between them.

use crate::LINE;
use crate::copy::copy_bytes;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

/// The orderings, by name. The real memory and the loom model take them from here, so that what
/// loom checks is what runs.
pub mod order {
    use core::sync::atomic::Ordering;

    /// `[frame]` producer: a record is complete.
    pub const FRAME_PUBLISH: Ordering = Ordering::Release;
    /// `[frame]` consumer: its bytes may be read.
    pub const FRAME_POLL: Ordering = Ordering::Acquire;
    /// `[room]` consumer: everything before this position has been read.
    pub const ROOM_RELEASE: Ordering = Ordering::Release;
    /// `[room]` producer: it may be written again.
    pub const ROOM_ACQUIRE: Ordering = Ordering::Acquire;
    /// Zeroing the next word: ordered by the `[frame]` publish that follows.
    pub const CLEAR: Ordering = Ordering::Relaxed;
}

/// The consumer's cache line: how far it has read. Positions only grow; they never wrap in practice
/// (2^64 bytes).
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Control {
    /// Bytes released to the producer.
    pub consumed: AtomicU64,
}

/// Ring memory. `at` is an offset into the ring; offsets of words are multiples of [`LINE`].
///
/// # Safety
/// `bytes` is a valid ring size that never changes, and `pointer(at)` is valid for reads of
/// `bytes - at` bytes as long as the value (or a clone of it in the same handle) lives.
pub unsafe trait Memory {
    /// Size of the ring.
    fn bytes(&self) -> usize;
    /// `[frame]` poll the publish word at `at`.
    fn poll(&self, at: usize) -> u64;
    /// `[frame]` write the publish word at `at`.
    fn publish(&self, at: usize, word: u64);
    /// Zero the publish word at `at`.
    fn clear(&self, at: usize);
    /// `[room]` how far the consumer has read.
    fn consumed(&self) -> u64;
    /// `[room]` the consumer has read up to `position`.
    fn release(&self, position: u64);
    /// Where the byte at `at` is.
    fn pointer(&self, at: usize) -> *mut u8;
    /// Copy bytes into the ring.
    ///
    /// # Safety
    /// `at + from.len() <= bytes()`, and these bytes are the producer's (invariant 3).
    unsafe fn write(&self, at: usize, from: &[u8]);
    /// The cache line at `at` is likely to be written soon: a hint.
    #[inline(always)]
    fn will_write(&self, at: usize) {
        let _ = at;
    }
    /// The cache line at `at` is about to be read: a hint.
    #[inline(always)]
    fn will_read(&self, at: usize) {
        let _ = at;
    }
    /// The cache line at `at` is written, and another processor is about to read it: a hint.
    #[inline(always)]
    fn demote(&self, at: usize) {
        let _ = at;
    }
    /// Write three words into the ring.
    ///
    /// # Safety
    /// As for [`Self::write`].
    #[inline(always)]
    unsafe fn write_words(&self, at: usize, words: [u64; 3]) {
        for (place, word) in words.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.write(at + 8 * place, &word.to_ne_bytes()) };
        }
    }
}

/// Ring memory by address: mapped or on the heap.
#[derive(Debug)]
pub struct Raw {
    base: NonNull<u8>,
    bytes: usize,
    control: NonNull<Control>,
}

// SAFETY: the memory is shared between threads and processes by design; the protocol of the
// producer and the consumer (invariants 1 to 4) orders all accesses.
unsafe impl Send for Raw {}

impl Raw {
    /// A ring at `base`, zeroed when it was made.
    ///
    /// # Safety
    /// `base` is aligned to [`LINE`] and valid for reads and writes of `bytes` bytes, `control`
    /// likewise for its own type, both for as long as the `Raw` lives; `bytes` is a valid ring
    /// size ([`crate::valid_ring_bytes`]). There is at most one producer and one consumer on it.
    /// Anybody else who writes there can damage frames but must not unmap them.
    pub const unsafe fn new(base: NonNull<u8>, bytes: usize, control: NonNull<Control>) -> Self {
        debug_assert!(crate::valid_ring_bytes(bytes));
        Self { base, bytes, control }
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at < self.bytes && at.is_multiple_of(LINE));
        // SAFETY: `at` is inside the ring (checked by producer and consumer: they mask it).
        let start = unsafe { self.base.add(at) };
        // SAFETY: in bounds, aligned to LINE, valid for the life of self; other accesses to these
        // 8 bytes are atomic, or ordered by [frame] and [room].
        unsafe { AtomicU64::from_ptr(start.as_ptr().cast()) }
    }

    #[inline]
    fn control(&self) -> &Control {
        // SAFETY: valid for the life of self (contract of `new`).
        unsafe { self.control.as_ref() }
    }
}

// SAFETY: the contract of `Raw::new` is the contract of the trait.
unsafe impl Memory for Raw {
    #[inline]
    fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    fn poll(&self, at: usize) -> u64 {
        u64::from_le(self.word(at).load(order::FRAME_POLL))
    }

    #[inline]
    fn publish(&self, at: usize, word: u64) {
        self.word(at).store(word.to_le(), order::FRAME_PUBLISH);
    }

    #[inline]
    fn clear(&self, at: usize) {
        self.word(at).store(0, order::CLEAR);
    }

    #[inline]
    fn consumed(&self) -> u64 {
        self.control().consumed.load(order::ROOM_ACQUIRE)
    }

    #[inline]
    fn release(&self, position: u64) {
        self.control().consumed.store(position, order::ROOM_RELEASE);
    }

    #[inline]
    fn pointer(&self, at: usize) -> *mut u8 {
        debug_assert!(at <= self.bytes);
        // SAFETY: at most one past the end of the ring.
        unsafe { self.base.as_ptr().add(at) }
    }

    #[inline(always)]
    unsafe fn write(&self, at: usize, from: &[u8]) {
        debug_assert!(at + from.len() <= self.bytes);
        // SAFETY: in bounds by the caller's promise; the source cannot overlap, since nobody
        // makes a reference to bytes that belong to the producer.
        unsafe { copy_bytes(from.as_ptr(), self.pointer(at), from.len()) }
    }

    #[inline(always)]
    fn will_write(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, which every x86-64 takes and which changes nothing.
        unsafe {
            core::arch::asm!(
                "prefetchw [{}]",
                in(reg) self.pointer(at),
                options(nostack, preserves_flags, readonly)
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    #[inline(always)]
    fn will_read(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, which every x86-64 takes and which changes nothing.
        unsafe {
            core::arch::asm!(
                "prefetcht0 [{}]",
                in(reg) self.pointer(at),
                options(nostack, preserves_flags, readonly)
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    #[inline(always)]
    fn demote(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `cldemote [rax]`, a hint: it moves the line to the cache that all processors
        // share. An x86-64 that does not know it does nothing (the code is one of those that the
        // architecture keeps for hints).
        unsafe {
            core::arch::asm!(
                ".byte 0x0f, 0x1c, 0x00",
                in("rax") self.pointer(at),
                options(nostack, preserves_flags)
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    #[inline(always)]
    unsafe fn write_words(&self, at: usize, words: [u64; 3]) {
        debug_assert!(at + 24 <= self.bytes);
        for (place, word) in words.into_iter().enumerate() {
            // SAFETY: in bounds by the caller's promise.
            unsafe { self.pointer(at + 8 * place).cast::<u64>().write_unaligned(word) };
        }
    }
}
