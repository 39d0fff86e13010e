//! The sending end.

use crate::{
    FRAME_BYTES_MIN, LINE, Memory, SKIP, cached_part_bytes, frame_bytes_max, record_bytes,
};

/// Bytes that are prefetched for the next frame, at most.
const PREPARED_BYTES_MAX: usize = 32 * LINE;
/// Frames up to this size are demoted to the cache that all processors share. A single frame gets
/// faster by that, many long ones in a row get slower.
const DEMOTED_BYTES_MAX: usize = 10 * LINE;
/// The same for a frame that the consumer waits for.
const AWAITED_BYTES_MAX: usize = 40 * LINE;

/// The sending end of a ring.
#[derive(Debug)]
pub struct Producer<M> {
    memory: M,
    mask: u64,
    /// Where the next record starts.
    position: u64,
    /// The words of all lines from `position` up to here are zero (at least one: invariant 1).
    clean: u64,
    /// Positions below this may be written (invariant 3); a cached copy of the consumer's cache
    /// line.
    limit: u64,
    /// Offset before which records end, until this is decided anew there: the end of the ring's
    /// first part, which is used alone while it suffices, or of the ring.
    part_end: u64,
    /// Where the ring was last restarted behind its first part.
    lap: u64,
    /// Offset behind the skip marker that was left there: while the consumer has not reached it,
    /// the rest of the ring from here on is free.
    rest: u64,
    /// The largest frame that is demoted to the shared cache.
    demoted_max: usize,
}

impl<M: Memory> Producer<M> {
    /// The sending end of a fresh (zeroed, never used) ring.
    pub fn new(memory: M) -> Self {
        let memory_bytes = memory.bytes();
        let bytes = memory_bytes as u64;
        Self {
            memory,
            mask: bytes - 1,
            position: 0,
            clean: LINE as u64,
            limit: bytes,
            part_end: cached_part_bytes(memory_bytes) as u64,
            lap: 0,
            rest: bytes,
            demoted_max: DEMOTED_BYTES_MAX,
        }
    }

    /// The longest frame that fits at all.
    #[inline]
    pub fn frame_bytes_max(&self) -> usize {
        frame_bytes_max(self.memory.bytes())
    }

    /// The consumer is likely to wait for the next frame, and for no other one behind it.
    #[inline]
    pub fn expect_waiting_consumer(&mut self) {
        self.demoted_max = AWAITED_BYTES_MAX;
    }

    /// Send a frame of `header` and `payload`. False: no room now, nothing has happened.
    ///
    /// `header` has at least 8 bytes, its first four are the length of the whole frame (little
    /// endian), which is at most [`Self::frame_bytes_max`].
    #[inline]
    pub fn try_push(&mut self, header: &[u8], payload: &[u8]) -> bool {
        let len = header.len() + payload.len();
        let Some(at) = self.reserve(len) else { return false };
        // SAFETY: `reserve` gave `len` bytes at `at`.
        unsafe { self.memory.write(at + 8, &header[8..]) };
        // SAFETY: likewise; header and payload together have `len` bytes.
        unsafe { self.memory.write(at + header.len(), payload) };
        self.commit(at, header, len);
        true
    }

    /// As [`Self::try_push`], for a header of 32 bytes in four little-endian words, of which the
    /// first has the frame's length in its low half: the header is not copied through memory.
    #[inline(always)]
    pub fn try_push_words(&mut self, header: [u64; 4], payload: &[u8]) -> bool {
        let len = size_of_val(&header) + payload.len();
        let Some(at) = self.reserve(len) else { return false };
        let words = [header[1].to_le(), header[2].to_le(), header[3].to_le()];
        // SAFETY: `reserve` gave `len` bytes at `at`.
        unsafe { self.memory.write_words(at + 8, words) };
        // SAFETY: likewise; header and payload together have `len` bytes.
        unsafe { self.memory.write(at + size_of_val(&header), payload) };
        self.commit_word(at, header[0], len);
        true
    }

    /// As [`Self::try_push`], for a header of one little-endian word, which has the frame's length
    /// in its low half, and a payload in two pieces.
    #[inline(always)]
    pub fn try_push_pieces(&mut self, word: u64, first: &[u8], second: &[u8]) -> bool {
        let len = size_of_val(&word) + first.len() + second.len();
        let Some(at) = self.reserve(len) else { return false };
        let at_first = at + size_of_val(&word);
        // SAFETY: `reserve` gave `len` bytes at `at`.
        unsafe { self.memory.write(at_first, first) };
        // SAFETY: likewise; the word and both pieces together have `len` bytes.
        unsafe { self.memory.write(at_first + first.len(), second) };
        self.commit_word(at, word, len);
        true
    }

    /// Send a frame of `header` and `payload_bytes` bytes that `fill` writes in place; it is
    /// called only when there is room.
    #[inline]
    pub fn try_push_with(
        &mut self,
        header: &[u8],
        payload_bytes: usize,
        fill: impl FnOnce(*mut u8, usize),
    ) -> bool {
        let len = header.len() + payload_bytes;
        let Some(at) = self.reserve(len) else { return false };
        // SAFETY: `reserve` gave `len` bytes at `at`.
        unsafe { self.memory.write(at + 8, &header[8..]) };
        fill(self.memory.pointer(at + header.len()), payload_bytes);
        self.commit(at, header, len);
        true
    }

