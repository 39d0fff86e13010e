//! What lies in the segment beside rings: what sets count and record, and what their ranks do to
//! each other's windows.

use crate::transports::set_memory::{Counts, SetCounters, Slots};
use crate::transports::shm::Shm;
use crate::transports::shm::exports::{self, Inaccessible};
use rustbtl_rma::direct::{SetGroup, TargetArea};

impl Shm {
    /// What the set counts whose first rank has this local index.
    #[inline]
    pub fn counts(&self, index: usize) -> &Counts {
        &self.segment.rank(index).counts
    }

    /// What the set has recorded whose first rank has this local index.
    pub fn slots(&self, index: usize) -> &Slots {
        self.segment.slots(index)
    }

    /// Where the set counts its phases whose first rank has this local index.
    pub fn set_counters(&self, index: usize) -> &SetCounters {
        self.segment.set_counters(index)
    }

    /// What neighbours of the set have done to windows, whose first rank has this local index.
    #[inline(always)]
    pub fn window_group(&self, index: usize) -> &SetGroup {
        self.segment.window_group(index)
    }

    /// What a rank shares so that neighbours act on its windows.
    #[inline(always)]
    pub fn window_area(&self, index: usize) -> TargetArea<'_> {
        self.segment.window_area(index)
    }

    /// The process of this local index, if its memory may be read and written. `None`: it is not
    /// there yet.
    pub fn accessible(&self, index: usize) -> Option<Result<i32, Inaccessible>> {
        exports::accessible(&self.segment, index)
    }
}
