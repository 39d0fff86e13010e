//! Locks of the engine, and the flags that every room may set for the checkpoint thread.

pub mod biased_lock;
pub mod checkpoint_requests;
pub mod checkpoint_signals;
pub mod engine_lock;
pub mod lock;
pub mod waiting;
