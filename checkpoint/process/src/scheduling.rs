//! When the kernel runs a thread whose answers others wait for.

/// Has this thread scheduled soon after it wakes up, although others keep all processors busy: it
/// requests short slices, which needs no privilege (sched_setattr(2), Linux 6.12 and later). It
/// sleeps most of the time, and somebody waits for each of its answers. Children are as usual.
pub fn be_prompt() {
    /// Of sched_setattr(2), its first version.
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime_ns: u64,
        deadline_ns: u64,
        period_ns: u64,
    }
    const SLICE_NS: u64 = 100_000;
    const RESET_ON_FORK: u64 = 1;
    let mut now = Attributes::default();
    let size = size_of::<Attributes>() as u32;
    // SAFETY: the structure has the size that is passed.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size, 0) };
    if got == 0 && now.policy == libc::SCHED_OTHER as u32 {
        now.size = size;
        now.flags |= RESET_ON_FORK;
        now.runtime_ns = SLICE_NS;
        // SAFETY: filled by the kernel; older ones ignore the slice.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const now, 0) };
    }
}
