//! Functions that wait until a clock shows something. After a restore on another machine the
//! program's monotonic clock is ahead of the kernel's, or behind it (`program_clocks`): a deadline
//! that was made from what the program has read is moved by as much (docs/adr/0029).
//!
//! Not reached: timers (timer_settime, timerfd_settime) and locks with a deadline on the monotonic
//! clock (pthread_mutex_clocklock).
//!
//! Invariant: where the clocks are the same, as on the machine where the process was started, calls
//! are passed on as they are.

use crate::mpi::interpose::Source;
use crate::mpi::program_clocks::offset_ns;
use core::ffi::{CStr, c_int};
use core::mem::transmute;
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{clockid_t, pthread_cond_t, pthread_mutex_t, sem_t, timespec};

const NS_PER_SECOND: i64 = 1_000_000_000;

// Threads may be cancelled in all of them.
unsafe extern "C-unwind" {
    #[link_name = "pthread_cond_timedwait"]
    fn stock_timedwait(
        condition: *mut pthread_cond_t,
        lock: *mut pthread_mutex_t,
        until: *const timespec,
    ) -> c_int;
    #[link_name = "clock_nanosleep"]
    fn stock_nanosleep(
        id: clockid_t,
        flags: c_int,
        time: *const timespec,
        rest: *mut timespec,
    ) -> c_int;
}

type CondClockWait = unsafe extern "C-unwind" fn(
    *mut pthread_cond_t,
    *mut pthread_mutex_t,
    clockid_t,
    *const timespec,
) -> c_int;
type SemClockWait = unsafe extern "C-unwind" fn(*mut sem_t, clockid_t, *const timespec) -> c_int;

/// Not every C library has these: so they are looked up. Who calls ours has it.
const COND_CLOCKWAIT: &CStr = c"pthread_cond_clockwait";
const SEM_CLOCKWAIT: &CStr = c"sem_clockwait";
static STOCK: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// The C library's, of these two.
fn stock(index: usize) -> *const () {
    core::ptr::with_exposed_provenance(STOCK[index].load(Ordering::Relaxed))
}

/// A deadline on the program's clock, on the kernel's. None: it is the same.
fn moved(id: clockid_t, until: &timespec) -> Option<timespec> {
    let ahead_ns = offset_ns(id);
    if ahead_ns == 0 {
        return None;
    }
    let ns = until.tv_sec.saturating_mul(NS_PER_SECOND).saturating_add(until.tv_nsec);
    let ns = ns.saturating_sub(ahead_ns).max(0);
    Some(timespec { tv_sec: ns / NS_PER_SECOND, tv_nsec: ns % NS_PER_SECOND })
}

/// Calls `wait` with the kernel's deadline.
///
/// # Safety
/// `until` is null or readable.
unsafe fn wait_until(
    id: clockid_t,
    until: *const timespec,
    wait: impl FnOnce(*const timespec) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { until.as_ref() }.and_then(|until| moved(id, until)) {
        Some(until) => wait(&raw const until),
        None => wait(until),
    }
}

unsafe extern "C-unwind" fn clock_nanosleep(
    id: clockid_t,
    flags: c_int,
    time: *const timespec,
    rest: *mut timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    let sleep = |time| unsafe { stock_nanosleep(id, flags, time, rest) };
    if flags & libc::TIMER_ABSTIME == 0 {
        return sleep(time);
    }
    // SAFETY: the caller's promise.
    unsafe { wait_until(id, time, sleep) }
}

unsafe extern "C-unwind" fn cond_clockwait(
    condition: *mut pthread_cond_t,
    lock: *mut pthread_mutex_t,
    id: clockid_t,
    until: *const timespec,
) -> c_int {
    // SAFETY: the function of that name, or nobody has called this one.
    let stock: CondClockWait = unsafe { transmute(stock(0)) };
    // SAFETY: the caller's promise.
    let wait = |until| unsafe { stock(condition, lock, id, until) };
    // SAFETY: the caller's promise.
    unsafe { wait_until(id, until, wait) }
}

