//! The functions that libibverbs exports, and ours in their place. C ABI only: is the context ours,
//! the typed call, the code.
//!
//! Safety of all of them: what libibverbs' manual pages ask of the program.

pub mod devices;
pub mod pairs;
pub mod queues;
pub mod regions;
