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
//!    were accepted; both are part of a checkpoint. There is one for the program's messages, one
//!    for each tag of blocking collectives, and one for all nonblocking ones.
//! 2. What the peer has accepted is what was sent, less what is in the log and not accepted, plus
//!    what is still to be repeated. A message that was not accepted is in the log (E4).
//! 3. What is repeated as it was is never reported, whatever is in the program's memory by now: the
//!    digest of a message is made once, when it is sent, and kept with its record in the log.
//! 4. What is not is missed with a probability of 2^-24, where the digests of its payload, or of
//!    all that differ, are the same by chance; and where it differs only in what is left out of the
//!    digest of a long message.
//! 5. Nobody gets the next message of a stream before the comparison of those that the peer has (of
//!    nonblocking collectives: the next one after all that it has). A payload that the peer still
//!    lacks it does not get either if it differs.
//! 6. Of the youngest messages of the program, [`RECENT`] in each channel, and of those that are
//!    not complete the receiver remembers each number: one that differs is reported by its name.
//! 7. When the program sends nothing more and a peer has more than it has sent, that is reported.

use super::received_vector::{Name, ReceivedVector, name_of};
use super::send::Outbound;
use super::{Engine, FrameError, Host, PeerId};
use crate::host::LogEntry;
use crate::ids::{ContextId, MessageSeq};
use crate::payload_digest::PayloadDigest;
use crate::streams::{Lanes, NEAR};
use crate::wire::StreamKey;
use core::fmt;
use std::collections::BTreeMap;

/// Messages of a channel that the receiver remembers.
pub(super) const RECENT: usize = 32;

/// Stands for all lanes that have no sum of their own.
pub(super) const FAR_LANE: i32 = i32::MIN;

/// Sums over messages: of the program, of each tag of blocking collectives, of all others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    user: u64,
    far: u64,
    /// By tag, without the sign; empty until one of them is used.
    near: Vec<u64>,
}

impl Sums {
    /// The one for this tag or lane.
    fn of(&self, lane: i32) -> u64 {
        match lane.unsigned_abs() as usize {
            _ if lane >= 0 => self.user,
            at if at < NEAR => self.near.get(at).copied().unwrap_or(0),
            _ => self.far,
        }
    }

    #[inline(always)]
    pub(super) fn of_mut(&mut self, lane: i32) -> &mut u64 {
        if lane >= 0 { &mut self.user } else { self.library(lane) }
    }

    #[inline(never)]
    fn library(&mut self, lane: i32) -> &mut u64 {
        let at = lane.unsigned_abs() as usize;
        if at >= NEAR {
            return &mut self.far;
        }
        if self.near.is_empty() {
            self.near = vec![0; NEAR];
        }
        &mut self.near[at]
    }

    #[inline(always)]
    fn add_number(&mut self, tag: i32, number: u64) {
        let sum = self.of_mut(tag);
        *sum = sum.wrapping_add(number);
    }

    /// A message in the log.
    fn add(&mut self, entry: &LogEntry) {
        self.add_number(entry.tag, entry.digest.of_message(entry.tag, entry.sequence.0));
    }

    /// All that are not 0, by lane.
    pub(super) fn lanes(&self) -> impl Iterator<Item = (i32, u64)> {
        let near = (0..).zip(&self.near).map(|(at, &sum): (i32, _)| (-at, sum));
        let all = [(0, self.user), (FAR_LANE, self.far)].into_iter().chain(near);
        all.filter(|&(_, sum)| sum != 0)
    }
}

/// All lanes that have a sum.
fn lanes() -> impl Iterator<Item = i32> {
    (0..NEAR as i32).map(|at| -at).chain([FAR_LANE])
}

/// What was sent and accepted in a channel between sets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ContentSums {
    sent: Sums,
    pub(super) accepted: Sums,
    /// Lower halves of the program's last messages, by the last bits of their numbers.
    pub(super) recent: [u32; RECENT],
}

impl ContentSums {
    /// A message was accepted.
    #[inline(always)]
    pub fn accept(&mut self, digest: PayloadDigest, tag: i32, sequence: u64) {
        let number = digest.of_message(tag, sequence);
        self.accepted.add_number(tag, number);
        if tag >= 0 {
            self.recent[sequence as usize % RECENT] = number as u32;
        }
    }
}

