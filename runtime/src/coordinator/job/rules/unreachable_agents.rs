//! Ranks whose agent does not come back although mpirun has not lost their node. Part of [`Job`]:
//! no I/O.
//!
//! An agent that hears nothing of its coordinator for long gives it up, and its ranks go on alone
//! for good: the coordinator may only have stood still, and others may have waited longer.
//!
//! 1. Ranks that are coordinated and ranks that are alone do not wait for each other: if some do
//!    not come back within [`PATIENCE_MS`], all are let go, and the user hears it once.
//! 2. After that nothing is decided any more; whoever comes is told to go on alone.
//! 3. A set that waits for orders cannot go on alone: then the job ends, with what to do.

#[cfg(test)]
pub(crate) mod tests;

use crate::coordinator::job::state::{Effect, Job, Rank};
use crate::coordinator::job::tables::failover::Failover;
use crate::coordinator::job::tables::text::some_of;
use rustbtl_fragments::ids::PeerId;
use serde_json::json;

/// Longer than agents try to connect again, and than it takes until somebody who is awaited is
/// named (`again`).
const PATIENCE_MS: u64 = 40_000;

fn is_missing(rank: &Rank) -> bool {
    !rank.here && !rank.lost && rank.ended.is_none()
}

impl Job {
    /// Nobody is coordinated any more.
    pub fn is_protection_disabled(&self) -> bool {
        self.unreachable.protection_disabled
    }

    /// Time has passed.
    pub(crate) fn check_reachability(&mut self, now: u64) {
        // A job that starts or ends waits for nobody here.
        let matters = (self.scheduler.is_some() || self.failover.is_some()) && !self.may_finish;
        let missing = self.ranks.iter().filter(|(_, rank)| is_missing(rank));
        let missing: Vec<PeerId> = missing.map(|(&id, _)| id).collect();
        if !matters
            || missing.is_empty()
            || self.unreachable.protection_disabled
            || self.recovery.failed
        {
            self.unreachable.since_ms = None;
            return;
        }
        let since = *self.unreachable.since_ms.get_or_insert(now);
        if now >= since.saturating_add(PATIENCE_MS) {
            self.disable_protection(&missing);
        }
    }

    fn disable_protection(&mut self, missing: &[PeerId]) {
        let names = some_of(missing.iter().map(|id| self.name_of(*id)).collect(), ", ");
        let numbers: Vec<u32> = missing.iter().map(|rank| rank.0).collect();
        (self.unreachable.protection_disabled, self.changed) = (true, true);
        self.log(json!({"event": "protection_disabled", "missing": numbers}));
        let restarting = self.failover.as_ref().and_then(Failover::restarting_set);
        if let Some(set) = self.recovery.waits_for_orders().or(restarting) {
            return self.fail(format!(
                "{names} cannot be reached any more, and set {set} had not yet come back"
            ));
        }
        self.effects.push_back(Effect::NotifyUser(format!(
            "job {}: {names} cannot be reached any more: the job GOES ON WITHOUT PROTECTION. If \
             something of it dies now it ends. Was the node, or that of mpirun, stopped or very \
             busy for long?",
            self.name
        )));
        self.effects.push_back(Effect::DisableProtection);
    }
}
