//! Connecting: attempts, and connections that come and go.

use crate::os::socket;
use crate::transports::tcp::connection::wire::Wire;
use crate::transports::tcp::dial::{Dial, Step};
use crate::transports::tcp::{Connection, ConnectionLink, EpollToken, Event, Tcp, select};
use std::net::SocketAddr;

impl Tcp {
    #[cold]
    pub(super) fn dial(&mut self, slot: usize) {
        let peer = &self.peers[slot];
        let Some(card) = peer.card.clone() else {
            let reason = "it has published no TCP address".to_owned();
            return self.lost(slot, false, reason);
        };
        let (hello, agreement) = self.names(peer.id, peer.generation);
        let addresses = select::ordered(&self.interfaces, &card.addresses);
        let limit = self.config.connect_ms_max;
        let dial = Dial::new(addresses, &card, (hello, agreement), self.clock_ms, limit);
        self.peers[slot].dial = Some(Box::new(dial));
        self.peers[slot].link = ConnectionLink::Dialing;
        self.dialing += 1;
        self.drive_dial(slot);
    }

    pub(super) fn drive_dial(&mut self, slot: usize) {
        let now_ms = self.clock_ms;
        let Some(dial) = self.peers[slot].dial.as_mut() else { return };
        match dial.drive(now_ms) {
            Step::Waiting(changed) => {
                if let (true, Some((socket, writable))) = (changed, dial.socket()) {
                    let token = EpollToken::Dial(slot).token();
                    if self.epoll.change(socket, token, writable).is_err() {
                        let _ = self.epoll.add(socket, token, writable);
                    }
                }
            }
            Step::Open(wire, address, names, generation) => {
                self.end_dial(slot);
                if let ConnectionLink::Up(_) = self.peers[slot].link {
                    return;
                }
                self.open(slot, *wire, address, names.incarnation, generation);
            }
            Step::Failed(reason, notice) => {
                self.end_dial(slot);
                if notice {
                    let text = format!("peer {} at {reason}", self.peers[slot].id);
                    self.notice(text);
                }
                self.lost(slot, false, format!("cannot connect: {reason}"));
            }
        }
    }

    pub(super) fn end_dial(&mut self, slot: usize) {
        if self.peers[slot].dial.take().is_some() {
            self.dialing -= 1;
        }
    }

    pub(super) fn open(
        &mut self,
        slot: usize,
        wire: Wire,
        address: SocketAddr,
        incarnation: u16,
        generation: u32,
    ) {
        socket::tune(&wire.stream, self.config.socket_buffer_bytes);
        if self.config.silence_ms_max > 0 {
            socket::limit_silence(&wire.stream, self.config.silence_ms_max);
        }
        let free = self.connections.iter().position(Option::is_none);
        let at = free.unwrap_or(self.connections.len());
        let token = EpollToken::Connection(at as u32).token();
        if self.epoll.change(&wire.stream, token, false).is_err() {
            let _ = self.epoll.add(&wire.stream, token, false);
        }
        let peer = &mut self.peers[slot];
        peer.link = ConnectionLink::Up(at as u32);
        peer.generation = generation;
        peer.incarnation = incarnation;
        let mut connection = Box::new(Connection::new(
            wire,
            peer.id,
            slot,
            address,
            self.config.receive_buffer_bytes,
            self.config.frame_bytes_max(),
            self.config.gather_bytes_max,
        ));
        connection.places = self.config.places;
        let connection = Some(connection);
        self.events.push_back(Event::Up(peer.id, incarnation));
        if at == self.connections.len() {
            self.connections.push(connection);
        } else {
            self.connections[at] = connection;
        }
        self.live.push(at as u32);
        // Frames may have come together with the end of the handshake.
        self.fill(at as u32);
    }

    /// No channel to this peer any more.
    pub(super) fn lost(&mut self, slot: usize, said_goodbye: bool, reason: String) {
        let peer = &mut self.peers[slot];
        peer.link = ConnectionLink::Down;
        let event = Event::Down { peer: peer.id, said_goodbye, reason };
        if self.closing.is_none() {
            self.events.push_back(event);
        }
    }

    pub(super) fn close_connection(&mut self, at: u32, said_goodbye: bool, reason: String) {
        let Some(connection) = self.connections[at as usize].take() else { return };
        self.live.retain(|&other| other != at);
        self.ready.retain(|&other| other != at);
        self.dirty.retain(|&other| other != at);
        self.unplaced.retain(|&other| other != at);
        self.landed.retain(|&other| other != at);
        if self.current == Some(at) {
            self.current = None;
        }
        let slot = connection.slot;
        drop(connection);
        self.lost(slot, said_goodbye, reason);
    }
}
