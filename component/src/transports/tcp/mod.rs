//! Transport between nodes: one TCP connection per pair, opened when it is first needed.
//!
//! Nothing is read from a connection before both ends have proved that they belong to the job
//! (`coordination/src/handshake.rs`).
//! If both ends connect at the same time, the connection that the lower
//! [`PeerId`] initiated survives.
//!
//! Waiting costs one `recv` on each of a few connections that were active last; all others, the
//! listeners and the half-open ones are watched by epoll, which is asked now and then.

pub mod accepting;
pub mod config;
pub mod connection;
pub mod dial;
pub mod dialing;
pub mod direct_placement;
pub mod epoll_token;
pub mod network;
pub mod pending_connection;
pub mod poll;
pub mod select;

pub use crate::transports::tcp::config::{TcpConfig, TcpError, TcpPeer, VERSION};

use crate::os::interfaces;
use crate::os::interfaces::Interface;
use crate::os::socket;
use crate::os::socket::{Epoll, Ready};
use crate::os::{now_ns, random};
use crate::transports::tcp::connection::{Connection, Fill, Next};
use crate::transports::tcp::dial::Dial;
use crate::transports::tcp::epoll_token::EpollToken;
use crate::transports::tcp::pending_connection::PendingConnection;
use crate::transports::{Event, Incoming, Limits, Payload, Sent, Transport};
use rustbtl_coordination::handshake::{self, Names};
use rustbtl_coordination::notice_limit::NoticeLimit;
use rustbtl_coordination::session_keys::KeyAgreement;
use rustbtl_fragments::ids::PeerId;
use rustbtl_fragments::wire::FRAME_BYTES_MAX;
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};

/// Frames taken from one connection before the next one has its turn.
const BURST: u32 = 32;
/// Up to this many connections are read directly; more are found by epoll.
const DIRECT: usize = 4;
/// Empty polls between two polls of everything else.
const IDLE_POLLS: u32 = 32;
/// After so many polls that have found nothing, one system call looks at all connections, if there
/// are several: who waits for long on a full node looks often, between two yields.
const QUIET_POLLS: u32 = 8;
/// Connections that have not proved anything yet, at most; then one gives way (`half_open`).
const PENDING_MAX: usize = 64;
/// Accepted at a time.
const ACCEPTS: usize = 16;
/// Frames of several packets (of an Ethernet as it comes), which are still waited for one by one.
const SOME_PACKETS: core::ops::Range<usize> = 1449..12 << 10;
const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConnectionLink {
    /// Never needed.
    Idle,
    /// We try to connect.
    Dialing,
    /// Open: index of the connection.
    Up(u32),
    /// Lost, or never reached.
    Down,
}

#[derive(Debug)]
struct KnownPeer {
    id: PeerId,
    link: ConnectionLink,
    /// The incarnation that it last connected in.
    incarnation: u16,
    /// Connections of this pair so far.
    generation: u32,
    card: Option<TcpPeer>,
    dial: Option<Box<Dial>>,
}

/// The TCP transport of one process.
#[derive(Debug)]
pub struct Tcp {
    config: TcpConfig,
    secret: [u8; 32],
    interfaces: Vec<Interface>,
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    epoll: Epoll,
    /// Position in `peers` of each peer id.
    index: Vec<u32>,
    peers: Vec<KnownPeer>,
    connections: Vec<Option<Box<Connection>>>,
    /// Open ones, the one that was active last in front.
    live: Vec<u32>,
    /// Those with a complete frame.
    ready: VecDeque<u32>,
    /// Those that hold bytes.
    dirty: Vec<u32>,
    /// Those with the beginning of a long frame, whose payload may get a place of its own.
    unplaced: Vec<u32>,
    /// Those that have read a payload to its place.
    landed: Vec<u32>,
    /// Bytes have come since somebody asked.
    received: bool,
    /// The last frame, and the determinants that came with it, took some packets.
    long: bool,
    /// Bytes of determinants whose frame has not come yet.
    determinant_bytes: usize,
    /// The connection whose frame `peek` has handed out.
    current: Option<u32>,
    burst: u32,
    epoch: u64,
    idle: u32,
    /// Polls since something was received.
    quiet: u32,
    pending: Vec<Option<PendingConnection>>,
    dialing: usize,
    happened: Vec<Ready>,
    events: VecDeque<Event>,
    notices: NoticeLimit,
    clock_ms: u64,
    looked_ns: u64,
    timers_ms: u64,
    closing: Option<u64>,
}

