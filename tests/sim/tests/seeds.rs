//! Seeds of each tier, more than 10,000 together. `RUSTBTL_SIM_SEEDS=N` runs more,
//! `RUSTBTL_SIM_SEED=S` just one.

use rustbtl_sim::options::Tier;
use rustbtl_sim::run::run_many;

#[test]
fn calm() {
    run_many(Tier::Calm, 1500);
}

#[test]
fn resets() {
    run_many(Tier::Resets, 1500);
}

#[test]
fn failures() {
    run_many(Tier::Failures, 2000);
}

#[test]
fn checkpoints() {
    run_many(Tier::Checkpoints, 2000);
}

#[test]
fn replay() {
    run_many(Tier::Replay, 2500);
}

#[test]
fn piggyback() {
    run_many(Tier::Piggyback, 2000);
}

#[test]
fn fences() {
    run_many(Tier::Fences, 2000);
}

#[test]
fn chains() {
    run_many(Tier::Chains, 2000);
}
