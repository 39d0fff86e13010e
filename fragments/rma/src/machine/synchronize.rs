//! Synchronization: fences, post and start, locks, flushes (MPI-3.1 §11.5). A call that waits
//! begins here and gives a [`Wait`]; the driver makes progress and polls it.

use super::Rma;
use super::direct::{Neighbourhood, Nobody};
use crate::direct::TargetArea;
use crate::error::RmaError;
use crate::ids::{CommRank, ContextId};
use crate::origin::{Access, Awaited, Held};
use crate::window::Flavor;
use crate::wire::{Action, Epoch};
use std::collections::BTreeSet;

/// What a call of the program waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wait {
    window: ContextId,
    kind: Kind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    /// So many replies of these targets.
    Replies(Vec<(CommRank, u64)>),
    /// All accesses of the epoch here, all replies.
    Fence { opens: bool },
    /// All origins have completed.
    Exposure,
}

/// Assertions of MPI_Win_fence that change what is done. (MPI_MODE_NOSTORE and NOPUT do not.)
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FenceAssert {
    /// MPI_MODE_NOPRECEDE: it ends no epoch. All members say so or none.
    pub no_precede: bool,
    /// MPI_MODE_NOSUCCEED: it begins none.
    pub no_succeed: bool,
}

/// How a fence goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FenceStep {
    /// It is over: nothing preceded.
    Over,
    /// Sum these over all members, element by element (MPI_Reduce_scatter_block), and hand the own
    /// element of the sum to [`Rma::fence_counted`]. This is the barrier of the fence, too.
    Count(Vec<u64>),
}

/// How MPI_Win_lock and MPI_Win_lock_all lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockMode {
    /// The lock is asked for, and operations wait behind it at the target.
    Deferred,
    /// The call waits until it is granted: the program may load and store.
    Granted,
    /// MPI_MODE_NOCHECK: nobody is asked.
    NoCheck,
}

impl Rma {
    /// MPI_Win_fence begins.
    ///
    /// # Errors
    /// `Window`; `Sync`: another epoch is open, or operations precede although none should.
    pub fn fence(&mut self, window: ContextId, assert: FenceAssert) -> Result<FenceStep, RmaError> {
        let found = self.window(window)?;
        let wrong = assert.no_precede && found.origin.access == Access::FenceUsed;
        if !found.origin.access.is_fence() || found.target.exposed.is_some() || wrong {
            return Err(RmaError::Sync);
        }
        if assert.no_precede {
            self.leave_fence(window, !assert.no_succeed);
            return Ok(FenceStep::Over);
        }
        let ranks = found.setup.extents.len();
        let mut counts = vec![0; ranks];
        let mut confirm = Vec::new();
        for (target, towards) in &found.origin.towards {
            // A replay goes by messages: which way they took must not be seen in what is summed.
            counts[target.0 as usize] = towards.of_fence + towards.direct_of_fence;
            if found.setup.flavor == Flavor::Dynamic && towards.is_unconfirmed {
                confirm.push(*target);
            }
        }
        let epoch = Epoch::Fence(found.target.fences);
        found.origin.access = Access::FenceEnding;
        for target in confirm {
            self.send(window, target, epoch, Action::Flush, Some(Awaited::Done))?;
        }
        self.send_batches();
        Ok(FenceStep::Count(counts))
    }

    /// So many accesses of the epoch are for this process. `assert` as at the beginning. `own`: the
    /// own area, in which neighbours have counted theirs before they said how many there are.
    ///
    /// # Errors
    /// `Window`; `Sync`: no fence is under way.
    pub fn fence_counted(
        &mut self,
        window: ContextId,
        expected: u64,
        assert: FenceAssert,
        own: Option<&TargetArea<'_>>,
    ) -> Result<Wait, RmaError> {
        let found = self.window(window)?;
        if found.origin.access != Access::FenceEnding {
            return Err(RmaError::Sync);
        }
        if let Some(area) = own {
            found.take_direct(area);
        }
        found.target.expected = Some(expected);
        Ok(Wait { window, kind: Kind::Fence { opens: !assert.no_succeed } })
    }

    fn leave_fence(&mut self, window: ContextId, opens: bool) {
        let Ok(found) = self.window(window) else { return };
        found.target.fences += 1;
        found.target.applied_since_fence = 0;
        found.target.expected = None;
        for towards in found.origin.towards.values_mut() {
            towards.of_fence = 0;
            towards.direct_of_fence = 0;
            towards.is_unconfirmed = false;
        }
        found.origin.access = if opens { Access::FenceOpen } else { Access::Closed };
    }