impl Tcp {
    /// Choose interfaces and listen on them.
    pub fn new(mut config: TcpConfig) -> Result<Self, TcpError> {
        let frame = config.frame_bytes_max();
        if frame > FRAME_BYTES_MAX {
            return Err(TcpError::Arguments(format!(
                "frames of {frame} bytes are too long: at most {FRAME_BYTES_MAX} (chunk_bytes_max)"
            )));
        }
        config.receive_buffer_bytes = config.receive_buffer_bytes.max(2 * frame);
        let secret = match config.secret {
            Some(secret) => secret,
            None => random::bytes()?,
        };
        let all = interfaces::list()?;
        let interfaces = crate::transports::tcp::select::select(
            &all,
            &config.if_include,
            &config.if_exclude,
            config.ipv4,
            config.ipv6,
        )?;
        let epoll = Epoll::new()?;
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for interface in &interfaces {
            let listener = socket::listen(SocketAddr::new(interface.address, 0), 1024)?;
            epoll.add(&listener, EpollToken::Listener(listeners.len()).token(), false)?;
            let bound = listener.local_addr();
            addresses.extend(bound);
            listeners.push(listener);
        }
        Ok(Self {
            config,
            secret,
            interfaces,
            listeners,
            addresses,
            epoll,
            index: Vec::new(),
            peers: Vec::new(),
            connections: Vec::new(),
            live: Vec::new(),
            ready: VecDeque::new(),
            dirty: Vec::new(),
            unplaced: Vec::new(),
            landed: Vec::new(),
            received: false,
            long: false,
            determinant_bytes: 0,
            current: None,
            burst: 0,
            epoch: 1,
            idle: 0,
            quiet: 0,
            pending: Vec::new(),
            dialing: 0,
            happened: Vec::new(),
            events: VecDeque::new(),
            notices: NoticeLimit::default(),
            clock_ms: 0,
            looked_ns: now_ns(),
            timers_ms: 0,
            closing: None,
        })
    }

    /// What the peers must know of this process.
    pub fn address(&self) -> TcpPeer {
        TcpPeer {
            addresses: self.addresses.clone(),
            secret: self.secret,
            incarnation: self.config.incarnation,
        }
    }

    /// Tell how to reach a peer (again: after its restart). Nothing is sent or connected by this.
    pub fn add_peer(&mut self, peer: PeerId, card: TcpPeer) {
        let slot = self.slot_or_new(peer);
        let known = &mut self.peers[slot];
        // It may have connected in a later incarnation than the one whose endpoint this is.
        if known.card.is_none() || card.incarnation >= known.incarnation {
            known.incarnation = known.incarnation.max(card.incarnation);
            known.card = Some(card);
        }
    }

    /// The peer was restarted: a connection to its earlier incarnation is closed, and nobody is
    /// notified.
    pub fn renew_peer(&mut self, peer: PeerId, card: TcpPeer) {
        let slot = self.slot_or_new(peer);
        if self.peers[slot].incarnation < card.incarnation {
            if let ConnectionLink::Up(at) = self.peers[slot].link {
                self.close_connection(at, false, String::new());
            }
            self.end_dial(slot);
            self.peers[slot].link = ConnectionLink::Idle;
            self.events.retain(|event| !is_of(event, peer));
        } else if self.peers[slot].link == ConnectionLink::Down {
            self.peers[slot].link = ConnectionLink::Idle;
        }
        self.add_peer(peer, card);
    }

    /// Does this transport know the peer?
    #[inline]
    pub fn reaches(&self, peer: PeerId) -> bool {
        self.slot(peer).is_some()
    }

    /// After [`Event::Down`]: try again. [`Event::Up`] or another `Down` follows.
    pub fn reconnect(&mut self, peer: PeerId) {
        let Some(slot) = self.slot(peer) else { return };
        if self.peers[slot].link == ConnectionLink::Down && self.closing.is_none() {
            self.dial(slot);
        }
    }

    /// Is there an open connection to this peer?
    pub fn is_up(&self, peer: PeerId) -> bool {
        self.slot(peer).is_some_and(|at| matches!(self.peers[at].link, ConnectionLink::Up(_)))
    }

    /// Close the connection to a peer. [`Event::Down`] follows.
    pub fn disconnect(&mut self, peer: PeerId, reason: String) {
        let Some(slot) = self.slot(peer) else { return };
        if let ConnectionLink::Up(at) = self.peers[slot].link {
            self.close_connection(at, false, reason);
        }
    }

    /// Have bytes come since the last question, if only a part of a frame?
    #[inline]
    pub fn take_received(&mut self) -> bool {
        std::mem::take(&mut self.received)
    }

    /// Is there no connection, not even one that is being opened?
    #[inline]
    pub fn is_unused(&self) -> bool {
        let is_quiet = self.events.is_empty() && self.pending.is_empty();
        self.live.is_empty() && self.dialing == 0 && is_quiet
    }

