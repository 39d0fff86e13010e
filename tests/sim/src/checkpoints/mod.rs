//! Checkpoints taken by the real machines: each process has its `Quiescence`, the job a
//! coordinator.
//!
//! What would be the checkpoint thread, guardian and agents are random steps here: orders and
//! answers travel in queues of their own, a snapshot takes its time, images are stored later or not
//! at all. A process that computes takes no part in anything until an order enters it.

mod orders;
mod rollback;
mod set_counters;

use crate::image::Image;
use crate::network::Network;
use crate::options::{Options, Planted};
use crate::world::World;
use rustbtl_coordination::checkpoints::{self, CheckpointScheduler, Config};
use rustbtl_coordination::interval::Interval;
use rustbtl_coordination::quiescence::{
    CheckpointAnswer, CheckpointRefusal, CheckpointScope, Input, Output, Phase, PhaseCounter,
    Quiescence,
};
use rustbtl_fragments::checkpoint_frame::{CheckpointFrame, CheckpointStep};
use rustbtl_fragments::engine::Side;
use rustbtl_fragments::ids::*;
use rustbtl_seeds::Prng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Members' received vectors of a process's messages, on their way to it.
struct VectorMail {
    to: usize,
    from: usize,
    held: Vec<u8>,
}

/// An order of the coordinator to a process.
#[derive(Clone, Debug)]
enum Order {
    /// For its machine.
    Machine(Input),
    /// Acknowledge until a checkpoint from this one on.
    SuspendLogging { before: u64 },
}

/// One process's checkpoint thread and guardian.
struct Thread {
    machine: Quiescence,
    orders: VecDeque<Order>,
    /// The youngest checkpoint that it has entered.
    entered: u64,
    answers: VecDeque<checkpoints::Input>,
    /// The program computes: nobody polls.
    computes: bool,
    freezing: Option<u64>,
    finished: bool,
    /// It has refused a global checkpoint, and not reported since that it would not do so any more.
    late: bool,
}

/// What happened, for coverage.
#[derive(Clone, Copy, Default, Debug)]
pub struct CheckpointReport {
    /// Checkpoints of one set, and of all, that became complete.
    pub complete: [u64; 2],
    /// Aborts that met a process in each phase (and before it had entered).
    pub aborted_in: [u64; 8],
    /// Whole jobs restarted.
    pub restarts: u64,
    /// Global checkpoints that a process refused since something was not repaired.
    pub refused: u64,
    /// Frames that checkpoints held, when snapshots were taken.
    pub held_frames: u64,
    /// Flushes.
    pub flushes: u64,
    /// Snapshots after counts alone: no rendezvous was in flight, one was.
    pub counted: [u64; 2],
    /// Processes that were entered while they computed.
    pub entered_late: u64,
    /// Log records that were trimmed.
    pub trimmed: u64,
    /// Sets towards which logging was suspended, for which it was resumed, and that have failed
    /// while it was.
    pub suspended: [u64; 3],
    /// Synchronous sends and others that were open in a snapshot.
    pub open_sends: u64,
}

/// See the module's documentation.
pub struct CheckpointWorld {
    coordinator: CheckpointScheduler,
    threads: Vec<Thread>,
    /// What each set counts in.
    words: BTreeMap<u32, [PhaseCounter; 3]>,
    images: BTreeMap<u64, BTreeMap<usize, Image>>,
    scopes: BTreeMap<u64, CheckpointScope>,
    storing: Vec<(usize, u64)>,
    committing: Vec<u64>,
    vectors: Vec<VectorMail>,
    exit: Option<u64>,
    replaying: BTreeSet<u32>,
    again: Option<SetId>,
    orders_left: u32,
    restarts_left: u32,
    next_checkpoint: u64,
    now: u64,
    /// All programs have ended: MPI_Finalize's fence is passed.
    fence: bool,
    /// What happened.
    pub report: CheckpointReport,
}

