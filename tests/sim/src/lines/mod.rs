//! Lines taken by the real machines: each process has its `Quiescence`, the job a coordinator.
//!
//! What would be the checkpoint thread, guardian and agents are random steps here: orders and
//! answers travel in queues of their own, a picture takes its time, images are stored later or not
//! at all. A process that computes takes no part in anything until an order enters it.

mod back;
mod counting;
mod orders;

use crate::image::Image;
use crate::network::Network;
use crate::options::{Options, Planted};
use crate::prng::Prng;
use crate::world::World;
use rustbtl_coordination::interval::Interval;
use rustbtl_coordination::checkpoints::{self, Config, Lines};
use rustbtl_coordination::quiescence::{
    Answer, Count, Input, Output, Phase, Quiescence, Refusal, Scope,
};
use rustbtl_fragments::checkpoint_frame::{CheckpointFrame, CheckpointStep};
use rustbtl_fragments::engine::Side;
use rustbtl_fragments::ids::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Members' accounts of what they hold of a process's messages, on their way to it.
struct Account {
    to: usize,
    from: usize,
    held: Vec<u8>,
}

/// One process's checkpoint thread and guardian.
struct Thread {
    machine: Quiescence,
    orders: VecDeque<Input>,
    answers: VecDeque<lines::Input>,
    /// The program computes: nobody polls.
    computes: bool,
    freezing: Option<u64>,
    finished: bool,
    /// It has refused a global line, and not said since that it would not do so any more.
    late: bool,
}

/// What happened, for coverage.
#[derive(Clone, Copy, Default, Debug)]
pub struct LineReport {
    /// Lines of one set, and of all, that became complete.
    pub complete: [u64; 2],
    /// Aborts that met a process in each phase (and before it had entered).
    pub aborted_in: [u64; 8],
    /// Whole jobs started again.
    pub restarts: u64,
    /// Global lines that a process refused since something was not repaired.
    pub refused: u64,
    /// Frames that lines held, when pictures were taken.
    pub held_frames: u64,
    /// Flushes.
    pub flushes: u64,
    /// Pictures after counts alone: no rendezvous was open, one was.
    pub counted: [u64; 2],
    /// Processes that were entered while they computed.
    pub entered_late: u64,
    /// Log records that were trimmed.
    pub trimmed: u64,
    /// Synchronous sends and others that were open in a picture.
    pub open_sends: u64,
}

/// See the module's documentation.
pub struct LineWorld {
    coordinator: Lines,
    threads: Vec<Thread>,
    /// What each set counts in.
    words: BTreeMap<u32, [Count; 3]>,
    images: BTreeMap<u64, BTreeMap<usize, Image>>,
    scopes: BTreeMap<u64, Scope>,
    storing: Vec<(usize, u64)>,
    committing: Vec<u64>,
    accounts: Vec<Account>,
    exit: Option<u64>,
    behind: BTreeSet<u32>,
    again: Option<SetId>,
    orders_left: u32,
    restarts_left: u32,
    next_line: u64,
    now: u64,
    /// All programs have ended: MPI_Finalize's fence is passed.
    fence: bool,
    /// What happened.
    pub report: LineReport,
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
        kept_lines: options.kept_lines,
        silence_timeout_ms: options.timeout,
        store_timeout_ms: options.timeout,
        retry_ms: prng.below(3) as u64 * 100,
    }
}

fn silence(options: &Options, rank: usize) -> Quiescence {
    let members: Vec<PeerId> = (0..options.ranks())
        .filter(|&other| options.same_set(rank, other))
        .map(|other| PeerId(other as u32))
        .collect();
    let mut silence = Quiescence::new(PeerId(rank as u32), &members);
    silence.go(options.way);
    silence
}

fn coordinator(options: &Options, line: u64, first_line: u64, now: u64) -> Lines {
    let sets: Vec<(PeerId, SetId)> =
        (0..).map(PeerId).zip(options.sets.iter().copied().map(SetId)).collect();
    Lines::restored(config(options), &sets, line, first_line, now)
}

