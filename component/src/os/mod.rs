//! The operating system, each call wrapped once: safe signatures, errors that say what failed on
//! what. Nothing in here knows of MPI, frames or ranks.

pub mod affinity;
pub mod barrier;
pub mod copy;
pub mod futex;
pub mod idle_processor;
pub mod interfaces;
pub mod library_function;
pub mod locks;
pub mod mapping;
pub mod memory;
pub mod places;
pub mod pmix;
pub mod process;
pub mod random;
pub mod signals;
pub mod socket;
pub mod wake;
pub mod x86_code;

/// A system call that failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} on {on} failed: {}", self.text())]
pub struct OsError {
    /// What was tried: the name of the call.
    pub what: &'static str,
    /// On what: a path, an address, a process.
    pub on: String,
    /// The errno.
    pub code: i32,
}

impl OsError {
    /// The errno of the call that has just failed.
    pub fn last(what: &'static str, on: impl Into<String>) -> Self {
        Self { what, on: on.into(), code: errno() }
    }

    /// An error with a known code (calls that return it instead of setting errno).
    pub fn with_code(what: &'static str, on: impl Into<String>, code: i32) -> Self {
        Self { what, on: on.into(), code }
    }

    /// The text for the errno.
    pub fn text(&self) -> String {
        errno_text(self.code)
    }
}

/// errno of the calling thread.
#[inline]
pub fn errno() -> i32 {
    // SAFETY: no arguments.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the location is this thread's own errno.
    unsafe { *location }
}

/// Text for an errno, without the "(os error …)" that the standard library appends.
pub fn errno_text(code: i32) -> String {
    let text = std::io::Error::from_raw_os_error(code).to_string();
    match text.rfind(" (os error") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

/// Let others run on this core.
#[inline]
pub fn yield_now() {
    // SAFETY: no arguments, no failure.
    unsafe { libc::sched_yield() };
}

/// Sleep until one of the descriptors (-1: none) is readable, or so long. Is one of them no
/// descriptor any more?
pub fn sleep_on<const COUNT: usize>(descriptors: [std::os::fd::RawFd; COUNT], ns: u64) -> bool {
    let mut entries = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let time = libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    };
    let none = core::ptr::null();
    // SAFETY: valid entries, a valid time. A descriptor may be another one by now: then it is over
    // too early.
    let ready = unsafe { libc::ppoll(entries.as_mut_ptr(), COUNT as libc::nfds_t, &time, none) };
    ready > 0 && entries.iter().any(|entry| entry.revents & libc::POLLNVAL != 0)
}

/// Processor time of this thread.
pub fn thread_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds on the monotonic clock.
#[inline]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The processor's own clock: cheap, of a rate that is not known.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the time-stamp counter.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    now_ns()
}

/// Bytes of a page of memory.
pub fn page_bytes() -> usize {
    // SAFETY: no memory is passed.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_failed_on_what() {
        let error = OsError::with_code("open", "/dev/shm/x", libc::EACCES);
        assert_eq!(error.to_string(), "open on /dev/shm/x failed: Permission denied");
    }
}
