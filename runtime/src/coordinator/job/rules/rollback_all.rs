//! Global rollback: all sets are rolled back together, to a checkpoint of all ranks, where one of
//! them cannot be rolled back alone. Part of [`Job`]: no I/O.
//!
//! Source: DESIGN §7.7; docs/adr/0013.
//!
//! 1. The checkpoint is the youngest of all ranks whose images are there, or one before that from
//!    which a rank could not be restored.
//! 2. What was done after it counts for nobody: nothing is replayed, nobody is asked what it has
//!    received of others, files are truncated as for a restart, and the replay of a set is complete
//!    when it has connected.
//! 3. All begin the same incarnation: ranks of different sets that share memory find it again.
//! 4. If a rank fails before all are connected, all are rolled back again.

#[cfg(test)]
pub(crate) mod tests;

use crate::coordinator::job::rules::rollback::FAILURES_MAX;
use crate::coordinator::job::state::{Effect, Job};
use crate::coordinator::job::tables::rollback::Rollback;
use rustbtl_coordination::checkpoints::Input;
use rustbtl_coordination::control::CheckpointId;
use rustbtl_fragments::ids::{PeerId, SetId};
use serde_json::json;
use std::collections::BTreeSet;

impl Job {
    /// Begins the rollback of all ranks, to a checkpoint `before` this one. The error: `why` no set
    /// is rolled back alone, and why not all together.
    pub(crate) fn roll_back_all(
        &mut self,
        now: u64,
        why: &str,
        before: Option<CheckpointId>,
    ) -> Result<(), String> {
        let also = |problem: String| format!("{why}; {problem}");
        if let Some(obstacle) = self.obstacle() {
            return Err(also(obstacle.into()));
        }
        if self.recovery.rollback_blocked.is_some() {
            // In most cases it is the reason already.
            return Err(why.into());
        }
        if let Some((id, _)) = self.ranks.iter().find(|(_, rank)| rank.ended.is_some()) {
            return Err(also(format!(
                "rank {id} has ended already, and cannot be rolled back with them"
            )));
        }
        let Some(checkpoint) = self.checkpoint_of_all(before).map_err(also)? else {
            return Err(why.into());
        };
        let times = if self.recovery.global_rollbacks.0 == checkpoint {
            self.recovery.global_rollbacks.1
        } else {
            0
        };
        if times >= FAILURES_MAX {
            let went = format!(
                "all ranks were rolled back to checkpoint {checkpoint} {times} times already"
            );
            return Err(also(went));
        }
        self.recovery.global_rollbacks = (checkpoint, times + 1);
        self.log(json!({"event": "global_rollback", "checkpoint": checkpoint.0, "why": why}));
        self.effects.push_back(Effect::NotifyUser(format!(
            "{why}; all ranks are rolled back to checkpoint {checkpoint}"
        )));
        self.input(now, Input::GlobalRollback { checkpoint: checkpoint.0 });
        self.end_suspensions(now);
        self.forget_verbs();
        let incarnation = self.next_incarnation();
        let sets: BTreeSet<SetId> = self.ranks.values().filter_map(|rank| rank.set).collect();
        self.withdraw_placements(&sets);
        let rollback = Rollback::new(now, checkpoint, incarnation, true);
        // Before the first is ordered: a rank that is rolled back itself is not asked.
        for &set in &sets {
            self.recovery.rollbacks.insert(set, rollback.clone());
        }
        sets.into_iter().try_for_each(|set| self.begin_rollback(set, rollback.clone()))
    }

    /// The checkpoint that all can be rolled back to (1).
    fn checkpoint_of_all(
        &self,
        before: Option<CheckpointId>,
    ) -> Result<Option<CheckpointId>, String> {
        let all: Vec<PeerId> = self.ranks.keys().copied().collect();
        let globals = self.scheduler.iter().flat_map(|scheduler| scheduler.globals().rev());
        let mut lost = None;
        for checkpoint in globals
            .map(CheckpointId)
            .filter(|checkpoint| before.is_none_or(|before| *checkpoint < before))
        {
            match self.must_have_images(checkpoint, &all) {
                Ok(()) => return Ok(Some(checkpoint)),
                Err(problem) => {
                    lost.get_or_insert(problem);
                }
            }
        }
        lost.map_or(Ok(None), Err)
    }
}
