//! The clock that the program's first thread reads: how many different times it is given, and
//! that it never goes backwards (docs/adr/0010).

use std::time::SystemTime;

/// So many different times are given in a second, over long.
const TIMES_PER_SECOND: i64 = 10_000;
const NS_PER_TIME: i64 = 1_000_000_000 / TIMES_PER_SECOND;
/// So many seconds' worth of them can be had at once.
const BURST_NS: i64 = 1_000_000_000;
/// What the program's other clocks were when a snapshot was taken.
#[derive(Debug)]
pub struct ClocksThen {
    /// The clock, and the program's nanoseconds on it.
    pub(crate) ns: [(u8, u64); 5],
    /// The machine's date.
    pub(crate) date: SystemTime,
}

/// The clock of the program's first thread; part of its snapshot.
#[derive(Debug, Default)]
pub struct ProgramClock {
    /// What was given last.
    pub(crate) last_ns: i64,
    /// Until when the times that were given are paid for.
    paid_ns: i64,
    /// The program's clock and the machine's date when the snapshot was taken.
    pub(crate) snapshotted: Option<(i64, SystemTime)>,
}

impl ProgramClock {
    /// The clock is at `now_ns`: what is given? None: what was given last. And how far the
    /// program's clock has to be put forward.
    pub(crate) fn read(&mut self, now_ns: i64) -> (Option<i64>, i64) {
        let lag = (self.last_ns - now_ns).max(0);
        let now_ns = now_ns + lag;
        let paid_ns = self.paid_ns.max(now_ns) + NS_PER_TIME;
        if now_ns == self.last_ns || paid_ns > now_ns + BURST_NS {
            return (None, lag);
        }
        self.paid_ns = paid_ns;
        (Some(now_ns), lag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_read_without_end_gives_a_limited_number_of_times() {
        let mut clock = ProgramClock::default();
        let (mut times, mut last) = (0, 0);
        // Ten seconds, read each microsecond.
        for now_ns in (5..10_000_000_000).step_by(1000) {
            let (given, lag) = clock.read(now_ns);
            assert_eq!(lag, 0);
            if let Some(ns) = given {
                assert!(ns > last && ns == now_ns);
                (last, clock.last_ns) = (ns, ns);
                times += 1;
            }
            assert!(now_ns - last <= NS_PER_TIME);
        }
        let most = 11 * TIMES_PER_SECOND;
        assert!((most - 2..=most).contains(&times), "{times}");
    }

    #[test]
    fn a_clock_that_is_read_seldom_is_exact_and_goes_on_where_it_was() {
        let mut clock = ProgramClock::default();
        for now_ns in (1..50_000_000_000).step_by(150_000) {
            assert_eq!(clock.read(now_ns), (Some(now_ns), 0));
            clock.last_ns = now_ns;
        }
        let last = clock.last_ns;
        assert_eq!(clock.read(last), (None, 0));
        // The machine's clock is another one now.
        assert_eq!(clock.read(last - 700), (None, 700));
        assert_eq!(clock.read(last - 700 + 900), (Some(last + 200), 0));
    }
}
