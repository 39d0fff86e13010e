//! One coordinator after another: what the second one does with what the first one knew.

use crate::coordinator::job::rules::failover::*;
use crate::coordinator::job::tables::persisted::PersistedState;
use crate::coordinator::job::test_world::{NODES, World};
use rustbtl_coordination::control::FromRank;

#[test]
fn the_failover_is_complete_when_all_have_connected_and_a_loss_after_that_is_survived() {
    let mut world = World::with_checkpoint().failover();
    assert_eq!(world.job.awaited().map(|missing| missing.len()), Some(3));
    world.connects(0, "a", 0);
    world.connects(1, "b", 0);
    assert!(world.events("failover_completed").is_empty());
    world.connects(2, "c", 0);
    assert_eq!(world.events("failover_completed").len(), 1);
    assert_eq!(
        world.events("failover_completed")[0]["replicated"],
        true,
        "who has replicas was persisted"
    );
    assert!(world.events("checkpoint_started").is_empty(), "there is one already");
    world.mpirun("lost b");
    let rollback = &world.events("set_rollback")[0];
    assert_eq!(
        (&rollback["set"], &rollback["checkpoint"], &rollback["incarnation"]),
        (&1.into(), &1.into(), &1.into())
    );
    assert_eq!(world.events("rank_placed")[0]["node"], "c", "where the replica is");
}

#[test]
fn what_was_lost_meanwhile_waits_until_the_others_have_connected() {
    let mut world = World::with_checkpoint().failover();
    world.mpirun("lost b");
    world.connects(0, "a", 0);
    assert!(world.events("node_lost").is_empty());
    world.connects(2, "c", 0);
    assert_eq!(world.events("failover_completed").len(), 1, "nobody waits for who is lost");
    assert_eq!(world.events("rank_placed").len(), 1);
    // A failed program has connected.
    let mut world = World::with_checkpoint().failover();
    world.connects(0, "a", 0);
    world.connects(2, "c", 0);
    world.guardian(1, "b", 0);
    world.hello(1, "b", 0);
    world.fails(1, "b", 0);
    let restores = |message: &&ToNode| matches!(message, ToNode::Restore { .. });
    assert_eq!(world.sent(1).into_iter().filter(restores).count(), 1);
}

#[test]
fn a_loss_that_was_handled_already_is_not_handled_twice() {
    let mut world = World::with_checkpoint();
    world.mpirun("lost b");
    world.connects(1, "c", 1);
    world.rank(1, "c", FromRank::ReplayComplete {});
    assert_eq!(world.events("replay_completed").len(), 1);
    let mut world = world.failover();
    world.mpirun("lost b");
    for (rank, node, incarnation) in [(0, "a", 0), (1, "c", 1), (2, "c", 0)] {
        world.connects(rank, node, incarnation);
    }
    assert_eq!(world.events("failover_completed").len(), 1);
    assert!(world.events("set_rollback").is_empty());
    assert_eq!(world.to_mpirun(), ["recovered"]);
}

#[test]
fn a_set_that_was_not_connected_is_rolled_back_again_in_an_incarnation_that_is_new() {
    let mut world = World::with_checkpoint();
    world.mpirun("lost b");
    // Killed a second time before anybody has connected.
    let mut world = world.failover().failover();
    world.mpirun("lost b");
    world.connects(0, "a", 0);
    world.connects(2, "c", 0);
    let rollback = &world.events("set_rollback")[0];
    assert_eq!(rollback["incarnation"], 2, "1 was ordered, whether it ran or not");
    // The guardian that was started by the first order connects late.
    assert!(!world.job.accepts(PeerId(1), Incarnation(1)));
    assert!(world.job.accepts(PeerId(1), Incarnation(2)));
    assert_eq!(world.events("rank_placed").len(), 1);
}

#[test]
fn a_replaying_set_continues() {
    let mut world = World::with_checkpoint();
    world.fails(1, "b", 0);
    world.hello(1, "b", 1);
    world.rank(1, "b", FromRank::Ready {});
    assert_eq!(world.events("set_restarted").len(), 1);
    let mut world = world.failover();
    for (rank, node, incarnation) in [(0, "a", 0), (1, "b", 1), (2, "c", 0)] {
        world.connects(rank, node, incarnation);
    }
    assert_eq!(world.events("failover_completed")[0]["rolled_back"], json!([1]));
    assert!(world.events("set_rollback").is_empty());
    world.rank(1, "b", FromRank::ReplayComplete {});
    assert_eq!(world.events("replay_completed").len(), 1);
}

