//! Rank 1 on node b fails and cannot be rolled back alone; 0 is on a, 2 on c.

use crate::coordinator::job::config::JobConfig;
use crate::coordinator::job::rules::rollback_all::*;
use crate::coordinator::job::test_world::{NODES, World};
use rustbtl_coordination::control::{FromNode, FromRank, ReplayBlocker, ToNode, ToRank};
use rustbtl_coordination::determinants::{CallKind, Determinant, NondetCall, Outcome, rank_batch};
use rustbtl_fragments::ids::Incarnation;

const WINDOW: &str = "it has a window";
const ALL: [u32; 3] = [0, 1, 2];

fn node(rank: u32) -> &'static str {
    NODES[rank as usize]
}

fn marked(mut world: World) -> World {
    world.job.mark_not_replayable(world.now, PeerId(1), WINDOW, ReplayBlocker::Set);
    world
}

/// Checkpoint, incarnation, and whether alone, of each order to restore that was sent to a rank's
/// guardian.
fn orders(world: &World, rank: u32) -> Vec<(String, u16, bool)> {
    let order = |message: &ToNode| match message {
        ToNode::Restore { directory, incarnation, alone, .. } => {
            Some((directory.clone(), incarnation.0, *alone))
        }
        _ => None,
    };
    world.sent(rank).into_iter().filter_map(order).collect()
}

fn restarted(world: &World, rank: u32) -> Vec<usize> {
    let endpoints = |message: &ToNode| match message {
        ToNode::Rank { message: ToRank::Endpoints { restarted, .. }, .. } => Some(restarted.len()),
        _ => None,
    };
    world.sent(rank).into_iter().filter_map(endpoints).collect()
}

fn restart_all(world: &mut World, incarnation: u16) {
    ALL.into_iter().for_each(|rank| world.hello(rank, node(rank), incarnation));
    ALL.into_iter().for_each(|rank| world.rank(rank, node(rank), FromRank::Ready {}));
}

fn checkpoints(world: &World, event: &str) -> Vec<u64> {
    world.events(event).iter().filter_map(|event| event["checkpoint"].as_u64()).collect()
}

#[test]
fn all_are_rolled_back_and_their_replay_is_complete_when_they_are_connected() {
    let mut world = marked(World::with_checkpoint());
    world.fails(1, "b", 0);
    assert_eq!(checkpoints(&world, "global_rollback"), [1]);
    assert_eq!(world.events("set_rollback").len(), 3);
    for rank in ALL {
        assert_eq!(orders(&world, rank), [("checkpoint-1".into(), 1, false)], "rank {rank}");
    }
    let asked: Vec<u64> =
        world.events("fence").iter().filter_map(|event| event["asked"].as_u64()).collect();
    assert_eq!(asked, [0, 0, 0], "nobody is left who could have something of the others");
    let sent =
        world.effects.iter().filter(|effect| matches!(effect, Effect::NotifyUser(_))).count();
    assert_eq!((sent, world.to_mpirun().len()), (1, 0));
    restart_all(&mut world, 1);
    assert_eq!((restarted(&world, 0), restarted(&world, 2)), (vec![3], vec![3]));
    assert_eq!(
        (world.events("set_restarted").len(), world.events("replay_completed").len()),
        (3, 3)
    );
    let [why, then] = world.notices()[..] else { panic!("a line before, and one after") };
    assert!(why.contains("all ranks are rolled back to checkpoint 1"), "{why}");
    assert!(then.contains("all ranks run again from checkpoint 1"), "{then}");
    assert_eq!(world.to_mpirun().last(), Some(&"recovered".to_owned()));
    // Checkpoints continue, with a number that was not used.
    world.effects.clear();
    world.mpirun("checkpoint stay");
    assert_eq!(world.events("checkpoint_started")[0]["checkpoint"], 2);
}