fn config(options: &Options) -> Config {
    let mut prng = Prng::new(options.seed).fork(9);
    let interval = |prng: &mut Prng| match prng.below(3) {
        0 => Interval::Fixed { interval_ms: prng.from_to(300, 5000) },
        1 => Interval::Auto { mtbf_ms: prng.from_to(1000, 100_000) },
        _ => Interval::Off,
    };
    Config {
        set_interval: interval(&mut prng),
        global_interval: interval(&mut prng),
        sets_at_once: prng.from_to(1, 3) as usize,
        checkpoints_kept: options.checkpoints_kept,
        quiescence_timeout_ms: options.timeout,
        store_timeout_ms: options.timeout,
        retry_ms: prng.below(3) as u64 * 100,
    }
}

fn quiescence(options: &Options, rank: usize) -> Quiescence {
    let members: Vec<PeerId> = (0..options.ranks())
        .filter(|&other| options.same_set(rank, other))
        .map(|other| PeerId(other as u32))
        .collect();
    let mut quiescence = Quiescence::new(PeerId(rank as u32), &members);
    quiescence.set_method(options.method);
    quiescence
}

fn coordinator(
    options: &Options,
    checkpoint: u64,
    first_checkpoint: u64,
    now: u64,
) -> CheckpointScheduler {
    let sets: Vec<(PeerId, SetId)> =
        (0..).map(PeerId).zip(options.sets.iter().copied().map(SetId)).collect();
    CheckpointScheduler::restored(config(options), &sets, checkpoint, first_checkpoint, now)
}

impl CheckpointWorld {
    /// Nothing has happened yet. Checkpoint 0 is the beginning of the job.
    pub fn new(options: &Options) -> Self {
        let threads = (0..options.ranks())
            .map(|rank| Thread {
                machine: quiescence(options, rank),
                orders: VecDeque::new(),
                entered: 0,
                answers: VecDeque::new(),
                computes: false,
                freezing: None,
                finished: false,
                late: false,
            })
            .collect();
        Self {
            coordinator: coordinator(options, 0, 1, 0),
            threads,
            words: BTreeMap::new(),
            images: BTreeMap::new(),
            scopes: BTreeMap::from([(0, CheckpointScope::Global)]),
            storing: Vec::new(),
            committing: Vec::new(),
            vectors: Vec::new(),
            exit: None,
            replaying: BTreeSet::new(),
            again: None,
            orders_left: options.orders,
            restarts_left: options.restarts,
            next_checkpoint: 1,
            now: 0,
            fence: false,
            report: CheckpointReport::default(),
        }
    }

    /// A process's machine.
    pub fn machine(&self, rank: usize) -> &Quiescence {
        &self.threads[rank].machine
    }

    /// After a restore.
    pub fn put_machine(&mut self, rank: usize, machine: Quiescence) {
        let thread = &mut self.threads[rank];
        thread.machine = machine;
        thread.orders.clear();
        thread.answers.clear();
        thread.freezing = None;
        thread.finished = false;
        thread.late = false;
        self.storing.retain(|(of, _)| *of != rank);
    }

    /// Does the program run, and does anybody make progress?
    pub fn may(&self, rank: usize) -> (bool, bool) {
        let thread = &self.threads[rank];
        let active = thread.machine.is_active();
        let polls = (active || !thread.computes) && thread.freezing.is_none();
        (!active && !thread.computes, polls)
    }

    /// Is nothing of a checkpoint under way anywhere?
    pub fn is_over(&self) -> bool {
        self.fence
            && self.coordinator.under_way() == 0
            && self.threads.iter().all(|t| t.machine.has_finished() && t.orders.is_empty())
    }

    /// Is this set restarted and still replaying?
    pub fn is_replaying(&self, set: u32) -> bool {
        self.replaying.contains(&set)
    }

    /// No faults any more.
    pub fn has_passed_the_fence(&self) -> bool {
        self.fence
    }
}

impl World {
    /// Checkpoint 0: the beginning.
    pub fn first_checkpoint(&mut self) {
        let images = (0..self.processes.len()).map(|rank| (rank, self.snapshot(rank))).collect();
        self.checkpoints.images.insert(0, images);
    }

