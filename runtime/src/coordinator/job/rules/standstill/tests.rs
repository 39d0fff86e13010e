//! Rank 1 on node b is rolled back and replays; 0 is on a, 2 on c.

use crate::coordinator::job::tables::standstill::STANDS_MS;
use crate::coordinator::job::test_world::{NODES, World};
use rustbtl_coordination::control::{FromRank, ToNode, ToRank};

/// The last sample that a rank was asked for.
fn asked(world: &World, rank: u32) -> Option<u32> {
    let sample = |message: &ToNode| match message {
        ToNode::Rank { message: ToRank::ReportWaiting { sample }, .. } => Some(*sample),
        _ => None,
    };
    world.sent(rank).into_iter().filter_map(sample).next_back()
}

/// Time passes while the coordinator looks often.
fn ticks(world: &mut World, ms: u64) {
    let until = world.now + ms;
    while world.now < until {
        stopped(world, (until - world.now).min(1000));
    }
}

/// Time passes, and the coordinator does not run meanwhile.
fn stopped(world: &mut World, ms: u64) {
    world.now += ms;
    world.job.tick(world.now);
    world.poll();
}

/// All answer the last sample: how long each has waited, and its messages.
fn answer(world: &mut World, answers: [(u64, u64); 3]) {
    for (rank, (waited_ms, messages)) in (0..).zip(answers) {
        let sample = asked(world, rank).unwrap();
        let waited_ns = waited_ms * 1_000_000;
        let answer = FromRank::Waited { sample, waited_ns, messages };
        world.rank(rank, NODES[rank as usize], answer);
    }
}

fn replaying() -> World {
    let mut world = World::with_checkpoint();
    world.fails(1, "b", 0);
    world.hello(1, "b", 1);
    world.rank(1, "b", FromRank::Ready {});
    assert_eq!(world.events("set_restarted").len(), 1);
    ticks(&mut world, 1);
    world
}

fn rollbacks(world: &World) -> (usize, usize) {
    (world.events("replay_diverged").len(), world.events("global_rollback").len())
}

#[test]
fn ranks_that_all_wait_while_no_message_moves_are_rolled_back() {
    let mut world = replaying();
    answer(&mut world, [(100, 7), (0, 8), (50, 9)]);
    ticks(&mut world, STANDS_MS - 10);
    let first = asked(&world, 0);
    ticks(&mut world, 10);
    assert_ne!(asked(&world, 0), first, "asked again");
    let waited = STANDS_MS * 6 / 10;
    assert_eq!(rollbacks(&world), (0, 0));
    answer(&mut world, [(100 + waited, 7), (waited, 8), (50 + waited, 9)]);
    ticks(&mut world, 1);
    assert_eq!(rollbacks(&world), (1, 1));
    let reason = world.events("replay_diverged")[0]["reason"].to_string();
    assert!(reason.contains("nobody sends"), "{reason}");
}

#[test]
fn who_moves_a_message_or_computes_keeps_all_from_it() {
    let waited = STANDS_MS * 6 / 10;
    for (second, why) in [
        ([(waited, 7), (waited, 9), (waited, 9)], "one has moved a message"),
        ([(waited, 7), (waited, 8), (waited / 2, 9)], "one computes"),
    ] {
        let mut world = replaying();
        answer(&mut world, [(0, 7), (0, 8), (0, 9)]);
        ticks(&mut world, STANDS_MS);
        answer(&mut world, second);
        ticks(&mut world, 1);
        assert_eq!(rollbacks(&world), (0, 0), "{why}");
    }
}

#[test]
fn nobody_stands_still_while_the_coordinator_does_not_run() {
    let mut world = replaying();
    answer(&mut world, [(0, 7), (0, 8), (0, 9)]);
    let first = asked(&world, 0);
    stopped(&mut world, 3 * STANDS_MS);
    ticks(&mut world, STANDS_MS / 2);
    assert_eq!(asked(&world, 0), first, "what waits for the coordinator moves first");
    ticks(&mut world, STANDS_MS / 4);
    let waited = 3 * STANDS_MS;
    answer(&mut world, [(waited, 8), (waited, 9), (waited, 9)]);
    ticks(&mut world, 1);
    assert_eq!(rollbacks(&world), (0, 0));
}

#[test]
fn who_does_not_answer_is_waited_for_and_a_replay_that_is_complete_ends_it() {
    let mut world = replaying();
    ticks(&mut world, 3 * STANDS_MS);
    assert_eq!(rollbacks(&world), (0, 0));
    world.rank(1, "b", FromRank::ReplayComplete {});
    assert_eq!(world.events("replay_completed").len(), 1);
    let last = asked(&world, 0);
    ticks(&mut world, 3 * STANDS_MS);
    assert_eq!(asked(&world, 0), last, "nobody is asked any more");
}
