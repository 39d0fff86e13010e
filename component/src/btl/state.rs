//! What a process has for the BTL: its two transports, who is reached by which, and what waits.
//!
//! No function in here calls Open MPI, except to pack what it sends: `core.rs` does that, when
//! nothing of this is borrowed.

use crate::btl::frame;
use crate::btl::frame::{TCP_VERSION, Way, What};
use crate::btl::one_sided::BURST;
use crate::btl::operation::Asked;
use crate::btl::outbox::{Cookie, Message, Outbox, offer};
use crate::ffi::table::Name;
use crate::os::{now_ns, yield_now};
use crate::peers::endpoint::Endpoint;
use crate::peers::table::{Peers, is_numbered_by_mpirun};
use crate::transports::shm::layout::Layout;
use crate::transports::shm::{Inaccessible, Segment, SegmentOptions, Shm};
use crate::transports::tcp::{Tcp, TcpConfig, TcpPeer};
use crate::transports::{Event, Incoming, Payload, Sent, Transport};
use core::ptr::NonNull;
use rustbtl_fragments::ids::PeerId;
use rustbtl_ring::frame_bytes_max;
use std::collections::{BTreeMap, VecDeque};

/// Sockets are read in each round for so many rounds after something came from them or went to
/// them …
const NETWORK_BUSY_ROUNDS: u32 = 256;
/// … then once in so many, if ranks of this node are reached by its memory …
const NETWORK_INTERVAL: u32 = 16;
/// … and once in so many if no process of another node was ever met (one may connect).
const NETWORK_UNUSED_INTERVAL: u32 = 4096;
/// Events within the node are asked for once in so many rounds.
const NODE_EVENT_INTERVAL: u32 = 64;
/// So often a round looks at the ring that had the last message: the rest of a round of Open MPI's
/// progress takes longer.
const LOOKS: u32 = 12;
/// How long what waits may take to leave in the end.
const DRAIN_NS_MAX: u64 = 2_000_000_000;
/// How long goodbyes may take.
const CLOSE_NS_MAX: u64 = 5_000_000_000;
/// The address of TCP in an endpoint.
const TCP: &str = "tcp";

/// What the transports are opened with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Use memory of the node?
    pub shm: bool,
    /// How.
    pub segment: SegmentOptions,
    /// How connections are made; `me` and `version` are set here.
    pub tcp: TcpConfig,
}

/// Where this process is.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its name.
    pub me: Name,
    /// Processes of its job.
    pub size: u32,
    /// Its node.
    pub node: String,
    /// World ranks of the job on this node, ascending; it is one of them.
    pub local: Vec<u32>,
}

/// A frame that was handed out.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// By which transport.
    pub way: Way,
    /// From whom.
    pub from: PeerId,
    /// Open MPI's tag.
    pub tag: u8,
    /// The payload; valid until the frame is consumed.
    pub payload: (*const u8, usize),
    frame: Incoming,
}

/// What happened to a peer, or what the user should know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    /// This process is not reached any more.
    Lost(Name, String),
    /// For the user.
    Notice(String),
}

/// See the module's documentation.
pub struct State {
    peers: Peers,
    pub(super) place: Place,
    pub(super) settings: Settings,
    /// The node's memory, at the rank that made it, until all know of it.
    created: Option<Segment>,
    pub(super) node: Option<Shm>,
    pub(super) network: Tcp,
    pub(super) outbox: Outbox,
    pub(super) asked: Asked,
    /// Processes of other nodes that were met, and whether they have finished.
    remote: BTreeMap<PeerId, bool>,
    round: u32,
    busy_until: u32,
    news: VecDeque<News>,
}

fn is_put(head: &[u8; frame::HEAD_BYTES]) -> bool {
    frame::put_address(head).is_some()
}

impl Arrived {
    #[inline]
    pub(super) fn new(way: Way, tag: u8, frame: Incoming) -> Self {
        let at = way.head_bytes();
        let payload = (frame.start.wrapping_add(at), frame.len - at);
        Self { way, from: frame.from, tag, payload, frame }
    }
}

