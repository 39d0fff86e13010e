//! Parts and names, with a job of three ranks.

use crate::coordinator::job::state::Effect;
use crate::coordinator::job::test_world::{NODES, World};
use rustbtl_coordination::control::{CheckpointId, FromRank, ReplayBlocker, ToNode, ToRank};
use rustbtl_coordination::verbs_drain::{MADE, NAME_BYTES_MAX, PART_BYTES_MAX, bytes_max};
use rustbtl_fragments::ids::PeerId;

fn part(world: &mut World, rank: u32, checkpoint: u64) {
    let checkpoint = CheckpointId(checkpoint);
    let message = FromRank::VerbsPart { checkpoint, step: 0, part: vec![rank as u8] };
    world.rank(rank, NODES[rank as usize], message);
}

/// Pieces of all parts, and whether they are the last ones, that all ranks were sent.
fn parts(world: &World) -> Vec<(Vec<Vec<u8>>, bool)> {
    let of = |effect: &Effect| match effect {
        Effect::SendAll(ToNode::AllRanks {
            message: ToRank::VerbsParts { parts, is_last, .. },
        }) => Some((parts.iter().map(|part| part.part.clone()).collect(), *is_last)),
        _ => None,
    };
    world.effects.iter().filter_map(of).collect()
}

fn found(world: &World, rank: u32) -> Vec<Vec<u8>> {
    let of = |message: &ToNode| match message {
        ToNode::Rank { message: ToRank::VerbsNameFound { value, .. }, .. } => Some(value.clone()),
        _ => None,
    };
    world.sent(rank).into_iter().filter_map(of).collect()
}

#[test]
fn each_rank_gets_the_parts_of_all() {
    let mut world = World::of_sets([0, 1, 2]);
    part(&mut world, 0, 1);
    part(&mut world, 2, 1);
    assert!(parts(&world).is_empty());
    part(&mut world, 1, 1);
    assert_eq!(parts(&world), [(vec![vec![0], vec![1], vec![2]], true)]);
}

#[test]
fn names_and_parts_of_before_a_global_rollback_are_forgotten() {
    let mut world = World::with_checkpoint();
    let (name, generation) = (vec![7], 1);
    let publish = FromRank::VerbsName { name: name.clone(), generation, value: vec![9] };
    let find = FromRank::FindVerbsName { number: 1, name, generation };
    world.rank(0, NODES[0], publish.clone());
    world.rank(1, NODES[1], find.clone());
    assert_eq!(found(&world, 1), [[9]]);
    part(&mut world, 0, 2);
    let reason = "verbs".to_owned();
    let blocker = ReplayBlocker::Others;
    world.rank(2, NODES[2], FromRank::NotReplayable { reason, blocker });
    world.job.roll_back_all(world.now, "a test", None).unwrap();
    world.poll();
    world.effects.clear();
    // Of the incarnation that is being ended.
    world.rank(0, NODES[0], publish);
    part(&mut world, 1, 2);
    part(&mut world, 2, 2);
    assert!(parts(&world).is_empty());
    world.job.find_verbs_name(PeerId(1), 1, &[7], 1);
    world.poll();
    assert_eq!(found(&world, 1), [Vec::<u8>::new()]);
}

/// A job whose first checkpoint is being drained.
fn draining() -> World {
    let world = World::of_sets([0, 1, 2]);
    assert_eq!(world.events("checkpoint_started").len(), 1);
    world
}

fn long_part(world: &mut World, rank: u32, step: u32, bytes: usize) {
    let (checkpoint, part) = (CheckpointId(1), vec![rank as u8; bytes]);
    world.rank(rank, NODES[rank as usize], FromRank::VerbsPart { checkpoint, step, part });
}

fn aborts(world: &World, rank: u32) -> Vec<String> {
    let of = |message: &ToNode| match message {
        ToNode::Rank { message: ToRank::Abort { reason, .. }, .. } => Some(reason.clone()),
        _ => None,
    };
    world.sent(rank).into_iter().filter_map(of).collect()
}

#[test]
fn long_parts_are_sent_in_pieces() {
    let mut world = draining();
    let bytes = [3 << 20, 1, 3 << 20];
    for (rank, bytes) in (0..).zip(bytes) {
        long_part(&mut world, rank, 0, bytes);
    }
    let (pieces, ends): (Vec<_>, Vec<bool>) = parts(&world).into_iter().unzip();
    assert!(pieces.into_iter().flatten().map(|part| part.len()).eq(bytes));
    assert_eq!(ends, [false, false, true]);
}

