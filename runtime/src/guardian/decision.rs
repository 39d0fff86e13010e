//! How long the coordinator's decision about a failed rank is awaited: in time in which this
//! process runs. Where a whole machine stands (a virtual machine that is moved, a kernel that runs
//! nothing but ranks), who is to decide stands, too, and a deadline would be over when both go on.
//!
//! Invariants:
//! * W1 While this process looks often it waits no longer than it was told.
//! * W2 However long it stood, that counts as [`LOOK_MAX`].

use std::time::{Duration, Instant};

/// How long it may take.
pub(super) const DECISION_MAX: Duration = Duration::from_secs(30);
/// It looks after this time, at the latest.
const LOOK: Duration = Duration::from_secs(1);
/// Longer than that is no time in which it ran.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decision {
    left: Duration,
    looked: Instant,
    given_up: bool,
}

impl Decision {
    /// Awaited from `now` on.
    pub fn awaited(now: Instant) -> Self {
        Self { left: DECISION_MAX, looked: now, given_up: false }
    }

    /// There will be none.
    pub fn give_up(&mut self) {
        (self.left, self.given_up) = (Duration::ZERO, true);
    }

    /// Was there none although it was awaited?
    pub fn is_missing(&self) -> bool {
        !self.given_up
    }

    /// When to look again.
    pub fn next_look(&self) -> Instant {
        self.looked + self.left.min(LOOK)
    }

    /// Did it not come in time?
    pub fn is_over(&mut self, now: Instant) -> bool {
        let gone = now.saturating_duration_since(self.looked).min(LOOK_MAX);
        (self.left, self.looked) = (self.left.saturating_sub(gone), now);
        self.left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn w1_it_is_over_in_time_however_often_one_looks() {
        for step in [Duration::from_millis(7), LOOK, LOOK_MAX] {
            let begin = Instant::now();
            let (mut decision, mut now) = (Decision::awaited(begin), begin);
            while !decision.is_over(now) {
                assert!(now < begin + DECISION_MAX);
                assert!(decision.next_look() <= now + LOOK);
                now += step;
            }
            assert!(now - begin >= DECISION_MAX && now - begin < DECISION_MAX + step);
        }
    }

    #[test]
    fn w2_where_the_machine_stands_it_is_awaited_for_longer() {
        let begin = Instant::now();
        let mut decision = Decision::awaited(begin);
        assert!(!decision.is_over(begin + 10 * SECOND), "it stood for all of that");
        assert!(!decision.is_over(begin + 60 * SECOND));
        let goes_on = begin + 60 * SECOND;
        let over = (0..40).find(|&second| decision.is_over(goes_on + second * SECOND));
        assert_eq!(over, Some(26), "two looks late are four seconds");
        assert!(decision.is_over(goes_on));
    }

    #[test]
    fn without_hope_it_is_over_at_once() {
        let now = Instant::now();
        let mut decision = Decision::awaited(now);
        assert!(decision.is_missing());
        decision.give_up();
        assert!(!decision.is_missing());
        assert_eq!(decision.next_look(), now);
        assert!(decision.is_over(now));
    }
}