    /// Maybe a step of a checkpoint. True: that was this step.
    pub fn checkpoint_step(&mut self) -> bool {
        if !self.shared.options.coordinated {
            return false;
        }
        self.checkpoints.now += 1;
        if !self.prng.chance(40) {
            return false;
        }
        let rank = self.prng.below(self.processes.len());
        let alive = !self.faults.has_failed(self.shared.options.sets[rank]);
        match self.prng.below(9) {
            0 => self.order(),
            1 | 2 if alive => self.obey(rank),
            3 => {
                self.read_answer(rank);
                self.report_replay_complete();
            }
            4 | 5 if alive => self.turn(rank),
            6 if alive => self.freeze(rank),
            7 => self.store_or_commit(),
            8 => self.fence_or_restart(rank),
            _ => {}
        }
        self.checkpoints.coordinator.check();
        self.checkpoints.threads[rank].machine.check();
        true
    }

    fn order(&mut self) {
        let now = self.checkpoints.now;
        if let Some(set) = self.checkpoints.again.take()
            && self.checkpoints.orders_left > 0
            && !self.checkpoints.fence
        {
            self.checkpoints.orders_left -= 1;
            self.coordinate(checkpoints::Input::RequestSetCheckpoint { set });
            return;
        }
        let rate = 2 * self.shared.options.fault_rate;
        let suspends = self.shared.options.suspends.is_some() && !self.checkpoints.fence;
        if suspends && self.prng.chance(rate) {
            let set = SetId(self.prng.pick(&self.shared.options.sets));
            return self.request_suspension(set);
        }
        if self.checkpoints.orders_left == 0 || self.checkpoints.fence || !self.prng.chance(rate) {
            if self.checkpoints.coordinator.next_deadline().is_some_and(|due| due <= now) {
                self.coordinate(checkpoints::Input::Tick);
            }
            return;
        }
        self.checkpoints.orders_left -= 1;
        let set = SetId(self.prng.pick(&self.shared.options.sets));
        let exit = self.checkpoints.restarts_left > 0 && self.prng.chance(20);
        let input = match self.prng.below(2) {
            0 => checkpoints::Input::RequestSetCheckpoint { set },
            _ => checkpoints::Input::RequestGlobalCheckpoint { exit },
        };
        self.coordinate(input);
    }

    /// A process's checkpoint thread reads an order.
    fn obey(&mut self, rank: usize) {
        let reads = self.prng.chance(30);
        let thread = &mut self.checkpoints.threads[rank];
        if thread.freezing.is_some() && !reads {
            return;
        }
        let Some(order) = thread.orders.pop_front() else { return };
        let order = match order {
            Order::Machine(order) => order,
            Order::SuspendLogging { before } => return self.suspend_logging(rank, before),
        };
        if matches!(order, Input::StopOutgoing { .. }) {
            self.read_endpoints(rank);
        }
        let thread = &mut self.checkpoints.threads[rank];
        let report = &mut self.checkpoints.report;
        match order {
            Input::Abort { .. } => {
                let phase = thread.machine.phase().map_or(7, |(_, phase)| phase as usize);
                report.aborted_in[phase] += 1;
            }
            Input::Begin { .. } => report.entered_late += u64::from(thread.computes),
            _ => {}
        }
        self.machine(rank, order);
    }

    /// Hand something to a machine, and carry out its outputs.
    fn machine(&mut self, rank: usize, input: Input) {
        let machine = &mut self.checkpoints.threads[rank].machine;
        if let Err(error) = machine.handle(input.clone()) {
            panic!("{rank}: {input:?}: {error}");
        }
        machine.check();
        self.carry_out(rank);
    }

