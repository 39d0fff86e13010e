//! The checkpoint thread: phases of a checkpoint, the frozen copy, restart, the way to the
//! guardian.

pub mod collective_drain;
pub mod determinant_flush;
pub mod freeze;
pub mod guardian_link;
pub mod log_pressure;
pub(crate) mod parted_memory;
pub mod phases;
pub(crate) mod replays_over;
pub mod requests;
pub mod restart;
pub mod set_counters;
pub mod shadow_verbs;
pub mod shared_memory_barrier;
pub mod state;
pub mod thread;
pub(crate) mod verbs_names;
mod waiting_report;
