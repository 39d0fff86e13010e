//! The receiving end.

use crate::{
    FRAME_BYTES_MIN, LINE, Memory, SKIP, cached_part_bytes, frame_bytes_max, record_bytes,
};

/// Bytes of a frame that are prefetched as soon as it is seen, at most.
const FETCHED_BYTES_MAX: usize = 32 * LINE;

/// A publish word that no producer writes: the memory was overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The word.
    pub word: u64,
    /// Its offset in the ring.
    pub at: usize,
}

impl core::fmt::Display for Damage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "word {:#018x} at byte {} of the ring is no start of a frame", self.word, self.at)
    }
}

/// The receiving end of a ring.
#[derive(Debug)]
pub struct Consumer<M> {
    memory: M,
    mask: u64,
    frame_bytes_max: usize,
    /// Where the next record starts.
    position: u64,
    /// The position that the producer was given last.
    released: u64,
    /// It is given the position after so many bytes.
    release_each: u64,
    /// Bytes of the record that `peek` returned last.
    peeked: u64,
}

impl<M: Memory> Consumer<M> {
    /// The receiving end of a fresh ring.
    pub fn new(memory: M) -> Self {
        let mask = memory.bytes() as u64 - 1;
        let frame_bytes_max = frame_bytes_max(memory.bytes());
        let release_each = cached_part_bytes(memory.bytes()) as u64 / 4;
        Self { memory, mask, frame_bytes_max, position: 0, released: 0, release_each, peeked: 0 }
    }

    /// Is there a frame? One load; `peek` returns it.
    #[inline]
    pub fn is_ready(&self) -> bool {
        // [frame] only a hint here: `peek` loads again.
        self.memory.poll((self.position & self.mask) as usize) != 0
    }

    /// The oldest frame: its first byte and its length. It stays until [`Self::consume`].
    #[inline]
    pub fn peek(&mut self) -> Result<Option<(*const u8, usize)>, Damage> {
        Ok(self.peek_at()?.map(|(at, len)| (self.memory.pointer(at).cast_const(), len)))
    }

    /// As [`Self::peek`], by offset.
    #[inline]
    pub(crate) fn peek_at(&mut self) -> Result<Option<(usize, usize)>, Damage> {
        let at = (self.position & self.mask) as usize;
        // [frame] the record's bytes are visible after this.
        let word = self.memory.poll(at);
        if word == 0 {
            return Ok(None);
        }
        let len = word as u32 as usize;
        let need = record_bytes(len);
        // Below the minimum it wraps around to something very large.
        let fits = len.wrapping_sub(FRAME_BYTES_MIN) <= self.frame_bytes_max - FRAME_BYTES_MIN;
        if !fits || (at + need) as u64 > self.mask + 1 {
            return self.peek_marker(at, word);
        }
        self.peeked = need as u64;
        if need > LINE {
            self.fetch(at, need);
        }
        Ok(Some((at, len)))
    }

    /// Prefetch the cache lines of a frame together, not one after the other as they are read.
    #[inline]
    fn fetch(&self, at: usize, need: usize) {
        let mut line = LINE;
        while line < need.min(FETCHED_BYTES_MAX) {
            self.memory.will_read(at + line);
            line += LINE;
        }
    }

    /// Not a record: a marker, or damage.
    #[cold]
    #[inline(never)]
    fn peek_marker(&mut self, at: usize, word: u64) -> Result<Option<(usize, usize)>, Damage> {
        let (bytes, to) = (self.memory.bytes(), (word >> 32) as usize);
        let skipped = if to > at { to - at } else { bytes - at };
        let is_place = to.is_multiple_of(LINE) && to < bytes && (to > at || to == 0);
        if word as u32 != SKIP || !is_place || (at, to) == (0, 0) {
            return Err(Damage { word, at });
        }
        // [frame] only to check that a record follows (it ends recursion, too).
        let next = self.memory.poll(to);
        if next as u32 == SKIP {
            return Err(Damage { word: next, at: to });
        }
        self.advance(skipped as u64);
        self.peek_at()
    }

    /// The frame that `peek` returned is no longer needed. Without such a frame this does nothing.
    #[inline]
    pub fn consume(&mut self) {
        let need = core::mem::take(&mut self.peeked);
        self.advance(need);
    }

    #[inline]
    fn advance(&mut self, bytes: u64) {
        self.position += bytes;
        // Rarely, since this cache line is a miss for both ends (invariant 4).
        if self.position - self.released >= self.release_each {
            // [room] nothing before this position is read any more.
            self.memory.release(self.position);
            self.released = self.position;
        }
    }

    /// Offset of the next record, and bytes not yet released (for tests).
    #[cfg(all(test, not(loom)))]
    pub(crate) fn state(&self) -> (usize, usize) {
        ((self.position & self.mask) as usize, (self.position - self.released) as usize)
    }
}

const _: () = assert!(LINE.is_power_of_two());