unsafe extern "C-unwind" fn cond_timedwait(
    condition: *mut pthread_cond_t,
    lock: *mut pthread_mutex_t,
    until: *const timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    let wait = |until| unsafe { stock_timedwait(condition, lock, until) };
    let id = if offset_ns(libc::CLOCK_MONOTONIC) == 0 {
        libc::CLOCK_REALTIME
    } else {
        // SAFETY: the caller's promise: it is initialised.
        unsafe { clock_of(condition) }
    };
    // SAFETY: the caller's promise.
    unsafe { wait_until(id, until, wait) }
}

/// Which clock a condition waits by: a bit of the word behind its groups (the C library's
/// pthreadtypes.h, `__wrefs`).
///
/// # Safety
/// It is initialised.
unsafe fn clock_of(condition: *const pthread_cond_t) -> clockid_t {
    const WORD: usize = 9;
    const IS_MONOTONIC: u32 = 2;
    // SAFETY: inside of it.
    let word = unsafe { condition.cast::<u32>().add(WORD) };
    // SAFETY: it is initialised; other threads may write it meanwhile, but not this bit.
    let word = unsafe { word.read_volatile() };
    if word & IS_MONOTONIC != 0 { libc::CLOCK_MONOTONIC } else { libc::CLOCK_REALTIME }
}

unsafe extern "C-unwind" fn semaphore_clockwait(
    semaphore: *mut sem_t,
    id: clockid_t,
    until: *const timespec,
) -> c_int {
    // SAFETY: as above.
    let stock: SemClockWait = unsafe { transmute(stock(1)) };
    // SAFETY: the caller's promise.
    let wait = |until| unsafe { stock(semaphore, id, until) };
    // SAFETY: the caller's promise.
    unsafe { wait_until(id, until, wait) }
}

/// The functions that are called by way of us.
pub fn sources() -> [Source; 4] {
    for (stock, name) in STOCK.iter().zip([COND_CLOCKWAIT, SEM_CLOCKWAIT]) {
        // SAFETY: looks up a name.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        stock.store(found.expose_provenance(), Ordering::Relaxed);
    }
    [
        Source::of(c"clock_nanosleep", clock_nanosleep as *const ()),
        Source::of(c"pthread_cond_timedwait", cond_timedwait as *const ()),
        Source::of(COND_CLOCKWAIT, cond_clockwait as *const ()),
        Source::of(SEM_CLOCKWAIT, semaphore_clockwait as *const ()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::MaybeUninit;

    #[test]
    fn the_clock_of_a_condition_is_found() {
        for id in [libc::CLOCK_REALTIME, libc::CLOCK_MONOTONIC] {
            let mut attributes = MaybeUninit::uninit();
            let mut condition = MaybeUninit::uninit();
            // SAFETY: room for them.
            unsafe { libc::pthread_condattr_init(attributes.as_mut_ptr()) };
            // SAFETY: initialised.
            unsafe { libc::pthread_condattr_setclock(attributes.as_mut_ptr(), id) };
            // SAFETY: room for it, and initialised attributes.
            unsafe { libc::pthread_cond_init(condition.as_mut_ptr(), attributes.as_ptr()) };
            // SAFETY: initialised.
            assert_eq!(unsafe { clock_of(condition.as_ptr()) }, id);
        }
    }

    #[test]
    fn sleeping_until_a_moment_of_the_past_is_over_at_once() {
        let past = timespec { tv_sec: 1, tv_nsec: 5 };
        let (how, no_rest) = (libc::TIMER_ABSTIME, core::ptr::null_mut());
        // SAFETY: readable.
        let code = unsafe { clock_nanosleep(libc::CLOCK_MONOTONIC, how, &raw const past, no_rest) };
        assert_eq!(code, 0);
        assert!(moved(libc::CLOCK_MONOTONIC, &past).is_none());
    }
}
