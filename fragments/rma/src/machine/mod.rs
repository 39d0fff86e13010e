//! The one-sided communication of one process: all its windows, as origin and as target.
//!
//! Beside this file: what the program asks for (`operations`, `synchronize`), what others ask for
//! (`apply`), what comes back (`replies`). The driver's contract is in DESIGN.md.

mod apply;
mod direct;
mod gather;
mod operations;
mod quick;
mod replies;
mod synchronize;

pub use direct::{Neighbourhood, Nobody};
pub use operations::Kind;
pub use quick::{QUICK_BYTES_MAX, Quick};
pub use synchronize::{FenceAssert, FenceStep, LockMode, Wait};

use crate::batch::BatchQueue;
use crate::error::RmaError;
use crate::ids::{CommRank, ContextId, OperationId, Tick};
use crate::origin::{Access, Origin, Towards};
use crate::record::{IncompleteRecord, Past, Recorded, Recorder, Replay};
use crate::target::Target;
use crate::window::{Flavor, RegionKey, Regions, Setup};
use crate::wire::{Malformed, PART_BYTES_MAX};
use core::fmt;
use direct::LastGot;
use quick::HotTargets;
use std::collections::{BTreeMap, VecDeque};

/// The two streams between a pair of processes of a window. Each is in the order of the sender's
/// messages; between the two there is none, and none is needed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Lane {
    /// From origin to target: in the order of the origin's program.
    Operations,
    /// From target to origin: in the order of the origin's operations, hence the same in a replay
    /// of the target whatever it did in between.
    Replies,
}

/// What the driver is to do, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send a message (to another process) in a stream of the window's communicator.
    Send {
        /// The window.
        window: ContextId,
        /// The receiver.
        to: CommRank,
        /// The stream.
        lane: Lane,
        /// Its bytes.
        message: Vec<u8>,
    },
    /// Unpack data into the origin's result buffer.
    Data {
        /// The operation whose buffer it is.
        operation: OperationId,
        /// Packed bytes before these.
        first: u64,
        /// Packed bytes.
        data: Vec<u8>,
    },
    /// The operation has all its data: complete its request, release its buffer.
    Completed {
        /// Which.
        operation: OperationId,
        /// Why it was refused, in part or as a whole; a synchronization returns it, too.
        error: Option<RmaError>,
    },
}

/// A peer, or a replay, did what cannot be. Not an error of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Bytes that are no message.
    Malformed,
    /// A rank that is not of the window's group.
    UnknownRank,
    /// A reply that nobody waits for.
    UnexpectedReply,
    /// The unlock of a lock that its sender does not hold.
    NotLocked,
    /// A second lock by who holds one already.
    LockedTwice,
    /// The record says something else than the operations that came: the replay diverges.
    Diverged,
}

impl From<Malformed> for Fault {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "one-sided communication: a message that is none",
            Self::UnknownRank => "one-sided communication: a message of a rank that is not there",
            Self::UnexpectedReply => "one-sided communication: a reply that nobody waits for",
            Self::NotLocked => "one-sided communication: a window is unlocked that was not locked",
            Self::LockedTwice => {
                "one-sided communication: a window is locked twice by the same rank"
            }
            Self::Diverged => {
                "Replay divergence: one-sided operations differ from those before the failure"
            }
        })
    }
}

/// One window.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub(crate) setup: Setup,
    pub(crate) regions: Regions,
    pub(crate) origin: Origin,
    pub(crate) target: Target,
    /// Of each rank: is it of the same set?
    pub(crate) internal: Vec<bool>,
    /// Of each rank: its number, if it is a neighbour.
    pub(crate) neighbours: Vec<Option<usize>>,
    /// The window's entry in the own area.
    pub(crate) entry: Option<usize>,
    /// Posts that neighbours can see.
    pub(crate) posts_published: BTreeMap<CommRank, u64>,
}

/// Limits that the driver chooses; the same in all processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Packed bytes of an operation that travel in one message; more go in parts. At least 32, at
    /// most [`PART_BYTES_MAX`].
    pub part_bytes_max: u64,
}

