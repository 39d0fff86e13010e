//! TCP sockets that never block, and epoll.

use crate::os::{OsError, errno, errno_text};
use core::ptr::NonNull;
use std::io::IoSlice;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Outcome of a read or a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Io {
    /// This many bytes.
    Done(usize),
    /// Nothing now.
    WouldBlock,
    /// The other end has closed (reads only).
    End,
    /// The connection is broken: errno.
    Broken(i32),
}

/// A listening socket on this address (port 0: any).
pub fn listen(address: SocketAddr, backlog: i32) -> Result<TcpListener, OsError> {
    let on = || address.to_string();
    let stream = new_socket(address)?;
    let one = 1;
    set(&stream, libc::SOL_SOCKET, libc::SO_REUSEADDR, one)?;
    if address.is_ipv6() {
        set(&stream, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, one)?;
    }
    let (raw, len) = raw_address(address);
    // SAFETY: `raw` holds an address of `len` bytes.
    if unsafe { libc::bind(stream.as_raw_fd(), (&raw const raw).cast(), len) } != 0 {
        return Err(OsError::last("bind", on()));
    }
    // SAFETY: a bound socket.
    if unsafe { libc::listen(stream.as_raw_fd(), backlog) } != 0 {
        return Err(OsError::last("listen", on()));
    }
    Ok(TcpListener::from(OwnedFd::from(stream)))
}

/// The next waiting connection.
pub fn accept(listener: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
    // std makes it close-on-exec; non-blocking it is not inherited.
    let (stream, address) = listener.accept().ok()?;
    stream.set_nonblocking(true).ok()?;
    Some((stream, address))
}

/// Start to connect; the result is known when the socket becomes writable ([`connected`]).
pub fn connect(address: SocketAddr) -> Result<TcpStream, OsError> {
    let stream = new_socket(address)?;
    let (raw, len) = raw_address(address);
    // SAFETY: `raw` holds an address of `len` bytes.
    let failed = unsafe { libc::connect(stream.as_raw_fd(), (&raw const raw).cast(), len) } != 0;
    if failed && errno() != libc::EINPROGRESS {
        return Err(OsError::last("connect", address.to_string()));
    }
    Ok(stream)
}

/// What became of a started connect. `Ok(false)`: not decided yet.
pub fn connected(stream: &TcpStream, address: SocketAddr) -> Result<bool, OsError> {
    match stream.take_error() {
        Ok(Some(error)) | Err(error) => {
            let code = error.raw_os_error().unwrap_or(libc::EIO);
            Err(OsError::with_code("connect", address.to_string(), code))
        }
        Ok(None) => Ok(stream.peer_addr().is_ok()),
    }
}

fn new_socket(address: SocketAddr) -> Result<TcpStream, OsError> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(OsError::last("socket", address.to_string()));
    }
    // SAFETY: just made, owned by nobody else.
    Ok(unsafe { TcpStream::from_raw_fd(fd) })
}

fn raw_address(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all-zero is a valid sockaddr_storage.
    let mut raw: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let len = match address {
        SocketAddr::V4(v4) => {
            let from = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_storage has room and alignment for every kind of address.
            unsafe { (&raw mut raw).cast::<libc::sockaddr_in>().write(from) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let from = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: a sockaddr_storage has room and alignment for every kind of address.
            unsafe { (&raw mut raw).cast::<libc::sockaddr_in6>().write(from) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (raw, len as libc::socklen_t)
}

/// The other end of a connected TCP socket, if this descriptor is one.
pub fn peer(fd: RawFd) -> Option<SocketAddr> {
    // SAFETY: only looked at: not closed, because it is never dropped. A number that is not open
    // fails with EBADF.
    let stream = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd) });
    stream.peer_addr().ok()
}

/// Set an integer option.
pub fn set(stream: &TcpStream, level: i32, option: i32, value: i32) -> Result<(), OsError> {
    let size = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the value has this size.
    let failed = unsafe {
        libc::setsockopt(stream.as_raw_fd(), level, option, (&raw const value).cast(), size)
    } != 0;
    if failed {
        return Err(OsError::last("setsockopt", format!("socket option {option}")));
    }
    Ok(())
}

/// Send without delay; buffers of this size, 0 leaves them to the kernel.
pub fn tune(stream: &TcpStream, buffer_bytes: usize) {
    // Options are hints: a connection without them works.
    let _ = set(stream, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    if buffer_bytes > 0 {
        let bytes = buffer_bytes.min(i32::MAX as usize) as i32;
        let _ = set(stream, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes);
        let _ = set(stream, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes);
    }
}

/// How much the kernel is ready to announce as its window, bytes (tcp(7), TCP_INFO); 0: it does not
/// tell.
pub fn receive_window(stream: &TcpStream) -> u32 {
    // SAFETY: integers, for which 0 is a value.
    let mut info: libc::tcp_info = unsafe { core::mem::zeroed() };
    let mut bytes = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: `info` has this size.
    let failed = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut bytes,
        )
    } != 0;
    if failed { 0 } else { info.tcpi_rcv_ssthresh }
}

