//! When restored programs may run. Part of [`Job`]: no I/O.
//!
//! Source: docs/adr/0046. The guardian of each rank puts back the files that its program has
//! changed, and the memory that it shares with others. A program that ran before another guardian
//! had done so would read files of the future, and what it writes anew would be undone.
//!
//! 1. No program that is restored runs before all that are restored with it are as far: all sets
//!    that are restoring, or the whole job at a restart.
//! 2. What is reported of an earlier incarnation counts for nothing.
//! 3. A guardian that reports once more, since its agent or the coordinator was lost, is answered
//!    once more.

use crate::coordinator::job::state::{Effect, Job};
use crate::coordinator::job::tables::rollback::Phase;
use rustbtl_coordination::control::ToNode;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};

impl Job {
    /// A rank was made from its image.
    pub(crate) fn rank_made(&mut self, id: PeerId, incarnation: Incarnation) {
        let set = self.ranks.get(&id).and_then(|rank| rank.set);
        let rollback = set.and_then(|set| self.recovery.rollbacks.get_mut(&set));
        match rollback.filter(|rollback| rollback.phase == Phase::Restoring) {
            Some(rollback) if rollback.incarnation != incarnation => {}
            Some(rollback) if rollback.may_run => self.let_run(&[id], incarnation),
            Some(rollback) => {
                rollback.made.insert(id);
                self.let_all_run();
            }
            None if self.config.restore.is_some() && !self.endpoints_sent => {
                let is_new = self.recovery.made_at_start.insert(id);
                let made = self.recovery.made_at_start.len() as u32;
                if made == self.config.size {
                    let all = self.recovery.made_at_start.iter().copied();
                    let waiting: Vec<PeerId> = all.filter(|&one| is_new || one == id).collect();
                    self.let_run(&waiting, incarnation);
                }
            }
            // It has run already.
            None => {}
        }
    }

    /// Are all sets that are restoring as far?
    fn let_all_run(&mut self) {
        let rollbacks = self.recovery.rollbacks.iter();
        let restoring: Vec<SetId> = rollbacks
            .filter(|(_, rollback)| rollback.phase == Phase::Restoring && !rollback.may_run)
            .map(|(&set, _)| set)
            .collect();
        let is_made = |set: &SetId| {
            let made = &self.recovery.rollbacks[set].made;
            self.members(&[*set]).iter().all(|rank| made.contains(rank))
        };
        if !restoring.iter().all(is_made) {
            return;
        }
        for set in restoring {
            let members = self.members(&[set]);
            if let Some(rollback) = self.recovery.rollbacks.get_mut(&set) {
                rollback.may_run = true;
                let incarnation = rollback.incarnation;
                self.let_run(&members, incarnation);
            }
        }
    }

    fn let_run(&mut self, ranks: &[PeerId], incarnation: Incarnation) {
        for &rank in ranks {
            self.effects.push_back(Effect::Send(rank, ToNode::AllRestored { rank, incarnation }));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::coordinator::job::test_world::World;
    use rustbtl_coordination::control::{FromNode, ToNode};
    use rustbtl_fragments::ids::{Incarnation, PeerId};

    fn may_run(world: &World, rank: u32) -> Vec<u16> {
        let of = |message: &&ToNode| match message {
            ToNode::AllRestored { incarnation, .. } => Some(incarnation.0),
            _ => None,
        };
        world.sent(rank).iter().filter_map(of).collect()
    }

    fn incarnation_of(world: &World, rank: u32) -> u16 {
        world.job.recovery.newest_incarnations[&world.sets[rank as usize]].0
    }

    fn made(world: &mut World, rank: u32, node: &str, incarnation: u16) {
        let (rank, incarnation) = (PeerId(rank), Incarnation(incarnation));
        world.handle(node, FromNode::Restored { rank, incarnation });
    }

    #[test]
    fn invariant_1_sets_that_fail_together_run_together() {
        let mut world = World::with_checkpoint();
        world.fails(0, "a", 0);
        world.fails(1, "b", 0);
        let [first, second] = [0, 1].map(|rank| incarnation_of(&world, rank));
        made(&mut world, 0, "a", first);
        assert!(may_run(&world, 0).is_empty(), "the other one is not as far");
        made(&mut world, 1, "b", second);
        assert_eq!((may_run(&world, 0), may_run(&world, 1)), (vec![first], vec![second]));
        assert!(may_run(&world, 2).is_empty(), "it runs");
    }

    #[test]
    fn invariant_2_an_earlier_incarnation_counts_for_nothing() {
        let mut world = World::with_checkpoint();
        world.fails(0, "a", 0);
        let first = incarnation_of(&world, 0);
        world.fails(0, "a", first);
        let second = incarnation_of(&world, 0);
        assert!(second > first);
        made(&mut world, 0, "a", first);
        assert!(may_run(&world, 0).is_empty());
        made(&mut world, 0, "a", second);
        assert_eq!(may_run(&world, 0), [second]);
    }

    #[test]
    fn invariant_3_who_reports_again_is_answered_again() {
        let mut world = World::with_checkpoint();
        world.fails(0, "a", 0);
        let incarnation = incarnation_of(&world, 0);
        made(&mut world, 0, "a", incarnation);
        world.guardian(0, "a", incarnation);
        made(&mut world, 0, "a", incarnation);
        assert_eq!(may_run(&world, 0), [incarnation, incarnation]);
    }

    #[test]
    fn invariant_1_a_restarted_job_runs_when_all_are_made() {
        let mut world = World::empty();
        world.job.config.restore = Some("/checkpoints/job/checkpoint-1".into());
        for (rank, node) in [(0, "a"), (1, "b"), (2, "c")] {
            world.guardian(rank, node, 0);
        }
        made(&mut world, 0, "a", 0);
        made(&mut world, 2, "c", 0);
        assert!((0..3).all(|rank| may_run(&world, rank).is_empty()));
        made(&mut world, 1, "b", 0);
        assert!((0..3).all(|rank| may_run(&world, rank) == [0]));
    }
}
