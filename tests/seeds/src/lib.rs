//! What simulations share: random numbers from a seed, and running many seeds.
//!
//! `RUSTBTL_SIM_SEEDS=N` runs so many, `RUSTBTL_SIM_SEED=S` just one, which a failure prints. Bugs
//! that are planted are tried first at the seed where they were caught last.
#![forbid(unsafe_code)]

mod prng;
mod run;

pub use prng::{Prng, SALT, mix, mix_bytes};
pub use run::{all_caught, asked_seeds, fails, is_one_seed, run_seeds, seeds};
