//! Messages that a transport had no room for. They stay where Open MPI has them, and leave in the
//! order in which they came.
//!
//! Invariants:
//! 1. While a peer has messages in here, nothing overtakes them: [`Outbox::is_empty_to`] is asked
//!    before a message is offered.
//! 2. Of those of a peer only the first may be taken in part.
//! 3. Each cookie comes out once, with the outcome.

use crate::btl::frame;
use crate::btl::frame::{HEAD_BYTES, Way, What};
use crate::btl::operation::OPERATION_BYTES;
use crate::transports::{Payload, Sent, Transport};
use rustbtl_fragments::ids::PeerId;
use std::collections::{BTreeMap, VecDeque};

/// Heads of messages up to this size are joined with ours, and the payload is sent from where it
/// lies; longer ones are copied together with it.
const JOINED_BYTES_MAX: usize = 160;

/// What is sent: up to two pieces of memory, which stay as they are until it is accepted.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// What it is for.
    pub what: What,
    /// The first piece.
    pub first: (*const u8, usize),
    /// The second one; may be empty.
    pub second: (*const u8, usize),
}

impl Message {
    /// Bytes of both pieces.
    #[inline]
    pub fn len(&self) -> usize {
        self.first.1 + self.second.1
    }

    /// Both pieces.
    ///
    /// # Safety
    /// They are readable for as long as the result is used.
    #[inline]
    pub unsafe fn pieces<'a>(&self) -> (&'a [u8], &'a [u8]) {
        // SAFETY: the caller's promise.
        let first = unsafe { bytes(self.first) };
        // SAFETY: the caller's promise.
        let second = unsafe { bytes(self.second) };
        (first, second)
    }

    /// No payload at all?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The bytes of a piece.
///
/// # Safety
/// It is readable for as long as the result is used.
#[inline]
unsafe fn bytes<'a>((start, len): (*const u8, usize)) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(start, len) }
}

/// Offer a message to the transport that leads to `to`. `taken`: see [`Transport::send`].
///
/// # Safety
/// Its pieces are readable.
#[inline]
pub unsafe fn offer<T: Transport>(
    transport: &mut T,
    way: Way,
    to: PeerId,
    message: &Message,
    taken: usize,
) -> Sent {
    let head = frame::head(way, message.what, message.len());
    let head = &head[..way.head_bytes()];
    // SAFETY: the caller's promise.
    let (first, second) = unsafe { message.pieces() };
    if second.is_empty() {
        return transport.send(to, head, Payload::Bytes(first), taken);
    }
    if first.len() <= JOINED_BYTES_MAX {
        let mut joined = [0; HEAD_BYTES + JOINED_BYTES_MAX];
        joined[..head.len()].copy_from_slice(head);
        let end = head.len() + first.len();
        joined[head.len()..end].copy_from_slice(first);
        return transport.send(to, &joined[..end], Payload::Bytes(second), taken);
    }
    let mut copy = |into: *mut u8, _: usize| {
        // SAFETY: there is room for both pieces, and it is the transport's own.
        unsafe { into.copy_from_nonoverlapping(first.as_ptr(), first.len()) };
        // SAFETY: inside the same room.
        let rest = unsafe { into.add(first.len()) };
        // SAFETY: as above.
        unsafe { rest.copy_from_nonoverlapping(second.as_ptr(), second.len()) };
    };
    transport.send(to, head, Payload::Pack(message.len(), &mut copy), taken)
}

/// What Open MPI knows a message by: the address of a descriptor, which nobody here looks at. 0:
/// nobody asks.
pub type Cookie = usize;

#[derive(Debug)]
struct Waiting {
    way: Way,
    message: Message,
    taken: usize,
    cookie: Cookie,
    /// The first piece, if nobody else keeps it.
    _kept: Option<Box<[u8; OPERATION_BYTES]>>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Outbox {
    peers: BTreeMap<PeerId, VecDeque<Waiting>>,
    /// Messages that are over, and whether they were accepted.
    over: VecDeque<(Cookie, bool)>,
}

impl Outbox {
    /// Is there nothing to do?
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.peers.is_empty() && self.over.is_empty()
    }

    /// Does nothing wait?
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// Does nothing wait for this peer?
    #[inline]
    pub fn is_empty_to(&self, peer: PeerId) -> bool {
        self.peers.is_empty() || !self.peers.contains_key(&peer)
    }

    /// Keep a message, of which the first `taken` bytes are sent, until there is room.
    pub fn keep(&mut self, to: PeerId, way: Way, message: Message, taken: usize, cookie: Cookie) {
        let waiting = Waiting { way, message, taken, cookie, _kept: None };
        self.peers.entry(to).or_default().push_back(waiting);
    }

    /// The same for an operation, of which only the data lie where they stay.
    pub fn keep_operation(
        &mut self,
        to: PeerId,
        way: Way,
        (head, data): (&[u8; OPERATION_BYTES], (*const u8, usize)),
        taken: usize,
        cookie: Cookie,
    ) {
        let kept = Box::new(*head);
        let first = (kept.as_ptr(), OPERATION_BYTES);
        let message = Message { what: What::Operation, first, second: data };
        let waiting = Waiting { way, message, taken, cookie, _kept: Some(kept) };
        self.peers.entry(to).or_default().push_back(waiting);
    }

