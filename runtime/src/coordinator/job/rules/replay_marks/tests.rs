//! Rank 1 on node b is a set of its own, and does something that is not recorded.

use crate::coordinator::job::test_world::{NODES, World};
use rustbtl_coordination::control::{FromRank, ReplayBlocker, ToNode, ToRank};
use rustbtl_coordination::determinants::{CallKind, Determinant, NondetCall, Outcome, rank_batch};
use rustbtl_fragments::ids::Incarnation;

fn mark(world: &mut World, rank: u32, reason: &str, blocker: ReplayBlocker) {
    let message = FromRank::NotReplayable { reason: reason.into(), blocker };
    world.rank(rank, NODES[rank as usize], message);
}

fn raced(world: &mut World) {
    mark(world, 1, "it has polled", ReplayBlocker::SetUntilCheckpoint);
}

fn order_checkpoint(world: &mut World) {
    let now = world.now;
    world.job.checkpoint(now, 1, true, false, false);
    world.poll();
}

/// Fails, and is rolled back: together with all?
fn is_rolled_back_with_all(world: &mut World) -> bool {
    world.fails(1, "b", 0);
    let sets = world.events("set_rollback").len();
    let together = !world.events("global_rollback").is_empty();
    assert_eq!(sets, if together { 3 } else { 1 });
    together
}

#[test]
fn a_race_lasts_until_the_next_checkpoint() {
    let mut world = World::with_checkpoint();
    raced(&mut world);
    assert_eq!(world.events("not_replayable").len(), 1);
    raced(&mut world);
    assert_eq!(world.events("not_replayable").len(), 1, "reported once");
    let mut before = World::with_checkpoint();
    raced(&mut before);
    assert!(is_rolled_back_with_all(&mut before));
    order_checkpoint(&mut world);
    world.take_checkpoint(2);
    assert_eq!(world.events("replayable_again")[0]["checkpoint"], 2);
    assert!(!is_rolled_back_with_all(&mut world));
}

#[test]
fn a_snapshot_that_was_ordered_before_may_lie_before_the_race() {
    let mut world = World::with_checkpoint();
    order_checkpoint(&mut world);
    raced(&mut world);
    world.take_checkpoint(2);
    assert!(world.events("replayable_again").is_empty());
    order_checkpoint(&mut world);
    raced(&mut world);
    world.take_checkpoint(3);
    assert!(world.events("replayable_again").is_empty(), "there was another one");
    assert!(is_rolled_back_with_all(&mut world));
}

#[test]
fn what_a_set_does_all_the_time_does_not_end() {
    for first in [ReplayBlocker::Set, ReplayBlocker::SetUntilCheckpoint] {
        let mut world = World::with_checkpoint();
        mark(&mut world, 1, "it has a window", first);
        mark(&mut world, 1, "it has a window", ReplayBlocker::Set);
        raced(&mut world);
        order_checkpoint(&mut world);
        world.take_checkpoint(2);
        assert!(world.events("replayable_again").is_empty());
        assert!(is_rolled_back_with_all(&mut world), "{first:?} first");
    }
}

#[test]
fn a_coordinator_that_is_told_again_waits_for_a_checkpoint_of_its_own() {
    let mut world = World::with_checkpoint();
    order_checkpoint(&mut world);
    let mut world = world.failover();
    (0..).zip(NODES).for_each(|(rank, node)| world.connects(rank, node, 0));
    raced(&mut world);
    world.poll();
    order_checkpoint(&mut world);
    world.take_checkpoint(3);
    assert_eq!(world.events("replayable_again").len(), 1);
    assert!(!is_rolled_back_with_all(&mut world));
}

/// A set that is the whole job is rolled back alone. It executes freely.
#[test]
fn a_job_that_cannot_replay_is_sent_no_determinants() {
    for (is_marked, sent) in [(false, 1), (true, 0)] {
        let mut world = World::of_sets([0, 0, 0]);
        world.take_checkpoint(1);
        let question = NondetCall { kind: CallKind::Test, arguments: 1 };
        let determinant = Determinant::Outcome { call: question, outcome: Outcome::Done };
        let mut bytes = Vec::new();
        rank_batch::append(&mut bytes, 0, &determinant);
        let incarnation = Incarnation(0);
        world.rank(1, "b", FromRank::Determinants { incarnation, from: 0, bytes });
        if is_marked {
            raced(&mut world);
        }
        world.effects.clear();
        world.fails(1, "b", 0);
        (0..).zip(NODES).for_each(|(rank, node)| world.hello(rank, node, 1));
        let replayed = |message: &&ToNode| match message {
            ToNode::Rank { message: ToRank::Replay { bytes, .. }, .. } => Some(bytes.clone()),
            _ => None,
        };
        let replayed: Vec<Vec<u8>> = world.sent(1).iter().filter_map(replayed).collect();
        assert_eq!(replayed.len(), 1, "{replayed:?}");
        assert_eq!(rank_batch::read_numbered(&replayed[0]).unwrap().len(), sent);
    }
}
