//! Logging towards a set that costs more than it may is suspended until the set's next checkpoint.
//! Part of [`Job`]: no I/O.
//!
//! Source: docs/adr/0026. The scheduler decides whether it is possible (L9); here is what else must
//! hold, and who is notified.
//!
//! 1. The images of the global checkpoint that all would be rolled back to are there. (They stay:
//!    `replication`, 5.)
//! 2. That a set is suspended is persisted before its ranks are ordered to acknowledge.

#[cfg(test)]
mod tests;

use crate::coordinator::job::state::Job;
use rustbtl_coordination::checkpoints::{Input, SchedulerError, SuspensionRefusal};
use rustbtl_coordination::control::{CheckpointId, ToRank};
use rustbtl_fragments::ids::{PeerId, SetId};
use serde_json::json;

impl Job {
    /// What is kept of messages to `set` has cost this rank `spent_ns` in `elapsed_ns`, which is
    /// more than it may. Where there is no global checkpoint to fall back to, one is requested.
    pub(crate) fn logging_over_budget(
        &mut self,
        now: u64,
        rank: PeerId,
        set: SetId,
        [spent_ns, elapsed_ns]: [u64; 2],
    ) {
        if self.members(&[set]).is_empty() {
            // Of a job that was spawned: nobody takes checkpoints of it.
            return;
        }
        let refused = match self.request_suspension(now, set) {
            Ok(()) => {
                if !self.suspensions.sets().contains(&set) {
                    self.log(json!({
                        "event": "logging_over_budget", "rank": rank.0, "set": set.0,
                        "spent_ms": spent_ns / 1_000_000, "elapsed_ms": elapsed_ns / 1_000_000,
                    }));
                }
                return self.carry_out(now);
            }
            Err(SchedulerError::NotSuspendable(_, why)) => why,
            Err(error) => {
                return self.log(json!({"event": "protocol_error", "what": error.to_string()}));
            }
        };
        let is_idle = self.scheduler.as_ref().is_some_and(|scheduler| scheduler.under_way() == 0);
        let possible = is_idle && self.config.has_storage();
        if refused == SuspensionRefusal::NoGlobalCheckpoint && possible {
            // Refused as well when ranks are in MPI_Finalize: then nothing more is needed.
            let _ = self.try_input(now, Input::RequestGlobalCheckpoint { exit: false });
        }
        self.carry_out(now);
    }

    fn request_suspension(&mut self, now: u64, set: SetId) -> Result<(), SchedulerError> {
        let has_images = self.has_global_images();
        let Some(scheduler) = self.scheduler.as_mut().filter(|_| has_images) else {
            let why = SuspensionRefusal::NoGlobalCheckpoint;
            return Err(SchedulerError::NotSuspendable(set, why));
        };
        scheduler.handle(now, Input::RequestSuspension { set })
    }

    /// Could all be rolled back to the youngest global checkpoint (1)?
    fn has_global_images(&self) -> bool {
        let all: Vec<PeerId> = self.ranks.keys().copied().collect();
        self.youngest_of_all().is_some_and(|youngest| self.must_have_images(youngest, &all).is_ok())
    }

    /// Is logging towards this set suspended?
    pub(crate) fn is_suspended(&self, set: SetId) -> bool {
        self.scheduler.as_ref().is_some_and(|scheduler| scheduler.is_suspended(set))
    }

    /// The scheduler has suspended it; maybe once more.
    pub(crate) fn logging_suspended(&mut self, now: u64, set: SetId, before: CheckpointId) {
        self.changed = true;
        if self.suspensions.begin(now, set) {
            self.log(json!({"event": "logging_suspended", "set": set.0}));
        }
        for rank in self.members(&[set]) {
            self.send(rank, ToRank::SuspendLogging { before });
        }
    }

    /// The set can be rolled back alone again, to this checkpoint; `None`: all are rolled back.
    pub(crate) fn logging_resumed(
        &mut self,
        now: u64,
        set: SetId,
        checkpoint: Option<CheckpointId>,
    ) {
        let Some(ms) = self.suspensions.end(now, set) else { return };
        self.changed = true;
        let checkpoint = checkpoint.map(|checkpoint| checkpoint.0);
        self.log(json!({
            "event": "logging_resumed", "set": set.0, "checkpoint": checkpoint, "after_ms": ms,
        }));
    }

    /// All are rolled back to whole logs.
    pub(crate) fn end_suspensions(&mut self, now: u64) {
        for set in self.suspensions.sets() {
            self.logging_resumed(now, set, None);
        }
    }

    /// What the coordinator before this one had suspended.
    pub(crate) fn suspensions_after_failover(&mut self, now: u64) {
        let sets: Vec<SetId> = self.ranks.values().filter_map(|rank| rank.set).collect();
        for set in sets {
            if self.is_suspended(set) {
                self.suspensions.begin(now, set);
            }
        }
    }
}
