//! Who is asked whether all replays are over, and when restarted ranks are told.

use crate::coordinator::job::test_world::{NODES, World};
use rustbtl_coordination::control::{FromNode, FromRank, ToNode, ToRank};
use rustbtl_fragments::ids::PeerId;

/// What a rank was asked: numbers, and whether its replay.
fn asked(world: &World, rank: u32) -> Vec<(u64, bool)> {
    let call = |message: &ToNode| match message {
        ToNode::Rank { message: ToRank::ReportReplay { number, replay }, .. } => {
            Some((*number, *replay))
        }
        _ => None,
    };
    world.sent(rank).into_iter().filter_map(call).collect()
}

/// The incarnations of a rank that were told.
fn over(world: &World, rank: u32) -> Vec<u16> {
    let call = |message: &ToNode| match message {
        ToNode::Rank { message: ToRank::ReplaysOver { incarnation }, .. } => Some(incarnation.0),
        _ => None,
    };
    world.sent(rank).into_iter().filter_map(call).collect()
}

fn says_yes(world: &mut World, rank: u32) {
    let (number, _) = *asked(world, rank).last().expect("it was asked");
    world.rank(rank, NODES[rank as usize], FromRank::ReplayReported { number });
}

/// From its first incarnation to this one.
fn restarts(world: &mut World, rank: u32, incarnation: u16) {
    let node = NODES[rank as usize];
    world.fails(rank, node, 0);
    world.hello(rank, node, incarnation);
    world.rank(rank, node, FromRank::Ready {});
}

fn reports(world: &mut World, rank: u32) {
    world.rank(rank, NODES[rank as usize], FromRank::ReplayComplete {});
}

/// Its checkpoint may be from before the first message to who has received from it since: what it
/// reports is what it knows (the simulator's tier `windows`, planted bug `WindowReportsBelieved`).
#[test]
fn a_rank_is_told_when_the_others_have_repaired_their_channels_and_it_still_says_so() {
    let mut world = World::with_checkpoint();
    restarts(&mut world, 1, 1);
    assert_eq!(asked(&world, 0), [], "it replays");
    reports(&mut world, 1);
    assert_eq!((over(&world, 1), asked(&world, 1)), (vec![], vec![(1, false)]));
    says_yes(&mut world, 1);
    says_yes(&mut world, 0);
    assert_eq!(asked(&world, 1), [(1, false)], "rank 2 is not repaired");
    assert!(world.events("replays_over").is_empty());
    says_yes(&mut world, 2);
    assert_eq!((over(&world, 1), asked(&world, 1)), (vec![], vec![(1, false), (2, true)]));
    assert_eq!((asked(&world, 0), asked(&world, 2)), (vec![(1, false)], vec![(1, false)]));
    says_yes(&mut world, 1);
    assert_eq!((over(&world, 1), over(&world, 0)), (vec![1], vec![]));
    assert_eq!(world.events("replays_over").len(), 1);
    // It says so again after it has refused a checkpoint.
    reports(&mut world, 1);
    assert_eq!((over(&world, 1), asked(&world, 1).len()), (vec![1, 1], 2));
}

#[test]
fn who_fails_meanwhile_makes_all_answers_void() {
    let mut world = World::with_checkpoint();
    restarts(&mut world, 1, 1);
    reports(&mut world, 1);
    (0..3).for_each(|rank| says_yes(&mut world, rank));
    assert_eq!(asked(&world, 1), [(1, false), (2, true)]);
    restarts(&mut world, 2, 2);
    says_yes(&mut world, 1);
    assert_eq!(over(&world, 1), [] as [u16; 0]);
    reports(&mut world, 2);
    assert_eq!(asked(&world, 0), [(1, false), (3, false)]);
    (0..3).for_each(|rank| says_yes(&mut world, rank));
    [1, 2].into_iter().for_each(|rank| says_yes(&mut world, rank));
    assert_eq!((over(&world, 1), over(&world, 2)), (vec![1], vec![2]));
}

#[test]
fn who_connects_again_is_asked_again_and_who_has_ended_is_not_waited_for() {
    let mut world = World::with_checkpoint();
    restarts(&mut world, 1, 1);
    reports(&mut world, 1);
    world.connects(0, "a", 0);
    assert_eq!(asked(&world, 0), [(1, false), (1, false)]);
    says_yes(&mut world, 0);
    world.connects(0, "a", 0);
    assert_eq!(asked(&world, 0).len(), 2, "it has answered");
    says_yes(&mut world, 1);
    let ended = FromNode::Ended { rank: PeerId(2), status: 0, ordered: false };
    world.handle("c", ended);
    assert_eq!(asked(&world, 1), [(1, false), (2, true)]);
}

/// Whatever the first one knew: it may have told nobody.
#[test]
fn another_coordinator_asks_anew_when_all_have_connected() {
    let mut world = World::with_checkpoint();
    restarts(&mut world, 1, 1);
    reports(&mut world, 1);
    (0..3).for_each(|rank| says_yes(&mut world, rank));
    let mut world = world.failover();
    world.connects(1, "b", 1);
    reports(&mut world, 1);
    world.connects(0, "a", 0);
    assert_eq!(asked(&world, 1), [], "not all are here");
    world.connects(2, "c", 0);
    assert_eq!(world.events("failover_completed").len(), 1);
    let number = asked(&world, 0)[0].0;
    assert!(number > 1 << 32, "answers to the one before are none: {number}");
    (0..3).for_each(|rank| says_yes(&mut world, rank));
    says_yes(&mut world, 1);
    assert_eq!(over(&world, 1), [1]);
}
