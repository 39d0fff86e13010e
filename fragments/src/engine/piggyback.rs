//! Determinants are piggybacked on messages, so that a frame need not wait until they are stable.
//!
//! Source: docs/adr/0019, 0047; the idea is causal message logging (Alvisi and Marzullo, 1998),
//! here over one hop: the receiver of piggybacked determinants stores them, and a frame that
//! depends on a third process's determinants names them. What cannot be had waits at the send gate
//! (send_gate.rs). Their encoding is the driver's; the engine keeps their order.
//!
//! ```text
//!   receiver ── Piggyback, empty ("I accept determinants") ──> sender
//!   sender ──── Piggyback(determinants), frame, frame ──> receiver
//! ```
//! Invariants:
//! * C1 Nothing is piggybacked to a peer that has not announced, on this channel, that it accepts
//!   determinants.
//! * C2 A frame follows its piggybacked determinants on the same channel, and nothing of it is
//!   offered before all of these are taken.
//! * C3 A receiver that refuses piggybacked determinants accepts nothing that follows them on the
//!   channel.
//! * C4 A frame that depends on nothing but what its receiver's set has piggybacked to here goes
//!   alone; one that also depends on what third sets have piggybacked is preceded by names of that.
//!   The next one that depends on anything of the sender's own is preceded by all places since the
//!   last that were piggybacked: no place is left out. (Else two sets that answer each other would
//!   send for ever that they have what was sent before.)

use super::queue::{offer, queued};
use super::state::{Body, LinkState, QueuedFrame};
use super::{Engine, FrameError, Host, PeerId};
use crate::host::{Payload, PiggybackContent, PiggybackOutcome, Transmit};
use crate::send_gate::{Recorded, SendPermit};
use crate::wire::{FrameType, HEADER_BYTES, Header};

impl<H: Host> Engine<H> {
    /// From now on [`Host::on_piggyback`] stores determinants. This is announced to every peer of
    /// another set.
    pub fn accept_piggyback(&mut self, host: &mut H) {
        self.accepts_piggyback = true;
        for at in 0..self.peers.len() {
            if self.peers[at].as_ref().is_some_and(|peer| peer.outgoing) {
                self.announce_piggyback(host, PeerId(at as u32));
            }
        }
    }

    /// Determinants are no longer accepted. Peers are not notified: only for a process whose
    /// channels are opened again, or where nothing depends on it.
    pub fn stop_accepting_piggyback(&mut self) {
        self.accepts_piggyback = false;
    }

    /// C1: announce it to a peer of another set, whenever a channel to it opens.
    pub(super) fn announce_piggyback(&mut self, host: &mut H, to: PeerId) {
        if self.peer(to).outgoing {
            self.control(host, to, FrameType::Piggyback, 0, 0);
        }
    }

    /// A frame to this peer depends on determinants that are not stable. Gives a permit if they
    /// were piggybacked before it.
    #[cold]
    #[inline(never)]
    pub(super) fn piggyback(
        &mut self,
        host: &mut H,
        to: PeerId,
        depends_on: Recorded,
    ) -> Option<SendPermit> {
        let mine = self.incarnation;
        let mut bytes = core::mem::take(&mut self.piggyback_buffer);
        bytes.clear();
        let peer = self.peer(to);
        let mut permit = peer.piggybacked_permit(depends_on);
        let mut content = PiggybackContent::Unavailable;
        if permit.is_none() && peer.accepts_piggyback && peer.link == LinkState::Open {
            let places = (peer.piggybacked, peer.covered);
            let receiver = (to, peer.info.incarnation);
            content = host.piggyback(receiver, places, depends_on, &mut bytes);
        }
        if content == PiggybackContent::OfReceiver {
            peer.covered = depends_on;
            permit = Some(SendPermit::piggybacked());
        }
        if matches!(content, PiggybackContent::Appended | PiggybackContent::Names) {
            let piggybacked = match content {
                PiggybackContent::Names => peer.piggybacked,
                _ => depends_on,
            };
            let mut header =
                Header::control(FrameType::Piggyback, mine, peer.info.incarnation, 0, 0);
            header.length = (HEADER_BYTES + bytes.len()) as u32;
            let header = header.encode();
            match offer(host, SendPermit::piggybacked(), to, &header, Payload::Bytes(&bytes), 0) {
                Transmit::Accepted => {
                    (peer.piggybacked, peer.covered) = (piggybacked, depends_on);
                    self.counters.piggyback_frames += 1;
                    permit = Some(SendPermit::piggybacked());
                }
                Transmit::Full(taken) if taken > 0 => {
                    // C2: the rest of this frame precedes everything else.
                    (peer.piggybacked, peer.covered) = (piggybacked, depends_on);
                    peer.taken = taken;
                    peer.taken_of_push = false;
                    let rest = queued(&header, Body::Owned(bytes.clone()));
                    peer.queue.push_front(QueuedFrame { depends_on: Recorded(0), ..rest });
                    self.counters.piggyback_frames += 1;
                    self.list(to);
                }
                Transmit::Full(_) | Transmit::Down => {}
            }
        }
        self.piggyback_buffer = bytes;
        // They may have become stable meanwhile.
        permit = permit.or_else(|| host.marks().permit(depends_on));
        if permit.is_none() {
            host.frame_gated();
        }
        permit
    }

    /// Determinants that everything behind them on the channel depends on; none: the peer accepts
    /// determinants.
    pub(super) fn on_piggyback(
        &mut self,
        host: &mut H,
        from: PeerId,
        bytes: &[u8],
    ) -> Result<(), FrameError> {
        let peer = self.peer(from);
        if !peer.outgoing {
            return Err(FrameError::Unexpected("piggybacked determinants inside of a set"));
        }
        if bytes.is_empty() {
            peer.accepts_piggyback = true;
            return Ok(());
        }
        match host.on_piggyback(from, bytes) {
            PiggybackOutcome::Accepted => Ok(()),
            PiggybackOutcome::Refused => {
                self.peer_down(host, from);
                Ok(())
            }
            PiggybackOutcome::Damaged => Err(FrameError::Unexpected("damaged determinants")),
        }
    }
}
