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
mod prng;
mod program;
mod world;

use prng::mix;
use program::Program;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use world::{Options, Planted, Report, World};

/// The environment is the test's, not the machine's.
#[expect(clippy::disallowed_methods, reason = "seeds are chosen by who runs the test")]
fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn seeds(usual: u64) -> Vec<u64> {
    match asked("RUSTBTL_SIM_SEED") {
        Some(seed) => vec![seed],
        None => (0..asked("RUSTBTL_SIM_SEEDS").unwrap_or(usual)).collect(),
    }
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
    let (mut sum, mut failed) = (Report::default(), Vec::new());
    for seed in seeds(5000) {
        match catch_unwind(AssertUnwindSafe(|| run(seed, None))) {
            Ok(report) => sum.add(&report),
            Err(_) => {
                eprintln!(
                    "failed; again: RUSTBTL_SIM_SEED={seed} cargo test -p rustbtl-coordination \
                     --test collective_clock random"
                );
                failed.push(seed);
            }
        }
        assert!(failed.len() < 3, "seeds {failed:?} failed");
    }
    assert!(failed.is_empty(), "seeds {failed:?} failed");
    eprintln!("{sum:?}");
    if asked("RUSTBTL_SIM_SEED").is_none() {
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
        (TargetNotRaised, 14),
        (CountedAtLeaving, 4),
        (NoMembership, 0),
        (SharedBySimilar, 12),
        (SnapshotEarly, 4),
        (NonblockingNotCompleted, 2),
        (LiftForgotten, 74),
        (WaitsNotReported, 74),
        (StaleState, 22),
        (NestedStopped, 1),
        (ReleaseForgotten, 2),
        (RegisteredLate, 53),
    ];
    let usual = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let finds =
        |planted, seed| catch_unwind(AssertUnwindSafe(|| run(seed, Some(planted)))).is_err();
    let mut missed = Vec::new();
    for (planted, last) in plan {
        if let Some(count) = asked("RUSTBTL_SIM_SEEDS") {
            let found = (0..count).filter(|&seed| finds(planted, seed)).count();
            eprintln!("{planted:?}: {found} of {count} seeds");
        }
        let found = std::iter::once(last).chain(0..4000).find(|&seed| finds(planted, seed));
        match found {
            Some(seed) => eprintln!("{planted:?}: found at seed {seed}"),
            None => missed.push(planted),
        }
    }
    panic::set_hook(usual);
    assert!(missed.is_empty(), "not found: {missed:?}");
}
