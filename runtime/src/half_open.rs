//! Connections to a listener of the job until they are authenticated: a bounded number, each with a
//! deadline. All are accepted at once, so that nobody waits in the kernel's queue behind others;
//! which one gives way if there are too many: `rustbtl_coordination::half_open`.

use crate::auth::{AuthenticatedStream, Host, Progress, Secret, UnauthenticatedPeer};
use crate::listen::Listeners;
use crate::os::Poll;
use rustbtl_coordination::half_open::{HalfOpen, victim};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// How long a peer may take to authenticate itself.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Accepted at a time: others wait to be served, too.
const ACCEPTS: usize = 64;
/// Addresses that are remembered.
const KNOWN_MAX: usize = 1 << 16;

struct HalfOpenPeer {
    peer: UnauthenticatedPeer,
    address: IpAddr,
    number: u64,
}

/// What became of a connection.
#[derive(Debug)]
pub enum Outcome {
    /// It knows the job's secret.
    Authenticated(AuthenticatedStream),
    /// It is closed, for this reason.
    Refused {
        /// Where it came from.
        address: IpAddr,
        /// What the matter is.
        reason: String,
    },
}

/// See the module's documentation.
pub struct HalfOpenPeers {
    host: Host,
    max: usize,
    peers: Vec<HalfOpenPeer>,
    /// Where somebody has authenticated himself before.
    known: BTreeSet<IpAddr>,
    next: u64,
    refused: Vec<Outcome>,
}

impl HalfOpenPeers {
    /// Clients of `host`, so many at a time.
    pub fn new(host: Host, max: usize) -> Self {
        let (peers, known, refused) = (Vec::new(), BTreeSet::new(), Vec::new());
        Self { host, max, peers, known, next: 0, refused }
    }

    /// Adds all of them to those that are polled.
    pub fn poll(&self, poll: &mut Poll) {
        for half_open in &self.peers {
            poll.add(half_open.peer.stream().as_raw_fd(), false);
        }
    }

    /// When the time of the first one is over.
    pub fn deadline(&self) -> Option<Instant> {
        self.peers.iter().map(|half_open| half_open.peer.until).min()
    }

    /// Accepts those that wait.
    pub fn accept(&mut self, listeners: &Listeners) {
        for listener in listeners.all() {
            for _ in 0..ACCEPTS {
                let Ok((stream, address)) = listener.accept() else { break };
                self.add(stream, address);
            }
        }
    }

    fn add(&mut self, stream: TcpStream, address: SocketAddr) {
        let Ok(peer) = UnauthenticatedPeer::new(self.host, stream, TIMEOUT) else { return };
        self.next += 1;
        let (address, number) = (address.ip().to_canonical(), self.next);
        self.peers.push(HalfOpenPeer { peer, address, number });
        if self.peers.len() <= self.max {
            return;
        }
        let of = |half_open: &HalfOpenPeer| HalfOpen {
            address: half_open.address,
            is_known: self.known.contains(&half_open.address),
            since: half_open.number,
        };
        let all: Vec<HalfOpen> = self.peers.iter().map(of).collect();
        if let Some(index) = victim(&all) {
            let address = self.peers.remove(index).address;
            let reason = "too many connections that say nothing".to_owned();
            self.refused.push(Outcome::Refused { address, reason });
        }
    }

    /// Goes on with what has arrived on any of them.
    pub fn advance(&mut self, secret: &Secret) -> Vec<Outcome> {
        let now = Instant::now();
        let mut outcomes = core::mem::take(&mut self.refused);
        for mut half_open in core::mem::take(&mut self.peers) {
            let address = half_open.address;
            match half_open.peer.advance(secret) {
                Progress::Authenticated(session) => {
                    if self.known.len() < KNOWN_MAX {
                        self.known.insert(address);
                    }
                    let stream = half_open.peer.into_stream(session);
                    outcomes.push(Outcome::Authenticated(stream));
                }
                Progress::Waiting if half_open.peer.until > now => self.peers.push(half_open),
                Progress::Waiting => {
                    let reason = "it did not authenticate itself in time".to_owned();
                    outcomes.push(Outcome::Refused { address, reason });
                }
                Progress::Refused(reason) => {
                    outcomes.push(Outcome::Refused { address, reason });
                }
            }
        }
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth;
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener};

    const SECRET: Secret = [7; 32];

    fn authenticated(outcomes: &[Outcome]) -> usize {
        outcomes.iter().filter(|one| matches!(one, Outcome::Authenticated(_))).count()
    }

    #[test]
    fn whoever_knows_the_secret_gets_in_behind_any_number_of_silent_connections() {
        let listeners = Listeners::open(&[Ipv4Addr::LOCALHOST.into()], 0).unwrap();
        let at = (Ipv4Addr::LOCALHOST, listeners.port()).into();
        let mut peers = HalfOpenPeers::new(Host::Coordinator, 8);
        let mut silent: Vec<TcpStream> =
            (0..100).map(|_| TcpStream::connect(at).unwrap()).collect();
        let client = std::thread::spawn(move || {
            auth::connect(Host::Coordinator, &[at], &SECRET, Duration::from_secs(60)).map(drop)
        });
        let (mut inside, mut refused) = (0, 0);
        while inside == 0 {
            peers.accept(&listeners);
            let outcomes = peers.advance(&SECRET);
            inside += authenticated(&outcomes);
            refused += outcomes.len() - authenticated(&outcomes);
            assert!(peers.peers.len() <= 8);
            std::thread::sleep(Duration::from_millis(1));
        }
        client.join().unwrap().unwrap();
        assert!(refused >= 92, "{refused} were closed");
        silent[0].set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(silent[0].read(&mut [0]).unwrap_or(0), 0, "the oldest was closed");
    }

    #[test]
    fn who_has_been_here_before_is_not_displaced_by_who_has_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peers = HalfOpenPeers::new(Host::Spare, 4);
        let add = |peers: &mut HalfOpenPeers, from: &str| {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            peers.add(stream, from.parse().unwrap());
        };
        peers.known.insert("10.0.0.1".parse().unwrap());
        add(&mut peers, "[::ffff:10.0.0.1]:5");
        (0..50).for_each(|_| add(&mut peers, "10.0.0.9:5"));
        add(&mut peers, "10.0.0.1:6");
        let known = peers.peers.iter().filter(|one| one.address.to_string() == "10.0.0.1");
        assert_eq!((known.count(), peers.peers.len()), (2, 4));
        assert_eq!(peers.advance(&SECRET).len(), 48, "each is reported");
    }
}
