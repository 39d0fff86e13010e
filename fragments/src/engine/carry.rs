//! Determinants that go with messages, so that a frame need not wait until they are stable.
//!
//! Source: docs/adr/0019; the idea is causal message logging (Alvisi and Marzullo, 1998), here over
//! one hop: who is given determinants keeps them, and what depends on somebody else's waits as it
//! did (gate.rs). What they are is the driver's business; here is their order.
//!
//! ```text
//!   receiver ── Carried, empty ("I keep what comes")──> sender
//!   sender ──── Carried(determinants), frame, frame ──> receiver
//! ```
//! Invariants:
//! * C1 Nothing is carried to who has not said, on this channel, that it keeps it.
//! * C2 A frame follows what was carried for it on the same channel, and nothing of it is offered
//!   before all of that is taken.
//! * C3 A receiver that refuses what is carried takes in nothing that follows it on the channel.

use super::queue::{offer, queued};
use super::state::{Body, Link, Queued};
use super::{Engine, FrameError, Host, PeerId};
use crate::gate::{Recorded, Stable};
use crate::host::{Payload, Taken, Transmit};
use crate::wire::{FrameType, HEADER_BYTES, Header};

impl<H: Host> Engine<H> {
    /// From now on [`Host::on_piggyback`] keeps what is brought to it. Every peer of another set is
    /// told.
    pub fn accept_piggyback(&mut self, host: &mut H) {
        self.keeps = true;
        for at in 0..self.peers.len() {
            if self.peers[at].as_ref().is_some_and(|peer| peer.outgoing) {
                self.say_that_it_keeps(host, PeerId(at as u32));
            }
        }
    }

    /// It does not keep what is brought to it any more. Peers that were told are not told again:
    /// only for a process whose channels begin anew, or where nothing depends on it.
    pub fn stop_accepting_piggyback(&mut self) {
        self.keeps = false;
    }

    /// C1: to a peer of another set, whenever a channel to it is open (again).
    pub(super) fn say_that_it_keeps(&mut self, host: &mut H, to: PeerId) {
        if self.peer(to).outgoing {
            self.control(host, to, FrameType::Piggyback, 0, 0);
        }
    }

    /// A frame to this peer depends on determinants that are not stable. Leave to go, if they have
    /// gone before it.
    #[cold]
    #[inline(never)]
    pub(super) fn carry(&mut self, host: &mut H, to: PeerId, made: Recorded) -> Option<Stable> {
        let mine = self.incarnation;
        let mut bytes = core::mem::take(&mut self.carrying);
        bytes.clear();
        let peer = self.peer(to);
        let mut leave = peer.covers(made);
        if leave.is_none()
            && peer.keeps
            && peer.link == Link::Open
            && host.carry(to, peer.carried, made, &mut bytes)
        {
            let mut header = Header::control(FrameType::Piggyback, mine, peer.info.incarnation, 0, 0);
            header.length = (HEADER_BYTES + bytes.len()) as u32;
            let header = header.encode();
            match offer(host, Stable::carried(), to, &header, Payload::Bytes(&bytes), 0) {
                Transmit::Accepted => {
                    peer.carried = made;
                    self.counters.piggyback_frames += 1;
                    leave = Some(Stable::carried());
                }
                Transmit::Full(taken) if taken > 0 => {
                    // C2: the rest of it is before everything else.
                    peer.carried = made;
                    peer.taken = taken;
                    peer.taken_of_stream = false;
                    let rest = queued(&header, Body::Owned(bytes.clone()));
                    peer.queue.push_front(Queued { made: Recorded(0), ..rest });
                    self.counters.piggyback_frames += 1;
                    self.list(to);
                }
                Transmit::Full(_) | Transmit::Down => {}
            }
        }
        self.carrying = bytes;
        // It may have become stable meanwhile.
        leave = leave.or_else(|| host.marks().covers(made));
        if leave.is_none() {
            host.waits();
        }
        leave
    }

    /// Determinants that everything behind them on the channel depends on; none: the peer keeps
    /// what is carried to it.
    pub(super) fn on_carried(
        &mut self,
        host: &mut H,
        from: PeerId,
        bytes: &[u8],
    ) -> Result<(), FrameError> {
        let peer = self.peer(from);
        if !peer.outgoing {
            return Err(FrameError::Unexpected("carried determinants inside of a set"));
        }
        if bytes.is_empty() {
            peer.keeps = true;
            return Ok(());
        }
        match host.carried(from, bytes) {
            PiggybackOutcome::Accepted => Ok(()),
            PiggybackOutcome::Refused => {
                self.peer_down(host, from);
                Ok(())
            }
            PiggybackOutcome::Damaged => Err(FrameError::Unexpected("damaged determinants")),
        }
    }
}