    /// Is anything accepted and not yet written?
    #[inline]
    pub fn holds(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Descriptor to sleep on while nothing is held and nothing is offered: readable when a look
    /// at this transport may bring something. Not while a connection is being opened.
    pub fn wait_descriptor(&self) -> Option<RawFd> {
        (self.dialing == 0).then(|| self.epoll.descriptor())
    }

    /// Every descriptor that this transport has open.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let connections = self.connections.iter().flatten().map(|c| c.wire.stream.as_raw_fd());
        let pending = self.pending.iter().flatten().map(|s| s.stream.as_raw_fd());
        let dials = self
            .peers
            .iter()
            .filter_map(|peer| peer.dial.as_ref()?.socket().map(|(stream, _)| stream.as_raw_fd()));
        let listeners = self.listeners.iter().map(AsRawFd::as_raw_fd);
        let all = connections.chain(pending).chain(dials).chain(listeners);
        all.chain([self.epoll.descriptor()]).collect()
    }

    #[inline]
    fn slot(&self, peer: PeerId) -> Option<usize> {
        let slot = *self.index.get(peer.0 as usize)?;
        (slot != NOBODY).then_some(slot as usize)
    }

    fn slot_or_new(&mut self, peer: PeerId) -> usize {
        if let Some(slot) = self.slot(peer) {
            return slot;
        }
        let at = peer.0 as usize;
        if self.index.len() <= at {
            self.index.resize(at + 1, NOBODY);
        }
        self.index[at] = self.peers.len() as u32;
        self.peers.push(KnownPeer {
            id: peer,
            link: ConnectionLink::Idle,
            incarnation: 0,
            generation: 0,
            card: None,
            dial: None,
        });
        self.peers.len() - 1
    }

    /// For a handshake, and our half of the keys where connections are encrypted.
    fn names(&self, to: PeerId, generation: u32) -> (Names, Option<KeyAgreement>) {
        // Without randomness a connection cannot be trusted; the kernel's source never fails once
        // it has worked (it has, in `new`, unless the secret was given).
        let random = random::bytes().unwrap_or_else(|error| panic!("rustbtl: {error}"));
        let agreement = self.config.encrypt.then(|| KeyAgreement::new(random));
        let nonce = agreement.as_ref().map_or(random, KeyAgreement::nonce);
        let names = Names {
            version: self.config.spoken_version(),
            from: self.config.me,
            to,
            incarnation: self.config.incarnation,
            generation,
            nonce,
        };
        (names, agreement)
    }

    #[cold]
    fn notice(&mut self, text: String) {
        let text = match self.notices.admit(self.clock_ms) {
            None => return,
            Some(0) => text,
            Some(n) => format!("{text} ({n} more notices were left out)"),
        };
        self.events.push_back(Event::Notice(text));
    }

    // ---- progress -----------------------------------------------------------------------------

    /// Read one connection. True: there is something to hand out.
    #[inline]
    fn fill(&mut self, at: u32) -> bool {
        let Some(connection) = self.connections[at as usize].as_mut() else { return false };
        if connection.listed {
            return false;
        }
        let filled = connection.fill();
        if filled == Fill::Some {
            self.received = true;
            self.quiet = 0;
        }
        match filled {
            Fill::Nothing => false,
            Fill::Some if connection.has_direct_payload() => {
                self.landed.push(at);
                true
            }
            Fill::Some => {
                if connection.next() == Next::Nothing {
                    self.request_direct_placement(at);
                    return false;
                }
                connection.listed = true;
                self.ready.push_back(at);
                true
            }
            Fill::Lost(reason) => {
                self.close_connection(at, false, reason);
                false
            }
        }
    }

    /// Push out and take in.
    fn poll(&mut self) {
        self.epoch += 1;
        if !self.dirty.is_empty() {
            self.push_all();
        }
        self.quiet = self.quiet.saturating_add(1);
        let by_one_call = self.quiet > QUIET_POLLS && self.live.len() > 1;
        if by_one_call || (self.long && !self.live.is_empty()) {
            // Reading a socket locks it: packets that come meanwhile have to be taken in by us, not
            // by the processor that has brought them.
            self.poll_slow();
            return;
        }
        let direct = match self.live.len() {
            n @ 0..=DIRECT => n,
            _ => 1,
        };
        let mut found = false;
        let mut i = 0;
        while i < direct.min(self.live.len()) {
            let at = self.live[i];
            found |= self.fill(at);
            i += 1;
        }
        self.idle += 1;
        let busy = self.dialing > 0 || self.live.len() > DIRECT || !self.pending.is_empty();
        if (busy && !found) || self.idle >= IDLE_POLLS {
            self.poll_slow();
        }
    }

    fn push_all(&mut self) -> bool {
        let epoch = self.epoch;
        let connections = &mut self.connections;
        self.dirty.retain(|&at| {
            let Some(connection) = connections[at as usize].as_mut() else { return false };
            connection.dirty = !connection.push(epoch);
            connection.dirty
        });
        self.dirty.is_empty()
    }

