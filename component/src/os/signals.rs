//! The signal mask of a thread.

/// Block every signal in this thread (threads inherit it); the mask that it had.
pub fn block_all() -> libc::sigset_t {
    // SAFETY: a plain set of bits, filled next.
    let mut all: libc::sigset_t = unsafe { core::mem::zeroed() };
    let mut before = all;
    // SAFETY: `all` is writable.
    unsafe { libc::sigfillset(&mut all) };
    // SAFETY: both sets are valid.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) };
    before
}

/// Give this thread a mask that [`block_all`] has returned.
pub fn restore(mask: &libc::sigset_t) {
    // SAFETY: a valid set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, core::ptr::null_mut()) };
}
