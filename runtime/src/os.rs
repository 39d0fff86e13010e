//! System calls, each wrapped once: safe signatures, errors as `io::Error`.

mod sockets;
mod streams;

pub use sockets::{listen_as_this_process, peer_pid, peer_uid};
pub use streams::{bytes_in, nonblocking_writer, set_nonblocking, take_stdin};

use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::ffi::CStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A process id.
pub type Pid = libc::pid_t;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// See [`hostname`].
pub const NODE: &str = "RUSTBTL_NODE";

/// Effective user id.
pub fn euid() -> u32 {
    // SAFETY: no arguments, no failure.
    unsafe { libc::geteuid() }
}

/// Name of this host. A test can have several "nodes" on one host: `RUSTBTL_NODE`.
pub fn hostname() -> String {
    if let Some(name) = std::env::var(NODE).ok().filter(|name| !name.is_empty()) {
        return name;
    }
    let mut name = [0u8; 256];
    // SAFETY: room for the given length.
    let failed = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len()) } != 0;
    match CStr::from_bytes_until_nul(&name) {
        Ok(text) if !failed => text.to_string_lossy().into_owned(),
        _ => "localhost".into(),
    }
}

/// Starts this program once more, under its usual name.
pub fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("rustbtl");
    command
}

/// Descriptors to wait for.
#[derive(Default)]
pub struct Poll(Vec<libc::pollfd>);

impl Poll {
    /// Waits for reading, and for writing if `write`; returns the slot for [`Self::is_ready`].
    pub fn add(&mut self, fd: RawFd, write: bool) -> usize {
        let events = libc::POLLIN | if write { libc::POLLOUT } else { 0 };
        self.0.push(libc::pollfd { fd, events, revents: 0 });
        self.0.len() - 1
    }

    /// Wait for room, and not for something to read.
    pub fn add_for_writing(&mut self, fd: RawFd) -> usize {
        self.0.push(libc::pollfd { fd, events: libc::POLLOUT, revents: 0 });
        self.0.len() - 1
    }

    /// Wait until one is ready, or until the time is over (`None`: for ever).
    pub fn wait(&mut self, until: Option<Instant>) -> io::Result<()> {
        let milliseconds = until.map_or(-1, |at| {
            let left = at.saturating_duration_since(Instant::now());
            // Rounded up: waking too early would make the caller spin.
            i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
        });
        // SAFETY: a valid array of its length.
        let got = unsafe { libc::poll(self.0.as_mut_ptr(), self.0.len() as _, milliseconds) };
        match check(got) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            other => other.map(drop),
        }
    }

    /// Has the descriptor of this slot an event?
    pub fn is_ready(&self, slot: usize) -> bool {
        self.0.get(slot).is_some_and(|on| on.revents != 0)
    }
}

/// A signal that has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// Who sent it, 0 if the kernel did.
    pub sender: Pid,
}

/// Signals as something to poll.
pub struct Signals {
    fd: OwnedFd,
    before: libc::sigset_t,
}

impl Signals {
    /// Block these signals and read them from a descriptor.
    pub fn take(numbers: &[i32]) -> io::Result<Self> {
        // SAFETY: all-zero is valid; it is filled below.
        let mut set: libc::sigset_t = unsafe { core::mem::zeroed() };
        // SAFETY: all-zero is valid; it is filled by sigprocmask.
        let mut before: libc::sigset_t = unsafe { core::mem::zeroed() };
        // SAFETY: a writable set.
        unsafe { libc::sigemptyset(&mut set) };
        for &number in numbers {
            // SAFETY: an initialised set.
            unsafe { libc::sigaddset(&mut set, number) };
        }
        // SAFETY: two valid sets.
        check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &set, &mut before) })?;
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: a valid set.
        let fd = check(unsafe { libc::signalfd(-1, &set, flags) })?;
        // SAFETY: just made, owned by nobody else.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, before })
    }

    /// To poll.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The mask as it was: for programs that are started from here.
    pub fn mask_before(&self) -> libc::sigset_t {
        self.before
    }

    /// The next signal, if there is one.
    pub fn next(&self) -> Option<Signal> {
        // SAFETY: all-zero is a valid signalfd_siginfo.
        let mut info: libc::signalfd_siginfo = unsafe { core::mem::zeroed() };
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: room for one of them.
        let got = unsafe { libc::read(self.fd(), (&raw mut info).cast(), size) };
        let sender = if info.ssi_code <= 0 { info.ssi_pid as Pid } else { 0 };
        (got == size as isize).then_some(Signal { number: info.ssi_signo as i32, sender })
    }
}

