//! Simulated transports: one wire for each ordered pair of processes.
//!
//! The network is strict about the contract of `host.rs`: a half-taken frame must be offered
//! The network is strict about the contract of `host.rs`: a half-taken frame must be offered again
//! unchanged, from where it stopped. Frames keep their order, payload frames (`Data`) do not.
//! Between sets a connection has epochs; each end learns of its end and of the next one by its own
//! events.

use crate::options::{Options, Planted};
use rustbtl_fragments::host::Transmit;
use rustbtl_fragments::wire::{FrameType, Header};
use rustbtl_seeds::Prng;
use std::collections::{BTreeMap, VecDeque};

/// What an end of a connection learns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The connection is lost.
    Down,
    /// There is a new one: its epoch, and the incarnation at the other end.
    Up(u32, u16),
}

/// One end of a connection between sets.
#[derive(Clone, Debug, Default)]
pub struct End {
    /// The epoch that this end believes to be open.
    pub view: Option<u32>,
    /// What it has not learned yet.
    pub events: VecDeque<Event>,
}

#[derive(Clone, Debug)]
struct Partial {
    header: Vec<u8>,
    /// The bytes taken.
    bytes: Vec<u8>,
    length: usize,
}

/// One direction.
#[derive(Clone, Debug, Default)]
pub struct Wire {
    /// Frames on their way.
    pub frames: VecDeque<Vec<u8>>,
    bytes: usize,
    partial: Option<Partial>,
    /// Frames that were put in and taken out (or lost), but for those of checkpoints.
    pub passed: [u64; 2],
}

/// A connection between two processes of different sets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Connection {
    /// Counts connections.
    pub epoch: u32,
    /// False: lost, not yet opened again.
    pub alive: bool,
}

/// Memory on offer for pulling.
pub type Exposed = BTreeMap<(usize, usize, u64), Vec<u8>>;

/// All wires.
#[derive(Debug)]
pub struct Network {
    ranks: usize,
    options: Options,
    prng: Prng,
    wires: Vec<Wire>,
    ends: Vec<End>,
    connections: Vec<Connection>,
    /// (owner, for whom, send id) → bytes.
    pub exposed: Exposed,
    /// Incarnation of each rank's set.
    pub incarnations: Vec<u16>,
    /// Planted: frames of messages that are offered now are dropped.
    pub swallow: bool,
    /// (from, to): what had arrived of a set that has failed, until the receiver learns of that.
    pub late_frames: BTreeMap<(usize, usize), VecDeque<Vec<u8>>>,
}

impl Network {
    /// A network in which all connections are open.
    pub fn new(options: &Options, prng: Prng) -> Self {
        let ranks = options.ranks();
        let open = End { view: Some(0), events: VecDeque::new() };
        Self {
            ranks,
            options: options.clone(),
            prng,
            wires: vec![Wire::default(); ranks * ranks],
            ends: vec![open; ranks * ranks],
            connections: vec![Connection { epoch: 0, alive: true }; ranks * ranks],
            exposed: Exposed::new(),
            incarnations: vec![0; ranks],
            swallow: false,
            late_frames: BTreeMap::new(),
        }
    }

    /// The wire from one process to another.
    pub fn wire(&mut self, from: usize, to: usize) -> &mut Wire {
        &mut self.wires[from * self.ranks + to]
    }

    /// What `at` knows of its connection with `other`.
    pub fn end(&mut self, at: usize, other: usize) -> &mut End {
        &mut self.ends[at * self.ranks + other]
    }

    /// The connection of two processes.
    pub fn connection(&mut self, a: usize, b: usize) -> &mut Connection {
        &mut self.connections[a.min(b) * self.ranks + a.max(b)]
    }

    /// Connections differ in their limits: a process may be restarted elsewhere.
    pub fn limits_shift(&self, a: usize, b: usize) -> u32 {
        self.connections[a.min(b) * self.ranks + a.max(b)].epoch % 3
    }