    /// Room for a record with a frame of `len` bytes and the zero word behind it; its offset.
    #[inline]
    fn reserve(&mut self, len: usize) -> Option<usize> {
        let need = record_bytes(len) as u64;
        let at = self.position & self.mask;
        let end = self.position + need;
        if at + need > self.part_end || end + LINE as u64 > self.limit {
            return self.reserve_slow(len);
        }
        Some(at as usize)
    }

    #[cold]
    #[inline(never)]
    fn reserve_slow(&mut self, len: usize) -> Option<usize> {
        let line = LINE as u64;
        let need = record_bytes(len) as u64;
        assert!(
            (FRAME_BYTES_MIN..=self.frame_bytes_max()).contains(&len),
            "a frame of {len} bytes does not fit a ring that takes {}",
            self.frame_bytes_max()
        );
        let bytes = self.mask + 1;
        // [room] what the consumer has read before it released this is not read again.
        let consumed = self.memory.consumed();
        self.limit = consumed.wrapping_add(bytes);
        let at = self.position & self.mask;
        // It has not reached this lap: so the rest is free, and the records of this lap in the
        // first part end before those that it has not read there.
        let is_behind = consumed < self.lap;
        if is_behind && at >= self.rest {
            self.limit = self.lap + bytes;
        }
        if at + need > self.part_end {
            let start = self.position + (bytes - at);
            let is_near = start + need.max(self.part_end / 2) + line <= self.limit;
            let fits = at + need <= bytes;
            if fits && (at == 0 || !is_near) {
                // It is a long one, or the consumer is far behind: continue in the rest of the
                // ring.
                self.part_end = bytes;
                return self.reserve(len);
            }
            if start + line > self.limit {
                return None;
            }
            (self.lap, self.rest) = (start, if fits { at + line } else { bytes });
            self.part_end = cached_part_bytes(self.memory.bytes()) as u64;
            self.skip_to(start);
        }
        if self.position + need + line > self.limit {
            if !is_behind || at >= self.rest || self.rest + need + line > bytes {
                return None;
            }
            self.limit = self.lap + bytes;
            self.part_end = bytes;
            self.skip_to(self.lap + self.rest);
        }
        Some((self.position & self.mask) as usize)
    }

    /// Leave a skip marker, and continue at a later position.
    fn skip_to(&mut self, position: u64) {
        let to = position & self.mask;
        self.clean_through(position);
        // [frame] the marker; the word that the consumer polls next is zero (invariant 1).
        self.memory.publish((self.position & self.mask) as usize, to << 32 | u64::from(SKIP));
        self.position = position;
    }

    /// Make the word at `position` zero, which is about to become the end of the records.
    #[inline]
    fn clean_through(&mut self, position: u64) {
        if self.clean <= position {
            self.memory.clear((position & self.mask) as usize);
            self.clean = position + LINE as u64;
        }
    }

    /// Publish the record at `at`, whose bytes behind the publish word are written.
    #[inline]
    fn commit(&mut self, at: usize, header: &[u8], len: usize) {
        let mut first = [0; 8];
        first.copy_from_slice(&header[..8]);
        self.commit_word(at, u64::from_le_bytes(first), len);
    }

    #[inline(always)]
    fn commit_word(&mut self, at: usize, word: u64, len: usize) {
        debug_assert_eq!(word as u32 as usize, len, "the header's length field is wrong");
        let word = (word & !0xFFFF_FFFF) | len as u64;
        let end = self.position + record_bytes(len) as u64;
        self.clean_through(end);
        // [frame] everything above is visible to whoever sees this word.
        self.memory.publish(at, word);
        self.position = end;
        // The next record is likely to take one cache line: zero the word behind it now, while
        // nobody waits, so that the next publish need not fetch another one first.
        let ahead = end + LINE as u64;
        if self.clean == ahead && ahead + LINE as u64 <= self.limit {
            self.memory.clear((ahead & self.mask) as usize);
            self.clean = ahead + LINE as u64;
        }
        if len > LINE {
            self.demote(at, len);
            self.prepare(end, len);
        }
    }

    /// Demote these cache lines, so that the consumer need not fetch them from our own caches.
    #[inline]
    fn demote(&mut self, at: usize, len: usize) {
        let max = core::mem::replace(&mut self.demoted_max, DEMOTED_BYTES_MAX);
        if len > max {
            return;
        }
        let mut line = 0;
        while line < len {
            self.memory.demote(at + line);
            line += LINE;
        }
    }

    /// The next frame is likely to be as long as the last one: prefetch its cache lines now, while
    /// nobody waits for them.
    #[inline]
    fn prepare(&mut self, end: u64, len: usize) {
        let bytes = record_bytes(len.min(PREPARED_BYTES_MAX)) as u64;
        let last = (end + bytes).min(self.limit);
        let mut line = end + LINE as u64;
        while line < last {
            self.memory.will_write((line & self.mask) as usize);
            line += LINE as u64;
        }
    }
}

#[cfg(all(test, not(loom)))]
impl<M: Memory> Producer<M> {
    /// Damage: publish any word where the next record would start.
    pub(crate) fn overwrite(&mut self, word: u64) {
        self.memory.publish((self.position & self.mask) as usize, word);
    }
}
