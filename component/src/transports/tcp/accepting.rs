//! Being connected to: unauthenticated peers, until they have proved who they are.

use crate::os::socket;
use crate::transports::tcp::connection::wire::Wire;
use crate::transports::tcp::handshake::{Names, Verdict};
use crate::transports::tcp::pending_connection::{PendingConnection, Progress};
use crate::transports::tcp::{ACCEPTS, ConnectionLink, EpollToken, PENDING_MAX, Tcp};
use rustbtl_coordination::half_open::{HalfOpen, is_same_host, victim};
use rustbtl_fragments::ids::PeerId;
use std::net::IpAddr;

const TOO_MANY: &str = "too many connections that say nothing";

impl Tcp {
    pub(super) fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPTS {
            let Some((stream, address)) = socket::accept(&self.listeners[listener]) else { return };
            let Some(place) = self.place_for(address.ip()) else {
                self.notice(format!("refused a connection from {address}: {TOO_MANY}"));
                continue;
            };
            if self.epoll.add(&stream, EpollToken::PendingConnection(place).token(), false).is_ok()
            {
                self.pending[place] = Some(PendingConnection::new(stream, address, self.clock_ms));
                self.drive_pending(place);
            }
        }
    }

    /// A place for a new connection; `None`: all are taken by those that have more right to it.
    fn place_for(&mut self, address: IpAddr) -> Option<usize> {
        if let Some(place) = self.pending.iter().position(Option::is_none) {
            return Some(place);
        }
        if self.pending.len() < PENDING_MAX {
            self.pending.push(None);
            return Some(self.pending.len() - 1);
        }
        let mut all = Vec::with_capacity(PENDING_MAX + 1);
        for place in 0..self.pending.len() {
            let Some(pending) = &self.pending[place] else { continue };
            let (address, since) = (pending.address.ip(), pending.since_ms);
            let is_known = pending.is_known.unwrap_or_else(|| self.is_known(address));
            if let Some(pending) = &mut self.pending[place] {
                pending.is_known = Some(is_known);
            }
            all.push(HalfOpen { address, is_known, since });
        }
        let is_known = self.is_known(address);
        all.push(HalfOpen { address, is_known, since: self.clock_ms });
        // All places are taken: the index is the place, or that of the new one.
        let place = victim(&all).filter(|&place| place < self.pending.len())?;
        self.refuse(place, TOO_MANY);
        Some(place)
    }

    /// Is one of the job's processes known to be at this address?
    fn is_known(&self, address: IpAddr) -> bool {
        let cards = self.peers.iter().filter_map(|peer| peer.card.as_ref());
        cards.flat_map(|card| &card.addresses).any(|known| is_same_host(known.ip(), address))
    }

    pub(super) fn refuse(&mut self, place: usize, why: &str) {
        if let Some(pending) = self.pending[place].take() {
            self.notice(format!("refused a connection from {}: {why}", pending.address));
        }
    }

    pub(super) fn drive_pending(&mut self, place: usize) {
        let mine = self.names(PeerId(0), 0);
        // A copy of the process for a snapshot holds what was closed here a moment longer, and as
        // long epoll speaks of it.
        let Some(pending) = self.pending.get_mut(place).and_then(Option::as_mut) else { return };
        match pending.drive(&self.secret, mine) {
            Progress::Waiting => {}
            Progress::Refused(Some(why)) => self.refuse(place, &why),
            Progress::Refused(None) => self.pending[place] = None,
            Progress::Verified(names) => {
                if let Some(pending) = self.pending[place].take() {
                    self.admit(pending, names);
                }
            }
        }
    }

    /// A connection that has proved whose it is: use it, or is there a better one?
    pub(super) fn admit(&mut self, pending: PendingConnection, names: Names) {
        let slot = self.slot_or_new(names.from);
        let peer = &self.peers[slot];
        let stale = names.incarnation < peer.incarnation;
        let restarted = names.incarnation > peer.incarnation;
        let duplicate = match peer.link {
            ConnectionLink::Up(_) => !restarted && names.generation < peer.generation,
            ConnectionLink::Dialing => {
                let active = peer.dial.as_ref().is_some_and(|dial| dial.is_active());
                active && self.config.me < peer.id && !restarted
            }
            ConnectionLink::Idle | ConnectionLink::Down => false,
        };
        if stale || duplicate {
            pending.answer(&self.secret, Verdict::Duplicate);
            return;
        }
        let generation = peer.generation.max(names.generation) + 1;
        if let ConnectionLink::Up(at) = peer.link {
            let what = if restarted { "restarted" } else { "lost the connection" };
            self.close_connection(at, false, format!("the peer has {what} and connects again"));
        }
        self.end_dial(slot);
        let session = pending.session(&self.secret, &names);
        if let Some(session) = session
            && pending.answer(&self.secret, Verdict::Accepted(generation))
        {
            let PendingConnection { stream, address, .. } = pending;
            let wire = Wire::new(stream, session);
            self.open(slot, wire, address, names.incarnation, generation);
        } else if self.peers[slot].link == ConnectionLink::Dialing {
            self.dial(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transports::tcp::{TcpConfig, TcpPeer};
    use std::net::{SocketAddr, TcpListener, TcpStream};

    #[test]
    fn a_flood_of_connections_keeps_no_peer_out() {
        let mut tcp = Tcp::new(TcpConfig::default()).unwrap();
        let peer: SocketAddr = "10.1.2.3:4000".parse().unwrap();
        let card = TcpPeer { addresses: vec![peer], secret: [1; 32], incarnation: 0 };
        tcp.add_peer(PeerId(7), card);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let connect = |tcp: &mut Tcp, from: &str, since| {
            let from: SocketAddr = from.parse().unwrap();
            tcp.clock_ms = since;
            let place = tcp.place_for(from.ip());
            if let Some(place) = place {
                let stream = TcpStream::connect(to).unwrap();
                let _other_end = listener.accept().unwrap();
                tcp.pending[place] = Some(PendingConnection::new(stream, from, since));
            }
            place
        };
        let peers_place = connect(&mut tcp, "10.1.2.3:99", 0).unwrap();
        for since in 1..200 {
            // Those of another host only displace each other.
            let place = connect(&mut tcp, "10.9.9.9:1", since).unwrap();
            assert_ne!(place, peers_place);
            assert!(tcp.pending.len() <= PENDING_MAX);
        }
        let second = connect(&mut tcp, "[::ffff:10.1.2.3]:98", 200).unwrap();
        assert_ne!(second, peers_place, "it takes the place of one of them");
    }
}
