//! The engine's share in a checkpoint: new frames are held back, checkpoint frames pass, and the
//! engine reports when no payload is in flight inside the set.
//!
//! Source: DESIGN §6; paper §3.1, whose eager silence and rendezvous silence are the phases of
//! quiescence. The phases themselves are coordination's `Quiescence`; DESIGN.md "A checkpoint"
//! lists the driver's calls in their order.
//!
//! * **Inside the set** new messages (`Eager`, `Announce`) are held. Frames that serve matched
//!   messages (`Grant`, `Data`, `Done`) and checkpoint frames are sent, and overtake the messages
//!   that wait for room: those are part of the snapshot. A frame that a transport has half taken is
//!   finished before anything else.
//! * **To other sets** (global checkpoints) everything but payloads is held. A message that was
//!   sent after one set's snapshot must not be received before another's (it would be an orphan).
//!   Nor may the report of a match (`Grant`, `Done`, the counters of `Resync`) that the checkpoint
//!   does not contain complete a synchronous send that it does contain.

use super::queue::offer;
use super::state::{Body, LinkState, PeerState, QueuedFrame};
use super::{Engine, FrameError, Host, PeerId};
use crate::checkpoint_frame::CheckpointFrame;
use crate::host::{Payload, Transmit};
use crate::ids::Incarnation;
use crate::send_gate::SendPermit;
use crate::wire::{FrameType, Header};

/// Which channels of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Those inside its set.
    Internal,
    /// Those to other sets.
    Outgoing,
}

impl QueuedFrame {
    fn is(&self, kind: FrameType) -> bool {
        self.header[5] == kind as u8
    }
}

impl PeerState {
    /// Does a checkpoint hold this frame back?
    pub(super) fn holds_back(&self, frame: &QueuedFrame) -> bool {
        self.outgoing || frame.is(FrameType::Eager) || frame.is(FrameType::Announce)
    }

    /// Is there a frame that is not handed to the transport?
    pub(super) fn waits(&self) -> bool {
        !self.queue.is_empty() || !self.pushes.is_empty() || !self.held_queue.is_empty()
    }

    /// Move the frames that a checkpoint holds back out of the queue, in their order.
    fn hold(&mut self) {
        self.held = true;
        self.direct = false;
        self.done_sent = false;
        let begun = usize::from(self.taken > 0 && !self.taken_of_push);
        let rest = self.queue.split_off(begun.min(self.queue.len()));
        for frame in rest {
            if self.holds_back(&frame) {
                self.held_queue.push_back(frame);
            } else {
                self.queue.push_back(frame);
            }
        }
    }

    fn release(&mut self) {
        self.held = false;
        self.done_sent = false;
        self.queue.append(&mut self.held_queue);
        self.direct = self.link == LinkState::Open && !self.in_backlog;
    }
}

impl<H: Host> Engine<H> {
    /// From now on new frames on this side stay in the engine. Send the token after this call.
    pub fn hold(&mut self, side: Side) {
        let outgoing = side == Side::Outgoing;
        if core::mem::replace(&mut self.holds[usize::from(outgoing)], true) {
            return;
        }
        for peer in self.peers.iter_mut().flatten() {
            if peer.outgoing == outgoing {
                peer.hold();
            }
        }
    }

    /// The checkpoint is over: held frames are sent, in their order.
    pub fn release(&mut self, host: &mut H, side: Side) {
        self.release_frames(side);
        self.flush(host);
    }

    fn release_frames(&mut self, side: Side) {
        let outgoing = side == Side::Outgoing;
        if !core::mem::take(&mut self.holds[usize::from(outgoing)]) {
            return;
        }
        for peer in self.peers.iter_mut().flatten() {
            if peer.outgoing == outgoing {
                peer.release();
            }
        }
    }

    /// Are new frames on this side held?
    pub fn is_held(&self, side: Side) -> bool {
        self.holds[usize::from(side == Side::Outgoing)]
    }

    /// Frames that wait for the end of a checkpoint.
    pub fn held_frames(&self) -> usize {
        self.peers.iter().flatten().map(|peer| peer.held_queue.len()).sum()
    }

