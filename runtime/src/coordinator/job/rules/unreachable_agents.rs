//! Ranks whose agent does not reconnect although mpirun has not lost their node. Part of [`Job`]:
//! no I/O.
//!
//! An agent that receives nothing from its coordinator for long declares it failed, and its ranks
//! continue without it for good. The coordinator may only have been suspended, and others may have
//! waited longer.
//!
//! 0. While mpirun's node is cut off (`node_silence`) nothing is decided.
//! 1. Ranks with and without a coordinator do not wait for each other: if some do not reconnect
//!    within [`PATIENCE_MS`] (longer with a long failure timeout), protection is disabled for all,
//!    and the user is notified once.
//! 2. After that nothing is decided any more; an agent that connects is ordered to continue alone.
//! 3. A set in rollback that waits for orders cannot continue alone, nor can others without a rank
//!    that was killed: then the job ends, and the user reads what to do.

#[cfg(test)]
pub(crate) mod tests;

use crate::coordinator::job::state::{Effect, Job, Rank};
use crate::coordinator::job::tables::failover::Failover;
use crate::coordinator::job::tables::text::some_of;
use rustbtl_fragments::ids::PeerId;
use serde_json::json;

/// Longer than agents try to connect again, and than it takes until missing ranks are reported
/// (`failover`).
const PATIENCE_MS: u64 = 40_000;
/// So many failure timeouts pass until a suspended process is ended that keeps an agent from being
/// started (`node::lock_holder`), and others have done what it did.
const TIMEOUTS: u64 = 5;

fn is_missing(rank: &Rank) -> bool {
    !rank.here && !rank.lost && rank.ended.is_none()
}

impl Job {
    /// Protection is disabled: nobody is coordinated any more.
    pub fn is_protection_disabled(&self) -> bool {
        self.unreachable.protection_disabled
    }

    /// Is there an agent that is disconnected, and may connect again?
    pub(crate) fn has_unreachable_agents(&self) -> bool {
        !self.unreachable.protection_disabled && self.ranks.values().any(is_missing)
    }

    /// Time has passed.
    pub(crate) fn check_reachability(&mut self, now: u64) {
        // A job that starts or ends does not wait for agents here.
        let matters = (self.scheduler.is_some() || self.failover.is_some()) && !self.may_finish;
        let missing = self.ranks.iter().filter(|(_, rank)| is_missing(rank));
        let missing: Vec<PeerId> = missing.map(|(&id, _)| id).collect();
        if !matters
            || missing.is_empty()
            || self.unreachable.protection_disabled
            || self.recovery.failed
            || self.is_cut_off()
        {
            self.unreachable.since_ms = None;
            return;
        }
        let since = *self.unreachable.since_ms.get_or_insert(now);
        let patience = PATIENCE_MS.max(TIMEOUTS * self.config.failure_timeout_ms + PATIENCE_MS / 2);
        if now >= since.saturating_add(patience) {
            self.disable_protection(&missing);
        }
    }

    fn disable_protection(&mut self, missing: &[PeerId]) {
        let names = some_of(missing.iter().map(|id| self.name_of(*id)).collect(), ", ");
        let numbers: Vec<u32> = missing.iter().map(|rank| rank.0).collect();
        (self.unreachable.protection_disabled, self.changed) = (true, true);
        self.log(json!({"event": "protection_disabled", "missing": numbers}));
        let killed = missing.iter().find(|id| self.ranks.get(id).is_some_and(|rank| rank.killed));
        if let Some(&id) = killed {
            let name = self.name_of(id);
            let reason =
                "was ended by its daemon or by a signal, and mpirun has not lost the daemon";
            return self.fail(format!("{name} {reason}"));
        }
        let restarting = self.failover.as_ref().and_then(Failover::restarting_set);
        if let Some(set) = self.recovery.waits_for_orders().or(restarting) {
            return self.fail(format!(
                "{names} cannot be reached any more, and the rollback of set {set} was not complete"
            ));
        }
        self.effects.push_back(Effect::NotifyUser(format!(
            "job {}: {names} cannot be reached any more: the job GOES ON WITHOUT PROTECTION. If \
             a process or node fails now it ends. Was the node, or that of mpirun, stopped or very \
             busy for long?",
            self.name
        )));
        self.effects.push_back(Effect::DisableProtection);
    }
}
