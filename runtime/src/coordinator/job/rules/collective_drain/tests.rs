//! Three ranks of one set have a communicator whose collectives bypass rustbtl.

use super::TIMEOUT_MS;
use crate::coordinator::job::test_world::{NODES, World};
use rustbtl_coordination::control::{
    CheckpointId, ClockCounter, FromClock, FromNode, FromRank, Hindrance, MemberRuns, ToClock,
    ToNode, ToRank,
};
use rustbtl_fragments::ids::{PeerId, SetId};

const FIRST: CheckpointId = CheckpointId(1);

/// All three bypass, and a checkpoint is ordered.
fn ordered() -> World {
    let mut world = World::empty();
    world.sets = [0; 3].map(SetId);
    for (rank, node) in (0..).zip(NODES) {
        world.handle(node, FromNode::ReplicaServer { addresses: format!("{node}:1") });
        world.guardian(rank, node, 0);
        world.hello(rank, node, 0);
        world.rank(rank, node, FromRank::CollectivesBypass {});
        world.rank(rank, node, FromRank::Ready {});
    }
    world
}

fn says(world: &mut World, rank: u32, message: FromClock) {
    world.rank(rank, NODES[rank as usize], FromRank::Clock { message });
}

/// Its answer to the beginning: so many collectives entered, and all left, or not.
fn answers(world: &mut World, rank: u32, sequence: u64, hindrance: Hindrance) {
    let members = MemberRuns::of(&[0, 1, 2].map(PeerId));
    let counters = vec![ClockCounter { clock: 0, context: 0, group: 7, sequence, members }];
    says(world, rank, FromClock::Counters { checkpoint: FIRST, counters });
    is(world, rank, 1, hindrance);
}

fn is(world: &mut World, rank: u32, orders: u32, hindrance: Hindrance) {
    let (stop, waits_for) = (0, Vec::new());
    let state = FromClock::State { checkpoint: FIRST, orders, hindrance, stop, waits_for };
    says(world, rank, state);
}

fn is_stopped(world: &World, rank: u32) -> bool {
    let stop = |message: &&ToNode| {
        matches!(message, ToNode::Rank { message: ToRank::StopOutgoing { .. }, .. })
    };
    world.sent(rank).iter().any(stop)
}

fn clock_orders(world: &World, rank: u32) -> Vec<ToClock> {
    let order = |message: &ToNode| match message {
        ToNode::Rank { message: ToRank::Clock { message }, .. } => Some(message.clone()),
        _ => None,
    };
    world.sent(rank).into_iter().filter_map(order).collect()
}

#[test]
fn outgoing_messages_are_held_when_no_collective_is_half_done() {
    let mut world = ordered();
    let drain = ToClock::Drain { checkpoint: FIRST };
    assert_eq!(clock_orders(&world, 2), [drain]);
    answers(&mut world, 0, 5, Hindrance::Incomplete);
    answers(&mut world, 1, 5, Hindrance::Incomplete);
    answers(&mut world, 2, 4, Hindrance::None);
    assert!(!is_stopped(&world, 0) && !is_stopped(&world, 2));
    assert!(matches!(clock_orders(&world, 2)[1], ToClock::Raise { .. }), "it has to come, too");
    is(&mut world, 2, 2, Hindrance::None);
    is(&mut world, 0, 1, Hindrance::None);
    assert!(!is_stopped(&world, 0));
    is(&mut world, 1, 1, Hindrance::None);
    assert!((0..3).all(|rank| is_stopped(&world, rank)));
    assert_eq!(world.events("collectives_drained").len(), 1);
    world.take_checkpoint(1);
    assert_eq!(world.events("checkpoint_completed").len(), 1);
}

#[test]
fn a_rank_that_does_not_come_is_named_and_the_others_go_on() {
    let mut world = ordered();
    answers(&mut world, 0, 5, Hindrance::Incomplete);
    answers(&mut world, 1, 4, Hindrance::BelowTarget);
    answers(&mut world, 2, 5, Hindrance::Incomplete);
    assert!(world.job.next_deadline().is_some_and(|at| at <= world.now + TIMEOUT_MS));
    world.now += TIMEOUT_MS + 1;
    world.job.tick(world.now);
    world.poll();
    let aborted = &world.events("checkpoint_aborted")[0];
    let reason = aborted["reason"].as_str().unwrap();
    assert!(reason.contains("rank 1 did not come in time to a collective"), "{reason}");
    let is_abort =
        |message: &&ToNode| matches!(message, ToNode::Rank { message: ToRank::Abort { .. }, .. });
    assert!((0..3).all(|rank| world.sent(rank).iter().any(is_abort)));
    assert!(world.events("collectives_drained").is_empty());
}

#[test]
fn a_collective_that_begins_afterwards_gives_the_checkpoint_up() {
    let mut world = ordered();
    for rank in 0..3 {
        answers(&mut world, rank, 5, Hindrance::None);
    }
    assert_eq!(world.events("collectives_drained").len(), 1);
    says(&mut world, 1, FromClock::Raised { checkpoint: FIRST, clock: 0, sequence: 6 });
    let reason = world.events("checkpoint_aborted")[0]["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("rank 1"), "{reason}");
}

#[test]
fn after_a_restart_nobody_is_drained() {
    let mut world = ordered();
    for (rank, node) in (0..).zip(NODES) {
        answers(&mut world, rank, 5, Hindrance::None);
        world.hello(rank, node, 0);
    }
    world.take_checkpoint(1);
    world.effects.clear();
    world.job.checkpoint(world.now, 1, true, false, false);
    world.poll();
    assert!(is_stopped(&world, 0) && clock_orders(&world, 0).is_empty());
}
