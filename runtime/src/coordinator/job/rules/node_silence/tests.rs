//! Rank 0 on node a, where mpirun runs, 1 on b, 2 on c. The timeout is 4 s.

use super::*;
use crate::coordinator::job::test_world::World;

fn world() -> World {
    let mut world = World::with_checkpoint();
    world.job.set_mpirun_node("a".into());
    world
}

/// At this time mpirun answers that.
fn quiet(world: &mut World, now: u64, found: &str) {
    world.now = now;
    world.job.beat();
    world.mpirun(&format!("quiet {found}"));
}

/// Orders but the request to measure.
fn orders(world: &World) -> Vec<String> {
    world.to_mpirun().into_iter().filter(|order| order != "measure").collect()
}

#[test]
fn mpirun_is_asked_again_when_it_has_answered() {
    let mut world = world();
    world.job.beat();
    world.job.beat();
    world.poll();
    assert_eq!(world.to_mpirun(), ["measure"]);
    quiet(&mut world, 10, "2 0");
    world.job.beat();
    world.poll();
    assert_eq!(world.to_mpirun(), ["measure", "measure"]);
    for nonsense in ["", "x", "1 2"] {
        quiet(&mut world, 20, nonsense);
    }
    assert_eq!(world.events("protocol_error").len(), 3);
    // One that does not answer is asked from time to time.
    world.effects.clear();
    (0..33).for_each(|_| world.job.beat());
    world.poll();
    assert_eq!(world.events("mpirun_unanswering").len(), 1, "once");
    assert_eq!(world.to_mpirun().len(), 5);
    world.job.config.recover = false;
    world.effects.clear();
    world.job.beat();
    world.poll();
    assert!(world.to_mpirun().is_empty(), "nothing could be recovered");
}

#[test]
fn rule_1_one_silent_node_among_others_has_failed() {
    let mut world = world();
    quiet(&mut world, 10_000, "2 1 17:3999");
    assert_eq!(orders(&world), Vec::<String>::new());
    quiet(&mut world, 10_500, "2 1 17:4000");
    assert_eq!(orders(&world), ["cut 17"]);
    assert_eq!(world.events("node_silent")[0]["ms"], 4000);
    assert!(world.notices().is_empty());
    // mpirun ends the connection, and notices.
    world.mpirun("lost b");
    assert_eq!(world.events("set_rollback").len(), 1);
}

#[test]
fn rule_1_the_timeout_is_the_users() {
    let mut world = world();
    world.job.config.failure_timeout_ms = 30_000;
    quiet(&mut world, 40_000, "2 1 17:29999");
    assert_eq!(orders(&world), Vec::<String>::new());
    quiet(&mut world, 40_500, "2 1 17:30499");
    assert_eq!(orders(&world), ["cut 17"]);
}

#[test]
fn rule_2_if_all_are_silent_nobody_is_given_up_and_the_user_reads_it_once() {
    let mut world = world();
    for (now, found) in [
        (10_000, "2 2 17:4100 18:3900"),
        (10_500, "2 2 17:4600 18:4400"),
        (70_000, "2 2 17:64100 18:63900"),
    ] {
        quiet(&mut world, now, found);
        assert_eq!(orders(&world), Vec::<String>::new(), "{found}");
    }
    let cut = &world.events("network_cut")[0];
    assert_eq!((&cut["node"], &cut["silent"]), (&json!("a"), &json!(["b", "c"])));
    let notices = world.notices();
    assert!(
        notices.len() == 1 && notices[0].contains("(b, c) for 4 s, so a, where"),
        "{notices:?}"
    );
    quiet(&mut world, 71_000, "2 1 18:64900");
    assert_eq!(world.events("network_restored").len(), 1);
    assert!(world.notices()[1].contains("reached again, after 65 s"));
    assert_eq!(world.events("set_rollback").len() + world.events("not_recovered").len(), 0);
}

#[test]
fn rule_2_another_one_that_may_be_silent_soon_is_not_heard() {
    let mut world = world();
    quiet(&mut world, 10_000, "2 2 17:4000 18:2000");
    assert_eq!(orders(&world), Vec::<String>::new());
    // It was, and the first one has failed; after the time of rule 4.
    quiet(&mut world, 10_500, "2 1 17:4500");
    assert_eq!(orders(&world), Vec::<String>::new());
    quiet(&mut world, 19_001, "2 1 17:13001");
    assert_eq!(orders(&world), ["cut 17"]);
}

#[test]
fn rule_3_the_only_other_node_counts_as_failed_unless_there_is_no_carrier_here() {
    let mut world = world();
    quiet(&mut world, 10_000, "1 1 17:4000");
    assert_eq!(orders(&world), ["cut 17"]);

    let mut world = self::world();
    quiet(&mut world, 10_000, "1 1 17:4000!");
    assert_eq!(orders(&world), Vec::<String>::new());
    assert_eq!(world.events("network_cut").len(), 1);
    quiet(&mut world, 90_000, "1 0");
    assert_eq!(world.events("network_restored").len(), 1);
}

#[test]
fn rule_4_after_a_cut_everybody_has_time_to_be_heard() {
    let mut world = world();
    quiet(&mut world, 20_000, "2 2 17:15000 18:15000");
    quiet(&mut world, 21_000, "2 1 17:16000");
    // Until 21 + 4 + 16 s.
    quiet(&mut world, 40_900, "2 1 17:35900");
    assert_eq!(orders(&world), Vec::<String>::new());
    quiet(&mut world, 41_000, "2 1 17:36000");
    assert_eq!(orders(&world), ["cut 17"]);
}

#[test]
fn rule_5_an_ended_connection_is_a_loss_at_once_also_in_a_cut() {
    let mut world = world();
    quiet(&mut world, 20_000, "2 2 17:15000 18:15000");
    world.mpirun("lost b");
    assert_eq!(world.events("node_lost").len(), 1);
    assert_eq!(world.events("set_rollback").len(), 1);
}

#[test]
fn while_it_is_cut_off_agents_that_are_missing_do_not_end_protection() {
    let mut world = world();
    quiet(&mut world, 10_000, "2 2 17:4000 18:4000");
    world.job.agent_gone(10_000, "b", &[rustbtl_fragments::ids::PeerId(1)]);
    for now in [10_001, 100_000] {
        world.job.tick(now);
    }
    world.poll();
    assert!(world.events("protection_disabled").is_empty());
    quiet(&mut world, 100_001, "2 0");
    for now in [100_002, 140_003] {
        world.job.tick(now);
    }
    world.poll();
    assert_eq!(world.events("protection_disabled").len(), 1);
}
