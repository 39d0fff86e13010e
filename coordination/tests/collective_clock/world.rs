//! A job in one thread: programs, the library below, the clocks of all ranks, the coordinator's
//! drain, the connections between them, and a scheduler of checkpoints that is the test. Which
//! of all that can happen happens next is drawn.

mod mpi;

use crate::library::{Key, Library};
use crate::program::{Op, Program};
use rustbtl_coordination::collective_clock::*;
use rustbtl_coordination::control::{FromClock, ToClock};
use rustbtl_coordination::quiescence::CheckpointRefusal;
use rustbtl_fragments::ids::PeerId;
use rustbtl_seeds::{Prng, mix};
use std::collections::{BTreeMap, VecDeque};

/// Bugs that must be found. Of the driver where nothing else is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// Targets that a rank raises while it drains reach nobody.
    TargetNotRaised,
    /// Blocking collectives count when they are left.
    CountedAtLeaving,
    /// The hash does not depend on the members: all communicators count as one.
    NoMembership,
    /// Similar communicators share one counter, as in the paper.
    SharedBySimilar,
    /// The snapshot is taken when all but one are drained.
    SnapshotEarly,
    /// Nonblocking ones count as complete when they are started.
    NonblockingNotCompleted,
    /// Lifts reach nobody.
    LiftForgotten,
    /// Nobody says for whom he waits.
    WaitsNotReported,
    /// Coordinator: what a rank says counts, whatever it was sent since.
    StaleState,
    /// Calls of the library are stopped like the program's.
    NestedStopped,
    /// One rank does not learn that a checkpoint was aborted.
    ReleaseForgotten,
    /// A communicator is registered when it is used first.
    RegisteredLate,
}

/// What happened.
#[derive(Clone, Copy, Default, Debug)]
pub struct Report {
    pub drains: usize,
    pub snapshots: usize,
    pub restarts: usize,
    pub aborts: usize,
    pub stops: usize,
    pub raises: usize,
    pub lifts: usize,
    pub joined: usize,
    pub refused: usize,
    pub failed: usize,
    pub began_while_held: usize,
    pub late: usize,
}

enum FromRank {
    Clock(FromClock),
    Refused(u64, CheckpointRefusal),
}

enum ToRank {
    Order(ToClock),
    Release(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Ready,
    Stopped(u32),
    /// The entry is passed.
    Entered,
    /// In its so-manieth part.
    Inside(usize, Key),
    /// A synchronous send is received when so many are.
    Sending(usize, usize),
}

struct Request {
    /// None: complete, or between two stages.
    key: Option<Key>,
    /// Of MPI_Comm_idup: communicators, stages begun.
    idup: Option<(usize, usize, usize)>,
    result: u64,
    is_complete: bool,
}

struct Rank {
    clock: CollectiveClock,
    handles: BTreeMap<usize, CommHandle>,
    at: usize,
    phase: Phase,
    value: u64,
    /// What came from anybody: in any order the same.
    sum: u64,
    computed: usize,
    requests: BTreeMap<u64, Request>,
    reported: Vec<PeerId>,
}

/// What can happen.
#[derive(Clone, Copy, Debug)]
enum Action {
    Step(usize),
    Progress(usize),
    Up(usize),
    Down(usize),
    ReportBlocked(usize),
    Begin,
    Abort,
    Fail,
    Snapshot,
    Tick,
}

/// What a seed or a test chooses.
#[derive(Clone, Copy)]
pub struct Options {
    pub planted: Option<Planted>,
    /// Checkpoints to order.
    pub checkpoints: usize,
    /// In percent of the moments at which one can be.
    pub aborts: u32,
    /// MPI_Comm_idup counts as a whole, too.
    pub idup_counts: bool,
    /// Steps of the world after which a drain is given up; else no drain may need that.
    pub timeout: Option<u64>,
}

pub struct World {
    pub program: Program,
    prng: Prng,
    options: Options,
    library: Library,
    ranks: Vec<Rank>,
    drain: CollectiveDrain,
    up: Vec<VecDeque<FromRank>>,
    down: Vec<VecDeque<ToRank>>,
    /// Messages of this drain that each rank was sent.
    orders: Vec<u32>,
    mail: BTreeMap<(usize, usize), VecDeque<u64>>,
    received: BTreeMap<(usize, usize), usize>,
    sent: BTreeMap<(usize, usize), usize>,
    from_anybody: Vec<VecDeque<u64>>,
    now: u64,
    checkpoint: u64,
    /// The checkpoint under way; is it drained?
    active: Option<bool>,
    pub report: Report,
    pub given_up: Vec<DrainFailure>,
}

impl World {
    pub fn new(program: Program, seed: u64, options: Options) -> Self {
        let n = program.ranks.len();
        let ids: Vec<PeerId> = (0..n as u32).map(PeerId).collect();
        let rank = |&id: &PeerId| Rank {
            clock: CollectiveClock::new(id),
            handles: BTreeMap::new(),
            at: 0,
            phase: Phase::Ready,
            value: id.0.into(),
            sum: 0,
            computed: 0,
            requests: BTreeMap::new(),
            reported: Vec::new(),
        };
        let mut world = Self {
            prng: crate::prng_of(seed),
            options,
            library: Library::default(),
            ranks: ids.iter().map(rank).collect(),
            drain: CollectiveDrain::new(&ids, options.timeout.unwrap_or(1_000_000_000)),
            up: (0..n).map(|_| VecDeque::new()).collect(),
            down: (0..n).map(|_| VecDeque::new()).collect(),
            orders: vec![0; n],
            mail: BTreeMap::new(),
            received: BTreeMap::new(),
            sent: BTreeMap::new(),
            from_anybody: vec![VecDeque::new(); n],
            now: 0,
            checkpoint: 0,
            active: None,
            report: Report::default(),
            given_up: Vec::new(),
            program,
        };
        for comm in 0..world.program.comms.len() {
            if world.program.comms[comm].is_old {
                for rank in world.program.comms[comm].members.clone() {
                    world.register(rank, comm);
                }
            }
        }
        world
    }

