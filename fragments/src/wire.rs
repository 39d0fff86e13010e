//! The wire format: frames between two processes, the same over every transport.
//!
//! Sources: DESIGN §4; MPI-3.1 §3.2.3 (message envelope). All integers are little endian.
//!
//! ```text
//!  0 u32 length        bytes of the whole frame, header included; never 0
//!  4 u8  version       0xB4; another version of the format has another number
//!  5 u8  kind; from 0xF0 on: between transports, which no engine sees
//!  6 u8  flags
//!  7 u8  Eager, Announce: lowest byte of the payload's digest; others: zero
//!  8 u32 context       |  control frames: u64 `a`
//! 12 u32 source rank   |
//! 16 i32 tag
//! 20 u16 incarnation of the sender
//! 22 u16 incarnation of the receiver, as the sender knows it
//! 24 u48 sequence      |  control frames: u64 `b`
//! 30 u16 upper bytes of the digest
//! 32 Announce: u64 total bytes, u64 send id; then inline payload
//!    others: payload
//! ```
//!
//! The digest is that of a message which leaves its sender's set (`payload_digest.rs`), 0 inside.
//!
//! A header of 32 bytes leaves half a cache line for the payload: a message of up to 32 bytes
//! crosses shared memory in one cache line.

use crate::ids::*;
use crate::little_endian::LittleEndian;
use crate::payload_digest::PayloadDigest;

/// First byte after the length: format version.
pub const VERSION: u8 = 0xB4;
/// Bytes of every header.
pub const HEADER_BYTES: usize = 32;
/// Bytes of the header of a [`FrameType::Announce`] frame.
pub const ANNOUNCE_BYTES: usize = 48;
/// No frame is longer (a longer one is damaged or foreign).
pub const FRAME_BYTES_MAX: usize = 16 << 20;

/// Bits of a message's number.
const SEQUENCE_BITS: u32 = 48;

/// No message is longer (256 TiB: sums of lengths stay far from the end of their type).
pub const MESSAGE_BYTES_MAX: u64 = 1 << 48;

/// What a frame is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameType {
    /// A whole message.
    Eager = 1,
    /// A message whose payload follows by rendezvous, or whose sender waits for its match.
    Announce = 2,
    /// Receiver to sender: `a` is matched by my receive `b`, push the payload.
    Grant = 3,
    /// Sender to receiver: payload for your receive `a` from byte `b` on.
    Data = 4,
    /// Receiver to sender: your send `a` is matched and needs nothing more.
    Done = 5,
    /// Part of a received vector, on a channel that was opened again.
    Resync = 6,
    /// A step of a set checkpoint: see [`crate::checkpoint_frame`].
    Checkpoint = 7,
    /// Determinants that the following frames depend on, in the driver's encoding; empty: its
    /// sender accepts piggybacked determinants.
    Piggyback = 9,
    /// Part of a received vector of a set without checkpoint: what its senders need not keep.
    Acknowledge = 10,
}

/// [`FrameType::Announce`]: the payload is exposed for pulling.
pub const FLAG_PULL: u8 = 1;
/// [`FrameType::Announce`]: the sender waits for `Done` though the payload is complete (MPI_Ssend).
pub const FLAG_SYNC: u8 = 2;
/// [`FrameType::Announce`]: not a new message; the receiver has its envelope since before a
/// restart.
pub const FLAG_REANNOUNCE: u8 = 4;
/// [`FrameType::Resync`]: the last frame of the exchange.
pub const FLAG_LAST: u8 = 8;

/// The unit of FIFO order between two processes (DESIGN §2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamKey {
    /// Communicator.
    pub context: ContextId,
    /// 0: all user tags (MPI-3.1 §3.5 orders them together). Negative: that library tag alone,
    /// since library traffic may be posted in another order during a replay.
    pub lane: i32,
}

impl StreamKey {
    /// The stream that a message with this tag belongs to.
    #[inline]
    pub const fn of(context: ContextId, tag: i32) -> Self {
        Self { context, lane: if tag < 0 { tag } else { 0 } }
    }
}

/// Why bytes are no frame of this version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// Shorter than its header.
    Short,
    /// The length field does not fit what arrived.
    Length(u32),
    /// Another format version.
    Version(u8),
    /// No such kind of frame.
    Kind(u8),
}

impl core::fmt::Display for WireError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Short => write!(f, "frame is shorter than its header"),
            Self::Length(n) => write!(f, "frame length {n} does not fit"),
            Self::Version(v) => write!(f, "frame format version {v:#x}, expected {VERSION:#x}"),
            Self::Kind(k) => write!(f, "unknown kind of frame {k}"),
        }
    }
}

