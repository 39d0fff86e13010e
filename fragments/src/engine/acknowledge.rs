//! Acknowledged trimming: as long as a set has no checkpoint, nobody needs what its processes have
//! received already, and the senders' logs drop it soon. So the log stays as small as what is in
//! flight, and its memory is used again and again while the processor's caches still have it.
//!
//! The receiver decides, alone: it sends its received vector (as for a resync) after so many bytes
//! or messages, and stops for good before the first snapshot of its set. The frames are ordinary
//! ones of the channel, behind any `Done` to the same sender.
//!
//! * A1 What is acknowledged was received completely before the first snapshot of the receiver's
//!   set: no rollback asks for it.
//! * A2 An acknowledgement takes nothing from the log that a channel still sends: what was received
//!   completely has left, and a `Done` that ends its send comes before it.

use super::received_vector::ReceivedVector;
use super::state::LinkState;
use super::{Engine, FrameError, Host, PeerId};
use crate::counters::Traffic;
use crate::wire::{FLAG_LAST, FrameType};

/// When an acknowledgement is due: after so many bytes or messages from a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AcknowledgeAfter {
    /// Payload bytes.
    pub bytes: u64,
    /// Messages.
    pub messages: u64,
}

/// Entries of an acknowledgement for each message, or KiB, that it is for, at most: what has many
/// streams is acknowledged more seldom.
const ENTRIES_PER_MESSAGE: u64 = 16;

/// What was acknowledged to a peer, and what it acknowledges.
#[derive(Clone, Debug, Default)]
pub(super) struct Acknowledged {
    /// Traffic from it when it was sent an acknowledgement last; with payloads that have been
    /// announced since, without those that have come since and were announced before.
    messages: u64,
    bytes: u64,
    /// Entries of that.
    entries: u64,
    /// Its acknowledgement, while it arrives.
    arriving: ReceivedVector,
}

impl Acknowledged {
    /// The channel is lost: the rest of an acknowledgement does not come.
    pub(super) fn forget_arriving(&mut self) {
        self.arriving = ReceivedVector::default();
    }

    /// A message is announced: it counts when its payload is there.
    pub(super) fn announced(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Its payload is there.
    pub(super) fn completed(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    fn is_due(&self, traffic: &Traffic, after: AcknowledgeAfter) -> bool {
        let messages = traffic.received_messages.saturating_sub(self.messages);
        let bytes = traffic.received_bytes.saturating_sub(self.bytes);
        let worth = messages.max(bytes >> 10) >= self.entries / ENTRIES_PER_MESSAGE;
        (bytes >= after.bytes || messages >= after.messages) && worth
    }
}

impl<H: Host> Engine<H> {
    /// Acknowledge what is received from other sets; `None`, and at first: no more (A1).
    pub fn set_acknowledging(&mut self, after: Option<AcknowledgeAfter>) {
        self.acknowledging = after;
    }

    /// Are there acknowledgements?
    pub fn is_acknowledging(&self) -> bool {
        self.acknowledging.is_some()
    }

    /// Frames of this peer were handed in: acknowledge them, if that is due. Cheap if it is not.
    #[inline]
    pub fn acknowledge(&mut self, host: &mut H, from: PeerId) {
        let Some(after) = self.acknowledging else { return };
        let Some(peer) = self.peers.get(from.0 as usize).and_then(Option::as_ref) else { return };
        if peer.outgoing && peer.acknowledged.is_due(&peer.traffic, after) {
            self.acknowledge_now(host, from);
        }
    }

    /// Acknowledge to all others what was received from them and not acknowledged yet: what they
    /// keep of it would stay in their logs as long as they send nothing more.
    pub fn acknowledge_all(&mut self, host: &mut H) {
        let behind = self.peers.iter().zip(0..).filter(|(peer, _)| {
            peer.as_ref().is_some_and(|peer| {
                peer.outgoing && peer.traffic.received_messages > peer.acknowledged.messages
            })
        });
        let behind: Vec<u32> = behind.map(|(_, id)| id).collect();
        if self.acknowledging.is_some() {
            behind.into_iter().for_each(|id| self.acknowledge_now(host, PeerId(id)));
        }
    }

    #[cold]
    #[inline(never)]
    fn acknowledge_now(&mut self, host: &mut H, from: PeerId) {
        let peer = self.peer(from);
        if peer.link != LinkState::Open || peer.held {
            return;
        }
        let Traffic { received_messages: messages, received_bytes: bytes, .. } = peer.traffic;
        let entries = self.received_entries(from);
        let acknowledged = &mut self.peer(from).acknowledged;
        (acknowledged.messages, acknowledged.bytes) = (messages, bytes);
        acknowledged.entries = entries.len() as u64;
        self.counters.acknowledgements += 1;
        self.send_vector(host, from, FrameType::Acknowledge, &entries);
    }

    /// A part of an acknowledgement has arrived; after the last one the log is trimmed.
    #[cold]
    pub(super) fn on_acknowledge(
        &mut self,
        host: &mut H,
        from: PeerId,
        flags: u8,
        body: &[u8],
    ) -> Result<(), FrameError> {
        let peer = self.peer(from);
        if !peer.outgoing {
            return Err(FrameError::Unexpected("acknowledgement inside the set"));
        }
        peer.acknowledged.arriving.read(body)?;
        if flags & FLAG_LAST != 0 {
            let received = core::mem::take(&mut peer.acknowledged.arriving);
            host.log_acknowledged(from, &received);
        }
        Ok(())
    }
}
