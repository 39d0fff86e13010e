//! Frames of the BTL. They travel by the engine's transports, between processes that both run the
//! BTL, and no engine ever sees one: the version of the TCP handshake is another one
//! ([`TCP_VERSION`]), and so is the node's segment.
//!
//! ```text
//!  0 u32 length   bytes of the whole frame, head included
//!  4 u8  format   0xB1
//!  5 u8  kind     never 9, which the TCP transport takes for determinants
//!  6 u8  tag      of Open MPI's active message
//!  7 u8  zero
//!  8 …            over TCP 24 bytes of zero: its frames have heads of 32 bytes
//! ```
//! Integers are little endian.

use rustbtl_fragments::little_endian::LittleEndian;
use rustbtl_fragments::wire;

/// Format of a frame.
const FORMAT: u8 = 0xB1;
/// Kind of frame: an active message of Open MPI.
const MESSAGE: u8 = 0x21;
/// Bytes of a frame's head in memory that ranks share.
const SHORT_HEAD_BYTES: usize = 8;
/// Bytes of a frame's head over TCP.
pub const HEAD_BYTES: usize = wire::HEADER_BYTES;

/// What runs over TCP connections between BTLs.
pub const TCP_VERSION: u32 = 0x0002_0000 | FORMAT as u32;

/// How a peer is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Memory that the ranks of a node share.
    Node,
    /// TCP.
    Network,
}

impl Way {
    /// Bytes in front of a payload.
    #[inline]
    pub const fn head_bytes(self) -> usize {
        match self {
            Self::Node => SHORT_HEAD_BYTES,
            Self::Network => HEAD_BYTES,
        }
    }
}

/// The head of a message of `len` bytes of payload; the first [`Way::head_bytes`] of it are sent.
#[inline]
pub fn head(way: Way, tag: u8, len: usize) -> [u8; HEAD_BYTES] {
    let mut out = [0; HEAD_BYTES];
    let word = (way.head_bytes() + len) as u64
        | (FORMAT as u64) << 32
        | (MESSAGE as u64) << 40
        | (tag as u64) << 48;
    word.write_at(&mut out, 0);
    out
}

/// Tag of a message that has arrived, and where its payload begins. `None`: no process of this
/// version has sent it.
#[inline]
pub fn read(way: Way, frame: &[u8]) -> Option<(u8, usize)> {
    let word = u64::from_le_bytes(*frame.first_chunk()?);
    let (length, rest) = (word as u32 as usize, word >> 32);
    let expected = u64::from(FORMAT) | u64::from(MESSAGE) << 8;
    let ours = rest & 0xFF00_FFFF == expected;
    let whole = length == frame.len() && length >= way.head_bytes();
    (ours && whole).then_some(((rest >> 16) as u8, way.head_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_of_a_head() {
        let mut golden = [0; HEAD_BYTES];
        golden[..8].copy_from_slice(&[0x0D, 1, 0, 0, 0xB1, 0x21, 65, 0]);
        assert_eq!(head(Way::Node, 65, 0x105), golden);
        golden[0] = 0x25;
        assert_eq!(head(Way::Network, 65, 0x105), golden);
        assert!(!wire::Header::is_piggyback(&golden));
    }

    #[test]
    fn what_is_written_is_read_and_every_other_head_is_refused() {
        for way in [Way::Node, Way::Network] {
            let mut frame = head(way, 200, 5)[..way.head_bytes()].to_vec();
            frame.extend_from_slice(b"abcde");
            assert_eq!(read(way, &frame), Some((200, way.head_bytes())));
            for cut in 0..frame.len() {
                assert_eq!(read(way, &frame[..cut]), None, "{cut}");
            }
            for place in [0, 1, 2, 3, 4, 5, 7] {
                let mut other = frame.clone();
                other[place] ^= 1;
                assert_eq!(read(way, &other), None, "{place}");
            }
        }
    }

    #[test]
    fn no_engine_takes_it_for_a_frame_of_its_own() {
        let head = head(Way::Network, 65, 9);
        assert!(wire::Header::decode_alone(&head).is_err());
    }
}
