//! One-sided communication as a machine without I/O: windows, epochs, locks, operations and their
//! replay.
#![forbid(unsafe_code)]

pub mod arithmetic;
pub mod error;
pub mod layout;
pub mod memory;
pub mod primitive;
pub mod wire;
