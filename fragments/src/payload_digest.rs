//! The digest of a payload: what a process that was rolled back sends is compared by it with what
//! it had sent before (`engine/verify_sends.rs`).
//!
//! Source: docs/adr/0034. No protection against forged data: it finds what differs by itself.
//!
//! 1. It depends on the bytes, their number and the message's number alone, and is the same on all
//!    machines and with all sets of instructions.
//! 2. Up to [`FULL_BYTES_MAX`] each bit counts. Of longer payloads a sample counts: the first and
//!    the last bytes, and cache lines at equal distances between them.
//! 3. Which lines count changes with the message's number: a program that sends the same memory
//!    again and again has all of it compared in time.

use crate::little_endian::LittleEndian;

/// Up to this length all of a payload counts.
pub const FULL_BYTES_MAX: usize = 8 << 10;
/// Of longer ones so many bytes at either end count, and so many cache lines between them.
const END_BYTES: usize = 1 << 10;
const LINE_BYTES: usize = 64;
const LINES: usize = 96;
/// From this length on it pays to begin the wide sums.
pub const WIDE_BYTES_MIN: usize = 1024;

const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
/// Multiply-with-carry: a product of 32 by 32 bits, which vector units have.
const CARRY_FACTOR: u64 = 0xFFFF_FEB7;
const WIDE_BYTES: usize = 128;
const LANES: usize = WIDE_BYTES / 8;

/// 24 bits: as many as have room in the header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PayloadDigest(u32);

impl PayloadDigest {
    /// Of no payload; of messages that are not compared.
    pub const NONE: Self = Self(0);
    /// How many bits it has.
    pub const BITS: u32 = 24;

    /// From the bits of a header; others are ignored.
    #[inline(always)]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    /// Its bits.
    #[inline(always)]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The digest of the payload of message `sequence` of its stream.
    #[inline]
    pub fn of(payload: &[u8], sequence: u64) -> Self {
        Self::of_inlined(payload, sequence)
    }

    /// The same, compiled with the vector instructions of the calling function.
    #[inline(always)]
    pub fn of_inlined(payload: &[u8], sequence: u64) -> Self {
        let length = payload.len() as u64 ^ FACTOR;
        let sum = if payload.len() < WIDE_BYTES_MIN {
            narrow(length, payload)
        } else if payload.len() <= FULL_BYTES_MAX {
            wide(length, payload)
        } else {
            sample(length, payload, sequence)
        };
        // The best mixed bits of a product are its upper ones.
        Self((sum.wrapping_mul(FACTOR) >> (u64::BITS - Self::BITS)) as u32)
    }

    /// A number for the message with this payload, tag and number: sums of these are compared.
    #[inline(always)]
    pub const fn of_message(self, tag: i32, sequence: u64) -> u64 {
        let name = (tag as u32 as u64) << 32 | self.0 as u64;
        let mixed = (sequence.wrapping_mul(FACTOR) ^ name).wrapping_mul(FACTOR);
        (mixed ^ mixed >> 32).wrapping_mul(FACTOR)
    }
}

#[inline(always)]
fn step(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(FACTOR).rotate_left(29)
}

/// Four independent sums, for short payloads.
#[inline(always)]
fn narrow(seed: u64, bytes: &[u8]) -> u64 {
    let mut sum = seed;
    let (blocks, rest) = bytes.as_chunks::<32>();
    if !blocks.is_empty() {
        let mut sums = [1u64, 2, 3, 4];
        for block in blocks {
            let (words, _) = block.as_chunks::<8>();
            for (sum, word) in sums.iter_mut().zip(words) {
                *sum = step(*sum, u64::from_le_bytes(*word));
            }
        }
        sum = sums.into_iter().fold(sum, step);
    }
    let (words, rest) = rest.as_chunks::<8>();
    for word in words {
        sum = step(sum, u64::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        sum = step(sum, u64::read_at(&word, 0));
    }
    sum
}

/// As many independent sums as keep a vector unit busy.
struct Wide([u64; LANES]);

impl Wide {
    #[inline(always)]
    fn new() -> Self {
        let mut sums = [0; LANES];
        for (lane, sum) in (1..).zip(&mut sums) {
            *sum = FACTOR.wrapping_mul(lane);
        }
        Self(sums)
    }

    #[inline(always)]
    fn add(&mut self, block: &[u8; WIDE_BYTES]) {
        let (words, _) = block.as_chunks::<8>();
        for (sum, word) in self.0.iter_mut().zip(words) {
            let word = *sum ^ u64::from_le_bytes(*word);
            *sum = (word & 0xFFFF_FFFF).wrapping_mul(CARRY_FACTOR).wrapping_add(word >> 32);
        }
    }

    /// All whole blocks; gives what is left.
    #[inline(always)]
    fn add_all<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (blocks, rest) = bytes.as_chunks::<WIDE_BYTES>();
        blocks.iter().for_each(|block| self.add(block));
        rest
    }

    #[inline(always)]
    fn end(self, seed: u64) -> u64 {
        self.0.into_iter().fold(seed, step)
    }
}

