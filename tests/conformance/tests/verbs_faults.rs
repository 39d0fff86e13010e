//! Queue pairs beside a network in memory, with faults of adapters, links and connections, by seed.
//! While a channel is up, what is sent on it arrives once and in order; after the faults all is
//! back on queue pairs, every buffer is where it belongs, and nothing is left at the end. Each of
//! a number of planted bugs is found.

use rustbtl_component::transports::verbs::fake::{Counts, Nature, World};
use rustbtl_component::transports::verbs::{Sizes, VerbsConfig, VerbsTransport, choose};
use rustbtl_component::transports::{
    Event, Incoming, Limits, Network as _, Payload, Sent, Transport,
};
use rustbtl_conformance::carrier::{Tampered, Wire, Wires};
use rustbtl_conformance::{frame, id, payload};
use rustbtl_fragments::wire::{HEADER_BYTES, Header};

use std::mem::ManuallyDrop;

mod long_payloads;
mod planted;

use long_payloads::Payloads;
use planted::{Bug, Planted};

type End = VerbsTransport<Planted, Wire>;

const NODES: usize = 3;
/// Fewer receives than two peers may send: an adapter waits for a buffer now and then.
const SIZES: Sizes = Sizes {
    slot_bytes: 1024,
    receives: 8,
    sends: 8,
    grant: 6,
    inline_bytes: 64,
    read_bytes_min: 1,
    bounce_buffers: 3,
    bounce_bytes: 256,
};
/// Steps in which what is due must happen, after the faults.
const PATIENCE: usize = 20_000;

/// What one end knows of another.
#[derive(Clone, Copy, Default)]
struct Known {
    is_up: bool,
    said_goodbye: bool,
    /// How often the channel was up: part of each frame's number.
    epoch: u64,
    /// Frames sent in it.
    sent: u64,
    /// The frame that is taken in part: its bytes, and how many are taken.
    part: Option<(usize, usize)>,
    /// The last frame that came: epoch and number.
    last: Option<(u64, u64)>,
    /// Nothing has come since the channel was opened.
    is_fresh: bool,
}

struct Sim {
    world: World,
    wires: Wires,
    ends: Vec<End>,
    known: Vec<Vec<Known>>,
    random: u64,
    cuts: Vec<(usize, usize)>,
    down: Vec<usize>,
    /// What the user is told, and by which end.
    notices: Vec<(usize, String)>,
    payloads: Payloads,
    /// Pieces that were read by second ports.
    by_second: u64,
}

