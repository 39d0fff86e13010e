//! Waking a sleeping thread from another one: an eventfd.

use crate::os::{OsError, errno};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// See the module's documentation.
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl Wake {
    /// Not rung.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn new() -> Result<Self, OsError> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(OsError::last("eventfd", "a new descriptor"));
        }
        // SAFETY: just opened, owned by nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Wake who waits, or who will.
    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight readable bytes. It cannot fail but for a full counter, which wakes, too.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Sleep until it is rung, one of the `others` (negative: none) is readable or has ended, or
    /// the time is over (in milliseconds; -1: never).
    pub fn wait(&self, others: [RawFd; 2], timeout_ms: i32) {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut all = [entry(self.0.as_raw_fd()), entry(others[0]), entry(others[1])];
        // SAFETY: three valid entries.
        let ready = unsafe { libc::poll(all.as_mut_ptr(), 3, timeout_ms) };
        if ready > 0 && all[0].revents != 0 {
            let mut count = 0u64;
            // SAFETY: eight writable bytes.
            unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
        } else if ready < 0 {
            debug_assert_eq!(errno(), libc::EINTR);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_before_the_wait_is_not_lost_and_is_used_up() {
        let (wake, other) = (Wake::new().unwrap(), Wake::new().unwrap());
        wake.ring();
        wake.ring();
        let start = std::time::Instant::now();
        wake.wait([other.0.as_raw_fd(), -1], 60_000);
        assert!(start.elapsed().as_secs() < 30);
        let start = std::time::Instant::now();
        wake.wait([other.0.as_raw_fd(), -1], 20);
        assert!(start.elapsed().as_millis() >= 15);
    }
}
