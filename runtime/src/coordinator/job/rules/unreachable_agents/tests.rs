//! Agents that do not reconnect, and what becomes of the job.

use crate::coordinator::job::rules::unreachable_agents::*;
use crate::coordinator::job::test_world::World;
use rustbtl_coordination::control::FromRank;

impl World {
    fn agent_gone(&mut self, rank: u32, node: &str) {
        self.job.agent_gone(self.now, node, &[PeerId(rank)]);
        self.poll();
    }

    fn later(&mut self, ms: u64) {
        self.now += ms;
        self.job.tick(self.now);
        self.poll();
    }

    fn times_disabled(&self) -> usize {
        self.effects.iter().filter(|effect| **effect == Effect::DisableProtection).count()
    }
}

#[test]
fn who_reconnects_in_time_is_coordinated_again() {
    let mut world = World::with_checkpoint();
    for _ in 0..3 {
        world.agent_gone(1, "b");
        world.later(0);
        world.later(PATIENCE_MS - 1);
        world.connects(1, "b", 0);
        world.later(1);
    }
    assert_eq!(world.times_disabled(), 0);
    assert!(!world.job.is_protection_disabled() && world.notices().is_empty());
}

#[test]
fn nobody_waits_for_an_agent_that_does_not_reconnect() {
    let mut world = World::with_checkpoint();
    world.rank(0, "a", FromRank::Finishing {});
    world.agent_gone(1, "b");
    world.later(0);
    world.later(PATIENCE_MS);
    world.later(PATIENCE_MS);
    assert_eq!(world.times_disabled(), 1, "once");
    assert_eq!(world.notices().len(), 1);
    assert!(world.notices()[0].contains("rank 1 on b"), "{:?}", world.notices());
    // What is lost now is not recovered, and mpirun is notified.
    world.mpirun("lost c");
    assert!(world.events("set_rollback").is_empty());
    assert!(world.to_mpirun()[0].starts_with("fail node c was lost"), "{:?}", world.to_mpirun());
}

#[test]
fn a_lost_node_is_not_unreachable() {
    let mut world = World::with_checkpoint();
    world.agent_gone(1, "b");
    world.mpirun("lost b");
    world.later(0);
    world.later(PATIENCE_MS);
    assert_eq!(world.times_disabled(), 0, "it is being restarted, as long as that takes");
}

#[test]
fn a_set_that_waits_for_orders_ends_the_job() {
    let mut world = World::with_checkpoint();
    world.fails(1, "b", 0);
    world.agent_gone(2, "c");
    world.later(0);
    world.later(PATIENCE_MS);
    assert_eq!(world.times_disabled(), 0);
    let orders = world.to_mpirun();
    assert!(orders.len() == 1 && orders[0].contains("rank 2 on c"), "{orders:?}");
}

#[test]
fn so_does_one_that_waits_for_another_coordinator() {
    let mut world = World::with_checkpoint();
    world.fails(1, "b", 0);
    let mut world = world.failover();
    world.connects(0, "a", 0);
    world.later(0);
    world.later(PATIENCE_MS);
    assert_eq!(world.times_disabled(), 0);
    assert_eq!(world.to_mpirun().len(), 1);
}

#[test]
fn at_the_end_nobody_is_awaited() {
    let mut world = World::with_checkpoint();
    for (rank, node) in [(0, "a"), (1, "b"), (2, "c")] {
        world.rank(rank, node, FromRank::Finishing {});
    }
    world.agent_gone(1, "b");
    world.later(0);
    world.later(PATIENCE_MS);
    assert_eq!(world.times_disabled(), 0);
}

#[test]
fn without_an_agent_at_another_coordinator_protection_is_disabled() {
    let mut world = World::with_checkpoint().failover();
    world.connects(0, "a", 0);
    world.later(0);
    world.later(PATIENCE_MS);
    assert_eq!(world.times_disabled(), 1);
    // A third one has not forgotten it.
    let mut world = world.failover();
    assert!(world.job.is_protection_disabled());
    world.later(PATIENCE_MS);
    world.later(PATIENCE_MS);
    assert_eq!((world.times_disabled(), world.notices().len()), (0, 0));
}
