//! Transport within a node: a ring per ordered pair of ranks in one shared segment.
//!
//! Hot path: `send` is one lookup and one push; `peek` with one peer in use is one load of a line
//! that the peer writes only when there is something. A ring that was never used is not polled:
//! its sender sets a bit and rings the receiver's bell with the first frame.

pub mod error;
pub mod exports;
pub mod layout;
pub mod segment;
mod set_areas;

pub use crate::transports::shm::error::ShmError;
pub use crate::transports::shm::layout::Layout;
pub use crate::transports::shm::segment::{EAGER_BYTES_DEFAULT, Segment, SegmentOptions};

use crate::os::ticks;
use crate::transports::shm::exports::Access;
pub use crate::transports::shm::exports::Inaccessible;
use crate::transports::shm::layout::{STATE_ATTACHED, STATE_LEFT};
use crate::transports::{Event, Incoming, Limits, Payload, Pulled, Sent, Transport};
use core::ops::Range;
use core::sync::atomic::Ordering;
use rustbtl_fragments::ids::PeerId;
use rustbtl_fragments::wire::ANNOUNCE_BYTES;
use rustbtl_ring::{Consumer, Producer, Raw, frame_bytes_max};
use std::collections::VecDeque;
use std::os::fd::RawFd;

/// Frames taken from one ring before the next one has its turn.
const BURST: u32 = 16;
/// From so many frames in a row on, it is a stream.
const STREAM: u32 = 4;
/// Ticks of the processor's clock, some 400 ns, for which a stream that was drained is left
/// alone: looking at the line that the sender is about to write makes each of its frames wait for
/// us, and us for each of its frames.
const LEFT_ALONE_TICKS: u64 = 900;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RingLink {
    /// Nothing sent yet: the receiver does not poll the ring.
    Silent,
    /// In use.
    Announced,
    /// Lost, or the peer has left, or we have.
    Closed,
}

#[derive(Debug)]
struct Outgoing {
    ring: Producer<Raw>,
    link: RingLink,
    to: usize,
}

#[derive(Debug)]
struct Active {
    ring: Consumer<Raw>,
    from: PeerId,
    index: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Presence {
    Present,
    /// It said goodbye; reported once its ring is empty.
    Leaving,
    Gone,
}

#[derive(Debug)]
struct ShmPeer {
    id: PeerId,
    presence: Presence,
    access: Access,
    /// Its ring until it announces itself, then in `active`.
    incoming: Option<Consumer<Raw>>,
}

/// The shared-memory transport of one rank.
#[derive(Debug)]
pub struct Shm {
    /// Position in `outgoing` of each peer, from `base` on; `NOBODY` for others.
    slots: Box<[u16]>,
    base: u32,
    outgoing: Box<[Outgoing]>,
    active: Vec<Active>,
    cursor: usize,
    burst: u32,
    /// A frame came since the last one was sent: the next one may be an answer.
    received: bool,
    /// Frames taken since one was sent or a stream of them was drained.
    row: u32,
    bell: u64,
    /// By local index, myself included.
    peers: Box<[ShmPeer]>,
    events: VecDeque<Event>,
    leaving: u32,
    closed: bool,
    limits: Limits,
    // Last: the rings above point into it.
    segment: Segment,
}

const NOBODY: u16 = u16::MAX;

impl Shm {
    /// The descriptor of the segment.
    pub fn descriptor(&self) -> RawFd {
        self.segment.descriptor()
    }

    /// Where the segment is mapped.
    pub fn range(&self) -> core::ops::Range<usize> {
        self.segment.range()
    }

    /// The transport over an attached segment; `peers`: the ids of the local ranks in the order
    /// of their local indices, this one's included.
    ///
    /// # Panics
    /// If the number of peers is not the segment's number of ranks, or one appears twice.
    pub fn new(segment: Segment, peers: &[PeerId]) -> Self {
        let (layout, me) = (segment.layout(), segment.me());
        assert_eq!(peers.len(), layout.ranks, "one id per local rank");
        let others = || (0..peers.len()).filter(|&i| i != me);
        let base = peers.iter().min().map_or(0, |id| id.0);
        let top = peers.iter().max().map_or(0, |id| id.0);
        let mut slots = vec![NOBODY; (top - base) as usize + 1];
        for (slot, index) in others().enumerate() {
            let entry = &mut slots[(peers[index].0 - base) as usize];
            assert!(*entry == NOBODY && peers[index] != peers[me], "an id appears twice");
            *entry = slot as u16;
        }
        let outgoing = others()
            .map(|to| {
                // SAFETY: `segment` is stored behind the rings; this is the only producer that
                // this rank makes for the pair.
                let ring = Producer::new(unsafe { segment.ring(me, to) });
                Outgoing { ring, link: RingLink::Silent, to }
            })
            .collect();
        let peers = peers
            .iter()
            .enumerate()
            .map(|(from, &id)| {
                let incoming = (from != me).then(|| {
                    // SAFETY: as above, for the consumers.
                    Consumer::new(unsafe { segment.ring(from, me) })
                });
                ShmPeer { id, presence: Presence::Present, access: Access::Unknown, incoming }
            })
            .collect();
        let limits = Limits {
            eager_bytes_max: segment.eager_bytes_max(),
            chunk_bytes_max: (frame_bytes_max(layout.ring_bytes) - ANNOUNCE_BYTES) as u32,
        };
        Self {
            slots: slots.into(),
            base,
            outgoing,
            active: Vec::new(),
            cursor: 0,
            burst: 0,
            received: false,
            row: 0,
            bell: 0,
            peers,
            events: VecDeque::new(),
            leaving: 0,
            closed: false,
            limits,
            segment,
        }
    }

