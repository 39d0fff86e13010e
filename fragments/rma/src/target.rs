//! The target's side of a window: operations that wait for their epoch, their lock or their turn in
//! a replay; exposure epochs; the lock.

use crate::batch::BatchQueue;
use crate::error::RmaError;
use crate::ids::CommRank;
use crate::locks::LockQueue;
use crate::wire::{Action, Epoch};
use std::collections::{BTreeMap, BTreeSet};

/// The target's side of a window.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Target {
    /// Operations of each origin that are not applied, in the order in which it sent them; none is
    /// empty. Sound messages.
    pub(crate) queues: BTreeMap<CommRank, BatchQueue>,
    /// Fences that this process has left.
    pub(crate) fences: u64,
    /// Accesses that were applied since, whoever applied them.
    pub(crate) applied_since_fence: u64,
    /// How many of neighbours' direct accesses in fence epochs are counted in it, or were.
    pub(crate) direct_seen: u64,
    /// While MPI_Win_fence is under way: how many accesses of the epoch there are, once known.
    pub(crate) expected: Option<u64>,
    /// MPI_Win_post's that named an origin.
    pub(crate) posts: BTreeMap<CommRank, u64>,
    /// While exposed by MPI_Win_post: origins that have not completed.
    pub(crate) exposed: Option<BTreeSet<CommRank>>,
    /// The lock.
    pub(crate) lock: LockQueue,
    /// Of each origin: why something was refused, until a flush or unlock is told.
    pub(crate) errors: BTreeMap<CommRank, RmaError>,
}

impl Target {
    /// Is an epoch such that its operations are applied?
    pub(crate) fn is_exposed_to(&self, source: CommRank, epoch: Epoch) -> bool {
        match epoch {
            Epoch::Passive => true,
            Epoch::Fence(number) => self.fences >= number,
            Epoch::Access(number) => self.posts.get(&source).is_some_and(|&posts| posts >= number),
        }
    }

    /// T1: an access of a fence epoch that has ended, or of an exposure that has, is not kept.
    /// T2: who waits for the lock has a lock in front of its queue. L1. T3: queues are not empty,
    /// and hold what decodes.
    ///
    /// # Panics
    /// If it is not so.
    pub(crate) fn check(&self) {
        self.lock.check();
        for (source, queue) in &self.queues {
            assert!(!queue.is_empty(), "T3: an empty queue");
            for operation in queue.operations() {
                let Ok(operation) = operation else {
                    panic!("T3: a message that is none");
                };
                let (is_kept_late, access) = match operation.epoch {
                    Epoch::Passive => (false, true),
                    Epoch::Fence(number) => (number < self.fences, operation.action.is_access()),
                    Epoch::Access(number) => {
                        let open = self.exposed.as_ref().is_some_and(|open| open.contains(source));
                        let posts = self.posts.get(source).copied().unwrap_or(0);
                        (number < posts || number == posts && !open, true)
                    }
                };
                assert!(!(is_kept_late && access), "T1: kept beyond its epoch: {operation:?}");
            }
        }
        for source in self.lock.waiting() {
            let operation = self.queues.get(&source).and_then(BatchQueue::first);
            let waits = operation.is_some_and(|o| matches!(o.action, Action::Lock { .. }));
            assert!(waits, "T2: {source} waits for no lock");
        }
    }
}
