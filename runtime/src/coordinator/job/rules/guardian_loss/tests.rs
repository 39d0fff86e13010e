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
    assert_eq!(world.to_mpirun(), ["stock 1", "stock 2"]);
    let mut world = World::with_checkpoint();
    world.mpirun("guardian 2");
    assert_eq!(world.to_mpirun(), ["stock 2"], "it was alone on its node");
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