    /// MPI_Win_post. Nothing is sent: operations that came early are applied from now on. Call
    /// [`Rma::progress`] after.
    ///
    /// # Errors
    /// `Window`, `Rank`; `Sync`: exposed already, or a fence epoch is in use.
    pub fn post(&mut self, window: ContextId, origins: &[CommRank]) -> Result<(), RmaError> {
        let found = self.window(window)?;
        if !origins.iter().all(|&rank| found.setup.knows(rank)) {
            return Err(RmaError::Rank);
        }
        let fenced = matches!(found.origin.access, Access::FenceUsed | Access::FenceEnding);
        if found.target.exposed.is_some() || fenced {
            return Err(RmaError::Sync);
        }
        let origins: BTreeSet<_> = origins.iter().copied().collect();
        for origin in &origins {
            *found.target.posts.entry(*origin).or_default() += 1;
        }
        found.target.exposed = Some(origins);
        Ok(())
    }

    /// MPI_Win_wait; MPI_Win_test polls it once.
    ///
    /// # Errors
    /// `Window`; `Sync`: not exposed.
    pub fn wait(&mut self, window: ContextId) -> Result<Wait, RmaError> {
        match self.window(window)?.target.exposed {
            Some(_) => Ok(Wait { window, kind: Kind::Exposure }),
            None => Err(RmaError::Sync),
        }
    }

    /// MPI_Win_start: does not wait for the posts.
    ///
    /// # Errors
    /// `Window`, `Rank`; `Sync`: an access epoch is open.
    pub fn start(&mut self, window: ContextId, targets: &[CommRank]) -> Result<(), RmaError> {
        let found = self.window(window)?;
        if !targets.iter().all(|&rank| found.setup.knows(rank)) {
            return Err(RmaError::Rank);
        }
        if !found.origin.access.is_free() {
            return Err(RmaError::Sync);
        }
        let targets: BTreeSet<_> = targets.iter().copied().collect();
        for &target in &targets {
            found.origin.towards(target).starts += 1;
        }
        found.origin.access = Access::Started(targets);
        Ok(())
    }

    /// MPI_Win_complete.
    ///
    /// # Errors
    /// `Window`; `Sync`: no MPI_Win_start.
    pub fn complete(&mut self, window: ContextId) -> Result<Wait, RmaError> {
        let found = self.window(window)?;
        let Access::Started(targets) = &found.origin.access else { return Err(RmaError::Sync) };
        let targets: Vec<_> = targets.iter().copied().collect();
        found.origin.access = Access::Closed;
        let dynamic = found.setup.flavor == Flavor::Dynamic;
        for &target in &targets {
            let towards = self.window(window)?.origin.towards(target);
            let epoch = Epoch::Access(towards.starts);
            if dynamic && towards.is_unconfirmed {
                self.send(window, target, epoch, Action::Flush, Some(Awaited::Done))?;
            }
            self.send(window, target, epoch, Action::Complete, None)?;
            self.window(window)?.origin.towards(target).is_unconfirmed = false;
        }
        self.replies_of(window, &targets, false)
    }

    /// MPI_Win_lock. A lock of the own window is always waited for.
    ///
    /// # Errors
    /// `Window`, `Rank`; `Sync`: no locks on this window, another epoch is open, or the target is
    /// locked already; `Conflict`: the own window is exposed by MPI_Win_post.
    pub fn lock(
        &mut self,
        window: ContextId,
        target: CommRank,
        exclusive: bool,
        mode: LockMode,
    ) -> Result<Wait, RmaError> {
        self.lock_beside(&mut Nobody, window, target, exclusive, mode)
    }

