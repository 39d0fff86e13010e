//! Who used the processors: ours, or others who disturb the measurement.

use std::fs;
use std::thread;
use std::time::Instant;

/// Counters at one moment.
pub struct Busy {
    at: Instant,
    all: u64,
    ours: u64,
}

/// Ticks of a processor's time that Linux counts in a second.
const TICKS_PER_SECOND: f64 = 100.0;

impl Busy {
    /// Now.
    pub fn now() -> Busy {
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        Busy {
            at: Instant::now(),
            all: all_ticks(&read("/proc/stat")),
            ours: our_ticks(&read("/proc/self/stat")),
        }
    }

    /// Part of all processors, 0 to 1, that went to programs which we did not start, since then.
    pub fn others(&self) -> f64 {
        let now = Busy::now();
        let others = (now.all - self.all).saturating_sub(now.ours - self.ours);
        let processors = thread::available_parallelism().map_or(1, |p| p.get());
        let seconds = now.at.duration_since(self.at).as_secs_f64() * processors as f64;
        (others as f64 / TICKS_PER_SECOND / seconds).min(1.0)
    }
}

/// User, nice, system and stolen time of all processors. Interrupts are left out: those that our
/// own packets cause belong to no process.
fn all_ticks(stat: &str) -> u64 {
    let fields: Vec<u64> =
        stat.lines().next().unwrap_or("").split_whitespace().flat_map(str::parse).collect();
    [0, 1, 2, 7].iter().filter_map(|&i| fields.get(i)).sum()
}

/// Ours and that of all descendants that have ended and were waited for.
fn our_ticks(stat: &str) -> u64 {
    // The name in parentheses may hold blanks; utime is the twelfth field after it.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().skip(11).take(4).flat_map(str::parse::<u64>).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_in_what_the_kernel_writes() {
        assert_eq!(all_ticks("cpu  1 2 3 100 5 6 7 8 0 0\ncpu0 9 9 9"), 14);
        let own = "42 (a b) c) S 1 2 3 4 5 6 7 8 9 10 1 2 3 4 20 0";
        assert_eq!(our_ticks(own), 10);
    }

    #[test]
    fn what_cannot_be_read_disturbs_nobody() {
        assert_eq!((all_ticks(""), our_ticks("")), (0, 0));
    }
}
