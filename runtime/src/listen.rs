//! Listeners for processes of the job on other nodes: one port, at those addresses of this host at
//! which mpirun and this host reach each other. Open MPI has chosen them (`oob_tcp_if_include`,
//! `prte_if_include`); on other interfaces nobody has to knock.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd;

use crate::os::Poll;

/// How often another port is tried: what is free at one address may be taken at another one.
const PORTS_TRIED: usize = 50;

/// See the module's documentation.
#[derive(Debug)]
pub struct Listeners {
    listeners: Vec<TcpListener>,
    port: u16,
}

impl Listeners {
    /// At these addresses; where none of them is this host's, at all that it has. Port 0: a free
    /// one.
    pub fn open(hosts: &[IpAddr], port: u16) -> io::Result<Self> {
        let mut tried = 1;
        loop {
            match Self::open_once(hosts, port) {
                Err(error)
                    if error.kind() == ErrorKind::AddrInUse && port == 0 && tried < PORTS_TRIED =>
                {
                    tried += 1;
                }
                result => return result,
            }
        }
    }

    fn open_once(hosts: &[IpAddr], port: u16) -> io::Result<Self> {
        let (mut listeners, mut chosen) = (Vec::new(), port);
        for (at, &host) in hosts.iter().enumerate() {
            if hosts[..at].contains(&host) {
                // `oob_tcp_if_include lo`: mpirun's address is the loopback as well.
                continue;
            }
            match TcpListener::bind((host, chosen)) {
                Ok(listener) => {
                    chosen = listener.local_addr()?.port();
                    listeners.push(listener);
                }
                Err(error) if error.kind() == ErrorKind::AddrInUse => return Err(error),
                // It is not this host's, or not of a family that the host has.
                Err(_) => {}
            }
        }
        if listeners.is_empty() {
            // Takes IPv4, too, where the system allows it (the default).
            let any = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
                .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?;
            chosen = any.local_addr()?.port();
            listeners.push(any);
        }
        listeners.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        Ok(Self { listeners, port: chosen })
    }

    /// Where they listen.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Each of them.
    pub fn all(&self) -> &[TcpListener] {
        &self.listeners
    }

    /// Adds them to what is polled; gives their slots.
    pub fn poll(&self, poll: &mut Poll) -> Vec<usize> {
        self.listeners.iter().map(|listener| poll.add(listener.as_raw_fd(), false)).collect()
    }
}

/// Addresses of this host from which these are reached. Nothing is sent.
pub fn hosts_towards(addresses: &[SocketAddr]) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = Vec::new();
    for address in addresses {
        let any: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let own = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(address)?;
            socket.local_addr()
        });
        all.extend(own.map(|own| own.ip()));
    }
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn there_are_listeners_at_the_chosen_addresses_and_nowhere_else() {
        let chosen: Vec<IpAddr> =
            ["127.0.0.2", "127.0.0.3", "203.0.113.77"].map(|host| host.parse().unwrap()).into();
        let listeners = Listeners::open(&chosen, 0).unwrap();
        let port = listeners.port();
        assert_eq!(listeners.all().len(), 2, "the third is not of this host");
        assert!(TcpStream::connect(("127.0.0.2", port)).is_ok());
        assert!(TcpStream::connect(("127.0.0.3", port)).is_ok());
        assert!(TcpStream::connect(("127.0.0.4", port)).is_err());
        let taken = Listeners::open(&chosen, port).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn an_address_that_is_named_twice_is_listened_at_once() {
        let chosen: Vec<IpAddr> =
            ["127.0.0.2", "127.0.0.3", "127.0.0.2"].map(|host| host.parse().unwrap()).into();
        assert_eq!(Listeners::open(&chosen, 0).unwrap().all().len(), 2);
    }

    #[test]
    fn without_a_usable_address_it_listens_at_all() {
        let listeners = Listeners::open(&[], 0).unwrap();
        assert!(TcpStream::connect(("127.0.0.4", listeners.port())).is_ok());
    }

    #[test]
    fn a_host_knows_from_where_it_reaches_another() {
        let to = ["127.0.0.1:9".parse().unwrap(), "127.0.0.1:10".parse().unwrap()];
        assert_eq!(hosts_towards(&to), [IpAddr::from(Ipv4Addr::LOCALHOST)]);
    }
}