    fn has(&self, planted: Planted) -> bool {
        self.options.planted == Some(planted)
    }

    fn register(&mut self, rank: usize, comm: usize) {
        let all: Vec<usize> = (0..self.ranks.len()).collect();
        let of = &self.program.comms[comm];
        let (members, context) = match self.options.planted {
            Some(Planted::NoMembership) => (&all, 0),
            Some(Planted::SharedBySimilar) => (&of.members, 0),
            _ => (&of.members, of.context),
        };
        let members: Vec<PeerId> = members.iter().map(|&rank| PeerId(rank as u32)).collect();
        self.report.joined += usize::from(self.ranks[rank].clock.is_draining());
        let handle = self.ranks[rank].clock.register(&members, context).unwrap();
        self.ranks[rank].handles.insert(comm, handle);
        self.collect(rank);
    }

    fn handle(&mut self, rank: usize, comm: usize) -> CommHandle {
        if !self.ranks[rank].handles.contains_key(&comm) {
            self.register(rank, comm);
        }
        self.ranks[rank].handles[&comm]
    }

    /// A call that nobody stops.
    fn count(&mut self, rank: usize, comm: usize) {
        let handle = self.handle(rank, comm);
        assert_eq!(self.ranks[rank].clock.enter(handle, Call::Nested), Entry::Go, "Y3");
        self.collect(rank);
    }

    fn leave(&mut self, rank: usize) {
        self.ranks[rank].clock.leave();
        self.collect(rank);
    }

    /// Carry out what a rank's clock wants.
    fn collect(&mut self, rank: usize) {
        self.ranks[rank].clock.check();
        while let Some(output) = self.ranks[rank].clock.poll_output() {
            match output {
                Output::Send(FromClock::Raised { .. }) if self.has(Planted::TargetNotRaised) => {}
                Output::Send(message) => self.up[rank].push_back(FromRank::Clock(message)),
                Output::Refuse { checkpoint, refusal } => {
                    self.up[rank].push_back(FromRank::Refused(checkpoint, refusal));
                }
                Output::Go { stop } => {
                    if let Phase::Stopped(at) = self.ranks[rank].phase
                        && at <= stop
                    {
                        self.ranks[rank].phase = Phase::Entered;
                    }
                }
            }
        }
    }

    fn op(&self, rank: usize) -> Option<Op> {
        self.program.ranks[rank].get(self.ranks[rank].at).copied()
    }

    fn next(&mut self, rank: usize) {
        self.ranks[rank].at += 1;
        self.ranks[rank].phase = Phase::Ready;
    }

    /// Carry out what the coordinator wants.
    fn coordinate(&mut self, input: DrainInput) {
        self.drain.handle(self.now, input).unwrap();
        self.drain.check();
        while let Some(output) = self.drain.poll_output() {
            match output {
                DrainOutput::Send { rank, message } => {
                    let rank = rank.0 as usize;
                    let message = match message {
                        ToClock::Lift { checkpoint, .. } if self.has(Planted::LiftForgotten) => {
                            ToClock::Lift { checkpoint, stop: 0 }
                        }
                        other => other,
                    };
                    match message {
                        ToClock::Drain { .. } => self.orders[rank] = 0,
                        ToClock::Raise { .. } => self.report.raises += 1,
                        ToClock::Lift { .. } => self.report.lifts += 1,
                    }
                    self.orders[rank] += 1;
                    self.down[rank].push_back(ToRank::Order(message));
                }
                DrainOutput::Drained { checkpoint } => {
                    assert_eq!((checkpoint, self.active), (self.checkpoint, Some(false)), "Y7");
                    self.report.drains += 1;
                    self.active = Some(true);
                }
                DrainOutput::GiveUp { checkpoint, reason } => {
                    assert_eq!(checkpoint, self.checkpoint);
                    assert!(self.active.is_some(), "Y7: it ends once");
                    self.on_given_up(reason);
                    self.release();
                }
            }
        }
    }

