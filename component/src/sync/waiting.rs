//! How long the program has waited inside MPI with nothing to do: for `rustbtl report`, which draws
//! whom a failure has kept waiting.
//!
//! Only fruitless rounds of waiting loops are counted, by the processor's own clock: no system
//! call, no lock, and nothing at all where a message is there soon. Waits of a few microseconds are
//! therefore left out. With several threads it counts those of whoever has the engine; rounds that
//! two of them end at the same time may count once.

use crate::os::{now_ns, ticks};
use core::sync::atomic::{AtomicU64, Ordering};

/// In a loop that is not ours: between two fruitless rounds the program may have computed if more
/// ticks have passed (some 10 to 30 us).
const ROUND_TICKS_MAX: u64 = 50_000;

/// Written by the program's threads, read by the checkpoint thread.
#[derive(Debug)]
pub struct Waiting {
    ticks: AtomicU64,
    /// Until then it is counted.
    counted: AtomicU64,
}

/// Of this process.
pub static WAITING: Waiting = Waiting::new();

impl Waiting {
    const fn new() -> Self {
        Self { ticks: AtomicU64::new(0), counted: AtomicU64::new(0) }
    }

    /// From now on there is nothing to do.
    pub fn begin(&self) {
        self.begin_at(ticks());
    }

    fn begin_at(&self, now: u64) {
        self.counted.store(now, Ordering::Relaxed);
    }

    /// There was nothing to do since the last call.
    pub fn end_round(&self) {
        self.end_round_at(ticks(), u64::MAX);
    }

    /// The same in a loop of Open MPI or of the program, which may have computed in between.
    pub fn end_foreign_round(&self) {
        self.end_round_at(ticks(), ROUND_TICKS_MAX);
    }

    fn end_round_at(&self, now: u64, most: u64) {
        let passed = now.saturating_sub(self.counted.load(Ordering::Relaxed));
        if passed <= most {
            let before = self.ticks.load(Ordering::Relaxed);
            self.ticks.store(before.wrapping_add(passed), Ordering::Relaxed);
        }
        self.counted.store(now, Ordering::Relaxed);
    }

    /// All in all, in ticks.
    pub fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }
}

/// Makes nanoseconds of ticks: how fast the processor's clock was since this was made.
#[derive(Clone, Copy, Debug)]
pub struct TickRate {
    ticks: u64,
    ns: u64,
}

impl TickRate {
    /// Of this node's clocks.
    pub fn new() -> Self {
        Self { ticks: ticks(), ns: now_ns() }
    }

    /// So many ticks.
    pub fn ns(&self, of: u64) -> u64 {
        self.ns_at(of, ticks(), now_ns())
    }

    fn ns_at(&self, of: u64, ticks: u64, ns: u64) -> u64 {
        let passed = ticks.saturating_sub(self.ticks).max(1);
        (of as f64 * (ns.saturating_sub(self.ns) as f64 / passed as f64)) as u64
    }
}

impl Default for TickRate {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_a_wait_are_counted_and_what_lies_between_two_waits_is_not() {
        let waiting = Waiting::new();
        waiting.begin_at(1_000_000);
        waiting.end_round_at(1_000_100, u64::MAX);
        waiting.end_round_at(9_000_000, u64::MAX);
        assert_eq!(waiting.ticks(), 8_000_000, "however long a round takes");
        waiting.begin_at(20_000_000);
        waiting.end_round_at(20_000_007, u64::MAX);
        assert_eq!(waiting.ticks(), 8_000_007);
    }

    #[test]
    fn a_foreign_loop_counts_rounds_that_follow_each_other_and_not_what_the_program_computes() {
        let waiting = Waiting::new();
        waiting.end_round_at(1_000_000, ROUND_TICKS_MAX);
        assert_eq!(waiting.ticks(), 0, "nobody knows what was before");
        waiting.end_round_at(1_000_300, ROUND_TICKS_MAX);
        waiting.end_round_at(1_000_300 + ROUND_TICKS_MAX, ROUND_TICKS_MAX);
        assert_eq!(waiting.ticks(), 300 + ROUND_TICKS_MAX);
        waiting.end_round_at(2_000_000, ROUND_TICKS_MAX);
        assert_eq!(waiting.ticks(), 300 + ROUND_TICKS_MAX);
        // A loop of Open MPI's within one of ours: nothing is counted twice.
        waiting.begin_at(3_000_000);
        waiting.end_round_at(3_000_040, ROUND_TICKS_MAX);
        waiting.end_round_at(3_000_100, u64::MAX);
        assert_eq!(waiting.ticks(), 400 + ROUND_TICKS_MAX);
        // A clock that is another one after a restore counts nothing.
        waiting.end_round_at(5, u64::MAX);
        assert_eq!(waiting.ticks(), 400 + ROUND_TICKS_MAX);
    }

    #[test]
    fn ticks_become_nanoseconds() {
        let rate = TickRate { ticks: 1000, ns: 50 };
        assert_eq!(rate.ns_at(3000, 3000, 1050), 1500);
        assert_eq!(rate.ns_at(7, 1000, 50), 0, "it was made just now");
    }
}