    /// The segment.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Local index of a rank of this node, the own one included.
    pub fn index_of(&self, peer: PeerId) -> Option<usize> {
        self.peers.iter().position(|known| known.id == peer)
    }

    /// Were the rings from these peers (ascending) empty, in whatever order one looks? A ring that
    /// somebody else fills does not matter.
    pub fn is_empty_from(&mut self, peers: &[PeerId]) -> bool {
        self.poll_bell();
        let waits = |ring: &Active| peers.binary_search(&ring.from).is_ok() && ring.ring.is_ready();
        !self.active.iter().any(waits)
    }

    /// Is there anything to poll for? A load for each ring, and nothing is changed.
    #[inline]
    pub fn has_news(&self) -> bool {
        // [bell] only a hint here: `poll_bell` loads again.
        let bell = self.segment.bell(self.segment.me()).rings.load(Ordering::Relaxed);
        bell != self.bell || self.active.iter().any(|active| active.ring.is_ready())
    }

    /// Does this transport reach the peer?
    #[inline]
    pub fn reaches(&self, peer: PeerId) -> bool {
        self.slot(peer).is_some()
    }

    /// The peer does not come back here: it is not reached in this way any more.
    pub fn forget(&mut self, peer: PeerId) {
        let Some(index) = self.local_index(peer) else { return };
        self.lose(index, true, String::new());
        self.events.retain(|event| !matches!(event, Event::Down { peer: id, .. } if *id == peer));
        self.slots[(peer.0 - self.base) as usize] = NOBODY;
    }

    #[inline]
    fn slot(&self, peer: PeerId) -> Option<usize> {
        let slot = *self.slots.get(peer.0.wrapping_sub(self.base) as usize)?;
        (slot != NOBODY).then_some(slot as usize)
    }

    fn local_index(&self, peer: PeerId) -> Option<usize> {
        self.slot(peer).map(|slot| self.outgoing[slot].to)
    }

    /// The ring to this peer, if it is in use.
    #[inline(always)]
    fn ring_in_use(&mut self, to: PeerId) -> Option<&mut Producer<Raw>> {
        let slot = self.slot(to)?;
        let outgoing = self.outgoing.get_mut(slot).filter(|one| one.link == RingLink::Announced)?;
        self.row = 0;
        if core::mem::take(&mut self.received) {
            outgoing.ring.expect_waiting_consumer();
        }
        Some(&mut outgoing.ring)
    }

    /// A short frame with a header in words. False: nothing has happened, `send` knows why.
    #[inline(always)]
    pub fn send_words(&mut self, to: PeerId, header: [u64; 4], payload: &[u8]) -> bool {
        self.ring_in_use(to).is_some_and(|ring| ring.try_push_words(header, payload))
    }

    /// The same for a header of one word and a payload in two pieces.
    #[inline(always)]
    pub fn send_pieces(&mut self, to: PeerId, word: u64, first: &[u8], second: &[u8]) -> bool {
        self.ring_in_use(to).is_some_and(|ring| ring.try_push_pieces(word, first, second))
    }

    /// The oldest frame of the ring that had the last one, which is the only one most often.
    /// `None`: `peek` knows more.
    #[inline(always)]
    pub fn peek_active_rings(&mut self) -> Option<Incoming> {
        let active = self.active.get_mut(self.cursor)?;
        let (start, len) = active.ring.peek().ok()??;
        Some(Incoming { from: active.from, start, len })
    }