    fn on_given_up(&mut self, reason: DrainFailure) {
        self.given_up.push(reason);
        match reason {
            DrainFailure::Refused(..) => self.report.refused += 1,
            DrainFailure::RankFailed(_) => self.report.failed += 1,
            DrainFailure::BeganWhileHeld(_) => {
                assert!(!self.options.idup_counts, "Y2: {reason}");
                self.report.began_while_held += 1;
            }
            DrainFailure::Timeout(..) | DrainFailure::NoAnswer(_) => {
                assert!(self.options.timeout.is_some(), "a drain does not end: {reason}");
                self.report.late += 1;
            }
            DrainFailure::OtherJob(..) => panic!("{reason}"),
        }
    }

    /// The checkpoint is over: all ranks are sent `Resume` or `Abort`.
    fn release(&mut self) {
        self.active = None;
        for rank in 0..self.ranks.len() {
            if rank > 0 || !self.has(Planted::ReleaseForgotten) {
                self.down[rank].push_back(ToRank::Release(self.checkpoint));
            }
        }
    }

    fn up(&mut self, rank: usize) -> bool {
        let Some(message) = self.up[rank].pop_front() else { return false };
        let id = PeerId(rank as u32);
        self.coordinate(match message {
            FromRank::Clock(FromClock::State {
                checkpoint, hindrance, stop, waits_for, ..
            }) if self.has(Planted::StaleState) && checkpoint.0 == self.checkpoint => {
                let orders = self.orders[rank];
                let message = FromClock::State { checkpoint, orders, hindrance, stop, waits_for };
                DrainInput::Message { rank: id, message }
            }
            FromRank::Clock(message) => DrainInput::Message { rank: id, message },
            FromRank::Refused(checkpoint, refusal) => {
                DrainInput::Refused { rank: id, checkpoint, refusal }
            }
        });
        true
    }

    fn down(&mut self, rank: usize) -> bool {
        let Some(message) = self.down[rank].pop_front() else { return false };
        let input = match message {
            ToRank::Order(order) => Input::Order(order),
            ToRank::Release(checkpoint) => Input::Release { checkpoint },
        };
        self.ranks[rank].clock.handle(input).unwrap();
        self.collect(rank);
        true
    }

    /// All are frozen: nothing of any collective is half done, whatever the ranks are doing else.
    fn snapshot(&mut self) -> bool {
        let is_early = self.has(Planted::SnapshotEarly)
            && self.active == Some(false)
            && self.drain.awaited().count() <= 1;
        if self.active != Some(true) && !is_early {
            return false;
        }
        // What a rank has sent is handled before its answer that it is frozen.
        for rank in 0..self.ranks.len() {
            while !self.up[rank].is_empty() {
                self.up(rank);
            }
        }
        if self.active != Some(true) && !is_early {
            return true;
        }
        assert_eq!(self.library.half_done(), 0, "Y4: a collective is half done in a snapshot");
        for (at, rank) in self.ranks.iter().enumerate() {
            assert!(!matches!(rank.phase, Phase::Inside(..)), "Y4: rank {at} is inside");
        }
        self.report.snapshots += 1;
        let checkpoint = self.checkpoint;
        self.coordinate(DrainInput::End { checkpoint });
        if self.prng.chance(50) {
            self.report.restarts += 1;
            self.library.lose();
            self.active = None;
            for rank in 0..self.ranks.len() {
                self.down[rank].clear();
                self.up[rank].clear();
                self.ranks[rank].clock.handle(Input::Restored).unwrap();
                self.ranks[rank].reported.clear();
                self.collect(rank);
            }
        } else {
            self.release();
        }
        true
    }

    fn report_blocked(&mut self, rank: usize) -> bool {
        let blocked = self.blocked_on(rank);
        let is_news = blocked != self.ranks[rank].reported;
        if !self.ranks[rank].clock.is_draining() || !is_news || self.has(Planted::WaitsNotReported)
        {
            return false;
        }
        self.ranks[rank].reported = blocked.clone();
        self.ranks[rank].clock.handle(Input::Blocked { waits_for: blocked }).unwrap();
        self.collect(rank);
        true
    }