impl Sim {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let nature = Nature { seed, inline_bytes: 40, ..Nature::default() };
        // Behind the nodes come their second ports.
        let nature = Nature { is_ethernet: seed.is_multiple_of(2), ..nature };
        let world = World::new(2 * NODES, nature);
        let wires = Wires::new(seed);
        if let Some(tamper) = bug.and_then(Bug::of_the_connection) {
            wires.tamper(tamper);
        }
        let limits = Limits { eager_bytes_max: 4096, chunk_bytes_max: 4096 };
        let one = |node| {
            let verbs = Planted::new(world.node(node), bug);
            let choice = choose(&verbs, &VerbsConfig::default()).expect("valid").expect("a port");
            let wire = wires.end(id(node), limits);
            let mut end = VerbsTransport::new(verbs, choice, SIZES, wire).expect("an adapter");
            // Some have one port.
            if !(seed as usize + node).is_multiple_of(4) {
                let verbs = Planted::new(world.node(NODES + node), bug);
                let choice = choose(&verbs, &VerbsConfig::default()).expect("valid");
                end.add_rail(verbs, choice.expect("a port")).expect("an adapter");
            }
            end
        };
        let mut ends: Vec<End> = (0..NODES).map(one).collect();
        let addresses: Vec<_> = ends.iter().map(End::address).collect();
        for (at, end) in ends.iter_mut().enumerate() {
            for (other, address) in addresses.iter().enumerate().filter(|&(other, _)| other != at) {
                end.add_peer(id(other), address).expect("it is reached");
            }
        }
        let known = vec![vec![Known::default(); NODES]; NODES];
        let random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let (cuts, down, notices) = (Vec::new(), Vec::new(), Vec::new());
        let payloads = Payloads::new(NODES);
        let by_second = 0;
        Self { world, wires, ends, known, random, cuts, down, notices, payloads, by_second }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % below
    }

    fn pair(&mut self) -> (usize, usize) {
        let from = self.draw(NODES);
        (from, (from + 1 + self.draw(NODES - 1)) % NODES)
    }

    /// Offer the next frame; the one that is taken in part, if there is one.
    fn send(&mut self, from: usize, to: usize, bytes: usize) -> Sent {
        self.events(from);
        let known = self.known[from][to];
        let (bytes, taken) = known.part.unwrap_or((bytes, 0));
        let number = known.epoch << 24 | known.sent;
        let head = frame(from, to, number, bytes);
        let body = payload(from, to, number, bytes);
        let sent = self.ends[from].send(id(to), &head, Payload::Bytes(&body), taken);
        let known = &mut self.known[from][to];
        match sent {
            Sent::Accepted => {
                known.part = None;
                known.sent += 1;
                self.payloads.announced(from, to, number);
            }
            Sent::Full(0) => assert_eq!(taken, 0, "part of a frame is forgotten"),
            Sent::Full(n) => known.part = Some((bytes, n)),
            Sent::Down => {}
        }
        sent
    }

    fn events(&mut self, at: usize) {
        while let Some(event) = self.ends[at].event() {
            match event {
                Event::Up(peer, _) => {
                    let other = (0..NODES).find(|&other| id(other) == peer).expect("a peer");
                    let known = &mut self.known[at][other];
                    assert!(!known.is_up, "up twice");
                    known.is_up = true;
                    known.epoch += 1;
                    (known.sent, known.part, known.is_fresh) = (0, None, true);
                }
                Event::Down { peer, said_goodbye, .. } => {
                    let other = (0..NODES).find(|&other| id(other) == peer).expect("a peer");
                    let known = &mut self.known[at][other];
                    assert!(known.is_up, "down twice");
                    known.is_up = false;
                    known.said_goodbye = said_goodbye;
                    self.payloads.down(&mut self.ends[at], at, other);
                }
                Event::Notice(text) => self.notices.push((at, text)),
            }
        }
    }

    /// As the driver does: a frame, the news, then the frame is used.
    fn step(&mut self, at: usize) -> bool {
        self.ends[at].flush();
        let incoming = self.ends[at].peek();
        self.events(at);
        self.payloads.finish(&mut self.ends, at);
        let Some(incoming) = incoming else { return false };
        let (from, number) = self.accept(at, incoming);
        self.payloads.arrived(&mut self.ends[at], (from, at), number);
        self.ends[at].consume(incoming);
        true
    }

    /// Expose a long payload: all of its memory, or a part of memory that stays.
    fn expose(&mut self, from: usize, to: usize) {
        self.events(from);
        let (bytes, lasts) = (1 + self.draw(1500), self.draw(2) == 0);
        self.payloads.expose(&mut self.ends[from], (from, to), bytes, lasts);
        if self.draw(20) == 0 {
            self.ends[from].before_freeze();
        }
    }

    /// Who has sent it, and its number.
    fn accept(&mut self, at: usize, incoming: Incoming) -> (usize, u64) {
        // SAFETY: the frame is valid until it is consumed.
        let bytes = unsafe { std::slice::from_raw_parts(incoming.start, incoming.len) };
        let header = Header::decode(bytes).expect("a frame that nobody sent");
        let from = header.context as usize;
        assert_eq!((header.source as usize, id(from)), (at, incoming.from), "of another pair");
        let body = &bytes[HEADER_BYTES..];
        assert!(body == payload(from, at, header.sequence, body.len()), "content");
        let (epoch, number) = (header.sequence >> 24, header.sequence & 0xFF_FFFF);
        let known = &mut self.known[at][from];
        assert!(known.is_up, "a frame of a channel that is down");
        match known.last {
            _ if known.is_fresh => assert_eq!(number, 0, "the first of a channel"),
            Some((last, before)) => {
                assert_eq!((epoch, number), (last, before + 1), "order");
            }
            None => panic!("a frame before the channel was up"),
        }
        if let Some((last, _)) = known.last.filter(|_| known.is_fresh) {
            assert!(epoch > last, "a frame of an earlier channel");
        }
        known.is_fresh = false;
        known.last = Some((epoch, number));
        (from, header.sequence)
    }

    fn fault(&mut self) {
        let (mut a, mut b) = self.pair();
        if self.draw(3) == 0 {
            // The second ports.
            (a, b) = (a + NODES, b + NODES);
        }
        match self.draw(6) {
            0 if self.down.len() < 2 && !self.down.contains(&a) => {
                self.world.set_port(a, false);
                self.down.push(a);
            }
            1 => {
                if let Some(node) = self.down.pop() {
                    self.world.set_port(node, true);
                }
            }
            2 if self.cuts.len() < 2 => {
                self.world.set_cut(a, b, true);
                self.cuts.push((a, b));
            }
            3 => {
                if let Some((a, b)) = self.cuts.pop() {
                    self.world.set_cut(a, b, false);
                }
            }
            4 => self.wires.break_connection(id(a % NODES), id(b % NODES)),
            _ => {
                let quarters = self.draw(5) as u32;
                self.world.set_acknowledge_quarters(quarters);
            }
        }
    }

    fn reconnect_one(&mut self, at: usize, to: usize) {
        self.ends[at].carrier().reconnect(id(to));
    }

    fn reconnect(&mut self) {
        for at in 0..NODES {
            for other in (0..NODES).filter(|&other| other != at) {
                let known = self.known[at][other];
                if !known.is_up && known.epoch > 0 {
                    self.reconnect_one(at, other);
                }
            }
        }
    }

    fn bytes(&mut self) -> usize {
        match self.draw(3) {
            0 => self.draw(40),
            1 => self.draw(200),
            _ => 200 + self.draw(700),
        }
    }

    /// Traffic and faults.
    fn disturb(&mut self, steps: usize, fault_every: usize) {
        for _ in 0..steps {
            let (from, to) = self.pair();
            match self.draw(8) {
                0..4 => {
                    if self.draw(8) == 0 {
                        self.expose(from, to);
                    }
                    let bytes = self.bytes();
                    self.send(from, to, bytes);
                }
                _ => {
                    self.step(from);
                }
            }
            if fault_every > 0 && self.draw(fault_every) == 0 {
                self.fault();
            }
            if self.draw(50) == 0 {
                self.reconnect();
            }
        }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..PATIENCE {
            for at in 0..NODES {
                self.step(at);
            }
            if done(self) {
                return;
            }
        }
        panic!("stuck: {what}");
    }

    /// No more faults; every port goes down and comes back, so that nothing stays with TCP.
    fn heal(&mut self) {
        for (a, b) in core::mem::take(&mut self.cuts) {
            self.world.set_cut(a, b, false);
        }
        self.world.set_acknowledge_quarters(2);
        for node in 0..2 * NODES {
            self.world.set_port(node, false);
        }
        for _ in 0..5000 {
            (0..NODES).for_each(|at| {
                self.step(at);
            });
        }
        for node in 0..2 * NODES {
            self.world.set_port(node, true);
        }
        self.down.clear();
    }

    fn pairs() -> impl Iterator<Item = (usize, usize)> {
        (0..NODES).flat_map(|from| (0..NODES).map(move |to| (from, to))).filter(|(a, b)| a != b)
    }

    /// Every pair uses queue pairs, both ways.
    fn await_queues(&mut self) {
        self.until("queue pairs", |sim| {
            sim.reconnect();
            // Every pair, not only those up to the first that is not ready: a frame that is taken
            // in part is in the way of what the transports tell each other.
            Self::pairs().fold(true, |all, (from, to)| {
                let uses = sim.ends[from].uses_queues(id(to)) == (true, true);
                if !uses && sim.known[from][to].epoch == 0 || sim.known[from][to].part.is_some() {
                    sim.send(from, to, 8);
                }
                all & uses
            })
        });
    }

    /// Every pair sends so many frames, and all of them arrive.
    fn exchange(&mut self, frames: usize) {
        for n in 0..frames {
            for (from, to) in Self::pairs() {
                self.until("room", |sim| sim.send(from, to, (n * 37) % 900) == Sent::Accepted);
            }
        }
        self.until("arrival", |sim| {
            Self::pairs().all(|(from, to)| {
                let (sender, receiver) = (sim.known[from][to], sim.known[to][from]);
                receiver.last == Some((sender.epoch, sender.sent - 1))
            })
        });
    }

    /// Every pair sends, over queue pairs in the end, and all of it arrives.
    fn prove_alive(&mut self) {
        self.await_queues();
        for (from, to) in Self::pairs() {
            self.expose(from, to);
        }
        self.exchange(100);
        self.until("payloads", |sim| sim.payloads.all_are_read());
        self.until("buffers of queue pairs that are gone", |sim| {
            let receives = usize::from(SIZES.receives);
            (0..NODES).all(|at| sim.world.posted_receives(at) == receives)
        });
    }

    /// All end at once; nothing is left, and nobody calls that a failure.
    fn finish(&mut self) {
        for (from, to) in Self::pairs() {
            self.until("room", |sim| sim.send(from, to, 500) == Sent::Accepted);
        }
        // The second end looks at its connections in every other round, so that it reads the
        // goodbye soon: a frame that one of them has taken in part keeps it from switching.
        self.wires.break_connection(id(1), id(2));
        self.reconnect_one(1, 2);
        for _ in 0..100 {
            if self.known[1][2].part.is_none() {
                self.send(1, 2, 800);
            }
        }
        assert!(self.known[1][2].part.is_some(), "it has no part of a frame");
        for _ in 0..200 {
            self.step(1);
        }
        // The first end closes while messages to the others are under way. These look at nothing
        // before it has closed, as long as it can without them.
        for to in 1..NODES {
            for bytes in 0..4 {
                self.send(0, to, bytes);
            }
        }
        let mut closed = false;
        for round in 0..PATIENCE {
            closed = closed || self.ends[0].close();
            if closed || round > 1000 {
                (1..NODES).for_each(|at| {
                    self.step(at);
                });
            }
            if closed && (1..NODES).all(|at| self.known[at][0].said_goodbye) {
                break;
            }
        }
        assert!(closed, "the end does not come");
        for to in 1..NODES {
            let sent = (self.known[0][to].epoch, self.known[0][to].sent - 1);
            let last = self.known[to][0].last;
            assert_eq!(last, Some(sent), "a goodbye before the last frame");
        }
        self.until("the rest", |sim| {
            sim.send(1, 2, 0);
            sim.known[1][2].part.is_none()
        });
        let mut open: Vec<usize> = (1..NODES).collect();
        for _ in 0..PATIENCE {
            open.retain(|&at| !self.ends[at].close());
        }
        assert!(open.is_empty(), "the end does not come");
        for node in 0..2 * NODES {
            assert_eq!(self.world.live(node), 0, "objects are left");
        }
    }

    /// What has happened, and what was read by second ports.
    fn run(seed: u64, bug: Option<Bug>) -> (Counts, u64) {
        // After a panic the world is in no state to be dropped.
        let mut sim = ManuallyDrop::new(Self::new(seed, bug));
        let fault_every = [0, 400, 100][seed as usize % 3];
        sim.disturb(6000, fault_every);
        sim.by_second = (NODES..2 * NODES).map(|node| sim.world.answered(node)).sum();
        if fault_every == 0 {
            let ups = sim.known.iter().flatten().map(|known| known.epoch).max();
            assert_eq!((ups, sim.world.counts().errors), (Some(1), 0), "something has failed");
        }
        sim.heal();
        sim.prove_alive();
        sim.finish();
        let counts = (sim.world.counts(), sim.by_second);
        drop(ManuallyDrop::into_inner(sim));
        counts
    }
}