/// The first coordinator may have been killed before its message was sent to all.
#[test]
fn endpoints_of_a_replaying_set_are_sent_once_more() {
    let endpoints = |world: &World, rank| {
        let is = |message: &&ToNode| {
            let of_1 = vec![PeerId(1)];
            matches!(message, ToNode::Rank { message: ToRank::Endpoints { restarted, .. }, .. }
                if *restarted == of_1)
        };
        world.sent(rank).into_iter().filter(is).count()
    };
    let mut world = World::with_checkpoint();
    world.fails(1, "b", 0);
    world.hello(1, "b", 1);
    world.rank(1, "b", FromRank::Ready {});
    assert_eq!((0..3).map(|rank| endpoints(&world, rank)).collect::<Vec<_>>(), [1, 1, 1]);
    let mut world = world.failover();
    for (rank, node, incarnation) in [(0, "a", 0), (1, "b", 1), (2, "c", 0)] {
        world.connects(rank, node, incarnation);
    }
    assert_eq!((0..3).map(|rank| endpoints(&world, rank)).collect::<Vec<_>>(), [1, 1, 1]);
}

/// A process that waits for endpoints of its own would take these for them.
#[test]
fn a_rank_that_is_being_restored_gets_no_endpoints_of_others_too_early() {
    let mut world = World::with_checkpoint();
    world.fails(1, "b", 0);
    world.hello(1, "b", 1);
    world.rank(1, "b", FromRank::Ready {});
    world.fails(2, "c", 0);
    let mut world = world.failover();
    world.connects(0, "a", 0);
    world.connects(1, "b", 1);
    world.guardian(2, "c", 1);
    world.hello(2, "c", 1);
    assert_eq!(world.events("failover_completed").len(), 1);
    let is = |message: &&ToNode| {
        matches!(message, ToNode::Rank { message: ToRank::Endpoints { .. }, .. })
    };
    assert_eq!(world.sent(2).into_iter().filter(is).count(), 0);
    assert_eq!(world.sent(0).into_iter().filter(is).count(), 1);
}

/// docs/adr/0016: without a rollback, and in each coordinator.
#[test]
fn a_global_checkpoint_that_a_rank_refuses_is_taken_when_its_replay_is_complete() {
    for killed in [false, true] {
        let mut world = World::with_checkpoint();
        world.mpirun("checkpoint stay");
        let checkpoint = CheckpointId(2);
        world.rank(2, "c", FromRank::ReplayPending { checkpoint });
        assert_eq!(world.events("checkpoint_aborted")[0]["retried"], true);
        if killed {
            // It is requested again by whoever needs it; nobody is waited for.
            world = world.failover();
            for (rank, node) in (0..).zip(NODES) {
                world.connects(rank, node, 0);
            }
            world.mpirun("checkpoint stay");
            assert_eq!(world.events("checkpoint_started").len(), 1);
            continue;
        }
        world.now += 60_000;
        world.job.tick(world.now);
        world.poll();
        assert_eq!(world.events("checkpoint_started").len(), 1, "only the one that was refused");
        world.rank(2, "c", FromRank::ReplayComplete {});
        assert_eq!(world.events("checkpoint_started").len(), 2);
    }
}

#[test]
fn numbers_of_checkpoints_continue_and_what_is_left_of_one_is_removed() {
    let mut world = World::with_checkpoint();
    world.mpirun("checkpoint stay");
    assert_eq!(world.events("checkpoint_started")[0]["checkpoint"], 2);
    let mut world = world.failover();
    for (rank, node) in (0..).zip(NODES) {
        world.connects(rank, node, 0);
    }
    let cleared = |effect: &Effect| {
        matches!(
            effect,
            Effect::SendNode(_, ToNode::DeleteCheckpoint { checkpoint: CheckpointId(2), .. })
        )
    };
    assert_eq!(world.effects.iter().filter(|effect| cleared(effect)).count(), 3);
    world.mpirun("checkpoint stay");
    assert_eq!(world.events("checkpoint_started")[0]["checkpoint"], 3);
    world.take_checkpoint(3);
    assert_eq!(world.events("checkpoint_completed").len(), 1);
}

