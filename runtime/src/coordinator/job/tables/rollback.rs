//! Sets that are rolled back: how far each is, and what holds for the whole job.

use crate::coordinator::job::tables::persisted::PersistedRollback;
use rustbtl_coordination::control::CheckpointId;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Its ranks are being made from their images.
    Restoring,
    /// They learn the others' addresses, and the others theirs.
    Connecting,
    /// They repeat what was lost.
    Replaying,
}

/// A set that goes back.
#[derive(Clone, Debug)]
pub(crate) struct Rollback {
    pub(crate) phase: Phase,
    pub(crate) checkpoint: CheckpointId,
    pub(crate) incarnation: Incarnation,
    /// Together with all others (`rollback_all`).
    pub(crate) global: bool,
    /// Whose node is lost, and who is being started on another one.
    pub(crate) placed: BTreeSet<PeerId>,
    /// Who has done what this phase waits for.
    pub(crate) done: BTreeSet<PeerId>,
    /// Who has caught up while others of the set still meet theirs: one that has no channels does
    /// at once.
    pub(crate) replayed_early: BTreeSet<PeerId>,
    /// What others have of its earlier lives is here (5).
    pub(crate) fenced: bool,
    pub(crate) since_ms: u64,
}

/// Why a set does not go back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RollbackRefusal {
    /// Not alone.
    NotAlone(String),
    /// Nobody does.
    Never(String),
}

impl Rollback {
    /// Its ranks are to be made from their images.
    pub(crate) fn new(
        now: u64,
        checkpoint: CheckpointId,
        incarnation: Incarnation,
        global: bool,
    ) -> Self {
        let (phase, placed, done) = (Phase::Restoring, BTreeSet::new(), BTreeSet::new());
        let (replayed_early, fenced, since_ms) = (BTreeSet::new(), false, now);
        Self {
            phase,
            checkpoint,
            incarnation,
            global,
            placed,
            done,
            replayed_early,
            fenced,
            since_ms,
        }
    }

    /// It has met the others.
    pub(crate) fn is_replaying(&self) -> bool {
        self.phase == Phase::Replaying
    }

    /// For people.
    pub(crate) fn name(&self) -> &'static str {
        match self.phase {
            Phase::Restoring => "restoring",
            Phase::Connecting => "meeting the others",
            Phase::Replaying => "catching up",
        }
    }
}

/// All that is known of sets that went back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recovery {
    pub(crate) rollbacks: BTreeMap<SetId, Rollback>,
    /// How often a set fell since a line of it was complete.
    pub(crate) failures: BTreeMap<SetId, (CheckpointId, u32)>,
    /// How often all went back together, to this line.
    pub(crate) global_rollbacks: (CheckpointId, u32),
    /// The youngest incarnation of a set that was ordered.
    pub(crate) newest_incarnations: BTreeMap<SetId, Incarnation>,
    /// Sets of which not all is recorded, and why.
    pub(crate) not_replayable: BTreeMap<SetId, String>,
    /// No set goes back alone: what a rank of this one does others may have a part in.
    pub(crate) set_rollback_blocked: Option<(SetId, String)>,
    /// Nor do all together.
    pub(crate) rollback_blocked: Option<String>,
    /// The job cannot go on: said once.
    pub(crate) failed: bool,
}

impl Recovery {
    /// For another coordinator: sets that go back, and falls.
    pub(crate) fn state(&self) -> (Vec<PersistedRollback>, Vec<(u32, u64, u32)>) {
        let rollbacks = self.rollbacks.iter().map(|(&set, rollback)| rollback.state(set)).collect();
        let failures =
            self.failures.iter().map(|(set, (checkpoint, count))| (set.0, checkpoint.0, *count));
        (rollbacks, failures.collect())
    }

    /// The other way round; sets that are behind only.
    pub(crate) fn resume(
        &mut self,
        now: u64,
        replaying: Vec<PersistedRollback>,
        failures: &[(u32, u64, u32)],
    ) {
        for of in replaying {
            let (checkpoint, incarnation) =
                (CheckpointId(of.checkpoint), Incarnation(of.incarnation));
            let begun = Rollback::new(now, checkpoint, incarnation, false);
            let rollback = Rollback { phase: Phase::Replaying, fenced: true, ..begun };
            self.rollbacks.insert(SetId(of.set), rollback);
        }
        let failures = failures
            .iter()
            .map(|&(set, checkpoint, count)| (SetId(set), (CheckpointId(checkpoint), count)));
        self.failures.extend(failures);
    }

    /// One that has not met the others yet.
    pub(crate) fn waits_for_orders(&self) -> Option<SetId> {
        self.rollbacks.iter().find(|(_, rollback)| !rollback.is_replaying()).map(|(&set, _)| set)
    }

    /// Sets that repeat what was lost, and from where.
    pub(crate) fn replaying(&self) -> Vec<(SetId, CheckpointId)> {
        let replaying = self.rollbacks.iter().filter(|(_, rollback)| rollback.is_replaying());
        replaying.map(|(&set, rollback)| (set, rollback.checkpoint)).collect()
    }
}

impl Rollback {
    /// For another coordinator.
    pub(crate) fn state(&self, set: SetId) -> PersistedRollback {
        let (checkpoint, incarnation) = (self.checkpoint.0, self.incarnation.0);
        PersistedRollback {
            set: set.0,
            checkpoint,
            incarnation,
            replaying: self.is_replaying(),
            global: self.global,
        }
    }
}
