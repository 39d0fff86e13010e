//! Frames that wait for room at a transport, and frames that need not.

use super::state::{Body, Link, Origin, Peer, Queued, Stream};
use super::{Engine, Host, PeerId, SendId};
use crate::gate::{Recorded, Stable};
use crate::host::{Payload, Status, Transmit};
use crate::wire::{ANNOUNCE_BYTES, FrameType, HEADER_BYTES, Header};

/// Payload frames that one call of `flush` offers to one peer: others get their turn.
const BURST: usize = 32;

/// A frame for the queue. `header` is one of 32 or 48 bytes.
pub(super) fn queued(header: &[u8], body: Body) -> Queued {
    let mut copy = [0; ANNOUNCE_BYTES];
    copy[..header.len()].copy_from_slice(header);
    Queued { header: copy, header_bytes: header.len() as u8, body, made: Recorded(0) }
}

impl<H: Host> Engine<H> {
    /// Put a frame at the end of a peer's queue. `taken`: bytes of it that the transport has.
    pub(super) fn enqueue(&mut self, host: &H, to: PeerId, mut frame: Queued, taken: usize) {
        let peer = self.peer(to);
        if peer.outgoing {
            frame.made = host.marks().recorded;
        }
        if taken > 0 {
            debug_assert!(peer.queue.is_empty(), "only the first frame is offered");
            peer.taken = taken;
            peer.taken_of_stream = false;
        }
        if peer.held && peer.holds_back(&frame) {
            peer.later.push_back(frame);
        } else {
            peer.queue.push_back(frame);
        }
        self.list(to);
    }

    /// Push a granted payload.
    pub(super) fn enqueue_stream(&mut self, to: PeerId, stream: Stream) {
        self.peer(to).streams.push_back(stream);
        self.list(to);
    }

    pub(super) fn list(&mut self, to: PeerId) {
        let peer = self.peer(to);
        peer.direct = false;
        if !peer.listed {
            peer.listed = true;
            self.backlog.push(to);
        }
    }

