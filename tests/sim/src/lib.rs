//! Deterministic simulation of the message engine: whole jobs, one seed each.
//!
//! [`options::Options`] holds what a seed stands for. [`world::World`] runs it; the checkers are
//! [`model`] (what MPI says) and the assertions of `process.rs` and `world.rs`. `DESIGN.md` in this
//! folder has more.
#![forbid(unsafe_code)]

pub mod checkpoints;
pub mod decoder;
pub mod determinants;
pub mod faults;
pub mod host;
pub mod image;
pub mod model;
pub mod network;
pub mod nondet_calls;
pub mod options;
pub mod piggyback;
pub mod piggyback_share;
pub mod process;
pub mod replay_model;
pub mod run;
pub mod script;
pub mod windows;
pub mod world;
