//! Ranks 1 and 2 on node b: the guardian of one is ended while the other is not connected.

use crate::coordinator::job::test_world::World;
use rustbtl_fragments::ids::PeerId;
use serde_json::json;

/// Their agent has failed as well.
fn without_agent() -> World {
    let mut world = World::with_checkpoint();
    world.connects(2, "b", 0);
    world.job.agent_gone(world.now, "b", &[PeerId(1), PeerId(2)]);
    world.poll();
    world
}

fn later(world: &mut World, ms: u64) {
    world.now += ms;
    world.job.tick(world.now);
    world.poll();
}

#[test]
fn mpirun_waits_until_another_guardian_of_the_node_is_connected() {
    let mut world = without_agent();
    world.mpirun("guardian 2");
    later(&mut world, 10_000);
    assert_eq!((world.to_mpirun(), world.events("guardian_lost")), (vec![], vec![]));
    world.connects(1, "b", 0);
    later(&mut world, 1);
    assert_eq!(world.to_mpirun(), ["let 2"]);
    assert_eq!(world.events("guardian_lost")[0]["ranks"], json!([2]));
    assert_eq!(world.events("set_rollback").len(), 1);
}

#[test]
fn nobody_is_waited_for_who_has_ended_or_is_undecided_too() {
    let mut world = without_agent();
    world.mpirun("guardian 2");
    world.mpirun("guardian 1");
    assert_eq!(world.to_mpirun(), ["let 1", "let 2"], "there is one on another node");
}

#[test]
fn the_last_one_of_a_node_is_replaced_elsewhere_and_its_images_are_not_counted_on() {
    let mut world = World::with_checkpoint();
    world.mpirun("guardian 1");
    assert_eq!(world.to_mpirun(), ["let 1"]);
    assert_eq!(world.events("guardian_lost")[0]["ranks"], json!([1]));
    assert_eq!(world.events("set_rollback")[0]["ranks"], json!([1]));
    assert_eq!(world.events("not_recovered").len(), 0);
}

#[test]
fn before_images_are_replicated_again_the_next_loss_is_one_too_many() {
    let mut world = World::with_checkpoint();
    world.mpirun("guardian 1");
    world.mpirun("guardian 2");
    assert_eq!(world.to_mpirun(), ["let 1", "stock 2"]);
    let reason = world.events("not_recovered")[0]["reason"].to_string();
    assert!(reason.contains("they were on node b, node c"), "{reason}");
}

/// The only one of its node, while no agent of another node is connected.
fn alone() -> World {
    let mut world = World::with_checkpoint();
    for (rank, node) in [(1, "b"), (2, "c")] {
        world.job.agent_gone(world.now, node, &[PeerId(rank)]);
    }
    world.poll();
    world.mpirun("guardian 0");
    assert_eq!(world.to_mpirun(), Vec::<&str>::new(), "one of another node may be back soon");
    world
}

#[test]
fn without_another_one_of_its_node_those_of_others_are_waited_for() {
    let mut world = alone();
    later(&mut world, 1000);
    world.connects(2, "c", 0);
    later(&mut world, 1);
    assert_eq!(world.to_mpirun(), ["let 0"]);
    assert_eq!(world.events("set_rollback")[0]["ranks"], json!([0]));
}

#[test]
fn so_they_are_by_a_coordinator_that_has_just_been_started() {
    let mut world = World::with_checkpoint().failover();
    world.mpirun("guardian 1");
    assert_eq!(world.to_mpirun(), Vec::<&str>::new());
    world.connects(0, "a", 0);
    world.connects(2, "c", 0);
    later(&mut world, 1);
    assert_eq!(world.to_mpirun(), ["let 1"]);
    assert_eq!(world.events("not_recovered").len(), 0);
}

#[test]
fn the_last_one_of_all_is_not_replaced() {
    let mut world = alone();
    world.mpirun("guardian 1");
    world.mpirun("guardian 2");
    assert!(world.to_mpirun().contains(&"stock 0".to_owned()), "{:?}", world.to_mpirun());
    let reasons = format!("{:?}", world.events("not_recovered"));
    assert!(reasons.contains("no other one is left"), "{reasons}");
}

#[test]
fn mpirun_is_answered_when_protection_is_given_up() {
    let mut world = without_agent();
    world.mpirun("guardian 2");
    later(&mut world, 1);
    later(&mut world, 40_000);
    assert!(world.job.is_protection_disabled());
    assert_eq!(world.to_mpirun(), ["stock 2"]);
}

#[test]
fn mpirun_is_answered_when_the_node_is_lost() {
    let mut world = without_agent();
    world.mpirun("guardian 2");
    world.mpirun("lost b");
    assert_eq!(world.events("node_lost")[0]["ranks"], json!([1, 2]));
    later(&mut world, 1);
    assert!(world.to_mpirun().contains(&"let 2".to_owned()), "{:?}", world.to_mpirun());
}
