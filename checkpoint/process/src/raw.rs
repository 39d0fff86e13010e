//! System calls without libc: they touch neither `errno` nor locks, so that they may be used in a
//! signal handler and while other threads are suspended.

use core::arch::asm;

/// An error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

/// A system call.
///
/// # Safety
/// The call may do to memory, descriptors and threads what it does: the caller answers for it.
#[inline(always)]
pub unsafe fn call(number: i64, a: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the kernel changes only the registers that are named and what the caller allows.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    if (-4095..0).contains(&result) { Err(Errno(-result as i32)) } else { Ok(result as usize) }
}

/// A system call whose arguments are only numbers and which changes no memory of ours.
pub fn plain(number: i64, a: [usize; 4]) -> Result<usize, Errno> {
    // SAFETY: private to this crate, which uses it only for such calls (getpid, tgkill, lseek,
    // fcntl with numbers, kill, ...).
    unsafe { call(number, [a[0], a[1], a[2], a[3], 0, 0]) }
}

/// Time of day in nanoseconds, as the kernel has it.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let at = (&raw mut now).addr();
    let _ = plain(libc::SYS_clock_gettime, [libc::CLOCK_REALTIME as usize, at, 0, 0]);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A system call that fills `value` through the argument with the index `at`.
pub fn fill<T: Copy>(
    number: i64,
    mut a: [usize; 5],
    at: usize,
    value: &mut T,
) -> Result<usize, Errno> {
    a[at] = (&raw mut *value).addr();
    // SAFETY: the kernel writes at most a `T` there; `T` is plain data of the kernel's interface.
    unsafe { call(number, [a[0], a[1], a[2], a[3], a[4], 0]) }
}

/// A system call that reads `value` through the argument with the index `at`.
pub fn pass<T: Copy>(number: i64, mut a: [usize; 5], at: usize, value: &T) -> Result<usize, Errno> {
    a[at] = (&raw const *value).addr();
    // SAFETY: the kernel only reads a `T` there; `T` is plain data of the kernel's interface.
    unsafe { call(number, [a[0], a[1], a[2], a[3], a[4], 0]) }
}

/// open(2); the path ends with 0.
pub fn open(path: &[u8], flags: i32) -> Result<i32, Errno> {
    debug_assert_eq!(path.last(), Some(&0));
    let a = [libc::AT_FDCWD as usize, path.as_ptr().addr(), flags as usize, 0, 0, 0];
    // SAFETY: the kernel reads the path up to its 0.
    unsafe { call(libc::SYS_openat, a) }.map(|fd| fd as i32)
}

/// close(2).
pub fn close(fd: i32) {
    // The number is free whatever the result.
    let _ = plain(libc::SYS_close, [fd as usize, 0, 0, 0]);
}

/// read(2), repeated after EINTR.
pub fn read(fd: i32, into: &mut [u8]) -> Result<usize, Errno> {
    loop {
        let a = [fd as usize, into.as_mut_ptr().addr(), into.len(), 0, 0, 0];
        // SAFETY: the kernel writes into `into` only.
        match unsafe { call(libc::SYS_read, a) } {
            Err(Errno(libc::EINTR)) => {}
            other => return other,
        }
    }
}

/// pread(2).
pub fn read_at(fd: i32, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let a = [fd as usize, into.as_mut_ptr().addr(), into.len(), offset as usize, 0, 0];
    // SAFETY: the kernel writes into `into` only.
    unsafe { call(libc::SYS_pread64, a) }
}

/// readlink(2); the path ends with 0.
pub fn read_link(path: &[u8], into: &mut [u8]) -> Result<usize, Errno> {
    debug_assert_eq!(path.last(), Some(&0));
    let at = libc::AT_FDCWD as usize;
    let a = [at, path.as_ptr().addr(), into.as_mut_ptr().addr(), into.len(), 0, 0];
    // SAFETY: the kernel reads the path and writes into `into` only.
    unsafe { call(libc::SYS_readlinkat, a) }
}

/// Names in an open folder: raw `linux_dirent64` bytes.
pub fn list(fd: i32, into: &mut [u8]) -> Result<usize, Errno> {
    let a = [fd as usize, into.as_mut_ptr().addr(), into.len(), 0, 0, 0];
    // SAFETY: the kernel writes into `into` only.
    unsafe { call(libc::SYS_getdents64, a) }
}

/// Waits while the word has this value; at most so long.
pub fn wait_while(word: &core::sync::atomic::AtomicU32, value: u32, timeout_ms: Option<u32>) {
    let time = timeout_ms.map(|ms| [i64::from(ms / 1000), i64::from(ms % 1000) * 1_000_000]);
    let time_at = time.as_ref().map_or(0, |time| time.as_ptr().addr());
    let operation = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    let a = [word.as_ptr().addr(), operation, value as usize, time_at, 0, 0];
    // SAFETY: the kernel reads the word and the time, which live until it answers. Whatever it
    // answers (timeout, another value, a signal), the caller reads the word again.
    let _ = unsafe { call(libc::SYS_futex, a) };
}

/// Wakes all threads that wait for the word.
pub fn wake(word: &core::sync::atomic::AtomicU32) {
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    let a = [word.as_ptr().addr(), operation, i32::MAX as usize, 0, 0, 0];
    // SAFETY: the kernel only searches the waiters of that address.
    let _ = unsafe { call(libc::SYS_futex, a) };
}

/// Anonymous private memory, untouched.
pub fn map(bytes: usize) -> Result<*mut u8, Errno> {
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: new memory at a place of the kernel's choice.
    let at = unsafe { call(libc::SYS_mmap, [0, bytes, access, flags, usize::MAX, 0]) }?;
    Ok(core::ptr::with_exposed_provenance_mut(at))
}

/// Microseconds of the monotonic clock.
pub fn now_us() -> u64 {
    let mut time = [0i64; 2];
    let clock = libc::CLOCK_MONOTONIC as usize;
    match fill(libc::SYS_clock_gettime, [clock, 0, 0, 0, 0], 1, &mut time) {
        Ok(_) => time[0] as u64 * 1_000_000 + time[1] as u64 / 1000,
        Err(_) => 0,
    }
}
/// Queues a signal with a value for a thread of this process, `pid` (rt_tgsigqueueinfo(2), as
/// `pthread_sigqueue` does). Allocates nothing.
pub fn queue_signal(
    pid: usize,
    tid: usize,
    signal: i32,
    uid: u32,
    value: usize,
) -> Result<usize, Errno> {
    /// siginfo_t of a queued signal.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Info {
        signal: i32,
        errno: i32,
        code: i32,
        zero: i32,
        pid: u32,
        uid: u32,
        value: usize,
        rest: [u64; 12],
    }
    let (errno, code, zero, rest) = (0, libc::SI_QUEUE, 0, [0; 12]);
    let info = Info { signal, errno, code, zero, pid: pid as u32, uid, value, rest };
    pass(libc::SYS_rt_tgsigqueueinfo, [pid, tid, signal as usize, 0, 0], 3, &info)
}