#[inline(always)]
fn wide(seed: u64, bytes: &[u8]) -> u64 {
    let mut sums = Wide::new();
    let rest = sums.add_all(bytes);
    narrow(sums.end(seed), rest)
}

/// Of a payload that is too long for all of it to be read once more.
#[inline(always)]
fn sample(seed: u64, bytes: &[u8], sequence: u64) -> u64 {
    let (first, rest) = bytes.split_at(END_BYTES);
    let lines = (rest.len() - END_BYTES) / LINE_BYTES;
    let (between, last) = rest.split_at(lines * LINE_BYTES);
    let (lines, _) = between.as_chunks::<LINE_BYTES>();
    let mut sums = Wide::new();
    sums.add_all(first);
    let rest = sums.add_all(last);
    let distance = lines.len().div_ceil(LINES).max(1);
    // 3. Of `distance` messages in turn each takes other lines.
    let mut at = (sequence % distance as u64) as usize;
    let mut pair = [0; WIDE_BYTES];
    while at < lines.len() {
        pair[..LINE_BYTES].copy_from_slice(&lines[at]);
        let other = (at + distance).min(lines.len() - 1);
        pair[LINE_BYTES..].copy_from_slice(&lines[other]);
        sums.add(&pair);
        at += 2 * distance;
    }
    narrow(sums.end(seed), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_of(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    #[test]
    fn each_bit_and_the_length_count() {
        for length in [0, 1, 7, 8, 9, 31, 32, 33, 64, 100, 255, 1023, 1024, 1025, 1160, 1300] {
            let mut bytes = sample_of(length);
            let whole = PayloadDigest::of(&bytes, 0);
            for at in 0..length {
                for bit in 0..8 {
                    bytes[at] ^= 1 << bit;
                    let other = PayloadDigest::of(&bytes, 0);
                    assert_ne!(other, whole, "2: bit {bit} of byte {at} of {length}");
                    bytes[at] ^= 1 << bit;
                }
            }
            bytes.push(0);
            assert_ne!(PayloadDigest::of(&bytes, 0), whole, "a zero behind {length} bytes");
        }
        for block in [32, 64, 128, 4096] {
            let (one, other) = (vec![1u8; block], vec![2u8; block]);
            let orders = [[&one[..], &other].concat(), [&other[..], &one].concat()];
            let [a, b] = orders.map(|bytes| PayloadDigest::of(&bytes, 0));
            assert_ne!(a, b, "the order of pieces of {block} bytes");
        }
    }

    #[test]
    fn digests_are_the_same_for_ever() {
        let of = |length| PayloadDigest::of(&sample_of(length), 5).bits();
        let golden = [0, 8, 100, 1500, FULL_BYTES_MAX, FULL_BYTES_MAX + 1, 1_000_003].map(of);
        assert_eq!(golden, GOLDEN, "1: processes of one build only compare each other's");
    }

    const GOLDEN: [u32; 7] =
        [14_631_981, 4_002_310, 7_092_757, 1_210_990, 9_935_500, 6_159_061, 15_499_335];

    #[test]
    fn of_long_payloads_both_ends_and_lines_at_equal_distances_count() {
        for length in [FULL_BYTES_MAX + 1, 100_000, 1 << 20, 5_000_001] {
            let mut bytes = sample_of(length);
            let mut differs = |at: usize, sequence: u64| {
                let whole = PayloadDigest::of(&bytes, sequence);
                bytes[at] ^= 1;
                let other = PayloadDigest::of(&bytes, sequence);
                bytes[at] ^= 1;
                other != whole
            };
            for at in [0, 1, END_BYTES - 1, length - END_BYTES, length - 2, length - 1] {
                assert!(differs(at, 0), "2: byte {at} of {length}");
            }
            let step = (length / 1000).max(1);
            let seen = (0..length).step_by(step).filter(|&at| differs(at, 0)).count();
            let all = length.div_ceil(step);
            assert!(seen * length >= all * (6 << 10), "2: {seen} of {all} of {length} bytes");
            let turn = length.div_ceil(LINES * LINE_BYTES) as u64;
            for at in [END_BYTES, length / 3, length / 2, length - END_BYTES - 1] {
                let seen = (0..turn).any(|sequence| differs(at, sequence));
                assert!(seen, "3: byte {at} of {length} in {turn} messages");
            }
            // Data that is computed from other data differs everywhere.
            let whole = PayloadDigest::of(&bytes, 1);
            bytes.iter_mut().for_each(|byte| *byte ^= 1);
            assert_ne!(PayloadDigest::of(&bytes, 1), whole);
        }
    }

    #[test]
    fn digests_are_spread() {
        let mut seen: Vec<u32> = (0..5000u64)
            .map(|number| PayloadDigest::of(&number.to_le_bytes(), number).bits())
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() > 4980, "{} of 5000", seen.len());
        let digest = PayloadDigest::from_bits(u32::MAX);
        assert_eq!(digest.bits(), 0xFF_FFFF);
        assert_ne!(digest.of_message(7, 3), digest.of_message(7, 4));
        assert_ne!(digest.of_message(7, 3), digest.of_message(-7, 3));
        assert_ne!(digest.of_message(7, 3), PayloadDigest::NONE.of_message(7, 3));
    }
}
