//! What others have received of a set in rollback: rank 1 on node b fails, 0 on a and 2 on c have
//! been connected to it.

use crate::coordinator::job::rules::rollback::*;
use crate::coordinator::job::test_world::{NODES, World};
use rustbtl_coordination::control::{FromNode, FromRank, ReplayBlocker};
use rustbtl_coordination::determinants::{
    CallKind, Determinant, NondetCall, Numbered, Outcome, Piggybacked, PiggybackedEntry, rank_batch,
};

const FIRST: Incarnation = Incarnation(0);

/// Nobody answers unless the test does.
fn silent() -> World {
    let mut world = World::with_checkpoint();
    world.answers = false;
    world
}

fn fence_requests(world: &World, rank: u32) -> Vec<(u32, u16)> {
    let call = |message: &ToNode| match message {
        ToNode::Rank { message: ToRank::Fence { set, before }, .. } => Some((set.0, before.0)),
        _ => None,
    };
    world.sent(rank).into_iter().filter_map(call).collect()
}

fn endpoints(world: &World, rank: u32) -> usize {
    let is = |message: &&ToNode| {
        matches!(message, ToNode::Rank { message: ToRank::Endpoints { .. }, .. })
    };
    world.sent(rank).into_iter().filter(is).count()
}

/// How many determinants a rank replays; None: they were not sent yet.
fn replays(world: &World, rank: u32) -> Option<usize> {
    let replayed = |message: &ToNode| match message {
        ToNode::Rank { message: ToRank::Replay { bytes, .. }, .. } => {
            Some(rank_batch::read_numbered(bytes).unwrap().len())
        }
        _ => None,
    };
    world.sent(rank).into_iter().filter_map(replayed).next_back()
}

/// Rank `by` has recorded at this place what the first incarnation of set 1 has piggybacked to it.
fn records_piggybacked(world: &mut World, by: u32, at: u64) {
    let call = NondetCall::requests(CallKind::WaitAny, 9);
    let determinant = Determinant::Outcome { call, outcome: Outcome::Done };
    let entries = vec![PiggybackedEntry::Own(PeerId(1), Numbered { number: 5, determinant })];
    let piggybacked = Piggybacked { set: SetId(1), incarnation: FIRST, from: 0, entries };
    let message = FromRank::Piggybacked { incarnation: FIRST, at, bytes: piggybacked.encode() };
    world.rank(by, NODES[by as usize], message);
}

#[test]
fn endpoints_are_sent_when_all_others_have_answered_and_what_they_name_is_here() {
    let mut world = silent();
    world.fails(1, "b", 0);
    assert_eq!(
        (fence_requests(&world, 0), fence_requests(&world, 2)),
        (vec![(1, 1)], vec![(1, 1)])
    );
    assert_eq!(fence_requests(&world, 1), []);
    assert_eq!(world.events("fence"), [json!({"event": "fence", "set": 1, "asked": 2})]);
    world.hello(1, "b", 1);
    world.fenced(0, 1, 1, 0);
    world.fenced(2, 1, 1, 1);
    assert_eq!((replays(&world, 1), endpoints(&world, 1), endpoints(&world, 0)), (None, 0, 0));
    records_piggybacked(&mut world, 2, 0);
    assert_eq!(world.events("fenced").len(), 1);
    assert_eq!((replays(&world, 1), endpoints(&world, 1), endpoints(&world, 0)), (Some(1), 1, 1));
    let place = |what: fn(&ToRank) -> bool| {
        let is =
            |message: &&ToNode| matches!(message, ToNode::Rank { message, .. } if what(message));
        world.sent(1).iter().position(is).unwrap()
    };
    let replay = place(|message| matches!(message, ToRank::Replay { .. }));
    assert!(replay < place(|message| matches!(message, ToRank::Endpoints { .. })));
    world.rank(1, "b", FromRank::Ready {});
    assert_eq!(world.events("set_restarted").len(), 1);
}

#[test]
fn answers_that_come_before_the_images_are_read_are_enough() {
    let mut world = silent();
    world.fails(1, "b", 0);
    world.fenced(0, 1, 1, 0);
    world.fenced(2, 1, 1, 0);
    assert_eq!((world.events("fenced").len(), endpoints(&world, 0)), (1, 0));
    world.hello(1, "b", 1);
    assert_eq!((replays(&world, 1), endpoints(&world, 0)), (Some(0), 1));
}

