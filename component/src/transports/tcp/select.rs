//! Which interfaces to use, and in which order to try the addresses of a peer. Pure.

use crate::os::interfaces::Interface;
use crate::transports::tcp::config::TcpError;
use std::net::{IpAddr, SocketAddr};

enum Entry<'a> {
    Name(&'a str),
    Network(IpAddr, u8),
}

fn same_network(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let shift = 32 - u32::from(prefix.min(32));
            (a.to_bits() ^ b.to_bits()).checked_shr(shift).unwrap_or(0) == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let shift = 128 - u32::from(prefix.min(128));
            (a.to_bits() ^ b.to_bits()).checked_shr(shift).unwrap_or(0) == 0
        }
        _ => false,
    }
}

impl Entry<'_> {
    fn matches(&self, interface: &Interface) -> bool {
        match self {
            Self::Name(name) => interface.name == *name,
            Self::Network(ip, prefix) => same_network(*ip, interface.address, *prefix),
        }
    }
}

fn describe(interfaces: &[Interface]) -> String {
    let list: Vec<String> =
        interfaces.iter().map(|i| format!("{} ({}/{})", i.name, i.address, i.prefix)).collect();
    if list.is_empty() { "none".to_owned() } else { list.join(", ") }
}

fn entries<'a>(
    parameter: &'static str,
    text: &'a str,
    interfaces: &[Interface],
) -> Result<Vec<Entry<'a>>, TcpError> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let bad = || TcpError::BadEntry { parameter, entry: part.to_owned() };
            if let Some((ip, prefix)) = part.split_once('/') {
                let ip: IpAddr = ip.parse().map_err(|_| bad())?;
                let prefix: u8 = prefix.parse().map_err(|_| bad())?;
                if prefix > if ip.is_ipv4() { 32 } else { 128 } {
                    return Err(bad());
                }
                return Ok(Entry::Network(ip, prefix));
            }
            if interfaces.iter().any(|interface| interface.name == part) {
                return Ok(Entry::Name(part));
            }
            let existing = describe(interfaces);
            Err(TcpError::UnknownInterface { parameter, name: part.to_owned(), existing })
        })
        .collect()
}

/// The interfaces to use.
pub(super) fn select(
    interfaces: &[Interface],
    include: &str,
    exclude: &str,
    ipv4: bool,
    ipv6: bool,
) -> Result<Vec<Interface>, TcpError> {
    let include = entries("if_include", include, interfaces)?;
    let exclude = entries("if_exclude", exclude, interfaces)?;
    if !include.is_empty() && !exclude.is_empty() {
        return Err(TcpError::IncludeAndExclude);
    }
    let usable = |interface: &&Interface| match interface.address {
        IpAddr::V4(_) => ipv4,
        // ConnectionLink-local addresses mean nothing without the interface of the other end.
        IpAddr::V6(ip) => ipv6 && !ip.is_unicast_link_local(),
    };
    let any = |list: &[Entry<'_>], i: &Interface| list.iter().any(|entry| entry.matches(i));
    let usable: Vec<&Interface> = interfaces.iter().filter(usable).collect();
    let mut chosen: Vec<Interface> = if !include.is_empty() {
        usable.iter().filter(|i| any(&include, i)).map(|&i| i.clone()).collect()
    } else if !exclude.is_empty() {
        usable.iter().filter(|i| !any(&exclude, i)).map(|&i| i.clone()).collect()
    } else {
        usable.iter().filter(|i| !i.loopback).map(|&i| i.clone()).collect()
    };
    if chosen.is_empty() && include.is_empty() && exclude.is_empty() {
        chosen = usable.iter().map(|&i| i.clone()).collect();
    }
    if chosen.is_empty() {
        return Err(TcpError::NoInterface { existing: describe(interfaces) });
    }
    Ok(chosen)
}

/// The addresses of a peer, the most promising first: on a network of ours, then elsewhere, then
/// those that are our own (the peer may be on this host, or both hosts have the same bridge).
pub(super) fn ordered(mine: &[Interface], theirs: &[SocketAddr]) -> Vec<SocketAddr> {
    let rank = |address: &SocketAddr| {
        let ip = address.ip();
        if mine.iter().any(|i| i.address == ip) {
            2
        } else if mine.iter().any(|i| same_network(i.address, ip, i.prefix)) {
            0
        } else {
            1
        }
    };
    let mut out = theirs.to_vec();
    out.sort_by_key(rank);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str, prefix: u8) -> Interface {
        let loopback = name == "lo";
        Interface { name: name.into(), address: address.parse().unwrap(), prefix, loopback }
    }

    fn host() -> Vec<Interface> {
        vec![
            interface("lo", "127.0.0.1", 8),
            interface("lo", "::1", 128),
            interface("eth0", "10.1.0.5", 16),
            interface("eth0", "fe80::5", 64),
            interface("eth0", "fd00::5", 64),
            interface("ib0", "192.168.3.5", 24),
        ]
    }

    fn names(include: &str, exclude: &str) -> Result<Vec<String>, TcpError> {
        let chosen = select(&host(), include, exclude, true, true)?;
        Ok(chosen.iter().map(|i| i.address.to_string()).collect())
    }

    #[test]
    fn loopback_and_link_local_are_left_out_by_default() {
        assert_eq!(
            names("", ""),
            Ok(vec!["10.1.0.5".into(), "fd00::5".into(), "192.168.3.5".into()])
        );
    }

    #[test]
    fn loopback_is_used_where_nothing_else_is() {
        let alone = &host()[..2];
        let chosen = select(alone, "", "", true, false).unwrap();
        assert_eq!(chosen, alone[..1]);
    }

    #[test]
    fn names_and_networks_include_and_exclude() {
        assert_eq!(names("ib0", ""), Ok(vec!["192.168.3.5".into()]));
        assert_eq!(names("10.0.0.0/8", ""), Ok(vec!["10.1.0.5".into()]));
        assert_eq!(names(" lo , fd00::/16", ""), {
            Ok(vec!["127.0.0.1".into(), "::1".into(), "fd00::5".into()])
        });
        assert_eq!(names("", "lo,eth0"), Ok(vec!["192.168.3.5".into()]));
        assert_eq!(names("", "0.0.0.0/0,lo"), Ok(vec!["fd00::5".into()]));
    }

    #[test]
    fn wrong_entries_are_named() {
        let error = names("eth7", "").unwrap_err();
        assert!(error.to_string().contains("eth7") && error.to_string().contains("ib0"));
        assert!(matches!(names("10.0.0.0/99", ""), Err(TcpError::BadEntry { .. })));
        assert!(matches!(names("", "x/8"), Err(TcpError::BadEntry { .. })));
        assert!(matches!(names("172.16.0.0/12", ""), Err(TcpError::NoInterface { .. })));
        assert_eq!(names("ib0", "lo"), Err(TcpError::IncludeAndExclude));
    }

    #[test]
    fn addresses_on_our_networks_come_first_and_our_own_last() {
        let theirs: Vec<SocketAddr> = ["172.17.0.1:1", "10.1.0.5:2", "8.8.8.8:3", "10.1.9.9:4"]
            .map(|text| text.parse().unwrap())
            .to_vec();
        let order: Vec<u16> = ordered(&host(), &theirs).iter().map(SocketAddr::port).collect();
        assert_eq!(order, [4, 1, 3, 2]);
    }
}