    /// True: something has happened.
    fn act(&mut self, action: Action) -> bool {
        match action {
            Action::Step(rank) => self.step(rank),
            Action::Progress(rank) => {
                (self.is_in_mpi(rank) || self.ranks[rank].clock.wants_progress())
                    && self.progress(rank)
            }
            Action::Up(rank) => self.up(rank),
            Action::Down(rank) => self.down(rank),
            Action::ReportBlocked(rank) => self.report_blocked(rank),
            Action::Begin => {
                let can = self.active.is_none() && self.options.checkpoints > 0;
                if can && self.prng.chance(10) {
                    self.begin();
                }
                can
            }
            Action::Abort => {
                let now = self.active.is_some() && self.prng.chance(self.options.aborts);
                if now {
                    self.report.aborts += 1;
                    let checkpoint = self.checkpoint;
                    self.coordinate(DrainInput::End { checkpoint });
                    self.release();
                }
                now
            }
            Action::Fail => {
                let now = self.active.is_some()
                    && self.options.aborts > 0
                    && self.prng.chance(1)
                    && self.prng.chance(20);
                if now {
                    self.coordinate(DrainInput::RankFailed { rank: PeerId(0) });
                }
                now
            }
            Action::Snapshot => self.snapshot(),
            Action::Tick => {
                let is_due = self.drain.next_deadline().is_some_and(|due| due <= self.now);
                if is_due {
                    self.coordinate(DrainInput::Tick);
                }
                is_due
            }
        }
    }

    /// Order a checkpoint.
    pub fn begin(&mut self) {
        assert!(self.active.is_none());
        self.options.checkpoints -= 1;
        self.checkpoint += 1;
        self.active = Some(false);
        let checkpoint = self.checkpoint;
        self.coordinate(DrainInput::Begin { checkpoint });
    }

    fn is_over(&self) -> bool {
        self.active.is_none()
            && (0..self.ranks.len()).all(|rank| {
                self.op(rank).is_none() && self.up[rank].is_empty() && self.down[rank].is_empty()
            })
    }

    /// Let things happen until all programs have ended. What each rank has seen.
    pub fn run(&mut self) -> Vec<u64> {
        let n = self.ranks.len();
        let mut actions = vec![Action::Abort, Action::Fail, Action::Snapshot, Action::Tick];
        if self.options.checkpoints > 0 {
            actions.push(Action::Begin);
        }
        for rank in 0..n {
            actions.extend([Action::Step(rank), Action::Progress(rank), Action::Up(rank)]);
            actions.extend([Action::Down(rank), Action::ReportBlocked(rank)]);
        }
        while !self.is_over() {
            self.now += 1;
            assert!(self.now < 1_000_000, "it never ends");
            let mut left = actions.len();
            let happened = loop {
                if left == 0 {
                    break false;
                }
                let at = self.prng.below(left);
                left -= 1;
                actions.swap(at, left);
                if self.act(actions[left]) {
                    break true;
                }
            };
            if !happened {
                let deadline = self.drain.next_deadline();
                self.now = deadline.unwrap_or_else(|| panic!("all wait for ever: {}", self.text()));
                self.coordinate(DrainInput::Tick);
                // Y6: lifts are for that; a time-out is for programs that do not go on.
                let text = self.text();
                panic!("a drain does not end: {:?}; {text}", self.given_up.last());
            }
        }
        assert_eq!(self.library.half_done(), 0);
        for (at, comm) in self.program.comms.iter().enumerate() {
            let counts = comm.members.iter().filter_map(|&rank| {
                let rank = &self.ranks[rank];
                rank.handles.get(&at).map(|&handle| rank.clock.sequence(handle))
            });
            let counts: Vec<u64> = counts.collect();
            assert!(counts.windows(2).all(|pair| pair[0] == pair[1]), "Y1: {counts:?}");
        }
        self.ranks.iter().map(|rank| mix(rank.value, rank.sum)).collect()
    }

    fn text(&self) -> String {
        let rank = |at: usize| format!("{at}: {:?} {:?}", self.ranks[at].phase, self.op(at));
        (0..self.ranks.len()).map(rank).collect::<Vec<_>>().join("; ")
    }
}

impl Report {
    pub fn add(&mut self, other: &Self) {
        self.drains += other.drains;
        self.snapshots += other.snapshots;
        self.restarts += other.restarts;
        self.aborts += other.aborts;
        self.stops += other.stops;
        self.raises += other.raises;
        self.lifts += other.lifts;
        self.joined += other.joined;
        self.refused += other.refused;
        self.failed += other.failed;
        self.began_while_held += other.began_while_held;
        self.late += other.late;
    }
}
