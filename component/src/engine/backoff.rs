//! When a rank that waits on an oversubscribed node sleeps instead of yielding its processor.
//!
//! A rank that yields runs again after microseconds, and where several do, the kernel lets them take
//! turns for long before it runs somebody who has work: the coordinator, for whose answer they
//! wait, got a processor for 1 ms in 300 (Linux 6.18, four ranks that yield on a processor). So
//! who has yielded for a while sleeps, for a part of the time that it has waited already: what it
//! waits for comes later by that part at most.

use crate::engine::transport_set::NETWORKS;
use crate::os;
use std::os::fd::RawFd;

/// Waiting begins with so much time of yields: most answers come within it.
const YIELDS_NS: u64 = 100_000;
/// Between two looks the program did something else if its thread ran for longer than this.
const COMPUTED_NS: u64 = 20_000;
/// A sleep is this part of the time that was waited.
const PART: u64 = 8;
/// Shorter ones are not worth the system call; the kernel adds its timer slack, 50 us.
const SLEEP_MIN_NS: u64 = 20_000;
/// Whoever waits for long is to be back soon, too.
const SLEEP_MAX_NS: u64 = 200_000;

/// How a thread that waits gives its processor away for a while.
#[derive(Clone, Copy, Debug)]
pub struct Sleep {
    /// One of them is readable when there is something to do; `None`: only time tells.
    pub descriptors: Option<[RawFd; NETWORKS]>,
    /// In nanoseconds.
    pub ns: u64,
}

impl Sleep {
    /// Nothing of the engine is held meanwhile.
    pub fn sleep(self) {
        match self.descriptors {
            Some(descriptors) => os::sleep_on(descriptors, self.ns),
            None => os::sleep_on([], self.ns),
        }
    }
}

/// See the module's documentation. No I/O: the caller brings the times, and sleeps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    /// Since when nothing has come; 0: something has.
    since_ns: u64,
    /// Processor time of the thread at its last look.
    ran_ns: u64,
}

impl Backoff {
    /// Something has come.
    #[inline]
    pub fn reset(&mut self) {
        self.since_ns = 0;
    }

    /// Nothing has come. How long to sleep, in nanoseconds; `None`: yield. `ran_ns`: processor time
    /// of the thread.
    pub fn pause(&mut self, now_ns: u64, ran_ns: u64) -> Option<u64> {
        let computed_ns = ran_ns.saturating_sub(self.ran_ns);
        self.ran_ns = ran_ns;
        if self.since_ns == 0 || computed_ns > COMPUTED_NS {
            self.since_ns = now_ns.max(1);
            return None;
        }
        let waited_ns = now_ns.saturating_sub(self.since_ns);
        (waited_ns >= YIELDS_NS).then(|| (waited_ns / PART).clamp(SLEEP_MIN_NS, SLEEP_MAX_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_grow_with_the_time_that_was_waited() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.pause(5_000, 1), None);
        assert_eq!(backoff.pause(5_000 + YIELDS_NS - 1, 2), None);
        assert_eq!(backoff.pause(5_000 + YIELDS_NS, 3), Some(SLEEP_MIN_NS));
        assert_eq!(backoff.pause(5_000 + 800_000, 4), Some(100_000));
        assert_eq!(backoff.pause(5_000 + 1_000_000_000, 5), Some(SLEEP_MAX_NS));
    }

    #[test]
    fn it_begins_anew_when_something_has_come_or_the_program_has_computed() {
        let mut backoff = Backoff::default();
        let _ = backoff.pause(1, 0);
        assert!(backoff.pause(1_000_000, 1).is_some());
        backoff.reset();
        assert_eq!(backoff.pause(1_000_001, 2), None);
        assert!(backoff.pause(2_000_001, 2 + COMPUTED_NS).is_some());
        assert_eq!(backoff.pause(2_000_002, 3 + 2 * COMPUTED_NS), None, "MPI_Test now and then");
        assert_eq!(backoff.pause(2_000_003, 4 + 2 * COMPUTED_NS), None);
    }
}
