//! Processors that the calling thread may run on.

/// May it run on this one? Where the system does not say: on any.
pub(crate) fn may_run_on(processor: usize) -> bool {
    // SAFETY: all-zero is a valid set.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: this thread, and a writable set of its size.
    let got = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    // SAFETY: inside the set.
    let contains = |at| unsafe { libc::CPU_ISSET(at, &set) };
    got != 0 || (processor < libc::CPU_SETSIZE as usize && contains(processor))
}
