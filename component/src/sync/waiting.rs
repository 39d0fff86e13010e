//! How long the program has waited inside MPI with nothing to do: for `rustbtl report`, which draws
//! whom a failure has kept waiting.
//!
//! Only fruitless rounds of waiting loops are counted, by the processor's own clock: no system
//! call, no lock, and nothing at all where a message is there soon. Waits of a few microseconds are
//! therefore left out. With several threads it counts those of whoever has the engine; rounds that
//! two of them end at the same time may count once.
//!
//! On processors that others want as well a round ends late, because the thread did not run, and
//! the clock alone cannot tell that from a program that has computed. While somebody decides by
//! the answer (does anything move while sets replay? may a drain stop whom others wait for?), long
//! rounds ask the kernel how long the thread has run: a system call, so only then.

use crate::os::{now_ns, thread_ns, ticks};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// In a loop that is not ours: between two fruitless rounds the program may have computed if more
/// ticks have passed (some 10 to 30 us).
const ROUND_TICKS_MAX: u64 = 50_000;
/// The same in processor time of the thread.
const ROUND_RAN_NS_MAX: u64 = 30_000;
/// The same where a round takes longer, because others had the processor: no more than this part of
/// it. (The first polls after that are slow. A program that computes gets more.)
const ROUND_RAN_PART: u64 = 100;
/// A program that does not run for longer than this between two rounds does something else: it
/// sleeps, or reads a file.
const PAUSE_NS_MAX: u64 = 2_000_000_000;

/// Written by the program's threads, read by the checkpoint thread.
#[derive(Debug)]
pub struct Waiting {
    ticks: AtomicU64,
    /// Until then it is counted.
    counted: AtomicU64,
    /// Rounds ask for the processor time.
    watched: AtomicBool,
    /// Which thread has ended the last long round, when, and its processor time then, in
    /// nanoseconds.
    thread: AtomicU64,
    at_ticks: AtomicU64,
    at_ns: AtomicU64,
    ran_ns: AtomicU64,
}

/// The end of a round, with the clocks of the thread that ends it.
#[derive(Clone, Copy, Debug)]
struct Moment {
    ticks: u64,
    at_ns: u64,
    ran_ns: u64,
    thread: u64,
}

impl Moment {
    fn now() -> Self {
        thread_local!(static HERE: u8 = const { 0 });
        let thread = HERE.with(|here| core::ptr::from_ref(here).addr() as u64);
        Self { ticks: ticks(), at_ns: now_ns(), ran_ns: thread_ns(), thread }
    }
}

/// Of this process.
pub static WAITING: Waiting = Waiting::new();

impl Waiting {
    const fn new() -> Self {
        const fn zero() -> AtomicU64 {
            AtomicU64::new(0)
        }
        Self {
            ticks: zero(),
            counted: zero(),
            watched: AtomicBool::new(false),
            thread: zero(),
            at_ticks: zero(),
            at_ns: zero(),
            ran_ns: zero(),
        }
    }

    /// From now on, or no longer, somebody decides by what is counted.
    pub fn watch(&self, watched: bool) {
        self.watched.store(watched, Ordering::Relaxed);
    }

    fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    /// From now on there is nothing to do.
    pub fn begin(&self) {
        if self.is_watched() {
            return self.end_watched_round(false);
        }
        self.begin_at(ticks());
    }

    fn begin_at(&self, now: u64) {
        self.counted.store(now, Ordering::Relaxed);
    }

    /// There was nothing to do since the last call.
    pub fn end_round(&self) {
        if self.is_watched() {
            return self.end_watched_round(true);
        }
        self.end_round_at(ticks(), u64::MAX);
    }

