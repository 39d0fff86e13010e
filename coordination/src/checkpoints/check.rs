//! The invariants of the scheduler, as assertions.

use super::*;

impl CheckpointScheduler {
    /// Assert the invariants that can be seen at rest.
    pub fn check(&self) {
        let global = self
            .checkpoints
            .values()
            .filter(|checkpoint| checkpoint.scope == CheckpointScope::Global)
            .count();
        assert!(
            global == 0 || self.checkpoints.len() == 1,
            "L2: a global checkpoint is taken alone"
        );
        assert!(self.checkpoints.len() <= self.config.sets_at_once.max(1), "L2: too many at once");
        let of_sets: usize =
            self.checkpoints.values().map(|checkpoint| checkpoint.sets.len()).sum();
        let sets: BTreeSet<SetId> = self
            .checkpoints
            .values()
            .flat_map(|checkpoint| checkpoint.sets.iter().copied())
            .collect();
        assert_eq!(of_sets, sets.len(), "L2: two checkpoints of one set");
        assert!(self.checkpoints.keys().all(|&checkpoint| checkpoint < self.next_checkpoint), "L1");
        for checkpoint in self.checkpoints.values() {
            let stored = checkpoint.stored.len() == checkpoint.ranks.len();
            assert_eq!(checkpoint.phase == Phase::Committing, stored, "L3");
            assert!(
                checkpoint.frozen.is_superset(&checkpoint.stored),
                "stored before it was frozen"
            );
        }
        for set in self.sets.values() {
            assert!(set.kept.iter().is_sorted(), "kept checkpoints ascend");
            assert!(
                set.kept.len() <= self.config.checkpoints_kept.max(1),
                "too many checkpoints are kept"
            );
        }
    }
}
