//! The coordinator's part in checkpoints: when, whose, in which order; complete, or dropped.
//!
//! Source: DESIGN §6; docs/adr/0002 "Checkpoints".
//!
//! ```text
//!  set checkpoint:    Begin ─all Frozen─> (they resume) ─all Stored─> Commit ─Committed─> kept
//!  global checkpoint: StopOutgoing ─all Stopped─> Begin ─all Frozen─> Resume ─all Stored─> …
//! ```
//!
//! Invariants:
//! * L1 Numbers of checkpoints ascend; each is used once.
//! * L2 A global checkpoint is taken alone; at most `sets_at_once` set checkpoints are under way,
//!   one of a set.
//! * L3 `Commit` only when every rank of the checkpoint has stored; `Trim`, `Delete` of older
//!   checkpoints and `Exit` only after `Committed`.
//! * L4 A checkpoint that is ordered ends in `Complete` or in `Abort` and `Delete`, once.
//! * L5 Messages are trimmed by the oldest checkpoint that their receiver's set can be rolled back
//!   to alone.
//! * L6 No checkpoint is ordered of a set that has lost a rank or of which one is in MPI_Finalize;
//!   no global checkpoint while there is such a set or one that is replaying, or a rank has refused
//!   one since something is not repaired ([`AbortReason::is_transient`]) and has not reported that
//!   it is.
//! * L7 A checkpoint that somebody requested and that failed is tried once more, if its reason may
//!   pass ([`AbortReason::is_retryable`]); checkpoints that are due are tried again after twice the
//!   time, each time. What passes by itself does not count: such a checkpoint is ordered again when
//!   it has (L6).
//! * L8 After a global rollback, the checkpoint that all sets return to is the youngest of each of
//!   them and of the job, whatever was kept.
//! * L9 Logging towards a set is suspended only while a global checkpoint is there to roll back to,
//!   and no snapshots for a checkpoint of the set are being taken. From then on the set is rolled
//!   back alone to no checkpoint that began before (docs/adr/0026).

mod check;
mod cost;
mod io;
mod rollback;
mod suspension;
mod tables;

use crate::quiescence::{CheckpointAnswer, CheckpointRefusal, CheckpointScope};
use cost::LastGlobal;
pub use io::{
    AbortReason, Config, Input, Output, SchedulerError, SchedulerState, SuspensionRefusal,
};
use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tables::{ActiveCheckpoint, PendingRequest, Phase, Set, later};

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct CheckpointScheduler {
    config: Config,
    sets: BTreeMap<SetId, Set>,
    set_of: BTreeMap<PeerId, SetId>,
    checkpoints: BTreeMap<u64, ActiveCheckpoint>,
    next_checkpoint: u64,
    now: u64,
    global_due: Option<u64>,
    global_wanted: Option<PendingRequest>,
    /// With it, the end of the job.
    exit_wanted: bool,
    /// What the last global checkpoint cost the program.
    last_cost: Option<LastGlobal>,
    global_aborted: u32,
    /// Complete global checkpoints, ascending.
    globals: VecDeque<u64>,
    exiting: bool,
    outputs: VecDeque<Output>,
}

