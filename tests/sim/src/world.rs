//! The job: all processes, the network between them, and one random step after the other.

use crate::checkpoints::{CheckpointReport, CheckpointWorld};
use crate::determinants::Determinants;
use crate::faults::Faults;
use crate::host::SimHost;
use crate::model::{Book, Message};
use crate::network::{Network, is};
use crate::options::Options;
use crate::piggyback::PiggybackWorld;
use crate::process::{Outcome, Process, Program, Shared};
use crate::script::{Request, script};
use crate::windows::replays::WindowReplays;
use rustbtl_fragments::counters::Counters;
use rustbtl_fragments::engine::{Engine, Sums};
use rustbtl_fragments::ids::*;
use rustbtl_fragments::wire::{FrameType, HEADER_BYTES, Header};
use rustbtl_seeds::Prng;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Steps after which everybody must have finished. The slowest of 10,000 seeds (windows; what is
/// recorded becomes stable slowly) needs 2.1 million.
const STEPS_MAX: u64 = 5_000_000;

/// A job.
pub struct World {
    /// The processes.
    pub processes: Vec<Process>,
    /// The network.
    pub net: Rc<RefCell<Network>>,
    /// Scripts and books.
    pub shared: Shared,
    /// Randomness of the schedule.
    pub prng: Prng,
    /// Faults and checkpoints.
    pub faults: Faults,
    /// Checkpoints by the real machines.
    pub checkpoints: CheckpointWorld,
    /// Determinants on their way, and their replicas.
    pub determinants: Determinants,
    /// Piggybacked determinants.
    pub piggyback: PiggybackWorld,
    /// Replays of windows.
    pub window_replays: WindowReplays,
}

/// What a job gave: the results of every receive of each process.
pub type Results = Vec<BTreeMap<Request, Outcome>>;

/// What a run was.
pub struct Report {
    /// Results.
    pub results: Results,
    /// Steps taken.
    pub steps: u64,
    /// Faults that happened: resets, failures, checkpoints.
    pub faults: [u32; 3],
    /// The engines' counters at the end.
    pub counters: Vec<Counters>,
    /// Messages that were trimmed from logs.
    pub trimmed: usize,
    /// Messages that were dropped from logs since they were acknowledged.
    pub acknowledged: usize,
    /// Payloads that were placed directly.
    pub placed_directly: u64,
    /// What became of checkpoints.
    pub checkpoints: CheckpointReport,
    /// Runs of one-sided operations that were recorded and that were forced; how often all replays
    /// were over, how often those of several sets, and how often a rank had believed so too early.
    pub windows: [u64; 5],
    /// What became of determinants.
    pub determinants: crate::determinants::DeterminantReport,
}

impl World {
    /// The job of these options; `schedule` picks one order of events among all.
    pub fn new(options: &Options, schedule: u64) -> Self {
        let root = Prng::new(options.seed).fork(3 + schedule);
        let net = Rc::new(RefCell::new(Network::new(options, root.fork(1))));
        let script = script(options);
        let comms: Vec<Vec<usize>> = script.comms.iter().map(|c| c.members.clone()).collect();
        let processes = (0..options.ranks())
            .map(|me| {
                let (peer, set) = (PeerId(me as u32), SetId(options.sets[me]));
                let mut engine = Engine::new(peer, set, Incarnation(0));
                engine.verify_sends();
                engine.set_acknowledging(options.acknowledges);
                let host =
                    SimHost::new(me, options, Rc::clone(&net), comms.clone(), script.windows);
                Process { me, engine, host, program: Program::default() }
            })
            .collect();
        let (book, agreed) = (Book::default(), BTreeSet::new());
        let shared = Shared { options: options.clone(), script, book, agreed, now: 0 };
        let (faults, checkpoints) = (Faults::new(options), CheckpointWorld::new(options));
        let determinants = Determinants::new(options);
        let (prng, piggyback) = (root.fork(2), PiggybackWorld::default());
        let mut world = Self {
            processes,
            net,
            shared,
            prng,
            faults,
            checkpoints,
            determinants,
            piggyback,
            window_replays: WindowReplays::default(),
        };
        for set in world.sets() {
            world.take_checkpoint(set);
        }
        world.first_checkpoint();
        world.first_replicas();
        world
    }

    /// The sets of the job.
    pub fn sets(&self) -> Vec<u32> {
        let all: BTreeSet<u32> = self.shared.options.sets.iter().copied().collect();
        all.into_iter().collect()
    }

    /// Run to the end and check everything.
    pub fn run(mut self) -> Report {
        let mut steps = 0;
        while !self.is_over() {
            steps += 1;
            self.shared.now = steps;
            if steps > STEPS_MAX {
                let at: Vec<String> = self.processes.iter().map(Process::position).collect();
                let net = self.net.borrow();
                let checkpoints = crate::checkpoints::describe(&self.checkpoints, &net);
                let net = net.describe();
                let (replays, orders) = (&self.window_replays, self.describe_orders());
                panic!(
                    "no end after {steps} steps:\n{}\n{replays:?}\n{orders}{checkpoints}{net}",
                    at.join("\n")
                );
            }
            self.window_replay_step();
            if !self.checkpoint_step() && !self.fault_step() && !self.determinant_step() {
                self.step();
            }
        }
        self.check_end();
        let (faults, trimmed) = (self.faults.happened, self.faults.covered.len());
        let mut determinants = self.determinants.report;
        determinants.differed = self.shared.book.differed;
        determinants.waited = self.processes.iter().map(|p| p.host.waited.get()).sum();
        determinants.refused_piggybacks = self.processes.iter().map(|p| p.host.refused).sum();
        determinants.alone = self.processes.iter().map(|p| p.host.alone).sum();
        determinants.met = self.piggyback.met;
        let piggybacked = |process: &Process| process.engine.counters().piggyback_frames;
        determinants.piggybacked = self.processes.iter().map(piggybacked).sum();
        let counters = self.processes.iter().map(|process| *process.engine.counters()).collect();
        let placed_directly =
            self.processes.iter().map(|process| process.host.placed_directly).sum();
        let acknowledged = self.processes.iter().map(|p| p.host.acknowledged.len()).sum();
        let applied = self.processes.iter().map(|p| p.host.applied_runs).sum();
        let forced = self.processes.iter().map(|p| p.host.forced_runs).sum();
        let [ended, ended_together, too_early] = self.window_replays.ended;
        let windows = [applied, forced, ended, ended_together, too_early];
        let results = self.processes.into_iter().map(|process| process.program.results).collect();
        let checkpoints = self.checkpoints.report;
        Report {
            results,
            steps,
            faults,
            counters,
            trimmed,
            acknowledged,
            placed_directly,
            checkpoints,
            windows,
            determinants,
        }
    }

    /// Everybody has finished, nothing is under way.
    fn is_over(&self) -> bool {
        self.faults.failed.is_empty()
            && self.processes.iter().all(|process| {
                process.is_finished(&self.shared)
                    && process.engine.is_flushed()
                    && process.engine.unfinished() == (0, 0, 0)
            })
            && self.is_quiet()
            && (!self.shared.options.coordinated || self.checkpoints.is_over())
    }

    fn is_quiet(&self) -> bool {
        let mut net = self.net.borrow_mut();
        let ranks = self.processes.len();
        (0..ranks).all(|a| {
            (0..ranks).all(|b| {
                let quiescent = net.wire(a, b).is_quiescent() && net.end(a, b).events.is_empty();
                quiescent && (a == b || net.connection(a, b).alive)
            })
        })
    }

    /// One step of the job, whatever the network and the programs do next.
    fn step(&mut self) {
        let me = self.prng.below(self.processes.len());
        if self.faults.has_failed(self.shared.options.sets[me]) {
            return;
        }
        let draw = self.prng.bits() as usize;
        let (runs, polls) = self.checkpoints.may(me);
        if !polls {
            return;
        }
        match self.prng.below(10) {
            0..3 => {
                if runs && !self.faults.is_quiescing(self.shared.options.sets[me]) {
                    self.processes[me].step(&mut self.shared, draw >> 8);
                    self.processes[me].maybe_end_replay(&mut self.shared);
                }
            }
            3..7 => self.deliver(me, draw >> 8),
            7 | 8 => {
                let process = &mut self.processes[me];
                process.engine.flush(&mut process.host);
                process.settle(&mut self.shared);
            }
            _ => self.finish_pull(me, draw >> 8),
        }
    }

    /// Hand a frame in.
    fn deliver(&mut self, me: usize, draw: usize) {
        let ranks = self.processes.len();
        for turn in 0..ranks {
            let from = (draw + turn) % ranks;
            let (frame, last) = {
                let mut net = self.net.borrow_mut();
                let last = !net.is_current(me, from);
                (if last { net.take_late_frames(from, me) } else { net.take(from, me) }, last)
            };
            if let Some(mut frame) = frame {
                if last && self.is_of_lost_channel(me, from, &frame) {
                    // Nor are those behind it looked at, should there be another channel.
                    self.net.borrow_mut().late_frames.remove(&(from, me));
                    return;
                }
                let piggybacked = is(&frame, FrameType::Piggyback) && frame.len() > HEADER_BYTES;
                self.piggyback.met[0] += u64::from(last && piggybacked);
                self.faults.tamper(&self.processes[me], from, &mut frame);
                self.processes[me].on_frame(&mut self.shared, from, &frame, false);
                return;
            }
        }
    }

    /// Has the engine given up the channel that these late frames are of?
    fn is_of_lost_channel(&self, me: usize, from: usize, frame: &[u8]) -> bool {
        let (engine, peer) = (&self.processes[me].engine, PeerId(from as u32));
        let alive = |header: Header| {
            engine.is_open(peer) && engine.is_current_incarnation(peer, header.from)
        };
        !Header::decode(frame).is_ok_and(alive)
    }

    fn finish_pull(&mut self, me: usize, draw: usize) {
        let process = &mut self.processes[me];
        if process.host.pulls.is_empty() {
            return;
        }
        let at = draw % process.host.pulls.len();
        let pull = process.host.pulls.remove(at);
        let ok = !(draw >> 8).is_multiple_of(4) && process.host.finish_pull(pull);
        process.engine.pull_finished(&mut process.host, pull.receive, ok);
        process.settle(&mut self.shared);
    }

    /// What must hold when everybody has finished.
    fn check_end(&self) {
        self.check_atomics();
        let net = self.net.borrow();
        assert!(net.exposed.is_empty(), "still exposed: {:?}", net.exposed.keys());
        for process in &self.processes {
            assert!(process.host.memory.buffers.is_empty(), "buffers are left");
            assert!(process.host.pulls.is_empty(), "pulls are left");
            assert!(process.host.memory.windows.is_idle(), "windows are left");
            self.check_counters(process);
            self.check_log(process);
            self.check_contents(process);
        }
    }

    /// What was sent between sets is what was accepted (verify_sends.rs, 1 and 2).
    fn check_contents(&self, process: &Process) {
        let me = PeerId(process.me as u32);
        for (peer, context, sent, _) in process.engine.content_sums() {
            let sums = &mut self.processes[peer.0 as usize].engine.content_sums();
            let theirs = sums.find(|&(from, of, ..)| (from, of) == (me, context));
            let accepted = theirs.map_or(Sums::default(), |(.., accepted)| accepted.clone());
            assert_eq!(*sent, accepted, "contents from {me} to {peer} in context {context}");
        }
    }

    /// The engine's counters equal an independent count.
    fn check_counters(&self, process: &Process) {
        let (me, options, book) = (process.me, &self.shared.options, &self.shared.book);
        let c = process.engine.counters();
        let inside = |other: usize| options.same_set(me, other);
        let sent = book.total(|stream| stream.1 == me && inside(stream.2));
        assert_eq!((c.sent_internal_messages, c.sent_internal_bytes), sent, "sent internal");
        let sent = book.total(|stream| stream.1 == me && !inside(stream.2));
        assert_eq!((c.sent_outgoing_messages, c.sent_outgoing_bytes), sent, "sent outgoing");
        let got = book.total(|stream| stream.2 == me && inside(stream.1));
        assert_eq!((c.received_internal_messages, c.received_internal_bytes), got, "internal");
        let got = book.total(|stream| stream.2 == me && !inside(stream.1));
        assert_eq!((c.received_ingoing_messages, c.received_ingoing_bytes), got, "ingoing");
        if self.faults.happened == [0; 3] && c.resent_messages == 0 {
            let all = c.sent_internal_messages + c.sent_outgoing_messages;
            assert_eq!(c.eager_messages + c.rendezvous_messages, all, "every message once");
            assert_eq!((c.resent_messages, c.suppressed_messages, c.stale_frames), (0, 0, 0));
        }
        for (peer, set, traffic) in process.engine.traffic() {
            let peer = peer.0 as usize;
            assert_eq!(set.0, options.sets[peer]);
            let sent = book.total(|stream| (stream.1, stream.2) == (me, peer));
            assert_eq!((traffic.sent_messages, traffic.sent_bytes), sent, "sent to {peer}");
            let got = book.total(|stream| (stream.1, stream.2) == (peer, me));
            assert_eq!((traffic.received_messages, traffic.received_bytes), got, "from {peer}");
        }
    }

    /// The log holds exactly the outgoing messages that no checkpoint of their receiver covers.
    fn check_log(&self, process: &Process) {
        let (me, options) = (process.me, &self.shared.options);
        process.host.memory.log.check();
        let mut seen = BTreeSet::new();
        for (message, payload) in process.host.logged() {
            let (_, from, to, _) = message.stream;
            assert!(from == me && !options.same_set(me, to), "E5: {message:?} in the log");
            let sent = self.shared.book.find(message.stream, message.sequence);
            let message = Message { digest: sent.digest, ..message };
            assert_eq!(sent, message);
            assert!(message.begins_with(&payload), "logged payload of {message:?}");
            assert!(seen.insert((message.stream, message.sequence)), "logged twice: {message:?}");
        }
        for (stream, sent) in &self.shared.book.sent {
            let outgoing = stream.1 == me && !options.same_set(me, stream.2);
            for sent in sent.iter().filter(|_| outgoing) {
                let name = (*stream, sent.message.sequence);
                let covered = self.faults.covered.contains(&name)
                    || process.host.acknowledged.contains(&name);
                assert!(seen.contains(&name) || covered, "not in the log: {name:?}");
            }
        }
    }
}
