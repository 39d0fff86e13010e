//! Who is let in to the process: one thread of the program at a time, or one of our own.
//!
//! A signal handler may come while its own thread is inside, and neither wait for that nor go in.
//! Nothing it may call asks to come in but time(), which is recorded for the first thread only; so
//! that one is marked while it is inside. Without MPI_THREAD_MULTIPLE (and not with
//! MPI_THREAD_SERIALIZED, see `date`) nobody else of the program is, and the mark is the biased
//! lock's.

use crate::sync::biased_lock::BiasedLock;
use crate::sync::lock::Lock;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};

/// The thread that has called MPI_Init; 0: not known, or this is a copy made by fork(2).
static FIRST: AtomicUsize = AtomicUsize::new(0);

fn thread() -> usize {
    // SAFETY: no arguments.
    unsafe { libc::pthread_self() as usize }
}

/// The calling thread is the first one, until the process is copied: the copy is none of the job.
pub fn note_first() {
    extern "C" fn forget() {
        FIRST.store(0, Ordering::Relaxed);
    }
    FIRST.store(thread(), Ordering::Relaxed);
    // SAFETY: a function without arguments that calls nothing. Without memory for it a copy that
    // reads the time takes itself for the process, as before there was this.
    unsafe { libc::pthread_atfork(None, None, Some(forget)) };
}

/// Is it the first thread that asks?
#[inline]
pub fn is_first() -> bool {
    thread() == FIRST.load(Ordering::Relaxed)
}

/// See the module's documentation.
#[derive(Debug)]
pub struct EngineLock {
    /// MPI_THREAD_MULTIPLE: the lock is in use.
    threads: bool,
    lock: Lock,
    bias: BiasedLock,
    /// Of those that take it from outside, where `lock` is not in use.
    outside: Lock,
    /// The first thread has the lock, or waits for it.
    marked: AtomicBool,
}

impl EngineLock {
    /// Nobody is inside.
    pub const fn new(threads: bool) -> Self {
        Self {
            threads,
            lock: Lock::new(),
            bias: BiasedLock::new(),
            outside: Lock::new(),
            marked: AtomicBool::new(false),
        }
    }

