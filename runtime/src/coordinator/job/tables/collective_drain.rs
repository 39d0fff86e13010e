//! Collectives that bypass rustbtl (docs/adr/0038).

use rustbtl_coordination::collective_clock::CollectiveDrain;
use rustbtl_fragments::ids::PeerId;
use std::collections::BTreeSet;

/// What the coordinator knows of them.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    /// Ranks that have such collectives.
    pub(crate) bypassing: BTreeSet<PeerId>,
    /// Of the last checkpoint that needed one.
    pub(crate) machine: Option<CollectiveDrain>,
    pub(crate) began_ms: u64,
}

impl Drain {
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.machine.as_ref().and_then(CollectiveDrain::next_deadline)
    }
}