/// Announce no more than that, until the kernel makes the buffer larger (tcp(7),
/// TCP_WINDOW_CLAMP).
pub fn limit_receive_window(stream: &TcpStream, bytes: u32) -> Result<(), OsError> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    set(stream, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, bytes)
}

/// Probes of a connection on which nothing is under way, within the time that silence may last.
const PROBES: u32 = 3;

/// Break the connection when the other end has acknowledged nothing for so long: neither what was
/// sent, nor, while nothing is, the kernel's own probes.
pub fn limit_silence(stream: &TcpStream, ms: u32) {
    // Options are hints: a connection without them works.
    let seconds = (ms / (1000 * (PROBES + 1))).max(1) as i32;
    let _ = set(stream, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    let _ = set(stream, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds);
    let _ = set(stream, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, seconds);
    let _ = set(stream, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, PROBES as i32);
    let _ = set(stream, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, ms.min(i32::MAX as u32) as i32);
}

/// Read what is there.
#[inline]
pub fn receive(stream: &TcpStream, into: &mut [u8]) -> Io {
    loop {
        // SAFETY: `into` is writable for its length.
        let got = unsafe {
            libc::recv(stream.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT)
        };
        if let Some(io) = outcome_of_read(got) {
            return io;
        }
    }
}

/// Read what is there: `bytes` bytes to `into`, what comes behind them to `rest`.
///
/// # Safety
/// `into` is writable for `bytes` bytes, and no part of `rest`.
pub unsafe fn receive_at(
    stream: &TcpStream,
    into: NonNull<u8>,
    bytes: usize,
    rest: &mut [u8],
) -> Io {
    let parts = [
        libc::iovec { iov_base: into.as_ptr().cast(), iov_len: bytes },
        libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() },
    ];
    loop {
        // SAFETY: both parts are writable; the socket never blocks.
        let got = unsafe { libc::readv(stream.as_raw_fd(), parts.as_ptr(), parts.len() as i32) };
        if let Some(io) = outcome_of_read(got) {
            return io;
        }
    }
}

/// `None`: interrupted, try again.
#[inline]
fn outcome_of_read(got: isize) -> Option<Io> {
    match got {
        1.. => Some(Io::Done(got as usize)),
        0 => Some(Io::End),
        _ => match errno() {
            libc::EAGAIN => Some(Io::WouldBlock),
            libc::EINTR => None,
            code => Some(Io::Broken(code)),
        },
    }
}

/// Write as much as the kernel takes now.
#[inline]
pub fn send(stream: &TcpStream, from: &[IoSlice<'_>]) -> Io {
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    // IoSlice is ABI-compatible with iovec.
    message.msg_iov = from.as_ptr().cast_mut().cast();
    message.msg_iovlen = from.len() as _;
    loop {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the message describes readable slices.
        let put = unsafe { libc::sendmsg(stream.as_raw_fd(), &message, flags) };
        if put >= 0 {
            return Io::Done(put as usize);
        }
        match errno() {
            libc::EAGAIN | libc::ENOBUFS => return Io::WouldBlock,
            libc::EINTR => {}
            code => return Io::Broken(code),
        }
    }
}

/// Text for a broken connection.
pub fn broken(code: i32) -> String {
    errno_text(code)
}

/// A set of sockets to watch.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

/// Something happened on a watched socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready {
    /// The number it was added with.
    pub token: u64,
    /// It can be written (or is broken).
    pub writable: bool,
}

impl Epoll {
    /// An empty set.
    pub fn new() -> Result<Self, OsError> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(OsError::last("epoll_create1", "this process"));
        }
        // SAFETY: just made, owned by nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Descriptor to sleep on: readable when a watched socket is ready.
    pub fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }

    fn control(
        &self,
        operation: i32,
        socket: &impl AsRawFd,
        token: u64,
        writable: bool,
    ) -> Result<(), OsError> {
        let out = if writable { libc::EPOLLOUT as u32 } else { 0 };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32 | out, u64: token };
        let fd = socket.as_raw_fd();
        // SAFETY: both descriptors are open, `event` is valid.
        let failed = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd, &mut event) } != 0;
        if failed { Err(OsError::last("epoll_ctl", format!("descriptor {fd}"))) } else { Ok(()) }
    }

    /// Watch a socket for reading, and for writing if asked. (Closing it ends that.)
    pub fn add(&self, socket: &impl AsRawFd, token: u64, writable: bool) -> Result<(), OsError> {
        self.control(libc::EPOLL_CTL_ADD, socket, token, writable)
    }

    /// Watch it under another number, or for other things.
    pub fn change(&self, socket: &impl AsRawFd, token: u64, writable: bool) -> Result<(), OsError> {
        self.control(libc::EPOLL_CTL_MOD, socket, token, writable)
    }

    /// What is ready now.
    pub fn ready(&self, out: &mut Vec<Ready>) {
        const EVENTS: usize = 32;
        out.clear();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        // SAFETY: room for EVENTS events.
        let n =
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), EVENTS as i32, 0) };
        for event in &events[..n.max(0) as usize] {
            let flags = event.events;
            let broken = (libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP) as u32;
            out.push(Ready { token: event.u64, writable: flags & broken != 0 });
        }
    }
}