    /// Something is over that has not waited in here.
    pub fn is_over(&mut self, cookie: Cookie) {
        self.over.push_back((cookie, true));
    }

    /// Offer what waits, by `offer`: each peer's until there is no room.
    pub fn send(&mut self, mut offer: impl FnMut(Way, PeerId, &Message, usize) -> Sent) {
        let over = &mut self.over;
        self.peers.retain(|&peer, queue| {
            while let Some(first) = queue.front_mut() {
                match offer(first.way, peer, &first.message, first.taken) {
                    Sent::Accepted => over.push_back((first.cookie, true)),
                    Sent::Full(taken) => {
                        first.taken = taken;
                        return true;
                    }
                    Sent::Down => over.push_back((first.cookie, false)),
                }
                queue.pop_front();
            }
            false
        });
    }

    /// The next message that is over, and whether it was accepted.
    pub fn next_over(&mut self) -> Option<(Cookie, bool)> {
        self.over.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transports::inproc;

    const A: PeerId = PeerId(3);
    const B: PeerId = PeerId(8);

    fn piece(bytes: &[u8]) -> (*const u8, usize) {
        (bytes.as_ptr(), bytes.len())
    }

    fn received<T: Transport>(transport: &mut T) -> Option<(u8, Vec<u8>)> {
        let frame = transport.peek()?;
        // SAFETY: valid until it is consumed.
        let bytes = unsafe { core::slice::from_raw_parts(frame.start, frame.len) };
        let Some(What::Message(tag)) = frame::read(Way::Node, bytes) else { panic!("no message") };
        let message = (tag, bytes[Way::Node.head_bytes()..].to_vec());
        transport.consume(frame);
        Some(message)
    }

    #[test]
    fn one_piece_two_pieces_and_long_heads_arrive_as_one() {
        let mut ends = inproc::connected(&[A, B], 4096);
        let long = [7; JOINED_BYTES_MAX + 1];
        let pieces: [(&[u8], &[u8]); 5] =
            [(b"", b""), (b"head", b""), (b"", b"body"), (b"head", b"body"), (&long, b"body")];
        for (first, second) in pieces {
            let message =
                Message { what: What::Message(66), first: piece(first), second: piece(second) };
            // SAFETY: the pieces are above.
            let sent = unsafe { offer(&mut ends[0], Way::Node, B, &message, 0) };
            assert_eq!(sent, Sent::Accepted);
            assert_eq!(received(&mut ends[1]), Some((66, [first, second].concat())));
        }
    }

    #[test]
    fn what_found_no_room_leaves_in_order_and_is_over_once() {
        let mut ends = inproc::connected(&[A, B], 512);
        let bodies: Vec<Vec<u8>> = (0..100u8).map(|i| vec![i; 60]).collect();
        let mut outbox = Outbox::default();
        for (number, body) in bodies.iter().enumerate() {
            let message =
                Message { what: What::Message(65), first: piece(b"h"), second: piece(body) };
            // SAFETY: the pieces live longer than the test's transports.
            let room = outbox.is_empty_to(B)
                && unsafe { offer(&mut ends[0], Way::Node, B, &message, 0) } == Sent::Accepted;
            if !room {
                outbox.keep(B, Way::Node, message, 0, number);
            }
        }
        assert!(!outbox.is_empty() && outbox.is_empty_to(A));
        let mut arrived = Vec::new();
        let mut over = Vec::new();
        while arrived.len() < bodies.len() {
            while let Some((_, body)) = received(&mut ends[1]) {
                arrived.push(body[1..].to_vec());
            }
            // SAFETY: as above.
            outbox.send(|way, to, message, taken| unsafe {
                offer(&mut ends[0], way, to, message, taken)
            });
            while let Some((cookie, accepted)) = outbox.next_over() {
                assert!(accepted);
                over.push(cookie);
            }
        }
        assert_eq!(arrived, bodies);
        assert!(over.is_sorted() && over.last() == Some(&99) && outbox.is_idle());
    }

    #[test]
    fn a_lost_peer_ends_what_waits_for_it_and_nothing_else() {
        let mut outbox = Outbox::default();
        let message = Message { what: What::Message(65), first: piece(b"x"), second: piece(b"") };
        outbox.keep(A, Way::Network, message, 0, 1);
        outbox.keep(B, Way::Network, message, 7, 2);
        outbox.send(|_, to, _, taken| if to == A { Sent::Down } else { Sent::Full(taken) });
        assert_eq!(outbox.next_over(), Some((1, false)));
        assert_eq!(outbox.next_over(), None);
        assert!(outbox.is_empty_to(A) && !outbox.is_empty_to(B));
        outbox.send(|_, _, _, taken| {
            assert_eq!(taken, 7, "what was taken is remembered");
            Sent::Accepted
        });
        assert_eq!(outbox.next_over(), Some((2, true)));
    }
}
