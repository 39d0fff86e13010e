//! The collective clock: where no collective is half done. One process counts the collectives that
//! it enters, by communicator. For a checkpoint all go on until each has entered what any other
//! has entered, and has left it.
//!
//! Source: Y. Xu, G. Cooperman, "Enabling Practical Transparent Checkpointing for MPI: A
//! Topological Sort Approach", 2024, section 4; docs/adr/0038 says where this differs and why. It
//! is phase 0 of a global checkpoint, and only where functions of a communicator bypass rustbtl
//! (hcoll, ucc, shared memory of other components): what they have under way is in no image.
//!
//! ```text
//!  counting ─Drain─> below target <─Raise── at target ─next entry─> stopped
//!      ^                  └── all entered and left ──^   <─Raise, Lift──┘
//!      └──────────────────── Release (Resume or Abort), from anywhere
//! ```
//!
//! Here is the part of a process; `coordinator.rs` has the other one. Invariants of both:
//! * Y1 Each call is counted once, when it is entered (a nonblocking one when it is started, a
//!   persistent one at each start). Counters never fall, whatever becomes of a checkpoint.
//! * Y2 A process that has reached all of its targets enters no collective of the program until one
//!   is raised, its stop is lifted or the checkpoint is over.
//! * Y3 A process that is below a target is stopped nowhere; nor is a call from inside MPI, ever.
//! * Y4 `Drained` only when, at each process, all collectives that any process has entered are
//!   entered and left, nonblocking ones complete.
//! * Y5 What a process says of itself counts only if it says so after all that it was sent.
//! * Y6 Whoever waits for a process that is stopped, while others wait for him, has it go on.
//! * Y7 A drain that began ends in `Drained` or `GiveUp`; after `Drained` it is given up if a
//!   collective begins. When the checkpoint is over nobody is stopped.
//! * Y8 Messages of a checkpoint that is over change nothing.
//!
//! Cost while there is no drain: one increment at the entry, one when it is left or complete.

mod coordinator;
mod groups;
mod io;

use crate::control::{CheckpointId, ClockCounter, FromClock, Hindrance, MemberRuns, ToClock};
use crate::quiescence::CheckpointRefusal;
pub use coordinator::CollectiveDrain;
use groups::Communicators;
pub use groups::GroupHash;
pub use io::{
    Call, ClockError, CommHandle, DrainFailure, DrainInput, DrainOutput, Entry, Input, Output,
};
use rustbtl_fragments::ids::PeerId;
use std::collections::VecDeque;

/// What a process has last said of itself.
type Said = (u32, Hindrance, u32, Vec<PeerId>);

/// A drain, at a process.
#[derive(Clone, Debug)]
struct Drain {
    checkpoint: u64,
    /// By handle.
    targets: Vec<u64>,
    /// Communicators whose counter is below its target.
    below: usize,
    /// Calls counted, of all communicators.
    entered: u64,
    /// Calls that wait at their entry: number, communicator.
    stops: VecDeque<(u32, CommHandle)>,
    /// Messages of this drain that have come.
    orders: u32,
    said: Option<Said>,
}

/// The clock of one process. See the module's documentation.
#[derive(Clone, Debug)]
pub struct CollectiveClock {
    me: PeerId,
    /// SEQ, by handle: collectives entered.
    counters: Vec<u64>,
    /// Of all communicators: collectives that were left, or are complete.
    left: u64,
    drain: Option<Drain>,
    communicators: Communicators,
    waits_for: Vec<PeerId>,
    /// Number of the youngest stop; each has its own, from 1.
    stop: u32,
    /// The youngest checkpoint that is over here.
    last: Option<u64>,
    finishing: bool,
    outputs: VecDeque<Output>,
}

impl CollectiveClock {
    /// The clock of process `me`.
    pub fn new(me: PeerId) -> Self {
        Self {
            me,
            counters: Vec::new(),
            left: 0,
            drain: None,
            communicators: Communicators::default(),
            waits_for: Vec::new(),
            stop: 0,
            last: None,
            finishing: false,
            outputs: VecDeque::new(),
        }
    }

    /// A communicator was made, or is one of MPI's own. `members`: its processes in any order, of
    /// both groups where it has two. `context`: MPI's context id, without instance: the same at all
    /// members, no other of theirs has it. Nothing is to be done when it is freed.
    ///
    /// # Errors
    /// [`ClockError::NotMember`].
    pub fn register(&mut self, members: &[PeerId], context: u32) -> Result<CommHandle, ClockError> {
        if !members.contains(&self.me) {
            return Err(ClockError::NotMember(self.me));
        }
        let mut sorted = members.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let hash = GroupHash::of(&sorted);
        let (handle, is_new) = self.communicators.register(hash, sorted, context);
        if is_new {
            self.counters.push(0);
            if let Some(drain) = &mut self.drain {
                drain.targets.push(0);
                let checkpoint = CheckpointId(drain.checkpoint);
                let counters = vec![self.counter_of(handle)];
                self.send(FromClock::Counters { checkpoint, counters });
            }
        }
        Ok(handle)
    }

