//! Is a processor of this node idle, so that a thread beside the program takes nothing from a rank?
//!
//! Two answers together. Where the ranks of the node are as many as the processors that they may
//! use, none is idle ([`allow`]). Elsewhere it is measured, since processors may be busy with other
//! jobs or with threads of the program: the idle time of /proc/stat, summed over the processors
//! that the asking thread may run on, and what our own threads have used of it. A rank that polls
//! is busy: whoever runs in its place is in its way, although it does nothing but wait.
//!
//! Only threads of ours measure, each half second at most while they are awake. The program reads
//! what they have found ([`may_ask`]); where that is old, it wakes a thread that measures again.

use crate::os::affinity::may_run_on;
use crate::os::{now_ns, thread_ns};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Between two measurements, at least.
const INTERVAL_NS: u64 = 500_000_000;
/// What was found is believed for so long without another one.
const OLD_NS: u64 = 1_000_000_000;
/// A processor is idle if so much of one was, in thousandths.
const IDLE_MIN: u64 = 500;

/// What is known of the node.
#[derive(Debug)]
struct IdleProcessor {
    /// There are more processors than ranks.
    allowed: AtomicBool,
    /// What was found last, and when.
    idle: AtomicBool,
    found_ns: AtomicU64,
    /// What our own threads have used.
    used_ns: AtomicU64,
    last: Mutex<Option<Sample>>,
}

static NODE: IdleProcessor = IdleProcessor::new();

thread_local! {
    /// What this thread had used when it was asked last.
    static THREAD_NS: Cell<u64> = const { Cell::new(0) };
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at_ns: u64,
    idle_ns: u64,
    used_ns: u64,
}

/// Are there more processors than ranks on this node? Until it is measured none is idle.
pub fn allow(more_processors_than_ranks: bool) {
    NODE.allow(more_processors_than_ranks);
}

/// Was one idle when that was measured last?
#[inline]
pub fn was_there() -> bool {
    // Tests of threads must not depend on what else runs on the machine.
    cfg!(test) || NODE.idle.load(Ordering::Relaxed)
}

/// Is it worth to wake a thread that does something on an idle processor? Not for short messages:
/// it reads the clock.
pub fn may_ask() -> bool {
    was_there() || NODE.is_old(now_ns())
}

/// For threads of ours that may run on any processor ([`super::process::leave_processor`]): is one
/// idle now?
pub fn is_there() -> bool {
    cfg!(test) || NODE.is_there(now_ns())
}

impl IdleProcessor {
    const fn new() -> Self {
        let [allowed, idle] = [const { AtomicBool::new(false) }; 2];
        let [found_ns, used_ns] = [const { AtomicU64::new(0) }; 2];
        Self { allowed, idle, found_ns, used_ns, last: Mutex::new(None) }
    }

    fn allow(&self, allowed: bool) {
        self.allowed.store(allowed, Ordering::Relaxed);
        self.idle.store(false, Ordering::Relaxed);
        // Maybe another node, with another clock.
        self.found_ns.store(0, Ordering::Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Is it time to measure, and would that change anything?
    fn is_old(&self, now: u64) -> bool {
        let age = now.saturating_sub(self.found_ns.load(Ordering::Relaxed));
        self.allowed.load(Ordering::Relaxed) && age > OLD_NS
    }

    fn is_there(&self, now: u64) -> bool {
        if !self.allowed.load(Ordering::Relaxed) {
            return false;
        }
        if now.saturating_sub(self.found_ns.load(Ordering::Relaxed)) >= INTERVAL_NS {
            self.measure(now);
        }
        self.idle.load(Ordering::Relaxed)
    }

    #[cold]
    fn measure(&self, now: u64) {
        let used = thread_ns();
        let before = THREAD_NS.replace(used);
        self.used_ns.fetch_add(used.saturating_sub(before), Ordering::Relaxed);
        let Ok(stat) = std::fs::read_to_string("/proc/stat") else { return };
        let idle_ns = idle_ticks(&stat, may_run_on) * tick_ns();
        let used_ns = self.used_ns.load(Ordering::Relaxed);
        let sample = Sample { at_ns: now, idle_ns, used_ns };
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(sample);
        if let Some(last) = last {
            self.idle.store(is_idle(last, sample), Ordering::Relaxed);
        }
        self.found_ns.store(now, Ordering::Relaxed);
    }
}

/// Was a processor idle between the two?
fn is_idle(last: Sample, now: Sample) -> bool {
    let free_ns = now.idle_ns.saturating_sub(last.idle_ns) + (now.used_ns - last.used_ns);
    free_ns.saturating_mul(1000) >= now.at_ns.saturating_sub(last.at_ns).saturating_mul(IDLE_MIN)
}

/// Idle time of these processors, and what they wait for disks: fields 4 and 5 (proc_stat(5)).
fn idle_ticks(stat: &str, counts: impl Fn(usize) -> bool) -> u64 {
    let processor = |line: &str| {
        let (name, fields) = line.strip_prefix("cpu")?.split_once(' ')?;
        let fields = fields.split_ascii_whitespace().skip(3).take(2);
        let ticks = fields.flat_map(str::parse::<u64>).sum::<u64>();
        name.parse().is_ok_and(&counts).then_some(ticks)
    };
    stat.lines().map_while(|line| line.starts_with("cpu").then(|| processor(line))).flatten().sum()
}

fn tick_ns() -> u64 {
    // SAFETY: no memory is passed.
    1_000_000_000 / unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  9 9 9 9 9 9\ncpu0 1 2 3 40 5 6\ncpu1 1 2 3 400 7 6\nintr 1 2 3 4 5\n";

    #[test]
    fn idle_time_is_summed_over_the_processors_that_may_be_used() {
        assert_eq!(idle_ticks(STAT, |_| true), 452);
        assert_eq!(idle_ticks(STAT, |at| at == 1), 407);
        assert_eq!(idle_ticks("", |_| true), 0);
    }

    #[test]
    fn what_our_threads_have_used_was_idle_before() {
        let last = Sample { at_ns: 10, idle_ns: 1000, used_ns: 7 };
        let later = |idle_ns, used_ns| Sample { at_ns: 10 + 1000, idle_ns, used_ns };
        assert!(is_idle(last, later(1500, 7)) && is_idle(last, later(1100, 407)));
        assert!(!is_idle(last, later(1499, 7)) && !is_idle(last, later(1000, 7)));
    }

    #[test]
    fn no_processor_is_idle_where_ranks_have_all() {
        let node = IdleProcessor::new();
        node.allow(false);
        assert!(!node.is_there(now_ns()) && !node.is_old(u64::MAX));
        node.allow(true);
        assert!(node.is_old(now_ns()), "nothing is known yet");
        assert!(!node.is_there(now_ns()), "there is only one sample");
        assert!(node.found_ns.load(Ordering::Relaxed) > 0);
    }

    #[test]
    fn a_busy_node_is_asked_again_after_a_second() {
        let node = IdleProcessor::new();
        node.allow(true);
        let long_ago = Sample { at_ns: 0, idle_ns: u64::MAX, used_ns: 0 };
        *node.last.lock().unwrap() = Some(long_ago);
        assert!(!node.is_there(OLD_NS), "no time was idle since then");
        assert!(!node.is_old(2 * OLD_NS) && node.is_old(2 * OLD_NS + 1));
        assert!(!node.is_there(OLD_NS + INTERVAL_NS - 1), "what was found last");
    }
}
