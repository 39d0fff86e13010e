//! When a rank that waits on an oversubscribed node sleeps instead of yielding its processor.
//!
//! A rank that yields runs again after microseconds, and where several do, the kernel lets them
//! take turns for long before it runs somebody who has work: the coordinator, for whose answer they
//! wait, got a processor for 1 ms in 300 (Linux 6.18, three ranks that yield on a processor). So
//! who has yielded for a while sleeps, for a part of the time that it has waited already: what it
//! waits for comes later by that part at most.
//!
//! Where no frame of the set waits for a coordinator, that is later: ranks that wait for each other
//! are quicker by yields, and when each sleeps for a while, each waits long enough to sleep again.

use crate::engine::transport_set::NETWORKS;
use crate::os;
use std::os::fd::RawFd;

/// Waiting begins with so much time of yields: most answers come within it.
const YIELDS_NS: u64 = 1_000_000;
/// The same while a frame of the set waits for determinants: others than ranks have to run.
const YIELDS_AWAITED_NS: u64 = 100_000;
/// Between two looks the program did something else if its thread ran for longer than this.
const COMPUTED_NS: u64 = 20_000;
/// A sleep is this part of the time that was waited.
const PART: u64 = 8;
/// Shorter ones are not worth the system call; the kernel adds its timer slack, 50 us.
pub const SLEEP_MIN_NS: u64 = 20_000;
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
        // -1: there is none. The caller looks again in any case.
        let _ = os::sleep_on(self.descriptors.unwrap_or([-1; NETWORKS]), self.ns);
    }
}

/// See the module's documentation. No I/O: the caller brings the times, and sleeps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    /// Since when nothing has come; 0: something has.
    since_ns: u64,
    /// Processor time of the thread when it was to sleep last; 0: not yet.
    ran_ns: u64,
}

impl Backoff {
    /// Something has come.
    #[inline]
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Nothing has come. How long to sleep, in nanoseconds; `None`: yield. `ran_ns`: processor time
    /// of the thread, by which a program that computes and looks now and then is known; it is a
    /// system call, so it is only asked for after some time. `awaited`: a frame of the set waits.
    #[inline]
    pub fn pause(
        &mut self,
        now_ns: u64,
        awaited: bool,
        ran_ns: impl FnOnce() -> u64,
    ) -> Option<u64> {
        if self.since_ns == 0 {
            self.since_ns = now_ns.max(1);
        }
        let waited_ns = now_ns.saturating_sub(self.since_ns);
        if waited_ns < if awaited { YIELDS_AWAITED_NS } else { YIELDS_NS } {
            return None;
        }
        let before_ns = core::mem::replace(&mut self.ran_ns, ran_ns().max(1));
        let computed_ns = self.ran_ns.saturating_sub(before_ns);
        if before_ns != 0 && computed_ns > COMPUTED_NS {
            *self = Self { since_ns: now_ns, ..*self };
            return None;
        }
        (before_ns != 0).then(|| (waited_ns / PART).clamp(SLEEP_MIN_NS, SLEEP_MAX_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_grow_with_the_time_that_was_waited() {
        let never = || panic!("the processor time is not asked for");
        for (awaited, yields_ns) in [(false, YIELDS_NS), (true, YIELDS_AWAITED_NS)] {
            let mut backoff = Backoff::default();
            assert_eq!(backoff.pause(5_000, awaited, never), None);
            assert_eq!(backoff.pause(5_000 + yields_ns - 1, awaited, never), None);
            assert_eq!(backoff.pause(5_000 + yields_ns, awaited, || 3), None, "has it computed?");
            let first_ns = (yields_ns / PART).max(SLEEP_MIN_NS);
            assert_eq!(backoff.pause(5_000 + yields_ns, awaited, || 4), Some(first_ns));
            assert_eq!(backoff.pause(5_000 + 1_200_000, awaited, || 4), Some(150_000));
            assert_eq!(backoff.pause(5_000 + 1_000_000_000, awaited, || 5), Some(SLEEP_MAX_NS));
        }
    }

    #[test]
    fn who_waits_since_before_a_frame_does_sleeps_at_once() {
        let mut backoff = Backoff::default();
        let now_ns = 1 + YIELDS_AWAITED_NS;
        for (at_ns, awaited) in [(1, false), (now_ns, false), (now_ns, true)] {
            assert_eq!(backoff.pause(at_ns, awaited, || 1), None);
        }
        assert_eq!(backoff.pause(now_ns, true, || 1), Some(SLEEP_MIN_NS));
        assert_eq!(backoff.pause(now_ns, false, || 1), None);
    }

    #[test]
    fn it_begins_anew_when_something_has_come_or_the_program_has_computed() {
        let mut backoff = Backoff::default();
        for (now_ns, ran_ns) in [(1, 0), (2_000_000, 1)] {
            let _ = backoff.pause(now_ns, false, || ran_ns);
        }
        assert!(backoff.pause(2_000_001, false, || 2).is_some());
        backoff.reset();
        for now_ns in [2_000_002, 4_000_002] {
            assert_eq!(backoff.pause(now_ns, false, || 2), None);
        }
        assert!(backoff.pause(4_000_003, false, || 2 + COMPUTED_NS).is_some());
        let computed = [3 + 2 * COMPUTED_NS, 4 + 2 * COMPUTED_NS];
        assert_eq!(backoff.pause(4_000_004, false, || computed[0]), None, "a test now and then");
        assert_eq!(backoff.pause(4_000_005, false, || computed[1]), None);
    }
}