/// Set the signal mask (safe between fork and exec).
pub fn set_mask(mask: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: a valid set; the old one is not wanted.
    check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, mask, core::ptr::null_mut()) }).map(drop)
}

/// Something to poll that becomes readable when the process ends.
pub fn pidfd(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = check(fd as libc::c_int)?;
    // SAFETY: just made, owned by nobody else; the kernel makes it close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// SIGKILL to the process that the descriptor is of, whatever has got its number since.
pub fn kill_pidfd(process: &OwnedFd) {
    let none: *const libc::siginfo_t = core::ptr::null();
    let fd = process.as_raw_fd();
    // SAFETY: a pidfd; no siginfo.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGKILL, none, 0) };
}

/// Send a signal.
pub fn kill(pid: Pid, signal: i32) {
    // SAFETY: no pointers.
    unsafe { libc::kill(pid, signal) };
}

/// The process that started another one, 0 if that is not known.
pub fn parent_of(pid: Pid) -> Pid {
    stat_field(pid, 1).and_then(|pid| pid.parse().ok()).unwrap_or(0)
}

/// A field of a process' stat in proc(5), counted from 0 behind its name: state, parent, …
pub fn stat_field(pid: Pid, index: usize) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    text.rsplit_once(')')?.1.split_whitespace().nth(index).map(ToOwned::to_owned)
}

/// The unit of processor times in proc(5).
pub fn ticks_per_second() -> u64 {
    // SAFETY: a number in, a number out.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).ok().filter(|&ticks| ticks > 0).unwrap_or(100)
}

/// The process that started this one.
pub fn parent() -> Pid {
    // SAFETY: no arguments, no failure.
    unsafe { libc::getppid() }
}

/// Does this process lead its process group?
pub fn leads_group() -> bool {
    // SAFETY: no arguments, no failure.
    let group = unsafe { libc::getpgrp() };
    group as u32 == std::process::id()
}

/// Have the kernel send `signal` to this process when its parent ends.
pub fn die_with_parent(signal: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong) }).map(drop)
}

/// The wait status of the child, if it has ended.
pub fn reap(pid: Pid) -> io::Result<Option<i32>> {
    let mut status = 0;
    // SAFETY: `status` is writable.
    let got = check(unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) })?;
    Ok((got != 0).then_some(status))
}

/// End as a process with this wait status has ended: the same exit code, or the same signal, but
/// without a second core.
pub fn end_as(status: i32) -> ! {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a valid limit.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
        // SAFETY: no pointers.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
        // SAFETY: the default action, no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        // SAFETY: all-zero is valid; emptied at once.
        let mut set: libc::sigset_t = unsafe { core::mem::zeroed() };
        // SAFETY: a writable set.
        unsafe { libc::sigemptyset(&mut set) };
        let _ = set_mask(&set);
        // SAFETY: no pointers.
        unsafe { libc::raise(signal) };
        exit_now(128 + signal);
    }
    exit_now(libc::WEXITSTATUS(status))
}

/// End at once: nothing of this process is flushed or cleaned up.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: never returns.
    unsafe { libc::_exit(code) }
}

/// Forks, and continues in a session of its own: no terminal, no process group that others end.
/// True: in the process that was there before. The other one calls `before_it_is_left` while it
/// still has that one's output. Only while there is one thread.
pub fn go_to_background(before_it_is_left: impl FnOnce()) -> io::Result<bool> {
    // SAFETY: no other thread exists whose locks the child could find held.
    let child = check(unsafe { libc::fork() })?;
    if child != 0 {
        return Ok(true);
    }
    // SAFETY: no arguments.
    check(unsafe { libc::setsid() })?;
    before_it_is_left();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    for fd in 0..=2 {
        // SAFETY: two open descriptors.
        check(unsafe { libc::dup2(null.as_raw_fd(), fd) })?;
    }
    Ok(false)
}

/// Lock a file for this open descriptor; `false`: somebody else has it and `wait` is not wanted.
pub fn lock(file: &File, wait: bool) -> io::Result<bool> {
    flock(file, libc::LOCK_EX | if wait { 0 } else { libc::LOCK_NB })
}

