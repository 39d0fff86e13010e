//! Rank 1 on node b fails; 0 on a and 2 on c are asked how long they have waited.

use crate::coordinator::job::test_world::{NODES, World};
use rustbtl_coordination::control::{FromRank, ToNode, ToRank};
use serde_json::json;

/// The samples that a rank was asked for.
fn asked(world: &World, rank: u32) -> Vec<u32> {
    let sample = |message: &ToNode| match message {
        ToNode::Rank { message: ToRank::ReportWaiting { sample }, .. } => Some(*sample),
        _ => None,
    };
    world.sent(rank).into_iter().filter_map(sample).collect()
}

fn answers(world: &mut World, rank: u32, sample: u32, ms: u64) {
    let waited_ns = ms * 1_000_000 + 999_999;
    world.rank(rank, NODES[rank as usize], FromRank::Waited { sample, waited_ns, messages: 0 });
}

fn is_restarted(world: &mut World) {
    world.hello(1, "b", 1);
    world.rank(1, "b", FromRank::Ready {});
}

#[test]
fn the_others_are_asked_when_a_recovery_begins_when_all_are_connected_and_when_it_is_over() {
    let mut world = World::with_checkpoint();
    world.fails(1, "b", 0);
    assert_eq!([0, 1, 2].map(|rank| asked(&world, rank).len()), [1, 0, 1]);
    answers(&mut world, 0, 1, 10);
    assert!(world.events("ranks_waited").is_empty());
    answers(&mut world, 2, 1, 20);
    let first = json!({
        "event": "ranks_waited", "ranks": [0, 2], "waited_ms": [10, 20], "rolled_back": [1],
        "ms_ago": 1
    });
    assert_eq!(world.events("ranks_waited"), [first]);
    is_restarted(&mut world);
    assert_eq!([0, 1, 2].map(|rank| asked(&world, rank).len()), [2, 0, 2]);
    world.rank(1, "b", FromRank::ReplayComplete {});
    assert_eq!([0, 1, 2].map(|rank| asked(&world, rank)), [vec![1, 2, 3], vec![3], vec![1, 2, 3]]);
    for (rank, ms) in [(0, 400), (1, 0), (2, 500)] {
        answers(&mut world, rank, 3, ms);
    }
    let events = world.events("ranks_waited");
    assert_eq!(events.len(), 2, "nobody has answered the second: {events:?}");
    assert_eq!((&events[1]["ranks"], &events[1]["rolled_back"]), (&json!([0, 1, 2]), &json!([])));
}

#[test]
fn who_does_not_answer_is_left_out_and_a_late_answer_counts_for_nothing() {
    let mut world = World::with_checkpoint();
    world.fails(1, "b", 0);
    answers(&mut world, 0, 1, 10);
    answers(&mut world, 0, 1, 11);
    answers(&mut world, 1, 1, 11);
    assert!(world.events("ranks_waited").is_empty());
    is_restarted(&mut world);
    let events = world.events("ranks_waited");
    assert_eq!((&events[0]["ranks"], &events[0]["waited_ms"]), (&json!([0]), &json!([10])));
    assert_eq!(events[0]["ms_ago"], 4);
    answers(&mut world, 2, 1, 20);
    answers(&mut world, 0, 2, 30);
    assert_eq!(world.events("ranks_waited").len(), 1);
    answers(&mut world, 2, 2, 30);
    assert_eq!(world.events("ranks_waited").len(), 2);
}

#[test]
fn nobody_is_asked_in_a_global_rollback() {
    let mut world = World::with_checkpoint();
    world.job.roll_back_all(world.now, "test", None).unwrap();
    world.poll();
    for (rank, node) in (0..).zip(NODES) {
        world.hello(rank, node, 1);
    }
    for (rank, node) in (0..).zip(NODES) {
        world.rank(rank, node, FromRank::Ready {});
    }
    assert_eq!(world.events("replay_completed").len(), 3);
    assert_eq!([0, 1, 2].map(|rank| asked(&world, rank).len()), [0; 3]);
}
