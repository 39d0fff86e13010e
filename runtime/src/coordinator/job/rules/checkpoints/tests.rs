//! Images that nobody waits for are written at a pace, others are not.

use super::PACE_MAX_MS;
use crate::coordinator::job::state::Effect;
use crate::coordinator::job::tables::checkpoint_requests::Requester;
use crate::coordinator::job::test_world::{NODES, World};
use rustbtl_coordination::control::{CheckpointId, FromNode, FromRank, ToNode};
use rustbtl_fragments::ids::PeerId;

/// All have stopped sending for this checkpoint: the pace of each image.
fn begin(world: &mut World, checkpoint: u64) -> Vec<u64> {
    world.effects.clear();
    let checkpoint = CheckpointId(checkpoint);
    for (rank, node) in (0..).zip(NODES) {
        world.rank(rank, node, FromRank::OutgoingStopped { checkpoint });
    }
    let pace = |effect: &Effect| match effect {
        Effect::Send(_, ToNode::Prepare { pace_ms, .. }) => Some(*pace_ms),
        _ => None,
    };
    world.effects.iter().filter_map(pace).collect()
}

/// Rank 0 has written its image, and is told at which pace to send it.
fn stored(world: &mut World, checkpoint: u64, paused_ns: u64) -> Vec<u64> {
    world.effects.clear();
    let (rank, checkpoint) = (PeerId(0), CheckpointId(checkpoint));
    let frozen = FromNode::Frozen { rank, checkpoint, coordination_ns: 1, pause_ns: 1 };
    world.handle("a", frozen);
    let (bytes, raw_bytes, ns, checksum) = (1, 1, 1, 1);
    world.handle(
        "a",
        FromNode::Stored { rank, checkpoint, bytes, raw_bytes, ns, checksum, paused_ns },
    );
    let pace = |effect: &Effect| match effect {
        Effect::SendNode(_, ToNode::ReplicateImage { pace_ms, .. }) => Some(*pace_ms),
        _ => None,
    };
    world.effects.iter().filter_map(pace).collect()
}

#[test]
fn a_checkpoint_that_nobody_waits_for_is_stored_at_a_pace() {
    let mut world = World::of_sets([0, 1, 2]);
    assert_eq!(begin(&mut world, 1), [PACE_MAX_MS; 3], "the first one");
    assert_eq!(stored(&mut world, 1, 7), [PACE_MAX_MS]);
    assert_eq!(world.job.checkpoints[&CheckpointId(1)].paused_ns[&PeerId(0)], 7);
    let replicated = |node: &str| FromNode::ImageReplicated {
        rank: PeerId(0),
        checkpoint: CheckpointId(1),
        node: node.into(),
        paused_ns: 5,
    };
    world.handle("a", replicated("b"));
    assert_eq!(world.job.checkpoints[&CheckpointId(1)].paused_ns[&PeerId(0)], 12);
}

#[test]
fn a_checkpoint_that_somebody_waits_for_is_stored_at_once() {
    let mut world = World::with_checkpoint();
    world.job.request(world.now, Requester::Client(1), None, false, false);
    world.poll();
    assert_eq!(begin(&mut world, 2), [0; 3], "it was requested, although nobody waits for the end");
    assert_eq!(stored(&mut world, 2, 0), [0]);
}

#[test]
fn somebody_who_comes_while_images_are_written_has_them_sent_at_once() {
    let mut world = World::of_sets([0, 1, 2]);
    assert_eq!(begin(&mut world, 1), [PACE_MAX_MS; 3]);
    world.job.request(world.now, Requester::Client(1), None, false, true);
    assert_eq!(stored(&mut world, 1, 0), [0], "his checkpoint is taken when this one is stored");
}