/// Takes a shared lock; waits for the holder of an exclusive one.
pub fn lock_shared(file: &File) -> io::Result<()> {
    flock(file, libc::LOCK_SH).map(drop)
}

fn flock(file: &File, flags: libc::c_int) -> io::Result<bool> {
    loop {
        // SAFETY: an open descriptor.
        match check(unsafe { libc::flock(file.as_raw_fd(), flags) }) {
            Ok(_) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Let programs that are started from here inherit the descriptor.
pub fn inherit(fd: RawFd) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }).map(drop)
}

/// Have programs that are started inherit a copy of this descriptor under another number, also one
/// above the limit of open files: what is open stays usable. EMFILE: the limit cannot be raised.
pub fn inherit_as(fd: RawFd, number: RawFd) -> io::Result<()> {
    if fd == number {
        return inherit(fd);
    }
    let limit = limit_of_files()?;
    let needed = number as libc::rlim_t + 1;
    let is_low = limit.rlim_cur < needed;
    if is_low {
        let raised = libc::rlimit { rlim_cur: needed, ..limit };
        set_limit_of_files(&raised).map_err(|_| io::Error::from_raw_os_error(libc::EMFILE))?;
    }
    // SAFETY: no pointers.
    let copied = check(unsafe { libc::dup2(fd, number) }).map(drop);
    if is_low {
        set_limit_of_files(&limit)?;
    }
    copied
}

/// How many files this process may have open, now and at most.
pub fn limit_of_files() -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the struct.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    Ok(limit)
}

fn set_limit_of_files(limit: &libc::rlimit) -> io::Result<()> {
    // SAFETY: the kernel reads the struct.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) }).map(drop)
}

/// Has the kernel notice a node that fails without closing its connections. As with mpirun's
/// connections to daemons (`CORRELATED_USER_TIMEOUT_MS` in glue-c) that takes minutes: whether a
/// silent node has failed is decided before, by the coordinator (docs/adr/0030); and it is soon
/// known that the other end has gone, when it can be reached again.
pub fn enable_keepalive(socket: &impl AsRawFd) -> io::Result<()> {
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 2),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 127),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 480_000),
    ];
    for (level, name, value) in options {
        let value: libc::c_int = value;
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        let at = (&raw const value).cast();
        // SAFETY: an int that lives during the call, with its size.
        check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, at, size) })?;
    }
    Ok(())
}

/// For how long the other host of a TCP connection has not answered, not even its kernel.
pub fn silence(socket: RawFd) -> Option<Duration> {
    // SAFETY: all-zero is valid; it is filled below.
    let mut info: libc::tcp_info = unsafe { core::mem::zeroed() };
    let mut size = size_of_val(&info) as libc::socklen_t;
    let at = (&raw mut info).cast();
    // SAFETY: room for the struct, and its size.
    let got =
        unsafe { libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, at, &raw mut size) };
    check(got).ok()?;
    Some(Duration::from_millis(info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv).into()))
}

