//! Drives the ends of a fabric and records what they deliver.

use crate::{Fabric, id};
use rustbtl_component::transports::{Event, Payload, Sent, Transport};
use rustbtl_fragments::ids::{Incarnation, PeerId};
use rustbtl_fragments::payload_digest::PayloadDigest;
use rustbtl_fragments::wire::{FrameType, HEADER_BYTES, Header};
use std::time::{Duration, Instant};

/// How long an operation may take before the test fails. Only a hang reaches it.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Header of frame number `sequence` of a pair, for a payload of this many bytes.
pub fn frame(from: usize, to: usize, sequence: u64, bytes: usize) -> [u8; HEADER_BYTES] {
    Header {
        length: (HEADER_BYTES + bytes) as u32,
        kind: FrameType::Data,
        flags: 0,
        context: from as u32,
        source: to as u32,
        tag: -3,
        from: Incarnation(0),
        to: Incarnation(0),
        sequence,
        digest: PayloadDigest::NONE,
    }
    .encode()
}

/// Its payload: every byte depends on the pair, the number and the place.
pub fn payload(from: usize, to: usize, sequence: u64, bytes: usize) -> Vec<u8> {
    let seed = (from as u64 * 1009 + to as u64 * 31 + sequence).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut state = seed | 1;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes);
    out
}

/// A received frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Who sent it.
    pub from: PeerId,
    /// Its number.
    pub sequence: u64,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// Several ends, driven by one thread.
pub struct Driver<T> {
    /// The transports; `None` after a crash.
    pub ends: Vec<Option<T>>,
    /// What arrived where.
    pub inbox: Vec<Vec<Arrival>>,
    /// What was reported where.
    pub events: Vec<Vec<Event>>,
    next: Vec<Vec<u64>>,
}

impl<T: Transport> Driver<T> {
    /// `n` connected ends.
    pub fn new<F: Fabric<End = T>>(fabric: &F, n: usize) -> Self {
        Self::of(fabric.ends(n))
    }

    /// These ends.
    pub fn of(ends: Vec<T>) -> Self {
        let n = ends.len();
        Self {
            ends: ends.into_iter().map(Some).collect(),
            inbox: vec![Vec::new(); n],
            events: vec![Vec::new(); n],
            next: vec![vec![0; n]; n],
        }
    }

    /// The transport of an end that has not crashed.
    pub fn end(&mut self, index: usize) -> &mut T {
        self.ends[index].as_mut().expect("this end has crashed")
    }

    /// Flush one end, and record its events and its next frame. True: a frame arrived.
    pub fn step(&mut self, index: usize) -> bool {
        let Some(end) = self.ends[index].as_mut() else { return false };
        end.flush();
        while let Some(event) = end.event() {
            self.events[index].push(event);
        }
        let Some(incoming) = end.peek() else { return false };
        // SAFETY: the frame is valid until it is consumed.
        let bytes = unsafe { std::slice::from_raw_parts(incoming.start, incoming.len) };
        let header = Header::decode(bytes).expect("a frame that nobody sent");
        assert_eq!(header.source as usize, index, "arrived at the wrong end");
        assert_eq!(id(header.context as usize), incoming.from, "attributed to the wrong peer");
        let arrival = Arrival {
            from: incoming.from,
            sequence: header.sequence,
            payload: bytes[HEADER_BYTES..].to_vec(),
        };
        end.consume(incoming);
        self.inbox[index].push(arrival);
        true
    }

    /// All ends once.
    pub fn step_all(&mut self) -> bool {
        (0..self.ends.len()).fold(false, |any, index| self.step(index) | any)
    }

    /// Drive all ends until the condition holds.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            if !self.step_all() {
                std::thread::yield_now();
            }
            assert!(start.elapsed() < TIMEOUT, "stuck: {what}; events: {:?}", self.events);
        }
    }

    /// Offer the next frame of a pair once; `taken` as in the trait.
    pub fn offer(&mut self, from: usize, to: usize, bytes: usize, taken: usize) -> Sent {
        let sequence = self.next[from][to];
        let header = frame(from, to, sequence, bytes);
        let data = payload(from, to, sequence, bytes);
        let sent = self.end(from).send(id(to), &header, Payload::Bytes(&data), taken);
        if sent == Sent::Accepted {
            self.next[from][to] += 1;
        }
        sent
    }

    /// Send the next frame of a pair, driving all ends while there is no room.
    pub fn send(&mut self, from: usize, to: usize, bytes: usize) {
        let mut taken = 0;
        self.until("sending", |driver| match driver.offer(from, to, bytes, taken) {
            Sent::Accepted => true,
            Sent::Full(n) => {
                assert!(n >= taken && n < HEADER_BYTES + bytes, "Full({n}) after {taken}");
                taken = n;
                false
            }
            Sent::Down => panic!("down: {:?}", driver.events[from]),
        });
    }

    /// As [`Self::send`], with a packed payload.
    pub fn send_packed(&mut self, from: usize, to: usize, bytes: usize) {
        let sequence = self.next[from][to];
        let header = frame(from, to, sequence, bytes);
        let data = payload(from, to, sequence, bytes);
        let mut calls = 0;
        self.until("sending packed", |driver| {
            let mut pack = |target: *mut u8, room: usize| {
                assert_eq!(room, data.len());
                calls += 1;
                // SAFETY: the transport gives room for exactly these bytes.
                unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), target, room) };
            };
            let packed = Payload::Pack(bytes, &mut pack);
            match driver.end(from).send(id(to), &header, packed, 0) {
                Sent::Accepted => true,
                Sent::Full(0) => false,
                other => panic!("{other:?} for a packed payload"),
            }
        });
        assert_eq!(calls, 1, "the payload is packed once, and only when there is room");
        self.next[from][to] += 1;
    }

    /// Frames sent so far from one end to another.
    pub fn sent(&self, from: usize, to: usize) -> u64 {
        self.next[from][to]
    }

    /// Drive until everything that was sent to `to` has arrived, and check it.
    pub fn settle(&mut self, to: usize) {
        let expected: u64 = self.next.iter().map(|row| row[to]).sum();
        self.until("arrival", |driver| driver.inbox[to].len() as u64 >= expected);
        self.check(to);
    }

    /// Everything that arrived at `to` so far is in order and complete.
    pub fn check(&self, to: usize) {
        let mut next = vec![0; self.ends.len()];
        for arrival in &self.inbox[to] {
            let from = (0..self.ends.len()).find(|&i| id(i) == arrival.from).expect("a peer");
            assert_eq!(arrival.sequence, next[from], "order of {from} -> {to}");
            next[from] += 1;
            let expected = payload(from, to, arrival.sequence, arrival.payload.len());
            assert!(arrival.payload == expected, "bytes of {from} -> {to} #{}", arrival.sequence);
        }
    }

    /// What end `at` reported about the loss of peer `of`.
    pub fn loss(&self, at: usize, of: usize) -> Option<(bool, &str)> {
        self.events[at].iter().find_map(|event| match event {
            Event::Down { peer, said_goodbye, reason } if *peer == id(of) => {
                Some((*said_goodbye, reason.as_str()))
            }
            _ => None,
        })
    }
}
