//! Agents that do not come back, and what becomes of the job.

use crate::coordinator::job::rules::unreachable_agents::*;
use crate::coordinator::job::test_world::World;
use rustbtl_coordination::control::FromRank;

impl World {
    fn agent_gone(&mut self, rank: u32, node: &str) {
        self.job.agent_gone(self.now, node, &[PeerId(rank)]);
        self.look();
    }

    fn later(&mut self, ms: u64) {
        self.now += ms;
        self.job.tick(self.now);
        self.look();
    }

    fn let_go(&self) -> usize {
        self.effects.iter().filter(|effect| **effect == Effect::DisableProtection).count()
    }

    fn told(&self) -> Vec<&String> {
        let mut told = Vec::new();
        for effect in &self.effects {
            if let Effect::Tell(text) = effect {
                told.push(text);
            }
        }
        told
    }
}

#[test]
fn who_comes_back_in_time_is_coordinated_again() {
    let mut world = World::with_line();
    for _ in 0..3 {
        world.agent_gone(1, "b");
        world.later(0);
        world.later(PATIENCE_MS - 1);
        world.comes(1, "b", 0);
        world.later(1);
    }
    assert_eq!(world.let_go(), 0);
    assert!(!world.job.is_protection_disabled() && world.told().is_empty());
}

#[test]
fn nobody_waits_for_who_does_not_come_back() {
    let mut world = World::with_line();
    world.rank(0, "a", FromRank::Finishing {});
    world.agent_gone(1, "b");
    world.later(0);
    world.later(PATIENCE_MS);
    world.later(PATIENCE_MS);
    assert_eq!(world.let_go(), 1, "once");
    assert_eq!(world.told().len(), 1);
    assert!(world.told()[0].contains("rank 1 on b"), "{:?}", world.told());
    // What is lost now cannot come back, and mpirun hears it.
    world.mpirun("lost c");
    assert!(world.events("set_rollback").is_empty());
    assert!(world.to_mpirun()[0].starts_with("fail node c was lost"), "{:?}", world.to_mpirun());
}

#[test]
fn a_lost_node_is_not_out_of_reach() {
    let mut world = World::with_line();
    world.agent_gone(1, "b");
    world.mpirun("lost b");
    world.later(0);
    world.later(PATIENCE_MS);
    assert_eq!(world.let_go(), 0, "it is being started again, as long as that takes");
}

#[test]
fn a_set_that_waits_for_orders_ends_the_job() {
    let mut world = World::with_line();
    world.falls(1, "b", 0);
    world.agent_gone(2, "c");
    world.later(0);
    world.later(PATIENCE_MS);
    assert_eq!(world.let_go(), 0);
    let words = world.to_mpirun();
    assert!(words.len() == 1 && words[0].contains("rank 2 on c"), "{words:?}");
}

#[test]
fn so_does_one_that_waits_for_another_coordinator() {
    let mut world = World::with_line();
    world.falls(1, "b", 0);
    let mut world = world.again();
    world.comes(0, "a", 0);
    world.later(0);
    world.later(PATIENCE_MS);
    assert_eq!(world.let_go(), 0);
    assert_eq!(world.to_mpirun().len(), 1);
}

#[test]
fn at_the_end_nobody_is_awaited() {
    let mut world = World::with_line();
    for (rank, node) in [(0, "a"), (1, "b"), (2, "c")] {
        world.rank(rank, node, FromRank::Finishing {});
    }
    world.agent_gone(1, "b");
    world.later(0);
    world.later(PATIENCE_MS);
    assert_eq!(world.let_go(), 0);
}

#[test]
fn whoever_does_not_come_to_another_coordinator_is_let_go() {
    let mut world = World::with_line().again();
    world.comes(0, "a", 0);
    world.later(0);
    world.later(PATIENCE_MS);
    assert_eq!(world.let_go(), 1);
    // A third one has not forgotten it.
    let mut world = world.again();
    assert!(world.job.is_protection_disabled());
    world.later(PATIENCE_MS);
    world.later(PATIENCE_MS);
    assert_eq!((world.let_go(), world.told().len()), (0, 0));
}