#[test]
fn who_does_not_connect_is_named() {
    let mut world = World::with_checkpoint().failover();
    world.connects(0, "a", 0);
    world.job.tick(PATIENCE_MS - 1);
    world.poll();
    assert!(world.events("failover_incomplete").is_empty());
    world.job.tick(PATIENCE_MS);
    world.job.tick(PATIENCE_MS + 1);
    world.poll();
    assert_eq!(world.events("failover_incomplete")[0]["missing"], json!([1, 2]));
    let notified = |effect: &Effect| match effect {
        Effect::NotifyUser(text) => Some(text.contains("rank 1 on b, rank 2 on c did not connect")),
        _ => None,
    };
    assert_eq!(world.effects.iter().filter_map(notified).collect::<Vec<_>>(), [true], "once");
    world.connects(1, "b", 0);
    world.connects(2, "c", 0);
    assert_eq!(world.events("failover_completed").len(), 1, "late is not never");

    let mut world = World::with_checkpoint().failover();
    world.mpirun("lost b");
    world.connects(0, "a", 0);
    world.job.tick(PATIENCE_MS);
    world.poll();
    let orders = world.to_mpirun();
    assert!(orders.len() == 1 && orders[0].starts_with("fail"), "{orders:?}");
    assert!(orders[0].contains("rank 2 on c") && orders[0].contains("lost b"), "{orders:?}");
}

#[test]
fn who_may_leave_mpi_finalize_is_notified_again_and_a_job_that_was_starting_starts() {
    let mut world = World::with_checkpoint();
    for (rank, node) in (0..).zip(NODES) {
        world.rank(rank, node, FromRank::Finishing {});
    }
    let mut world = world.failover();
    world.connects(2, "c", 0);
    let may =
        |message: &&ToNode| matches!(message, ToNode::Rank { message: ToRank::MayFinish {}, .. });
    assert_eq!(world.sent(2).into_iter().filter(may).count(), 1);
    assert!(world.job.awaited().is_none(), "the others may have ended");

    let mut world = World::empty();
    world.connects(0, "a", 0);
    let mut world = world.failover();
    for (rank, node) in (0..).zip(NODES) {
        world.connects(rank, node, 0);
    }
    assert_eq!(world.events("ready").len(), 1);
    assert_eq!(world.events("failover_completed").len(), 1);
    assert_eq!(world.events("checkpoint_started")[0]["checkpoint"], 1);
}

#[test]
fn a_state_of_another_version_is_refused() {
    let state = PersistedState { format: FORMAT + 1, ..World::with_checkpoint().job.state() };
    assert!(World::empty().job.resume(0, state).unwrap_err().contains("format"));
}

/// Who was asked by the coordinator before may have answered that one, or nobody.
#[test]
fn what_others_have_received_of_a_set_in_rollback_is_asked_again() {
    let asked = |world: &World, rank| {
        let call = |message: &ToNode| match message {
            ToNode::Rank { message: ToRank::Fence { set, before }, .. } => Some((set.0, before.0)),
            _ => None,
        };
        world.sent(rank).into_iter().filter_map(call).collect::<Vec<_>>()
    };
    let rollback = |world: &World| {
        let is = |message: &&ToNode| {
            matches!(message, ToNode::Rank { message: ToRank::Replay { .. }, .. })
        };
        world.sent(1).into_iter().filter(is).count()
    };
    let mut world = World::with_checkpoint();
    world.answers = false;
    world.fails(1, "b", 0);
    world.fenced(0, 1, 1, 0);
    world.hello(1, "b", 1);
    let mut world = world.failover();
    world.connects(0, "a", 0);
    world.guardian(1, "b", 1);
    world.hello(1, "b", 1);
    assert_eq!(asked(&world, 0), [], "not all have connected");
    world.connects(2, "c", 0);
    assert_eq!((asked(&world, 0), asked(&world, 2)), (vec![(1, 2)], vec![(1, 2)]));
    world.hello(1, "b", 2);
    // Late, to the one before.
    world.fenced(2, 1, 1, 0);
    world.fenced(0, 1, 2, 0);
    assert_eq!(rollback(&world), 0);
    world.fenced(2, 1, 2, 0);
    assert_eq!(rollback(&world), 1);
}

/// The clocks of its snapshots, and with them what they depend on, are not known any more.
#[test]
fn a_checkpoint_that_was_under_way_is_never_complete() {
    let mut world = World::with_checkpoint();
    world.mpirun("checkpoint stay");
    let mut world = world.failover();
    world.take_checkpoint(2);
    for (rank, node) in (0..).zip(NODES) {
        world.connects(rank, node, 0);
    }
    world.take_checkpoint(2);
    assert!(world.events("checkpoint_completed").is_empty());
}