    /// A collective is called on this communicator: before the function below is. All of them
    /// count: blocking, nonblocking, MPI_Start of a persistent one, of neighbours, those that
    /// make communicators, those that the library calls by itself.
    ///
    /// Without a drain this is one test of a flag that hardly ever changes and one increment.
    ///
    /// # Panics
    /// If `register` has not given this handle.
    #[inline]
    pub fn enter(&mut self, communicator: CommHandle, call: Call) -> Entry {
        if self.drain.is_some() {
            return self.enter_drained(communicator, call);
        }
        self.counters[communicator.0 as usize] += 1;
        Entry::Go
    }

    /// A blocking collective returns, or the request of a nonblocking or persistent one is
    /// complete, whether the program has tested it or not; once for each `Go`.
    #[inline]
    pub fn leave(&mut self) {
        self.left += 1;
        if self.drain.is_some() {
            self.report();
        }
    }

    /// Something has happened.
    ///
    /// # Errors
    /// The coordinator broke the protocol; nothing has changed.
    pub fn handle(&mut self, input: Input) -> Result<(), ClockError> {
        match input {
            Input::Order(order) => self.on_order(order)?,
            Input::Blocked { waits_for } => self.waits_for = waits_for,
            Input::Release { checkpoint } => self.over(checkpoint),
            Input::Finish => {
                self.finishing = true;
                if let Some(drain) = &self.drain {
                    self.refuse(drain.checkpoint);
                }
            }
            Input::Restored => {
                self.outputs.clear();
                self.waits_for.clear();
                if let Some(drain) = &self.drain {
                    self.over(drain.checkpoint);
                }
            }
        }
        self.report();
        Ok(())
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// A drain is under way: `Blocked` is of use.
    pub fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// Nonblocking collectives of this process have to come to their end: the driver makes MPI's
    /// progress where the program does not.
    pub fn wants_progress(&self) -> bool {
        self.drain.as_ref().is_some_and(|drain| drain.entered != self.left)
    }

    /// Collectives that this process has entered on this communicator.
    pub fn sequence(&self, communicator: CommHandle) -> u64 {
        self.counters[communicator.0 as usize]
    }

    /// The paper's SEQ: the same for all communicators with the same processes.
    pub fn group_sequence(&self, communicator: CommHandle) -> u64 {
        self.communicators.similar(communicator).map(|same| self.sequence(same)).sum()
    }

    /// The paper's ggid.
    pub fn group(&self, communicator: CommHandle) -> GroupHash {
        self.communicators.hash(communicator)
    }

    fn send(&mut self, message: FromClock) {
        self.outputs.push_back(Output::Send(message));
    }

    fn counter_of(&self, handle: CommHandle) -> ClockCounter {
        ClockCounter {
            clock: handle.0,
            context: self.communicators.context(handle),
            group: self.communicators.hash(handle).0,
            sequence: self.sequence(handle),
            members: MemberRuns::of(self.communicators.members(handle)),
        }
    }

    /// Y2, Y3.
    #[cold]
    fn enter_drained(&mut self, communicator: CommHandle, call: Call) -> Entry {
        assert!((communicator.0 as usize) < self.counters.len(), "no such communicator");
        let stop = self.stop + 1;
        match &mut self.drain {
            Some(drain) if call == Call::Program && drain.below == 0 && !self.finishing => {
                drain.stops.push_back((stop, communicator));
                self.stop = stop;
                self.report();
                Entry::Stop(stop)
            }
            _ => {
                self.count(communicator);
                self.report();
                Entry::Go
            }
        }
    }

    /// Y1, while there is a drain.
    fn count(&mut self, communicator: CommHandle) {
        let at = communicator.0 as usize;
        self.counters[at] += 1;
        let sequence = self.counters[at];
        let Some(drain) = &mut self.drain else { return };
        drain.entered += 1;
        if sequence == drain.targets[at] {
            drain.below -= 1;
        } else if sequence > drain.targets[at] {
            drain.targets[at] = sequence;
            let checkpoint = CheckpointId(drain.checkpoint);
            self.send(FromClock::Raised { checkpoint, clock: communicator.0, sequence });
        }
    }

    /// Stopped calls with this number or a lower one go on.
    fn go(&mut self, upto: u32) {
        let Some(drain) = &mut self.drain else { return };
        let count = drain.stops.iter().take_while(|(stop, _)| *stop <= upto).count();
        let going: Vec<_> = drain.stops.drain(..count).collect();
        for &(_, communicator) in &going {
            self.count(communicator);
        }
        if let Some(&(stop, _)) = going.last() {
            self.outputs.push_back(Output::Go { stop });
        }
    }

    fn on_order(&mut self, order: ToClock) -> Result<(), ClockError> {
        let (ToClock::Drain { checkpoint: CheckpointId(number) }
        | ToClock::Raise { checkpoint: CheckpointId(number), .. }
        | ToClock::Lift { checkpoint: CheckpointId(number), .. }) = order;
        if let ToClock::Drain { .. } = order {
            self.begin(number);
            return Ok(());
        }
        let Some(drain) = self.drain.as_mut().filter(|drain| drain.checkpoint == number) else {
            return Ok(());
        };
        match order {
            ToClock::Drain { .. } => {}
            ToClock::Raise { targets, .. } => {
                let known = drain.targets.len();
                if let Some(wrong) = targets.iter().find(|raised| raised.clock as usize >= known) {
                    return Err(ClockError::Clock(wrong.clock));
                }
                drain.orders += 1;
                for raised in targets {
                    let at = raised.clock as usize;
                    let (sequence, target) = (self.counters[at], &mut drain.targets[at]);
                    drain.below += usize::from(*target <= sequence && sequence < raised.target);
                    *target = raised.target.max(*target);
                }
                if drain.below > 0 {
                    self.go(u32::MAX);
                }
            }
            ToClock::Lift { stop, .. } => {
                drain.orders += 1;
                self.go(stop);
            }
        }
        Ok(())
    }

    fn begin(&mut self, checkpoint: u64) {
        let is_over = self.last.is_some_and(|last| checkpoint <= last);
        if is_over || self.drain.as_ref().is_some_and(|drain| drain.checkpoint >= checkpoint) {
            return;
        }
        if let Some(drain) = &self.drain {
            self.over(drain.checkpoint);
        }
        if self.finishing {
            self.refuse(checkpoint);
            return;
        }
        self.drain = Some(Drain {
            checkpoint,
            targets: self.counters.clone(),
            below: 0,
            entered: self.counters.iter().sum(),
            stops: VecDeque::new(),
            orders: 1,
            said: None,
        });
        let handles = 0..self.counters.len() as u32;
        let counters = handles.map(|at| self.counter_of(CommHandle(at))).collect();
        self.send(FromClock::Counters { checkpoint: CheckpointId(checkpoint), counters });
    }

    /// Y7, Y8.
    fn over(&mut self, checkpoint: u64) {
        if self.drain.as_ref().is_some_and(|drain| drain.checkpoint <= checkpoint) {
            // Its own raised targets are of no interest any more.
            let before = self.outputs.len();
            self.go(u32::MAX);
            let mut at = 0;
            self.outputs.retain(|output| {
                at += 1;
                at <= before || matches!(output, Output::Go { .. })
            });
            self.drain = None;
        }
        self.last = self.last.max(Some(checkpoint));
    }

    fn refuse(&mut self, checkpoint: u64) {
        self.over(checkpoint);
        let refusal = CheckpointRefusal::Finishing;
        self.outputs.push_back(Output::Refuse { checkpoint, refusal });
    }

    /// Say how it is, if it is not as was said.
    fn report(&mut self) {
        let Some(drain) = &mut self.drain else { return };
        let hindrance = if drain.below > 0 {
            Hindrance::BelowTarget
        } else if drain.entered != self.left {
            Hindrance::Incomplete
        } else {
            Hindrance::None
        };
        let stop = drain.stops.back().map_or(0, |(stop, _)| *stop);
        let now = (drain.orders, hindrance, stop, self.waits_for.clone());
        if drain.said.as_ref() == Some(&now) {
            return;
        }
        drain.said = Some(now.clone());
        let (orders, hindrance, stop, waits_for) = now;
        let checkpoint = CheckpointId(drain.checkpoint);
        self.send(FromClock::State { checkpoint, orders, hindrance, stop, waits_for });
    }

    /// Assert what can be seen of the invariants from inside.
    pub fn check(&self) {
        let entered: u64 = self.counters.iter().sum();
        assert!(self.left <= entered, "Y1: {} left of {entered} entered", self.left);
        let Some(drain) = &self.drain else { return };
        assert_eq!(drain.entered, entered, "Y1: all are counted");
        assert!(self.last.is_none_or(|last| drain.checkpoint > last), "Y8: it is over");
        let below = self.counters.iter().zip(&drain.targets).filter(|(seq, target)| seq < target);
        assert_eq!(drain.below, below.count(), "Y3: below its targets");
        assert!(drain.below == 0 || drain.stops.is_empty(), "Y3: stopped and below a target");
        assert_eq!(drain.targets.len(), self.counters.len());
    }
}
