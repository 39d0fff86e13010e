//! Locks on bytes of a file that belong to an open file description: the kernel drops them when
//! its holder dies, so that they tell who lives.

use crate::os::{OsError, errno};
use std::os::fd::{AsRawFd, OwnedFd};

fn request(kind: i16, byte: u64, bytes: i64) -> libc::flock {
    // SAFETY: all-zero is a valid flock (l_pid must be 0 for these calls).
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = byte as i64;
    lock.l_len = bytes;
    lock
}

/// Hold `byte` of the file for as long as the descriptor is open. Fails with EAGAIN if another
/// holds it.
pub fn hold(file: &OwnedFd, byte: u64) -> Result<(), OsError> {
    let lock = request(libc::F_WRLCK as i16, byte, 1);
    // SAFETY: the descriptor is open and `lock` a valid request.
    let failed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) } != 0;
    if failed { Err(OsError::last("fcntl(F_OFD_SETLK)", format!("byte {byte}"))) } else { Ok(()) }
}

/// Does another open file description hold `byte`? (Also true where the kernel cannot tell.)
pub fn held_by_another(file: &OwnedFd, byte: u64) -> bool {
    is_held(file, request(libc::F_WRLCK as i16, byte, 1))
}

/// Does another open file description hold any byte? (Also true where the kernel cannot tell.)
pub fn any_held_by_another(file: &OwnedFd) -> bool {
    is_held(file, request(libc::F_WRLCK as i16, 0, 0))
}

fn is_held(file: &OwnedFd, mut lock: libc::flock) -> bool {
    // SAFETY: the descriptor is open and `lock` writable.
    let failed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) } != 0;
    if failed {
        let _ = errno();
        return true;
    }
    lock.l_type != libc::F_UNLCK as i16
}
