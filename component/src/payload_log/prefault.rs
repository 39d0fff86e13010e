//! Fresh pages for the payload log, made beside the program.
//!
//! Whoever writes to fresh memory first waits while the kernel finds and zeroes pages, which takes
//! longer than the copy itself. A thread does that ahead of need, on a processor that no rank uses
//! (`os/idle_processor.rs`).
//!
//! A slot belongs to the log while it is EMPTY or READY and to the thread while it is WANTED; who
//! gives it away does so with a Release that the other's Acquire sees (`[slot]`). There is no
//! lock: a thread that was stopped for ever only costs speed.

use crate::os::idle_processor;
use crate::os::process::leave_processor;
use crate::os::signals;
use crate::payload_log::segment::Segment;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Segments that are prepared or being prepared, at most.
const SLOTS: usize = 16;
/// Bytes of these, at most.
const AHEAD_BYTES: usize = 64 << 20;
/// One segment is kept ready for this many that were used: who logs little pays for little.
const USED_PER_READY: usize = 4;
/// Sizes that are kept apart.
const SIZES: usize = 8;

const EMPTY: usize = 0;
const WANTED: usize = 1;
// Anything else: READY, the start of the segment.

#[derive(Debug, Default)]
struct Slot {
    state: AtomicUsize,
    bytes: AtomicUsize,
}

#[derive(Debug, Default)]
struct Slots {
    slots: [Slot; SLOTS],
    over: AtomicBool,
}

/// The thread and what it prepares.
#[derive(Debug)]
pub struct Prefault {
    slots: Arc<Slots>,
    worker: Option<JoinHandle<()>>,
    /// Sizes that were asked for, and how often.
    used: [(usize, usize); SIZES],
    /// The next of these to be forgotten for another size.
    forget: usize,
}

impl Prefault {
    /// Start the thread. `None`: the system has none to give.
    pub fn start() -> Option<Self> {
        let slots = Arc::new(Slots::default());
        let shared = Arc::clone(&slots);
        // Threads inherit the mask: signals are the program's.
        let mask = signals::block_all();
        let builder = std::thread::Builder::new().name("rustbtl-pages".into());
        let started = builder.stack_size(64 << 10).spawn(move || work(&shared));
        signals::restore(&mask);
        Some(Self { slots, worker: Some(started.ok()?), used: [(0, 0); SIZES], forget: 0 })
    }

    /// How often was this size asked for, now included?
    fn count(&mut self, bytes: usize) -> usize {
        let known = self.used.iter().position(|&(size, _)| size == bytes);
        let at = known.unwrap_or_else(|| {
            self.forget = (self.forget + 1) % SIZES;
            self.used[self.forget] = (bytes, 0);
            self.forget
        });
        self.used[at].1 += 1;
        self.used[at].1
    }

    /// A prepared segment of this size, if there is one. Those that are likely to be asked for
    /// next are prepared from now on.
    pub fn take(&mut self, bytes: usize) -> Option<Segment> {
        let count = self.count(bytes);
        let mut taken = None;
        let (mut same, mut all) = (0, 0);
        for slot in &self.slots.slots {
            // [slot] the thread has written to the pages.
            let state = slot.state.load(Ordering::Acquire);
            if state == EMPTY {
                continue;
            }
            let has = slot.bytes.load(Ordering::Relaxed);
            if state != WANTED && has == bytes && taken.is_none() {
                // SAFETY: the thread gave this segment away with its address; it is taken once.
                taken = unsafe { Segment::from_raw(state, has) };
                // [slot] nothing of ours is in it.
                slot.state.store(EMPTY, Ordering::Release);
                continue;
            }
            all += has;
            same += usize::from(has == bytes);
        }
        let most = (count / USED_PER_READY).saturating_sub(same);
        self.want(bytes, most.min(AHEAD_BYTES.saturating_sub(all) / bytes));
        taken
    }

    /// Ask for this many more segments.
    fn want(&self, bytes: usize, segments: usize) {
        if segments == 0 || !idle_processor::may_ask() {
            return;
        }
        // [slot] the thread has nothing in it.
        let empty = |slot: &&Slot| slot.state.load(Ordering::Acquire) == EMPTY;
        for slot in self.slots.slots.iter().filter(empty).take(segments) {
            slot.bytes.store(bytes, Ordering::Relaxed);
            // [slot] the size.
            slot.state.store(WANTED, Ordering::Release);
        }
        if let Some(worker) = &self.worker {
            worker.thread().unpark();
        }
    }

