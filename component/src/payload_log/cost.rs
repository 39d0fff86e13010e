//! What the payload log costs the program: time in copies into it, page faults included, against a
//! share of all time. Messages that are copied in a moment are not measured: two reads of the
//! processor's clock would cost as much.
//!
//! Past the share, logging is suspended where it costs most (docs/adr/0026). What was not spent is
//! kept: a program that sends seldom may send much at once.

use crate::os::{now_ns, ticks};

/// Ticks that are there to be spent from the beginning, for each thousandth: what is earned in some
/// five seconds.
const GRACE_TICKS: u64 = 10_000_000;
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
    /// That it is over was reported.
    reported: bool,
}

impl LogCost {
    /// `overhead_max`: thousandths of the time that protection may cost. Two thirds of it may be
    /// lost to the log; checkpoints get the rest.
    pub fn new(overhead_max: u32) -> Self {
        let share = if overhead_max == 0 { 0 } else { (u64::from(overhead_max) * 2 / 3).max(1) };
        let mut new = Self { share, start_ticks: 0, start_ns: 0, spent_ticks: 0, reported: false };
        new.restart();
        new
    }

    /// From here on; also in a restored process, whose clock is another one.
    pub fn restart(&mut self) {
        (self.start_ticks, self.start_ns) = (ticks(), now_ns());
        (self.spent_ticks, self.reported) = (0, false);
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
        self.spent_ticks += now.wrapping_sub(begin);
        !self.reported && self.is_over_at(now) && !core::mem::replace(&mut self.reported, true)
    }

    #[inline]
    fn is_over_at(&self, now: u64) -> bool {
        let elapsed = now.saturating_sub(self.start_ticks);
        let lost_ticks = self.spent_ticks * LOST_BY_ALL_TIMES;
        self.share > 0 && lost_ticks > (GRACE_TICKS + elapsed / 1000) * self.share
    }

    /// Has the program lost more than the share until now?
    pub fn is_over(&self) -> bool {
        self.is_over_at(ticks())
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
        let half = ticks().wrapping_sub(20 * GRACE_TICKS / LOST_BY_ALL_TIMES / 2);
        assert!(!cost.end(half) && !cost.is_over(), "half of what was there from the beginning");
        let more = ticks().wrapping_sub(20 * GRACE_TICKS / LOST_BY_ALL_TIMES);
        assert!(cost.end(more), "half again as much as was there");
        assert!(!cost.end(ticks()) && cost.is_over(), "reported once");
        cost.rearm();
        assert!(cost.end(ticks()));
        let [spent, elapsed] = cost.spent_ns();
        assert!(spent > 0 && elapsed > 0);
        // What was spent is earned in a long time.
        assert!(!cost.is_over_at(cost.start_ticks + 20_000 * GRACE_TICKS));
        cost.restart();
        assert!(!cost.is_over());
    }

    #[test]
    fn without_a_limit_it_is_never_over() {
        let mut cost = LogCost::new(0);
        assert!(!cost.end(ticks().wrapping_sub(20_000 * GRACE_TICKS)) && !cost.is_over());
        assert_eq!(LogCost::new(1).share, 1);
    }
}
