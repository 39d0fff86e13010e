//! What the scheduler remembers of sets and of checkpoints that are under way.

use crate::interval::CheckpointCost;
use crate::quiescence::CheckpointScope;
use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::{BTreeSet, VecDeque};

/// Somebody asks for a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingRequest {
    /// When it was requested; not before this time.
    pub(super) from: u64,
    /// It was tried, and failed (L7).
    pub(super) retried: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Set {
    pub(super) ranks: BTreeSet<PeerId>,
    pub(super) lost: bool,
    /// Others have seen what it has not replayed yet: a global checkpoint of such a state would
    /// hold messages that nobody has sent.
    pub(super) replaying: bool,
    /// Ranks that have refused a global checkpoint since something is not repaired.
    pub(super) replay_pending: BTreeSet<PeerId>,
    pub(super) finishing: bool,
    pub(super) wanted: Option<PendingRequest>,
    pub(super) due: Option<u64>,
    pub(super) pause_ms: Option<u64>,
    /// Checkpoints in a row that were aborted.
    pub(super) aborted: u32,
    /// Complete checkpoints, ascending; global ones, too.
    pub(super) kept: VecDeque<u64>,
    /// It can be rolled back alone to this one and younger ones only: before it, logging towards
    /// it was suspended (L9).
    pub(super) alone_from: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Phase {
    Stopping,
    Taking,
    Storing,
    Committing,
}

#[derive(Clone, Debug)]
pub(super) struct ActiveCheckpoint {
    pub(super) scope: CheckpointScope,
    pub(super) sets: Vec<SetId>,
    pub(super) phase: Phase,
    pub(super) exit: bool,
    /// Somebody requested it.
    pub(super) requested: Option<PendingRequest>,
    pub(super) ranks: BTreeSet<PeerId>,
    pub(super) stopped: BTreeSet<PeerId>,
    pub(super) frozen: BTreeSet<PeerId>,
    pub(super) stored: BTreeSet<PeerId>,
    pub(super) begun: u64,
    pub(super) pause_ms: u64,
    /// Of the rank that lost most while its image was stored: how much it lost, and of how much
    /// time. Milliseconds.
    pub(super) storing_cost: Option<(u64, u64)>,
    pub(super) deadline: u64,
}

/// Checkpoints that fail again and again must not keep the program from its work: each waits twice
/// as long as the one before.
pub(super) fn later(now: u64, interval_ms: u64, aborted: u32) -> u64 {
    now.saturating_add(interval_ms.saturating_mul(1 << aborted.min(16)))
}

impl Set {
    /// What its last checkpoint has cost.
    pub(super) fn cost(&self) -> Option<CheckpointCost> {
        self.pause_ms.map(|pause_ms| CheckpointCost { pause_ms, ..Default::default() })
    }

    pub(super) fn usable(&self) -> bool {
        !self.lost && !self.finishing
    }

    /// The checkpoints that it can be rolled back to alone, ascending.
    pub(super) fn alone(&self) -> impl DoubleEndedIterator<Item = u64> + '_ {
        self.kept.iter().copied().filter(|&checkpoint| checkpoint >= self.alone_from)
    }

    /// It has checkpoints, and can be rolled back to none of them alone (L9).
    pub(super) fn is_suspended(&self) -> bool {
        self.alone_from > 0 && self.alone().next().is_none()
    }

    pub(super) fn is_repaired(&self) -> bool {
        !self.replaying && self.replay_pending.is_empty()
    }
}

impl ActiveCheckpoint {
    /// A rank whose answer is awaited.
    pub(super) fn awaited(&self) -> Option<PeerId> {
        let answered = match self.phase {
            Phase::Stopping => &self.stopped,
            Phase::Taking => &self.frozen,
            Phase::Storing => &self.stored,
            Phase::Committing => return None,
        };
        self.ranks.difference(answered).next().copied()
    }
}