/// The first 32 bytes of every frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Bytes of the whole frame.
    pub length: u32,
    /// What it is for.
    pub kind: FrameType,
    /// `FLAG_*`.
    pub flags: u8,
    /// Communicator (low half of `a` in control frames).
    pub context: u32,
    /// Sender's rank in the communicator (high half of `a` in control frames).
    pub source: u32,
    /// Tag.
    pub tag: i32,
    /// Incarnation of the sender.
    pub from: Incarnation,
    /// Incarnation of the receiver.
    pub to: Incarnation,
    /// Number in the stream, below 2^48 (`b` in control frames).
    pub sequence: u64,
    /// Digest of the payload of a message between sets; else [`PayloadDigest::NONE`].
    pub digest: PayloadDigest,
}

impl Header {
    /// Is an encoded header one of a [`FrameType::Piggyback`] frame?
    #[inline]
    pub fn is_piggyback(encoded: &[u8]) -> bool {
        encoded.get(5) == Some(&(FrameType::Piggyback as u8))
    }

    /// A control frame: see [`FrameType`] for the meaning of `a` and `b`.
    pub fn control(kind: FrameType, from: Incarnation, to: Incarnation, a: u64, b: u64) -> Self {
        Self {
            length: HEADER_BYTES as u32,
            kind,
            flags: 0,
            context: a as u32,
            source: (a >> 32) as u32,
            tag: 0,
            from,
            to,
            sequence: b,
            digest: PayloadDigest::NONE,
        }
    }

    /// First argument of a control frame.
    #[inline]
    pub const fn a(&self) -> u64 {
        ((self.source as u64) << 32) | self.context as u64
    }

    /// Second argument of a control frame.
    #[inline]
    pub const fn b(&self) -> u64 {
        self.sequence
    }

    /// Change the incarnations in an encoded header.
    pub fn readdress(encoded: &mut [u8], from: Incarnation, to: Incarnation) {
        from.0.write_at(encoded, 20);
        to.0.write_at(encoded, 22);
    }

    /// Encode it, in words (which are little endian on the wire).
    #[inline(always)]
    pub const fn words(&self) -> [u64; HEADER_BYTES / 8] {
        let digest = self.digest.bits() as u64;
        let kind = VERSION as u64 | (self.kind as u64) << 8 | (self.flags as u64) << 16;
        let kind = kind | (digest & 0xFF) << 24;
        let incarnations = self.from.0 as u64 | (self.to.0 as u64) << 16;
        [
            self.length as u64 | kind << 32,
            self.context as u64 | (self.source as u64) << 32,
            self.tag as u32 as u64 | incarnations << 32,
            self.sequence | (digest >> 8) << SEQUENCE_BITS,
        ]
    }

    /// The digest in the header of a message.
    #[inline(always)]
    pub fn digest_in(head: &[u8; HEADER_BYTES]) -> PayloadDigest {
        PayloadDigest::from_bits(u32::from(head[7]) | u32::from(u16::read_at(head, 30)) << 8)
    }

    /// Is this header encoded in `head`? Length and kind are compared like everything else.
    #[inline(always)]
    pub fn is_encoded_in(&self, head: &[u8; HEADER_BYTES]) -> bool {
        let [a, b, c, d] = self.words();
        let at = |place| u64::read_at(head, place);
        a == at(0) && b == at(8) && c == at(16) && d == at(24)
    }

