//! The queues of frames that wait for room at a transport or for a permit.

use super::state::{Body, DataPush, LinkState, PayloadSource, PeerState, QueuedFrame};
use super::{Engine, Host, PeerId, SendId};
use crate::host::{Payload, Status, Transmit};
use crate::send_gate::{Recorded, SendPermit};
use crate::wire::{ANNOUNCE_BYTES, FrameType, HEADER_BYTES, Header};

/// Payload frames that one call of `flush` offers to one peer, so that all peers are served.
const BURST: usize = 32;

/// A frame for the queue. `header` is one of 32 or 48 bytes.
pub(super) fn queued(header: &[u8], body: Body) -> QueuedFrame {
    let mut copy = [0; ANNOUNCE_BYTES];
    copy[..header.len()].copy_from_slice(header);
    QueuedFrame { header: copy, header_bytes: header.len() as u8, body, depends_on: Recorded(0) }
}

impl<H: Host> Engine<H> {
    /// Put a frame at the end of a peer's queue. `taken`: bytes of it that the transport has.
    pub(super) fn enqueue(&mut self, host: &H, to: PeerId, mut frame: QueuedFrame, taken: usize) {
        let peer = self.peer(to);
        if peer.outgoing {
            frame.depends_on = host.marks().recorded;
        }
        if taken > 0 {
            debug_assert!(peer.queue.is_empty(), "only the first frame is offered");
            peer.taken = taken;
            peer.taken_of_push = false;
        }
        if peer.held && peer.holds_back(&frame) {
            peer.held_queue.push_back(frame);
        } else {
            peer.queue.push_back(frame);
        }
        self.list(to);
    }

    /// Push a granted payload.
    pub(super) fn enqueue_push(&mut self, to: PeerId, push: DataPush) {
        self.peer(to).pushes.push_back(push);
        self.list(to);
    }

    pub(super) fn list(&mut self, to: PeerId) {
        let peer = self.peer(to);
        peer.direct = false;
        if !peer.in_backlog {
            peer.in_backlog = true;
            self.backlog.push(to);
        }
    }

    /// Send a control frame; nothing where there is no channel: resync replaces it.
    pub(super) fn control(&mut self, host: &mut H, to: PeerId, kind: FrameType, a: u64, b: u64) {
        let mine = self.incarnation;
        let peer = self.peer(to);
        if peer.link != LinkState::Open {
            return;
        }
        let direct = peer.direct;
        peer.done_sent |= peer.held && kind == FrameType::Done;
        let header = Header::control(kind, mine, peer.info.incarnation, a, b).encode();
        let mut taken = 0;
        if direct && let Some(permit) = self.permit_for_new_frame(host, to) {
            match offer(host, permit, to, &header, Payload::Empty, 0) {
                Transmit::Accepted => return,
                Transmit::Full(n) => taken = n,
                Transmit::Down => {}
            }
        }
        self.enqueue(host, to, queued(&header, Body::Empty), taken);
    }

    /// Offer waiting frames to the transports again. Cheap when nothing waits.
    #[inline]
    pub fn flush(&mut self, host: &mut H) {
        if !self.backlog.is_empty() {
            self.flush_backlog(host);
        }
    }

    /// Is every frame handed to the transports (nothing waits for room or for the end of a
    /// checkpoint)?
    pub fn is_flushed(&self) -> bool {
        self.backlog.is_empty()
    }

