//! Standard streams, pipes and terminals.

use super::check;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

/// Bytes that can be read from a pipe; either end shows that.
pub fn bytes_in(pipe: &impl AsRawFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: an int is written.
    check(unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &raw mut bytes) })?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Makes reading from it non-blocking.
pub fn set_nonblocking(file: &impl AsRawFd) -> io::Result<()> {
    let fd = file.as_raw_fd();
    // SAFETY: no pointers.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

/// A writer to what the descriptor refers to. It is non-blocking for terminals and pipes: only
/// these can be opened anew without changing the descriptor for others who hold it.
pub fn nonblocking_writer(fd: BorrowedFd<'_>) -> io::Result<File> {
    let copy = File::from(fd.try_clone_to_owned()?);
    let kind = copy.metadata()?.file_type();
    if !kind.is_fifo() && !fd.is_terminal() {
        return Ok(copy);
    }
    let mut options = File::options();
    options.write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    Ok(options.open(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or(copy))
}

/// Takes the standard input; in its place is /dev/null.
pub fn take_stdin() -> io::Result<OwnedFd> {
    let taken = io::stdin().as_fd().try_clone_to_owned()?;
    let nothing = File::open("/dev/null")?;
    // SAFETY: open descriptors; nothing of this process owns number 0.
    check(unsafe { libc::dup2(nothing.as_raw_fd(), 0) })?;
    Ok(taken)
}