    /// What the driver does with outputs.
    pub fn carry_out(&mut self, rank: usize) {
        let planted = self.shared.options.planted;
        while let Some(output) = self.checkpoints.threads[rank].machine.poll_output() {
            let process = &mut self.processes[rank];
            match output {
                Output::HoldOutgoing => match planted {
                    Some(Planted::OutgoingNotHeld) => {}
                    Some(Planted::MatchesNotHeld) => process.host.refuses_messages = true,
                    _ => process.engine.hold(Side::Outgoing),
                },
                Output::ReleaseOutgoing => {
                    process.host.refuses_messages = false;
                    process.engine.release(&mut process.host, Side::Outgoing);
                }
                Output::Enter { checkpoint } => {
                    self.checkpoints.threads[rank].entered = checkpoint;
                    if planted != Some(Planted::AcknowledgedAfterSnapshot) {
                        process.engine.set_acknowledging(None);
                    }
                    process.engine.hold(Side::Internal);
                }
                Output::Send { to, frame } => self.send_frame(rank, to, frame),
                Output::Arrive { checkpoint, phase, in_flight: open } => {
                    self.arrive(rank, (checkpoint, phase), open)
                }
                Output::Freeze { checkpoint } => {
                    self.checkpoints.threads[rank].freezing = Some(checkpoint);
                    if planted == Some(Planted::DeterminantsTrimmedEarly) {
                        let set = self.shared.options.sets[rank];
                        let images = BTreeMap::from([(rank, self.snapshot(rank))]);
                        self.cover_determinants(set, &images);
                    }
                    let early = [Planted::TrimBeforeCommit, Planted::WindowTrimmedEarly];
                    if early.map(Some).contains(&planted) {
                        self.trim_before_commit(rank);
                    }
                }
                Output::Answer(answer) => self.answer(rank, answer),
                Output::Resume { .. } => {
                    let lost = planted == Some(Planted::HeldFramesLost);
                    process.host.net(|net| net.swallow = lost);
                    process.engine.release(&mut process.host, Side::Internal);
                    process.host.net(|net| net.swallow = false);
                    self.checkpoints.threads[rank].freezing = None;
                }
            }
            self.processes[rank].settle(&mut self.shared);
        }
    }

    fn trim_before_commit(&mut self, rank: usize) {
        let held = self.snapshot(rank).held;
        let vectors = held.into_iter().map(|(to, held)| VectorMail { to, from: rank, held });
        self.checkpoints.vectors.extend(vectors);
    }

    fn send_frame(&mut self, rank: usize, to: PeerId, frame: CheckpointFrame) {
        let to_rank = to.0 as usize;
        let token = matches!(frame.what, CheckpointStep::Token { .. });
        self.checkpoints.report.flushes += u64::from(frame.what == CheckpointStep::Flush);
        let bug = self.shared.options.planted == Some(Planted::TokenPastHalfTaken);
        if bug && token && self.net.borrow_mut().wire(rank, to_rank).is_half() {
            let mut net = self.net.borrow_mut();
            let (from, to) = (net.incarnations[rank], net.incarnations[to_rank]);
            let header = frame.header(Incarnation(from), Incarnation(to));
            net.wire(rank, to_rank).inject(header.encode().to_vec());
            return;
        }
        let process = &mut self.processes[rank];
        process.engine.send_checkpoint_frame(&mut process.host, to, frame);
    }

    fn answer(&mut self, rank: usize, answer: CheckpointAnswer) {
        let input = checkpoints::Input::Answered { rank: PeerId(rank as u32), answer };
        self.checkpoints.threads[rank].answers.push_back(input);
    }

    /// One round of the driver's loop.
    fn turn(&mut self, rank: usize) {
        if !self.checkpoints.may(rank).1 {
            return;
        }
        let planted = self.shared.options.planted;
        while let Some((from, mut frame)) = self.processes[rank].host.checkpoint_frames.pop_front()
        {
            if planted == Some(Planted::StaleCheckpointAccepted)
                && let Some((checkpoint, _)) = self.checkpoints.threads[rank].machine.phase()
            {
                frame.checkpoint = frame.checkpoint.max(checkpoint);
            }
            self.machine(rank, Input::Frame { from, frame });
            if self.checkpoints.threads[rank].freezing.is_some() {
                return;
            }
        }
        let process = &mut self.processes[rank];
        let quiescent = process.engine.is_rendezvous_quiescent()
            || planted == Some(Planted::RendezvousQuiescenceSkipped);
        if self.checkpoints.threads[rank].machine.wants_rendezvous_quiescence() && quiescent {
            let mut recipients = process.engine.take_done_recipients();
            if planted == Some(Planted::FlushSkipped) {
                recipients.clear();
            }
            self.machine(rank, Input::RendezvousQuiescent { done_recipients: recipients });
        }
        self.count(rank);
    }

