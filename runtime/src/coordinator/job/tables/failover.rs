//! A failover that is under way: what the new coordinator still waits for.

use crate::coordinator::job::tables::persisted::PersistedScheduler;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use std::collections::{BTreeMap, BTreeSet};

/// While it is being learnt who is there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failover {
    pub(crate) lines: PersistedScheduler,
    /// They begin anew (3).
    pub(crate) going: BTreeSet<SetId>,
    /// They were all, together.
    pub(crate) with_all: bool,
    /// From mpirun, and not decided upon.
    pub(crate) words: Vec<String>,
    /// Programs that have fallen, in which incarnation, and how.
    pub(crate) fallen: BTreeMap<PeerId, (i32, Incarnation)>,
    pub(crate) since_ms: u64,
    /// It was said that somebody is missing.
    pub(crate) told: bool,
}

impl Failover {
    /// A set that was on its way back, and waits.
    pub(crate) fn restarting_set(&self) -> Option<SetId> {
        self.going.first().copied()
    }
}
