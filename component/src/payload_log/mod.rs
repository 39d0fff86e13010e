//! Memory of the payload log: how much, segments, first touch, copies made by a thread or put off.

pub mod budget;
pub mod copy_thread;
pub mod cost;
pub mod deferred_copy;
pub mod digest;
pub mod memory;
pub mod prefault;
pub mod segment;
