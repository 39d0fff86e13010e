//! A failover that is under way: what the new coordinator still waits for.

use crate::coordinator::job::tables::persisted::PersistedScheduler;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use std::collections::{BTreeMap, BTreeSet};

/// Until all ranks have connected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failover {
    pub(crate) scheduler: PersistedScheduler,
    /// Sets that are rolled back again (3).
    pub(crate) sets: BTreeSet<SetId>,
    /// The rollback was a global one.
    pub(crate) global: bool,
    /// Messages of mpirun that are handled later.
    pub(crate) deferred: Vec<String>,
    /// Programs that have failed, how, and in which incarnation.
    pub(crate) failed_ranks: BTreeMap<PeerId, (i32, Incarnation)>,
    pub(crate) since_ms: u64,
    /// Replays that have diverged meanwhile: who says so, who did, how.
    pub(crate) diverged: Vec<(PeerId, PeerId, String)>,
    /// A set depends on what another one had recorded, and that is lost.
    pub(crate) orphan: Option<(SetId, SetId)>,
    /// It was reported that ranks are missing.
    pub(crate) reported: bool,
}

impl Failover {
    /// A set whose rollback had begun, and waits.
    pub(crate) fn restarting_set(&self) -> Option<SetId> {
        self.sets.first().copied()
    }
}