#[test]
fn faults_lose_and_double_nothing_and_leave_nothing_behind() {
    let seeds = 1..=60;
    let (mut total, mut by_second) = (Counts::default(), 0);
    for seed in seeds {
        println!("seed {seed}");
        let (counts, second) = Sim::run(seed, None);
        by_second += second;
        total.delivered += counts.delivered;
        total.errors += counts.errors;
        total.no_receive += counts.no_receive;
        total.signaled += counts.signaled;
        total.inlined += counts.inlined;
        total.reads += counts.reads;
    }
    println!("{total:?}");
    assert!(total.delivered > 50_000 && total.errors > 100 && total.no_receive > 0, "{total:?}");
    assert!(total.inlined > 0 && total.signaled < total.delivered, "{total:?}");
    let by_first = total.reads - by_second;
    assert!(by_first > 10_000 && by_second > 3_000, "{by_first} {by_second}");
}

/// An adapter is pulled out under traffic. What is under way arrives once and in order, its node
/// goes on over TCP and says so once, and the others stay with their queue pairs.
#[test]
fn an_adapter_that_is_pulled_out_loses_and_doubles_nothing() {
    for seed in 1..=30 {
        let mut sim = ManuallyDrop::new(Sim::new(seed, None));
        sim.disturb(3000, 0);
        sim.await_queues();
        let gone = seed as usize % NODES;
        sim.disturb(500, 0);
        sim.world.remove_device(gone);
        sim.disturb(3000, 0);
        sim.exchange(50);
        for (from, to) in Sim::pairs() {
            let stays = from != gone && to != gone;
            let uses = sim.ends[from].uses_queues(id(to));
            assert_eq!(uses, (stays, stays), "seed {seed}: {from} to {to}, {gone} is gone");
        }
        let text = "fake0 port 1: the adapter has failed; messages go over TCP".to_owned();
        let of_it: Vec<_> = sim.notices.iter().filter(|(at, _)| *at == gone).collect();
        assert_eq!(of_it, [&(gone, text)], "seed {seed}");
        drop(ManuallyDrop::into_inner(sim));
    }
}

