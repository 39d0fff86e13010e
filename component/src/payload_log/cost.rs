//! What the payload log costs the program: time in copies into it, page faults included, against a
//! share of all time. Messages that are copied in a moment are not measured: two reads of the
//! processor's clock would cost as much.
//!
//! Past the share, logging is suspended where it costs most (docs/adr/0026). Of what was not spent
//! a part is kept: a program that sends seldom may send much at once, but not so much that a
//! stretch of some seconds would pay for a long time before it.

use crate::os::{now_ns, ticks};

/// Ticks whose share is there to be spent from the beginning: about a second.
const GRACE_TICKS: u64 = 2_000_000_000;
/// The share of so many parts of the time so far is kept, beside that of `GRACE_TICKS`. A set that
/// can be rolled back alone is worth little while all have computed for seconds only: a failure
/// costs no more than these seconds.
const KEPT_PARTS: u64 = 20;
/// A program loses so many times what a rank has spent on copies: ranks copy at different moments
/// and wait for each other, and copies take the caches and the memory's bandwidth. Measured with
/// GROMACS: 1.6 to 2.1 times (docs/performance.md, "In short"). What is lost beside a checkpoint
/// counts as much (`LOST_BY_ALL_TIMES` of the scheduler).
const LOST_BY_ALL_TIMES: u64 = 2;

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct LogCost {
    /// Thousandths of the time; 0: no limit.
    share: u64,
    start_ticks: u64,
    start_ns: u64,
    spent_ticks: u64,
    /// What may be lost yet, in thousandths of ticks, when it was last counted. Below zero: more
    /// was lost than the share.
    left: i64,
    counted_ticks: u64,
    /// That it is over was reported.
    reported: bool,
}

impl LogCost {
    /// `overhead_max`: thousandths of the time that protection may cost. Two thirds of it may be
    /// lost to the log; checkpoints get the rest.
    pub fn new(overhead_max: u32) -> Self {
        let share = if overhead_max == 0 { 0 } else { (u64::from(overhead_max) * 2 / 3).max(1) };
        let mut new = Self {
            share,
            start_ticks: 0,
            start_ns: 0,
            spent_ticks: 0,
            left: 0,
            counted_ticks: 0,
            reported: false,
        };
        new.restart();
        new
    }

    /// From here on; also in a restored process, whose clock is another one.
    pub fn restart(&mut self) {
        (self.start_ticks, self.start_ns) = (ticks(), now_ns());
        (self.spent_ticks, self.reported) = (0, false);
        (self.left, self.counted_ticks) = ((GRACE_TICKS * self.share) as i64, self.start_ticks);
    }

    /// Report it again.
    pub fn rearm(&mut self) {
        self.reported = false;
    }

    /// Before a copy.
    #[inline]
    pub fn begin(&self) -> u64 {
        ticks()
    }

    /// After it. True: it is over for the first time.
    #[inline]
    pub fn end(&mut self, begin: u64) -> bool {
        let now = ticks();
        let copied = now.wrapping_sub(begin);
        self.spent_ticks += copied;
        let lost = (copied * LOST_BY_ALL_TIMES * 1000) as i64;
        self.left = self.left_at(now).saturating_sub(lost);
        self.counted_ticks = now;
        self.share > 0 && self.left < 0 && !core::mem::replace(&mut self.reported, true)
    }

    /// What may be lost until then.
    #[inline]
    fn left_at(&self, now: u64) -> i64 {
        let earned = now.saturating_sub(self.counted_ticks) * self.share;
        let elapsed = now.saturating_sub(self.start_ticks);
        let kept = (GRACE_TICKS + elapsed / KEPT_PARTS) * self.share;
        (self.left + earned as i64).min(kept as i64)
    }

    /// Has the program lost more than the share until now?
    pub fn is_over(&self) -> bool {
        self.share > 0 && self.left_at(ticks()) < 0
    }

    /// What the rank has spent on copies, and in which time, both in nanoseconds.
    pub fn spent_ns(&self) -> [u64; 2] {
        let elapsed_ticks = ticks().saturating_sub(self.start_ticks).max(1);
        let elapsed_ns = now_ns().saturating_sub(self.start_ns);
        let spent = self.spent_ticks as f64 * (elapsed_ns as f64 / elapsed_ticks as f64);
        [spent as u64, elapsed_ns]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_over_when_more_than_the_share_was_spent_and_reported_once() {
        let mut cost = LogCost::new(30);
        assert_eq!(cost.share, 20);
        let now = cost.begin();
        assert!(!cost.end(now) && !cost.is_over());
        let grace = GRACE_TICKS / 1000 * 20 / LOST_BY_ALL_TIMES;
        assert!(!cost.end(ticks().wrapping_sub(grace / 2)) && !cost.is_over(), "half of the grace");
        assert!(cost.end(ticks().wrapping_sub(grace)), "half again as much");
        assert!(!cost.end(ticks()) && cost.is_over(), "reported once");
        cost.rearm();
        assert!(cost.end(ticks()));
        let [spent, elapsed] = cost.spent_ns();
        assert!(spent > 0 && elapsed > 0);
        // What was spent is earned in time, and no more of it is kept than a part.
        let second = 2_000_000_000;
        let mut cost = LogCost { left: 0, ..LogCost::new(30) };
        assert_eq!(cost.left_at(cost.start_ticks + second / 2), 20 * second as i64 / 2);
        for seconds in [0, 1, 2, 100, 1000] {
            let kept = cost.left_at(cost.start_ticks + (2 + seconds) * second);
            assert_eq!(kept, 20 * (second + (2 + seconds) * second / 20) as i64, "{seconds}");
        }
        cost.left = -20 * second as i64;
        assert!(cost.left_at(cost.start_ticks + second / 2) < 0, "a debt is kept as a whole");
        cost.restart();
        assert!(!cost.is_over());
    }

    #[test]
    fn without_a_limit_it_is_never_over() {
        let mut cost = LogCost::new(0);
        assert!(!cost.end(ticks().wrapping_sub(20 * GRACE_TICKS)) && !cost.is_over());
        assert_eq!(LogCost::new(1).share, 1);
    }
}
