//! Exclusion between the program's thread and the checkpoint thread, where the program has but one
//! thread in MPI at a time. The program's side pays two plain stores and a load; the other side,
//! which comes seldom, pays a system call that makes every running thread of the process pass a
//! barrier (Dekker's algorithm with an asymmetric fence; membarrier(2)).
//!
//! Invariants:
//! * B1 The program is inside only while `busy`; the checkpoint thread is inside only between a
//!   `take` that has returned and `give_back`; never both.
//! * B2 A program that finds `wanted` clears `busy` and sleeps until it is given back.

use crate::os::barrier::Barrier;
use crate::os::futex;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};
use std::sync::OnceLock;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct BiasedLock {
    busy: AtomicU32,
    wanted: AtomicU32,
    barrier: OnceLock<Barrier>,
}

/// Looks at `busy` before the processor is given away.
const SPINS: u32 = 200;

impl BiasedLock {
    /// Nobody is inside.
    pub const fn new() -> Self {
        Self { busy: AtomicU32::new(0), wanted: AtomicU32::new(0), barrier: OnceLock::new() }
    }

    /// Prepare for [`BiasedLock::take`]. Must be called before it, best by the checkpoint thread.
    pub fn prepare(&self) -> std::io::Result<()> {
        if self.barrier.get().is_none() {
            let _ = self.barrier.set(Barrier::new()?);
        }
        Ok(())
    }

    /// The program goes inside.
    ///
    /// # Panics
    /// In debug builds, if it is inside already: to leave once would let the checkpoint thread in.
    #[inline(always)]
    pub fn enter(&self) {
        debug_assert_eq!(self.busy.load(Ordering::Relaxed), 0, "B1: entered twice");
        self.busy.store(1, Ordering::Relaxed);
        // [bias] the checkpoint thread's barrier stands for a fence of ours between these two.
        compiler_fence(Ordering::SeqCst);
        if self.wanted.load(Ordering::Acquire) != 0 {
            self.wait();
        }
    }

    /// Is the program inside, or about to be?
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) != 0
    }

    /// The program goes outside.
    #[inline(always)]
    pub fn leave(&self) {
        // [busy] what the program has done inside, for the checkpoint thread.
        self.busy.store(0, Ordering::Release);
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        loop {
            self.leave();
            futex::wait(&self.wanted, 1);
            self.busy.store(1, Ordering::SeqCst);
            if self.wanted.load(Ordering::SeqCst) == 0 {
                return;
            }
        }
    }

    /// The checkpoint thread waits until the program is outside, and keeps it there.
    ///
    /// # Panics
    /// In debug builds, if it is taken already: to give it back once would let the program in.
    pub fn take(&self) {
        let before = self.wanted.swap(1, Ordering::SeqCst);
        debug_assert_eq!(before, 0, "B1: taken twice");
        if let Some(barrier) = self.barrier.get() {
            barrier.all_threads();
        }
        let mut program_polls = 0;
        // [busy] what the program has done inside.
        while self.busy.load(Ordering::Acquire) != 0 {
            program_polls += 1;
            if program_polls > SPINS {
                crate::os::yield_now();
            }
            core::hint::spin_loop();
        }
    }

    /// The program may come in again.
    pub fn give_back(&self) {
        // [bias] what the checkpoint thread has done inside, for the program.
        self.wanted.store(0, Ordering::Release);
        futex::wake(&self.wanted, futex::ALL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::UnsafeCell;
    use core::sync::atomic::AtomicBool;

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "B1: entered twice")]
    fn b1_a_program_that_enters_twice_is_a_bug() {
        let bias = BiasedLock::new();
        bias.enter();
        bias.enter();
    }

    struct Counter(BiasedLock, UnsafeCell<u64>);
    // SAFETY: the number is only touched inside.
    unsafe impl Sync for Counter {}

    #[test]
    fn b1_both_sides_count_without_a_loss() {
        let counter = Counter(BiasedLock::new(), UnsafeCell::new(0));
        counter.0.prepare().unwrap();
        let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let (mut ours, mut theirs) = (0u64, 0u64);
        std::thread::scope(|scope| {
            let program = scope.spawn(|| {
                let counter = &counter;
                let mut count = 0u64;
                while !over.load(Ordering::Relaxed) {
                    counter.0.enter();
                    // SAFETY: inside.
                    unsafe { *counter.1.get() += 1 };
                    counter.0.leave();
                    count += 1;
                    begun.store(true, Ordering::Relaxed);
                }
                count
            });
            while !begun.load(Ordering::Relaxed) {
                crate::os::yield_now();
            }
            for _ in 0..2_000 {
                counter.0.take();
                for _ in 0..50 {
                    // SAFETY: inside.
                    unsafe { *counter.1.get() += 1 };
                    ours += 1;
                }
                counter.0.give_back();
            }
            over.store(true, Ordering::Relaxed);
            theirs = program.join().unwrap();
        });
        assert!(theirs > 0);
        assert_eq!(counter.1.into_inner(), ours + theirs);
    }
}