    /// Does what `at` sends to `other` reach the connection that is open now?
    pub fn is_current(&mut self, at: usize, other: usize) -> bool {
        let connection = *self.connection(at, other);
        connection.alive && self.end(at, other).view == Some(connection.epoch)
    }

    /// Is there room for all of a frame of this length, and is none half taken?
    pub fn has_room(&mut self, from: usize, to: usize, length: usize) -> bool {
        let room_bytes = self.options.room_bytes;
        let current = self.is_current(from, to);
        let wire = self.wire(from, to);
        current && wire.partial.is_none() && wire.bytes + length <= room_bytes
    }

    /// A frame is offered. `payload` gives the bytes of a range of the payload, now.
    pub fn offer(
        &mut self,
        from: usize,
        to: usize,
        header: &[u8],
        payload: &[u8],
        taken: usize,
    ) -> Transmit {
        let length = header.len() + payload.len();
        let declared = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        assert_eq!(declared as usize, length, "length field of a frame");
        if !self.is_current(from, to) {
            // Lost, and the sender does not know it yet (or knows, and offers all the same).
            self.wire(from, to).partial = None;
            let void = self.end(from, to).view.is_some() && self.prng.chance(50);
            return if void { Transmit::Accepted } else { Transmit::Down };
        }
        if self.swallow && header[5] == FrameType::Eager as u8 && taken == 0 {
            return Transmit::Accepted;
        }
        let (room_bytes, may_split) = (self.options.room_bytes, self.options.partial);
        let refused = self.prng.chance(self.options.refusals);
        let draw = self.prng.bits() as usize;
        let bug = self.options.planted;
        let wire = self.wire(from, to);
        match &wire.partial {
            Some(partial) => {
                assert_eq!(taken, partial.bytes.len(), "a half-taken frame goes on at `taken`");
                assert_eq!(header, partial.header, "only the half-taken frame may be offered");
                assert_eq!(length, partial.length, "a half-taken frame keeps its length");
            }
            None => assert_eq!(taken, 0, "no frame is half taken"),
        }
        if refused {
            return Transmit::Full(taken);
        }
        let room = room_bytes.saturating_sub(wire.bytes);
        let whole: Vec<u8> = header.iter().chain(payload).copied().collect();
        if length - taken <= room || wire.frames.is_empty() && !may_split {
            let mut frame = wire.partial.take().map(|partial| partial.bytes).unwrap_or_default();
            if bug == Some(Planted::SendBufferReused) {
                frame.clear();
                frame.extend_from_slice(&whole[..taken]);
                frame.truncate(taken.saturating_sub(1));
                frame.resize(taken, 0);
            }
            frame.extend_from_slice(&whole[taken..]);
            wire.bytes += length;
            wire.push(frame, draw, bug);
            return Transmit::Accepted;
        }
        if !may_split || room == 0 {
            return Transmit::Full(taken);
        }
        let upto = taken + draw % (room + 1);
        if upto == taken {
            return Transmit::Full(taken);
        }
        let mut bytes = wire.partial.take().map(|partial| partial.bytes).unwrap_or_default();
        bytes.extend_from_slice(&whole[taken..upto]);
        wire.partial = Some(Partial { header: header.to_vec(), bytes, length });
        Transmit::Full(upto)
    }

    /// Take a frame off a wire; payload frames in any order, the others in theirs.
    pub fn take(&mut self, from: usize, to: usize) -> Option<Vec<u8>> {
        let reorder = self.prng.chance(self.options.reorder);
        let draw = self.prng.bits() as usize;
        if self.options.slow_wire == Some((from, to)) && !self.prng.chance(5) {
            return None;
        }
        let wire = self.wire(from, to);
        if wire.frames.is_empty() {
            return None;
        }
        let mut at = 0;
        if reorder {
            let first = wire.frames.iter().position(|frame| !is(frame, FrameType::Data));
            let free = |at: &usize| Some(*at) == first || is(&wire.frames[*at], FrameType::Data);
            let candidates: Vec<usize> = (0..wire.frames.len()).filter(free).collect();
            at = candidates[draw % candidates.len()];
        }
        let frame = wire.frames.remove(at)?;
        wire.bytes -= frame.len();
        wire.passed[1] += u64::from(!is(&frame, FrameType::Checkpoint));
        Some(frame)
    }

