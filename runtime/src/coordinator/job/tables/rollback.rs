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
    Meeting,
    /// They repeat what was lost.
    Behind,
}

/// A set that goes back.
#[derive(Clone, Debug)]
pub(crate) struct Rollback {
    pub(crate) phase: Phase,
    pub(crate) line: CheckpointId,
    pub(crate) incarnation: Incarnation,
    /// Together with all others (`rollback_all`).
    pub(crate) with_all: bool,
    /// Whose node is lost, and who is being started on another one.
    pub(crate) placed: BTreeSet<PeerId>,
    /// Who has done what this phase waits for.
    pub(crate) done: BTreeSet<PeerId>,
    /// Who has caught up while others of the set still meet theirs: one that has no channels does
    /// at once.
    pub(crate) early: BTreeSet<PeerId>,
    /// What others have of its earlier lives is here (5).
    pub(crate) fenced: bool,
    pub(crate) since_ms: u64,
}

/// Why a set does not go back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RollbackRefusal {
    /// Not alone.
    Alone(String),
    /// Nobody does.
    Here(String),
}

impl Rollback {
    /// Its ranks are to be made from their images.
    pub(crate) fn new(
        now: u64,
        line: CheckpointId,
        incarnation: Incarnation,
        with_all: bool,
    ) -> Self {
        let (phase, placed, done) = (Phase::Restoring, BTreeSet::new(), BTreeSet::new());
        let (early, fenced, since_ms) = (BTreeSet::new(), false, now);
        Self { phase, line, incarnation, with_all, placed, done, early, fenced, since_ms }
    }

    /// It has met the others.
    pub(crate) fn is_replaying(&self) -> bool {
        self.phase == Phase::Behind
    }

    /// For people.
    pub(crate) fn name(&self) -> &'static str {
        match self.phase {
            Phase::Restoring => "restoring",
            Phase::Meeting => "meeting the others",
            Phase::Behind => "catching up",
        }
    }
}

/// All that is known of sets that went back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recovery {
    pub(crate) going: BTreeMap<SetId, Rollback>,
    /// How often a set fell since a line of it was complete.
    pub(crate) falls: BTreeMap<SetId, (CheckpointId, u32)>,
    /// How often all went back together, to this line.
    pub(crate) together: (CheckpointId, u32),
    /// The youngest incarnation of a set that was ordered.
    pub(crate) given: BTreeMap<SetId, Incarnation>,
    /// Sets of which not all is recorded, and why.
    pub(crate) unrecorded: BTreeMap<SetId, String>,
    /// No set goes back alone: what a rank of this one does others may have a part in.
    pub(crate) nobody_alone: Option<(SetId, String)>,
    /// Nor do all together.
    pub(crate) nobody: Option<String>,
    /// The job cannot go on: said once.
    pub(crate) failed: bool,
}

impl Recovery {
    /// For another coordinator: sets that go back, and falls.
    pub(crate) fn state(&self) -> (Vec<PersistedRollback>, Vec<(u32, u64, u32)>) {
        let going = self.going.iter().map(|(&set, going)| going.state(set)).collect();
        let falls = self.falls.iter().map(|(set, (line, falls))| (set.0, line.0, *falls));
        (going, falls.collect())
    }

    /// The other way round; sets that are behind only.
    pub(crate) fn resume(
        &mut self,
        now: u64,
        behind: Vec<PersistedRollback>,
        falls: &[(u32, u64, u32)],
    ) {
        for of in behind {
            let (line, incarnation) = (CheckpointId(of.line), Incarnation(of.incarnation));
            let begun = Rollback::new(now, line, incarnation, false);
            let going = Rollback { phase: Phase::Behind, fenced: true, ..begun };
            self.going.insert(SetId(of.set), going);
        }
        let falls =
            falls.iter().map(|&(set, line, falls)| (SetId(set), (CheckpointId(line), falls)));
        self.falls.extend(falls);
    }

    /// One that has not met the others yet.
    pub(crate) fn waits_for_orders(&self) -> Option<SetId> {
        self.going.iter().find(|(_, going)| !going.is_replaying()).map(|(&set, _)| set)
    }

    /// Sets that repeat what was lost, and from where.
    pub(crate) fn behind(&self) -> Vec<(SetId, CheckpointId)> {
        let behind = self.going.iter().filter(|(_, going)| going.is_replaying());
        behind.map(|(&set, going)| (set, going.line)).collect()
    }
}

impl Rollback {
    /// For another coordinator.
    pub(crate) fn state(&self, set: SetId) -> PersistedRollback {
        let (line, incarnation) = (self.line.0, self.incarnation.0);
        PersistedRollback {
            set: set.0,
            line,
            incarnation,
            behind: self.is_replaying(),
            with_all: self.with_all,
        }
    }
}
