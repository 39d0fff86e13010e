//! Faults: connections that are reset, sets that fail and are restarted from a checkpoint.
//!
//! A checkpoint of a set is taken when the set is quiescent inside: its programs pause until no
//! frame is under way among its processes and every matched receive from inside is complete
//! (DESIGN §6).

use crate::image::Image;
use crate::model::{Stream, lane};
use crate::network::{Event, is};
use crate::options::{Options, Planted};
use crate::process::Process;
use crate::world::World;
use rustbtl_fragments::ids::*;
use rustbtl_fragments::wire::{FrameType, HEADER_BYTES};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A frame that outlived its incarnation.
struct Ghost {
    from: usize,
    to: usize,
    /// The connection that it was sent over.
    epoch: u32,
    frame: Vec<u8>,
}

/// See the module's documentation.
pub struct Faults {
    resets: u32,
    failures: u32,
    checkpoints: u32,
    /// Percent of opportunities that are taken.
    pub rate: u32,
    pub(crate) stored: BTreeMap<u32, Vec<Image>>,
    /// Sets that are to be quiescent for a checkpoint.
    quiescing: BTreeSet<u32>,
    /// Sets that have failed.
    pub failed: BTreeSet<u32>,
    /// (process, set): logs that may be trimmed.
    trims: Vec<(usize, u32)>,
    ghosts: Vec<Ghost>,
    /// Messages that complete checkpoints of their receivers have covered.
    pub covered: BTreeSet<(Stream, u64)>,
    /// Resets, failures, checkpoints so far.
    pub happened: [u32; 3],
    planted: Option<Planted>,
}

impl Faults {
    /// The faults of a run.
    pub fn new(options: &Options) -> Self {
        Self {
            resets: options.resets,
            failures: options.failures,
            checkpoints: options.checkpoints,
            rate: options.fault_rate,
            stored: BTreeMap::new(),
            quiescing: BTreeSet::new(),
            failed: BTreeSet::new(),
            trims: Vec::new(),
            ghosts: Vec::new(),
            covered: BTreeSet::new(),
            happened: [0; 3],
            planted: options.planted,
        }
    }

    /// Does this set wait for quiescence?
    pub fn is_quiescing(&self, set: u32) -> bool {
        self.quiescing.contains(&set)
    }

    /// Has this set failed?
    pub fn has_failed(&self, set: u32) -> bool {
        self.failed.contains(&set)
    }

    /// Planted bugs that change what resync sends.
    pub fn tamper(&self, at: &Process, from: usize, frame: &mut Vec<u8>) {
        if !is(frame, FrameType::Resync) || self.planted.is_none() {
            return;
        }
        let mut out = frame[..HEADER_BYTES].to_vec();
        for entry in frame[HEADER_BYTES..].chunks(24) {
            let mut entry = entry.to_vec();
            let word = |at: usize| {
                u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
            };
            let (what, context, lane_) = (word(0), word(4), word(8) as i32);
            if what == 2 && self.planted == Some(Planted::OpenMessagesForgotten) {
                continue;
            }
            if what == 1 && self.planted == Some(Planted::RepeatedSendsReachPeers) {
                let stream = (context, at.me, from, lane(lane_));
                let sent = at.sent(&stream).min(u64::from(word(16)));
                entry[16..24].copy_from_slice(&sent.to_le_bytes());
            }
            out.extend_from_slice(&entry);
        }
        let length = out.len() as u32;
        out[..4].copy_from_slice(&length.to_le_bytes());
        *frame = out;
    }
}

impl World {
    /// The processes of a set.
    pub fn members(&self, set: u32) -> Vec<usize> {
        let sets = &self.shared.options.sets;
        (0..sets.len()).filter(|&rank| sets[rank] == set).collect()
    }

    fn others(&self, set: u32) -> Vec<usize> {
        let sets = &self.shared.options.sets;
        (0..sets.len()).filter(|&rank| sets[rank] != set).collect()
    }

    /// Maybe a fault, a repair or a checkpoint. True: that was this step.
    pub fn fault_step(&mut self) -> bool {
        self.take_checkpoints_of_quiescent_sets();
        let calm = self.checkpoints.has_passed_the_fence();
        if !self.prng.chance(20) {
            return false;
        }
        match self.prng.below(8) {
            0 if self.faults.resets > 0 && self.prng.chance(self.faults.rate) => self.reset(),
            1 if !calm && self.faults.failures > 0 => {
                let rate = self.failure_rate();
                self.prng.chance(rate) && self.fail()
            }
            2 if self.faults.checkpoints > 0 && self.prng.chance(self.faults.rate) => {
                self.request_checkpoint()
            }
            3 | 4 => self.learn(),
            5 => self.connect(),
            6 => self.restart_set(),
            7 => self.trim_or_haunt(),
            _ => false,
        }
    }