/// What a peer has accepted in a channel; later, of which the sums are still to be repeated.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct AcceptedContents {
    pub sums: Sums,
    recent: [u32; RECENT],
    /// Digests of those that are not complete, by lane and number.
    pub open: BTreeMap<(i32, u64), PayloadDigest>,
}

impl AcceptedContents {
    /// Two of the numbers that the receiver remembers.
    pub(super) fn remember(&mut self, at: u32, both: u64) -> Result<(), FrameError> {
        let Some([even, odd]) = self.recent.as_chunks_mut().0.get_mut(at as usize) else {
            return Err(FrameError::Unexpected("resync entry outside of what is recent"));
        };
        (*even, *odd) = (both as u32, (both >> 32) as u32);
        Ok(())
    }
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
    /// One or more of several messages.
    AnyOf {
        /// MPI's context id.
        context: u32,
        /// 0: messages of the program; else the tag, or a far one.
        lane: i32,
        /// How many the receiver has; of far tags: unknown.
        messages: u64,
    },
    /// The program has come to its end and has sent fewer messages than the receiver has.
    Fewer {
        /// MPI's context id.
        context: u32,
        /// How many of the program it has sent and the receiver has; `None`: those of a collective
        /// are missing.
        messages: Option<(u64, u64)>,
    },
}

impl PayloadMismatch {
    /// The lane of the stream: 0 for messages of the program; where it is not known, a far one.
    pub fn lane(&self) -> i32 {
        match self {
            Self::Message { stream, .. } => stream.lane,
            Self::AnyOf { lane, .. } => *lane,
            Self::Fewer { messages, .. } => messages.map_or(FAR_LANE, |_| 0),
        }
    }
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
            Self::AnyOf { context, lane: 0, messages } => write!(
                f,
                "one or more of messages 0 to {} in context {context}: another content, length or \
                 tag than before the failure",
                messages.saturating_sub(1)
            ),
            Self::AnyOf { context, lane: FAR_LANE, .. } => write!(
                f,
                "nonblocking collectives in context {context}: another content or length than \
                 before the failure"
            ),
            Self::AnyOf { context, lane, messages } => write!(
                f,
                "one or more of messages 0 to {} with tag {lane} in context {context}: another \
                 content or length than before the failure",
                messages.saturating_sub(1)
            ),
            Self::Fewer { context, messages: Some((sent, accepted)) } => write!(
                f,
                "{sent} messages in context {context} up to its end, and {accepted} before the \
                 failure"
            ),
            Self::Fewer { context, messages: None } => write!(
                f,
                "fewer messages of collectives in context {context} up to its end than before the \
                 failure"
            ),
        }
    }
}

impl ReceivedVector {
    /// Is this what the peer remembers of the message, if it does?
    fn is_as_remembered(&self, name: Name, tag: i32, digest: PayloadDigest) -> bool {
        let (context, lane, sequence) = name;
        let Some(contents) = self.contents.get(&context) else { return true };
        if let Some(&announced) = contents.open.get(&(lane, sequence)) {
            return announced == digest;
        }
        let count = self.lanes.get(&context).map_or(0, |lanes| lanes.get(0));
        let is_recent = lane == 0 && sequence < count && sequence + RECENT as u64 >= count;
        let now = digest.of_message(tag, sequence) as u32;
        !is_recent || contents.recent[sequence as usize % RECENT] == now
    }

    /// One or more of what the peer has in this lane, or in far ones, are not the same.
    fn any_of(&self, context: u32, lane: i32) -> PayloadMismatch {
        let messages = self.lanes.get(&context).map_or(0, |lanes| lanes.get(lane));
        PayloadMismatch::AnyOf { context, lane, messages }
    }

    /// Has the peer accepted more in this lane, or in far ones, than was `sent`?
    fn is_above(&self, context: u32, lane: i32, sent: &Lanes) -> bool {
        self.lanes.get(&context).is_some_and(|lanes| match lane {
            FAR_LANE => lanes.any_far_above(sent),
            _ => lanes.get(lane) > sent.get(lane),
        })
    }

