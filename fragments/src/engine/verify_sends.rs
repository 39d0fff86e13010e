//! Verification of repeated sends: does a rolled-back process send what it had sent before?
//!
//! Source: docs/adr/0034; DESIGN §8. Each message that leaves its set has a digest of its payload
//! in its header. Both ends of a channel between sets add up what they have sent and accepted: a
//! number made of digest, tag and number of each message. Sums do not depend on the order in which
//! streams take turns, which a replay may change, and need no memory for each message. The
//! receiver's sum comes with its received vector (`resync.rs`); the sender compares it with its own
//! when it has sent all that the receiver has accepted.
//!
//! 1. `sent` is the sum over all messages of the channel that were sent, `accepted` over all that
//!    were accepted; both are part of a checkpoint.
//! 2. What the peer has accepted is what was sent, less what is in the log and not accepted, plus
//!    what is still to be repeated. A message that was not accepted is in the log (E4).
//! 3. What is repeated as it was is never reported. What is not is missed with a probability of
//!    2^-24, where the digests of its payload, or of all that differ, are the same by chance.
//! 4. Of the youngest messages of the program, [`RECENT`] in each channel, the receiver remembers
//!    each number: one that differs is reported by its name, at once.

use super::received_vector::{Name, ReceivedVector};
use super::send::Outbound;
use super::{Engine, Host, PeerId};
use crate::host::LogEntry;
use crate::ids::{ContextId, LogRecord, MessageSeq};
use crate::payload_digest::PayloadDigest;
use crate::wire::StreamKey;
use core::fmt;
use std::collections::BTreeMap;

/// Messages of a channel that the receiver remembers.
pub(super) const RECENT: usize = 16;

/// What was sent and accepted in a channel between sets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ContentSums {
    sent: u64,
    pub(super) accepted: u64,
    /// Lower halves of the program's last messages, by the last bits of their numbers.
    pub(super) recent: [u32; RECENT],
}

impl ContentSums {
    /// A message is sent.
    #[inline(always)]
    fn send(&mut self, digest: PayloadDigest, tag: i32, sequence: u64) {
        self.sent = self.sent.wrapping_add(digest.of_message(tag, sequence));
    }

    /// A message was accepted.
    #[inline(always)]
    pub fn accept(&mut self, digest: PayloadDigest, tag: i32, sequence: u64) {
        let number = digest.of_message(tag, sequence);
        self.accepted = self.accepted.wrapping_add(number);
        if tag >= 0 {
            self.recent[sequence as usize % RECENT] = number as u32;
        }
    }
}

/// What a peer has accepted in a channel; later, of which the sum is still to be repeated.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct AcceptedContent {
    pub sum: u64,
    pub recent: [u32; RECENT],
}

/// Replay divergence: this process sends something else than its earlier incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PayloadMismatch {
    /// This message.
    Message {
        /// Its stream.
        stream: StreamKey,
        /// Its number.
        sequence: MessageSeq,
        /// Its tag.
        tag: i32,
        /// Its length now.
        bytes: u64,
    },
    /// One or more of the messages of this context id.
    AnyOf {
        /// MPI's context id.
        context: u32,
        /// How many of the program the receiver has.
        messages: u64,
    },
}

impl fmt::Display for PayloadMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message { stream, sequence, tag, bytes } => {
                let context = stream.context.number();
                write!(
                    f,
                    "message {sequence} with tag {tag} in context {context}: {bytes} bytes, with \
                     another content or length than it had before the failure"
                )
            }
            Self::AnyOf { context, messages } => write!(
                f,
                "one or more of messages 0 to {} in context {context}, or of a collective there: \
                 another content, length or tag than before the failure",
                messages.saturating_sub(1)
            ),
        }
    }
}

impl ReceivedVector {
    /// The lower half of the number of a message of the program that the peer remembers.
    fn remembered(&self, (context, lane, sequence): Name) -> Option<u32> {
        let count = self.lanes.get(&context)?.get(0);
        let is_recent = lane == 0 && sequence < count && sequence + RECENT as u64 >= count;
        let contents = self.contents.get(&context).filter(|_| is_recent)?;
        Some(contents.recent[sequence as usize % RECENT])
    }
}