/// A payload and its head have to fit into one frame of the node's rings.
pub const fn node_bytes_max(ring_bytes: usize, ranks: usize) -> usize {
    let ring_bytes = if ring_bytes == 0 { Layout::default_ring_bytes(ranks) } else { ring_bytes };
    frame_bytes_max(ring_bytes) - Way::Node.head_bytes()
}

/// Opening and meeting.
impl State {
    /// Open what the others can be told of.
    ///
    /// # Errors
    /// Why there is no BTL, for the user.
    pub fn open(place: Place, settings: Settings) -> Result<Self, String> {
        let peers = Peers::new(place.me, place.size, is_numbered_by_mpirun());
        let tcp = TcpConfig {
            me: peers.me(),
            version: TCP_VERSION,
            places: is_put,
            ..settings.tcp.clone()
        };
        let network = Tcp::new(tcp).map_err(|error| error.to_string())?;
        let mut state = Self {
            peers,
            place,
            settings,
            created: None,
            node: None,
            network,
            outbox: Outbox::default(),
            asked: Asked::default(),
            remote: BTreeMap::new(),
            round: 0,
            busy_until: 0,
            news: VecDeque::new(),
        };
        if state.uses_node() && state.index() == 0 {
            let ranks = state.place.local.len();
            let segment = Segment::create(ranks, 0, &state.settings.segment);
            state.created = Some(segment.map_err(|error| error.to_string())?);
        }
        Ok(state)
    }

    fn uses_node(&self) -> bool {
        self.settings.shm && self.place.local.len() > 1
    }

    /// This process' place among the ranks of the node.
    fn index(&self) -> usize {
        self.place.local.iter().position(|&rank| rank == self.peers.rank()).unwrap_or_default()
    }

    /// The file that has to go if the job dies before all have opened it.
    pub fn file(&self) -> Option<String> {
        let segment = self.created.as_ref()?;
        Some(self.settings.segment.directory.join(segment.name()).display().to_string())
    }

    /// What others need to know of this process.
    pub fn card(&self) -> Vec<u8> {
        Endpoint {
            node: self.place.node.clone(),
            rank: self.peers.rank(),
            size: self.place.size,
            pid: std::process::id(),
            segment: self.created.as_ref().map(|one| one.name().to_owned()).unwrap_or_default(),
            addresses: BTreeMap::from([(TCP.to_owned(), self.network.address().encode())]),
            ..Endpoint::default()
        }
        .encode()
    }

    /// The rank whose card [`Self::attach`] needs, if that was not done and is to be done.
    pub fn leader(&self) -> Option<u32> {
        (self.uses_node() && self.node.is_none()).then(|| self.place.local[0])
    }

    /// Attach the node's memory, by the card of the rank that made it.
    ///
    /// # Errors
    /// Why that cannot be done, for the user.
    pub fn attach(&mut self, card: &[u8]) -> Result<(), String> {
        let (ranks, index) = (self.place.local.len(), self.index());
        let segment = match self.created.take() {
            Some(segment) => segment,
            None => {
                let card = Endpoint::decode(card).map_err(|error| error.to_string())?;
                Segment::attach(&card.segment, ranks, index, &self.settings.segment)
                    .map_err(|error| error.to_string())?
            }
        };
        if segment.layout().ring_bytes < self.ring_bytes() {
            return Err("the ranks of this node have different sizes of rings (shm_ring)".into());
        }
        let local: Vec<_> = self.place.local.iter().map(|&rank| self.peers.of_rank(rank)).collect();
        self.node = Some(Shm::new(segment, &local));
        Ok(())
    }

    fn ring_bytes(&self) -> usize {
        match self.settings.segment.ring_bytes {
            0 => Layout::default_ring_bytes(self.place.local.len()),
            bytes => bytes,
        }
    }

