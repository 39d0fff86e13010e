//! How long a waiting rank polls before it yields its processor.

use crate::determinants::set_order;
use crate::ffi::table::Glue;

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct WaitPolicy {
    /// This node has more ranks than processors.
    pub oversubscribed: bool,
    /// Looks before the first yield.
    pub spin: u32,
    /// The same on an oversubscribed node.
    pub spin_oversubscribed: u32,
}

impl WaitPolicy {
    /// Must others of this node get the processor soon?
    #[inline]
    pub(crate) fn is_oversubscribed(&self, glue: &Glue) -> bool {
        // Where frames wait for determinants, processes that are no ranks have a part in messages.
        self.shares_processors(glue) || set_order::has_waited()
    }

    /// Has this node more ranks than processors, or does Open MPI take it for such a one?
    #[inline]
    pub(crate) fn shares_processors(&self, glue: &Glue) -> bool {
        self.oversubscribed || Self::open_mpi_yields(glue)
    }

    /// Does Open MPI's own progress give the processor away when it has found nothing?
    #[inline]
    pub(crate) fn open_mpi_yields(glue: &Glue) -> bool {
        // SAFETY: no arguments.
        unsafe { (glue.yields)() != 0 }
    }

    /// Looks before the first yield.
    #[inline]
    pub(crate) fn spin_limit(&self, glue: &Glue) -> u32 {
        if self.is_oversubscribed(glue) { self.spin_oversubscribed } else { self.spin }
    }
}