#[test]
fn what_was_recorded_after_the_checkpoint_is_not_replayed() {
    let replays = |marks: bool| {
        let world = World::with_checkpoint();
        let mut world = if marks { marked(world) } else { world };
        let call = NondetCall::requests(CallKind::WaitAny, 9);
        let mut bytes = Vec::new();
        let determinant = Determinant::Outcome { call, outcome: Outcome::Done };
        rank_batch::append(&mut bytes, 0, &determinant);
        let message = FromRank::Determinants { incarnation: Incarnation(0), from: 0, bytes };
        world.rank(1, "b", message);
        world.fails(1, "b", 0);
        ALL.into_iter().for_each(|rank| world.hello(rank, node(rank), 1));
        let sent = |message: &ToNode| match message {
            ToNode::Rank { message: ToRank::Replay { bytes, .. }, .. } => {
                Some(rank_batch::read_numbered(bytes).unwrap().len())
            }
            _ => None,
        };
        world.sent(1).into_iter().filter_map(sent).collect::<Vec<_>>()
    };
    assert_eq!(replays(false), [1]);
    assert_eq!(replays(true), [0]);
}

#[test]
fn a_lost_node_of_two_sets_is_one_reason() {
    let mut world = World::with_checkpoint();
    world.job.mark_not_replayable(world.now, PeerId(2), WINDOW, ReplayBlocker::Set);
    world.mpirun("lost b");
    assert_eq!(world.events("global_rollback").len(), 0, "set 1 can");
    world.mpirun("lost c");
    // Both nodes are lost: that of its image, and that of the replica.
    assert!(world.to_mpirun().last().unwrap().contains("all images of rank 1"));
}

#[test]
fn a_failure_before_all_are_connected_has_all_rolled_back_again_but_not_for_ever() {
    let mut world = marked(World::with_checkpoint());
    world.fails(1, "b", 0);
    for time in 2..=FAILURES_MAX as u16 {
        world.hello(0, "a", time - 1);
        world.effects.clear();
        world.fails(0, "a", time - 1);
        assert_eq!(checkpoints(&world, "global_rollback"), [1]);
        assert_eq!(orders(&world, 2), [("checkpoint-1".into(), time, false)]);
    }
    world.fails(0, "a", FAILURES_MAX as u16);
    assert_eq!(world.events("not_recovered").len(), 1);

    // No rank has failed with a node without ranks.
    let mut world = marked(World::with_checkpoint());
    world.fails(1, "b", 0);
    world.effects.clear();
    world.mpirun("lost d");
    assert_eq!(checkpoints(&world, "global_rollback"), [0; 0]);

    // After that it is a loss like others.
    let mut world = marked(World::with_checkpoint());
    world.fails(1, "b", 0);
    restart_all(&mut world, 1);
    world.effects.clear();
    let (rank, incarnation, reason) = (PeerId(1), Incarnation(0), "too late".into());
    world.handle("b", FromNode::RestoreFailed { rank, incarnation, reason });
    assert_eq!(world.events("not_recovered").len(), 0, "of an earlier incarnation");
    world.fails(0, "a", 1);
    assert_eq!((world.events("global_rollback").len(), world.events("set_rollback").len()), (0, 1));
    assert_eq!(orders(&world, 0), [("checkpoint-1".into(), 2, true)]);
}

#[test]
fn another_coordinator_rolls_all_back_again() {
    let mut world = marked(World::with_checkpoint());
    world.fails(1, "b", 0);
    world.hello(0, "a", 1);
    let mut world = world.failover();
    for rank in ALL {
        world.guardian(rank, node(rank), 1);
    }
    assert_eq!(checkpoints(&world, "global_rollback"), [1]);
    assert_eq!(orders(&world, 2), [("checkpoint-1".into(), 2, false)]);
    restart_all(&mut world, 2);
    assert_eq!(world.events("replay_completed").len(), 3);
}

/// In a folder that all nodes share.
fn with_checkpoints(count: u64) -> World {
    let mut world = World::empty();
    let directory = Some("/folder".into());
    world.job.config = JobConfig { size: 3, directory, ..JobConfig::default() };
    ALL.into_iter().for_each(|rank| world.connects(rank, node(rank), 0));
    for checkpoint in 1..=count {
        if checkpoint > 1 {
            world.mpirun("checkpoint stay");
        }
        world.take_checkpoint(checkpoint);
        world.job.committed(world.now, CheckpointId(checkpoint), Ok(()));
        world.poll();
    }
    assert_eq!(world.events("checkpoint_completed").len() as u64, count);
    world.effects.clear();
    world
}