    /// The same, directly where the target is a neighbour and the lock is free.
    ///
    /// # Errors
    /// As [`Rma::lock`].
    pub fn lock_beside<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        window: ContextId,
        target: CommRank,
        exclusive: bool,
        mode: LockMode,
    ) -> Result<Wait, RmaError> {
        let found = self.window(window)?;
        if !found.setup.knows(target) {
            return Err(RmaError::Rank);
        }
        if found.setup.no_locks || !found.origin.may_lock(target) {
            return Err(RmaError::Sync);
        }
        if target == found.setup.me && found.target.exposed.is_some() {
            return Err(RmaError::Conflict);
        }
        let held = if mode == LockMode::NoCheck { Held::Unchecked } else { Held::Locked };
        found.origin.lock(target, held);
        let mut wants_grant = mode == LockMode::Granted || target == found.setup.me;
        if held == Held::Locked && self.try_lock_near(hood, window, target, exclusive) {
            wants_grant = false;
        } else if held == Held::Locked {
            self.send_lock(window, target, exclusive, wants_grant)?;
        }
        if !wants_grant {
            return Ok(Wait { window, kind: Kind::Replies(Vec::new()) });
        }
        self.replies_of(window, &[target], false)
    }

    fn send_lock(
        &mut self,
        window: ContextId,
        target: CommRank,
        exclusive: bool,
        wants_grant: bool,
    ) -> Result<(), RmaError> {
        let lock = Action::Lock { exclusive, wants_grant };
        let awaited = wants_grant.then_some(Awaited::Granted);
        self.send(window, target, Epoch::Passive, lock, awaited)
    }

    /// MPI_Win_unlock.
    ///
    /// # Errors
    /// `Window`; `Sync`: the target is not locked by MPI_Win_lock.
    pub fn unlock(&mut self, window: ContextId, target: CommRank) -> Result<Wait, RmaError> {
        self.unlock_beside(&mut Nobody, window, target)
    }

    /// The same, directly where the lock was taken directly.
    ///
    /// # Errors
    /// As [`Rma::unlock`].
    pub fn unlock_beside<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        window: ContextId,
        target: CommRank,
    ) -> Result<Wait, RmaError> {
        let found = self.window(window)?;
        let held = found.origin.unlock(target).ok_or(RmaError::Sync)?;
        self.end_lock(hood, window, target, held)?;
        self.replies_of(window, &[target], false)
    }

    fn end_lock<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        window: ContextId,
        target: CommRank,
        held: Held,
    ) -> Result<(), RmaError> {
        match held {
            Held::Locked if self.try_unlock_near(hood, window, target) => Ok(()),
            Held::Locked => {
                let awaited = Some(Awaited::Done);
                self.send(window, target, Epoch::Passive, Action::Unlock, awaited)
            }
            Held::Unchecked => self.confirm(window, target),
        }
    }

    /// MPI_Win_lock_all. With `Deferred` a target is locked at the first operation to it.
    ///
    /// # Errors
    /// `Window`; `Sync`: no locks on this window, or an epoch is open.
    pub fn lock_all(&mut self, window: ContextId, mode: LockMode) -> Result<Wait, RmaError> {
        let found = self.window(window)?;
        if found.setup.no_locks || !found.origin.access.is_free() {
            return Err(RmaError::Sync);
        }
        let held = if mode == LockMode::NoCheck { Held::Unchecked } else { Held::Locked };
        let mut asked = BTreeSet::new();
        if mode == LockMode::Granted {
            asked.extend((0..found.setup.extents.len() as u32).map(CommRank));
        }
        let targets: Vec<_> = asked.iter().copied().collect();
        found.origin.access = Access::LockAll { held, asked };
        for &target in &targets {
            self.send_lock(window, target, false, true)?;
        }
        self.replies_of(window, &targets, false)
    }

    /// MPI_Win_unlock_all.
    ///
    /// # Errors
    /// `Window`; `Sync`: no MPI_Win_lock_all.
    pub fn unlock_all(&mut self, window: ContextId) -> Result<Wait, RmaError> {
        self.unlock_all_beside(&mut Nobody, window)
    }

    /// The same, directly where targets were locked directly.
    ///
    /// # Errors
    /// As [`Rma::unlock_all`].
    pub fn unlock_all_beside<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        window: ContextId,
    ) -> Result<Wait, RmaError> {
        let found = self.window(window)?;
        let Access::LockAll { held, asked } = &found.origin.access else {
            return Err(RmaError::Sync);
        };
        let held = *held;
        let targets: Vec<_> = match held {
            Held::Locked => asked.iter().copied().collect(),
            Held::Unchecked => found.origin.towards.keys().copied().collect(),
        };
        found.origin.access = Access::Closed;
        for &target in &targets {
            self.end_lock(hood, window, target, held)?;
        }
        self.replies_of(window, &targets, false)
    }

    /// Ask a target to confirm what was sent to it, if no reply will show that.
    fn confirm(&mut self, window: ContextId, target: CommRank) -> Result<(), RmaError> {
        match self.window(window)?.origin.towards(target).is_unconfirmed {
            true => {
                let awaited = Some(Awaited::Done);
                self.send(window, target, Epoch::Passive, Action::Flush, awaited)
            }
            false => Ok(()),
        }
    }

    /// MPI_Win_flush (one target) or MPI_Win_flush_all (`None`).
    ///
    /// # Errors
    /// `Window`, `Rank`; `Sync`: no passive epoch for the target.
    pub fn flush(&mut self, window: ContextId, target: Option<CommRank>) -> Result<Wait, RmaError> {
        let targets = self.passive_targets(window, target)?;
        for &target in &targets {
            self.confirm(window, target)?;
        }
        self.replies_of(window, &targets, false)
    }

    /// MPI_Win_flush_local, MPI_Win_flush_local_all: data of gets is here; puts were copied when
    /// they were called.
    ///
    /// # Errors
    /// As [`Rma::flush`].
    pub fn flush_local(
        &mut self,
        window: ContextId,
        target: Option<CommRank>,
    ) -> Result<Wait, RmaError> {
        let targets = self.passive_targets(window, target)?;
        self.replies_of(window, &targets, true)
    }

    fn passive_targets(
        &mut self,
        window: ContextId,
        target: Option<CommRank>,
    ) -> Result<Vec<CommRank>, RmaError> {
        let found = self.window(window)?;
        if target.is_some_and(|target| !found.setup.knows(target)) {
            return Err(RmaError::Rank);
        }
        let origin = &found.origin;
        match (&origin.access, target) {
            (Access::Locks, Some(target)) if origin.locks.has(target) => Ok(vec![target]),
            (Access::Locks, None) => Ok(origin.locks.targets().collect()),
            (Access::LockAll { .. }, Some(target)) => Ok(vec![target]),
            (Access::LockAll { .. }, None) => Ok(origin.towards.keys().copied().collect()),
            _ => Err(RmaError::Sync),
        }
    }

    /// Wait for all that these targets have been asked for so far.
    fn replies_of(
        &mut self,
        window: ContextId,
        targets: &[CommRank],
        only_data: bool,
    ) -> Result<Wait, RmaError> {
        for &target in targets {
            self.send_batch(window, target);
        }
        let origin = &mut self.window(window)?.origin;
        let asked = |&target: &CommRank| {
            let towards = origin.towards(target);
            (target, if only_data { towards.data_asked } else { towards.asked })
        };
        Ok(Wait { window, kind: Kind::Replies(targets.iter().map(asked).collect()) })
    }

    /// MPI_Win_sync: memory is one (MPI_WIN_UNIFIED); the driver's fence of the processor is all.
    ///
    /// # Errors
    /// `Window`.
    pub fn sync(&mut self, window: ContextId) -> Result<(), RmaError> {
        self.window(window).map(|_| ())
    }

    /// Is it over? What it returns then is the call's result, once. Call [`Rma::progress`] after.
    pub fn poll(&mut self, wait: &Wait) -> Option<Result<(), RmaError>> {
        if self.holds_completions() {
            return None;
        }
        let Ok(found) = self.window(wait.window) else { return Some(Err(RmaError::Window)) };
        match &wait.kind {
            Kind::Replies(targets) => {
                let came = |&(target, count): &(CommRank, u64)| {
                    found.origin.towards.get(&target).is_none_or(|t| t.came >= count)
                };
                if !targets.iter().all(came) {
                    return None;
                }
                let targets = targets.iter().map(|&(target, _)| target);
                Some(found.origin.take_error(targets).map_or(Ok(()), Err))
            }
            Kind::Fence { opens } => {
                let opens = *opens;
                let expected = found.target.expected?;
                let open = |towards: &crate::origin::Towards| !towards.awaited.is_empty();
                let replied = !found.origin.towards.values().any(open);
                if found.target.applied_since_fence < expected || !replied {
                    return None;
                }
                let targets: Vec<_> = found.origin.towards.keys().copied().collect();
                let error = found.origin.take_error(targets.into_iter());
                self.leave_fence(wait.window, opens);
                Some(error.map_or(Ok(()), Err))
            }
            Kind::Exposure => {
                found.target.exposed.as_ref().is_none_or(BTreeSet::is_empty).then(|| {
                    found.target.exposed = None;
                    Ok(())
                })
            }
        }
    }
}
