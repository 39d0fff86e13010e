//! Jobs with windows in one thread: random programs, schedules, checkpoints and failures from a
//! seed. Programs without races must give what a sequential run gives; in all of them a process
//! that was rolled back says again what others have of it, and counters are linearizable. Bugs that
//! are planted must be found.
//!
//!     cargo test -p rustbtl-rma --test simulation
//!     RUSTBTL_SIM_SEEDS=100000 cargo test -p rustbtl-rma --test simulation
//!     RUSTBTL_SIM_SEED=53 cargo test -p rustbtl-rma --test simulation ordered

mod cells;
mod model;
mod neighbours;
mod planted;
mod process;
mod script;
mod sharing;
mod world;

use planted::Planted;
use rustbtl_seeds::{all_caught, fails, is_one_seed, run_seeds};
use world::{Report, World};

/// All seeds pass, and what they are for happens.
fn run_many(is_free: bool, usual: u64) -> Report {
    let mut sum = Report::default();
    let again =
        format!("-p rustbtl-rma --test simulation {}", if is_free { "free" } else { "ordered" });
    let run = |seed| World::new(seed, is_free, None).run();
    run_seeds(usual, &again, run, |report: Report| {
        sum.failures += report.failures;
        sum.during_replay += report.during_replay;
        sum.checkpoints += report.checkpoints;
        sum.determinants += report.determinants;
        sum.forced += report.forced;
        sum.suppressed += report.suppressed;
        sum.old_frames += report.old_frames;
        sum.atomics += report.atomics;
        sum.kept_in_image += report.kept_in_image;
        sum.direct += report.direct;
    });
    eprintln!("{sum:?}");
    sum
}

#[test]
fn ordered_programs_give_the_sequential_result() {
    let sum = run_many(false, 2000);
    if !is_one_seed() {
        for what in [
            sum.failures,
            sum.during_replay,
            sum.checkpoints,
            sum.forced,
            sum.suppressed,
            sum.old_frames,
            sum.atomics,
            sum.kept_in_image,
            sum.direct,
        ] {
            assert!(what > 100, "too rare: {sum:?}");
        }
    }
}

#[test]
fn free_programs_replay_what_others_have_seen() {
    let sum = run_many(true, 2000);
    if !is_one_seed() {
        assert!(sum.forced > 1000 && sum.during_replay > 100, "too rare: {sum:?}");
    }
}

#[test]
fn planted_bugs_are_found() {
    use Planted::*;
    let plan = [
        (Order, true, 56),
        (Order, false, 5),
        (Tick, true, 7),
        (CompletesEarly, true, 42),
        (NoWithholding, true, 2),
        (WithholdsAlone, true, 389),
        (Tick, false, 5),
        (CompletesEarly, false, 556),
        (WaitsUnheld, false, 4235),
        (NoEpochs, false, 6),
        (TrimsEarly, false, 8),
        (RepliesNotLogged, false, 1),
        (GateOpen, true, 3),
        (RecordsLate, true, 13),
        (Duplicates, false, 0),
        (OldFrames, true, 12),
        (TornImage, false, 79),
        (GroupLeftOpen, true, 37),
        (GroupLeftOpen, false, 10),
        (AreaLeftOut, true, 36),
        (AreaLeftOut, false, 32),
        (OldTick, true, 7),
        (OldTick, false, 5),
        (BatchesInReplay, true, 735),
        (BatchesInReplay, false, 1196),
        (LocksStand, false, 836),
    ];
    let plan = plan.map(|(planted, is_free, last)| ((planted, is_free), last, 4000));
    all_caught(plan, |(planted, is_free), seed| {
        let run = |planted| fails(|| World::new(seed, is_free, planted).run());
        run(Some(planted)) && !run(None)
    });
}
