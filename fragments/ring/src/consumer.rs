//! The receiving end.

use crate::{
    FRAME_BYTES_MIN, LINE, Memory, SKIP, cached_part_bytes, frame_bytes_max, record_bytes,
};

/// Lines of a frame that are fetched as soon as it is seen, at most.
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
    /// What the producer knows of `position`.
    given_back: u64,
    /// After so many bytes it is told.
    give_back_each: u64,
    /// Bytes of the record that `peek` returned last.
    peeked: u64,
}

impl<M: Memory> Consumer<M> {
    /// The receiving end of a fresh ring.
    pub fn new(memory: M) -> Self {
        let mask = memory.bytes() as u64 - 1;
        let frame_bytes_max = frame_bytes_max(memory.bytes());
        let give_back_each = cached_part_bytes(memory.bytes()) as u64 / 4;
        Self {
            memory,
            mask,
            frame_bytes_max,
            position: 0,
            given_back: 0,
            give_back_each,
            peeked: 0,
        }
    }

    /// Is there anything? One load; `peek` tells what.
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

    /// Fetch the lines of a frame together, not one after the other as they are read.
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
        // [frame] only to be sure that a record follows (it ends recursion, too).
        let next = self.memory.poll(to);
        if next as u32 == SKIP {
            return Err(Damage { word: next, at: to });
        }
        self.advance(skipped as u64);
        self.peek_at()
    }

    /// The frame that `peek` returned is done with. Without such a frame this does nothing.
    #[inline]
    pub fn consume(&mut self) {
        let need = core::mem::take(&mut self.peeked);
        self.advance(need);
    }

    #[inline]
    fn advance(&mut self, bytes: u64) {
        self.position += bytes;
        // Seldom, since the producer's view of this line is a cache miss for both (invariant 4).
        if self.position - self.given_back >= self.give_back_each {
            // [room] nothing before this position is read any more.
            self.memory.give_back(self.position);
            self.given_back = self.position;
        }
    }

    /// Offset of the next record, and bytes not yet given back (for tests).
    #[cfg(all(test, not(loom)))]
    pub(crate) fn state(&self) -> (usize, usize) {
        ((self.position & self.mask) as usize, (self.position - self.given_back) as usize)
    }
}

const _: () = assert!(LINE.is_power_of_two());
