//! A network in memory for what runs beside one: deterministic, and hard where TCP is.
//!
//! Frames of more than [`WHOLE_BYTES`] are taken in two parts; a frame that comes between them is a
//! panic. It has no room now and then. A seed decides.

use rustbtl_component::transports::{
    Carrier, Event, Incoming, Limits, Network, Opened, Payload, Sent, Transport,
};
use rustbtl_fragments::ids::PeerId;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::RawFd;
use std::rc::Rc;

/// Longer frames are taken in two parts.
pub const WHOLE_BYTES: usize = 300;
/// Of a longer frame, so much is taken first.
const FIRST_PART: usize = 100;

enum Item {
    Frame(Vec<u8>),
    Goodbye,
}

#[derive(Default)]
struct Shared {
    random: u64,
    /// Ordered pairs between which there was a connection, which nobody has opened again.
    lost: Vec<(PeerId, PeerId)>,
    /// Ordered pairs between which there is a connection.
    up: Vec<(PeerId, PeerId)>,
    lines: BTreeMap<(PeerId, PeerId), VecDeque<Item>>,
    events: BTreeMap<PeerId, VecDeque<Event>>,
    /// The header of a frame that is taken in part.
    parts: BTreeMap<(PeerId, PeerId), Vec<u8>>,
    tamper: Option<fn(&mut Vec<u8>, usize) -> Tampered>,
}

/// What happens to a frame that is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tampered {
    /// It waits for its turn.
    Not,
    /// It overtakes all that wait.
    First,
    /// It is lost.
    Lost,
}

impl Shared {
    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    fn is_up(&self, a: PeerId, b: PeerId) -> bool {
        self.up.contains(&(a, b))
    }

    fn was_lost(&self, a: PeerId, b: PeerId) -> bool {
        self.lost.contains(&(a, b))
    }

    fn connect(&mut self, a: PeerId, b: PeerId) {
        if !self.is_up(a, b) && !self.is_up(b, a) {
            for (at, other) in [(a, b), (b, a)] {
                self.up.push((at, other));
                self.lost.retain(|&pair| pair != (at, other));
                self.lines.insert((at, other), VecDeque::new());
                self.events.entry(at).or_default().push_back(Event::Up(other, 0));
            }
        }
    }

    fn end(&mut self, at: PeerId, other: PeerId, said_goodbye: bool, reason: &str) {
        let before = self.up.len();
        self.up.retain(|&pair| pair != (at, other));
        self.parts.remove(&(at, other));
        if self.up.len() < before {
            self.lost.push((at, other));
            let down = Event::Down { peer: other, said_goodbye, reason: reason.to_owned() };
            self.events.entry(at).or_default().push_back(down);
        }
    }

    fn disconnect(&mut self, a: PeerId, b: PeerId, reason: &str) {
        for (at, other) in [(a, b), (b, a)] {
            self.lines.remove(&(at, other));
            self.end(at, other, false, reason);
        }
    }
}

/// What all ends share.
#[derive(Clone, Default)]
pub struct Wires(Rc<RefCell<Shared>>);

impl Wires {
    /// With this seed.
    pub fn new(seed: u64) -> Self {
        let wires = Self::default();
        wires.0.borrow_mut().random = seed.wrapping_mul(0xD134_2543_DE82_EF95) | 1;
        wires
    }

    /// Look at every frame that is sent; the number is of those that wait before it.
    pub fn tamper(&self, tamper: fn(&mut Vec<u8>, usize) -> Tampered) {
        self.0.borrow_mut().tamper = Some(tamper);
    }

    /// An end.
    pub fn end(&self, me: PeerId, limits: Limits) -> Wire {
        Wire { me, wires: self.clone(), limits, held: None, turn: 0 }
    }

    /// A connection breaks, with all that is under way.
    pub fn break_connection(&self, a: PeerId, b: PeerId) {
        self.0.borrow_mut().disconnect(a, b, "the test has broken it");
    }
}

/// One end.
pub struct Wire {
    me: PeerId,
    wires: Wires,
    limits: Limits,
    /// The frame that is handed out.
    held: Option<(PeerId, Vec<u8>)>,
    turn: usize,
}

