//! Outcomes of nondeterministic calls on their way to a place where they are stable.

pub mod coordinator_link;
pub mod journal;
pub mod outbox;
pub mod piggyback;
pub mod recorder;
pub mod set_order;
mod unstable_batches;