/// The machine. Plain data: what a checkpoint holds is a copy of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rma {
    limits: Limits,
    windows: BTreeMap<ContextId, Window>,
    /// Messages for windows that this process has not made yet: a survivor's log may bring them
    /// while it replays.
    early: BTreeMap<ContextId, Vec<(CommRank, Lane, Vec<u8>)>>,
    tick: Tick,
    next_operation: u64,
    recorder: Recorder,
    replay: Option<Replay>,
    /// Ordered operations that were ever applied here, whoever applied them; those that neighbours
    /// have applied since the area was opened are counted there.
    applied: u64,
    /// The program may look at its windows while it asks for something else.
    polls: bool,
    /// Actions of the program that are no accesses and no synchronization of windows.
    other_actions: u64,
    last_got: Option<LastGot>,
    saw_a_store: bool,
    wrote_late: bool,
    hot: HotTargets,
    /// Of the last access, if it was direct and fetched something.
    fetched: Option<Vec<u8>>,
    /// Targets to which operations were issued that are not sent.
    batches: Vec<(ContextId, CommRank)>,
    outputs: VecDeque<Output>,
    faults: Option<Fault>,
}

impl Rma {
    /// A process without windows.
    pub fn new(limits: Limits) -> Self {
        let part_bytes_max = limits.part_bytes_max.clamp(32, PART_BYTES_MAX);
        Self {
            limits: Limits { part_bytes_max },
            windows: BTreeMap::new(),
            early: BTreeMap::new(),
            tick: Tick(1),
            next_operation: 0,
            recorder: Recorder::default(),
            replay: None,
            applied: 0,
            polls: false,
            other_actions: 0,
            last_got: None,
            saw_a_store: false,
            wrote_late: false,
            hot: HotTargets::default(),
            fetched: None,
            batches: Vec::new(),
            outputs: VecDeque::new(),
            faults: None,
        }
    }

    /// A window was made; the driver has gathered what it takes. Call [`Rma::progress`] after.
    ///
    /// # Errors
    /// `Window`: there is one of this name. `Rank`: the group has no such rank. `Range`: a unit of
    /// 0.
    pub fn create(&mut self, window: ContextId, setup: Setup) -> Result<(), RmaError> {
        if self.windows.contains_key(&window) {
            return Err(RmaError::Window);
        }
        if !setup.knows(setup.me) {
            return Err(RmaError::Rank);
        }
        if setup.extents.iter().any(|extent| extent.unit == 0) {
            return Err(RmaError::Range);
        }
        let made = Window {
            setup,
            regions: Regions::default(),
            origin: Origin::default(),
            target: Target::default(),
            internal: Vec::new(),
            neighbours: Vec::new(),
            entry: None,
            posts_published: BTreeMap::new(),
        };
        self.windows.insert(window, made);
        for (from, lane, message) in self.early.remove(&window).unwrap_or_default() {
            let taken = match lane {
                Lane::Operations => self.on_operation(window, from, message),
                Lane::Replies => self.on_reply(window, from, &message),
            };
            if let Err(fault) = taken {
                self.faults = self.faults.or(Some(fault));
            }
        }
        Ok(())
    }

    /// Which ranks of a new window are of the own set: messages to them are counted by nobody after
    /// a rollback. Nothing was issued yet.
    pub fn set_internal(&mut self, window: ContextId, is_internal: impl Fn(CommRank) -> bool) {
        if let Some(found) = self.windows.get_mut(&window) {
            let ranks = found.setup.extents.len() as u32;
            found.internal = (0..ranks).map(|rank| is_internal(CommRank(rank))).collect();
        }
    }

    /// MPI_Win_free, after the barrier that it contains: in a correct program nothing is under way.
    ///
    /// # Errors
    /// `Window`, or `Sync`: an epoch is open, or others still use it. The window stays.
    pub fn free(&mut self, window: ContextId) -> Result<(), RmaError> {
        self.hot.forget();
        let found = self.windows.get(&window).ok_or(RmaError::Window)?;
        let idle = |towards: &Towards| towards.awaited.is_empty() && towards.batch.is_empty();
        let is_idle = found.origin.access.is_free()
            && found.origin.towards.values().all(idle)
            && found.target.exposed.is_none()
            && found.target.queues.is_empty()
            && found.target.lock.is_idle();
        if !is_idle {
            return Err(RmaError::Sync);
        }
        self.windows.remove(&window);
        Ok(())
    }

    /// May MPI_Win_free be called by the program? To be asked before its barrier.
    ///
    /// # Errors
    /// `Window`, or `Sync`: an epoch of this process is open.
    pub fn may_free(&self, window: ContextId) -> Result<(), RmaError> {
        let found = self.windows.get(&window).ok_or(RmaError::Window)?;
        match found.origin.access.is_free() && found.target.exposed.is_none() {
            true => Ok(()),
            false => Err(RmaError::Sync),
        }
    }