impl CheckpointScheduler {
    /// For a job whose ranks belong to these sets. `first_checkpoint`: checkpoints are numbered
    /// from here; above all that its folder holds. `now` in milliseconds, here and below.
    pub fn new(
        config: Config,
        set_of: &[(PeerId, SetId)],
        first_checkpoint: u64,
        now: u64,
    ) -> Self {
        let mut sets: BTreeMap<SetId, Set> = BTreeMap::new();
        for &(rank, set) in set_of {
            sets.entry(set).or_default().ranks.insert(rank);
        }
        let mut checkpoints = Self {
            config,
            sets,
            set_of: set_of.iter().copied().collect(),
            checkpoints: BTreeMap::new(),
            next_checkpoint: first_checkpoint,
            now,
            global_due: None,
            global_wanted: None,
            exit_wanted: false,
            last_cost: None,
            global_aborted: 0,
            globals: VecDeque::new(),
            exiting: false,
            outputs: VecDeque::new(),
        };
        // Staggered: the sets share storage, hence not all at once.
        let count = checkpoints.sets.len() as u64;
        let interval = checkpoints.config.set_interval.next_ms(1, None);
        for (at, set) in (1..).zip(checkpoints.sets.values_mut()) {
            let part = |ms| (u128::from(ms) * at / u128::from(count)) as u64;
            set.due = interval.map(|ms| now.saturating_add(part(ms)));
        }
        let interval = checkpoints.config.global_interval.next_ms(checkpoints.sets.len(), None);
        checkpoints.global_due = interval.map(|ms| now.saturating_add(ms));
        checkpoints
    }

    /// For a job that was restored from the global checkpoint `checkpoint`: every set can be rolled
    /// back to it.
    pub fn restored(
        config: Config,
        set_of: &[(PeerId, SetId)],
        checkpoint: u64,
        first_checkpoint: u64,
        now: u64,
    ) -> Self {
        let mut checkpoints = Self::new(config, set_of, first_checkpoint.max(checkpoint + 1), now);
        checkpoints.globals.push_back(checkpoint);
        checkpoints.sets.values_mut().for_each(|set| set.kept.push_back(checkpoint));
        checkpoints
    }

    /// What is left if this machine is lost: checkpoints under way are not.
    pub fn state(&self) -> SchedulerState {
        let kept = |(&id, set): (&SetId, &Set)| (id, set.kept.iter().copied().collect());
        let globals = self.globals.iter().copied().collect();
        let kept = self.sets.iter().map(kept).collect();
        let alone_from = self.sets.iter().filter(|(_, set)| set.alone_from > 0);
        let alone_from = alone_from.map(|(&id, set)| (id, set.alone_from)).collect();
        SchedulerState { next_checkpoint: self.next_checkpoint, globals, kept, alone_from }
    }

    /// For a job in the middle of which the machine that knew this was lost.
    pub fn resumed(
        config: Config,
        set_of: &[(PeerId, SetId)],
        state: &SchedulerState,
        now: u64,
    ) -> Self {
        let mut checkpoints = Self::new(config, set_of, state.next_checkpoint, now);
        checkpoints.globals.extend(&state.globals);
        for (id, kept) in &state.kept {
            if let Some(set) = checkpoints.sets.get_mut(id) {
                set.kept.extend(kept);
            }
        }
        for (id, &from) in &state.alone_from {
            if let Some(set) = checkpoints.sets.get_mut(id) {
                set.alone_from = from;
            }
        }
        checkpoints
    }

