//! Many seeds: those that pass, and bugs that are planted.

use core::fmt::Debug;
use std::panic::{self, AssertUnwindSafe, catch_unwind};

fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// How many seeds the environment asks for.
pub fn asked_seeds() -> Option<u64> {
    asked("RUSTBTL_SIM_SEEDS")
}

/// Does the environment ask for one seed only?
pub fn is_one_seed() -> bool {
    asked("RUSTBTL_SIM_SEED").is_some()
}

/// The seeds that the environment asks for, or the first `usual`.
pub fn seeds(usual: u64) -> Vec<u64> {
    match asked("RUSTBTL_SIM_SEED") {
        Some(seed) => vec![seed],
        None => (0..asked_seeds().unwrap_or(usual)).collect(),
    }
}

/// Does a run panic?
pub fn fails<R>(run: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(run)).is_err()
}

/// Run many seeds, and hand on what they gave. `again`: what follows `cargo test` to run a failing
/// one once more.
///
/// # Panics
/// At the third seed that fails, or at the end if one did.
pub fn run_seeds<R>(usual: u64, again: &str, run: impl Fn(u64) -> R, mut gave: impl FnMut(R)) {
    let mut failed = Vec::new();
    for seed in seeds(usual) {
        match catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(report) => gave(report),
            Err(_) => {
                eprintln!("failed; again: RUSTBTL_SIM_SEED={seed} cargo test {again}");
                failed.push(seed);
            }
        }
        assert!(failed.len() < 3, "{again}: seeds {failed:?} failed");
    }
    assert!(failed.is_empty(), "{again}: seeds {failed:?} failed");
}

/// Each planted bug of a plan (a seed at which it was caught, how many seeds to search) is caught:
/// at that seed, if it still is, else at the first of the others. Searches spend their time on
/// seeds at which nothing happens.
///
/// # Panics
/// If one is not caught.
pub fn all_caught<P: Copy + Debug>(
    plan: impl IntoIterator<Item = (P, u64, u64)>,
    is_caught: impl Fn(P, u64) -> bool,
) {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for (planted, last, seeds) in plan {
        let mut tried = core::iter::once(last).chain(0..seeds);
        match tried.find(|&seed| is_caught(planted, seed)) {
            Some(seed) if seed == last => eprintln!("{planted:?}: caught at seed {seed}"),
            Some(seed) => eprintln!("{planted:?}: caught at seed {seed}, no longer at {last}"),
            None => missed.push(planted),
        }
    }
    panic::set_hook(usual);
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_caught_and_what_fails_is_named() {
        all_caught([(1, 5, 0), (2, 9, 8)], |planted, seed| planted == 1 || seed == 7);
        assert!(fails(|| all_caught([(1, 5, 3)], |_, seed| seed == 3)));
        let mut sum = 0;
        run_seeds(4, "-p some", |seed| seed, |seed| sum += seed);
        assert_eq!(sum, 6);
        assert!(fails(|| run_seeds(4, "-p some", |seed| assert_ne!(seed, 2), |()| {})));
    }
}
