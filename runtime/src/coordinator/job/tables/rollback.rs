//! Sets that are rolled back: how far each is, and what holds for the whole job.

use crate::coordinator::job::tables::persisted::PersistedRollback;
use rustbtl_coordination::control::CheckpointId;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Its ranks are being restored from their images.
    Restoring,
    /// Endpoints are exchanged, channels connected.
    Connecting,
    /// They replay what was lost.
    Replaying,
}

/// A set in rollback.
#[derive(Clone, Debug)]
pub(crate) struct Rollback {
    pub(crate) phase: Phase,
    pub(crate) checkpoint: CheckpointId,
    pub(crate) incarnation: Incarnation,
    /// Part of a global rollback (`rollback_all`).
    pub(crate) global: bool,
    /// Ranks of a lost node that are being started on another one.
    pub(crate) placed: BTreeSet<PeerId>,
    /// Ranks that were made from their images, and wait for all others to be (`all_restored`).
    pub(crate) made: BTreeSet<PeerId>,
    /// They wait no longer.
    pub(crate) may_run: bool,
    /// Who has done what this phase waits for.
    pub(crate) done: BTreeSet<PeerId>,
    /// Ranks whose replay was complete while others of the set were connecting: one without
    /// channels is at once.
    pub(crate) replayed_early: BTreeSet<PeerId>,
    /// What others have received of its earlier incarnations is here (5).
    pub(crate) fenced: bool,
    pub(crate) since_ms: u64,
}

/// Why a set is not rolled back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RollbackRefusal {
    /// Not alone: a global rollback may do.
    NotAlone(String),
    /// Nothing is rolled back.
    Never(String),
}

impl Rollback {
    /// Its ranks are to be restored.
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
            made: BTreeSet::new(),
            may_run: false,
            done,
            replayed_early,
            fenced,
            since_ms,
        }
    }

    /// It is connected to the others again.
    pub(crate) fn is_replaying(&self) -> bool {
        self.phase == Phase::Replaying
    }

    /// For people.
    pub(crate) fn name(&self) -> &'static str {
        match self.phase {
            Phase::Restoring => "restoring",
            Phase::Connecting => "connecting",
            Phase::Replaying => "replaying",
        }
    }
}

/// A set that cannot replay.
#[derive(Clone, Debug)]
pub(crate) struct NotReplayable {
    /// Why.
    pub(crate) reason: String,
    /// It can, as soon as this checkpoint, or a later one, of it is complete; `None`: never.
    pub(crate) until: Option<CheckpointId>,
}

/// All rollbacks of the job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recovery {
    pub(crate) rollbacks: BTreeMap<SetId, Rollback>,
    /// How often a set has failed since this checkpoint, its youngest, was complete.
    pub(crate) failures: BTreeMap<SetId, (CheckpointId, u32)>,
    /// How many global rollbacks there were to this checkpoint.
    pub(crate) global_rollbacks: (CheckpointId, u32),
    /// The newest incarnation of a set that was ordered, whether it ever ran.
    pub(crate) newest_incarnations: BTreeMap<SetId, Incarnation>,
    /// Sets that cannot replay.
    pub(crate) not_replayable: BTreeMap<SetId, NotReplayable>,
    /// Guardians that mpirun has reported as ended, and about which nothing is decided yet.
    pub(crate) undecided: BTreeSet<PeerId>,
    /// Sets whose replay has diverged from what they did before, and how: they are not replayed any
    /// more, even where nobody else would notice.
    pub(crate) diverged: BTreeMap<SetId, String>,
    /// No set is rolled back alone: what a rank of this one does may involve others.
    pub(crate) set_rollback_blocked: Option<(SetId, String)>,
    /// Nor is a global rollback possible.
    pub(crate) rollback_blocked: Option<String>,
    /// At the restart of a whole job: ranks that were made from their images.
    pub(crate) made_at_start: BTreeSet<PeerId>,
    /// The job cannot continue: reported once.
    pub(crate) failed: bool,
}

impl Recovery {
    /// For a failover: rollbacks and failures.
    pub(crate) fn state(&self) -> (Vec<PersistedRollback>, Vec<(u32, u64, u32)>) {
        let rollbacks = self.rollbacks.iter().map(|(&set, rollback)| rollback.state(set)).collect();
        let failures =
            self.failures.iter().map(|(set, (checkpoint, count))| (set.0, checkpoint.0, *count));
        (rollbacks, failures.collect())
    }

    /// From a failover; only sets that are replaying.
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

    /// A set that is not connected to the others yet.
    pub(crate) fn waits_for_orders(&self) -> Option<SetId> {
        self.rollbacks.iter().find(|(_, rollback)| !rollback.is_replaying()).map(|(&set, _)| set)
    }

    /// Sets that are replaying, and from which checkpoint.
    pub(crate) fn replaying(&self) -> Vec<(SetId, CheckpointId)> {
        let replaying = self.rollbacks.iter().filter(|(_, rollback)| rollback.is_replaying());
        replaying.map(|(&set, rollback)| (set, rollback.checkpoint)).collect()
    }
}

impl Rollback {
    /// For a failover.
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
