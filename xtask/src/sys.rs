//! Linux calls that std does not have, each wrapped once.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use std::{mem, ptr};

/// A C string from a path or a word; one with a NUL inside is refused.
pub fn c_string(text: impl AsRef<OsStr>) -> io::Result<CString> {
    CString::new(text.as_ref().as_bytes()).map_err(io::Error::other)
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Which side of [`fork_into`] the caller is on.
pub enum Side {
    /// The new process.
    Child,
    /// The caller; the number is the child's process id.
    Parent(libc::pid_t),
}

/// `fork`, with the child in new namespaces (`flags` = `CLONE_NEW…`).
///
/// Call it while the process has one thread: the child goes on in Rust, without `exec`.
pub fn fork_into(flags: libc::c_int) -> io::Result<Side> {
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: no CLONE_VM and no stack: the kernel copies the process exactly as fork does.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match pid {
        0 => Ok(Side::Child),
        1.. => Ok(Side::Parent(pid as libc::pid_t)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends the process at once, without destructors or flushing what the parent also holds.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Asks for SIGKILL when the parent dies, however it dies.
pub fn die_with_parent() -> io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes one number and touches no memory.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }).map(drop)
}

/// Effective user id.
pub fn euid() -> u32 {
    // SAFETY: cannot fail, touches no memory.
    unsafe { libc::geteuid() }
}

/// Effective group id.
pub fn egid() -> u32 {
    // SAFETY: cannot fail, touches no memory.
    unsafe { libc::getegid() }
}

/// Leaves the current namespaces of these kinds for new ones.
pub fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: takes a number only.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// Enters the namespace that `namespace` is a descriptor of.
pub fn enter(namespace: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: the descriptor is open for the length of the call.
    check(unsafe { libc::setns(namespace.as_raw_fd(), 0) }).map(drop)
}

/// Makes an open `/dev/net/tun` an Ethernet device with this name, in the network namespace in
/// which it was opened.
pub fn name_tap(file: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    // SAFETY: all zeros is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::other("the name of the device is too long"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes an `ifreq`, which outlives the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) }).map(drop)
}

/// Waits until one of the descriptors is ready or time is over (`None`: never).
pub fn poll(on: &mut [libc::pollfd], patience: Option<Duration>) -> io::Result<()> {
    let time = patience.map(|patience| libc::timespec {
        tv_sec: patience.as_secs() as libc::time_t,
        tv_nsec: patience.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    let count = on.len() as libc::nfds_t;
    // SAFETY: `on` and `time` outlive the call; without a signal mask the thread's own stays.
    let done = check(unsafe { libc::ppoll(on.as_mut_ptr(), count, time, ptr::null()) });
    match done {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        done => done.map(drop),
    }
}

/// The host name as this UTS namespace sees it.
pub fn set_host_name(name: &str) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `name`.
    check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }).map(drop)
}

fn optional(text: &Option<CString>) -> *const libc::c_char {
    text.as_deref().map_or(ptr::null(), CStr::as_ptr)
}

/// `mount(2)`; empty strings are passed as null.
pub fn mount(
    source: &str,
    target: impl AsRef<OsStr>,
    kind: &str,
    flags: libc::c_ulong,
    data: &str,
) -> io::Result<()> {
    let word = |w: &str| if w.is_empty() { Ok(None) } else { c_string(w).map(Some) };
    let (source, kind, data) = (word(source)?, word(kind)?, word(data)?);
    let target = c_string(target)?;
    // SAFETY: every pointer is null or a C string that outlives the call.
    check(unsafe {
        libc::mount(
            optional(&source),
            target.as_ptr(),
            optional(&kind),
            flags,
            optional(&data).cast(),
        )
    })
    .map(drop)
}

/// Makes what is at `source`, and what is mounted below it, appear at `target`, too.
pub fn bind(source: impl AsRef<OsStr>, target: impl AsRef<OsStr>) -> io::Result<()> {
    let (source, target) = (c_string(source)?, c_string(target)?);
    let flags = libc::MS_BIND | libc::MS_REC;
    // SAFETY: C strings that outlive the call; the others may be null for this.
    check(unsafe { libc::mount(source.as_ptr(), target.as_ptr(), ptr::null(), flags, ptr::null()) })
        .map(drop)
}

/// Takes away what is mounted at `target` and all below it; who uses it may go on with it.
pub fn detach(target: impl AsRef<OsStr>) -> io::Result<()> {
    let target = c_string(target)?;
    // SAFETY: a C string that outlives the call.
    check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) }).map(drop)
}

/// Makes the current folder, which is a mount, the root of the mount namespace, in place of the old
/// one, which goes.
pub fn pivot_root() -> io::Result<()> {
    let here = c".".as_ptr();
    // SAFETY: a C string that outlives the calls; the second `.` puts the old root above the new.
    let done = unsafe { libc::syscall(libc::SYS_pivot_root, here, here) };
    check(done as libc::c_int)?;
    // SAFETY: the same string.
    check(unsafe { libc::umount2(here, libc::MNT_DETACH) }).map(drop)
}

