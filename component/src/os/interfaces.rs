//! Network interfaces of this host and their addresses.

use crate::os::OsError;
use core::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One address of one interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// "eth0".
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Length of the network prefix.
    pub prefix: u8,
    /// A loopback interface?
    pub loopback: bool,
}

/// All IPv4 and IPv6 addresses of interfaces that are up.
pub fn list() -> Result<Vec<Interface>, OsError> {
    let mut first: *mut libc::ifaddrs = core::ptr::null_mut();
    // SAFETY: `first` is writable; the list is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(OsError::last("getifaddrs", "this host"));
    }
    let mut out = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: an element of the list, which lives until freeifaddrs.
        let entry = unsafe { &*next };
        out.extend(interface(entry));
        next = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs and is not used any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(out)
}

fn interface(entry: &libc::ifaddrs) -> Option<Interface> {
    let up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
    if !up || entry.ifa_name.is_null() {
        return None;
    }
    // SAFETY: not null; getifaddrs gives C strings.
    let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
    let address = ip(entry.ifa_addr)?;
    let prefix = match ip(entry.ifa_netmask)? {
        IpAddr::V4(mask) => mask.to_bits().count_ones() as u8,
        IpAddr::V6(mask) => mask.to_bits().count_ones() as u8,
    };
    let loopback = entry.ifa_flags & libc::IFF_LOOPBACK as u32 != 0;
    Some(Interface { name, address, prefix, loopback })
}

fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null; every sockaddr starts with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a sockaddr_in.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a sockaddr_in6.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_loopback_interface_is_listed() {
        let list = super::list().unwrap();
        let found = list.iter().find(|i| i.address.to_string() == "127.0.0.1").unwrap();
        assert!(found.loopback && found.prefix == 8, "{found:?}");
    }
}
