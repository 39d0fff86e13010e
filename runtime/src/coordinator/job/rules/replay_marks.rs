//! Sets that cannot be rolled back alone, since something that they do is not recorded. Part of
//! [`Job`]: no I/O.
//!
//! Source: docs/adr/0004, docs/adr/0037.
//!
//! 1. What a set does all the time marks it for good; what it has done once marks it until its next
//!    checkpoint. A snapshot that was ordered before the mark came may lie before what was done:
//!    the mark ends with a checkpoint that is ordered later.
//! 2. A set that is being rolled back alone when its first mark comes has done that before, and
//!    failed before it could report it: there is a global rollback.

#[cfg(test)]
mod tests;

use crate::coordinator::job::state::Job;
use crate::coordinator::job::tables::rollback::NotReplayable;
use rustbtl_coordination::control::{CheckpointId, ReplayBlocker};
use rustbtl_fragments::ids::{PeerId, SetId};
use serde_json::json;

impl Job {
    /// The set of this rank cannot replay: it records nothing, or not all.
    pub fn mark_not_replayable(
        &mut self,
        now: u64,
        id: PeerId,
        reason: &str,
        blocker: ReplayBlocker,
    ) {
        let Some(set) = self.ranks.get(&id).and_then(|rank| rank.set) else { return };
        let mut until = None;
        match blocker {
            ReplayBlocker::Set => {}
            ReplayBlocker::SetUntilCheckpoint => until = Some(self.next_checkpoint()),
            ReplayBlocker::Others => {
                self.recovery.set_rollback_blocked.get_or_insert_with(|| (set, reason.to_owned()));
            }
            ReplayBlocker::Everybody => {
                self.recovery.rollback_blocked.get_or_insert_with(|| reason.to_owned());
            }
        }
        if let Some(known) = self.recovery.not_replayable.get_mut(&set) {
            match (known.until, until) {
                (Some(_), None) => *known = NotReplayable { reason: reason.to_owned(), until },
                (Some(_), Some(_)) => known.until = until,
                (None, _) => {}
            }
            return;
        }
        self.recovery
            .not_replayable
            .insert(set, NotReplayable { reason: reason.to_owned(), until });
        self.log(json!({"event": "not_replayable", "set": set.0, "reason": reason}));
        let alone = self.recovery.rollbacks.get(&set).is_some_and(|rollback| !rollback.global);
        if alone && !self.is_whole_job(set) {
            let reason = format!("set {set} was rolled back alone, and could not: {reason}");
            if let Err(reason) = self.roll_back_all(now, &reason, None) {
                self.fail(reason);
            }
        }
    }

    /// Of all checkpoints that will be ordered from now on.
    fn next_checkpoint(&self) -> CheckpointId {
        let before = self.failover.as_ref().map(|failover| failover.scheduler.next);
        let next = self.scheduler.as_ref().map(|scheduler| scheduler.next_checkpoint()).or(before);
        CheckpointId(next.unwrap_or_else(|| self.config.first_checkpoint()))
    }

    /// A checkpoint of this set is complete.
    pub(crate) fn end_marks(&mut self, set: SetId, checkpoint: CheckpointId) {
        let known = self.recovery.not_replayable.get(&set);
        if known.and_then(|mark| mark.until).is_some_and(|until| checkpoint >= until) {
            self.recovery.not_replayable.remove(&set);
            let number = checkpoint.0;
            self.log(json!({"event": "replayable_again", "set": set.0, "checkpoint": number}));
        }
    }
}