impl Transport for Wire {
    fn name(&self) -> &'static str {
        "wire"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn send(&mut self, to: PeerId, header: &[u8], payload: Payload<'_>, taken: usize) -> Sent {
        let mut shared = self.wires.0.borrow_mut();
        let pair = (self.me, to);
        if !shared.is_up(self.me, to) {
            return match shared.was_lost(self.me, to) {
                true => Sent::Down,
                false => {
                    shared.connect(self.me, to);
                    Sent::Full(0)
                }
            };
        }
        if let Some(part) = shared.parts.get(&pair) {
            assert!(part == header && taken == FIRST_PART, "a frame in the middle of another");
        } else if shared.draw(4) == 0 {
            return Sent::Full(0);
        } else if header.len() + payload.len() > WHOLE_BYTES && matches!(payload, Payload::Bytes(_))
        {
            shared.parts.insert(pair, header.to_vec());
            return Sent::Full(FIRST_PART);
        }
        shared.parts.remove(&pair);
        let mut frame = header.to_vec();
        match payload {
            Payload::Bytes(bytes) => frame.extend_from_slice(bytes),
            Payload::Pack(bytes, fill) => {
                frame.resize(header.len() + bytes, 0);
                fill(frame[header.len()..].as_mut_ptr(), bytes);
            }
        }
        let tamper = shared.tamper;
        let line = shared.lines.entry(pair).or_default();
        match tamper.map_or(Tampered::Not, |tamper| tamper(&mut frame, line.len())) {
            Tampered::Not => line.push_back(Item::Frame(frame)),
            Tampered::First => line.push_front(Item::Frame(frame)),
            Tampered::Lost => {}
        }
        Sent::Accepted
    }

    fn peek(&mut self) -> Option<Incoming> {
        if self.held.is_none() {
            let mut shared = self.wires.0.borrow_mut();
            let to_me: Vec<PeerId> =
                shared.lines.keys().filter(|pair| pair.1 == self.me).map(|pair| pair.0).collect();
            for step in 0..to_me.len() {
                let from = to_me[(self.turn + step) % to_me.len()];
                let line = shared.lines.get_mut(&(from, self.me)).expect("it was listed");
                match line.pop_front() {
                    Some(Item::Frame(frame)) => {
                        self.turn += step + 1;
                        self.held = Some((from, frame));
                        break;
                    }
                    Some(Item::Goodbye) => shared.end(self.me, from, true, "it has finished"),
                    None => {}
                }
            }
        }
        let (from, frame) = self.held.as_ref()?;
        Some(Incoming { from: *from, start: frame.as_ptr(), len: frame.len() })
    }

    fn consume(&mut self, _incoming: Incoming) {
        self.held = None;
    }

    fn event(&mut self) -> Option<Event> {
        self.wires.0.borrow_mut().events.get_mut(&self.me)?.pop_front()
    }

    fn flush(&mut self) -> bool {
        true
    }

    fn close(&mut self) -> bool {
        let mut shared = self.wires.0.borrow_mut();
        let mine: Vec<_> = shared.up.iter().copied().filter(|pair| pair.0 == self.me).collect();
        for pair in mine {
            shared.up.retain(|&other| other != pair);
            if let Some(line) = shared.lines.get_mut(&pair) {
                line.push_back(Item::Goodbye);
            }
        }
        true
    }
}

impl Network for Wire {
    const NAME: &'static str = "wire";
    type Config = ();

    fn open(_config: &(), _incarnation: u16) -> Result<Opened<Self>, String> {
        Ok(Opened::Absent("it is made by the test".to_owned()))
    }

    fn address(&self) -> Vec<u8> {
        Vec::new()
    }

    fn add_peer(&mut self, _peer: PeerId, _address: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn renew_peer(&mut self, _peer: PeerId, _address: &[u8]) {}

    fn reconnect(&mut self, peer: PeerId) {
        self.wires.0.borrow_mut().connect(self.me, peer);
    }

    fn holds(&self) -> bool {
        false
    }

    fn wait_descriptor(&self) -> Option<RawFd> {
        None
    }

    fn descriptors(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

impl Carrier for Wire {
    fn disconnect(&mut self, peer: PeerId, reason: String) {
        self.wires.0.borrow_mut().disconnect(self.me, peer, &reason);
    }

    fn is_up(&self, peer: PeerId) -> bool {
        self.wires.0.borrow().is_up(self.me, peer)
    }
}
