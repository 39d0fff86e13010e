//! How much of its time a program loses while something runs beside it, as the kernel tells it of
//! each thread: it waited for a processor (proc(5), `schedstat`, if that is there), or was in the
//! kernel (`stat`, system time: pages that are copied when they are written, and slower calls).
//!
//! What is usual for a thread is no loss: the rate at which both grew between two earlier looks. Of
//! several threads the one counts that has lost most: the others wait for it sooner or later.

use crate::os::{Pid, ticks_per_second};
use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

/// Since each thread of a program was started, nanoseconds that it did not work.
#[derive(Clone, Debug)]
pub struct ThreadTimes {
    at: Instant,
    /// By thread id: waiting for a processor and in the kernel, together.
    away_ns: BTreeMap<Pid, u64>,
}

impl ThreadTimes {
    /// As it is now. None: there is no such process any more, or the kernel does not tell.
    pub fn of(program: Pid) -> Option<Self> {
        let mut away_ns = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{program}/task")).ok()?.flatten() {
            // Threads that end meanwhile are not counted.
            let Some(thread) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let read = |name| fs::read_to_string(entry.path().join(name)).ok();
            let both = read("schedstat").zip(read("stat"));
            if let Some(ns) = both.and_then(|(schedule, stat)| away(&schedule, &stat)) {
                away_ns.insert(thread, ns);
            }
        }
        (!away_ns.is_empty()).then(|| Self { at: Instant::now(), away_ns })
    }

    /// Since `earlier`, of one thread. A younger thread's is all that it has.
    fn since(&self, earlier: &Self, thread: Pid) -> u64 {
        let now = self.away_ns.get(&thread).copied().unwrap_or(0);
        now.saturating_sub(earlier.away_ns.get(&thread).copied().unwrap_or(0))
    }

    fn ns_since(&self, earlier: &Self) -> u64 {
        let passed = self.at.saturating_duration_since(earlier.at);
        u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Nanoseconds that the program has lost between `begin` and `end`, beyond what was usual between
/// `before` and `begin`; no more than have passed.
pub fn lost_ns(before: Option<&ThreadTimes>, begin: &ThreadTimes, end: &ThreadTimes) -> u64 {
    let passed = end.ns_since(begin);
    let lost = |&thread: &Pid| {
        let usual = before.map_or(0, |before| {
            let times = u128::from(begin.since(before, thread)) * u128::from(passed);
            (times / u128::from(begin.ns_since(before).max(1))) as u64
        });
        end.since(begin, thread).saturating_sub(usual)
    };
    end.away_ns.keys().map(lost).max().unwrap_or(0).min(passed)
}

/// From a thread's `schedstat` and `stat`.
fn away(schedule: &str, stat: &str) -> Option<u64> {
    let waited: u64 = schedule.split_whitespace().nth(1)?.parse().ok()?;
    // The name, in parentheses, may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields.split_whitespace().nth(12)?.parse().ok()?;
    let system = ticks.saturating_mul(1_000_000_000 / ticks_per_second());
    Some(waited.saturating_add(system))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn times(start: Instant, ms: u64, away: &[(Pid, u64)]) -> ThreadTimes {
        let ns = |&(thread, ms): &(Pid, u64)| (thread, ms * 1_000_000);
        let away_ns = away.iter().map(ns).collect();
        ThreadTimes { at: start + Duration::from_millis(ms), away_ns }
    }

    #[test]
    fn what_is_usual_for_a_thread_is_no_loss_and_the_worst_thread_counts() {
        let start = Instant::now();
        let before = times(start, 0, &[(1, 5), (2, 0)]);
        // The first thread is away for a tenth of the time, the second never.
        let begin = times(start, 1000, &[(1, 105), (2, 0)]);
        let usual = times(start, 1500, &[(1, 155), (2, 0)]);
        assert_eq!(lost_ns(Some(&before), &begin, &usual), 0);
        let end = times(start, 1500, &[(1, 185), (2, 20), (3, 10)]);
        assert_eq!(lost_ns(Some(&before), &begin, &end), 30_000_000);
        let other = times(start, 1500, &[(1, 155), (2, 40)]);
        assert_eq!(lost_ns(Some(&before), &begin, &other), 40_000_000);
        assert_eq!(lost_ns(None, &begin, &end), 80_000_000, "nothing is known to be usual");
        let more = times(start, 1500, &[(1, 9000)]);
        assert_eq!(lost_ns(Some(&before), &begin, &more), 500_000_000, "no more than passed");
    }

    #[test]
    fn the_kernels_texts() {
        let stat = "7 (a) b) c) R 1 2 3 4 5 6 7 8 9 10 11 33 14 15 16";
        let tick = 1_000_000_000 / ticks_per_second();
        assert_eq!(away("10 20 3\n", stat), Some(20 + 33 * tick));
        assert_eq!(away("", stat), None);
        assert_eq!(away("10 20 3", "7 (a) R 1"), None);
    }

    #[test]
    fn a_process_that_runs_has_times_and_one_that_does_not_has_none() {
        let me = Pid::try_from(std::process::id()).unwrap();
        let (one, two) = (ThreadTimes::of(me).unwrap(), ThreadTimes::of(me).unwrap());
        assert!(lost_ns(None, &one, &two) <= two.ns_since(&one));
        assert!(ThreadTimes::of(Pid::MAX).is_none());
    }
}
