//! Work beside a program that fills its processors, in small portions: a checkpoint that nobody
//! waits for takes a small share of a processor while the program could use it, and all of it
//! while it could not.
//!
//! Whether the program could use it shows in what this thread waits for: the kernel counts how long
//! a thread was ready and did not run (proc(5), `schedstat`). A thread of low priority waits where
//! all processors that it may run on are busy, and hardly ever where one is idle.
//!
//! 1. All pauses of one task end within the time that was set for it: then the work goes on as fast
//!    as the kernel lets it.
//! 2. Where the kernel does not count, there are no pauses.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

/// The share of a processor, one part in so many.
const PART: u32 = 50;
/// A thread that has waited more than this part of what it has worked is in the way.
const WAITED_PART: u32 = 8;
/// So many portions in a row that nothing waited for show that a processor is idle.
const CALM_PORTIONS: u32 = 4;
/// How long a pause may be without a look whether anybody still needs the work.
const LOOK: Duration = Duration::from_millis(5);

/// What a thread has done.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// On a processor.
    worked: Duration,
    /// Ready, without a processor.
    waited: Duration,
}

/// Of one task, in the thread that made it. See the module's documentation.
#[derive(Debug)]
pub struct Pace {
    begun: Instant,
    within: Duration,
    /// `None`: no pauses.
    counts: Option<File>,
    last: Times,
    calm: u32,
    done: u64,
    paused: Duration,
}

impl Pace {
    /// Pauses within this time from now on; none if it is zero.
    pub fn new(within: Duration) -> Self {
        let counts = File::open("/proc/thread-self/schedstat").ok();
        let counts = counts.filter(|_| !within.is_zero());
        let last = counts.as_ref().and_then(times).unwrap_or_default();
        let (calm, done, paused) = (0, 0, Duration::ZERO);
        Self { begun: Instant::now(), within, counts, last, calm, done, paused }
    }

    /// So much of the whole is done: pauses if the program needs the processors, until `is_over`.
    pub fn rest(&mut self, done: u64, whole: u64, is_over: impl Fn() -> bool) {
        let Some(now) = self.counts.as_ref().and_then(times) else { return };
        let portion = Times {
            worked: now.worked.saturating_sub(self.last.worked),
            waited: now.waited.saturating_sub(self.last.waited),
        };
        self.last = now;
        let units = done.saturating_sub(core::mem::replace(&mut self.done, done));
        self.paused += portion.waited;
        self.calm = if is_in_the_way(portion) { 0 } else { self.calm.saturating_add(1) };
        if self.calm >= CALM_PORTIONS {
            return;
        }
        let left = self.within.saturating_sub(self.begun.elapsed());
        let until = Instant::now() + pause(portion.worked, left, units, whole.saturating_sub(done));
        let begun = Instant::now();
        while !is_over() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(LOOK));
        }
        self.paused += begun.elapsed();
    }

    /// Time in which the task took no processor from anybody: pauses, and waiting for one.
    pub fn paused(&self) -> Duration {
        self.paused
    }
}

fn is_in_the_way(portion: Times) -> bool {
    portion.waited > portion.worked / WAITED_PART
}

/// How long to pause after a portion of work of so many units, when `rest` are to come; `left`:
/// time in which all pauses must end (1). Each portion gets its part of it.
fn pause(worked: Duration, left: Duration, units: u64, rest: u64) -> Duration {
    if rest == 0 {
        return Duration::ZERO;
    }
    let part = units as f64 / (units.saturating_add(rest)) as f64;
    (worked * (PART - 1)).min(left.mul_f64(part))
}

/// Of the calling thread.
fn times(counts: &File) -> Option<Times> {
    let mut text = [0; 80];
    let length = counts.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..length]).ok()?;
    let waited = text.split_whitespace().nth(1)?.parse().ok()?;
    // The kernel's count of what this thread has run is as old as the last tick: its clock is not.
    let mut clock = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes into `clock`.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut clock) };
    let worked = Duration::new(clock.tv_sec.try_into().ok()?, clock.tv_nsec.try_into().ok()?);
    (failed == 0).then_some(Times { worked, waited: Duration::from_nanos(waited) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn pauses_are_a_multiple_of_the_work_and_end_in_time() {
        assert_eq!(pause(MS(1), MS(60_000), 1, 9), MS(49));
        assert_eq!(pause(MS(1), Duration::ZERO, 1, 9), Duration::ZERO, "the time is over");
        assert_eq!(pause(MS(1), MS(60_000), 10, 0), Duration::ZERO, "nothing is left to do");
        // A task of much work: the pauses of a hundred portions take no more than there is.
        let mut left = MS(4000);
        for done in 1..=100 {
            let pause = pause(MS(100), left, 1, 100 - done);
            let even = if done < 100 { MS(40) } else { Duration::ZERO };
            assert!(pause.abs_diff(even) < MS(1), "{done}: {pause:?}");
            left -= pause;
        }
        assert_eq!(pause(MS(1), MS(1000), 0, 5), Duration::ZERO, "of nothing");
    }

    #[test]
    fn a_thread_that_waits_is_in_the_way() {
        let of = |worked, waited| Times { worked: MS(worked), waited: MS(waited) };
        assert!(is_in_the_way(of(8, 2)) && is_in_the_way(of(0, 1)));
        assert!(!is_in_the_way(of(8, 1)) && !is_in_the_way(of(8, 0)));
    }

    #[test]
    fn without_a_time_there_are_no_pauses_and_a_task_that_is_over_has_no_more() {
        let mut none = Pace::new(Duration::ZERO);
        none.rest(1, 1000, || panic!("no pause"));
        assert_eq!(none.paused(), Duration::ZERO);
        let Some(counted) = File::open("/proc/thread-self/schedstat").ok().as_ref().and_then(times)
        else {
            return eprintln!("SKIPPED: this kernel does not count how long a thread waits");
        };
        let mut pace = Pace::new(Duration::from_secs(3600));
        let work = (0..2_000_000u64).fold(0, |sum: u64, n| std::hint::black_box(sum ^ n));
        std::hint::black_box(work);
        let looks = Cell::new(0);
        pace.rest(1, 2, || looks.replace(looks.get() + 1) == 3);
        assert!(looks.get() == 4 || pace.paused() < LOOK, "{looks:?}");
        assert!(times(pace.counts.as_ref().unwrap()).unwrap().worked > counted.worked);
    }
}
