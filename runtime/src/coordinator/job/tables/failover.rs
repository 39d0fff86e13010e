//! A failover that is under way: what the new coordinator still waits for.

use crate::coordinator::job::tables::persisted::PersistedScheduler;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use std::collections::{BTreeMap, BTreeSet};

/// While it is being learnt who is there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failover {
    pub(crate) scheduler: PersistedScheduler,
    /// They begin anew (3).
    pub(crate) sets: BTreeSet<SetId>,
    /// They were all, together.
    pub(crate) global: bool,
    /// From mpirun, and not decided upon.
    pub(crate) deferred: Vec<String>,
    /// Programs that have fallen, in which incarnation, and how.
    pub(crate) failed_ranks: BTreeMap<PeerId, (i32, Incarnation)>,
    pub(crate) since_ms: u64,
    /// It was said that somebody is missing.
    pub(crate) reported: bool,
}

impl Failover {
    /// A set that was on its way back, and waits.
    pub(crate) fn restarting_set(&self) -> Option<SetId> {
        self.sets.first().copied()
    }
}
