//! The origin's side of a window: which access epoch is open, which replies are awaited.

use crate::error::RmaError;
use crate::ids::{CommRank, OperationId};
use crate::wire::Epoch;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A lock that this process holds, or has asked for, at a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Held {
    /// The target knows of it.
    Locked,
    /// MPI_MODE_NOCHECK: the target was not asked.
    Unchecked,
}

/// The access epoch of this process (MPI-3.1 §11.5: one at a time on a window).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) enum Access {
    /// None.
    #[default]
    Closed,
    /// Behind a fence; nothing was done yet, so that the fence may have been the last.
    FenceOpen,
    /// Behind a fence, with operations.
    FenceUsed,
    /// MPI_Win_fence is under way.
    FenceEnding,
    /// MPI_Win_start.
    Started(BTreeSet<CommRank>),
    /// MPI_Win_lock, target by target: [`Origin::locks`], which is not empty.
    Locks,
    /// MPI_Win_lock_all.
    LockAll {
        /// How targets are locked.
        held: Held,
        /// Those that were asked: at the first operation.
        asked: BTreeSet<CommRank>,
    },
}

impl Access {
    pub(crate) fn is_fence(&self) -> bool {
        matches!(self, Self::Closed | Self::FenceOpen | Self::FenceUsed)
    }

    /// May another kind of epoch begin?
    pub(crate) fn is_free(&self) -> bool {
        matches!(self, Self::Closed | Self::FenceOpen)
    }
}

/// A reply that will come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Awaited {
    /// Data of a part of an operation.
    Data { operation: OperationId, first: u64, is_last: bool },
    /// Of a flush or unlock.
    Done,
    /// Of a lock.
    Granted,
}

/// What is under way to one target.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Towards {
    /// Messages of the fence epoch that read or write.
    pub(crate) of_fence: u64,
    /// Accesses of the fence epoch that were done directly.
    pub(crate) direct_of_fence: u64,
    /// MPI_Win_start's that named it.
    pub(crate) starts: u64,
    /// Something was sent whose application no reply will show.
    pub(crate) is_unconfirmed: bool,
    /// Operations that go in one message, which is not sent yet.
    pub(crate) batch: Vec<u8>,
    /// A lock was asked for, and nothing is said when it is granted: how many replies had been
    /// asked for by then. A later one says it.
    pub(crate) locks_after: Option<u64>,
    /// Replies that were asked for, in order.
    pub(crate) awaited: VecDeque<Awaited>,
    /// How many replies were ever asked for.
    pub(crate) asked: u64,
    /// How many of these came.
    pub(crate) came: u64,
    /// `asked` at the last operation that gets data.
    pub(crate) data_asked: u64,
    /// Replies that came before this process, in a replay, has asked for them again.
    pub(crate) early: VecDeque<Vec<u8>>,
    /// What the next synchronization returns.
    pub(crate) error: Option<RmaError>,
    /// The window's entry in the target's area, if it was found.
    pub(crate) entry: Option<usize>,
}

/// A number of a reply on the wire: from 1, 32 bits.
pub(crate) fn wire_number(count: u64) -> u32 {
    ((count - 1) % u64::from(u32::MAX)) as u32 + 1
}

impl Towards {
    /// Is all that was sent applied, known to be, and told to the program?
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.batch.is_empty()
            && self.awaited.is_empty()
            && !self.is_unconfirmed
            && self.error.is_none()
            && self.of_fence == 0
            && self.locks_after.is_none_or(|asked| self.came > asked)
    }

    /// One more reply is awaited; returns its number.
    pub(crate) fn ask(&mut self, what: Awaited) -> u32 {
        self.asked += 1;
        if let Awaited::Data { .. } = what {
            self.data_asked = self.asked;
        }
        self.awaited.push_back(what);
        wire_number(self.asked)
    }
}

/// Targets that are locked one by one, in their order. Few as a rule; its memory is kept, so that
/// a lock takes none.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Locks(Vec<(CommRank, Held)>);