    /// Something has happened.
    ///
    /// # Errors
    /// See [`SchedulerError`]; nothing has changed.
    pub fn handle(&mut self, now: u64, input: Input) -> Result<(), SchedulerError> {
        self.now = self.now.max(now);
        match input {
            Input::Tick => {}
            Input::RequestSetCheckpoint { set } => self.demand(set)?,
            Input::RequestGlobalCheckpoint { exit } => self.checkpoint(exit)?,
            Input::RequestSuspension { set } => self.suspend(set)?,
            Input::Answered { rank, answer } => self.on_answer(rank, answer)?,
            Input::Stored { rank, checkpoint } => self.on_stored(rank, checkpoint)?,
            Input::StoringCost { checkpoint, lost_ms, of_ms } => {
                if let Some(active) = self.checkpoints.get_mut(&checkpoint) {
                    active.storing_cost = active.storing_cost.max(Some((lost_ms, of_ms)));
                }
            }
            Input::LostBeside { rank, checkpoint, lost_ms } => {
                self.on_lost(rank, checkpoint, lost_ms);
            }
            Input::NotStored { rank, checkpoint } => {
                self.rank(rank)?;
                self.abort(checkpoint, AbortReason::NotStored(rank));
            }
            Input::Committed { checkpoint } => self.on_committed(checkpoint),
            Input::NotCommitted { checkpoint } => {
                if self
                    .checkpoints
                    .get(&checkpoint)
                    .is_some_and(|checkpoint| checkpoint.phase == Phase::Committing)
                {
                    self.abort(checkpoint, AbortReason::Manifest);
                }
            }
            Input::NotDrained { checkpoint, why } => {
                self.abort(checkpoint, AbortReason::NotDrained(why));
            }
            Input::RankFailed { rank } => self.on_rank_failed(rank)?,
            Input::SetRestarted { set, checkpoint } => self.on_set_restarted(set, checkpoint)?,
            Input::GlobalRollback { checkpoint } => self.on_global_rollback(checkpoint)?,
            Input::ReplayComplete { set } => {
                self.sets.get_mut(&set).ok_or(SchedulerError::Set(set))?.replaying = false;
            }
            Input::RankReplayComplete { rank } => {
                self.rank(rank)?.replay_pending.remove(&rank);
            }
            Input::Finishing { rank } => self.rank(rank)?.finishing = true,
        }
        self.time_out();
        self.schedule();
        Ok(())
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When `Tick` is to be handed in, in milliseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        let checkpoints = self.checkpoints.values().map(|checkpoint| checkpoint.deadline);
        let usable = || self.sets.values().filter(|set| set.usable());
        let wanted = usable().filter_map(|set| set.wanted).chain(self.global_wanted);
        let dues = usable().filter_map(|set| set.due).chain(wanted.map(|wanted| wanted.from));
        // What is due and not ordered waits for a checkpoint to end, not for time.
        let dues = dues.chain(self.global_due).filter(|&due| due > self.now && !self.exiting);
        checkpoints.chain(dues).min()
    }

    /// Checkpoints under way.
    pub fn under_way(&self) -> usize {
        self.checkpoints.len()
    }

    /// Number of the one that is ordered next.
    pub fn next_checkpoint(&self) -> u64 {
        self.next_checkpoint
    }

    /// The youngest complete global checkpoint.
    pub fn last_global(&self) -> Option<u64> {
        self.globals().next_back()
    }

