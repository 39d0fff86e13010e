//! A queue of frames in shared memory: one producer, one consumer, one cache line for a small
//! frame.
//!
//! One direction between two processes is a ring of bytes and one cache line of control. A frame is
//! a *record*: it starts on a cache line and never splits. Its first 8 bytes are the *publish
//! word*, which is at the same time the start of the frame's own header (frame length in the low
//! half), so that publishing needs no cache line of its own.
//!
//! Invariants (tests name the numbers):
//!
//! 1. The word at the producer's position is zero until the record there is complete; zero means
//!    "nothing yet". Therefore the word *behind* a record is zeroed before the record is
//!    published: stale payload bytes are never taken for a header.
//! 2. A record never splits. A record that does not fit before the end of the ring, or of its first
//!    part ([`cached_part_bytes`]) if the consumer keeps up, starts at the beginning, and a
//!    [`SKIP`] marker is left in its place. If the consumer falls behind, another marker leads into
//!    the rest of the ring. Behind a marker there is a record, or nothing yet.
//! 3. The producer never writes into bytes that the consumer has not released: the records from the
//!    consumed position on, and the zero word behind them, fit into the ring.
//! 4. The consumer writes nothing into the ring. It releases at least each quarter of the first
//!    part; since no record is longer than a quarter of the ring, a producer that waits for room
//!    gets it.
//! 5. The consumer trusts nothing that it reads: a word that no producer can have written is
//!    [`Damage`], and no byte outside of the ring is ever read.
//!
//! Orderings: each Release has its Acquire under the same name, see [`order`].

mod consumer;
mod copy;
mod heap;
mod memory;
mod producer;

pub use consumer::{Consumer, Damage};
pub use copy::copy_bytes;
pub use heap::{Heap, heap};
pub use memory::{Control, Memory, Raw, order};
pub use producer::Producer;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;

/// Bytes of a cache line: records start on a multiple of it.
pub const LINE: usize = 64;
/// Length in a publish word that marks a skip: the next record is at the offset in the word's high
/// half.
pub const SKIP: u32 = u32::MAX;
/// A quarter of a first-level cache: there are two directions, and the program's own data.
const CACHED_PART_BYTES_MAX: usize = 128 * LINE;
/// A frame has at least its publish word.
pub const FRAME_BYTES_MIN: usize = 8;
/// Smallest ring.
pub const RING_BYTES_MIN: usize = 8 * LINE;

/// Bytes that a frame takes in a ring.
#[inline]
pub const fn record_bytes(frame: usize) -> usize {
    (frame + (LINE - 1)) & !(LINE - 1)
}

/// The longest frame that a ring of this size takes (invariant 4).
#[inline]
pub const fn frame_bytes_max(ring_bytes: usize) -> usize {
    ring_bytes / 4
}

/// The first part of a ring of this size, which is used alone while the consumer keeps up: its
/// cache lines stay in the first-level cache of both processors.
#[inline]
pub const fn cached_part_bytes(ring_bytes: usize) -> usize {
    if ring_bytes / 8 < CACHED_PART_BYTES_MAX { ring_bytes / 8 } else { CACHED_PART_BYTES_MAX }
}

/// May a ring have this size? A power of two, so that positions need no division.
#[inline]
pub const fn valid_ring_bytes(bytes: usize) -> bool {
    bytes.is_power_of_two() && bytes >= RING_BYTES_MIN && bytes <= 1 << 30
}