    /// MPI_Win_attach: `bytes` of own memory from `address` on.
    ///
    /// # Errors
    /// `Window`, `Flavor`, `Attach`.
    pub fn attach(
        &mut self,
        window: ContextId,
        address: u64,
        bytes: u64,
    ) -> Result<RegionKey, RmaError> {
        self.dynamic(window)?.attach(address, bytes)
    }

    /// MPI_Win_detach.
    ///
    /// # Errors
    /// `Window`, `Flavor`, `Attach`.
    pub fn detach(&mut self, window: ContextId, address: u64) -> Result<RegionKey, RmaError> {
        self.dynamic(window)?.detach(address)
    }

    fn dynamic(&mut self, window: ContextId) -> Result<&mut Regions, RmaError> {
        let found = self.windows.get_mut(&window).ok_or(RmaError::Window)?;
        match found.setup.flavor {
            crate::window::Flavor::Dynamic => Ok(&mut found.regions),
            _ => Err(RmaError::Flavor),
        }
    }

    /// The program does something of MPI (DESIGN.md "The tick"). Before it is done. It may wait in
    /// it: what it has issued is sent.
    pub fn action(&mut self) {
        self.tick.0 += 1;
        self.other_actions += 1;
        self.send_batches();
    }

    /// The same if it is to issue an operation, to ask for a lock without waiting for it, or to
    /// synchronize: [`Rma::send_batches`] follows then, if it waits.
    #[inline]
    pub fn action_on_window(&mut self) {
        self.tick.0 += 1;
    }

    /// The program waits: all that it has issued is sent.
    pub fn send_batches(&mut self) {
        while let Some(&(window, target)) = self.batches.last() {
            self.send_batch(window, target);
        }
    }

    /// Actions of the program so far. Neighbours have to see it, before it is done
    /// ([`crate::direct::TargetArea::set_tick`]).
    #[inline]
    pub fn tick(&self) -> Tick {
        self.tick
    }

    /// Is an operation kept that may be applied when [`Rma::progress`] is called?
    pub fn has_queued(&self) -> bool {
        self.windows.values().any(|window| !window.target.queues.is_empty())
    }

    /// Does somebody wait for a lock of a window of this process, which others may give back
    /// without saying so?
    pub fn has_lock_waiters(&self) -> bool {
        self.windows.values().any(|window| window.target.lock.waiting().next().is_some())
    }

    /// A while has passed since the last call: who waits for a shared lock behind somebody who
    /// waits for an exclusive one gets it if nothing has changed for long (L2).
    pub fn locks_stood(&mut self) {
        for window in self.windows.values_mut() {
            window.target.lock.stood();
        }
    }

    /// Is there something for the driver to do?
    pub fn has_output(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Did the program's last action not happen? It tries it again, and counts it then.
    pub fn undo_action(&mut self) {
        self.tick.0 -= 1;
    }

    /// Windows, and how many ranks each has.
    pub fn windows(&self) -> impl Iterator<Item = (ContextId, u32)> + '_ {
        self.windows.iter().map(|(&id, window)| (id, window.setup.extents.len() as u32))
    }

