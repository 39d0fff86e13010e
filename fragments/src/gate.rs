//! Persist before send: no frame leaves the set before every determinant that the set had
//! recorded when the frame was made is stable, or has gone before it to who keeps it
//! (engine/piggyback.rs).
//!
//! Source: DESIGN §5; the paper's Theorem 1. The counts belong to the whole set (an internal
//! message carries what its sender has seen to a neighbour that may send it out), so the driver
//! owns them and says them by [`crate::host::Host::marks`].
//!
//! Invariants:
//! * G1 A frame other than payload is offered to a transport of another set only with a [`Stable`],
//!   which only the comparison below gives.

/// How many determinants the set had recorded when something was made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Recorded(pub u64);

/// What the set has recorded, and how much of it is stable, both counted from its restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    /// Determinants recorded by all processes of the set.
    pub recorded: Recorded,
    /// All before this one are stored where the failure of the set cannot destroy them.
    pub stable: u64,
}

/// Leave to go: what the frame depends on is stable, or does not matter.
#[derive(Debug)]
#[must_use]
pub struct Stable(());

impl Marks {
    /// Nothing is recorded.
    pub const NONE: Self = Self { recorded: Recorded(0), stable: 0 };

    /// Nothing is recorded any more: nothing waits, whatever was recorded when it was made.
    pub const OPEN: Self = Self { recorded: Recorded(0), stable: u64::MAX };

    /// For something that is made now.
    #[inline]
    pub fn now(&self) -> Option<Stable> {
        self.covers(self.recorded)
    }

    /// For something that was made earlier.
    #[inline]
    pub fn covers(&self, made: Recorded) -> Option<Stable> {
        if self.stable >= made.0 { Some(Stable(())) } else { None }
    }
}

impl Stable {
    /// The frame stays in the set: its processes go back together.
    #[inline]
    pub(crate) fn inside() -> Self {
        Self(())
    }

    /// What is not stable went before the frame on its channel, to who keeps it.
    #[inline]
    pub(crate) fn carried() -> Self {
        Self(())
    }

    /// The rest of a frame that has begun to leave.
    #[inline]
    pub(crate) fn begun() -> Self {
        Self(())
    }

    /// Payload of a message whose envelope has left: it was fixed when the envelope was made.
    #[inline]
    pub(crate) fn payload() -> Self {
        Self(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g1_a_frame_waits_for_what_was_recorded_before_it_and_for_no_more() {
        let marks = Marks { recorded: Recorded(5), stable: 3 };
        assert!(marks.permit_now().is_none());
        assert!(marks.covers(Recorded(3)).is_some() && marks.covers(Recorded(4)).is_none());
        assert!(Marks::NONE.now().is_some());
        assert!(Marks::OPEN.now().is_some() && Marks::OPEN.covers(Recorded(7)).is_some());
    }
}
