//! Memory that the ranks of a correlated set share where all of them run on one node: the order of
//! their determinants, the counters of the shared-memory barrier, and how far each is in a
//! checkpoint. A transport within the node has it in its segment; all zero is a set that has not
//! begun. Nobody outside the transports needs to know which transport that is.

pub mod set_counters;
pub mod slots;

pub use crate::transports::set_memory::set_counters::SetCounters;
pub use crate::transports::set_memory::slots::{Entry, SLOTS, SlotRead, Slots};

use core::sync::atomic::AtomicU64;
use rustbtl_rma::direct::{SetGroup, TargetArea};

/// Who has such memory. `rank`: local index of the first rank of the set.
pub trait SetMemory {
    /// The counters of the set's order and of the shared-memory barrier.
    fn counts(&self, rank: usize) -> Option<&Counts>;

    /// The determinants of the set's order that are not stable.
    fn slots(&self, rank: usize) -> Option<&Slots>;

    /// What the ranks of a set have done to each other's windows.
    fn window_group(&self, rank: usize) -> Option<&SetGroup>;

    /// What a rank shares so that those of its set act on its windows.
    fn window_area(&self, rank: usize) -> Option<TargetArea<'_>>;

    /// Where the set counts who has reached which phase of a checkpoint.
    fn set_counters(&self, rank: usize) -> Option<&SetCounters>;
}

/// What the ranks of a correlated set on this node count together (`fragments::gate`, and
/// `checkpoint/shared_memory_barrier.rs`).
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Counts {
    /// Determinants that they have recorded.
    pub recorded: AtomicU64,
    /// All before this one are stable.
    pub stable: AtomicU64,
    /// Frames wait until all before this one are.
    pub wanted: AtomicU64,
    /// Of ranks that share memory directly: who takes part in the open checkpoint.
    pub sharing: AtomicU64,
    /// Whose threads are suspended for it.
    pub suspended: AtomicU64,
    /// Who has its snapshot.
    pub snapshotted: AtomicU64,
}
