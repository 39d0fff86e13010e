//! Sets that have failed, and their rollback. Part of [`CheckpointScheduler`].

use super::{AbortReason, ActiveCheckpoint, CheckpointScheduler, SchedulerError};
use crate::checkpoints::Output;
use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::BTreeSet;

impl CheckpointScheduler {
    pub(super) fn on_rank_failed(&mut self, rank: PeerId) -> Result<(), SchedulerError> {
        self.rank(rank)?.lost = true;
        let of_it = |checkpoint: &ActiveCheckpoint| checkpoint.ranks.contains(&rank);
        let checkpoints: Vec<u64> = self
            .checkpoints
            .iter()
            .filter(|(_, checkpoint)| of_it(checkpoint))
            .map(|(&number, _)| number)
            .collect();
        checkpoints
            .into_iter()
            .for_each(|number| self.abort(number, AbortReason::RankFailed(rank)));
        Ok(())
    }

    pub(super) fn on_set_restarted(
        &mut self,
        id: SetId,
        checkpoint: u64,
    ) -> Result<(), SchedulerError> {
        let set = self.sets.get_mut(&id).ok_or(SchedulerError::Set(id))?;
        set.lost = false;
        set.replaying = true;
        // Whatever its ranks have answered was in an earlier incarnation.
        set.replay_pending.clear();
        // It comes to MPI_Finalize again.
        set.finishing = false;
        let younger: BTreeSet<u64> =
            set.kept.iter().copied().filter(|kept| *kept > checkpoint).collect();
        set.kept.retain(|kept| *kept <= checkpoint);
        self.drop_unused(younger);
        Ok(())
    }

    /// L8.
    pub(super) fn on_global_rollback(&mut self, checkpoint: u64) -> Result<(), SchedulerError> {
        if !self.globals.contains(&checkpoint) {
            return Err(SchedulerError::NotGlobal(checkpoint));
        }
        let under_way: Vec<u64> = self.checkpoints.keys().copied().collect();
        under_way.into_iter().for_each(|number| self.abort(number, AbortReason::GlobalRollback));
        let mut younger: BTreeSet<u64> = self.globals.iter().copied().collect();
        self.globals.retain(|global| *global <= checkpoint);
        for set in self.sets.values_mut() {
            set.lost = true;
            // The images' logs are whole.
            set.alone_from = 0;
            younger.extend(&set.kept);
            set.kept.retain(|kept| *kept <= checkpoint);
            // It may have had so many younger ones of its own that this one was none of its any
            // more.
            if set.kept.back() != Some(&checkpoint) {
                set.kept.push_back(checkpoint);
            }
        }
        self.drop_unused(younger);
        Ok(())
    }

    /// Of these checkpoints those that neither the job nor a set can be rolled back to any more.
    pub(super) fn drop_unused(&mut self, checkpoints: BTreeSet<u64>) {
        for checkpoint in checkpoints {
            let of_a_set = self.sets.values().any(|set| set.kept.contains(&checkpoint));
            if !of_a_set && !self.globals.contains(&checkpoint) {
                self.outputs.push_back(Output::Delete { checkpoint });
            }
        }
    }
}
