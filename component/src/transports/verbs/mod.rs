//! Transport over InfiniBand and RoCE: a reliable queue pair beside each connection of another
//! network, which is TCP.
//!
//! The connection authenticates the peer, carries what is needed to connect the queue pairs, stays
//! open, and notices a dead peer within milliseconds. Frames go by it until both queue pairs are
//! ready, and again when the adapter, the port or a link has failed: then the channel is down, as
//! if the connection had been lost, and the engine sends again what did not arrive. When the port
//! comes back, so do queue pairs.
//!
//! Frames are SENDs into one receive queue that all peers share, up to a slot's size; credits in
//! every message keep senders within what is posted. Sending and receiving a short frame allocates
//! nothing, locks nothing and calls the system in no round but one of [`ROUNDS_OF_CONNECTION`],
//! which looks at the connections. Long payloads are read by their receivers, by RDMA.
//!
//! Generic over the verbs ([`api::Verbs`]) and the network beside them ([`Carrier`]); both are
//! other ones in tests. DESIGN.md of `transports` has the whole picture.

mod adapter;
pub mod api;
mod buffers;
mod channel;
mod closing;
mod control;
mod credits;
mod exposures;
pub mod fake;
mod network;
mod reads;
mod receiving;
mod registrations;
mod second_rail;
mod select;
mod sending;
mod setup;
pub mod sys;

pub use adapter::{Choice, Sizes};
pub use control::PortAddress;
pub use select::{Usage, VerbsConfig, choose};

use crate::transports::{Carrier, Event, Incoming, Limits, Payload, Pulled, Sent, Transport};
use adapter::Adapter;
use api::{Completion, Verbs, VerbsError};
use channel::Channel;
use core::ops::Range;
use rustbtl_coordination::notice_limit::NoticeLimit;
use rustbtl_fragments::ids::PeerId;
use rustbtl_fragments::wire::ANNOUNCE_BYTES;
use std::collections::{BTreeMap, VecDeque};

/// While all peers that are known send by queue pairs, connections are looked at once in so many
/// rounds.
pub const ROUNDS_OF_CONNECTION: u32 = 256;
/// The adapter is asked for news once in so many looks at connections.
const LOOKS_OF_ADAPTER: u32 = 16;
/// Completions that are taken at a time.
const COMPLETIONS: usize = 16;
const NOBODY: u32 = u32::MAX;

/// Whose frame `peek` has handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Connection,
    Queue,
}

/// A message that can be handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ready {
    /// Index of the channel.
    channel: u32,
    /// Number of the queue pair that it came by.
    number: u32,
    arrived: channel::Arrived,
}

/// The transport: see the module's documentation.
pub struct VerbsTransport<V: Verbs, C: Carrier> {
    carrier: C,
    adapter: Adapter<V>,
    limits: Limits,
    /// Position in `channels` of each peer id.
    index: Vec<u32>,
    channels: Vec<Channel<V::Qp>>,
    /// Index of the channel of each queue pair that has one.
    numbers: BTreeMap<u32, u32>,
    /// In the order in which they arrived. Never more than there are slots.
    ready: VecDeque<Ready>,
    current: Option<Source>,
    /// Rounds until the connections are looked at.
    wait: u32,
    /// Looks until the adapter is asked.
    adapter_wait: u32,
    /// Some channel needs its connection: it is looked at in every round.
    connections_in_use: bool,
    /// Some channel has a control message that its connection has not taken.
    has_outbox: bool,
    /// Some channel owes credits that could not be returned.
    has_debts: bool,
    events: VecDeque<Event>,
    notices: NoticeLimit,
    batch: [Completion; COMPLETIONS],
    /// What is sent inline, and needs no slot.
    inline: Box<[u8]>,
    reads: reads::Reads,
    second: Option<second_rail::SecondRail<V>>,
    /// Bounce buffers whose read is over, while a completion is looked at.
    bounced: Vec<u16>,
    closing_since_ms: Option<u64>,
    is_closed: bool,
}