impl Locks {
    fn find(&self, target: CommRank) -> Result<usize, usize> {
        self.0.binary_search_by_key(&target, |&(locked, _)| locked)
    }

    pub(crate) fn get(&self, target: CommRank) -> Option<Held> {
        self.find(target).ok().map(|at| self.0[at].1)
    }

    pub(crate) fn has(&self, target: CommRank) -> bool {
        self.find(target).is_ok()
    }

    pub(crate) fn insert(&mut self, target: CommRank, held: Held) {
        match self.find(target) {
            Ok(at) => self.0[at].1 = held,
            Err(at) => self.0.insert(at, (target, held)),
        }
    }

    pub(crate) fn remove(&mut self, target: CommRank) -> Option<Held> {
        self.find(target).ok().map(|at| self.0.remove(at).1)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn targets(&self) -> impl Iterator<Item = CommRank> + '_ {
        self.0.iter().map(|&(target, _)| target)
    }
}

/// The origin's side of a window.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Origin {
    pub(crate) access: Access,
    pub(crate) locks: Locks,
    pub(crate) towards: BTreeMap<CommRank, Towards>,
}

impl Origin {
    #[inline]
    pub(crate) fn towards(&mut self, target: CommRank) -> &mut Towards {
        self.towards.entry(target).or_default()
    }

    /// May MPI_Win_lock lock this target?
    #[inline]
    pub(crate) fn may_lock(&self, target: CommRank) -> bool {
        match &self.access {
            Access::Locks => !self.locks.has(target),
            other => other.is_free(),
        }
    }

    /// It does.
    #[inline]
    pub(crate) fn lock(&mut self, target: CommRank, held: Held) {
        self.locks.insert(target, held);
        self.access = Access::Locks;
    }

    /// MPI_Win_unlock: how it was locked; `None`: it was not.
    #[inline]
    pub(crate) fn unlock(&mut self, target: CommRank) -> Option<Held> {
        let held = self.locks.remove(target)?;
        if self.locks.is_empty() {
            self.access = Access::Closed;
        }
        Some(held)
    }

    /// The epoch of an operation to `target`, and whether the target has to be locked first.
    ///
    /// # Errors
    /// `Sync`: none is open.
    #[inline]
    pub(crate) fn epoch(&self, target: CommRank, fences: u64) -> Result<(Epoch, bool), RmaError> {
        match &self.access {
            Access::FenceOpen | Access::FenceUsed => Ok((Epoch::Fence(fences), false)),
            Access::Started(group) if group.contains(&target) => {
                let starts = self.towards.get(&target).map_or(0, |towards| towards.starts);
                Ok((Epoch::Access(starts), false))
            }
            Access::Locks if self.locks.has(target) => Ok((Epoch::Passive, false)),
            Access::LockAll { held, asked } => {
                Ok((Epoch::Passive, *held == Held::Locked && !asked.contains(&target)))
            }
            _ => Err(RmaError::Sync),
        }
    }

    /// The first error of these targets that no call has returned yet.
    pub(crate) fn take_error(
        &mut self,
        targets: impl Iterator<Item = CommRank>,
    ) -> Option<RmaError> {
        let mut found = None;
        for target in targets {
            if let Some(towards) = self.towards.get_mut(&target) {
                found = found.or(towards.error.take());
            }
        }
        found
    }

    /// O1: each reply that was asked for is awaited or came.
    ///
    /// # Panics
    /// If it is not so.
    pub(crate) fn check(&self) {
        for towards in self.towards.values() {
            let open = towards.asked - towards.came;
            assert!(open == towards.awaited.len() as u64, "O1: replies are not counted");
            let kept = towards.awaited.is_empty() || towards.early.is_empty();
            assert!(kept, "O4: a reply is kept that is awaited");
            assert!(towards.data_asked <= towards.asked, "O1: data was not asked for");
        }
        let is_locked = matches!(self.access, Access::Locks);
        assert!(is_locked != self.locks.is_empty(), "O2: an epoch of locks without a lock");
    }
}