    /// The number of a process, and how it is reached. `None`: it is of another mpirun.
    ///
    /// # Errors
    /// What it has published is of no use: why, for the user.
    pub fn meet(&mut self, name: Name, card: &[u8]) -> Result<Option<(PeerId, Way)>, String> {
        let Some(peer) = self.peers.number(name) else { return Ok(None) };
        let card = Endpoint::decode(card).map_err(|error| error.to_string())?;
        if self.node.as_ref().is_some_and(|node| node.reaches(peer)) {
            return Ok(Some((peer, Way::Node)));
        }
        let address = TcpPeer::decode(card.address(TCP)).map_err(|error| error.to_string())?;
        self.network.add_peer(peer, address);
        self.remote.entry(peer).or_insert(false);
        Ok(Some((peer, Way::Network)))
    }

    /// The process of a rank of this node, if its memory may be read and written. `None`: it is
    /// not there yet.
    pub fn accessible(&self, peer: PeerId) -> Option<Result<i32, Inaccessible>> {
        let node = self.node.as_ref()?;
        node.accessible(node.index_of(peer)?)
    }
}

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It may be forgotten.
    Done,
    /// It waits for room (or, if it was not to wait, nothing has happened).
    NoRoom,
    /// The peer is lost, or has finished.
    Down,
}

/// Messages.
impl State {
    /// Send it, or keep it until there is room.
    ///
    /// # Safety
    /// Its pieces stay as they are until [`Outcome::Done`], or until its cookie is over.
    #[inline]
    pub unsafe fn send(
        &mut self,
        way: Way,
        to: PeerId,
        message: Message,
        cookie: Cookie,
    ) -> Outcome {
        let mut taken = 0;
        if self.outbox.is_empty_to(to) {
            // SAFETY: the caller's promise.
            match unsafe { self.offer(way, to, &message, 0) } {
                Sent::Accepted => return Outcome::Done,
                Sent::Down => return Outcome::Down,
                Sent::Full(n) => taken = n,
            }
        }
        self.outbox.keep(to, way, message, taken, cookie);
        Outcome::NoRoom
    }

    /// Send it if there is room for all of it at once.
    ///
    /// # Safety
    /// Its pieces are readable.
    #[inline]
    pub unsafe fn send_now(&mut self, way: Way, to: PeerId, message: &Message) -> Outcome {
        if !self.outbox.is_empty_to(to) || !self.goes_whole(way, message.len()) {
            return Outcome::NoRoom;
        }
        // SAFETY: the caller's promise.
        match unsafe { self.offer(way, to, message, 0) } {
            Sent::Accepted => Outcome::Done,
            Sent::Full(taken) => {
                debug_assert_eq!(taken, 0, "frames of this length are taken whole or not at all");
                Outcome::NoRoom
            }
            Sent::Down => Outcome::Down,
        }
    }

    /// The same for a message of `bytes` behind `first`, which `pack` writes where they belong.
    #[inline]
    pub fn send_packed(
        &mut self,
        way: Way,
        to: PeerId,
        (tag, first): (u8, &[u8]),
        bytes: usize,
        pack: &mut dyn FnMut(*mut u8, usize),
    ) -> Outcome {
        let whole = first.len() + bytes;
        if !self.outbox.is_empty_to(to) || !self.goes_whole(way, whole) {
            return Outcome::NoRoom;
        }
        let head =
            [&frame::head(way, What::Message(tag), whole)[..way.head_bytes()], first].concat();
        let payload = Payload::Pack(bytes, pack);
        let sent = match (way, &mut self.node) {
            (Way::Node, Some(node)) => node.send(to, &head, payload, 0),
            (Way::Node, None) => Sent::Down,
            (Way::Network, _) => self.network.send(to, &head, payload, 0),
        };
        self.push_out(way);
        match sent {
            Sent::Accepted => Outcome::Done,
            Sent::Full(_) => Outcome::NoRoom,
            Sent::Down => Outcome::Down,
        }
    }

    /// A TCP connection keeps the rest of a frame of this length if the kernel takes only a part.
    #[inline]
    fn goes_whole(&self, way: Way, bytes: usize) -> bool {
        const KEPT_BYTES: usize = 16 << 10;
        way == Way::Node || bytes + frame::HEAD_BYTES <= KEPT_BYTES
    }

