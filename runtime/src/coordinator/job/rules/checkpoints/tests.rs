//! Checkpoints that take long, and what they cost.

use crate::coordinator::job::test_world::{NODES, World};
use rustbtl_coordination::checkpoints::Input;
use rustbtl_coordination::control::{CheckpointId, FromNode, FromRank};
use rustbtl_fragments::ids::PeerId;

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

/// Its replica took a second and cost nothing: guardians report that when it is complete.
#[test]
fn the_interval_follows_from_what_guardians_report_of_a_complete_one() {
    let mut world = World::with_checkpoint();
    let begun = 100_000;
    let interval =
        |world: &World| world.job.status(world.now, &[])["interval_governed_ms"].as_u64().unwrap();
    world.now = begun;
    world.job.input(begun, Input::RequestGlobalCheckpoint { exit: false });
    world.poll();
    let checkpoint = CheckpointId(2);
    let all = || (0..).map(PeerId).zip(NODES);
    all().for_each(|(rank, node)| {
        world.rank(rank.0, node, FromRank::OutgoingStopped { checkpoint });
    });
    let (coordination_ns, pause_ns) = (1, 1);
    for (rank, node) in all() {
        world.handle(node, FromNode::Frozen { rank, checkpoint, coordination_ns, pause_ns });
    }
    let (bytes, raw_bytes, ns, lost_ns, checksum) = (1, 1, 4_000_000, 2_000_000, 1);
    for (rank, node) in all() {
        let stored = FromNode::Stored { rank, checkpoint, bytes, raw_bytes, ns, lost_ns, checksum };
        world.handle(node, stored);
    }
    world.now = begun + 1000;
    for ((rank, node), next) in all().zip(["b", "c", "a"]) {
        let node_of_replica = next.to_owned();
        world.handle(node, FromNode::ImageReplicated { rank, checkpoint, node: node_of_replica });
    }
    // Each message takes a millisecond.
    let estimate = interval(&world);
    assert!((100_000..101_000).contains(&estimate), "{estimate}: half was lost, twice");
    for (rank, node) in all() {
        world.handle(node, FromNode::LostBeside { rank, checkpoint, lost_ns: 9_000_000 });
    }
    let measured = interval(&world);
    assert!((10_000..10_100).contains(&measured), "{measured}: ten times as long as it took");
    let checkpoints = &world.job.status(world.now, &[])["checkpoints"];
    let shown = checkpoints.as_array().unwrap().iter().find(|one| one["checkpoint"] == 2).unwrap();
    assert_eq!(shown["lost_ns"], 9_000_000);
}