#[test]
fn a_checkpoint_whose_parts_are_too_long_is_given_up_and_the_rank_is_named() {
    for together in [false, true] {
        let mut world = draining();
        match together {
            false => long_part(&mut world, 1, 0, PART_BYTES_MAX + 1),
            true => {
                // As if more ranks had given as much as is possible.
                let exchange = &mut world.job.verbs.exchange;
                for rank in 10..18 {
                    let (rank, part) = (PeerId(rank), vec![0; bytes_max(0) / 8]);
                    exchange.give((1, 0), rank, part, (99, bytes_max(0))).unwrap();
                }
                long_part(&mut world, 1, 0, 1);
            }
        }
        for rank in 0..3 {
            let [reason] = &aborts(&world, rank)[..] else { panic!("not given up") };
            let names = reason.contains("rank 1 on b");
            assert!(names && reason.contains("too many connections"), "{reason}");
        }
        assert!(parts(&world).is_empty());
        assert!(world.to_mpirun().is_empty());
        // Nothing of it is kept.
        assert_eq!(world.job.verbs.exchange.bytes(), 0);
    }
}

#[test]
fn a_restore_whose_parts_are_too_long_ends_the_job_and_names_the_rank() {
    let mut world = draining();
    long_part(&mut world, 2, MADE, PART_BYTES_MAX + 1);
    let orders = world.to_mpirun().join(" ");
    assert!(orders.contains("after the restart") && orders.contains("rank 2 on c"), "{orders}");
}

#[test]
fn a_name_that_is_too_long_ends_the_job_and_names_the_rank() {
    let mut world = draining();
    let (name, value) = (vec![0; NAME_BYTES_MAX + 1], Vec::new());
    world.rank(1, NODES[1], FromRank::VerbsName { name, generation: 0, value });
    let orders = world.to_mpirun().join(" ");
    assert!(orders.contains("rank 1 on b: a name of its verbs has 65 bytes"), "{orders}");
}

#[test]
fn parts_are_forgotten_when_all_have_drained() {
    let mut world = draining();
    long_part(&mut world, 0, 0, 5);
    assert_eq!(world.job.verbs.exchange.bytes(), 5);
    world.take_checkpoint(1);
    assert_eq!(world.events("checkpoint_completed").len(), 1);
    assert_eq!(world.job.verbs.exchange.bytes(), 0);
}

/// After a failover guardians repeat names one after the other.
#[test]
fn nobody_is_told_that_there_is_no_such_name_before_all_have_said_theirs() {
    let mut world = World::with_checkpoint().failover();
    let name =
        |name: u8| FromRank::VerbsName { name: vec![name], generation: 1, value: vec![name] };
    let find = |name: u8| FromRank::FindVerbsName { number: 1, name: vec![name], generation: 1 };
    world.connects(0, NODES[0], 0);
    world.rank(0, NODES[0], name(7));
    world.connects(1, NODES[1], 0);
    world.rank(1, NODES[1], find(7));
    world.rank(1, NODES[1], find(8));
    assert_eq!(found(&world, 1), [[7]]);
    world.connects(2, NODES[2], 0);
    world.rank(2, NODES[2], name(8));
    world.rank(1, NODES[1], find(8));
    world.rank(1, NODES[1], find(9));
    assert_eq!(found(&world, 1), [vec![7], vec![8], vec![]]);
}

/// One set over all ranks is rolled back as a set.
#[test]
fn names_and_parts_are_forgotten_where_one_set_is_the_whole_job() {
    let mut world = World::with_checkpoint_of([0, 0, 0]);
    let publish = FromRank::VerbsName { name: vec![7], generation: 1, value: vec![9] };
    world.rank(0, NODES[0], publish);
    let (checkpoint, part) = (CheckpointId(2), vec![1]);
    world.rank(0, NODES[0], FromRank::VerbsPart { checkpoint, step: 0, part });
    assert_eq!(world.job.verbs.exchange.bytes(), 1);
    world.fails(1, NODES[1], 0);
    assert_eq!(world.events("set_rollback").len(), 1);
    assert!(world.events("global_rollback").is_empty());
    assert_eq!(world.job.verbs.exchange.bytes(), 0);
    world.job.find_verbs_name(PeerId(2), 1, &[7], 1);
    world.poll();
    assert_eq!(found(&world, 2), [Vec::<u8>::new()]);
}
