//! Who is at the other end of a Unix socket.

use super::{Pid, check};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;

/// As the standard library has it.
const BACKLOG: libc::c_int = 128;

fn peer(socket: &impl AsRawFd) -> io::Result<libc::ucred> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    let (at, size_at) = ((&raw mut who).cast(), &raw mut size);
    let fd = socket.as_raw_fd();
    // SAFETY: room for the credentials and their size.
    check(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, at, size_at) })?;
    Ok(who)
}

/// User of the process at the other end.
pub fn peer_uid(socket: &impl AsRawFd) -> io::Result<u32> {
    peer(socket).map(|who| who.uid)
}

/// The process at the other end: who has connected, or called listen last.
pub fn peer_pid(socket: &impl AsRawFd) -> io::Result<Pid> {
    peer(socket).map(|who| who.pid)
}

/// Who connects sees this process, not the one that made the socket and has ended.
pub fn listen_as_this_process(listener: &UnixListener) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) }).map(drop)
}