#[test]
fn a_set_that_fails_while_it_is_asked_is_not_waited_for_and_is_restored_together_with_it() {
    let mut world = silent();
    world.fails(1, "b", 0);
    world.fenced(0, 1, 1, 0);
    world.fails(2, "c", 0);
    assert_eq!(world.events("fenced")[0]["set"], 1);
    // Who is being restored has no channels.
    assert_eq!(world.events("fence")[1], json!({"event": "fence", "set": 2, "asked": 1}));
    assert_eq!(
        (fence_requests(&world, 0), fence_requests(&world, 1)),
        (vec![(1, 1), (2, 2)], vec![])
    );
    world.hello(1, "b", 1);
    world.hello(2, "c", 2);
    assert_eq!(endpoints(&world, 0), 0, "nobody has answered about 2");
    world.fenced(0, 2, 2, 0);
    assert_eq!(
        (endpoints(&world, 0), replays(&world, 1), replays(&world, 2)),
        (1, Some(0), Some(0))
    );
}

#[test]
fn a_set_that_fails_again_asks_again_also_ranks_that_are_connecting() {
    let mut world = silent();
    world.fails(1, "b", 0);
    world.fenced(0, 1, 1, 0);
    world.fails(1, "b", 1);
    assert_eq!(fence_requests(&world, 0), [(1, 1), (1, 2)]);
    world.hello(1, "b", 2);
    world.fenced(0, 1, 1, 0);
    world.fenced(2, 1, 1, 0);
    assert_eq!((world.events("fenced").len(), endpoints(&world, 0)), (0, 0), "of the one before");
    world.job.fenced(world.now, SetId(1), Incarnation(1));
    world.poll();
    assert_eq!(endpoints(&world, 0), 0);
    records_piggybacked(&mut world, 0, 0);
    world.fenced(0, 1, 2, 1);
    world.fenced(2, 1, 2, 0);
    assert_eq!((replays(&world, 1), endpoints(&world, 0)), (Some(1), 1));
    // It has endpoints, and is not ready yet.
    world.fails(2, "c", 0);
    assert_eq!(fence_requests(&world, 1), [(2, 3)]);
    world.fenced(0, 2, 3, 1);
    world.hello(2, "c", 3);
    assert_eq!(replays(&world, 2), None);
    world.fenced(1, 2, 3, 0);
    assert_eq!(replays(&world, 2), Some(0));
}

#[test]
fn who_reconnects_and_has_not_answered_is_asked_again() {
    let mut world = silent();
    world.job.agent_gone(world.now, "a", &[PeerId(0)]);
    world.fails(1, "b", 0);
    world.hello(1, "b", 1);
    world.fenced(2, 1, 1, 0);
    assert_eq!(endpoints(&world, 2), 0, "it is there, though nobody reaches it");
    world.effects.clear();
    world.connects(0, "a", 0);
    assert_eq!((fence_requests(&world, 0), fence_requests(&world, 2)), (vec![(1, 1)], vec![]));
    world.fenced(0, 1, 1, 0);
    assert_eq!(endpoints(&world, 2), 1);
}

#[test]
fn nobody_is_asked_by_a_set_that_is_the_whole_job() {
    let mut world = World::empty();
    world.answers = false;
    let all_one = |world: &mut World, rank: u32, node: &str, incarnation: u16| {
        let (pid, version, endpoint) = (8, String::new(), Vec::new());
        let (of, set, incarnation) = (PeerId(rank), SetId(0), Incarnation(incarnation));
        let hello = FromRank::Hello { rank: of, size: 3, pid, incarnation, version, set, endpoint };
        world.rank(rank, node, hello);
    };
    for (rank, node) in (0..).zip(NODES) {
        world.handle(node, FromNode::ReplicaServer { addresses: format!("{node}:1") });
        world.guardian(rank, node, 0);
        all_one(&mut world, rank, node, 0);
        world.rank(rank, node, FromRank::Ready {});
    }
    world.take_checkpoint(1);
    world.fails(1, "b", 0);
    assert_eq!(world.events("fence")[0]["asked"], 0);
    assert_eq!(world.events("fenced").len(), 1);
    for (rank, node) in (0..).zip(NODES) {
        assert_eq!(endpoints(&world, 0), 0);
        all_one(&mut world, rank, node, 1);
    }
    assert_eq!(endpoints(&world, 0), 1);
}

