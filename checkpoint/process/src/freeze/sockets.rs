//! Sockets: those that listen or are not connected can be re-created; connections cannot.

use super::descriptors::OpenDescriptor;
use super::failure::FreezeFailure;
use crate::raw::{self, Errno};
use rustbtl_checkpoint::image::record::{self, Descriptor};

/// Longest address of a socket.
pub const NAME_BYTES_MAX: usize = 128;

/// Classifies a socket. `a`: type, `b`: domain and protocol, `c`: options.
pub fn classify<'a>(
    seen: &OpenDescriptor<'a>,
    descriptor: &mut Descriptor<'a>,
    name: &'a mut [u8; NAME_BYTES_MAX],
) -> Result<(), FreezeFailure> {
    let option = |option| number(seen.fd, option).map_err(FreezeFailure::system("getsockopt"));
    let domain = option(libc::SO_DOMAIN)?;
    let kind = option(libc::SO_TYPE)?;
    let protocol = option(libc::SO_PROTOCOL)?;
    let listens = option(libc::SO_ACCEPTCONN)? != 0;
    let reuses = option(libc::SO_REUSEADDR)? != 0;
    let reuses_port = number(seen.fd, libc::SO_REUSEPORT).unwrap_or_default() != 0;
    let only_six = domain == libc::AF_INET6 && six_only(seen.fd);
    if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return Err(seen.refuse("a socket of a kind that cannot be re-created; close it"));
    }
    let mut peer = [0; NAME_BYTES_MAX];
    if !listens && address(libc::SYS_getpeername, seen.fd, &mut peer).is_ok() {
        return Err(seen.refuse("a connected socket; its peer would not be there any more"));
    }
    let bytes = address(libc::SYS_getsockname, seen.fd, name)
        .map_err(FreezeFailure::system("getsockname"))?
        .min(NAME_BYTES_MAX);
    let port = [name[2], name[3]];
    descriptor.kind = if listens { record::DESCRIPTOR_LISTENER } else { record::DESCRIPTOR_SOCKET };
    descriptor.a = kind as u64;
    descriptor.b = domain as u64 | (protocol as u64) << 32;
    descriptor.c = u64::from(reuses) | u64::from(reuses_port) << 1 | u64::from(only_six) << 2;
    descriptor.data = if port == [0, 0] { b"" } else { &name[..bytes] };
    Ok(())
}

fn number(fd: i32, option: i32) -> Result<i32, Errno> {
    level_number(fd, libc::SOL_SOCKET, option)
}

fn six_only(fd: i32) -> bool {
    level_number(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY).unwrap_or_default() != 0
}

fn level_number(fd: i32, level: i32, option: i32) -> Result<i32, Errno> {
    let mut value = 0i32;
    let mut bytes = 4u32;
    let bytes_at = (&raw mut bytes).addr();
    let a = [fd as usize, level as usize, option as usize, 0, bytes_at];
    raw::fill(libc::SYS_getsockopt, a, 3, &mut value)?;
    Ok(value)
}

fn address(call: i64, fd: i32, into: &mut [u8; NAME_BYTES_MAX]) -> Result<usize, Errno> {
    let mut bytes = NAME_BYTES_MAX as u32;
    let bytes_at = (&raw mut bytes).addr();
    raw::fill(call, [fd as usize, 0, bytes_at, 0, 0], 1, into)?;
    Ok(bytes as usize)
}