    fn peek_on(&mut self) -> Option<Incoming> {
        if self.ready.is_empty() && self.closing.is_none() {
            self.poll();
        }
        while let Some(&at) = self.ready.front() {
            let connection = self.connections[at as usize].as_mut()?;
            match connection.next() {
                Next::Frame(start, len) => {
                    self.current = Some(at);
                    return Some(Incoming { from: connection.peer, start, len });
                }
                Next::Nothing => {
                    connection.listed = false;
                    self.ready.pop_front();
                    self.request_direct_placement(at);
                }
                Next::Goodbye => {
                    self.close_connection(at, true, "it has finished".to_owned());
                }
                Next::Garbage(length) => {
                    let address = connection.address();
                    let reason = format!(
                        "{address} sent a frame of {length} bytes, which no peer of this version \
                         and configuration sends"
                    );
                    self.close_connection(at, false, reason);
                }
            }
        }
        None
    }

    /// The next connection's turn.
    #[cold]
    fn next_turn(&mut self) {
        self.burst = 0;
        self.poll();
        if let Some(at) = self.ready.pop_front() {
            self.ready.push_back(at);
        }
    }
}

/// Does it say something about the channel to this peer?
fn is_of(event: &Event, whom: PeerId) -> bool {
    match event {
        Event::Up(peer, _) | Event::Down { peer, .. } => *peer == whom,
        Event::Notice(_) => false,
    }
}

impl Transport for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn limits(&self) -> Limits {
        Limits {
            eager_bytes_max: self.config.eager_bytes_max,
            chunk_bytes_max: self.config.chunk_bytes_max,
        }
    }

    #[inline]
    fn send(&mut self, to: PeerId, header: &[u8], payload: Payload<'_>, taken: usize) -> Sent {
        let Some(slot) = self.slot(to) else { return Sent::Down };
        match self.peers[slot].link {
            ConnectionLink::Up(at) => {
                let epoch = self.epoch;
                let Some(connection) = self.connections[at as usize].as_mut() else {
                    return Sent::Down;
                };
                let sent = connection.send(header, payload, taken, epoch);
                if connection.held() > 0 && !connection.dirty {
                    connection.dirty = true;
                    self.dirty.push(at);
                }
                sent
            }
            ConnectionLink::Down => Sent::Down,
            ConnectionLink::Dialing => Sent::Full(0),
            ConnectionLink::Idle if self.closing.is_some() => Sent::Down,
            ConnectionLink::Idle => {
                self.dial(slot);
                Sent::Full(0)
            }
        }
    }

    #[inline]
    fn peek(&mut self) -> Option<Incoming> {
        if let Some(at) = self.current {
            let connection = self.connections[at as usize].as_ref()?;
            if let Next::Frame(start, len) = connection.next() {
                return Some(Incoming { from: connection.peer, start, len });
            }
            self.current = None;
        }
        self.peek_on()
    }

    #[inline]
    fn consume(&mut self, incoming: Incoming) {
        let Some(at) = self.current.take() else { return };
        if let Some(connection) = self.connections[at as usize].as_mut() {
            debug_assert_eq!(connection.peer, incoming.from, "consume without peek");
            let bytes = incoming.len + self.determinant_bytes;
            // They leave in one write with the frame behind them: together they are long or not.
            if connection.consume(incoming.len) {
                self.determinant_bytes = bytes;
            } else {
                self.determinant_bytes = 0;
                self.long = SOME_PACKETS.contains(&bytes);
            }
        }
        self.burst += 1;
        if self.burst >= BURST {
            self.next_turn();
        }
    }

    #[inline]
    fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn flush(&mut self) -> bool {
        self.dirty.is_empty() || {
            self.epoch += 1;
            self.push_all()
        }
    }

    fn close(&mut self) -> bool {
        let first = self.closing.is_none();
        let now_ms = now_ns() / 1_000_000;
        let since_ms = *self.closing.get_or_insert(now_ms);
        self.current = None;
        if first {
            self.ready.clear();
            self.listeners.clear();
            self.pending.clear();
            for slot in 0..self.peers.len() {
                self.end_dial(slot);
            }
            for connection in self.connections.iter_mut().flatten() {
                connection.say_goodbye();
            }
        }
        self.epoch += 1;
        let epoch = self.epoch;
        let late = now_ms - since_ms > u64::from(self.config.linger_ms_max);
        for at in 0..self.connections.len() {
            let Some(connection) = self.connections[at].as_mut() else { continue };
            if connection.push(epoch) && !connection.finished {
                connection.finish();
            }
            // To close with unread bytes would make the kernel throw away what it still sends.
            let gone = connection.drain();
            if gone || late || connection.is_silent() {
                self.close_connection(at as u32, true, String::new());
            }
        }
        self.live.is_empty()
    }
}
