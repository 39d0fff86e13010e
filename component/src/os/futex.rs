//! Sleeping until a word changes, and waking those who sleep (futex(2)), within one process.

use core::sync::atomic::AtomicU32;

/// Sleep while the word is `value`; may come back for no reason.
pub fn wait(word: &AtomicU32, value: u32) {
    call(word, libc::FUTEX_WAIT, value);
}

/// Wake so many of those who sleep on the word.
pub fn wake(word: &AtomicU32, threads: u32) {
    call(word, libc::FUTEX_WAKE, threads);
}

/// All of them, for [`wake`].
pub const ALL: u32 = i32::MAX as u32;

#[cold]
fn call(word: &AtomicU32, operation: libc::c_int, value: u32) {
    // SAFETY: the word is borrowed while the call lasts; the kernel only reads it.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation | libc::FUTEX_PRIVATE_FLAG,
            value,
            core::ptr::null::<libc::timespec>(),
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;

    #[test]
    fn who_sleeps_is_woken_and_who_comes_late_does_not_sleep() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    wait(&word, 0);
                }
            });
            word.store(1, Ordering::Release);
            wake(&word, ALL);
        });
        // It would sleep for ever if the value did not count.
        wait(&word, 0);
    }
}