impl LineWorld {
    /// Nothing has happened yet. Line 0 is the beginning of the job.
    pub fn new(options: &Options) -> Self {
        let threads = (0..options.ranks())
            .map(|rank| Thread {
                machine: silence(options, rank),
                orders: VecDeque::new(),
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
            scopes: BTreeMap::from([(0, Scope::Global)]),
            storing: Vec::new(),
            committing: Vec::new(),
            accounts: Vec::new(),
            exit: None,
            behind: BTreeSet::new(),
            again: None,
            orders_left: options.orders,
            restarts_left: options.restarts,
            next_line: 1,
            now: 0,
            fence: false,
            report: LineReport::default(),
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

    /// Does the program run, and does anybody turn the wheel?
    pub fn may(&self, rank: usize) -> (bool, bool) {
        let thread = &self.threads[rank];
        let active = thread.machine.is_active();
        let polls = (active || !thread.computes) && thread.freezing.is_none();
        (!active && !thread.computes, polls)
    }

    /// Is nothing of a line under way anywhere?
    pub fn is_over(&self) -> bool {
        self.fence
            && self.coordinator.under_way() == 0
            && self.threads.iter().all(|t| t.machine.has_finished() && t.orders.is_empty())
    }

    /// Has this set come back and not caught up?
    pub fn is_behind(&self, set: u32) -> bool {
        self.behind.contains(&set)
    }

    /// No faults any more.
    pub fn is_past_the_fence(&self) -> bool {
        self.fence
    }
}

impl World {
    /// Line 0: the beginning.
    pub fn first_line(&mut self) {
        let images = (0..self.processes.len()).map(|rank| (rank, self.picture(rank))).collect();
        self.lines.images.insert(0, images);
    }

    /// Maybe a step of a line. True: that was this step.
    pub fn line_step(&mut self) -> bool {
        if !self.shared.options.coordinated {
            return false;
        }
        self.lines.now += 1;
        if !self.prng.chance(40) {
            return false;
        }
        let rank = self.prng.below(self.processes.len());
        let alive = !self.faults.is_dead(self.shared.options.sets[rank]);
        match self.prng.below(9) {
            0 => self.order(),
            1 | 2 if alive => self.obey(rank),
            3 => {
                self.hear(rank);
                self.catch_up();
            }
            4 | 5 if alive => self.turn(rank),
            6 if alive => self.freeze(rank),
            7 => self.store_or_commit(),
            8 => self.fence_or_restart(rank),
            _ => {}
        }
        self.lines.coordinator.check();
        self.lines.threads[rank].machine.check();
        true
    }

    fn order(&mut self) {
        let now = self.lines.now;
        if let Some(set) = self.lines.again.take()
            && self.lines.orders_left > 0
            && !self.lines.fence
        {
            self.lines.orders_left -= 1;
            self.coordinate(lines::Input::Demand { set });
            return;
        }
        let rate = 2 * self.shared.options.fault_rate;
        if self.lines.orders_left == 0 || self.lines.fence || !self.prng.chance(rate) {
            if self.lines.coordinator.next_deadline().is_some_and(|due| due <= now) {
                self.coordinate(lines::Input::Tick);
            }
            return;
        }
        self.lines.orders_left -= 1;
        let set = SetId(self.prng.pick(&self.shared.options.sets));
        let exit = self.lines.restarts_left > 0 && self.prng.chance(20);
        let input = match self.prng.below(2) {
            0 => lines::Input::Demand { set },
            _ => lines::Input::Checkpoint { exit },
        };
        self.coordinate(input);
    }

    /// A process's checkpoint thread reads an order.
    fn obey(&mut self, rank: usize) {
        let hears = self.prng.chance(30);
        let thread = &mut self.lines.threads[rank];
        if thread.freezing.is_some() && !hears {
            return;
        }
        let Some(order) = thread.orders.pop_front() else { return };
        if matches!(order, Input::StopOutgoing { .. }) {
            self.read_cards(rank);
        }
        let thread = &mut self.lines.threads[rank];
        let report = &mut self.lines.report;
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

    /// Hand something to a machine, and do what it says.
    fn machine(&mut self, rank: usize, input: Input) {
        let machine = &mut self.lines.threads[rank].machine;
        if let Err(error) = machine.handle(input.clone()) {
            panic!("{rank}: {input:?}: {error}");
        }
        machine.check();
        self.carry_out(rank);
    }

    /// What the driver does with outputs.
    pub fn carry_out(&mut self, rank: usize) {
        let planted = self.shared.options.planted;
        while let Some(output) = self.lines.threads[rank].machine.poll_output() {
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
                Output::Enter { .. } => process.engine.hold(Side::Internal),
                Output::Send { to, frame } => self.send_frame(rank, to, frame),
                Output::Come { line, station, open } => self.come(rank, (line, station), open),
                Output::Freeze { line } => {
                    self.lines.threads[rank].freezing = Some(line);
                    if planted == Some(Planted::DeterminantsTrimmedEarly) {
                        let set = self.shared.options.sets[rank];
                        let images = BTreeMap::from([(rank, self.picture(rank))]);
                        self.cover_determinants(set, &images);
                    }
                    if planted == Some(Planted::TrimBeforeCommit) {
                        self.trim_before_commit(rank);
                    }
                }
                Output::Answer(answer) => self.answer(rank, answer),
                Output::Resume { .. } => {
                    let lost = planted == Some(Planted::HeldFramesLost);
                    process.host.net(|net| net.swallow = lost);
                    process.engine.release(&mut process.host, Side::Internal);
                    process.host.net(|net| net.swallow = false);
                    self.lines.threads[rank].freezing = None;
                }
            }
            self.processes[rank].settle(&mut self.shared);
        }
    }

    fn trim_before_commit(&mut self, rank: usize) {
        let held = self.picture(rank).held;
        let accounts = held.into_iter().map(|(to, held)| Account { to, from: rank, held });
        self.lines.accounts.extend(accounts);
    }

    fn send_frame(&mut self, rank: usize, to: PeerId, frame: CheckpointFrame) {
        let to_rank = to.0 as usize;
        let token = matches!(frame.what, CheckpointStep::Token { .. });
        self.lines.report.flushes += u64::from(frame.what == CheckpointStep::Flush);
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

    fn answer(&mut self, rank: usize, answer: Answer) {
        let input = lines::Input::Answered { rank: PeerId(rank as u32), answer };
        self.lines.threads[rank].answers.push_back(input);
    }

    /// One round of the driver's loop.
    fn turn(&mut self, rank: usize) {
        if !self.lines.may(rank).1 {
            return;
        }
        let planted = self.shared.options.planted;
        while let Some((from, mut frame)) = self.processes[rank].host.line_frames.pop_front() {
            if planted == Some(Planted::StaleLineAccepted)
                && let Some((line, _)) = self.lines.threads[rank].machine.phase()
            {
                frame.checkpoint = frame.checkpoint.max(line);
            }
            self.machine(rank, Input::Frame { from, frame });
            if self.lines.threads[rank].freezing.is_some() {
                return;
            }
        }
        let process = &mut self.processes[rank];
        let silent = process.engine.is_rendezvous_quiescent()
            || planted == Some(Planted::RendezvousSilenceSkipped);
        if self.lines.threads[rank].machine.wants_rendezvous_silence() && silent {
            let mut told = process.engine.take_done_recipients();
            if planted == Some(Planted::FlushSkipped) {
                told.clear();
            }
            self.machine(rank, Input::RendezvousQuiescent { told });
        }
        self.count(rank);
    }

    /// The picture is taken.
    fn freeze(&mut self, rank: usize) {
        let Some(line) = self.lines.threads[rank].freezing else { return };
        // Frames of the barrier that others wait for go out first.
        let process = &mut self.processes[rank];
        process.engine.flush(&mut process.host);
        process.settle(&mut self.shared);
        let failures = self.shared.options.failures;
        if self.prng.chance(failures) {
            self.lines.threads[rank].freezing = None;
            self.machine(rank, Input::NotFrozen { line, why: Refusal::SnapshotMemory });
            return;
        }
        let global = self.lines.scopes.get(&line) == Some(&Scope::Global);
        let sound = self.shared.options.planted != Some(Planted::PicturedBehind);
        if global && sound && !self.has_caught_up(rank) {
            self.lines.report.refused += 1;
            self.lines.threads[rank].freezing = None;
            self.lines.threads[rank].late = true;
            self.machine(rank, Input::NotFrozen { line, why: Refusal::Behind });
            return;
        }
        let process = &mut self.processes[rank];
        let date = process.clock(&self.shared);
        process.host.memory.decisions.pictured(date);
        let image = self.picture(rank);
        self.lines.report.held_frames += image.engine.held_frames() as u64;
        self.lines.report.open_sends += image.engine.unfinished().2 as u64;
        self.lines.images.entry(line).or_default().insert(rank, image);
        self.lines.threads[rank].freezing = None;
        self.lines.storing.push((rank, line));
        self.pictured(rank, line);
        self.machine(rank, Input::Frozen { line });
        if self.shared.options.planted == Some(Planted::SetResumesEarly) {
            let set = self.members(self.shared.options.sets[rank]);
            if set.iter().all(|member| self.lines.images[&line].contains_key(member)) {
                set.iter().for_each(|&member| self.machine(member, Input::Resume { line }));
            }
        }
        if self.shared.options.planted == Some(Planted::ResumeEarly) {
            self.lines.threads[rank].computes = false;
            let process = &mut self.processes[rank];
            process.engine.release(&mut process.host, Side::Internal);
            process.settle(&mut self.shared);
        }
    }

    fn fence_or_restart(&mut self, rank: usize) {
        if self.lines.exit.is_some() {
            self.restart_job();
            return;
        }
        let shared = &self.shared;
        let ended =
            |world: &Self| world.processes.iter().all(|process| process.is_finished(shared));
        if self.lines.fence {
            let thread = &mut self.lines.threads[rank];
            thread.computes = false;
            if !core::mem::replace(&mut thread.finished, true) {
                self.machine(rank, Input::Finish);
                let rank = PeerId(rank as u32);
                let finishing = lines::Input::Finishing { rank };
                self.lines.threads[rank.0 as usize].answers.push_back(finishing);
            }
        } else if self.faults.dead.is_empty() && ended(self) && self.prng.chance(10) {
            self.lines.fence = true;
        } else if self.lines.restarts_left > 0 && self.prng.chance(self.shared.options.fault_rate) {
            self.lines.restarts_left -= 1;
            self.restart_job();
        } else {
            let computes = self.prng.chance(25);
            self.lines.threads[rank].computes = computes;
        }
    }
}

/// Phases as [`LineReport::aborted_in`] counts them.
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
pub fn describe(world: &LineWorld, net: &Network) -> String {
    let threads = world.threads.iter().enumerate().map(|(rank, t)| {
        let phase = t.machine.phase();
        format!(
            "{rank}: {phase:?} last {:?} computes {} freezing {:?} orders {:?} answers {:?} \
             incarnation {}\n",
            t.machine.last_line(),
            t.computes,
            t.freezing,
            t.orders,
            t.answers,
            net.incarnations[rank],
        )
    });
    threads.collect()
}