#[test]
fn a_checkpoint_is_complete_when_what_its_snapshots_depend_on_is_here() {
    let mut world = silent();
    world.mpirun("checkpoint stay");
    let checkpoint = CheckpointId(2);
    world.rank(
        0,
        "a",
        FromRank::EventClock { checkpoint, clock: 0, incarnation: FIRST, recorded: 1 },
    );
    world.take_checkpoint(2);
    assert!(world.events("checkpoint_completed").is_empty());
    records_piggybacked(&mut world, 0, 0);
    // Only now its replica is ordered.
    let replicates = |effect: &Effect| {
        let of = |at: &str, message: &ToNode| {
            at == "a"
                && matches!(message, ToNode::ReplicateImage { checkpoint: CheckpointId(2), .. })
        };
        matches!(effect, Effect::SendNode(at, message) if of(at, message))
    };
    assert_eq!(world.effects.iter().filter(|effect| replicates(effect)).count(), 1);
    world.handle("a", FromNode::ImageReplicated { rank: PeerId(0), checkpoint, node: "b".into() });
    assert_eq!(world.events("checkpoint_completed").len(), 1);

    // The set fails before.
    let mut world = silent();
    world.mpirun("checkpoint stay");
    world.rank(
        0,
        "a",
        FromRank::EventClock { checkpoint, clock: 0, incarnation: FIRST, recorded: 1 },
    );
    world.take_checkpoint(2);
    world.fails(0, "a", 0);
    assert_eq!(world.events("set_rollback")[0]["checkpoint"], 1);
    records_piggybacked(&mut world, 0, 0);
    world.handle("a", FromNode::ImageReplicated { rank: PeerId(0), checkpoint, node: "b".into() });
    assert!(world.events("checkpoint_completed").is_empty());
}

#[test]
fn a_rank_whose_replay_is_complete_while_others_connect_is_counted() {
    for order in [[1, 2], [2, 1]] {
        let mut world = World::with_checkpoint_of([0, 1, 1]);
        world.fails(1, "b", 0);
        for rank in [1, 2] {
            world.hello(rank, NODES[rank as usize], 1);
        }
        let [first, last] = order;
        let node = |rank: u32| NODES[rank as usize];
        world.rank(first, node(first), FromRank::Ready {});
        // It has no channel to another set: nothing is left to repeat.
        world.rank(first, node(first), FromRank::ReplayComplete {});
        assert_eq!(
            (world.events("set_restarted").len(), world.events("replay_completed").len()),
            (0, 0)
        );
        world.rank(last, node(last), FromRank::Ready {});
        assert_eq!(
            (world.events("set_restarted").len(), world.events("replay_completed").len()),
            (1, 0)
        );
        world.rank(last, node(last), FromRank::ReplayComplete {});
        assert_eq!(world.events("replay_completed").len(), 1);
        let notices = world.notices();
        assert!(notices.len() == 1 && notices[0].contains("ranks 1, 2 failed"), "{notices:?}");
    }
}

#[test]
fn a_user_who_wants_no_notices_gets_none() {
    let mut world = World::with_checkpoint_of([0, 1, 2]);
    world.job.config.notices = false;
    world.fails(1, "b", 0);
    world.hello(1, "b", 1);
    world.rank(1, "b", FromRank::Ready {});
    world.rank(1, "b", FromRank::ReplayComplete {});
    assert!(world.notices().is_empty() && world.events("replay_completed").len() == 1);
}

#[test]
fn a_set_that_is_the_whole_job_is_rolled_back_whatever_it_did() {
    let mut world = World::with_checkpoint_of([0, 0, 0]);
    world.fails(1, "b", 0);
    world.job.mark_not_replayable(
        world.now,
        PeerId(1),
        "one-sided communication",
        ReplayBlocker::Set,
    );
    world.poll();
    assert_eq!((world.to_mpirun(), world.events("set_rollback").len()), (Vec::<String>::new(), 1));
    let alone = |message: &ToNode| matches!(message, ToNode::Restore { alone: true, .. });
    assert!(!world.sent(1).into_iter().any(alone), "nobody else writes to its files");
}

/// Rank 1's image is on its own node and on c, whose agent has just ended.
fn holder_is_unreachable() -> World {
    let mut world = World::with_checkpoint();
    world.job.agent_gone(world.now, "c", &[PeerId(2)]);
    world.mpirun("lost b");
    assert!(!world.events("placement_waits").is_empty());
    assert!(!world.to_mpirun().iter().any(|order| order.contains("fail")), "nothing is decided");
    world
}

#[test]
fn ranks_wait_for_the_node_that_has_their_images_where_its_agent_is_gone() {
    let mut world = holder_is_unreachable();
    world.connects(2, "c", 0);
    assert_eq!(world.events("rank_placed")[0]["node"], "c");
}

#[test]
fn if_that_node_is_lost_too_the_images_are_named() {
    let mut world = holder_is_unreachable();
    world.mpirun("lost c");
    let orders = world.to_mpirun();
    let lost = |order: &String| order.contains("all images of rank 1 in checkpoint 1 are lost");
    assert!(orders.iter().any(lost), "{orders:?}");
}

#[test]
fn nobody_waits_for_an_unreachable_agent_for_ever() {
    let mut world = holder_is_unreachable();
    world.job.tick(world.now);
    world.job.tick(world.now + 300_000);
    world.poll();
    let orders = world.to_mpirun();
    let reason = |order: &String| order.contains("cannot be reached any more");
    assert!(orders.iter().any(reason), "{orders:?}");
}
