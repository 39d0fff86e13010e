//! One-sided communication (MPI-3.1 §11) as a machine without I/O: windows, epochs, locks,
//! operations and their replay.
//!
//! An operation is a message of the engine whose receiver is the target's machine: the engine
//! numbers it, logs it, brings it once and in order, and brings it again where a process was rolled
//! back. This crate says what the messages are, when they are applied, what is recorded of that,
//! and what a replay may do. `DESIGN.md` in this folder lists the parts, their invariants and what
//! a driver has to do.
#![forbid(unsafe_code)]

pub mod arithmetic;
pub mod batch;
pub mod direct;
pub mod error;
pub mod ids;
pub mod layout;
pub mod locks;
pub mod machine;
pub mod memory;
mod origin;
pub mod primitive;
pub mod record;
mod target;
pub mod window;
pub mod wire;