    /// Encode it.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        for (place, word) in out.chunks_exact_mut(8).zip(self.words()) {
            word.write_at(place, 0);
        }
        out
    }

    /// The header of an announcement: `self` and its two further fields.
    #[inline]
    pub fn encode_announce(&self, total: u64, send: SendId) -> [u8; ANNOUNCE_BYTES] {
        let mut out = [0; ANNOUNCE_BYTES];
        out[..HEADER_BYTES].copy_from_slice(&self.encode());
        total.write_at(&mut out, 32);
        send.0.write_at(&mut out, 40);
        out
    }

    /// Check and read the header of a complete frame.
    #[inline]
    pub fn decode(frame: &[u8]) -> Result<Self, WireError> {
        let Some(head) = frame.first_chunk::<HEADER_BYTES>() else {
            return Err(WireError::Short);
        };
        let length = u32::read_at(head, 0);
        if length as usize != frame.len() {
            return Err(WireError::Length(length));
        }
        Self::decode_alone(head)
    }

    /// The same before the rest of the frame has arrived: its length is not checked.
    #[inline(always)]
    pub fn decode_alone(head: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        let length = u32::read_at(head, 0);
        if head[4] != VERSION {
            return Err(WireError::Version(head[4]));
        }
        let kind = match head[5] {
            1 => FrameType::Eager,
            2 => FrameType::Announce,
            3 => FrameType::Grant,
            4 => FrameType::Data,
            5 => FrameType::Done,
            6 => FrameType::Resync,
            7 => FrameType::Checkpoint,
            9 => FrameType::Piggyback,
            10 => FrameType::Acknowledge,
            other => return Err(WireError::Kind(other)),
        };
        if kind == FrameType::Announce && (length as usize) < ANNOUNCE_BYTES {
            return Err(WireError::Short);
        }
        let last = u64::read_at(head, 24);
        let (sequence, digest) = match kind {
            FrameType::Eager | FrameType::Announce => {
                (last & ((1 << SEQUENCE_BITS) - 1), Self::digest_in(head))
            }
            _ => (last, PayloadDigest::NONE),
        };
        Ok(Self {
            length,
            kind,
            flags: head[6],
            context: u32::read_at(head, 8),
            source: u32::read_at(head, 12),
            tag: u32::read_at(head, 16) as i32,
            from: Incarnation(u16::read_at(head, 20)),
            to: Incarnation(u16::read_at(head, 22)),
            sequence,
            digest,
        })
    }
}

/// Total bytes and send id of an announcement ([`Header::decode`] has checked the length).
#[inline]
pub fn announced(frame: &[u8]) -> Option<(u64, SendId)> {
    let rest = frame.get(HEADER_BYTES..ANNOUNCE_BYTES)?;
    Some((u64::read_at(rest, 0), SendId(u64::read_at(rest, 8))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header {
            length: 35,
            kind: FrameType::Eager,
            flags: FLAG_SYNC,
            context: 0x0102_0304,
            source: 5,
            tag: -17,
            from: Incarnation(1),
            to: Incarnation(2),
            sequence: 0x3344_5566_7788,
            digest: PayloadDigest::from_bits(0x11_22AA),
        }
    }

    #[test]
    fn golden_bytes_of_an_eager_header() {
        let bytes = sample().encode();
        let golden = [
            35, 0, 0, 0, 0xB4, 1, 2, 0xAA, 4, 3, 2, 1, 5, 0, 0, 0, 0xEF, 0xFF, 0xFF, 0xFF, 1, 0, 2,
            0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
        ];
        assert_eq!(bytes, golden);
    }

    #[test]
    fn what_is_encoded_decodes() {
        let mut frame = sample().encode().to_vec();
        frame.extend_from_slice(b"abc");
        assert_eq!(Header::decode(&frame), Ok(sample()));
        let control =
            Header::control(FrameType::Grant, Incarnation(0), Incarnation(0), u64::MAX - 5, 77);
        let back = Header::decode(&control.encode()).unwrap();
        assert_eq!((back.a(), back.b()), (u64::MAX - 5, 77));
        let far = Header::control(FrameType::Data, Incarnation(0), Incarnation(0), 1, u64::MAX);
        assert_eq!(Header::decode(&far.encode()).unwrap().b(), u64::MAX);
        let head = sample().encode();
        assert_eq!(Header::digest_in(&head), sample().digest);
        assert!(sample().is_encoded_in(&head));
        assert!(!Header { digest: PayloadDigest::NONE, ..sample() }.is_encoded_in(&head));
    }

    #[test]
    fn damaged_frames_are_refused_by_name() {
        let good = {
            let mut frame = sample().encode().to_vec();
            frame.extend_from_slice(b"abc");
            frame
        };
        assert_eq!(Header::decode(&good[..31]), Err(WireError::Short));
        assert_eq!(Header::decode(&good[..34]), Err(WireError::Length(35)));
        let with = |at: usize, value: u8| {
            let mut frame = good.clone();
            frame[at] = value;
            Header::decode(&frame)
        };
        assert_eq!(with(4, 0xB2), Err(WireError::Version(0xB2)));
        assert_eq!(with(5, 0), Err(WireError::Kind(0)));
        assert_eq!(with(5, 8), Err(WireError::Kind(8)), "digests, up to version 0xB2");
        assert_eq!(with(5, 11), Err(WireError::Kind(11)));
        assert_eq!(with(5, 2), Err(WireError::Short), "an announcement needs 48 bytes");
    }
}