impl<V: Verbs, C: Carrier> VerbsTransport<V, C> {
    /// Over this port and beside this network.
    ///
    /// # Errors
    /// The adapter cannot be used.
    pub fn new(verbs: V, choice: Choice, sizes: Sizes, carrier: C) -> Result<Self, VerbsError> {
        let adapter = Adapter::open(verbs, choice, sizes)?;
        let payload = (sizes.slot_bytes - ANNOUNCE_BYTES) as u32;
        let beside = carrier.limits();
        let limits = Limits {
            eager_bytes_max: beside.eager_bytes_max.min(payload),
            chunk_bytes_max: beside.chunk_bytes_max.min(payload),
        };
        Ok(Self {
            carrier,
            adapter,
            limits,
            index: Vec::new(),
            channels: Vec::new(),
            numbers: BTreeMap::new(),
            ready: VecDeque::with_capacity(usize::from(sizes.receives)),
            current: None,
            wait: 0,
            adapter_wait: 0,
            connections_in_use: false,
            has_outbox: false,
            has_debts: false,
            events: VecDeque::new(),
            notices: NoticeLimit::default(),
            batch: [Completion::NONE; COMPLETIONS],
            inline: vec![0; sizes.slot_bytes.min(1024)].into(),
            reads: reads::Reads::default(),
            second: None,
            bounced: Vec::with_capacity(usize::from(sizes.bounce_buffers)),
            closing_since_ms: None,
            is_closed: false,
        })
    }

    /// Does the channel to this peer send, and receive, by its queue pair?
    pub fn uses_queues(&self, peer: PeerId) -> (bool, bool) {
        match self.channel(peer) {
            Some(at) => {
                let channel = &self.channels[at];
                (channel.sends_by_queue, channel.receives_by_queue)
            }
            None => (false, false),
        }
    }

    /// Slots for sending that are in use, and work requests that are not known to be complete.
    pub fn in_use(&self) -> (usize, usize) {
        (self.adapter.buffers.in_use(), self.adapter.in_flight)
    }

    /// Pieces of long payloads that have come, by the first and by the second port.
    pub fn pieces_read(&self) -> [u64; 2] {
        self.reads.pieces_read
    }

    /// The network beside the queue pairs.
    pub fn carrier(&mut self) -> &mut C {
        &mut self.carrier
    }

    #[inline]
    fn channel(&self, peer: PeerId) -> Option<usize> {
        let at = *self.index.get(peer.0 as usize)?;
        (at != NOBODY).then_some(at as usize)
    }

    fn channel_or_new(&mut self, peer: PeerId) -> usize {
        if let Some(at) = self.channel(peer) {
            return at;
        }
        let place = peer.0 as usize;
        if self.index.len() <= place {
            self.index.resize(place + 1, NOBODY);
        }
        self.index[place] = self.channels.len() as u32;
        self.channels.push(Channel::new(peer));
        self.channels.len() - 1
    }

    /// Destroy all that was made at adapters.
    fn destroy_all(&mut self) {
        let queues: Vec<_> =
            self.channels.iter_mut().filter_map(|channel| channel.queue.take()).collect();
        let seconds = queues.iter().filter_map(|queue| Some(queue.second.as_ref()?.qp));
        self.destroy_second(seconds.collect());
        self.adapter.destroy(queues.iter().map(|queue| queue.qp));
        self.numbers.clear();
    }

    /// A channel has changed its way.
    fn way_changed(&mut self) {
        self.connections_in_use = self.channels.iter().any(Channel::needs_connection);
    }

    #[cold]
    fn notice(&mut self, text: String) {
        if let Some(left_out) = self.notices.admit(crate::os::now_ns() / 1_000_000) {
            let more = match left_out {
                0 => String::new(),
                n => format!(" ({n} more notices were left out)"),
            };
            self.events.push_back(Event::Notice(format!("{text}{more}")));
        }
    }

    /// What is due beside receiving: news, control messages, credits.
    fn look_around(&mut self) {
        self.carrier_events();
        if self.has_outbox {
            self.push_outboxes();
        }
        if self.has_debts {
            self.return_credits();
        }
        let has_finished = self.adapter.has_finished() || self.second_has_finished();
        if self.adapter_wait == 0 || has_finished {
            self.adapter_wait = LOOKS_OF_ADAPTER;
            self.adapter_news();
            self.look_at_second();
        }
        self.adapter_wait -= 1;
        if self.adapter.has_finished() {
            self.progress_sends();
            if self.adapter.look_at_finished() {
                // Their completions go with them, and with these the slots.
                while self.poll_receives() > 0 {}
                self.adapter.destroy_finished();
            }
        }
    }

