//! The send gate, persist before send: no frame leaves the set before every determinant that the
//! set had recorded when the frame was made is stable, or was piggybacked before it to a receiver
//! that stores it (engine/piggyback.rs).
//!
//! Source: DESIGN §5; the paper's Theorem 1. The counts belong to the whole set (an internal
//! message creates a dependency of its receiver, which may send to another set), so the driver owns
//! them and gives them by [`crate::host::Host::marks`].
//!
//! Invariants:
//! * G1 A frame other than payload is offered to a transport of another set only with a
//!   [`SendPermit`], which only the comparison below gives.

/// How many determinants the set had recorded when a frame was made.
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

/// A permit to send: the determinants that the frame depends on are stable, or do not matter.
#[derive(Debug)]
#[must_use]
pub struct SendPermit(());

impl Marks {
    /// Nothing is recorded.
    pub const NONE: Self = Self { recorded: Recorded(0), stable: 0 };

    /// Recording has ended: no frame waits, whatever was recorded when it was made.
    pub const OPEN: Self = Self { recorded: Recorded(0), stable: u64::MAX };

    /// For a frame that is made now.
    #[inline]
    pub fn permit_now(&self) -> Option<SendPermit> {
        self.permit(self.recorded)
    }

    /// For a frame that was made earlier, when this was recorded.
    #[inline]
    pub fn permit(&self, depends_on: Recorded) -> Option<SendPermit> {
        if self.stable >= depends_on.0 { Some(SendPermit(())) } else { None }
    }
}

impl SendPermit {
    /// The frame stays in the set, whose processes roll back together.
    #[inline]
    pub(crate) fn internal() -> Self {
        Self(())
    }

    /// What is not stable was piggybacked before the frame on its channel, or by its receiver.
    #[inline]
    pub(crate) fn piggybacked() -> Self {
        Self(())
    }

    /// The rest of a half-taken frame.
    #[inline]
    pub(crate) fn begun() -> Self {
        Self(())
    }

    /// Payload of a message whose envelope was sent: it was fixed when the envelope was made.
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
        assert!(marks.permit(Recorded(3)).is_some() && marks.permit(Recorded(4)).is_none());
        assert!(Marks::NONE.permit_now().is_some());
        assert!(Marks::OPEN.permit_now().is_some() && Marks::OPEN.permit(Recorded(7)).is_some());
    }
}
