//! Rank 1 on node b has piggybacked something to rank 2 on node c, and rank 0 depends on it.

use crate::coordinator::job::test_world::{NODES, World};
use rustbtl_coordination::control::FromRank;
use rustbtl_coordination::determinants::{PiggybackedPlaces, rank_batch};
use rustbtl_fragments::ids::{Incarnation, SetId};

const FIRST: Incarnation = Incarnation(0);

/// Rank 0 has received a message of rank 2 that names what rank 1 had recorded.
fn depends(world: &mut World) {
    let mut bytes = Vec::new();
    let places = PiggybackedPlaces { set: SetId(1), incarnation: FIRST, upto: 1 };
    rank_batch::append_name(&mut bytes, 0, &places);
    world.rank(0, NODES[0], FromRank::Determinants { incarnation: FIRST, from: 0, bytes });
}

/// It does, and rank 1 fails.
fn fails() -> World {
    let mut world = World::with_checkpoint();
    world.answers = false;
    depends(&mut world);
    world.fails(1, "b", 0);
    world
}

#[test]
fn rule_1_if_all_who_had_it_fail_together_all_are_rolled_back() {
    let mut world = fails();
    world.fails(2, "c", 0);
    assert_eq!(world.events("orphan").len(), 0, "rank 0 has not answered");
    world.fenced(0, 1, 1, 1);
    assert_eq!(world.events("orphan")[0]["lost_set"], 1);
    assert_eq!(world.events("global_rollback").len(), 1);
    let notices = world.notices();
    let wanted = "set 0 has received messages that depend on what set 1 had recorded";
    assert!(notices.iter().any(|notice| notice.starts_with(wanted)), "{notices:?}");
    assert_eq!(world.to_mpirun(), Vec::<String>::new());
}

#[test]
fn rule_1_also_if_a_set_has_a_younger_checkpoint_of_its_own() {
    let mut world = World::with_checkpoint();
    world.answers = false;
    world.take_set_checkpoint(2, 2);
    depends(&mut world);
    world.fails(1, "b", 0);
    world.fails(2, "c", 0);
    world.fenced(0, 1, 1, 1);
    let rolled_back = world.events("global_rollback");
    assert_eq!(rolled_back.len(), 1, "nodes have kept the images of all");
    assert_eq!(rolled_back[0]["checkpoint"], 1);
    assert_eq!(world.to_mpirun(), Vec::<String>::new());
}

#[test]
fn rule_2_one_is_enough() {
    let mut world = fails();
    world.fails(2, "c", 0);
    world.fenced(0, 1, 1, 1);
    let before = world.events("global_rollback").len();
    world.fenced(0, 2, 1, 1);
    assert_eq!(world.events("global_rollback").len(), before);
}

#[test]
fn as_long_as_one_has_it_only_the_failed_one_is_rolled_back() {
    let mut world = fails();
    world.fenced(0, 1, 1, 1);
    world.fenced(2, 1, 1, 1);
    assert_eq!((world.events("orphan").len(), world.events("global_rollback").len()), (0, 0));
}
