//! Rank 1 on node b fails, is rolled back alone and diverges.

use crate::coordinator::job::rules::rollback::FAILURES_MAX;
use crate::coordinator::job::test_world::{NODES, World};
use rustbtl_coordination::control::{FromRank, ToNode, ToRank};
use rustbtl_fragments::ids::PeerId;

const PROBLEM: &str = "replay diverges at determinant 5: recorded was Test, now it does Wait";

fn diverges(world: &mut World, by: u32, of: u32) {
    let node = NODES[by as usize];
    world.rank(by, node, FromRank::Diverged { rank: PeerId(of), problem: PROBLEM.into() });
}

/// It is replaying.
fn replaying() -> World {
    let mut world = World::with_checkpoint();
    world.fails(1, "b", 0);
    world.hello(1, "b", 1);
    world.rank(1, "b", FromRank::Ready {});
    assert_eq!(world.events("set_restarted").len(), 1);
    world.effects.clear();
    world
}

/// All run again in this incarnation.
fn all_run_again(world: &mut World, incarnation: u16) {
    for (rank, node) in (0..).zip(NODES) {
        world.hello(rank, node, incarnation);
    }
    for (rank, node) in (0..).zip(NODES) {
        world.rank(rank, node, FromRank::Ready {});
    }
}

#[test]
fn rule_1_all_are_rolled_back_and_the_user_reads_who_did_what() {
    // Its own calls, or a message that another one has received before.
    for by in [1, 0] {
        let mut world = replaying();
        diverges(&mut world, by, 1);
        assert_eq!(world.events("replay_diverged")[0]["reported_by"], by);
        assert_eq!(world.events("global_rollback")[0]["checkpoint"], 1);
        assert_eq!(world.events("set_rollback").len(), 3);
        let notices = world.notices();
        let wanted = format!("rank 1 on b did not repeat what it had done: {PROBLEM}; all ranks");
        assert!(notices.len() == 1 && notices[0].starts_with(&wanted), "{notices:?}");
        assert_eq!(world.to_mpirun(), Vec::<String>::new());
        all_run_again(&mut world, 2);
        assert_eq!(world.events("replay_completed").len(), 3);
        // Nothing is replayed.
        let replay = |message: &&&ToNode| {
            matches!(message, ToNode::Rank { message: ToRank::Replay { bytes, .. }, .. }
                if !bytes.is_empty())
        };
        let recorded = world.sent(1).iter().filter(replay).count();
        assert!(recorded <= 1, "{recorded}");
    }
}

#[test]
fn rule_2_its_set_is_not_rolled_back_alone_any_more_also_after_a_failover() {
    for with_failover in [false, true] {
        let mut world = replaying();
        diverges(&mut world, 1, 1);
        all_run_again(&mut world, 2);
        if with_failover {
            world = world.failover();
            for (rank, node) in (0..).zip(NODES) {
                world.connects(rank, node, 2);
            }
        }
        world.effects.clear();
        world.fails(1, "b", 2);
        assert_eq!(world.events("global_rollback").len(), 1);
        let why = world.events("global_rollback")[0]["why"].to_string();
        assert!(why.contains("set 1 is not rolled back alone: rank 1 on b did not"), "{why}");
        all_run_again(&mut world, 3);
        world.effects.clear();
        // Others are.
        world.fails(2, "c", 3);
        assert_eq!(world.events("global_rollback").len(), 0);
        assert_eq!(world.events("set_rollback").len(), 1);
    }
}

#[test]
fn rule_2_holds_where_the_set_is_the_whole_job() {
    let mut world = World::with_checkpoint_of([0, 0, 0]);
    world.fails(1, "b", 0);
    all_run_again(&mut world, 1);
    world.effects.clear();
    diverges(&mut world, 1, 1);
    assert_eq!(world.events("global_rollback").len(), 1);
    all_run_again(&mut world, 2);
    world.effects.clear();
    world.fails(0, "a", 2);
    assert_eq!(world.events("global_rollback").len(), 1);
}

#[test]
fn rule_3_reports_of_those_that_are_being_rolled_back_begin_nothing() {
    let mut world = replaying();
    diverges(&mut world, 1, 1);
    diverges(&mut world, 0, 1);
    diverges(&mut world, 2, 1);
    assert_eq!(world.events("replay_diverged").len(), 3);
    assert_eq!(world.events("global_rollback").len(), 1);
}

#[test]
fn if_not_all_can_be_rolled_back_the_job_ends_with_the_reason() {
    let mut world = replaying();
    world.job.recovery.global_rollbacks.1 = FAILURES_MAX;
    world.job.recovery.global_rollbacks.0 = rustbtl_coordination::control::CheckpointId(1);
    diverges(&mut world, 1, 1);
    let orders = world.to_mpirun();
    let wanted = "fail rank 1 on b did not repeat what it had done: replay diverges";
    assert!(orders.len() == 1 && orders[0].starts_with(wanted), "{orders:?}");
    assert!(orders[0].contains("There is nothing to restart the job from"), "{orders:?}");
}

#[test]
fn during_a_failover_it_waits_until_all_have_connected() {
    let mut world = replaying().failover();
    world.connects(1, "b", 1);
    diverges(&mut world, 1, 1);
    assert!(world.events("replay_diverged").is_empty());
    world.connects(0, "a", 0);
    world.connects(2, "c", 0);
    assert_eq!(world.events("replay_diverged").len(), 1);
    assert_eq!(world.events("global_rollback").len(), 1);
}
