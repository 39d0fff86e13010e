//! What is reported to the user when a job cannot continue: what is lost, who had it, and what can
//! still be done. Part of [`Job`]: no I/O.

use crate::coordinator::job::state::{Effect, Job};
use crate::coordinator::job::tables::mpirun_orders::MpirunOrder;
use crate::coordinator::job::tables::text::some_of;
use rustbtl_fragments::ids::{PeerId, SetId};
use serde_json::json;
use std::path::Path;

impl Job {
    /// The job cannot continue.
    pub(crate) fn fail(&mut self, reason: String) {
        self.log(json!({"event": "not_recovered", "reason": reason}));
        if !core::mem::replace(&mut self.recovery.failed, true) {
            let way_out = self.way_out();
            self.effects
                .push_back(Effect::Mpirun(MpirunOrder::Fail(format!("{reason}\n{way_out}"))));
        }
    }

    /// A set is not rolled back, and mpirun does what it always does about its ranks.
    pub(crate) fn leave_to_mpirun(&mut self, set: SetId, reason: &str) {
        self.log(json!({"event": "not_recovered", "set": set.0, "reason": reason}));
        // Otherwise no recovery was promised.
        if self.config.recover && self.config.has_storage() {
            let ranks = self.members(&[set]).iter().map(ToString::to_string).collect();
            let (ranks, way_out) = (some_of(ranks, ", "), self.way_out());
            let text = format!("set {set} (ranks {ranks}) is not rolled back: {reason}. {way_out}");
            self.effects.push_back(Effect::NotifyUser(text));
        }
    }

    /// The last guardian was killed that mpirun knows.
    pub(crate) fn nobody_takes_it_up(&mut self, id: PeerId) {
        let Some(rank) = self.ranks.get(&id) else { return };
        let expected = self.may_finish || self.recovery.failed;
        if let Some(set) = rank.set.filter(|_| !expected) {
            let reason = format!(
                "the guardian of rank {id} on node {} was killed, and no other one is left that \
                 Open MPI has started",
                rank.node
            );
            self.leave_to_mpirun(set, &reason);
        }
    }

    /// From which checkpoint the whole job can be restarted, and how.
    fn way_out(&self) -> String {
        let command = |folder: &Path| format!("rustbtl restart {}", folder.display());
        let earlier = self.config.restore.as_deref().map(command);
        match (self.youngest_of_all(), earlier) {
            (Some(checkpoint), _) if !self.is_local(checkpoint) => format!(
                "Checkpoint {checkpoint} of all ranks is complete; to continue from it: {}",
                command(&self.folder_of(checkpoint))
            ),
            (_, Some(command)) => format!(
                "Of this job there is no checkpoint of all ranks; to continue from the one that it \
                 was restarted from: {command}"
            ),
            (_, None) if self.config.is_local() => {
                "There is nothing to restart the job from: without \
                    vprotocol_correlated_checkpoint_dir nodes \
                 keep checkpoints only as long as it runs"
                    .into()
            }
            (_, None) => {
                "There is nothing to restart the job from: no checkpoint of all its ranks \
                          was complete"
                    .into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_are_cut_short() {
        let names = |count: u32| some_of((0..count).map(|n| n.to_string()).collect(), ", ");
        assert_eq!(names(2), "0, 1");
        assert_eq!(names(8), "0, 1, 2, 3, 4, 5, 6, 7");
        assert_eq!(names(11), "0, 1, 2, 3, 4, 5, 6, 7, 3 more");
    }
}
