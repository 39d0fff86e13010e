//! The one lock of the component. Only MPI_THREAD_MULTIPLE uses it.

use crate::os::futex;
use core::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody sleeps.
const AWAITED: u32 = 2;

/// A mutual-exclusion lock: one atomic exchange to take it, one to release it; sleeps in the
/// kernel when it is held for long, so that it is of use on oversubscribed nodes, too.
#[derive(Debug, Default)]
pub struct Lock {
    state: AtomicU32,
}

/// Looks before going to sleep.
const SPINS: u32 = 100;

impl Lock {
    /// A free lock.
    pub const fn new() -> Self {
        Self { state: AtomicU32::new(FREE) }
    }

    /// Take it if it is free.
    #[inline]
    pub fn try_lock(&self) -> bool {
        // [lock] what the last holder wrote.
        self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Take it.
    #[inline]
    pub fn lock(&self) {
        if !self.try_lock() {
            self.lock_slow();
        }
    }

    #[cold]
    fn lock_slow(&self) {
        for _ in 0..SPINS {
            core::hint::spin_loop();
            if self.state.load(Ordering::Relaxed) == FREE && self.try_lock() {
                return;
            }
        }
        // [lock] what the last holder wrote.
        while self.state.swap(AWAITED, Ordering::Acquire) != FREE {
            futex::wait(&self.state, AWAITED);
        }
    }

    /// Release it.
    #[inline]
    pub fn unlock(&self) {
        // [lock] for the next holder.
        if self.state.swap(FREE, Ordering::Release) == AWAITED {
            futex::wake(&self.state, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::UnsafeCell;

    struct Counter(Lock, UnsafeCell<u64>);
    // SAFETY: the number is only touched under the lock.
    unsafe impl Sync for Counter {}

    #[test]
    fn many_threads_count_without_a_loss() {
        let counter = Counter(Lock::new(), UnsafeCell::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let counter = &counter;
                    for _ in 0..20_000 {
                        counter.0.lock();
                        // SAFETY: the lock is held.
                        unsafe { *counter.1.get() += 1 };
                        counter.0.unlock();
                    }
                });
            }
        });
        assert_eq!(counter.1.into_inner(), 80_000);
        assert!(counter.0.try_lock());
        assert!(!counter.0.try_lock());
    }
}