    /// The next frame of a connection. Control messages are for us.
    fn peek_connection(&mut self) -> Option<Incoming> {
        loop {
            let incoming = self.carrier.peek();
            // The news of a connection comes before its frames.
            self.carrier_events();
            let incoming = incoming?;
            // SAFETY: the frame is valid until it is consumed.
            let frame = unsafe { core::slice::from_raw_parts(incoming.start, incoming.len) };
            if !control::Control::is_in(frame) {
                return Some(incoming);
            }
            let control = control::Control::decode(frame);
            self.carrier.consume(incoming);
            self.on_control(incoming.from, control);
        }
    }
}

impl<V: Verbs, C: Carrier> Transport for VerbsTransport<V, C> {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    #[inline]
    fn send(&mut self, to: PeerId, header: &[u8], payload: Payload<'_>, taken: usize) -> Sent {
        let Some(at) = self.channel(to) else { return Sent::Down };
        let channel = &mut self.channels[at];
        if channel.sends_by_queue {
            return self.post(at, header, payload);
        }
        let sent = self.carrier.send(to, header, payload, taken);
        channel.is_mid_frame = matches!(sent, Sent::Full(n) if n > 0);
        if !channel.is_up && !channel.is_dialing && matches!(sent, Sent::Full(_)) {
            channel.is_dialing = true;
            self.connections_in_use = true;
        }
        sent
    }

    #[inline]
    fn peek(&mut self) -> Option<Incoming> {
        match self.current {
            Some(Source::Queue) => return self.front(),
            Some(Source::Connection) => match self.peek_connection() {
                Some(incoming) => return Some(incoming),
                None => self.current = None,
            },
            None => {}
        }
        let looks = self.wait == 0;
        if looks {
            // After a frame of a connection it is the turn of the queue pairs.
            self.wait = if self.connections_in_use { 1 } else { ROUNDS_OF_CONNECTION };
            self.look_around();
            if let Some(incoming) = self.peek_connection() {
                self.current = Some(Source::Connection);
                return Some(incoming);
            }
        }
        self.wait -= 1;
        if !self.reads.is_empty() {
            self.progress_sends();
            self.progress_second();
            self.post_reads();
        }
        if self.ready.is_empty() {
            self.poll_receives();
        }
        if let Some(incoming) = self.front() {
            self.current = Some(Source::Queue);
            return Some(incoming);
        }
        if self.connections_in_use && !looks {
            if let Some(incoming) = self.peek_connection() {
                self.current = Some(Source::Connection);
                return Some(incoming);
            }
            // What came early may be next now.
            let incoming = self.front()?;
            self.current = Some(Source::Queue);
            return Some(incoming);
        }
        None
    }

    #[inline]
    fn consume(&mut self, incoming: Incoming) {
        match self.current.take() {
            Some(Source::Connection) => self.carrier.consume(incoming),
            Some(Source::Queue) => self.consume_front(),
            None => {}
        }
    }

    fn event(&mut self) -> Option<Event> {
        // Nothing that is newer than a frame which is handed out comes before it.
        if self.current.is_none() {
            self.carrier_events();
        }
        self.events.pop_front()
    }

    fn flush(&mut self) -> bool {
        if self.has_outbox {
            self.push_outboxes();
        }
        self.carrier.flush() && !self.has_outbox
    }

    unsafe fn expose(
        &mut self,
        to: PeerId,
        id: u64,
        bytes: Range<usize>,
        home: Option<Range<usize>>,
    ) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.expose_memory(to, id, bytes, home) }
    }

    fn withdraw(&mut self, to: PeerId, id: u64) {
        self.end_exposure(to, id);
    }

    unsafe fn pull(
        &mut self,
        from: PeerId,
        id: u64,
        offset: usize,
        into: *mut u8,
        len: usize,
    ) -> Pulled {
        // SAFETY: the caller's promise.
        unsafe { self.read(from, id, offset, into, len) }
    }

    #[inline]
    fn pulled(&mut self) -> Option<(PeerId, u64)> {
        self.finished_read()
    }

    fn close(&mut self) -> bool {
        self.close_all()
    }
}

impl<V: Verbs, C: Carrier> Drop for VerbsTransport<V, C> {
    fn drop(&mut self) {
        // The adapter must not write to memory that is given back.
        self.destroy_all();
    }
}