    fn flush_backlog(&mut self, host: &mut H) {
        let mut at = 0;
        while at < self.backlog.len() {
            let id = self.backlog[at];
            self.flush_peer(host, id);
            let peer = self.peer(id);
            if !peer.waits() {
                peer.in_backlog = false;
                peer.direct = peer.link == LinkState::Open && !peer.held;
                self.backlog.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    fn flush_peer(&mut self, host: &mut H, id: PeerId) {
        let mut burst = BURST;
        loop {
            let peer = self.peer(id);
            if peer.link == LinkState::Down {
                return;
            }
            let of_push = peer.taken > 0 && peer.taken_of_push;
            let accepted = if !of_push && !peer.queue.is_empty() {
                self.offer_first(host, id)
            } else if peer.pushes.is_empty() || burst == 0 {
                return;
            } else {
                burst -= 1;
                self.offer_chunk(host, id)
            };
            if !accepted {
                return;
            }
        }
    }

    /// Offer the first frame of the queue; true: it was accepted or dropped.
    fn offer_first(&mut self, host: &mut H, id: PeerId) -> bool {
        let Self { peers, sends, .. } = self;
        let Some(Some(peer)) = peers.get_mut(id.0 as usize) else { return false };
        let Some(frame) = peer.queue.front() else { return false };
        let permit = match (peer.outgoing, peer.taken) {
            (false, _) => Some(SendPermit::internal()),
            (true, 0) => host
                .marks()
                .permit(frame.depends_on)
                .or_else(|| peer.piggybacked_permit(frame.depends_on)),
            (true, _) => Some(SendPermit::begun()),
        };
        let Some(permit) = permit else {
            let depends_on = frame.depends_on;
            // With a permit the frame is offered next.
            return self.piggyback(host, id, depends_on).is_some();
        };
        let mut finish = None;
        let payload = match &frame.body {
            Body::Empty => Payload::Empty,
            Body::Owned(bytes) => Payload::Bytes(bytes),
            Body::Log(record, bytes) => Payload::Log(*record, 0..*bytes),
            Body::Send { id, bytes, finish: end } => {
                finish = end.then_some(*id);
                match sends.get_mut(id.index(), id.generation()) {
                    Some(send) => payload_of(&mut send.source, 0..*bytes),
                    // The send has ended since: the frame is obsolete.
                    None => {
                        peer.queue.pop_front();
                        return true;
                    }
                }
            }
        };
        let header = &frame.header[..usize::from(frame.header_bytes)];
        match offer(host, permit, id, header, payload, peer.taken) {
            Transmit::Accepted => {
                peer.taken = 0;
                peer.queue.pop_front();
                if let Some(send) = finish {
                    self.finish_send(host, send);
                }
                true
            }
            Transmit::Full(taken) => {
                peer.taken = taken;
                peer.taken_of_push = false;
                false
            }
            Transmit::Down => false,
        }
    }

    /// Offer the next chunk of the first push; true: it was accepted or dropped.
    fn offer_chunk(&mut self, host: &mut H, id: PeerId) -> bool {
        let Self { peers, sends, incarnation, .. } = self;
        let Some(Some(peer)) = peers.get_mut(id.0 as usize) else { return false };
        let Some(push) = peer.pushes.front().copied() else { return false };
        let Some(send) = sends.get_mut(push.send.index(), push.send.generation()) else {
            peer.pushes.pop_front();
            return true;
        };
        let end = send.bytes.min(push.offset + u64::from(peer.info.chunk_bytes_max));
        let (from, to) = (*incarnation, peer.info.incarnation);
        let mut header = Header::control(FrameType::Data, from, to, push.receive, push.offset);
        header.length = (HEADER_BYTES as u64 + end - push.offset) as u32;
        let done = end == send.bytes;
        let payload = payload_of(&mut send.source, push.offset..end);
        match offer(host, SendPermit::payload(), id, &header.encode(), payload, peer.taken) {
            Transmit::Accepted => {
                peer.taken = 0;
                peer.pushes.pop_front();
                if done {
                    self.finish_send(host, push.send);
                } else {
                    peer.pushes.push_back(DataPush { offset: end, ..push });
                }
                true
            }
            Transmit::Full(taken) => {
                peer.taken = taken;
                peer.taken_of_push = true;
                false
            }
            Transmit::Down => false,
        }
    }

    /// A send is finished: remove it and complete it for the program.
    pub(super) fn finish_send(&mut self, host: &mut H, id: SendId) {
        if let Some(send) = self.sends.remove(id.index(), id.generation()) {
            if send.exposed {
                host.withdraw(send.peer, id);
            }
            if let Some(token) = send.token {
                host.complete(token, Status::default());
            } else {
                self.detached -= 1;
            }
        }
    }

    /// Detached sends: complete for the program, their payload not requested yet or in flight.
    /// While there are any, somebody must poll for the answers of their receivers.
    #[inline]
    pub fn detached_sends(&self) -> usize {
        self.detached
    }
}

/// The one place where frames are offered to transports (G1).
#[inline]
pub(super) fn offer<H: Host>(
    host: &mut H,
    _: SendPermit,
    to: PeerId,
    header: &[u8],
    payload: Payload<'_, H::SendBuffer>,
    taken: usize,
) -> Transmit {
    host.transmit(to, header, payload, taken)
}

/// The same for a whole short message that stays in the set.
#[inline(always)]
pub(super) fn offer_eager<H: Host>(
    host: &mut H,
    _: SendPermit,
    to: PeerId,
    header: &Header,
    buffer: &mut H::SendBuffer,
    bytes: u64,
) -> bool {
    host.transmit_eager(to, header, buffer, bytes)
}

impl<H: Host> Engine<H> {
    /// A permit for a frame that is made now, to a peer for which nothing waits.
    #[inline]
    pub(super) fn permit_for_new_frame(&mut self, host: &mut H, to: PeerId) -> Option<SendPermit> {
        if !self.peer(to).outgoing {
            return Some(SendPermit::internal());
        }
        let marks = host.marks();
        marks.permit_now().or_else(|| self.piggyback(host, to, marks.recorded))
    }
}

impl PeerState {
    /// A permit if this peer has every determinant that a frame depends on.
    pub(super) fn piggybacked_permit(&self, depends_on: Recorded) -> Option<SendPermit> {
        (depends_on <= self.covered).then(SendPermit::piggybacked)
    }
}

/// Part of a send's payload, wherever it lies.
pub(super) fn payload_of<B>(
    source: &mut PayloadSource<B>,
    range: core::ops::Range<u64>,
) -> Payload<'_, B> {
    match source {
        PayloadSource::Program(buffer) => Payload::Program(buffer, range),
        PayloadSource::Log(record) => Payload::Log(*record, range),
    }
}