/// A second port goes down while payloads are read by it, or is pulled out: they are read by the
/// first one, no channel goes down, and the user is told.
#[test]
fn a_second_port_that_fails_costs_nothing_but_its_bandwidth() {
    for seed in (1..=60).filter(|seed| seed % 4 != 0) {
        let mut sim = ManuallyDrop::new(Sim::new(seed, None));
        sim.disturb(2000, 0);
        sim.await_queues();
        let node = (4 - seed as usize % 4 + 1) % NODES;
        let before = sim.world.answered(NODES + node);
        sim.disturb(1000, 0);
        assert!(sim.world.answered(NODES + node) > before, "seed {seed}: it is not in use");
        match seed % 2 {
            0 => sim.world.set_port(NODES + node, false),
            _ => sim.world.remove_device(NODES + node),
        }
        sim.disturb(3000, 0);
        sim.exchange(50);
        sim.until("payloads", |sim| sim.payloads.all_are_read());
        let ups = sim.known.iter().flatten().map(|known| known.epoch).max();
        assert_eq!(ups, Some(1), "seed {seed}: a channel was down");
        let why = if seed % 2 == 0 { "port is down" } else { "the adapter has failed" };
        let text = format!("fake0 port 1: {why}; long messages are read over one port");
        sim.until("the notice", |sim| sim.notices.contains(&(node, text.clone())));
        let said = sim.notices.iter().filter(|notice| **notice == (node, text.clone())).count();
        assert_eq!(said, 1, "seed {seed}: {:?}", sim.notices);
        drop(ManuallyDrop::into_inner(sim));
    }
}

