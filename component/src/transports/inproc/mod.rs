//! In-process twin of the other transports over heap rings: for tests, and as the plainest reading
//! of the contract. Its ends may be driven by one thread or by several.

use crate::transports::{Event, Incoming, Limits, Payload, Pulled, Sent, Transport};
use core::ops::Range;
use core::sync::atomic::{AtomicU8, Ordering};
use rustbtl_fragments::ids::PeerId;
use rustbtl_fragments::wire::ANNOUNCE_BYTES;
use rustbtl_ring::{Consumer, Heap, Producer, frame_bytes_max, heap};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

const PRESENT: u8 = 0;
const LEFT: u8 = 1;
const DEAD: u8 = 2;

/// (owner, id) → (address, bytes, to).
type Exports = BTreeMap<(usize, u64), (usize, usize, usize)>;

/// What all ends share.
#[derive(Debug)]
struct Hub {
    states: Vec<AtomicU8>,
    exports: Mutex<Exports>,
}

impl Hub {
    fn exports(&self) -> impl std::ops::DerefMut<Target = Exports> {
        self.exports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct InprocPeer {
    id: PeerId,
    output: Producer<Heap>,
    input: Consumer<Heap>,
    /// We have reported its end.
    gone: bool,
}

/// One end.
#[derive(Debug)]
pub struct Inproc {
    me: usize,
    hub: Arc<Hub>,
    /// By index; our own place is empty.
    peers: Vec<Option<InprocPeer>>,
    turn: usize,
    /// The ring whose frame is handed out.
    current: Option<usize>,
    events: VecDeque<Event>,
    limits: Limits,
    closed: bool,
}

/// Ends that reach each other; number `i` belongs to `ids[i]`.
pub fn connected(ids: &[PeerId], ring_bytes: usize) -> Vec<Inproc> {
    let n = ids.len();
    let hub = Arc::new(Hub {
        states: (0..n).map(|_| AtomicU8::new(PRESENT)).collect(),
        exports: Mutex::default(),
    });
    let chunk = (frame_bytes_max(ring_bytes) - ANNOUNCE_BYTES) as u32;
    let limits = Limits { eager_bytes_max: chunk.min(4096), chunk_bytes_max: chunk };
    let mut ends: Vec<Inproc> = (0..n)
        .map(|me| Inproc {
            me,
            hub: Arc::clone(&hub),
            peers: (0..n).map(|_| None).collect(),
            turn: 0,
            current: None,
            events: VecDeque::new(),
            limits,
            closed: false,
        })
        .collect();
    for i in 0..n {
        for j in 0..i {
            let (to_j, at_j) = heap(ring_bytes);
            let (to_i, at_i) = heap(ring_bytes);
            ends[i].peers[j] =
                Some(InprocPeer { id: ids[j], output: to_j, input: at_i, gone: false });
            ends[j].peers[i] =
                Some(InprocPeer { id: ids[i], output: to_i, input: at_j, gone: false });
        }
    }
    ends
}

impl Inproc {
    fn find(&self, peer: PeerId) -> Option<usize> {
        self.peers.iter().position(|p| p.as_ref().is_some_and(|p| p.id == peer))
    }
}

impl Transport for Inproc {
    fn name(&self) -> &'static str {
        "inproc"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn send(&mut self, to: PeerId, header: &[u8], payload: Payload<'_>, _taken: usize) -> Sent {
        let closed = self.closed;
        let Some(at) = self.find(to) else { return Sent::Down };
        let Some(peer) = self.peers[at].as_mut() else { return Sent::Down };
        if peer.gone || closed {
            return Sent::Down;
        }
        let pushed = match payload {
            Payload::Bytes(bytes) => peer.output.try_push(header, bytes),
            Payload::Pack(bytes, fill) => peer.output.try_push_with(header, bytes, fill),
        };
        if pushed { Sent::Accepted } else { Sent::Full(0) }
    }

    fn peek(&mut self) -> Option<Incoming> {
        let n = self.peers.len();
        for step in 0..n {
            let at = self.current.unwrap_or((self.turn + step) % n);
            let Some(peer) = self.peers[at].as_mut() else { continue };
            if let Ok(Some((start, len))) = peer.input.peek() {
                self.current = Some(at);
                return Some(Incoming { from: peer.id, start, len });
            }
        }
        None
    }

    fn consume(&mut self, _incoming: Incoming) {
        let Some(at) = self.current.take() else { return };
        if let Some(peer) = self.peers[at].as_mut() {
            peer.input.consume();
        }
        self.turn = at + 1;
    }

    fn event(&mut self) -> Option<Event> {
        for (at, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer.as_mut() else { continue };
            // [end] what it sent before is visible.
            let state = self.hub.states[at].load(Ordering::Acquire);
            if state == PRESENT || peer.gone || peer.input.is_ready() {
                continue;
            }
            peer.gone = true;
            let said_goodbye = state == LEFT;
            let reason = if said_goodbye { "it has finished" } else { "its end was dropped" };
            let reason = reason.to_owned();
            self.events.push_back(Event::Down { peer: peer.id, said_goodbye, reason });
        }
        self.events.pop_front()
    }

    fn flush(&mut self) -> bool {
        true
    }

    unsafe fn expose(
        &mut self,
        to: PeerId,
        id: u64,
        bytes: Range<usize>,
        _home: Option<Range<usize>>,
    ) -> bool {
        let Some(to) = self.find(to) else { return false };
        let mut exports = self.hub.exports();
        let slot = |id: u64| id as u32;
        if exports.keys().any(|&(owner, other)| owner == self.me && slot(other) == slot(id)) {
            return false;
        }
        exports.insert((self.me, id), (bytes.start, bytes.len(), to));
        true
    }

    fn withdraw(&mut self, to: PeerId, id: u64) {
        let Some(to) = self.find(to) else { return };
        let mut exports = self.hub.exports();
        if exports.get(&(self.me, id)).is_some_and(|export| export.2 == to) {
            exports.remove(&(self.me, id));
        }
    }

    unsafe fn pull(
        &mut self,
        from: PeerId,
        id: u64,
        offset: usize,
        into: *mut u8,
        len: usize,
    ) -> Pulled {
        let Some(from) = self.find(from) else { return Pulled::Refused };
        let exports = self.hub.exports();
        let Some(&(start, bytes, to)) = exports.get(&(from, id)) else { return Pulled::Refused };
        if to != self.me || offset.checked_add(len).is_none_or(|end| end > bytes) {
            return Pulled::Refused;
        }
        let start = (start + offset) as *const u8;
        // SAFETY: exposed memory is readable and unchanged until it is withdrawn, which waits for
        // the lock that we hold; `into` is writable by the caller's promise.
        unsafe { core::ptr::copy_nonoverlapping(start, into, len) };
        Pulled::Done
    }

    fn close(&mut self) -> bool {
        self.closed = true;
        // [end] after the last frame.
        self.hub.states[self.me].store(LEFT, Ordering::Release);
        true
    }
}

impl Drop for Inproc {
    fn drop(&mut self) {
        if !self.closed {
            self.hub.states[self.me].store(DEAD, Ordering::Release);
        }
    }
}
