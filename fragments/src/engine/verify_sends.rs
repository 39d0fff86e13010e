//! Verification of repeated sends: does a rolled-back process send what it had sent before? Off
//! unless it is switched on (`Engine::verify_sends`).
//!
//! Source: DESIGN §8. Behind each message that leaves the set its sender sends a digest of the
//! payload, which the receiver stores. A sender that is rolled back sends the digest again with the
//! message, even if the receiver already has the message: then both digests are compared.
//!
//! 1. At most [`HISTORY_MAX`] digests of a peer are stored, the youngest.
//! 2. A digest that is missing (the channel was lost behind its message, or it is too old) is no
//!    mismatch: a reported mismatch is certain, a missing report proves nothing.

use super::queue::queued;
use super::send::Outbound;
use super::state::{Body, LinkState};
use super::{Engine, FrameError, Host, PeerId};
use crate::host::LogEntry;
use crate::ids::{ContextId, LogRecord, MessageSeq};
use crate::little_endian::LittleEndian;
use crate::wire::{FrameType, HEADER_BYTES, Header, StreamKey};
use core::fmt;
use std::collections::{BTreeMap, VecDeque};

/// Digests of a peer that are stored: some 2 MB.
const HISTORY_MAX: usize = 1 << 15;
/// u64 digest, u64 bytes.
const BODY_BYTES: usize = 16;

/// Digest and length of a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PayloadDigest {
    /// See [`digest`].
    pub digest: u64,
    /// How long it is.
    pub bytes: u64,
}

/// Replay divergence: a message that differs from the sender's earlier incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PayloadMismatch {
    /// Its stream.
    pub stream: StreamKey,
    /// Its number.
    pub sequence: MessageSeq,
    /// Its tag.
    pub tag: i32,
    /// Before the rollback.
    pub before: PayloadDigest,
    /// Now.
    pub now: PayloadDigest,
}

impl fmt::Display for PayloadMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, sequence, tag, before, now } = self;
        write!(
            f,
            "message {sequence} with tag {tag} of context {}: it had {} bytes with digest {:016x}, \
             and has {} bytes with digest {:016x} now",
            stream.context.0, before.bytes, before.digest, now.bytes, now.digest
        )
    }
}

/// 64 bits that differ if a single word differs; no protection against forged data. The same on all
/// machines.
pub fn digest(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(FACTOR).rotate_left(29);
    // Four independent sums.
    let mut sums = [1u64, 2, 3, 4];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (sum, word) in sums.iter_mut().zip(words) {
            *sum = step(*sum, u64::read_at(word, 0));
        }
    }
    let mut sum = sums.into_iter().fold(bytes.len() as u64, step);
    for piece in rest.chunks(8) {
        let mut word = [0; 8];
        word[..piece.len()].copy_from_slice(piece);
        sum = step(sum, u64::read_at(&word, 0));
    }
    sum ^ (sum >> 32)
}

/// The digests of a peer's messages.
#[derive(Clone, Debug, Default)]
pub(super) struct DigestHistory {
    digests: BTreeMap<(u32, i32, u64), PayloadDigest>,
    order: VecDeque<(u32, i32, u64)>,
}

impl DigestHistory {
    /// The digest before, if it differs.
    fn compare(&mut self, name: (u32, i32, u64), now: PayloadDigest) -> Option<PayloadDigest> {
        if let Some(&before) = self.digests.get(&name) {
            return Some(before).filter(|before| *before != now);
        }
        self.digests.insert(name, now);
        self.order.push_back(name);
        if self.order.len() > HISTORY_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.digests.remove(&oldest);
        }
        None
    }
}

impl<H: Host> Engine<H> {
    /// From now on digests are sent. The receiver compares them whether this is on there or not.
    pub fn verify_sends(&mut self) {
        self.verifies_sends = true;
    }