#[test]
fn an_image_that_cannot_be_used_is_a_reason_to_take_an_earlier_checkpoint() {
    let mut world = with_checkpoints(2);
    let not_restored = |world: &mut World, incarnation: u16| {
        let (rank, incarnation) = (PeerId(1), Incarnation(incarnation));
        let reason = "its image is cut off".into();
        world.handle("b", FromNode::RestoreFailed { rank, incarnation, reason });
    };
    world.fails(1, "b", 0);
    assert_eq!(checkpoints(&world, "set_rollback"), [2]);
    world.effects.clear();
    not_restored(&mut world, 1);
    assert_eq!(checkpoints(&world, "global_rollback"), [2], "it could not be restored alone");
    world.effects.clear();
    not_restored(&mut world, 2);
    assert_eq!(checkpoints(&world, "global_rollback"), [1]);
    assert_eq!(orders(&world, 0).len(), 1);
    let forgets = |effect: &Effect| *effect == Effect::RemoveManifest(CheckpointId(2));
    assert!(
        world.effects.iter().any(forgets),
        "nothing is rolled back to a checkpoint of another future"
    );
    // Of the order before.
    not_restored(&mut world, 2);
    assert_eq!(world.events("not_recovered"), Vec::<serde_json::Value>::new());
    not_restored(&mut world, 3);
    let sent = world.to_mpirun();
    assert!(sent.len() == 1 && sent[0].starts_with("fail rank 1 is not restarted"), "{sent:?}");
}

#[test]
fn a_mark_that_comes_when_the_set_is_on_its_way_alone_is_not_too_late() {
    let mut world = World::with_checkpoint();
    world.fails(1, "b", 0);
    world.job.mark_not_replayable(world.now, PeerId(0), WINDOW, ReplayBlocker::Set);
    assert_eq!(
        world.events("global_rollback").len(),
        0,
        "a rank that has not failed may begin with it"
    );
    let mut world = marked(world);
    world.poll();
    assert_eq!(checkpoints(&world, "global_rollback"), [1]);
    assert_eq!(orders(&world, 1).last(), Some(&("checkpoint-1".into(), 2, false)));
    world.job.mark_not_replayable(world.now, PeerId(1), WINDOW, ReplayBlocker::Set);
    world.poll();
    assert_eq!(checkpoints(&world, "global_rollback"), [1], "it is known");
}

#[test]
fn a_job_of_which_a_rank_has_ended_does_not() {
    let mut world = marked(World::with_checkpoint());
    world.handle("c", FromNode::Ended { rank: PeerId(2), status: 0, ordered: false });
    world.effects.clear();
    world.fails(1, "b", 0);
    assert_eq!(
        (world.events("global_rollback").len(), world.events("not_recovered").len()),
        (0, 1)
    );
}

#[test]
fn a_mark_for_others_holds_for_all() {
    for (blocker, together, ended) in [
        (ReplayBlocker::Set, 0, 0),
        (ReplayBlocker::Others, 1, 0),
        (ReplayBlocker::Everybody, 0, 0),
    ] {
        let mut world = World::with_checkpoint();
        world.job.mark_not_replayable(world.now, PeerId(1), "it has a file", blocker);
        world.fails(2, "c", 0);
        let known = (world.events("global_rollback").len(), world.events("not_recovered").len());
        assert_eq!(known, (together, ended), "{blocker:?}");
    }
    let mut world = World::with_checkpoint();
    world.job.mark_not_replayable(
        world.now,
        PeerId(1),
        "bypasses rustbtl",
        ReplayBlocker::Everybody,
    );
    world.fails(1, "b", 0);
    let known = (world.events("global_rollback").len(), world.events("not_recovered").len());
    assert_eq!(known, (0, 1), "what it does is in no image");
}