    fn outside_pair(&mut self) -> Option<(usize, usize)> {
        let ranks = self.processes.len();
        let (a, b) = (self.prng.below(ranks), self.prng.below(ranks));
        (!self.shared.options.same_set(a, b)).then_some((a, b))
    }

    /// A connection breaks: what is under way is lost, both ends will learn of it.
    fn reset(&mut self) -> bool {
        let Some((a, b)) = self.outside_pair() else { return false };
        let mut net = self.net.borrow_mut();
        if !net.connection(a, b).alive {
            return false;
        }
        net.connection(a, b).alive = false;
        net.clear(a, b);
        net.clear(b, a);
        net.end(a, b).events.push_back(Event::Down);
        net.end(b, a).events.push_back(Event::Down);
        self.faults.resets -= 1;
        self.faults.happened[0] += 1;
        true
    }

    /// A lost connection is opened again.
    fn connect(&mut self) -> bool {
        let Some((a, b)) = self.outside_pair() else { return false };
        let sets = &self.shared.options.sets;
        if self.faults.has_failed(sets[a]) || self.faults.has_failed(sets[b]) {
            return false;
        }
        let mut net = self.net.borrow_mut();
        let connection = net.connection(a, b);
        if connection.alive {
            return false;
        }
        connection.alive = true;
        connection.epoch += 1;
        let epoch = connection.epoch;
        let (of_a, of_b) = (net.incarnations[a], net.incarnations[b]);
        net.end(a, b).events.push_back(Event::Up(epoch, of_b));
        net.end(b, a).events.push_back(Event::Up(epoch, of_a));
        true
    }

    /// One end learns what has happened.
    fn learn(&mut self) -> bool {
        let Some((me, other)) = self.outside_pair() else { return false };
        if self.faults.has_failed(self.shared.options.sets[me]) {
            return false;
        }
        // News of a failure comes late where there is still something to read.
        let words = self.net.borrow().late_frames.get(&(other, me)).map_or(0, VecDeque::len);
        if words > 0 && self.prng.chance(90) {
            return false;
        }
        let event = self.net.borrow_mut().end(me, other).events.pop_front();
        let Some(event) = event else { return false };
        match event {
            Event::Down => self.peer_down(me, other),
            Event::Up(epoch, incarnation) => {
                self.net.borrow_mut().end(me, other).view = Some(epoch);
                let process = &mut self.processes[me];
                let (peer, incarnation) = (PeerId(other as u32), Incarnation(incarnation));
                process.engine.peer_up(&mut process.host, peer, incarnation);
                process.settle(&mut self.shared);
            }
        }
        true
    }

    /// One end reports the loss of a channel.
    pub fn peer_down(&mut self, me: usize, other: usize) {
        let mut net = self.net.borrow_mut();
        net.end(me, other).view = None;
        net.late_frames.remove(&(other, me));
        drop(net);
        let process = &mut self.processes[me];
        // The driver ends pulls from a peer before it reports the loss.
        process.host.pulls.retain(|pull| pull.from != other);
        process.engine.peer_down(&mut process.host, PeerId(other as u32));
        process.settle(&mut self.shared);
    }

    fn request_checkpoint(&mut self) -> bool {
        let set = self.prng.pick(&self.shared.options.sets);
        if self.faults.has_failed(set) || !self.faults.quiescing.insert(set) {
            return false;
        }
        self.faults.checkpoints -= 1;
        true
    }

    fn take_checkpoints_of_quiescent_sets(&mut self) {
        for set in self.faults.quiescing.clone() {
            if self.is_quiescent(set) {
                self.faults.quiescing.remove(&set);
                self.take_checkpoint(set);
                self.faults.happened[2] += 1;
            }
        }
    }

    /// Nothing under way inside the set, every matched receive from inside complete?
    fn is_quiescent(&self, set: u32) -> bool {
        let members = self.members(set);
        let mut net = self.net.borrow_mut();
        let wires = members.iter().all(|&a| members.iter().all(|&b| net.wire(a, b).is_quiescent()));
        wires
            && members.iter().all(|&rank| {
                self.processes[rank].incomplete_from(|from| members.contains(&from)) == 0
            })
    }

    /// Take a checkpoint of a quiescent set.
    pub fn take_checkpoint(&mut self, set: u32) {
        let checkpoint = self.members(set).into_iter().map(|rank| self.snapshot(rank)).collect();
        self.faults.store(set, checkpoint);
        if self.shared.options.trim {
            let others = self.others(set).into_iter().map(|rank| (rank, set));
            self.faults.trims.extend(others);
        }
    }