    /// The first frame to a peer: let it know that there is a ring to poll.
    #[cold]
    #[inline(never)]
    fn announce(&mut self, slot: usize) {
        let (me, to) = (self.segment.me(), self.outgoing[slot].to);
        self.outgoing[slot].link = RingLink::Announced;
        // [bell] the bit, then the bell.
        self.segment.bitmap(to)[me / 64].fetch_or(1 << (me % 64), Ordering::Release);
        self.segment.bell(to).rings.fetch_add(1, Ordering::Release);
    }

    #[cold]
    #[inline(never)]
    fn open(&mut self, slot: usize) -> bool {
        if self.outgoing[slot].link == RingLink::Closed || self.closed {
            return false;
        }
        self.segment.warm(self.segment.me(), self.outgoing[slot].to);
        true
    }

    /// A stream of frames has been drained.
    #[cold]
    #[inline(never)]
    fn let_stream_gather(&mut self) {
        self.row = 0;
        let since = ticks();
        while ticks().wrapping_sub(since) < LEFT_ALONE_TICKS {
            core::hint::spin_loop();
        }
    }

    /// Has anybody announced himself or left since we looked last?
    #[inline]
    fn poll_bell(&mut self) -> bool {
        // [bell] the bits of those who rang are visible.
        let rings = self.segment.bell(self.segment.me()).rings.load(Ordering::Acquire);
        if rings == self.bell {
            return false;
        }
        self.bell = rings;
        self.answer_bell()
    }

    #[cold]
    #[inline(never)]
    fn answer_bell(&mut self) -> bool {
        let mut found = false;
        for index in 0..self.peers.len() {
            found |= self.admit(index);
            let peer = &mut self.peers[index];
            let left = self.segment.rank(index).state.load(Ordering::Acquire) == STATE_LEFT;
            if left && peer.presence == Presence::Present && index != self.segment.me() {
                peer.presence = Presence::Leaving;
                self.leaving += 1;
                // Its frames may have come after we looked at its bit.
                found |= self.admit(index);
            }
        }
        found
    }

    /// Poll the ring of this rank from now on, if it has announced itself.
    fn admit(&mut self, index: usize) -> bool {
        let me = self.segment.me();
        let bits = self.segment.bitmap(me)[index / 64].load(Ordering::Acquire);
        if bits & (1 << (index % 64)) == 0 {
            return false;
        }
        let peer = &mut self.peers[index];
        let Some(ring) = peer.incoming.take() else { return false };
        let from = peer.id;
        self.segment.warm(index, me);
        self.active.push(Active { ring, from, index });
        true
    }

    /// The ring at the cursor is empty (or damaged).
    #[inline(never)]
    fn peek_idle_rings(&mut self) -> Option<Incoming> {
        let mut damaged = None;
        for _ in 0..self.active.len() {
            let active = &mut self.active[self.cursor];
            match active.ring.peek() {
                Ok(Some((start, len))) => {
                    return Some(Incoming { from: active.from, start, len });
                }
                Ok(None) => {}
                Err(damage) => {
                    damaged = Some((active.index, damage));
                    break;
                }
            }
            self.burst = 0;
            self.cursor += 1;
            if self.cursor >= self.active.len() {
                self.cursor = 0;
            }
        }
        if let Some((index, damage)) = damaged {
            self.lose(index, false, format!("its shared memory is damaged: {damage}"));
            return self.peek();
        }
        if self.poll_bell() {
            return self.peek();
        }
        if self.row >= STREAM {
            self.let_stream_gather();
        }
        None
    }

    /// The next ring's turn.
    #[cold]
    #[inline(never)]
    fn next_turn(&mut self) {
        self.burst = 0;
        self.poll_bell();
        self.cursor += 1;
        if self.cursor >= self.active.len() {
            self.cursor = 0;
        }
    }

    /// The list of rings has changed since `peek` (a peer was lost, perhaps this one).
    #[cold]
    #[inline(never)]
    fn consume_elsewhere(&mut self, incoming: Incoming) {
        if let Some(active) = self.active.iter_mut().find(|active| active.from == incoming.from) {
            active.ring.consume();
        }
    }

    #[cold]
    #[inline(never)]
    fn lose(&mut self, index: usize, said_goodbye: bool, reason: String) {
        let peer = &mut self.peers[index];
        if peer.presence == Presence::Gone {
            return;
        }
        if peer.presence == Presence::Leaving {
            self.leaving -= 1;
        }
        peer.presence = Presence::Gone;
        let id = peer.id;
        if let Some(place) = self.active.iter().position(|active| active.index == index) {
            self.active.remove(place);
            // A frame that `peek` has handed out stays the one that it returns.
            if place < self.cursor {
                self.cursor -= 1;
            } else if place == self.cursor {
                self.burst = 0;
            }
            if self.cursor >= self.active.len() {
                self.cursor = 0;
            }
        }
        if let Some(slot) = self.slot(id) {
            self.outgoing[slot].link = RingLink::Closed;
        }
        self.events.push_back(Event::Down { peer: id, said_goodbye, reason });
    }