    /// # Safety
    /// The pieces of the message are readable.
    #[inline]
    pub(super) unsafe fn offer(
        &mut self,
        way: Way,
        to: PeerId,
        message: &Message,
        taken: usize,
    ) -> Sent {
        match (way, &mut self.node) {
            (Way::Node, Some(node)) => {
                // SAFETY: the caller's promise.
                let (first, second) = unsafe { message.pieces() };
                let word = frame::word(way, message.what, message.len());
                if node.send_pieces(to, word, first, second) {
                    return Sent::Accepted;
                }
                // SAFETY: the caller's promise.
                unsafe { offer(node, way, to, message, taken) }
            }
            (Way::Node, None) => Sent::Down,
            (Way::Network, _) => {
                // SAFETY: the caller's promise.
                let sent = unsafe { offer(&mut self.network, way, to, message, taken) };
                self.push_out(way);
                sent
            }
        }
    }

    /// The program may not call MPI again for a long time: nothing is left lying here.
    #[inline]
    fn push_out(&mut self, way: Way) {
        if way == Way::Network {
            self.keep_busy();
            self.network.flush();
        }
    }

    /// Offer what waits.
    pub fn send_waiting(&mut self) {
        let mut outbox = core::mem::take(&mut self.outbox);
        // SAFETY: they were kept with the promise that they stay as they are.
        outbox.send(|way, to, message, taken| unsafe { self.offer(way, to, message, taken) });
        self.outbox = outbox;
    }