    /// A message that the peer has accepted is sent again, and is one of `sent`.
    pub(super) fn verify_repeated<B, T>(
        &mut self,
        message: &Outbound<B, T>,
        name: Name,
        sent: &Lanes,
    ) -> Option<PayloadMismatch> {
        let (context, lane, _) = name;
        let (digest, tag) = (message.digest, message.tag);
        let as_remembered = self.is_as_remembered(name, tag, digest);
        let sum = self.contents.entry(context).or_default().sums.of_mut(lane);
        *sum = sum.wrapping_sub(digest.of_message(tag, message.sequence));
        let differs = *sum != 0;
        if !as_remembered {
            return Some(PayloadMismatch::Message {
                stream: StreamKey::of(ContextId(message.context), tag),
                sequence: MessageSeq(message.sequence),
                tag,
                bytes: message.bytes,
            });
        }
        let far = lane < 0 && lane.unsigned_abs() as usize >= NEAR;
        let lane = if far { FAR_LANE } else { lane };
        (differs && !self.is_above(context, lane, sent)).then(|| self.any_of(context, lane))
    }
}

impl<H: Host> Engine<H> {
    /// Verify what is sent again. To be called before any message, in all processes.
    pub fn verify_sends(&mut self) {
        self.verifies_sends = true;
    }

    /// Sums over what was sent and accepted in each channel that is verified, by peer and context.
    pub fn content_sums(&self) -> impl Iterator<Item = (PeerId, u32, &Sums, &Sums)> {
        self.channels.iter().filter_map(|channel| {
            let sums = channel.contents.as_ref()?;
            Some((channel.peer, channel.context, &sums.sent, &sums.accepted))
        })
    }

    /// A message that leaves the set is sent for the first time in this incarnation.
    #[inline]
    pub(super) fn count_content(&mut self, at: usize, tag: i32, number: u64, of: PayloadDigest) {
        if let Some(sums) = &mut self.channels[at].contents {
            sums.sent.add_number(tag, of.of_message(tag, number));
        }
    }

    /// A channel is repaired, and nothing was sent again: verifies what of it is in the log,
    /// compares what is complete, and notes what is still to be repeated (2).
    pub(super) fn verify_log(&self, host: &mut H, id: PeerId, received: &mut ReceivedVector) {
        if !self.verifies_sends {
            return;
        }
        let mut unaccepted: BTreeMap<u32, Sums> = BTreeMap::new();
        let mut after = None;
        while let Some((record, entry)) = host.log_next(id, after) {
            after = Some(record);
            let (stream, sequence, tag) = (entry.stream, entry.sequence, entry.tag);
            let name = name_of(stream.context.0, stream.lane, sequence.0);
            if !received.accepted(name) {
                unaccepted.entry(name.0).or_default().add(&entry);
            } else if !received.is_as_remembered(name, tag, entry.digest) {
                let bytes = entry.bytes;
                let mismatch = PayloadMismatch::Message { stream, sequence, tag, bytes };
                host.payload_mismatch(entry.to, mismatch);
            }
        }
        for channel in self.channels.iter().filter(|channel| channel.peer == id) {
            let Some(own) = &channel.contents else { continue };
            let context = channel.context;
            let waits = unaccepted.remove(&context).unwrap_or_default();
            for lane in lanes() {
                let theirs = received.contents.entry(context).or_default().sums.of_mut(lane);
                *theirs = theirs.wrapping_sub(own.sent.of(lane).wrapping_sub(waits.of(lane)));
                if *theirs != 0 && !received.is_above(context, lane, &channel.sent) {
                    host.payload_mismatch(id, received.any_of(context, lane));
                }
            }
        }
    }

    /// The program sends nothing more (MPI_Finalize): what any peer has it has repeated (7).
    pub fn end_sends(&mut self, host: &mut H) {
        self.sends_are_over = true;
        for id in 0..self.peers.len() as u32 {
            self.verify_all_repeated(host, PeerId(id));
        }
    }

    /// Has it been sent all that the peer has, if that is known yet?
    pub(super) fn verify_all_repeated(&mut self, host: &mut H, id: PeerId) {
        let Some(Some(peer)) = self.peers.get(id.0 as usize) else { return };
        let Some(ahead) = peer.ahead.as_ref().filter(|_| self.verifies_sends) else { return };
        let none = Lanes::default();
        let sent = |context| match self.by_peer.get(&(context, id)) {
            Some(&at) => &self.channels[at as usize].sent,
            None => &none,
        };
        // A context stays there until all of it is repeated.
        if let Some((&context, lanes)) = ahead.lanes.first_key_value() {
            let (sent, accepted) = (sent(context).get(0), lanes.get(0));
            let messages = (accepted > sent).then_some((sent, accepted));
            host.payload_mismatch(id, PayloadMismatch::Fewer { context, messages });
        }
    }
}
