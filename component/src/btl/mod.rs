//! A BTL (Open MPI's byte transfer layer) over our transports, for programs that keep pml ob1.
//!
//! Open MPI matches, orders and repeats above a BTL, so nothing here logs, replays or recovers
//! (docs/adr/0043). What is shared with the engine's process is `transports/` alone; the C side is
//! `glue-c/btl/`, which finds [`exports::FUNCTIONS`] in the component that has this crate.

pub mod core;
pub mod exports;
pub mod frame;
pub mod one_sided;
pub mod operation;
pub mod outbox;
pub mod state;
#[cfg(test)]
mod tests;