    /// The snapshot is taken.
    fn freeze(&mut self, rank: usize) {
        let Some(checkpoint) = self.checkpoints.threads[rank].freezing else { return };
        // Frames of the barrier that others wait for go out first.
        let process = &mut self.processes[rank];
        process.engine.flush(&mut process.host);
        process.settle(&mut self.shared);
        let failures = self.shared.options.storage_failures;
        if self.prng.chance(failures) {
            self.checkpoints.threads[rank].freezing = None;
            self.machine(
                rank,
                Input::SnapshotFailed { checkpoint, refusal: CheckpointRefusal::Snapshot },
            );
            return;
        }
        let global = self.checkpoints.scopes.get(&checkpoint) == Some(&CheckpointScope::Global);
        let sound = self.shared.options.planted != Some(Planted::SnapshotWhileReplaying);
        if global && sound && !self.has_completed_replay(rank) {
            self.checkpoints.report.refused += 1;
            self.checkpoints.threads[rank].freezing = None;
            self.checkpoints.threads[rank].late = true;
            self.machine(
                rank,
                Input::SnapshotFailed { checkpoint, refusal: CheckpointRefusal::ReplayPending },
            );
            return;
        }
        let process = &mut self.processes[rank];
        let date = process.clock(&self.shared);
        process.host.memory.decisions.before_snapshot(date);
        let image = self.snapshot(rank);
        self.checkpoints.report.held_frames += image.engine.held_frames() as u64;
        self.checkpoints.report.open_sends += image.engine.unfinished().2 as u64;
        self.checkpoints.images.entry(checkpoint).or_default().insert(rank, image);
        self.checkpoints.threads[rank].freezing = None;
        self.checkpoints.storing.push((rank, checkpoint));
        self.before_snapshot(rank, checkpoint);
        self.machine(rank, Input::Frozen { checkpoint });
        if self.shared.options.planted == Some(Planted::SetResumesEarly) {
            let set = self.members(self.shared.options.sets[rank]);
            if set.iter().all(|member| self.checkpoints.images[&checkpoint].contains_key(member)) {
                set.iter().for_each(|&member| self.machine(member, Input::Resume { checkpoint }));
            }
        }
        if self.shared.options.planted == Some(Planted::ResumeEarly) {
            self.checkpoints.threads[rank].computes = false;
            let process = &mut self.processes[rank];
            process.engine.release(&mut process.host, Side::Internal);
            process.settle(&mut self.shared);
        }
    }

    fn fence_or_restart(&mut self, rank: usize) {
        if self.checkpoints.exit.is_some() {
            self.restart_job();
            return;
        }
        let shared = &self.shared;
        let ended =
            |world: &Self| world.processes.iter().all(|process| process.is_finished(shared));
        if self.checkpoints.fence {
            let thread = &mut self.checkpoints.threads[rank];
            thread.computes = false;
            if !core::mem::replace(&mut thread.finished, true) {
                self.machine(rank, Input::Finish);
                let rank = PeerId(rank as u32);
                let finishing = checkpoints::Input::Finishing { rank };
                self.checkpoints.threads[rank.0 as usize].answers.push_back(finishing);
            }
        } else if self.faults.failed.is_empty() && ended(self) && self.prng.chance(10) {
            self.checkpoints.fence = true;
        } else if self.checkpoints.restarts_left > 0
            && self.prng.chance(self.shared.options.fault_rate)
        {
            self.checkpoints.restarts_left -= 1;
            self.restart_job();
        } else {
            let computes = self.prng.chance(25);
            self.checkpoints.threads[rank].computes = computes;
        }
    }
}

/// Phases as [`CheckpointReport::aborted_in`] counts them.
pub const PHASES: [Phase; 7] = [
    Phase::Eager,
    Phase::Rendezvous,
    Phase::Flush,
    Phase::FirstBarrier,
    Phase::Freeze,
    Phase::SecondBarrier,
    Phase::AwaitResume,
];

/// For messages.
pub fn describe(world: &CheckpointWorld, net: &Network) -> String {
    let threads = world.threads.iter().enumerate().map(|(rank, t)| {
        let phase = t.machine.phase();
        format!(
            "{rank}: {phase:?} last {:?} computes {} freezing {:?} orders {:?} answers {:?} \
             incarnation {}\n",
            t.machine.last_checkpoint(),
            t.computes,
            t.freezing,
            t.orders,
            t.answers,
            net.incarnations[rank],
        )
    });
    threads.collect()
}
