//! Copies of long messages in the payload log, shared with a thread where a processor is idle.
//!
//! The sender's processor does all that TCP does for a message, and copies it into the log: that
//! is twice the work of who keeps no log. The copy is independent of the rest, and made in steps
//! that whoever has time claims: the process when it waits, the thread at once. A thread that never
//! gets a processor only costs speed, unless it is stopped in a step, which ends soon. It is woken
//! and copies only while a processor is idle (`os/idle_processor.rs`).
//!
//! Invariants:
//! * P1 A step is claimed once (`next`), and written before it is counted (`done`, `[done]`).
//!   [`Copy::abandon`] claims all the rest at once and makes nothing of it.
//! * P2 Both ends of a copy stay where they are until it is done: `pending_copies` keeps the
//!   operation, hence the program's buffer, and has the log keep the record.

use crate::os::copy::past_caches;
use crate::os::idle_processor;
use crate::os::process::leave_processor;
use crate::os::signals;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that are copied in one go.
const STEP_BYTES: usize = 64 << 10;
/// Copies below this are over before a thread has woken up.
const SHARED_BYTES_MIN: usize = 128 << 10;
/// How long the thread polls for another copy before it goes to sleep.
const LINGER: Duration = Duration::from_micros(200);
/// Copies that wait for the thread, at most.
const WAITING_MAX: usize = 64;

/// One copy.
#[derive(Debug)]
pub struct Copy {
    from: *const u8,
    to: *mut u8,
    bytes: usize,
    /// Bytes below are copied or being copied.
    next: AtomicUsize,
    /// So many are.
    done: AtomicUsize,
}

// SAFETY: each byte is written by one thread (P1), and where it is stays (P2).
unsafe impl Send for Copy {}
// SAFETY: as above.
unsafe impl Sync for Copy {}

impl Copy {
    /// Of `from` into the memory at `to`.
    ///
    /// # Safety
    /// Until it is done both stay where they are, `from` unchanged; `to` is writable for as many
    /// bytes, and nobody else uses these.
    pub unsafe fn new(from: &[u8], to: *mut u8) -> Self {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { from: from.as_ptr(), to, bytes: from.len(), next, done }
    }

    /// Is every byte copied or being copied?
    #[inline]
    pub fn is_begun(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.bytes
    }

    /// Is every byte copied?
    #[inline]
    pub fn is_done(&self) -> bool {
        // [done] the bytes.
        self.done.load(Ordering::Acquire) == self.bytes
    }

    /// Copy a step that nobody has begun. False: there is none.
    pub fn step(&self) -> bool {
        let Some(start) = self.claim() else { return false };
        self.make(start);
        true
    }

    /// Claim a step that nobody has begun: where it starts.
    fn claim(&self) -> Option<usize> {
        if self.is_begun() {
            return None;
        }
        let start = self.next.fetch_add(STEP_BYTES, Ordering::Relaxed);
        (start < self.bytes).then_some(start)
    }

    /// Copy the step that was claimed.
    fn make(&self, start: usize) {
        let bytes = STEP_BYTES.min(self.bytes - start);
        let (to, from) = (self.to.wrapping_add(start), self.from.wrapping_add(start));
        // SAFETY: the promises of `new`; the step is ours alone (P1).
        let to = unsafe { core::slice::from_raw_parts_mut(to, bytes) };
        // SAFETY: as above.
        let from = unsafe { core::slice::from_raw_parts(from, bytes) };
        past_caches(to, from);
        // [done] the bytes.
        self.done.fetch_add(bytes, Ordering::Release);
    }

    /// Copy all that is left, and wait for what the thread has begun.
    pub fn finish(&self) {
        while self.step() {}
        while !self.is_done() {
            crate::os::yield_now();
        }
    }

    /// Nobody needs it: begin nothing more, and wait for the steps that somebody has begun. Then
    /// nobody reads or writes either end any more, and the copy is never done. Once.
    pub fn abandon(&self) {
        self.abandon_waiting(crate::os::yield_now);
    }

    fn abandon_waiting(&self, mut wait: impl FnMut()) {
        let begun = self.next.swap(self.bytes, Ordering::Relaxed).min(self.bytes);
        // [done] the bytes: what is written to this memory next comes later.
        while self.done.load(Ordering::Acquire) < begun {
            wait();
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<VecDeque<Arc<Copy>>>,
    /// How many wait, for who does not want the lock.
    count: AtomicUsize,
    asleep: AtomicBool,
    over: AtomicBool,
}

impl Queue {
    fn take(&self) -> Option<Arc<Copy>> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = waiting.pop_front();
        self.count.store(waiting.len(), Ordering::SeqCst);
        copy
    }

    /// Nothing waits, and it is not over.
    fn has_nothing(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0 && !self.over.load(Ordering::SeqCst)
    }
}

/// The thread.
#[derive(Debug)]
pub struct LogCopier {
    queue: Arc<Queue>,
    worker: Option<JoinHandle<()>>,
}

impl LogCopier {
    /// Start it. `None`: the system has none to give.
    pub fn start() -> Option<Self> {
        let queue = Arc::new(Queue::default());
        let shared = Arc::clone(&queue);
        // Threads inherit the mask: signals are the program's.
        let mask = signals::block_all();
        let builder = std::thread::Builder::new().name("rustbtl-copy".into());
        let started = builder.stack_size(64 << 10).spawn(move || work(&shared));
        signals::restore(&mask);
        Some(Self { queue, worker: Some(started.ok()?) })
    }

