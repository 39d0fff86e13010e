//! Checkpoints that take long.

use crate::coordinator::job::test_world::World;

#[test]
fn what_a_slow_checkpoint_waits_for_is_reported_and_seldom() {
    let mut world = World::of_sets([0, 1, 2]);
    let begun = world.now;
    world.job.checkpoint(begun, 1, true, false, false);
    world.poll();
    let reports = |world: &mut World, at: u64| {
        world.now = begun + at;
        world.job.tick(world.now);
        world.poll();
        world.events("checkpoint_slow")
    };
    assert!(reports(&mut world, 29_000).is_empty());
    let all = reports(&mut world, 30_000);
    assert_eq!(all[0]["not_stored"], serde_json::json!([0, 1, 2]));
    assert_eq!(reports(&mut world, 59_000).len(), 1);
    assert_eq!(reports(&mut world, 60_000).len(), 2, "after twice the time");
    assert_eq!(reports(&mut world, 100_000).len(), 2);
}

#[test]
fn a_complete_one_is_not() {
    let mut world = World::with_checkpoint();
    world.now += 100_000;
    world.job.tick(world.now);
    world.poll();
    assert!(world.events("checkpoint_slow").is_empty());
}