    /// Send the digest behind a message that is in the log.
    #[cold]
    pub(super) fn send_digest(
        &mut self,
        host: &mut H,
        (to, context, rank): (PeerId, u32, u32),
        (tag, sequence): (i32, u64),
        digest: PayloadDigest,
    ) {
        let from = self.incarnation;
        let peer = self.peer(to);
        if peer.link != LinkState::Open {
            return;
        }
        let header = Header {
            length: (HEADER_BYTES + BODY_BYTES) as u32,
            kind: FrameType::PayloadDigest,
            flags: 0,
            context,
            source: rank,
            tag,
            from,
            to: peer.info.incarnation,
            sequence,
        };
        let mut body = Vec::with_capacity(BODY_BYTES);
        digest.digest.append(&mut body);
        digest.bytes.append(&mut body);
        self.enqueue(host, to, queued(&header.encode(), Body::Owned(body)), 0);
    }

    /// The same, of a message in the log that the peer has.
    pub(super) fn send_logged_digest(&mut self, host: &mut H, record: LogRecord, of: &LogEntry) {
        if self.verifies_sends
            && let Some(digest) = host.log_digest(record)
        {
            let whose = (of.to, of.stream.context.0, of.source.0);
            let content = PayloadDigest { digest, bytes: of.bytes };
            self.send_digest(host, whose, (of.tag, of.sequence.0), content);
        }
    }

    /// Of a message that is being sent.
    pub(super) fn digest_of(
        &mut self,
        host: &mut H,
        message: &Outbound<H::SendBuffer, H::Token>,
    ) -> Option<PayloadDigest> {
        if !self.verifies_sends {
            return None;
        }
        let super::state::PayloadSource::Log(record) = message.source else { return None };
        Some(PayloadDigest { digest: host.log_digest(record)?, bytes: message.bytes })
    }

    /// A digest has arrived.
    pub(super) fn on_payload_digest(
        &mut self,
        host: &mut H,
        from: PeerId,
        header: &Header,
        body: &[u8],
    ) -> Result<(), FrameError> {
        if body.len() != BODY_BYTES {
            return Err(FrameError::Unexpected("payload digest with another length"));
        }
        let (digest, bytes) = (u64::read_at(body, 0), u64::read_at(body, 8));
        let now = PayloadDigest { digest, bytes };
        let stream = StreamKey::of(ContextId(header.context), header.tag);
        let name = (stream.context.number(), stream.lane, header.sequence);
        let history = self.peer(from).digests.get_or_insert_default();
        if let Some(before) = history.compare(name, now) {
            let (sequence, tag) = (MessageSeq(header.sequence), header.tag);
            host.payload_mismatch(from, PayloadMismatch { stream, sequence, tag, before, now });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_and_the_length_count() {
        for length in [0usize, 1, 7, 8, 9, 31, 32, 33, 64, 100] {
            let mut bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let whole = digest(&bytes);
            for at in 0..length {
                for bit in 0..8 {
                    bytes[at] ^= 1 << bit;
                    assert_ne!(digest(&bytes), whole, "bit {bit} of byte {at} of {length}");
                    bytes[at] ^= 1 << bit;
                }
            }
            bytes.push(0);
            assert_ne!(digest(&bytes), whole, "a zero behind {length} bytes");
        }
        let (one, other) = ([[1u8; 32], [2; 32]].concat(), [[2u8; 32], [1; 32]].concat());
        assert_ne!(digest(&one), digest(&other), "the order counts");
        assert_eq!(digest(b"rustbtl"), digest(b"rustbtl"));
    }

    #[test]
    fn a_digest_that_is_sent_twice_is_compared_and_the_oldest_are_dropped() {
        let content = |digest| PayloadDigest { digest, bytes: 8 };
        let mut history = DigestHistory::default();
        for number in 0..=HISTORY_MAX as u64 {
            assert_eq!(history.compare((1, 0, number), content(number)), None);
        }
        assert_eq!(history.digests.len(), HISTORY_MAX);
        assert_eq!(history.compare((1, 0, 5), content(5)), None, "the same");
        assert_eq!(history.compare((1, 0, 5), content(6)), Some(content(5)));
        assert_eq!(history.compare((1, -3, 5), content(6)), None, "another stream");
        assert_eq!(history.compare((1, 0, 0), content(9)), None, "too old to be known");
    }
}