/// A terminal of this process's own with the settings of another one: its master, and the end for
/// programs. What is written comes out as it is: line ends are the other terminal's business.
pub fn terminal_like(other: BorrowedFd<'_>) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: no pointers.
    let master = check(unsafe { libc::posix_openpt(flags) })?;
    // SAFETY: just made, owned by nobody else.
    let master = unsafe { OwnedFd::from_raw_fd(master) };
    // SAFETY: an open descriptor.
    check(unsafe { libc::grantpt(master.as_raw_fd()) })?;
    // SAFETY: an open descriptor.
    check(unsafe { libc::unlockpt(master.as_raw_fd()) })?;
    // SAFETY: no pointers; the request makes a descriptor.
    let end = check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) })?;
    // SAFETY: just made, owned by nobody else.
    let end = unsafe { OwnedFd::from_raw_fd(end) };
    // SAFETY: all-zero is valid; it is filled below.
    let mut settings: libc::termios = unsafe { core::mem::zeroed() };
    // SAFETY: an open descriptor, room for the settings.
    check(unsafe { libc::tcgetattr(other.as_raw_fd(), &mut settings) })?;
    settings.c_oflag &= !(libc::ONLCR | libc::OCRNL);
    settings.c_lflag &= !libc::ECHO;
    // SAFETY: an open descriptor, valid settings.
    check(unsafe { libc::tcsetattr(end.as_raw_fd(), libc::TCSANOW, &settings) })?;
    // SAFETY: all-zero is valid; it is filled below.
    let mut size: libc::winsize = unsafe { core::mem::zeroed() };
    // SAFETY: room for the size.
    if unsafe { libc::ioctl(other.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) } == 0 {
        // SAFETY: a valid size.
        unsafe { libc::ioctl(end.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    }
    Ok((master, end))
}

/// Numbers at the beginning of a file of at least 4096 bytes, in shared memory: setting one is one
/// store, and what was set outlives this process however it ends.
#[derive(Debug)]
pub struct SharedNumbers<const N: usize>(NonNull<AtomicU64>);

// SAFETY: atomics in a mapping that belongs to the value.
unsafe impl<const N: usize> Send for SharedNumbers<N> {}

impl<const N: usize> SharedNumbers<N> {
    /// Bytes of the mapping; the file has to have them, and room on the disk for them.
    pub const BYTES: usize = 4096;

    /// Map the file.
    pub fn map(file: &File) -> io::Result<Self> {
        const { assert!(N * size_of::<u64>() <= 4096) };
        let (protection, none) = (libc::PROT_READ | libc::PROT_WRITE, core::ptr::null_mut());
        let (flags, fd) = (libc::MAP_SHARED, file.as_raw_fd());
        // SAFETY: a new mapping at a place of the kernel's choice.
        let at = unsafe { libc::mmap(none, Self::BYTES, protection, flags, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(at.cast()).map(Self).ok_or_else(|| io::Error::other("mapped at 0"))
    }

    /// One of them.
    pub fn number(&self, at: usize) -> &AtomicU64 {
        assert!(at < N, "one of {N}");
        // SAFETY: inside of the mapping.
        let place = unsafe { self.0.add(at) };
        // SAFETY: mapped as long as `self` lives, aligned, only used as an atomic.
        unsafe { place.as_ref() }
    }
}

impl<const N: usize> Drop for SharedNumbers<N> {
    fn drop(&mut self) {
        // SAFETY: our mapping; nothing refers to it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), Self::BYTES) };
    }
}

/// Random bytes.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut done = 0;
    while done < N {
        let rest = &mut bytes[done..];
        // SAFETY: `rest` is writable for its length.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match got {
            1.. => done += got as usize,
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(bytes)
}

/// Makes a private directory, or checks that the one that exists belongs to this user, is no link,
/// and is closed to others.
pub fn private_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::symlink_metadata(path)?;
    if is_private_directory(path) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        "it is not a directory of this user that is closed to others (mode 0700)",
    ))
}

/// Is it a directory of this user that is closed to others, and no link?
pub fn is_private_directory(path: &Path) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_dir() && found.uid() == euid() && found.mode() & 0o077 == 0)
}

/// Bytes that this user can still write below `path`; on a file system that is memory no more than
/// can be had without taking it from programs.
pub fn room(path: &Path) -> io::Result<u64> {
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
    // SAFETY: all-zero is a valid statfs.
    let mut found: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: a terminated path, and room for the answer.
    check(unsafe { libc::statfs(name.as_ptr(), &mut found) })?;
    let free = found.f_bavail.saturating_mul(u64::try_from(found.f_bsize).unwrap_or(0));
    Ok(if found.f_type == libc::TMPFS_MAGIC { free.min(memory_available()) } else { free })
}

/// Memory that can be had, in bytes.
fn memory_available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kib_of(&text, "MemAvailable:").unwrap_or(u64::MAX)
}

/// Memory that a process has, in bytes; 0: it has ended.
pub fn memory_of(pid: Pid) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    kib_of(&text, "VmRSS:").unwrap_or(0)
}

fn kib_of(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    value.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Lowers the priority of the calling thread.
pub fn lower_priority() {
    // SAFETY: plain numbers; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
}

/// Flush a directory: a rename in it is then durable.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_directory_that_others_could_have_prepared_is_refused() {
        let base = std::env::temp_dir().join(format!("rustbtl-os-{}", std::process::id()));
        private_directory(&base).unwrap();
        private_directory(&base).unwrap();
        let link = base.join("link");
        symlink(&base, &link).unwrap();
        assert!(private_directory(&link).is_err());
        let open = base.join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(private_directory(&open).is_err());
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn the_other_end_of_a_socket_is_known() {
        let (one, _two) = UnixStream::pair().unwrap();
        assert_eq!(peer_uid(&one).unwrap(), euid());
    }
}