    /// Send a control frame, or nothing where there is no channel: resync makes up for it.
    pub(super) fn control(&mut self, host: &mut H, to: PeerId, kind: Kind, a: u64, b: u64) {
        let mine = self.incarnation;
        let peer = self.peer(to);
        if peer.link != Link::Open {
            return;
        }
        let direct = peer.direct;
        peer.told |= peer.held && kind == FrameType::Done;
        let header = Header::control(kind, mine, peer.info.incarnation, a, b).encode();
        let mut taken = 0;
        if direct && let Some(stable) = self.leave_now(host, to) {
            match offer(host, stable, to, &header, Payload::Empty, 0) {
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

    /// Is every frame handed to the transports (nothing waits for room or for the end of a line)?
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
                peer.listed = false;
                peer.direct = peer.link == Link::Open && !peer.held;
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
            if peer.link == Link::Down {
                return;
            }
            let of_stream = peer.taken > 0 && peer.taken_of_stream;
            let accepted = if !of_stream && !peer.queue.is_empty() {
                self.offer_first(host, id)
            } else if peer.streams.is_empty() || burst == 0 {
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

    /// Offer the first frame of the queue; true: it is gone.
    fn offer_first(&mut self, host: &mut H, id: PeerId) -> bool {
        let Self { peers, sends, .. } = self;
        let Some(Some(peer)) = peers.get_mut(id.0 as usize) else { return false };
        let Some(frame) = peer.queue.front() else { return false };
        let leave = match (peer.outgoing, peer.taken) {
            (false, _) => Some(Stable::inside()),
            (true, 0) => host.marks().covers(frame.made).or_else(|| peer.covers(frame.made)),
            (true, _) => Some(Stable::begun()),
        };
        let Some(stable) = leave else {
            let made = frame.made;
            // Then it is offered next.
            return self.carry(host, id, made).is_some();
        };
        let mut finish = None;
        let payload = match &frame.body {
            Body::Empty => Payload::Empty,
            Body::Owned(bytes) => Payload::Bytes(bytes),
            Body::Log(record, bytes) => Payload::Log(*record, 0..*bytes),
            Body::Send { id, bytes, finish: end } => {
                finish = end.then_some(*id);
                match sends.get_mut(id.index(), id.generation()) {
                    Some(send) => origin(&mut send.origin, 0..*bytes),
                    // Withdrawn since: nobody waits for this frame.
                    None => {
                        peer.queue.pop_front();
                        return true;
                    }
                }
            }
        };
        let header = &frame.header[..usize::from(frame.header_bytes)];
        match offer(host, stable, id, header, payload, peer.taken) {
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
                peer.taken_of_stream = false;
                false
            }
            Transmit::Down => false,
        }
    }

    /// Offer the next chunk of the first stream; true: it is gone.
    fn offer_chunk(&mut self, host: &mut H, id: PeerId) -> bool {
        let Self { peers, sends, incarnation, .. } = self;
        let Some(Some(peer)) = peers.get_mut(id.0 as usize) else { return false };
        let Some(stream) = peer.streams.front().copied() else { return false };
        let Some(send) = sends.get_mut(stream.send.index(), stream.send.generation()) else {
            peer.streams.pop_front();
            return true;
        };
        let end = send.bytes.min(stream.offset + u64::from(peer.info.chunk_bytes_max));
        let (from, to) = (*incarnation, peer.info.incarnation);
        let mut header = Header::control(FrameType::Data, from, to, stream.receive, stream.offset);
        header.length = (HEADER_BYTES as u64 + end - stream.offset) as u32;
        let done = end == send.bytes;
        let payload = origin(&mut send.origin, stream.offset..end);
        match offer(host, Stable::payload(), id, &header.encode(), payload, peer.taken) {
            Transmit::Accepted => {
                peer.taken = 0;
                peer.streams.pop_front();
                if done {
                    self.finish_send(host, stream.send);
                } else {
                    peer.streams.push_back(Stream { offset: end, ..stream });
                }
                true
            }
            Transmit::Full(taken) => {
                peer.taken = taken;
                peer.taken_of_stream = true;
                false
            }
            Transmit::Down => false,
        }
    }

    /// Nothing more is to be done for a send: forget it and tell the program.
    pub(super) fn finish_send(&mut self, host: &mut H, id: SendId) {
        if let Some(send) = self.sends.remove(id.index(), id.generation()) {
            if send.exposed {
                host.withdraw(send.peer, id);
            }
            if let Some(token) = send.token {
                host.complete(token, Status::default());
            } else {
                self.late -= 1;
            }
        }
    }

    /// Sends that are complete for the program, and whose payload nobody has asked for yet or is
    /// on its way. While there are any, somebody must look for what their receivers say.
    #[inline]
    pub fn late(&self) -> usize {
        self.late
    }
}

/// Where every frame goes out (G1).
#[inline]
pub(super) fn offer<H: Host>(
    host: &mut H,
    _: Stable,
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
    _: Stable,
    to: PeerId,
    header: &Header,
    buffer: &mut H::SendBuffer,
    bytes: u64,
) -> bool {
    host.transmit_eager(to, header, buffer, bytes)
}

impl<H: Host> Engine<H> {
    /// May a frame to this peer, for which nothing waits, leave at once if it is made now?
    #[inline]
    pub(super) fn leave_now(&mut self, host: &mut H, to: PeerId) -> Option<Stable> {
        if !self.peer(to).outgoing {
            return Some(Stable::inside());
        }
        let marks = host.marks();
        marks.permit_now().or_else(|| self.carry(host, to, marks.recorded))
    }
}

impl Peer {
    /// Was all that a frame depends on that was made then carried to it?
    pub(super) fn covers(&self, made: Recorded) -> Option<Stable> {
        (made <= self.carried).then(Stable::carried)
    }
}

/// Part of a send's payload, wherever it lies.
pub(super) fn origin<B>(origin: &mut Origin<B>, range: core::ops::Range<u64>) -> Payload<'_, B> {
    match origin {
        Origin::Program(buffer) => Payload::Program(buffer, range),
        Origin::Log(record) => Payload::Log(*record, range),
    }
}