    /// Those whose memory all their ranks load from and store to.
    pub fn shared_windows(&self) -> impl Iterator<Item = (ContextId, u32)> + '_ {
        self.windows().filter(|(id, _)| self.windows[id].setup.flavor == Flavor::Shared)
    }

    /// Are there windows?
    pub fn has_windows(&self) -> bool {
        !self.windows.is_empty()
    }

    /// Would an operation on this memory of the target be refused for its range, or for a rank that
    /// is not there? For operations that are issued in several.
    ///
    /// # Errors
    /// `Window`, `Rank`, `Range`.
    pub fn check_range(
        &self,
        window: ContextId,
        target: CommRank,
        displacement: i64,
        layout: &crate::layout::Layout,
    ) -> Result<(), RmaError> {
        let found = self.windows.get(&window).ok_or(RmaError::Window)?;
        found.setup.check_range(target, displacement, layout)
    }

    /// What the last access has fetched: it was done directly, is complete, and no output follows.
    pub fn take_fetched(&mut self) -> Option<Vec<u8>> {
        self.fetched.take()
    }

    /// What the driver is to do next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Is there something to record? It has to be, before anything that was sent leaves the set.
    pub fn has_recorded(&self) -> bool {
        !self.recorder.is_empty()
    }

    /// Determinants since the last call, in order. Also to be called when a checkpoint is taken:
    /// a run does not go over it.
    pub fn take_recorded(&mut self) -> Vec<Recorded> {
        self.recorder.take()
    }

    /// This process was restored from a checkpoint; `record` is what is known of the past from
    /// there on. Ordered operations are applied as it says, and none that it does not name, until
    /// [`Rma::end_replay`].
    ///
    /// # Errors
    /// A part of the record is missing.
    pub fn begin_replay(
        &mut self,
        record: impl IntoIterator<Item = Past>,
    ) -> Result<(), IncompleteRecord> {
        self.replay = None;
        self.resume_replay(record)
    }

    /// As [`Rma::begin_replay`], where the checkpoint was taken while an earlier record was being
    /// followed: `record` goes on behind what is left of that.
    ///
    /// # Errors
    /// As [`Rma::begin_replay`].
    pub fn resume_replay(
        &mut self,
        record: impl IntoIterator<Item = Past>,
    ) -> Result<(), IncompleteRecord> {
        // What was recorded and not taken is of the past, too, or was lost with it.
        self.recorder = Recorder::default();
        self.last_got = None;
        self.hot.forget();
        self.replay.get_or_insert_default().extend(self.applied, record)
    }

    /// Is everything applied that the record names? A part of being through with the replay.
    pub fn is_record_applied(&self) -> bool {
        self.replay.as_ref().is_none_or(Replay::is_exhausted)
    }

    /// **All** sets that have failed are through with their replays (rule 4). Call
    /// [`Rma::progress`] after. Does nothing while the record is not applied; false then.
    pub fn end_replay(&mut self) -> bool {
        let ends = self.is_record_applied();
        if ends {
            self.replay = None;
        }
        ends
    }

    /// Rule 3: nothing that the program waits for may be reported complete: receives, probes,
    /// requests, not only of windows. ([`Rma::poll`] heeds it by itself.)
    pub fn holds_completions(&self) -> bool {
        self.replay.as_ref().is_some_and(|replay| replay.is_behind(self.tick))
    }

    /// Messages that are kept for their epoch, lock or turn, and their bytes.
    pub fn kept(&self) -> (usize, usize) {
        let operations = self.windows.values().flat_map(|window| window.target.queues.values());
        let towards = self.windows.values().flat_map(|window| window.origin.towards.values());
        let early = self.early.values().flatten().map(|(_, _, message)| message);
        let replies = towards.flat_map(|towards| &towards.early);
        let kept = operations.flat_map(BatchQueue::messages).chain(replies).chain(early);
        kept.fold((0, 0), |(count, bytes), message| (count + 1, bytes + message.len()))
    }

    /// To do something to it.
    fn window(&mut self, window: ContextId) -> Result<&mut Window, RmaError> {
        self.hot.forget();
        self.windows.get_mut(&window).ok_or(RmaError::Window)
    }

    /// The invariants of DESIGN.md that can be seen at one process.
    ///
    /// # Panics
    /// If one of them does not hold.
    pub fn check(&self) {
        for window in self.windows.values() {
            window.regions.check();
            window.origin.check();
            window.target.check();
            let of_fence = window
                .origin
                .towards
                .values()
                .any(|towards| towards.of_fence != 0 || towards.direct_of_fence != 0);
            let fence = matches!(window.origin.access, Access::FenceUsed | Access::FenceEnding);
            assert!(fence || !of_fence, "O3: operations of a fence outside of one");
        }
        let batched = |&(window, target): &(ContextId, CommRank)| {
            let towards = self.windows.get(&window).and_then(|w| w.origin.towards.get(&target));
            towards.is_some_and(|towards| !towards.batch.is_empty())
        };
        let towards = self.windows.values().flat_map(|window| window.origin.towards.values());
        let open = towards.filter(|towards| !towards.batch.is_empty()).count();
        assert!(self.batches.iter().all(batched) && self.batches.len() == open, "O5: {open}");
        let records = self.replay.is_some() && !self.recorder.is_empty();
        assert!(!records, "R1: recorded in a replay");
        assert!(self.early.keys().all(|w| !self.windows.contains_key(w)), "W2: kept for nothing");
    }
}