    /// The next frame of a failed process.
    pub fn take_late_frames(&mut self, from: usize, to: usize) -> Option<Vec<u8>> {
        self.late_frames.get_mut(&(from, to))?.pop_front()
    }

    /// Where things stand, for messages.
    pub fn describe(&self) -> String {
        let mut out = format!("{:?}\nincarnations {:?}\n", self.options, self.incarnations);
        for (at, wire) in self.wires.iter().enumerate() {
            let (from, to) = (at / self.ranks, at % self.ranks);
            let end = &self.ends[at];
            let connection = self.connections[from.min(to) * self.ranks + from.max(to)];
            if !wire.is_quiescent() || !end.events.is_empty() || !connection.alive {
                let frames: Vec<_> = wire.frames.iter().map(|f| Header::decode(f)).collect();
                out += &format!("{from}->{to}: {connection:?} {end:?} {frames:?}\n");
            }
        }
        out
    }

    /// Everything on its way between two processes is lost. Gives what was under way.
    pub fn clear(&mut self, from: usize, to: usize) -> Vec<Vec<u8>> {
        let wire = self.wire(from, to);
        let passed = [wire.passed[0]; 2];
        let frames = core::mem::replace(wire, Wire { passed, ..Wire::default() }).frames;
        frames.into()
    }
}

/// Is this frame of a kind?
pub fn is(frame: &[u8], kind: FrameType) -> bool {
    Header::decode(frame).is_ok_and(|header| header.kind == kind)
}

impl Wire {
    /// Nothing under way and no frame half taken?
    pub fn is_quiescent(&self) -> bool {
        self.frames.is_empty() && self.partial.is_none()
    }

    fn push(&mut self, frame: Vec<u8>, draw: usize, bug: Option<Planted>) {
        self.passed[0] += u64::from(!is(&frame, FrameType::Checkpoint));
        let eager = is(&frame, FrameType::Eager) || is(&frame, FrameType::Announce);
        match bug {
            Some(Planted::FrameLost) if eager && draw.is_multiple_of(50) => {
                self.bytes -= frame.len();
            }
            Some(Planted::DoubleGrant) if is(&frame, FrameType::Grant) => {
                self.bytes += frame.len();
                self.frames.push_back(frame.clone());
                self.frames.push_back(frame);
            }
            Some(Planted::EagerOvertakes)
                if eager && self.frames.back().is_some_and(|last| is(last, FrameType::Eager)) =>
            {
                let at = self.frames.len() - 1;
                self.frames.insert(at, frame);
            }
            Some(Planted::TokenOvertakes) if is(&frame, FrameType::Checkpoint) => {
                let first = self.frames.iter().position(|other| !is(other, FrameType::Checkpoint));
                self.frames.insert(first.unwrap_or(self.frames.len()), frame);
            }
            _ => self.frames.push_back(frame),
        }
    }

    /// Nothing but frames of a checkpoint under way?
    pub fn is_quiescent_but_for_checkpoints(&self) -> bool {
        let half =
            self.partial.as_ref().is_none_or(|half| half.header[5] == FrameType::Checkpoint as u8);
        half && self.frames.iter().all(|frame| is(frame, FrameType::Checkpoint))
    }

    /// Is a frame half taken?
    pub fn is_half(&self) -> bool {
        self.partial.is_some()
    }

    /// Planted: a frame that jumps the queue of its sender.
    pub fn inject(&mut self, frame: Vec<u8>) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }
}