    /// Send a checkpoint frame to a process of the own set: behind every message that was sent to
    /// it, before the held ones.
    pub fn send_checkpoint_frame(&mut self, host: &mut H, to: PeerId, frame: CheckpointFrame) {
        self.ensure_peer(host, to);
        let mine = self.incarnation;
        let peer = self.peer(to);
        debug_assert!(!peer.outgoing, "checkpoint frames stay in the set");
        let header = frame.header(mine, peer.info.incarnation).encode();
        let mut taken = 0;
        // Held peers are never `direct`: offer it at once where nothing is before it.
        if peer.link == LinkState::Open && peer.queue.is_empty() && peer.taken == 0 {
            match offer(host, SendPermit::internal(), to, &header, Payload::Empty, 0) {
                Transmit::Accepted => return,
                Transmit::Full(n) => taken = n,
                Transmit::Down => {}
            }
        }
        self.enqueue(host, to, super::queue::queued(&header, Body::Empty), taken);
    }

    /// A checkpoint frame has arrived.
    #[cold]
    pub(super) fn on_checkpoint_frame(
        &mut self,
        host: &mut H,
        from: PeerId,
        header: &Header,
    ) -> Result<(), FrameError> {
        if self.peer(from).outgoing {
            return Err(FrameError::Unexpected("a checkpoint frame from another set"));
        }
        let Some(frame) = CheckpointFrame::of(header) else {
            return Err(FrameError::Unexpected("a checkpoint frame of an unknown kind"));
        };
        host.checkpoint_frame(from, frame);
        Ok(())
    }

    /// Rendezvous silence: is every matched receive from inside the set complete, and is the set
    /// drained ([`Self::is_set_drained`])? Cheap. Once true, it stays true while the program is
    /// kept out of the engine and every token has arrived.
    pub fn is_rendezvous_quiescent(&self) -> bool {
        self.in_flight == 0 && self.is_set_drained()
    }

    /// Was every frame for the set handed to its transport, but for the held ones? Cheap.
    pub fn is_set_drained(&self) -> bool {
        self.backlog.iter().all(|id| match &self.peers[id.0 as usize] {
            Some(peer) => peer.outgoing || peer.queue.is_empty() && peer.pushes.is_empty(),
            None => true,
        })
    }

    /// Is a send to another process of the set unfinished, or a payload from one in flight? If not,
    /// in the whole set, and every process of it is drained, no rendezvous frame can arrive any
    /// more.
    pub fn has_internal_in_flight(&self) -> bool {
        let same_set = |id: PeerId| match &self.peers[id.0 as usize] {
            Some(peer) => peer.same_set,
            None => false,
        };
        self.in_flight > 0 || self.sends.iter().any(|(_, _, send)| same_set(send.peer))
    }

    /// Takes the list of processes of the set that were sent a `Done` since [`Engine::hold`], hence
    /// behind the token: the barrier must not begin before it has arrived.
    pub fn take_done_recipients(&mut self) -> Vec<PeerId> {
        let mut recipients = Vec::new();
        for (peer, id) in self.peers.iter_mut().zip(0u32..) {
            if let Some(peer) = peer
                && !peer.outgoing
                && core::mem::take(&mut peer.done_sent)
            {
                recipients.push(PeerId(id));
            }
        }
        recipients
    }

    /// After [`Engine::restarted`]: a process of the own set has another transport or other limits.
    pub fn readdress(&mut self, host: &mut H, id: PeerId) {
        let info = host.peer_info(id);
        self.peer(id).info = info;
    }

    /// The process runs in a new incarnation: the engine was restored from a checkpoint, which is
    /// over. The driver then reports every channel to another set as down, and as up when it is
    /// open again; the channels inside the set continue from the checkpoint.
    pub fn restarted(&mut self, incarnation: Incarnation) {
        self.incarnation = incarnation;
        for peer in self.peers.iter_mut().flatten() {
            if peer.outgoing {
                continue;
            }
            // Of the control frames only those of the checkpoint itself can be here.
            peer.queue.retain(|frame| !frame.is(FrameType::Checkpoint));
            peer.taken = 0;
            peer.info.incarnation = incarnation;
            // Frames that waited at the checkpoint are sent by the new incarnation.
            for frame in peer.queue.iter_mut().chain(&mut peer.held_queue) {
                Header::readdress(&mut frame.header, incarnation, incarnation);
            }
        }
        self.release_frames(Side::Internal);
        self.release_frames(Side::Outgoing);
    }
}
