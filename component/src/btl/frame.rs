//! Frames of the BTL. They travel by the engine's transports, between processes that both run the
//! BTL, and no engine ever sees one: the version of the TCP handshake is another one
//! ([`TCP_VERSION`]), and so is the node's segment.
//!
//! ```text
//!  0 u32 length   bytes of the whole frame, head included
//!  4 u8  format   0xB1
//!  5 u8  kind     never 9, which the TCP transport takes for determinants
//!  6 u8  tag      of Open MPI's active message; else zero
//!  7 u8  zero
//!  8 u64          only over TCP, whose frames have heads of 32 bytes: put: where the payload goes
//! 16 …            zero
//! ```
//! Integers are little endian. The payload of an operation on memory begins with what it is
//! (`operation.rs`).

use rustbtl_fragments::little_endian::LittleEndian;
use rustbtl_fragments::wire;

/// Format of a frame.
const FORMAT: u8 = 0xB1;
/// Kind of frame: an active message of Open MPI.
const MESSAGE: u8 = 0x21;
/// Kind of frame: memory that is written.
const PUT: u8 = 0x22;
/// Kind of frame: an operation on memory, or the answer to one.
const OPERATION: u8 = 0x23;
/// Bytes of a frame's head in memory that ranks share.
const SHORT_HEAD_BYTES: usize = 8;
/// Bytes of a frame's head over TCP.
pub const HEAD_BYTES: usize = wire::HEADER_BYTES;

/// What runs over TCP connections between BTLs.
pub const TCP_VERSION: u32 = 0x0003_0000 | FORMAT as u32;

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

/// What a frame is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// An active message with this tag.
    Message(u8),
    /// The payload goes to this address of the receiver. Only over TCP.
    Put(u64),
    /// An operation on memory, or the answer to one.
    Operation,
}

/// The head of a frame with `len` bytes of payload; the first [`Way::head_bytes`] of it are sent.
#[inline]
pub fn head(way: Way, what: What, len: usize) -> [u8; HEAD_BYTES] {
    let mut out = [0; HEAD_BYTES];
    if let What::Put(address) = what {
        address.write_at(&mut out, 8);
    }
    word(way, what, len).write_at(&mut out, 0);
    out
}

/// The first 8 bytes of a head, which within a node are all of it.
#[inline]
pub fn word(way: Way, what: What, len: usize) -> u64 {
    let (kind, tag) = match what {
        What::Message(tag) => (MESSAGE, tag),
        What::Put(_) => (PUT, 0),
        What::Operation => (OPERATION, 0),
    };
    (way.head_bytes() + len) as u64
        | (FORMAT as u64) << 32
        | (kind as u64) << 40
        | (tag as u64) << 48
}

/// What a frame is that has arrived; its payload begins at [`Way::head_bytes`]. `None`: no process
/// of this version has sent it.
#[inline]
pub fn read(way: Way, frame: &[u8]) -> Option<What> {
    let word = u64::from_le_bytes(*frame.first_chunk()?);
    let whole = word as u32 as usize == frame.len() && frame.len() >= way.head_bytes();
    let [.., format, kind, tag, zero] = word.to_le_bytes();
    match kind {
        _ if !whole || format != FORMAT || zero != 0 => None,
        MESSAGE => Some(What::Message(tag)),
        PUT if way == Way::Network && tag == 0 => Some(What::Put(u64::read_at(frame, 8))),
        OPERATION if tag == 0 => Some(What::Operation),
        _ => None,
    }
}

/// Where the payload of a frame over TCP goes, by its head alone, if it is a put.
pub fn put_address(head: &[u8; HEAD_BYTES]) -> Option<u64> {
    let is_put = head[4..8] == [FORMAT, PUT, 0, 0];
    is_put.then(|| u64::read_at(head, 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_of_heads() {
        let mut golden = [0; HEAD_BYTES];
        golden[..8].copy_from_slice(&[0x0D, 1, 0, 0, 0xB1, 0x21, 65, 0]);
        assert_eq!(head(Way::Node, What::Message(65), 0x105), golden);
        golden[0] = 0x25;
        assert_eq!(head(Way::Network, What::Message(65), 0x105), golden);
        golden[5..16].copy_from_slice(&[0x22, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
        let put = head(Way::Network, What::Put(0x0102_0304_0506_0708), 0x105);
        assert_eq!(put, golden);
        assert_eq!(put_address(&put), Some(0x0102_0304_0506_0708));
        golden = [0; HEAD_BYTES];
        golden[..8].copy_from_slice(&[0x28, 0, 0, 0, 0xB1, 0x23, 0, 0]);
        assert_eq!(head(Way::Node, What::Operation, 32), golden);
    }

    #[test]
    fn what_is_written_is_read_and_every_other_head_is_refused() {
        let node = (Way::Node, What::Message(200));
        let network = (Way::Network, What::Message(200));
        let operations = [(Way::Node, What::Operation), (Way::Network, What::Operation)];
        for (way, what) in
            [node, network, (Way::Network, What::Put(77))].into_iter().chain(operations)
        {
            let mut frame = head(way, what, 5)[..way.head_bytes()].to_vec();
            frame.extend_from_slice(b"abcde");
            assert_eq!(read(way, &frame), Some(what));
            for cut in 0..frame.len() {
                assert_eq!(read(way, &frame[..cut]), None, "{cut}");
            }
            for place in [0, 1, 2, 3, 4, 5, 7] {
                let mut other = frame.clone();
                other[place] ^= 4;
                assert_eq!(read(way, &other), None, "{place}");
            }
        }
        let node = head(Way::Node, What::Put(1), 24);
        assert_eq!(read(Way::Node, &node), None, "neighbours' memory is written directly");
    }

    #[test]
    fn no_engine_takes_one_for_a_frame_of_its_own() {
        for what in [What::Message(65), What::Put(9), What::Operation] {
            let head = head(Way::Network, what, 9);
            assert!(wire::Header::decode_alone(&head).is_err());
            assert!(!wire::Header::is_piggyback(&head));
        }
        assert_eq!(put_address(&head(Way::Network, What::Message(65), 9)), None);
    }
}