    /// Where segments are that are prepared and not taken. The thread does not touch them.
    pub fn ready_ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.slots.slots.iter().filter_map(|slot| {
            // [slot] the size.
            let start = slot.state.load(Ordering::Acquire);
            let bytes = slot.bytes.load(Ordering::Relaxed);
            (start > WANTED).then_some(start..start + bytes)
        })
    }

    /// Prepared and not taken.
    pub fn ready_bytes(&self) -> usize {
        let ready = |slot: &&Slot| slot.state.load(Ordering::Relaxed) > WANTED;
        let bytes = |slot: &Slot| slot.bytes.load(Ordering::Relaxed);
        self.slots.slots.iter().filter(ready).map(bytes).sum()
    }
}

impl Drop for Prefault {
    fn drop(&mut self) {
        self.slots.over.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            worker.thread().unpark();
            let _ = worker.join();
        }
        for slot in &self.slots.slots {
            let state = slot.state.load(Ordering::Acquire);
            if state > WANTED {
                // SAFETY: the thread is gone; nobody took this segment.
                drop(unsafe { Segment::from_raw(state, slot.bytes.load(Ordering::Relaxed)) });
            }
        }
    }
}

fn work(slots: &Slots) {
    leave_processor();
    while !slots.over.load(Ordering::Relaxed) {
        let mut worked = false;
        for slot in &slots.slots {
            // [slot] the size.
            if slot.state.load(Ordering::Acquire) != WANTED || slots.over.load(Ordering::Relaxed) {
                continue;
            }
            worked = true;
            // Where none is idle the log makes its own pages, when it needs them.
            let bytes = slot.bytes.load(Ordering::Relaxed);
            let made = idle_processor::is_there().then(|| Segment::anonymous(bytes).ok()).flatten();
            let state = made.map_or(EMPTY, |mut segment| {
                segment.touch();
                segment.into_raw()
            });
            // [slot] the pages.
            slot.state.store(state, Ordering::Release);
        }
        if !worked {
            std::thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    const BYTES: usize = 4 << 20;

    fn wait_for(mut condition: impl FnMut() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(60), "the thread does not work");
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_uses_much_finds_segments_prepared() {
        let mut pages = Prefault::start().unwrap();
        for _ in 0..8 {
            let _ = pages.take(BYTES);
        }
        wait_for(|| pages.ready_bytes() >= 2 * BYTES);
        let mut segment = pages.take(BYTES).unwrap();
        segment.as_mut().fill(1);
        assert_eq!(segment.as_ref().len(), BYTES);
        assert!(pages.ready_bytes() <= AHEAD_BYTES);
    }

    #[test]
    fn who_uses_little_has_nothing_kept_ready() {
        let mut pages = Prefault::start().unwrap();
        assert!(pages.take(BYTES).is_none() && pages.take(BYTES).is_none());
        assert_eq!(pages.ready_bytes(), 0);
    }

    #[test]
    fn sizes_do_not_mix() {
        let mut pages = Prefault::start().unwrap();
        for _ in 0..16 {
            let _ = pages.take(BYTES / 2);
        }
        wait_for(|| pages.ready_bytes() > BYTES);
        assert!(pages.take(BYTES).is_none());
        for odd in 1..40 {
            assert!(pages.take(BYTES + (odd << 16)).is_none());
        }
        assert_eq!(pages.take(BYTES / 2).unwrap().as_ref().len(), BYTES / 2);
    }

    #[test]
    fn the_thread_blocks_all_signals_and_has_a_name() {
        let _pages = Prefault::start().unwrap();
        let tasks = || std::fs::read_dir("/proc/self/task").unwrap().flatten();
        wait_for(|| {
            tasks().any(|task| {
                let read = |file| std::fs::read_to_string(task.path().join(file));
                let name = read("comm").unwrap_or_default();
                let status = read("status").unwrap_or_default();
                let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
                let mask = u64::from_str_radix(blocked.unwrap_or("0").trim(), 16).unwrap_or(0);
                // All but those that cannot be blocked and glibc's own two.
                name.trim() == "rustbtl-pages" && mask.count_ones() >= 60
            })
        });
    }
}