    /// The same in a loop of Open MPI or of the program, which may have computed in between.
    pub fn end_foreign_round(&self) {
        if self.is_watched() {
            return self.end_watched_round(false);
        }
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

    fn end_watched_round(&self, is_ours: bool) {
        let now = ticks();
        if now.saturating_sub(self.counted.load(Ordering::Relaxed)) <= ROUND_TICKS_MAX {
            return self.end_round_at(now, u64::MAX);
        }
        self.end_long_round_at(Moment::now(), is_ours);
    }

    /// `is_ours`: there was nothing to do since the last round ended. If not, the program may have
    /// computed, but then its thread has run, and not only in the short rounds before.
    fn end_long_round_at(&self, now: Moment, is_ours: bool) {
        let same_thread = self.thread.swap(now.thread, Ordering::Relaxed) == now.thread;
        let all_ns = now.at_ns.saturating_sub(self.at_ns.swap(now.at_ns, Ordering::Relaxed));
        let all = now.ticks.saturating_sub(self.at_ticks.swap(now.ticks, Ordering::Relaxed)).max(1);
        let short = self.counted.load(Ordering::Relaxed).saturating_add(all);
        let short = short.saturating_sub(now.ticks).min(all);
        let short_ns = (all_ns as f64 * (short as f64 / all as f64)) as u64;
        let passed_ns = all_ns.saturating_sub(short_ns);
        let before_ns = self.ran_ns.swap(now.ran_ns, Ordering::Relaxed);
        let ran_ns =
            now.ran_ns.checked_sub(before_ns).map(|ran_ns| ran_ns.saturating_sub(short_ns));
        let most_ns = ROUND_RAN_NS_MAX.max(passed_ns / ROUND_RAN_PART);
        // The clocks of another thread, or of the process that was before a restore, say nothing.
        let has_waited = same_thread
            && passed_ns <= PAUSE_NS_MAX
            && ran_ns.is_some_and(|ran_ns| ran_ns <= most_ns);
        let most = if is_ours || has_waited { u64::MAX } else { ROUND_TICKS_MAX };
        self.end_round_at(now.ticks, most);
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
    fn watched_rounds_count_unless_the_thread_has_run() {
        let waiting = Waiting::new();
        waiting.watch(true);
        let moment = |ms: u64, ran_ns| {
            let at_ns = ms * 1_000_000;
            Moment { ticks: 2 * at_ns, at_ns, ran_ns, thread: 1 }
        };
        let waited_ms = |at: Moment, is_ours| {
            let before = waiting.ticks();
            waiting.end_long_round_at(at, is_ours);
            (waiting.ticks() - before) / 2_000_000
        };
        assert_eq!(waited_ms(moment(5_000, 7), false), 0, "nobody knows what was before");
        assert_eq!(waited_ms(moment(5_300, 20_007), false), 300, "it did not run");
        assert_eq!(waited_ms(moment(5_301, 20_008 + ROUND_RAN_NS_MAX), false), 0, "computed");
        assert_eq!(waited_ms(moment(5_601, 3_000_000), false), 300, "slow polls of a busy node");
        assert_eq!(waited_ms(moment(5_650, 3_600_000), false), 0, "computed on such a one");
        assert_eq!(waited_ms(moment(5_750, 9_000_000), true), 100, "in a loop of ours");
        assert_eq!(waited_ms(moment(7_751, 9_000_001), false), 0, "it slept, or read a file");
        assert_eq!(waited_ms(Moment { thread: 2, ..moment(7_851, 9_000_002) }, false), 0);
        assert_eq!(waited_ms(Moment { thread: 2, ..moment(7_951, 9_000_003) }, false), 100);
        assert_eq!(waited_ms(Moment { thread: 2, ..moment(8_051, 4) }, false), 0, "restored");
    }

    #[test]
    fn what_a_thread_has_run_in_short_rounds_is_no_computing() {
        let waiting = Waiting::new();
        let moment = |us: u64, ran_us: u64| {
            let at_ns = us * 1000;
            Moment { ticks: 2 * at_ns, at_ns, ran_ns: ran_us * 1000, thread: 1 }
        };
        let count = |ran_us| {
            waiting.end_long_round_at(moment(1_000_000, 0), true);
            for us in (1_000_010..=1_010_000).step_by(10) {
                waiting.end_round_at(2000 * us, u64::MAX);
            }
            let before = waiting.ticks();
            waiting.end_long_round_at(moment(1_310_000, ran_us), false);
            (waiting.ticks() - before) / 2_000_000
        };
        assert_eq!(count(10_020), 300);
        assert_eq!(count(13_100), 0, "more than 3 ms");
    }

    #[test]
    fn who_is_watched_asks_for_the_clocks_of_its_thread() {
        let waiting = Waiting::new();
        waiting.watch(true);
        waiting.begin();
        std::thread::sleep(std::time::Duration::from_millis(3));
        waiting.end_round();
        assert!(waiting.ticks() > 0);
        let [before, after] = [Moment::now(), Moment::now()];
        assert!(before.ran_ns <= after.ran_ns && before.at_ns <= after.at_ns);
        assert_eq!(before.thread, after.thread);
        let other = std::thread::spawn(Moment::now).join().expect("no panic");
        assert_ne!(before.thread, other.thread);
    }

    #[test]
    fn ticks_become_nanoseconds() {
        let rate = TickRate { ticks: 1000, ns: 50 };
        assert_eq!(rate.ns_at(3000, 3000, 1050), 1500);
        assert_eq!(rate.ns_at(7, 1000, 50), 0, "it was made just now");
    }
}
