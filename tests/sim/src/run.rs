//! Running seeds: one, or many; what a failure prints.

use crate::options::{Options, Planted, Tier};
use crate::world::{Report, World};
use std::panic::{self, AssertUnwindSafe, catch_unwind};

/// Run one seed and check it. Where results must repeat, they are compared with those of the same
/// program without faults.
pub fn run(options: &Options) -> Report {
    let report = World::new(options, 0).run();
    if options.repeatable && report.faults != [0; 3] {
        let calm = World::new(&options.without_faults(), 1).run();
        for (rank, (got, want)) in report.results.iter().zip(&calm.results).enumerate() {
            assert!(got == want, "results of rank {rank} differ from a run without faults");
        }
    }
    report
}

/// Run a seed; false and a command line that runs it again, if it fails.
pub fn passes(tier: Tier, seed: u64) -> bool {
    let ran = catch_unwind(AssertUnwindSafe(|| run(&Options::of(tier, seed))));
    if ran.is_err() {
        let test = format!("{tier:?}").to_lowercase();
        eprintln!("failed; again: RUSTBTL_SIM_SEED={seed} cargo test -p rustbtl-sim {test}");
    }
    ran.is_ok()
}

/// The seeds that the environment asks for, or the first `usual`.
pub fn seeds(usual: u64) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    if let Some(seed) = number("RUSTBTL_SIM_SEED") {
        return vec![seed];
    }
    (0..number("RUSTBTL_SIM_SEEDS").unwrap_or(usual)).collect()
}

/// Run many seeds of a tier; panics at the third that fails.
pub fn run_many(tier: Tier, usual: u64) {
    let mut failed = Vec::new();
    for seed in seeds(usual) {
        if !passes(tier, seed) {
            failed.push(seed);
        }
        assert!(failed.len() < 3, "{tier:?}: seeds {failed:?} failed");
    }
    assert!(failed.is_empty(), "{tier:?}: seeds {failed:?} failed");
}

/// A seed at which a planted bug is caught, and nothing without it: `last`, where it was caught
/// last, if it still is, else the first of `seeds`. Searches spend their time on seeds at which
/// nothing happens.
pub fn caught(planted: Planted, tier: Tier, last: u64, seeds: u64) -> Option<u64> {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let first = std::iter::once(last).chain(0..seeds).find(|&seed| {
        let sound = Options::of(tier, seed);
        let sound = Options { method: planted.method().unwrap_or(sound.method), ..sound };
        let options = Options { planted: Some(planted), ..sound.clone() };
        let fails = |options: &Options| catch_unwind(AssertUnwindSafe(|| run(options))).is_err();
        fails(&options) && !fails(&sound)
    });
    panic::set_hook(usual);
    first
}

/// Each bug of a plan (tier, a seed at which it was caught, how many seeds to search) is caught.
pub fn all_caught(plan: &[(Planted, Tier, u64, u64)]) {
    let mut missed = Vec::new();
    for &(planted, tier, last, seeds) in plan {
        match caught(planted, tier, last, seeds) {
            Some(seed) if seed == last => eprintln!("{planted:?}: caught at seed {seed}"),
            Some(seed) => {
                eprintln!("{planted:?}: caught at seed {seed} of {tier:?}, no longer at {last}");
            }
            None => missed.push(planted),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