    /// The complete global checkpoints that are kept, ascending.
    pub fn globals(&self) -> impl DoubleEndedIterator<Item = u64> + '_ {
        self.globals.iter().copied()
    }

    /// The youngest complete checkpoint of a set, whether it can be rolled back to it alone.
    pub fn youngest_of(&self, set: SetId) -> Option<u64> {
        self.sets.get(&set)?.kept.back().copied()
    }

    /// The complete checkpoints that a set can be rolled back to alone, ascending. After
    /// `RankFailed` and until `SetRestarted` they do not change.
    pub fn checkpoints_of(&self, set: SetId) -> impl Iterator<Item = u64> + '_ {
        self.sets.get(&set).into_iter().flat_map(Set::alone)
    }

    fn rank(&mut self, rank: PeerId) -> Result<&mut Set, SchedulerError> {
        let set = self.set_of.get(&rank).and_then(|set| self.sets.get_mut(set));
        set.ok_or(SchedulerError::Rank(rank))
    }

    fn demand(&mut self, id: SetId) -> Result<(), SchedulerError> {
        let set = self.sets.get_mut(&id).ok_or(SchedulerError::Set(id))?;
        if set.finishing {
            return Err(SchedulerError::Finishing);
        }
        // Also while a checkpoint of it is under way: the snapshots may be older than what is
        // requested.
        set.wanted.get_or_insert(PendingRequest { from: self.now, retried: false });
        Ok(())
    }

    fn checkpoint(&mut self, exit: bool) -> Result<(), SchedulerError> {
        if self.sets.values().any(|set| set.finishing) {
            return Err(SchedulerError::Finishing);
        }
        self.global_wanted.get_or_insert(PendingRequest { from: self.now, retried: false });
        self.exit_wanted |= exit;
        Ok(())
    }

    fn on_answer(&mut self, rank: PeerId, answer: CheckpointAnswer) -> Result<(), SchedulerError> {
        self.rank(rank)?;
        let (CheckpointAnswer::Stopped { checkpoint: number }
        | CheckpointAnswer::Frozen { checkpoint: number }
        | CheckpointAnswer::Failed { checkpoint: number, .. }) = answer;
        let requested = self.checkpoints.get(&number).is_none_or(|checkpoint| {
            checkpoint.ranks.contains(&rank)
                && match answer {
                    CheckpointAnswer::Stopped { .. } => checkpoint.scope == CheckpointScope::Global,
                    CheckpointAnswer::Frozen { .. } => checkpoint.phase >= Phase::Taking,
                    CheckpointAnswer::Failed { .. } => true,
                }
        });
        if !requested {
            return Err(SchedulerError::NotAsked(rank, number));
        }
        if matches!(
            answer,
            CheckpointAnswer::Failed { refusal: CheckpointRefusal::ReplayPending, .. }
        ) {
            // Also if another one was faster, and the checkpoint is aborted: it would refuse the
            // next.
            self.rank(rank)?.replay_pending.insert(rank);
        }
        let Some(checkpoint) = self.checkpoints.get_mut(&number) else { return Ok(()) };
        match answer {
            CheckpointAnswer::Stopped { .. } => {
                checkpoint.stopped.insert(rank);
            }
            CheckpointAnswer::Frozen { .. } => {
                checkpoint.frozen.insert(rank);
            }
            CheckpointAnswer::Failed { refusal: why, .. } => {
                if why == CheckpointRefusal::Finishing {
                    self.rank(rank)?.finishing = true;
                }
                self.abort(number, AbortReason::Failed(rank, why));
                return Ok(());
            }
        }
        self.advance(number);
        Ok(())
    }

    fn on_stored(&mut self, rank: PeerId, number: u64) -> Result<(), SchedulerError> {
        self.rank(rank)?;
        let Some(checkpoint) = self.checkpoints.get_mut(&number) else { return Ok(()) };
        if !checkpoint.frozen.contains(&rank) {
            return Err(SchedulerError::NotAsked(rank, number));
        }
        checkpoint.stored.insert(rank);
        self.advance(number);
        Ok(())
    }

    fn advance(&mut self, number: u64) {
        let Some(checkpoint) = self.checkpoints.get_mut(&number) else { return };
        let all = checkpoint.ranks.len();
        if checkpoint.phase == Phase::Stopping && checkpoint.stopped.len() == all {
            checkpoint.phase = Phase::Taking;
            let (scope, sets) = (checkpoint.scope, checkpoint.sets.clone());
            self.outputs.push_back(Output::Begin { checkpoint: number, scope, sets });
        }
        if checkpoint.phase == Phase::Taking && checkpoint.frozen.len() == all {
            checkpoint.phase = Phase::Storing;
            checkpoint.pause_ms = self.now - checkpoint.begun;
            checkpoint.deadline = self.now.saturating_add(self.config.store_timeout_ms);
            if checkpoint.scope == CheckpointScope::Global && !checkpoint.exit {
                self.outputs.push_back(Output::Resume { checkpoint: number });
            }
        }
        if checkpoint.phase == Phase::Storing && checkpoint.stored.len() == all {
            checkpoint.phase = Phase::Committing;
            let (scope, sets) = (checkpoint.scope, checkpoint.sets.clone());
            self.outputs.push_back(Output::Commit { checkpoint: number, scope, sets });
        }
    }

    fn on_committed(&mut self, number: u64) {
        let Some(checkpoint) = self.checkpoints.remove(&number) else { return };
        debug_assert_eq!(checkpoint.phase, Phase::Committing, "L3: committed on order only");
        if checkpoint.scope == CheckpointScope::Global {
            self.note_cost(number, &checkpoint);
        }
        let ActiveCheckpoint { scope, sets, pause_ms, exit, .. } = checkpoint;
        self.outputs.push_back(Output::Complete { checkpoint: number, pause_ms });
        let kept = self.config.checkpoints_kept.max(1);
        let mut dropped = BTreeSet::new();
        if scope == CheckpointScope::Global {
            self.global_aborted = 0;
            self.globals.push_back(number);
            if self.globals.len() > kept {
                dropped.extend(self.globals.pop_front());
            }
        }
        for id in sets {
            let Some(set) = self.sets.get_mut(&id) else { continue };
            if scope == CheckpointScope::Set {
                set.pause_ms = Some(pause_ms);
                set.aborted = 0;
            }
            let (oldest, suspended) = (set.alone().next(), set.is_suspended());
            set.kept.push_back(number);
            while set.kept.len() > kept {
                dropped.extend(set.kept.pop_front());
            }
            // L5.
            if let Some(checkpoint) = set.alone().next()
                && oldest != Some(checkpoint)
            {
                self.outputs.push_back(Output::Trim { set: id, checkpoint });
            }
            if suspended && !set.is_suspended() {
                self.outputs.push_back(Output::LoggingResumed { set: id, checkpoint: number });
            }
        }
        self.drop_unused(dropped);
        if exit {
            self.exiting = true;
            self.outputs.push_back(Output::Exit { checkpoint: number });
        }
    }

    /// L4: the checkpoint is void.
    fn abort(&mut self, number: u64, why: AbortReason) {
        let Some(checkpoint) = self.checkpoints.remove(&number) else { return };
        let (now, retry_ms) = (self.now, self.config.retry_ms);
        let first = checkpoint.requested.is_some_and(|requested| !requested.retried);
        let retried = why.is_transient() || first && retry_ms > 0 && why.is_retryable();
        let from = now.saturating_add(retry_ms);
        let retry = checkpoint.requested.filter(|_| retried);
        let retry = retry.map(|requested| PendingRequest {
            from,
            retried: requested.retried || !why.is_transient(),
        });
        let next = match checkpoint.scope {
            CheckpointScope::Set => {
                checkpoint.sets.iter().filter_map(|id| self.aborted_set(*id, retry)).min()
            }
            CheckpointScope::Global if why.is_transient() => {
                self.global_wanted = self.global_wanted.or(retry);
                self.exit_wanted |= checkpoint.exit;
                if checkpoint.requested.is_none() {
                    self.global_due = Some(from);
                }
                Some(from)
            }
            CheckpointScope::Global => {
                self.global_aborted += 1;
                let interval = self.next_global_ms();
                self.global_due = interval.map(|ms| later(now, ms, self.global_aborted));
                self.global_wanted = self.global_wanted.or(retry);
                self.exit_wanted |= checkpoint.exit && retried;
                let wanted = self.global_wanted.map(|wanted| wanted.from);
                wanted.into_iter().chain(self.global_due).min()
            }
        };
        let next_ms = next.map(|next| next.saturating_sub(now));
        let sets = checkpoint.sets;
        self.outputs.push_back(Output::Abort {
            checkpoint: number,
            sets,
            reason: why,
            retried,
            next_ms,
        });
        self.outputs.push_back(Output::Delete { checkpoint: number });
    }

    /// When the next checkpoint of the set is taken.
    fn aborted_set(&mut self, id: SetId, retry: Option<PendingRequest>) -> Option<u64> {
        let set = self.sets.get_mut(&id)?;
        set.aborted += 1;
        let interval = self.config.set_interval.next_ms(1, set.cost());
        set.due = interval.map(|ms| later(self.now, ms, set.aborted));
        set.wanted = set.wanted.or(retry);
        set.wanted.map(|wanted| wanted.from).into_iter().chain(set.due).min()
    }

    fn time_out(&mut self) {
        let replay_pending: Vec<(u64, AbortReason)> = self
            .checkpoints
            .iter()
            .filter(|(_, checkpoint)| checkpoint.deadline <= self.now)
            .map(|(&number, checkpoint)| {
                (number, checkpoint.awaited().map_or(AbortReason::Manifest, AbortReason::Timeout))
            })
            .collect();
        replay_pending.into_iter().for_each(|(number, why)| self.abort(number, why));
    }

    /// Order what is wanted or due (L2, L6).
    fn schedule(&mut self) {
        let global =
            self.checkpoints.values().any(|checkpoint| checkpoint.scope == CheckpointScope::Global);
        if global || self.exiting {
            return;
        }
        let now = self.now;
        let due = |due: Option<u64>| due.is_some_and(|due| due <= now);
        let requested = |wanted: Option<PendingRequest>| due(wanted.map(|wanted| wanted.from));
        let wanted = requested(self.global_wanted) || due(self.global_due);
        if wanted && self.sets.values().all(|set| set.usable() && set.is_repaired()) {
            if self.checkpoints.is_empty() {
                self.begin_global();
            }
            return;
        }
        while self.checkpoints.len() < self.config.sets_at_once.max(1) {
            let busy: BTreeSet<SetId> = self
                .checkpoints
                .values()
                .flat_map(|checkpoint| checkpoint.sets.iter().copied())
                .collect();
            let next = self
                .sets
                .iter()
                .filter(|(id, set)| set.usable() && !busy.contains(id))
                .filter(|(_, set)| requested(set.wanted) || due(set.due))
                .min_by_key(|(_, set)| {
                    let wanted = set.wanted.filter(|&wanted| requested(Some(wanted)));
                    (wanted.is_none(), wanted.map(|wanted| wanted.from), set.due)
                });
            let Some((&id, _)) = next else { return };
            self.begin_set(id);
        }
    }

    fn begin_set(&mut self, id: SetId) {
        let (now, interval) = (self.now, self.config.set_interval);
        let Some(set) = self.sets.get_mut(&id) else { return };
        let requested = set.wanted.take();
        set.due = interval.next_ms(1, set.cost()).map(|ms| now.saturating_add(ms));
        let checkpoint = self.open(CheckpointScope::Set, vec![id], requested, false);
        self.outputs.push_back(Output::Begin {
            checkpoint,
            scope: CheckpointScope::Set,
            sets: vec![id],
        });
    }

    fn begin_global(&mut self) {
        let now = self.now;
        let requested = self.global_wanted.take();
        let exit = core::mem::take(&mut self.exit_wanted);
        self.global_due = self.next_global_ms().map(|ms| now.saturating_add(ms));
        let sets = self.sets.keys().copied().collect();
        let checkpoint = self.open(CheckpointScope::Global, sets, requested, exit);
        self.outputs.push_back(Output::StopOutgoing { checkpoint });
    }

    /// L1.
    fn open(
        &mut self,
        scope: CheckpointScope,
        sets: Vec<SetId>,
        requested: Option<PendingRequest>,
        exit: bool,
    ) -> u64 {
        let number = self.next_checkpoint;
        self.next_checkpoint += 1;
        let ranks = sets.iter().flat_map(|set| self.sets[set].ranks.iter().copied()).collect();
        let phase = if scope == CheckpointScope::Global { Phase::Stopping } else { Phase::Taking };
        self.checkpoints.insert(
            number,
            ActiveCheckpoint {
                scope,
                sets,
                phase,
                exit,
                requested,
                ranks,
                stopped: BTreeSet::new(),
                frozen: BTreeSet::new(),
                stored: BTreeSet::new(),
                begun: self.now,
                pause_ms: 0,
                storing_cost: None,
                deadline: self.now.saturating_add(self.config.quiescence_timeout_ms),
            },
        );
        number
    }
}
