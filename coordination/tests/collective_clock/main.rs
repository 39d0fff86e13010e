//! Jobs in one thread that do nothing but collectives and messages, and checkpoints amid them:
//! random programs, schedules, aborts and restarts from a seed. The library below loses all its
//! state in a restart; programs must see what they see without checkpoints. Bugs that are planted
//! must be found.
//!
//!     cargo test -p rustbtl-coordination --test collective_clock
//!     RUSTBTL_SIM_SEEDS=100000 cargo test -p rustbtl-coordination --test collective_clock random
//!     RUSTBTL_SIM_SEED=53 cargo test -p rustbtl-coordination --test collective_clock random

mod library;
mod named;
mod program;
mod world;

use program::Program;
use rustbtl_seeds::{Prng, SALT, all_caught, asked_seeds, fails, is_one_seed, mix, run_seeds};
use world::{Options, Planted, Report, World};

/// The random numbers of a seed.
pub fn prng_of(seed: u64) -> Prng {
    Prng::from_state((seed ^ SALT).wrapping_add(12345))
}

/// What the ranks of a program see where nobody takes checkpoints.
pub fn undisturbed(program: &Program) -> Vec<u64> {
    let options =
        Options { planted: None, checkpoints: 0, aborts: 0, idup_counts: false, timeout: None };
    World::new(program.clone(), 1, options).run()
}

fn run(seed: u64, planted: Option<Planted>) -> Report {
    let program = program::random(seed);
    let expected = undisturbed(&program);
    let options = Options {
        planted,
        checkpoints: 1 + (seed % 5) as usize,
        aborts: if seed.is_multiple_of(3) { 5 } else { 0 },
        idup_counts: seed.is_multiple_of(2),
        timeout: seed.is_multiple_of(7).then_some(3 + seed % 60),
    };
    let mut world = World::new(program, mix(seed, 7), options);
    assert_eq!(world.run(), expected, "ranks see something else than without checkpoints");
    world.report
}

/// All seeds pass, and what they are for happens.
#[test]
fn random_programs_see_what_they_see_without_checkpoints() {
    let mut sum = Report::default();
    let again = "-p rustbtl-coordination --test collective_clock random";
    run_seeds(5000, again, |seed| run(seed, None), |report: Report| sum.add(&report));
    eprintln!("{sum:?}");
    if !is_one_seed() {
        let often = [sum.snapshots, sum.restarts, sum.aborts, sum.stops, sum.raises, sum.joined];
        assert!(often.iter().all(|&count| count > 100), "too rare: {sum:?}");
        let seldom = [sum.lifts, sum.refused, sum.failed, sum.began_while_held, sum.late];
        assert!(seldom.iter().all(|&count| count > 0), "too rare: {sum:?}");
    }
}

/// Each is found at the seed where it was found last, or at another. With RUSTBTL_SIM_SEEDS: how
/// many of these find it.
#[test]
fn planted_bugs_are_found() {
    use Planted::*;
    let plan = [
        (TargetNotRaised, 8),
        (CountedAtLeaving, 4),
        (NoMembership, 0),
        (SharedBySimilar, 3),
        (SnapshotEarly, 3),
        (NonblockingNotCompleted, 3),
        (LiftForgotten, 74),
        (WaitsNotReported, 74),
        (StaleState, 11),
        (NestedStopped, 2),
        (ReleaseForgotten, 0),
        (RegisteredLate, 53),
    ];
    let finds = |planted, seed| fails(|| run(seed, Some(planted)));
    for (planted, _) in plan {
        if let Some(count) = asked_seeds() {
            let found = (0..count).filter(|&seed| finds(planted, seed)).count();
            eprintln!("{planted:?}: {found} of {count} seeds");
        }
    }
    all_caught(plan.map(|(planted, last)| (planted, last, 4000)), finds);
}