/// Second ports that never reach each other cost one try, and one message, of each end.
#[test]
fn second_ports_in_other_networks_are_given_up() {
    for seed in (1..=20).filter(|seed| seed % 4 != 0) {
        let mut sim = ManuallyDrop::new(Sim::new(seed, None));
        for (from, to) in Sim::pairs() {
            sim.world.set_cut(NODES + from, NODES + to, true);
        }
        sim.disturb(4000, 0);
        sim.await_queues();
        sim.exchange(50);
        sim.until("payloads", |sim| sim.payloads.all_are_read());
        let ups = sim.known.iter().flatten().map(|known| known.epoch).max();
        let by_second: u64 = (NODES..2 * NODES).map(|node| sim.world.answered(node)).sum();
        assert_eq!((ups, by_second), (Some(1), 0), "seed {seed}");
        for node in 0..NODES {
            let said = sim.notices.iter().filter(|(at, _)| *at == node).count();
            assert!(said <= 1, "seed {seed}: {:?}", sim.notices);
        }
        assert!(!sim.notices.is_empty(), "seed {seed}: nobody has tried");
        drop(ManuallyDrop::into_inner(sim));
    }
}

/// The seeds that a planted bug has to be found with.
fn is_found(bug: Bug) -> bool {
    (1..=6).any(|seed| {
        std::panic::catch_unwind(|| {
            Sim::run(seed, Some(bug));
        })
        .is_err()
    })
}

#[test]
fn every_planted_bug_is_found() {
    let missed: Vec<Bug> = Bug::ALL.into_iter().filter(|&bug| !is_found(bug)).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
fn the_connection_in_memory_tampers_with_nothing_unless_told() {
    assert!(Bug::ALL.iter().filter(|bug| bug.of_the_connection().is_some()).count() >= 3);
    let mut plain = vec![0; 40];
    for bug in Bug::ALL {
        let Some(tamper) = bug.of_the_connection() else { continue };
        assert_eq!(tamper(&mut plain, 0), Tampered::Not, "{bug:?} leaves frames alone");
    }
}