    /// Is there nothing that waits, and nothing that is over?
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.outbox.is_idle()
    }

    /// The next message that waited and is over, and whether it was accepted.
    pub fn next_over(&mut self) -> Option<(Cookie, bool)> {
        self.outbox.next_over()
    }

    /// Another round of progress begins. Is it the networks' turn, too?
    #[inline]
    pub fn begin_round(&mut self) -> bool {
        self.round = self.round.wrapping_add(1);
        let busy = self.busy_until.wrapping_sub(self.round) <= NETWORK_BUSY_ROUNDS;
        let interval = match (&self.node, self.remote.is_empty()) {
            (_, true) => NETWORK_UNUSED_INTERVAL,
            (Some(_), false) => NETWORK_INTERVAL,
            (None, false) => 1,
        };
        busy || self.round.is_multiple_of(interval)
    }

    /// The first message of a round of a rank of this node.
    #[inline(always)]
    pub fn peek_node(&mut self) -> Option<Arrived> {
        let node = self.node.as_mut()?;
        let mut looks = (0..LOOKS).map(|_| node.peek_active_rings());
        let frame = looks.find_map(|frame| frame).or_else(|| node.peek())?;
        self.read_node(frame)
    }

    /// A further one of the same rank.
    #[inline(always)]
    pub fn peek_node_again(&mut self) -> Option<Arrived> {
        let frame = self.node.as_mut()?.peek_active_rings()?;
        self.read_node(frame)
    }

    #[inline(always)]
    fn read_node(&mut self, frame: Incoming) -> Option<Arrived> {
        match frame::read(Way::Node, self.bytes(&frame)) {
            Some(What::Message(tag)) => Some(Arrived::new(Way::Node, tag, frame)),
            _ => self.read_operations(frame),
        }
    }

    /// The next message of another node. What it puts into our memory on the way there is done.
    #[inline]
    pub fn peek_network(&mut self) -> Option<Arrived> {
        // Others may ask without end, and wait for what this process does then.
        for _ in 0..BURST {
            let Some(frame) = self.network.peek() else {
                if self.network.take_received() {
                    self.keep_busy();
                }
                if self.place() {
                    continue;
                }
                return None;
            };
            self.keep_busy();
            match frame::read(Way::Network, self.bytes(&frame)) {
                Some(What::Message(tag)) => {
                    return Some(Arrived::new(Way::Network, tag, frame));
                }
                Some(What::Operation) => self.execute(Way::Network, frame),
                Some(What::Put(address)) => {
                    let payload = &self.bytes(&frame)[Way::Network.head_bytes()..];
                    let into = address as *mut u8;
                    // SAFETY: Open MPI on the other side, which has proved that it belongs to the
                    // job, was given this memory by ours, and nobody else uses it meanwhile.
                    unsafe { into.copy_from(payload.as_ptr(), payload.len()) };
                    self.consume_frame(Way::Network, frame);
                }
                None => self.refuse(Way::Network, frame),
            }
        }
        None
    }

    fn keep_busy(&mut self) {
        self.busy_until = self.round.wrapping_add(NETWORK_BUSY_ROUNDS);
    }

    /// Long payloads of puts go straight to their place. True: it is worth another look.
    fn place(&mut self) -> bool {
        let mut placed = false;
        while let Some((_, head)) = self.network.unplaced() {
            let into = frame::put_address(&head).and_then(|at| NonNull::new(at as *mut u8));
            // SAFETY: as for what comes in a frame.
            unsafe { self.network.place(into) };
            placed = true;
        }
        while self.network.placed().is_some() {
            placed = true;
        }
        placed
    }

    #[inline]
    pub(super) fn bytes<'f>(&self, frame: &'f Incoming) -> &'f [u8] {
        // SAFETY: the transport has it there until it is consumed.
        unsafe { core::slice::from_raw_parts(frame.start, frame.len) }
    }

    #[cold]
    pub(super) fn refuse(&mut self, way: Way, frame: Incoming) {
        let reason = "it has sent what no process of this version sends".to_owned();
        self.news.push_back(News::Lost(self.peers.name(frame.from), reason));
        self.consume_frame(way, frame);
    }

    /// The message that was peeked at last is done with.
    #[inline(always)]
    pub fn consume(&mut self, arrived: Arrived) {
        self.consume_frame(arrived.way, arrived.frame);
    }

    #[inline(always)]
    pub(super) fn consume_frame(&mut self, way: Way, frame: Incoming) {
        match (way, &mut self.node) {
            (Way::Node, Some(node)) => node.consume(frame),
            (Way::Node, None) => {}
            (Way::Network, _) => self.network.consume(frame),
        }
    }

    /// Is it time to look whether something has happened to channels?
    #[inline(always)]
    pub fn news_is_due(&self, network: bool) -> bool {
        network || self.round.is_multiple_of(NODE_EVENT_INTERVAL) || !self.news.is_empty()
    }

    /// What has happened to channels.
    pub fn next_news(&mut self, network: bool) -> Option<News> {
        if let Some(news) = self.news.pop_front() {
            return Some(news);
        }
        if self.round.is_multiple_of(NODE_EVENT_INTERVAL) {
            while let Some(event) = self.node.as_mut().and_then(|node| node.event()) {
                if let Some(news) = self.news_of(event) {
                    return Some(news);
                }
            }
        }
        while network && let Some(event) = self.network.event() {
            if let Some(news) = self.news_of(event) {
                return Some(news);
            }
        }
        None
    }

    fn news_of(&mut self, event: Event) -> Option<News> {
        match event {
            Event::Up(..) => None,
            Event::Notice(text) => Some(News::Notice(text)),
            Event::Down { peer, said_goodbye: true, .. } if !self.asked.waits_for(peer) => {
                self.remote.entry(peer).and_modify(|finished| *finished = true);
                None
            }
            Event::Down { peer, reason, .. } => Some(News::Lost(self.peers.name(peer), reason)),
        }
    }

    /// Let what waits leave, then say goodbye. What still comes is for nobody.
    pub fn close(&mut self) {
        let give_up = now_ns() + DRAIN_NS_MAX;
        loop {
            self.send_waiting();
            while let Some(arrived) = self.peek_node() {
                self.consume(arrived);
            }
            while let Some(arrived) = self.peek_network() {
                self.consume(arrived);
            }
            if self.outbox.is_empty() && self.network.flush() || now_ns() > give_up {
                break;
            }
            yield_now();
        }
        let give_up = now_ns() + CLOSE_NS_MAX;
        if let Some(node) = &mut self.node {
            node.close();
        }
        while !self.network.close() && now_ns() < give_up {
            yield_now();
        }
    }
}