    /// Before the lock is asked for, and after it was released.
    #[inline]
    fn mark(&self, inside: bool) {
        if is_first() {
            // Between this thread and its signal handlers: no more than the order is needed.
            compiler_fence(Ordering::SeqCst);
            self.marked.store(inside, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// The program goes inside.
    #[inline(always)]
    pub fn enter(&self) {
        if self.threads {
            self.enter_with_threads();
        } else {
            self.bias.enter();
        }
    }

    /// Out of line, so that who has no threads need not save registers for it.
    #[inline(never)]
    fn enter_with_threads(&self) {
        self.mark(true);
        self.lock.lock();
    }

    /// The same, unless another of its threads is inside.
    #[inline]
    pub fn try_enter(&self) -> bool {
        if !self.threads {
            self.bias.enter();
            return true;
        }
        self.mark(true);
        let entered = self.lock.try_lock();
        if !entered {
            self.mark(false);
        }
        entered
    }

    /// The first thread goes inside, maybe in a signal handler; false: it is there already.
    pub fn enter_unless_inside(&self) -> bool {
        let inside =
            if self.threads { self.marked.load(Ordering::Relaxed) } else { self.bias.is_busy() };
        if !inside {
            self.enter();
        }
        !inside
    }

    /// The program goes outside.
    #[inline(always)]
    pub fn leave(&self) {
        if self.threads {
            self.leave_with_threads();
        } else {
            self.bias.leave();
        }
    }

    /// As [`Self::enter_with_threads`].
    #[inline(never)]
    fn leave_with_threads(&self) {
        self.lock.unlock();
        self.mark(false);
    }

    /// Have what [`Self::take`] needs of the system.
    pub fn prepare(&self) -> std::io::Result<()> {
        if self.threads { Ok(()) } else { self.bias.prepare() }
    }

    /// One of our own threads waits until the program is outside, and keeps it there.
    pub fn take(&self) -> std::io::Result<()> {
        self.prepare()?;
        if self.threads {
            self.lock.lock();
        } else {
            self.outside.lock();
            self.bias.take();
        }
        Ok(())
    }

    /// The program may come in again.
    pub fn give_back(&self) {
        if self.threads {
            self.lock.unlock();
        } else {
            self.bias.give_back();
            self.outside.unlock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::UnsafeCell;
    use core::sync::atomic::AtomicU32;

    struct Room {
        lock: EngineLock,
        count: UnsafeCell<u64>,
        /// In handlers: so many came in, and so many found their thread inside.
        handled: [AtomicU32; 2],
    }
    // SAFETY: the count is only touched inside.
    unsafe impl Sync for Room {}

    impl Room {
        const fn new(threads: bool) -> Self {
            let handled = [const { AtomicU32::new(0) }; 2];
            Self { lock: EngineLock::new(threads), count: UnsafeCell::new(0), handled }
        }

        /// In two steps, so that who comes in between makes a loss.
        fn count(&self) {
            // SAFETY: the caller is inside.
            let before = unsafe { self.count.get().read_volatile() };
            core::hint::spin_loop();
            // SAFETY: as above.
            unsafe { self.count.get().write_volatile(before + 1) };
        }

        fn handle(&self) {
            let came = self.lock.enter_unless_inside();
            if came {
                self.count();
                self.lock.leave();
            }
            self.handled[usize::from(!came)].fetch_add(1, Ordering::Relaxed);
        }
    }

    static ALONE: Room = Room::new(false);
    static MANY: Room = Room::new(true);

    extern "C" fn on_alone(_: libc::c_int) {
        ALONE.handle();
    }

    extern "C" fn on_many(_: libc::c_int) {
        MANY.handle();
    }

    /// The first thread goes in and out while signals come, and others do, too.
    fn signals(room: &'static Room, signal: libc::c_int, handler: extern "C" fn(libc::c_int)) {
        // SAFETY: a handler that only does what handlers may.
        unsafe { libc::signal(signal, handler as *const () as libc::sighandler_t) };
        let others = if room.lock.threads { 2 } else { 0 };
        let (first, over) = (thread(), AtomicBool::new(false));
        let mut entered = 0;
        std::thread::scope(|scope| {
            let counting: Vec<_> = (0..others)
                .map(|_| {
                    scope.spawn(|| {
                        let mut entered = 0u64;
                        while !over.load(Ordering::Relaxed) {
                            room.lock.enter();
                            room.count();
                            room.lock.leave();
                            entered += 1;
                        }
                        entered
                    })
                })
                .collect();
            let signals = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // SAFETY: the thread waits for this one.
                    unsafe { libc::pthread_kill(first as libc::pthread_t, signal) };
                    crate::os::yield_now();
                }
            });
            let handled = || room.handled.each_ref().map(|of| of.load(Ordering::Relaxed));
            let enough = |of| handled().iter().all(|all| *all >= of);
            // Where no handler finds its thread inside there will be none later on.
            while !enough(200) && (enough(1) || handled().iter().sum::<u32>() < 50_000) {
                room.lock.enter();
                (0..20).for_each(|_| room.count());
                room.lock.leave();
                entered += 20;
                // Outside for as long as inside, or all signals would find it there.
                (0..200).for_each(|_| core::hint::spin_loop());
            }
            over.store(true, Ordering::Relaxed);
            signals.join().unwrap();
            entered += counting.into_iter().map(|other| other.join().unwrap()).sum::<u64>();
        });
        let [handled, found] = room.handled.each_ref().map(|of| of.load(Ordering::Relaxed));
        // SAFETY: all others have ended, and no signal is on its way.
        assert_eq!(unsafe { *room.count.get() }, entered + u64::from(handled));
        assert!(found > 0, "no signal came while the thread was inside");
    }

    #[test]
    fn a_signal_handler_of_a_thread_that_is_inside_does_not_come_in() {
        // One test: there is one first thread.
        std::thread::scope(|scope| {
            let alone = scope.spawn(|| {
                note_first();
                signals(&ALONE, libc::SIGUSR1, on_alone);
                signals(&MANY, libc::SIGUSR2, on_many);
                assert!(is_first());
            });
            alone.join().unwrap();
        });
        assert!(!is_first(), "another thread");
    }
}