    /// A set fails.
    fn fail(&mut self) -> bool {
        let set = self.who_fails();
        if !self.faults.failed.insert(set) {
            return false;
        }
        self.faults.quiescing.remove(&set);
        self.faults.failures -= 1;
        self.faults.happened[1] += 1;
        let members = self.members(set);
        let ranks = self.processes.len();
        for &rank in &members {
            self.processes[rank].host.pulls.clear();
            for other in 0..ranks {
                if self.shared.options.piggyback && !members.contains(&other) {
                    let mut net = self.net.borrow_mut();
                    let arrived = net.clear(rank, other).into();
                    net.late_frames.insert((rank, other), arrived);
                    net.late_frames.remove(&(other, rank));
                }
                self.lose(rank, other);
                self.lose(other, rank);
                let mut net = self.net.borrow_mut();
                net.exposed.retain(|(owner, ..), _| *owner != rank);
                if members.contains(&other) {
                    continue;
                }
                if core::mem::take(&mut net.connection(rank, other).alive) {
                    net.end(other, rank).events.push_back(Event::Down);
                }
                net.end(rank, other).events.clear();
            }
        }
        self.report_failed_set(&members);
        self.determinants_lost(set);
        true
    }

    /// What is under way between two processes is lost, or comes later than it should.
    pub fn lose(&mut self, from: usize, to: usize) {
        let mut net = self.net.borrow_mut();
        let epoch = net.connection(from, to).epoch;
        let frames = net.clear(from, to);
        if self.shared.options.ghosts {
            let ghosts = frames.into_iter().map(|frame| Ghost { from, to, epoch, frame });
            self.faults.ghosts.extend(ghosts);
        }
    }

    /// A failed set is restarted from its checkpoint.
    fn restart_set(&mut self) -> bool {
        if self.has_orphan() {
            self.restart_job();
            return true;
        }
        let Some(&set) = self.faults.failed.first() else { return false };
        let set =
            if self.prng.chance(50) { set } else { *self.faults.failed.last().unwrap_or(&set) };
        if !self.is_fenced(set) {
            return false;
        }
        if self.shared.options.coordinated {
            if !self.restart_from_checkpoint(set) {
                return true;
            }
        } else {
            self.faults.failed.remove(&set);
            let Some(checkpoint) = self.faults.stored.get(&set).cloned() else {
                panic!("no checkpoint")
            };
            let keep_exposed = self.prng.chance(50);
            for (rank, image) in self.members(set).into_iter().zip(&checkpoint) {
                self.restore(rank, image, keep_exposed);
            }
        }
        for rank in self.members(set) {
            for other in self.others(set) {
                // What the checkpoint does not know is made as if for the first time.
                self.net.borrow_mut().end(rank, other).view = None;
                if self.processes[rank].engine.has_contacted(PeerId(other as u32)) {
                    self.peer_down(rank, other);
                }
            }
        }
        self.begin_replay(set);
        true
    }

    fn trim_or_haunt(&mut self) -> bool {
        if !self.faults.trims.is_empty() && self.prng.chance(50) {
            let at = self.prng.below(self.faults.trims.len());
            let (rank, set) = self.faults.trims.swap_remove(at);
            self.trim(rank, set);
            return true;
        }
        if self.faults.ghosts.is_empty() {
            return false;
        }
        let at = self.prng.below(self.faults.ghosts.len());
        let Ghost { from, to, epoch, mut frame } = self.faults.ghosts.remove(at);
        let sets = &self.shared.options.sets;
        if self.faults.has_failed(sets[from]) || self.faults.has_failed(sets[to]) {
            return false;
        }
        // Until the receiver learns of the end it would be a frame like any other.
        let end = self.net.borrow_mut().end(to, from).clone();
        if sets[from] != sets[to] && (end.view == Some(epoch) || !end.events.is_empty()) {
            return false;
        }
        if self.faults.planted == Some(Planted::IncarnationIgnored) {
            let net = self.net.borrow();
            frame[20..22].copy_from_slice(&net.incarnations[from].to_le_bytes());
            frame[22..24].copy_from_slice(&net.incarnations[to].to_le_bytes());
        }
        self.processes[to].on_frame(&mut self.shared, from, &frame, true);
        true
    }

    /// A process drops from its log what the checkpoint of a set covers.
    fn trim(&mut self, rank: usize, set: u32) {
        if self.faults.has_failed(self.shared.options.sets[rank]) {
            return;
        }
        let Some(checkpoint) = self.faults.stored.get(&set) else { return };
        let members = self.members(set);
        let early = self.faults.planted == Some(Planted::TrimTooEarly);
        let held: BTreeMap<usize, _> = members
            .iter()
            .zip(checkpoint)
            .map(|(&member, image)| {
                let engine = if early { &self.processes[member].engine } else { &image.engine };
                (member, engine.received_from(PeerId(rank as u32)))
            })
            .collect();
        let covered = &mut self.faults.covered;
        self.processes[rank].host.memory.log.trim(SetId(set), |entry| {
            let to = entry.to.0 as usize;
            let covers = held.get(&to).is_some_and(|held| held.is_complete(entry));
            if covers {
                let stream = (entry.stream.context.number(), rank, to, entry.stream.lane);
                covered.insert((stream, entry.sequence.0));
            }
            covers
        });
    }
}