    /// Have the thread take part in a copy, if that is worth it.
    pub fn offer(&self, copy: &Arc<Copy>) {
        // Who finds the lock taken does not wait for it.
        if copy.bytes >= SHARED_BYTES_MIN
            && idle_processor::may_ask()
            && let Ok(mut waiting) = self.queue.waiting.try_lock()
            && waiting.len() < WAITING_MAX
        {
            waiting.push_back(Arc::clone(copy));
            // [count] before `asleep` is looked at; the thread does it the other way round.
            self.queue.count.store(waiting.len(), Ordering::SeqCst);
            drop(waiting);
            if self.queue.asleep.load(Ordering::SeqCst) {
                self.wake();
            }
        }
    }

    fn wake(&self) {
        if let Some(worker) = &self.worker {
            worker.thread().unpark();
        }
    }
}

impl Drop for LogCopier {
    fn drop(&mut self) {
        self.queue.over.store(true, Ordering::SeqCst);
        self.wake();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

fn work(queue: &Queue) {
    leave_processor();
    while !queue.over.load(Ordering::SeqCst) {
        if let Some(copy) = queue.take() {
            // Without it the process copies alone.
            if idle_processor::is_there() {
                while copy.step() {}
            }
            continue;
        }
        let since = Instant::now();
        let linger = if idle_processor::was_there() { LINGER } else { Duration::ZERO };
        while queue.has_nothing() && since.elapsed() < linger {
            core::hint::spin_loop();
        }
        // [count]
        queue.asleep.store(true, Ordering::SeqCst);
        if queue.has_nothing() {
            std::thread::park();
        }
        queue.asleep.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shares_a_copy_finds_all_of_it_once() {
        let copier = LogCopier::start().unwrap();
        for round in 0..200usize {
            let bytes = round * 9_973 + usize::from(round % 2 == 0) * SHARED_BYTES_MIN;
            let from: Vec<u8> = (0..bytes).map(|at| (at / 7 + round) as u8).collect();
            // The byte behind it is nobody's.
            let mut to = vec![0xEE; bytes + 1];
            // SAFETY: both live until it is done.
            let copy = Arc::new(unsafe { Copy::new(&from, to.as_mut_ptr()) });
            copier.offer(&copy);
            if round % 3 == 0 {
                while !copy.step() && !copy.is_begun() {}
            }
            copy.finish();
            assert!(copy.is_done() && copy.is_begun() && !copy.step());
            assert_eq!((&to[..bytes], to[bytes]), (&from[..], 0xEE));
        }
    }

    #[test]
    fn who_abandons_a_copy_waits_for_the_steps_that_others_have_begun() {
        let from = vec![7u8; 5 * STEP_BYTES + 100];
        let mut to = vec![0u8; from.len()];
        // SAFETY: both live until it is abandoned.
        let copy = unsafe { Copy::new(&from, to.as_mut_ptr()) };
        assert!(copy.step());
        // Another thread is in the middle of two steps; they end in turn while we wait.
        let mut begun = vec![copy.claim().unwrap(), copy.claim().unwrap()];
        copy.abandon_waiting(|| {
            assert!(!copy.step(), "P1: all the rest is claimed");
            copy.make(begun.pop().expect("both steps are over, and it still waits"));
        });
        assert!(begun.is_empty(), "P2: the memory is in use until both are over");
        assert!(copy.is_begun() && !copy.is_done() && !copy.step());
        let (made, rest) = to.split_at(3 * STEP_BYTES);
        assert!(made.iter().all(|&byte| byte == 7) && rest.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_copy_can_be_abandoned_before_it_begins_and_after_it_is_done() {
        for bytes in [0, 1, STEP_BYTES, STEP_BYTES + 1] {
            let from = vec![7u8; bytes];
            let mut to = vec![0u8; bytes];
            for steps in [0, 1, 2] {
                // SAFETY: both live until it is abandoned.
                let copy = unsafe { Copy::new(&from, to.as_mut_ptr()) };
                (0..steps).for_each(|_| {
                    copy.step();
                });
                copy.abandon_waiting(|| panic!("nothing is under way"));
                assert!(!copy.step() && copy.is_begun());
                assert_eq!(copy.is_done(), bytes.div_ceil(STEP_BYTES) <= steps);
            }
        }
    }

    #[test]
    fn memory_of_an_abandoned_copy_is_not_written_to_by_the_thread() {
        let copier = LogCopier::start().unwrap();
        let from = vec![7u8; 1 << 20];
        let mut to = vec![0u8; from.len()];
        for round in 0..300usize {
            // SAFETY: both live until it is abandoned.
            let copy = Arc::new(unsafe { Copy::new(&from, to.as_mut_ptr()) });
            copier.offer(&copy);
            (0..round % 5).for_each(|_| {
                copy.step();
            });
            copy.abandon();
            to.fill(1);
            std::thread::yield_now();
            assert!(to.iter().all(|&byte| byte == 1), "P2: round {round}");
        }
    }

    #[test]
    fn a_thread_that_sleeps_is_woken_for_a_copy() {
        let copier = LogCopier::start().unwrap();
        let from = vec![7u8; 1 << 20];
        for _ in 0..3 {
            let start = Instant::now();
            while !copier.queue.asleep.load(Ordering::SeqCst) {
                assert!(start.elapsed() < Duration::from_secs(60), "it does not go to sleep");
                std::thread::yield_now();
            }
            let mut to = vec![0u8; from.len()];
            // SAFETY: both live until it is done.
            let copy = Arc::new(unsafe { Copy::new(&from, to.as_mut_ptr()) });
            copier.offer(&copy);
            let start = Instant::now();
            while !copy.is_done() {
                assert!(start.elapsed() < Duration::from_secs(60), "nobody copies");
                std::thread::yield_now();
            }
            assert_eq!(to, from);
        }
    }
}
