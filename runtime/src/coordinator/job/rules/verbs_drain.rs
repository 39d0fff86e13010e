//! Verbs that programs use past MPI: parts of the drain's steps go to all ranks, and names are kept
//! for who asks. Part of [`Job`]: no I/O.
//!
//! Source: docs/adr/0044. The scheduler knows nothing of it: a rank says `OutgoingStopped` when the
//! drain is over. What was of a time before a global rollback is forgotten when that begins.

use crate::coordinator::job::state::Job;
use crate::coordinator::job::tables::verbs::Verbs;
use rustbtl_coordination::control::{CheckpointId, RankPart, ToRank};
use rustbtl_fragments::ids::PeerId;

impl Job {
    /// All ranks of the job have a part in each step.
    pub(crate) fn verbs_part(
        &mut self,
        id: PeerId,
        checkpoint: CheckpointId,
        step: u32,
        part: Vec<u8>,
    ) {
        if self.is_being_restored(id) {
            return;
        }
        let ranks = self.config.size.max(self.ranks.len() as u32) as usize;
        let all = self.verbs.exchange.give((checkpoint.0, step), id, part, ranks);
        let Some(all) = all else { return };
        let of = |(&rank, part): (&PeerId, &Vec<u8>)| RankPart { rank, part: part.clone() };
        let parts: Vec<RankPart> = all.iter().map(of).collect();
        for RankPart { rank, .. } in &parts {
            let parts = parts.clone();
            self.send(*rank, ToRank::VerbsParts { checkpoint, step, parts });
        }
    }

    /// A name stands for this.
    pub(crate) fn verbs_name(
        &mut self,
        id: PeerId,
        name: Vec<u8>,
        generation: u64,
        value: Vec<u8>,
    ) {
        if !self.is_being_restored(id) {
            self.verbs.names.publish(name, generation, value);
        }
    }

    /// What does a name stand for?
    pub(crate) fn find_verbs_name(&mut self, id: PeerId, number: u32, name: &[u8], of: u64) {
        let value = self.verbs.names.find(name, of);
        self.send(id, ToRank::VerbsNameFound { number, value });
    }

    /// All ranks are rolled back.
    pub(crate) fn forget_verbs(&mut self) {
        self.verbs = Verbs::default();
    }
}

#[cfg(test)]
mod tests {
    use crate::coordinator::job::test_world::{NODES, World};
    use rustbtl_coordination::control::{CheckpointId, FromRank, ReplayBlocker, ToNode, ToRank};
    use rustbtl_fragments::ids::PeerId;

    fn part(world: &mut World, rank: u32, checkpoint: u64) {
        let checkpoint = CheckpointId(checkpoint);
        let message = FromRank::VerbsPart { checkpoint, step: 0, part: vec![rank as u8] };
        world.rank(rank, NODES[rank as usize], message);
    }

    /// Parts of all that this rank was sent.
    fn parts(world: &World, rank: u32) -> Vec<Vec<Vec<u8>>> {
        let of = |message: &ToNode| match message {
            ToNode::Rank { message: ToRank::VerbsParts { parts, .. }, .. } => {
                Some(parts.iter().map(|part| part.part.clone()).collect())
            }
            _ => None,
        };
        world.sent(rank).into_iter().filter_map(of).collect()
    }

    fn found(world: &World, rank: u32) -> Vec<Vec<u8>> {
        let of = |message: &ToNode| match message {
            ToNode::Rank { message: ToRank::VerbsNameFound { value, .. }, .. } => {
                Some(value.clone())
            }
            _ => None,
        };
        world.sent(rank).into_iter().filter_map(of).collect()
    }

    #[test]
    fn each_rank_gets_the_parts_of_all() {
        let mut world = World::of_sets([0, 1, 2]);
        part(&mut world, 0, 1);
        part(&mut world, 2, 1);
        assert!(parts(&world, 0).is_empty());
        part(&mut world, 1, 1);
        for rank in 0..3 {
            assert_eq!(parts(&world, rank), [[[0], [1], [2]]]);
        }
    }

    #[test]
    fn names_and_parts_of_before_a_global_rollback_are_forgotten() {
        let mut world = World::with_checkpoint();
        let (name, generation) = (vec![7], 1);
        let publish = FromRank::VerbsName { name: name.clone(), generation, value: vec![9] };
        let find = FromRank::FindVerbsName { number: 1, name, generation };
        world.rank(0, NODES[0], publish.clone());
        world.rank(1, NODES[1], find.clone());
        assert_eq!(found(&world, 1), [[9]]);
        part(&mut world, 0, 2);
        let reason = "verbs".to_owned();
        let blocker = ReplayBlocker::Others;
        world.rank(2, NODES[2], FromRank::NotReplayable { reason, blocker });
        world.job.roll_back_all(world.now, "a test", None).unwrap();
        world.poll();
        world.effects.clear();
        // Of the incarnation that is being ended.
        world.rank(0, NODES[0], publish);
        part(&mut world, 1, 2);
        part(&mut world, 2, 2);
        assert!((0..3).all(|rank| parts(&world, rank).is_empty()));
        world.job.find_verbs_name(PeerId(1), 1, &[7], 1);
        world.poll();
        assert_eq!(found(&world, 1), [Vec::<u8>::new()]);
    }
}