/// `chdir` to a path that was made before, so that nothing allocates after a fork.
pub fn change_folder(folder: &CStr) -> io::Result<()> {
    // SAFETY: a C string that outlives the call.
    check(unsafe { libc::chdir(folder.as_ptr()) }).map(drop)
}

/// Lets this process, but not the processes that it starts, run before others that are ready.
/// Without the right to do so, or under `nice`, nothing changes.
pub fn run_first() {
    // SAFETY: takes numbers only; asking about ourselves cannot fail.
    if unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) } != 0 {
        return;
    }
    let normal = libc::sched_param { sched_priority: 0 };
    let policy = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the parameter outlives the call.
    let kept = unsafe { libc::sched_setscheduler(0, policy, &raw const normal) };
    if kept == 0 {
        // SAFETY: takes numbers only.
        let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    }
}

/// Waits for the lock on a file; it is given back when the file is closed.
pub fn lock(file: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: the descriptor is open for the length of the call.
    check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }).map(drop)
}

/// Sends a signal; a process that has gone is not an error.
pub fn kill(pid: libc::pid_t, signal: libc::c_int) {
    // SAFETY: takes numbers only.
    let _ = unsafe { libc::kill(pid, signal) };
}

/// One child that has ended: its process id and wait status; `None`: all still run.
/// `ECHILD` is the error when there is no child at all.
pub fn reap(pid: libc::pid_t) -> io::Result<Option<(libc::pid_t, libc::c_int)>> {
    let mut status = 0;
    // SAFETY: `status` is valid for the call.
    let ended = check(unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) })?;
    Ok((ended > 0).then_some((ended, status)))
}

/// What a shell would show as exit code for this wait status.
pub fn exit_code(status: libc::c_int) -> i32 {
    if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}

/// Signals that are blocked and read one by one.
pub struct Signals {
    file: OwnedFd,
    before: libc::sigset_t,
}

/// A signal that was read.
#[derive(Clone, Copy)]
pub struct Signal {
    /// Its number.
    pub number: libc::c_int,
    /// It came from the terminal, so the whole foreground group has it already.
    pub from_terminal: bool,
}

fn empty_set() -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set.
    let _ = unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised by the line above.
    unsafe { set.assume_init() }
}

/// True for SIGHUP under `nohup`. Other signals count even if they were ignored: a script's
/// background jobs have SIGINT ignored, and mpirun takes it nevertheless.
fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only asks; `action` is valid for the call.
    let asked = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeroed at the start, which is a valid value, and filled in on success.
    let action = unsafe { action.assume_init() };
    signal == libc::SIGHUP && asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

impl Signals {
    /// Blocks the signals (SIGHUP under `nohup` stays ignored) and opens a descriptor to read them.
    pub fn take(numbers: &[libc::c_int]) -> io::Result<Signals> {
        let mut set = empty_set();
        for &number in numbers.iter().filter(|&&n| !is_ignored(n)) {
            // SAFETY: the set is initialised.
            check(unsafe { libc::sigaddset(&raw mut set, number) })?;
        }
        let mut before = empty_set();
        // SAFETY: both sets are initialised and outlive the call.
        check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut before) })?;
        // SAFETY: the set is initialised; a new descriptor is asked for.
        let file = check(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) })?;
        // SAFETY: the descriptor is new and ours alone.
        Ok(Signals { file: unsafe { OwnedFd::from_raw_fd(file) }, before })
    }

    /// The mask that was in force before [`Signals::take`], for programs that are started.
    pub fn mask_before(&self) -> libc::sigset_t {
        self.before
    }

    /// The next signal; `None` after `patience` without one (no patience given: for ever).
    pub fn next(&self, patience: Option<Duration>) -> io::Result<Option<Signal>> {
        let mut on = [libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        poll(&mut on, patience)?;
        if on[0].revents == 0 {
            return Ok(None);
        }
        let mut info = mem::MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer has the size that is passed.
        let read = unsafe { libc::read(self.file.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if read != size as isize {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: all-zero is a valid value, and the read filled it.
        let info = unsafe { info.assume_init() };
        let number = info.ssi_signo as libc::c_int;
        Ok(Some(Signal { number, from_terminal: info.ssi_code == libc::SI_KERNEL }))
    }
}

/// Gives this process the signal mask `mask`.
pub fn set_signal_mask(mask: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the mask is initialised; null means that the old one is not wanted.
    check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, mask, ptr::null_mut()) }).map(drop)
}

/// Gives signals that whoever started us has ignored (nohup, for one) their default action.
pub fn heed_signals() -> io::Result<()> {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
        // SAFETY: no handler is given.
        if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!(exit_code(3 << 8), 3);
        assert_eq!(exit_code(libc::SIGSEGV), 139);
    }

    #[test]
    fn a_word_with_a_nul_is_refused() {
        assert!(c_string("a\0b").is_err());
    }
}
