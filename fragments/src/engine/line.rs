//! The engine's share in a line: new frames are held back, the frames of the line go through, and
//! the engine says when no payload is under way inside the set.
//!
//! Source: DESIGN §6; paper §3.1 (eager and rendezvous silence). The phases themselves are
//! coordination's `Quiescence`; DESIGN.md "A line" says what the driver calls in which order.
//!
//! * **Inside the set** new messages (`Eager`, `Announce`) are held; what serves messages that
//!   are matched already (`Grant`, `Data`, `Done`) and frames of the line go on, and overtake those
//!   that wait for room: these are part of the line. A frame that a transport has half taken is
//!   finished before anything else.
//! * **To other sets** (global lines) everything but payloads is held. A message that was sent
//!   after one line must not be received before another; nor may the news of a match (`Grant`,
//!   `Done`, the counters of `Resync`) that the line does not hold complete a synchronous send
//!   that it does hold.

use super::queue::offer;
use super::state::{Body, Link, Peer, Queued};
use super::{Engine, FrameError, Host, PeerId};
use crate::checkpoint_frame::CheckpointFrame;
use crate::gate::Stable;
use crate::host::{Payload, Transmit};
use crate::ids::Incarnation;
use crate::wire::{FrameType, Header};

/// Which channels of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Those inside its set.
    Internal,
    /// Those to other sets.
    Outgoing,
}

impl Queued {
    fn is(&self, kind: Kind) -> bool {
        self.header[5] == kind as u8
    }
}

impl Peer {
    /// Does a line hold this frame back?
    pub(super) fn holds_back(&self, frame: &Queued) -> bool {
        self.outgoing || frame.is(FrameType::Eager) || frame.is(FrameType::Announce)
    }

    /// Is there a frame that is not handed to the transport?
    pub(super) fn waits(&self) -> bool {
        !self.queue.is_empty() || !self.streams.is_empty() || !self.later.is_empty()
    }

    /// Move what a line holds back out of the queue, in its order.
    fn hold(&mut self) {
        self.held = true;
        self.direct = false;
        self.told = false;
        let begun = usize::from(self.taken > 0 && !self.taken_of_stream);
        let rest = self.queue.split_off(begun.min(self.queue.len()));
        for frame in rest {
            if self.holds_back(&frame) {
                self.later.push_back(frame);
            } else {
                self.queue.push_back(frame);
            }
        }
    }

    fn release(&mut self) {
        self.held = false;
        self.told = false;
        self.queue.append(&mut self.later);
        self.direct = self.link == Link::Open && !self.listed;
    }
}

impl<H: Host> Engine<H> {
    /// From now on new frames on this side stay in the engine. Send the token after this.
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

    /// The line is over: what was held goes on its way, in its order.
    pub fn release(&mut self, host: &mut H, side: Side) {
        self.let_go(side);
        self.flush(host);
    }

    fn let_go(&mut self, side: Side) {
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

    /// Frames that wait for the end of a line.
    pub fn held_frames(&self) -> usize {
        self.peers.iter().flatten().map(|peer| peer.later.len()).sum()
    }

    /// Send a frame of a line to a process of the own set: behind every message that has left for
    /// it, before those that are held.
    pub fn send_checkpoint_frame(&mut self, host: &mut H, to: PeerId, frame: CheckpointFrame) {
        self.ensure_peer(host, to);
        let mine = self.incarnation;
        let peer = self.peer(to);
        debug_assert!(!peer.outgoing, "a line's frames stay in the set");
        let header = frame.header(mine, peer.info.incarnation).encode();
        let mut taken = 0;
        // Held peers are never `direct`: offer it at once where nothing is before it.
        if peer.link == Link::Open && peer.queue.is_empty() && peer.taken == 0 {
            match offer(host, Stable::inside(), to, &header, Payload::Empty, 0) {
                Transmit::Accepted => return,
                Transmit::Full(n) => taken = n,
                Transmit::Down => {}
            }
        }
        self.enqueue(host, to, super::queue::queued(&header, Body::Empty), taken);
    }

    /// A frame of a line has come.
    #[cold]
    pub(super) fn on_line(
        &mut self,
        host: &mut H,
        from: PeerId,
        header: &Header,
    ) -> Result<(), FrameError> {
        if self.peer(from).outgoing {
            return Err(FrameError::Unexpected("a line's frame from another set"));
        }
        let Some(frame) = CheckpointFrame::of(header) else {
            return Err(FrameError::Unexpected("a line's frame of an unknown kind"));
        };
        host.checkpoint_frame(from, frame);
        Ok(())
    }

    /// Rendezvous silence: is every matched receive from inside the set complete, and has every
    /// frame but the held ones left for the set? Cheap. While the program is kept out of the
    /// engine and every token is in, it stays so.
    pub fn is_rendezvous_quiescent(&self) -> bool {
        self.under_way == 0 && self.has_left()
    }

    /// Has every frame but the held ones left for the set? Cheap.
    pub fn has_left(&self) -> bool {
        self.backlog.iter().all(|id| match &self.peers[id.0 as usize] {
            Some(peer) => peer.outgoing || peer.queue.is_empty() && peer.streams.is_empty(),
            None => true,
        })
    }

    /// Is a send to another process of the set unfinished, or a payload from one under way? If
    /// that is so nowhere in the set, and every frame has left, no frames of a rendezvous can come
    /// any more.
    pub fn has_internal_in_flight(&self) -> bool {
        let near = |id: PeerId| match &self.peers[id.0 as usize] {
            Some(peer) => peer.near,
            None => false,
        };
        self.under_way > 0 || self.sends.iter().any(|(_, _, send)| near(send.peer))
    }

    /// Processes of the set that were sent a `Done` since [`Engine::hold`], hence behind the token:
    /// the barrier must not begin before they have seen it. Forgets them.
    pub fn take_done_recipients(&mut self) -> Vec<PeerId> {
        let mut told = Vec::new();
        for (peer, id) in self.peers.iter_mut().zip(0u32..) {
            if let Some(peer) = peer
                && !peer.outgoing
                && core::mem::take(&mut peer.told)
            {
                told.push(PeerId(id));
            }
        }
        told
    }

    /// After [`Engine::restarted`]: a process of the own set is reached in another way.
    pub fn readdress(&mut self, host: &mut H, id: PeerId) {
        let info = host.peer_info(id);
        self.peer(id).info = info;
    }

    /// The process runs in a new incarnation: the engine was restored from a line, which is over.
    /// The driver then reports every channel to another set as down, and as up when it is open
    /// again; the channels inside the set go on from the line.
    pub fn restarted(&mut self, incarnation: Incarnation) {
        self.incarnation = incarnation;
        for peer in self.peers.iter_mut().flatten() {
            if peer.outgoing {
                continue;
            }
            // Of the frames that are no messages only those of the line itself can be here.
            peer.queue.retain(|frame| !frame.is(FrameType::Checkpoint));
            peer.taken = 0;
            peer.info.incarnation = incarnation;
            // Frames that waited at the line are sent by the new incarnation.
            for frame in peer.queue.iter_mut().chain(&mut peer.later) {
                Header::readdress(&mut frame.header, incarnation, incarnation);
            }
        }
        self.let_go(Side::Internal);
        self.let_go(Side::Outgoing);
    }
}
