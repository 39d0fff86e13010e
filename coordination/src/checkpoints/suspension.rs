//! Logging towards a set that is suspended. Part of [`CheckpointScheduler`].
//!
//! Source: docs/adr/0026. What the set's processes acknowledge is in no log any more, so the set
//! cannot be rolled back alone until it has its next checkpoint: if it fails, all are rolled back
//! to the youngest global checkpoint, whose images hold whole logs.

use super::io::SuspensionRefusal;
use super::tables::{ActiveCheckpoint, Phase};
use super::{CheckpointScheduler, Output, SchedulerError};
use rustbtl_fragments::ids::SetId;

impl CheckpointScheduler {
    /// L9. Again for a set whose logging is suspended already: a checkpoint of it may have been
    /// aborted, and its ranks acknowledge nothing since then.
    pub(super) fn suspend(&mut self, id: SetId) -> Result<(), SchedulerError> {
        let refused = |why| Err(SchedulerError::NotSuspendable(id, why));
        let set = self.sets.get_mut(&id).ok_or(SchedulerError::Set(id))?;
        if !set.usable() || !set.is_repaired() {
            return refused(SuspensionRefusal::NotRunning);
        }
        if self.globals.is_empty() {
            return refused(SuspensionRefusal::NoGlobalCheckpoint);
        }
        // One whose snapshots are all taken changes nothing: it began before, and while it is
        // stored a log may grow beyond any budget.
        let is_taken = |of: &ActiveCheckpoint| of.phase >= Phase::Storing && !of.exit;
        if self.checkpoints.values().any(|of| of.sets.contains(&id) && !is_taken(of)) {
            return refused(SuspensionRefusal::SnapshotsUnderWay);
        }
        // No checkpoint that is to come can have a snapshot from before.
        set.alone_from = self.next_checkpoint;
        self.outputs.push_back(Output::SuspendLogging { set: id, before: self.next_checkpoint });
        Ok(())
    }

    /// Is logging towards this set suspended?
    pub fn is_suspended(&self, set: SetId) -> bool {
        self.sets.get(&set).is_some_and(|set| set.is_suspended())
    }
}
