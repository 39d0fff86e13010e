//! Rank 0 on node a sends much to set 1 on node b.

use crate::coordinator::job::test_world::{NODES, World};
use rustbtl_coordination::control::{FromRank, ToNode, ToRank};
use rustbtl_fragments::ids::SetId;

/// Rank 0 spends too much on set 1.
fn over_budget(world: &mut World) {
    let message =
        FromRank::LoggingOverBudget { set: SetId(1), spent_ns: 500_000_000, elapsed_ns: 1 << 33 };
    world.rank(0, "a", message);
}

/// Before which checkpoint a rank was ordered to acknowledge.
fn orders(world: &World, rank: u32) -> Vec<u64> {
    let order = |message: &ToNode| match message {
        ToNode::Rank { message: ToRank::SuspendLogging { before }, .. } => Some(before.0),
        _ => None,
    };
    world.sent(rank).into_iter().filter_map(order).collect()
}

#[test]
fn the_set_acknowledges_and_its_failure_is_a_global_rollback() {
    let mut world = World::with_checkpoint();
    over_budget(&mut world);
    assert_eq!((orders(&world, 1), orders(&world, 0)), (vec![2], vec![]));
    assert_eq!(world.events("logging_suspended").len(), 1);
    over_budget(&mut world);
    assert_eq!(orders(&world, 1), [2, 2], "a checkpoint may have been aborted");
    assert_eq!(world.events("logging_suspended").len(), 1, "reported once");
    world.fails(1, "b", 0);
    assert_eq!(world.events("global_rollback").len(), 1);
    assert!(!world.job.is_suspended(SetId(1)), "the images have whole logs");
    assert_eq!(world.events("logging_resumed").len(), 1);
}

#[test]
fn others_are_rolled_back_alone_meanwhile() {
    let mut world = World::with_checkpoint();
    over_budget(&mut world);
    world.fails(0, "a", 0);
    assert!(world.events("global_rollback").is_empty());
    assert_eq!(world.events("set_rollback").len(), 1);
}

#[test]
fn the_next_checkpoint_ends_it() {
    let mut world = World::with_checkpoint();
    over_budget(&mut world);
    let requested = world.now;
    world.job.checkpoint(requested, 1, true, false, false);
    world.poll();
    world.take_checkpoint(2);
    assert_eq!(world.events("logging_resumed")[0]["checkpoint"], 2);
    world.fails(1, "b", 0);
    assert!(world.events("global_rollback").is_empty(), "alone again");
    assert_eq!(world.events("set_rollback")[0]["checkpoint"], 2);
}

#[test]
fn without_a_global_checkpoint_one_is_requested_first() {
    let mut world = World::of_sets([0, 1, 2]);
    over_budget(&mut world);
    assert!(orders(&world, 1).is_empty());
    assert_eq!(world.events("checkpoint_started").len(), 1);
    over_budget(&mut world);
    assert!(orders(&world, 1).is_empty(), "not while a checkpoint of it is under way");
    world.take_checkpoint(1);
    over_budget(&mut world);
    assert_eq!(orders(&world, 1), [2]);
}

#[test]
fn it_survives_the_coordinator() {
    let mut world = World::with_checkpoint();
    over_budget(&mut world);
    assert!(world.job.must_persist(), "before the ranks are ordered");
    let mut world = world.failover();
    (0..).zip(NODES).for_each(|(rank, node)| world.connects(rank, node, 0));
    assert!(world.job.is_suspended(SetId(1)));
    world.fails(1, "b", 0);
    assert_eq!(world.events("global_rollback").len(), 1);
}

#[test]
fn images_of_the_global_checkpoint_stay_beside_younger_ones_of_a_set() {
    let mut world = World::with_checkpoint();
    over_budget(&mut world);
    world.take_set_checkpoint(2, 2);
    world.fails(1, "b", 0);
    let rolled_back = world.events("global_rollback");
    assert_eq!(rolled_back.len(), 1, "images of set 2 in checkpoint 1 are still there");
    assert_eq!(rolled_back[0]["checkpoint"], 1);
}