    /// Report who has left once its last frame is consumed.
    #[cold]
    fn farewells(&mut self) {
        for index in 0..self.peers.len() {
            if self.peers[index].presence != Presence::Leaving {
                continue;
            }
            let ring = self.active.iter().find(|active| active.index == index);
            if ring.is_none_or(|active| !active.ring.is_ready()) {
                self.lose(index, true, "it has finished".to_owned());
            }
        }
    }

    /// Look whether local processes have died. A system call for each peer: for the slow path,
    /// once a second or when something seems to be stuck.
    pub fn check_peers(&mut self) {
        for index in 0..self.peers.len() {
            if index == self.segment.me() || self.peers[index].presence != Presence::Present {
                continue;
            }
            let rank_line = self.segment.rank(index);
            let attached = rank_line.state.load(Ordering::Acquire) == STATE_ATTACHED;
            let pid = rank_line.pid.load(Ordering::Relaxed);
            // A goodbye between the two looks is not a death: look again.
            if attached
                && !self.segment.is_alive(index)
                && rank_line.state.load(Ordering::Acquire) == STATE_ATTACHED
            {
                let reason = format!("process {pid} of this node has died");
                self.lose(index, false, reason);
            }
        }
    }
}

impl Transport for Shm {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    #[inline]
    fn send(&mut self, to: PeerId, header: &[u8], payload: Payload<'_>, taken: usize) -> Sent {
        debug_assert_eq!(taken, 0, "shm takes all or nothing");
        self.row = 0;
        let Some(slot) = self.slot(to) else { return Sent::Down };
        let first = self.outgoing[slot].link != RingLink::Announced;
        if first && !self.open(slot) {
            return Sent::Down;
        }
        let ring = &mut self.outgoing[slot].ring;
        let pushed = match payload {
            Payload::Bytes(bytes) => ring.try_push(header, bytes),
            Payload::Pack(bytes, fill) => ring.try_push_with(header, bytes, fill),
        };
        if first && pushed {
            self.announce(slot);
        }
        if pushed { Sent::Accepted } else { Sent::Full(0) }
    }

    #[inline(always)]
    fn peek(&mut self) -> Option<Incoming> {
        self.peek_active_rings().or_else(|| self.peek_idle_rings())
    }

    #[inline(always)]
    fn consume(&mut self, incoming: Incoming) {
        self.received = true;
        self.row += 1;
        match self.active.get_mut(self.cursor) {
            Some(active) if active.from == incoming.from => active.ring.consume(),
            _ => return self.consume_elsewhere(incoming),
        }
        self.burst += 1;
        if self.burst >= BURST {
            self.next_turn();
        }
    }

    #[inline]
    fn event(&mut self) -> Option<Event> {
        if self.leaving > 0 {
            self.farewells();
        }
        self.events.pop_front()
    }

    #[inline]
    fn flush(&mut self) -> bool {
        true
    }

    #[inline]
    unsafe fn expose(
        &mut self,
        to: PeerId,
        id: u64,
        bytes: Range<usize>,
        _home: Option<Range<usize>>,
    ) -> bool {
        match self.local_index(to) {
            Some(to) => crate::transports::shm::exports::expose(&self.segment, to, id, bytes),
            None => false,
        }
    }

    #[inline]
    fn withdraw(&mut self, to: PeerId, id: u64) {
        if let Some(to) = self.local_index(to) {
            crate::transports::shm::exports::withdraw(&self.segment, to, id);
        }
    }

    #[inline]
    unsafe fn pull(
        &mut self,
        from: PeerId,
        id: u64,
        offset: usize,
        into: *mut u8,
        len: usize,
    ) -> Pulled {
        let Some(from) = self.local_index(from) else { return Pulled::Refused };
        let access = &mut self.peers[from].access;
        // SAFETY: the caller's promise.
        unsafe {
            crate::transports::shm::exports::pull(
                &self.segment,
                access,
                from,
                id,
                offset,
                into,
                len,
            )
        }
    }

    fn close(&mut self) -> bool {
        if !self.closed {
            self.closed = true;
            let me = self.segment.me();
            // [state] every frame of ours was published before.
            self.segment.rank(me).state.store(STATE_LEFT, Ordering::Release);
            for slot in 0..self.outgoing.len() {
                let to = self.outgoing[slot].to;
                self.outgoing[slot].link = RingLink::Closed;
                self.segment.bell(to).rings.fetch_add(1, Ordering::Release);
            }
        }
        true
    }
}