impl<H: Host> Engine<H> {
    /// Verify what is sent again. To be called before any message, in all processes.
    pub fn verify_sends(&mut self) {
        self.verifies_sends = true;
    }

    /// Sums over what was sent and accepted in each channel that is verified, by peer and context.
    pub fn content_sums(&self) -> impl Iterator<Item = (PeerId, u32, u64, u64)> {
        self.channels.iter().filter_map(|channel| {
            let sums = channel.contents.as_ref()?;
            Some((channel.peer, channel.context, sums.sent, sums.accepted))
        })
    }

    /// The digest of a message in the log, where it is verified.
    pub(super) fn digest_of(&self, host: &mut H, record: LogRecord) -> PayloadDigest {
        if self.verifies_sends { host.log_digest(record) } else { PayloadDigest::NONE }
    }

    /// A message that leaves the set is sent for the first time in this incarnation.
    #[inline]
    pub(super) fn count_content(&mut self, at: usize, tag: i32, number: u64, of: PayloadDigest) {
        if let Some(sums) = &mut self.channels[at].contents {
            sums.send(of, tag, number);
        }
    }

    /// A message that the peer has accepted is in the log: is it the same?
    pub(super) fn verify_logged(
        &mut self,
        host: &mut H,
        (record, entry): (LogRecord, &LogEntry),
        received: &ReceivedVector,
    ) {
        let name = (entry.stream.context.number(), entry.stream.lane, entry.sequence.0);
        let Some(before) = received.remembered(name).filter(|_| self.verifies_sends) else {
            return;
        };
        let now = host.log_digest(record).of_message(entry.tag, entry.sequence.0);
        if now as u32 != before {
            let (stream, sequence, tag) = (entry.stream, entry.sequence, entry.tag);
            let mismatch =
                PayloadMismatch::Message { stream, sequence, tag, bytes: entry.bytes };
            host.payload_mismatch(entry.to, mismatch);
        }
    }

    /// All of the log was looked through; `unaccepted`: sums over what the peer had not accepted.
    /// Compares what is complete, and notes what is still to be repeated (2).
    pub(super) fn verify_repaired(
        &mut self,
        host: &mut H,
        id: PeerId,
        received: &mut ReceivedVector,
        unaccepted: &BTreeMap<u32, u64>,
    ) {
        if !self.verifies_sends {
            received.contents.clear();
            return;
        }
        for channel in self.channels.iter().filter(|channel| channel.peer == id) {
            let context = channel.context;
            let (Some(own), Some(theirs)) =
                (&channel.contents, received.contents.get_mut(&context))
            else {
                continue;
            };
            let waits = unaccepted.get(&context).copied().unwrap_or(0);
            theirs.sum = theirs.sum.wrapping_sub(own.sent.wrapping_sub(waits));
            let lanes = received.lanes.get(&context);
            if theirs.sum != 0 && lanes.is_none_or(|lanes| !lanes.any_above(&channel.sent)) {
                let messages = lanes.map_or(0, |lanes| lanes.get(0));
                host.payload_mismatch(id, PayloadMismatch::AnyOf { context, messages });
            }
        }
    }

    /// A message that the peer has accepted is sent again. `last`: the last one in its context.
    pub(super) fn verify_repeated(
        ahead: &mut ReceivedVector,
        message: &Outbound<H::SendBuffer, H::Token>,
        name: Name,
        last: bool,
    ) -> Option<PayloadMismatch> {
        let now = message.digest.of_message(message.tag, message.sequence);
        let before = ahead.remembered(name);
        let (context, _, sequence) = name;
        let messages = ahead.lanes.get(&context).map_or(0, |lanes| lanes.get(0));
        let theirs = ahead.contents.get_mut(&context)?;
        theirs.sum = theirs.sum.wrapping_sub(now);
        if before.is_some_and(|before| before != now as u32) {
            return Some(PayloadMismatch::Message {
                stream: StreamKey::of(ContextId(message.context), message.tag),
                sequence: MessageSeq(sequence),
                tag: message.tag,
                bytes: message.bytes,
            });
        }
        let differs = last && theirs.sum != 0;
        differs.then_some(PayloadMismatch::AnyOf { context, messages })
    }
}
