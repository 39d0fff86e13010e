//! The engine's surroundings: transports, the program's memory, the payload log, completions.

use crate::determinants::recorder::RecorderState;
use crate::engine::burst::Burst;
use crate::engine::logged_sends::COPIED_FIRST_BYTES;
use crate::engine::transport_set::{Route, TransportSet};
use crate::engine::windows::Windows;
use crate::engine::windows::messages::{Stream, lane_of};
use crate::ffi::operation::Op;
use crate::ffi::table::{Glue, Name};
use crate::ffi::verbose;
use crate::payload_log::cost::LogCost;
use crate::payload_log::deferred_copy::PendingLogCopies;
use crate::payload_log::digest::digest;
use crate::payload_log::memory::LogMemory;
use crate::payload_log::segment::Segment;
use crate::peers::endpoint::{Endpoint, EndpointError};
use crate::peers::table::{Peers, endpoint_of};
use crate::transports::Pulled;
use core::ops::Range;
use rustbtl_checkpoint::PayloadLog;
use rustbtl_coordination::instances::Instances;
use rustbtl_fragments::checkpoint_frame::CheckpointFrame;
use rustbtl_fragments::engine::{PayloadMismatch, ReceivedVector};
use rustbtl_fragments::host::*;
use rustbtl_fragments::ids::*;
use rustbtl_fragments::payload_digest::PayloadDigest;
use rustbtl_fragments::send_gate::{Marks, Recorded};
use rustbtl_fragments::wire::Header;
use std::collections::{BTreeMap, VecDeque};

/// Bytes of a message to oneself that are packed at a time, where memory is not contiguous.
const COPY_BYTES: u64 = 64 << 10;

/// Context ids below are those of MPI_COMM_WORLD, MPI_COMM_SELF and no communicator.
const PREDEFINED_CONTEXTS: u32 = 3;

/// See the module's documentation.
pub struct EngineHost {
    /// What C does for us.
    pub glue: Glue,
    /// MPI_THREAD_MULTIPLE.
    pub threads: bool,
    /// Who is who.
    pub peers: Peers,
    /// By peer, as far as they are known.
    routes: Vec<Route>,
    /// The same.
    sets: Vec<Option<SetId>>,
    /// This process' own set, and its fingerprint and name for comparison.
    pub set: SetId,
    /// Fingerprint of the set policy.
    pub policy: u64,
    /// The set policy, for messages.
    pub policy_text: String,
    /// What leaves the set leaves the node, too.
    pub sets_are_nodes: bool,
    /// Name of this node.
    pub node: String,
    /// The ways to other processes.
    pub transports: TransportSet,
    /// Payloads that left the set.
    pub log: PayloadLog<LogMemory>,
    /// What that costs.
    pub log_cost: LogCost,
    /// By peer: it has acknowledged what it has received, and was not late with that since.
    pub(crate) acknowledges: Vec<bool>,
    /// Messages that are not all in the log yet.
    pub(crate) pending_copies: PendingLogCopies,
    /// Payloads that a network is fetching from where they lie.
    pub(crate) pulls: Vec<(PeerId, SendId, ReceiveId)>,
    /// Nonblocking sends whose frames TCP gathers: they are complete when it has pushed them out,
    /// since nobody needs to call us again for a send that is complete.
    pub(crate) gathered: Vec<Op>,
    pub(crate) burst: Burst,
    /// The message that is being sent may be copied later.
    pub(crate) copy_later: bool,
    /// The program's thread is inside, and there are no others: C may be notified of complete
    /// operations at once.
    pub completes_at_once: bool,
    /// One of our own threads is inside, in the program's place.
    pub(crate) is_taken: bool,
    /// Complete operations that C has not been notified of.
    pub done: VecDeque<Op>,
    /// Frames of a checkpoint that the state machine of the checkpoint has not seen.
    pub checkpoint_frames: VecDeque<(PeerId, CheckpointFrame)>,
    /// How often this process' set was restarted: its incarnation.
    pub incarnation: Incarnation,
    /// New endpoints of processes that were restarted; others are in Open MPI's modex.
    pub endpoints: BTreeMap<PeerId, crate::peers::endpoint::Endpoint>,
    /// Which communicator of those that were given the same context id.
    instances: Instances,
    /// Windows of one-sided communication.
    pub windows: Windows,
    /// Outcomes of nondeterministic calls.
    pub record: RecorderState,
    pub(crate) reported_log_full: bool,
    scratch: Vec<u8>,
}

impl EngineHost {
    /// Without transports; `Driver::connect` adds them.
    pub fn new(
        glue: Glue,
        threads: bool,
        peers: Peers,
        log: PayloadLog<LogMemory>,
        log_cost: LogCost,
    ) -> Self {
        let mut routes = vec![Route::Unknown; peers.me().0 as usize + 1];
        routes[peers.me().0 as usize] = Route::Myself;
        Self {
            glue,
            threads,
            peers,
            routes,
            sets: Vec::new(),
            set: SetId(0),
            policy: 0,
            policy_text: String::new(),
            sets_are_nodes: false,
            node: String::new(),
            transports: TransportSet::default(),
            log,
            log_cost,
            acknowledges: Vec::new(),
            pending_copies: PendingLogCopies::default(),
            pulls: Vec::new(),
            gathered: Vec::new(),
            burst: Burst::default(),
            copy_later: false,
            completes_at_once: !threads,
            is_taken: false,
            done: VecDeque::with_capacity(256),
            checkpoint_frames: VecDeque::new(),
            incarnation: Incarnation(0),
            endpoints: BTreeMap::new(),
            instances: Instances::default(),
            windows: Windows::default(),
            record: RecorderState::default(),
            reported_log_full: false,
            scratch: Vec::new(),
        }
    }

    /// The process was restored from an image, on this node: no peer is known any more.
    pub fn restarted(&mut self, incarnation: Incarnation, node: String) {
        let me = self.peers.me().0 as usize;
        self.routes.clear();
        self.routes.resize(me + 1, Route::Unknown);
        self.routes[me] = Route::Myself;
        self.sets.clear();
        self.endpoints.clear();
        self.checkpoint_frames.clear();
        self.record.restarted();
        // What TCP had gathered is in the log: resync sends it again.
        while let Some(op) = self.gathered.pop() {
            self.end(op);
        }
        self.incarnation = incarnation;
        self.node = node;
    }

    /// The context id of a new communicator, different from earlier ones with the same id.
    /// `local_size` is 0, or that of the local group of an intercommunicator. These must not be
    /// left out: who replays gets messages of all that come later with the same id, and would drop
    /// them with the first that it frees.
    pub fn instance_of(
        &mut self,
        context: u32,
        size: u32,
        handle: u64,
        local_size: u32,
    ) -> ContextId {
        // Predefined ids are given once.
        let number = match u16::try_from(context) {
            Ok(number) if context >= PREDEFINED_CONTEXTS => number,
            _ => return ContextId(context),
        };
        let mut group = |size, local| -> Vec<PeerId> {
            (0..size).map(|rank| self.member(handle, CommRank(rank), local)).collect()
        };
        let (members, others) = (group(size, false), group(local_size, true));
        if others.is_empty() {
            self.instances.next(number, &members)
        } else {
            self.instances.next_inter(number, &others, &members)
        }
    }

    /// Who a rank of a communicator is; of an intercommunicator: of its local or its remote group.
    fn member(&mut self, handle: u64, rank: CommRank, local: bool) -> PeerId {
        let mut name = Name::default();
        // SAFETY: the handle is the communicator that C gave us with it and has not deleted yet.
        unsafe { (self.glue.resolve)(handle as *mut _, rank.0, i32::from(local), &mut name) };
        self.peers.number(name).unwrap_or_else(|| {
            let who = format!("rank {} of job {:#x}", name.rank, name.job);
            self.glue.fatal("unreachable", &[&who, "?", "it was started by another mpirun"])
        })
    }

    /// How a peer is reached.
    #[inline]
    pub fn route(&self, peer: PeerId) -> Route {
        self.routes.get(peer.0 as usize).copied().unwrap_or_default()
    }

    /// Do payloads go to this peer over a network that sends them from here, a part at a time?
    #[inline]
    fn is_pushed_to(&self, peer: PeerId) -> bool {
        let route = self.route(peer);
        route.is_network() && !route.pulls()
    }

    /// The set of a peer that was met.
    pub fn set_of(&self, peer: PeerId) -> Option<SetId> {
        self.sets.get(peer.0 as usize).copied().flatten()
    }

    /// Read a peer's endpoint and choose the way to it. Ends the job if it cannot be talked to.
    #[cold]
    pub(crate) fn meet(&mut self, peer: PeerId) -> PeerInfo {
        let endpoint = self.checked_endpoint(peer);
        let (route, limits) = self.transports.connect(peer, &endpoint).unwrap_or_else(|why| {
            self.glue.fatal("unreachable", &[&self.describe(peer), &endpoint.node, &why])
        });
        self.glue.verbose(verbose::TRACE, || {
            format!("{} is reached over {}", self.describe(peer), route.name())
        });
        if self.routes.len() <= peer.0 as usize {
            self.routes.resize(peer.0 as usize + 1, Route::Unknown);
        }
        self.routes[peer.0 as usize] = route;
        self.sets.resize(self.routes.len(), None);
        self.sets[peer.0 as usize] = Some(endpoint.set);
        PeerInfo {
            set: endpoint.set,
            incarnation: endpoint.incarnation,
            eager_bytes_max: limits.eager_bytes_max,
            chunk_bytes_max: limits.chunk_bytes_max,
        }
    }

    /// The endpoint of a peer that fits this process. Ends the job otherwise.
    #[cold]
    pub fn checked_endpoint(&self, peer: PeerId) -> crate::peers::endpoint::Endpoint {
        let who = self.describe(peer);
        if let Some(endpoint) = self.endpoints.get(&peer) {
            return endpoint.clone();
        }
        let name = self.peers.name(peer);
        let fetched = crate::peers::modex::of(name.rank).filter(|_| self.peers.is_own(peer));
        let fetched = fetched.map(|endpoint| Endpoint::decode(&endpoint));
        let endpoint = match fetched.or_else(|| endpoint_of(&self.glue, name)) {
            None => self.glue.fatal("no-endpoint", &[&who]),
            Some(Err(EndpointError::Damaged)) => self.glue.fatal("bad-endpoint", &[&who]),
            Some(Err(error @ EndpointError::Version { .. })) => {
                let own = format!("version {}", crate::peers::endpoint::VERSION);
                self.glue.fatal("version", &[&own, &who, &error.to_string()])
            }
            Some(Ok(endpoint)) => endpoint,
        };
        if self.peers.is_own(peer) && endpoint.policy != self.policy {
            let theirs = format!("{:?} on node {}", endpoint.policy_text, endpoint.node);
            self.glue.fatal("policy", &[&format!("{:?}", self.policy_text), &who, &theirs]);
        }
        endpoint
    }

    /// A process, for messages.
    pub fn describe(&self, peer: PeerId) -> String {
        let name = self.peers.name(peer);
        if self.peers.is_own(peer) {
            format!("rank {}", name.rank)
        } else {
            format!("rank {} of job {}", name.rank, name.job & 0xFFFF)
        }
    }

    fn pack_at(&self, op: Op, offset: u64, into: *mut u8, bytes: u64) {
        match op.convertor() {
            // SAFETY: `into` is writable for `bytes`, which lie inside the message.
            Some(convertor) => unsafe { (self.glue.pack)(convertor, offset, into, bytes) },
            None => {
                // SAFETY: inside the program's send buffer, which nobody writes to before the
                // send is complete.
                let from = unsafe { op.slice(offset, bytes) };
                // SAFETY: `into` is writable for `bytes` and not part of the program's buffer.
                unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) };
            }
        }
    }
}

impl Host for EngineHost {
    type SendBuffer = Op;
    type ReceiveBuffer = Op;
    type Token = Op;

    fn resolve(&mut self, handle: u64, rank: CommRank) -> PeerId {
        self.member(handle, rank, false)
    }

    fn peer_info(&mut self, peer: PeerId) -> PeerInfo {
        if peer == self.peers.me() {
            // Such messages stay in the engine: no limit to think of.
            let bytes = 64 << 10;
            return PeerInfo {
                set: self.set,
                incarnation: Incarnation(0),
                eager_bytes_max: bytes,
                chunk_bytes_max: bytes,
            };
        }
        self.meet(peer)
    }

    #[inline]
    fn transmit(
        &mut self,
        to: PeerId,
        header: &[u8],
        payload: Payload<'_, Op>,
        taken: usize,
    ) -> Transmit {
        self.transmit_any(to, header, payload, taken)
    }

    #[inline(always)]
    fn transmit_eager(&mut self, to: PeerId, header: &Header, op: &mut Op, bytes: u64) -> bool {
        // The fast path: contiguous memory of the program to a rank of this node.
        if self.transports.has_node() && op.convertor().is_none() {
            // SAFETY: inside the program's buffer, which stays unchanged until the send is
            // complete.
            let bytes = unsafe { op.slice(0, bytes) };
            return self.transports.send_words(to, header.words(), bytes);
        }
        false
    }

    fn log_append(&mut self, entry: &LogEntry, buffer: &mut Op) -> Result<LogRecord, LogFull> {
        let glue = self.glue;
        let op = *buffer;
        let long = entry.bytes > COPIED_FIRST_BYTES;
        if long && self.copy_later && op.convertor().is_none() && self.is_pushed_to(entry.to) {
            let record = self.log.append(entry, |_| ())?;
            let acknowledged_by = self.acknowledging(entry.to, entry.bytes);
            self.pending_copies.add(&mut self.log, record, op, acknowledged_by);
            self.check_log_pressure();
            return Ok(record);
        }
        let begin = if long { self.log_cost.begin() } else { 0 };
        let appended = self.log.append(entry, |into| match op.convertor() {
            // SAFETY: `into` is writable for all of the message.
            Some(convertor) => unsafe {
                (glue.pack)(convertor, 0, into.as_mut_ptr(), into.len() as u64)
            },
            None => {
                // SAFETY: the program's buffer, unchanged until the send is complete.
                into.copy_from_slice(unsafe { op.slice(0, into.len() as u64) });
            }
        });
        if long {
            self.count_log_cost(begin);
        }
        self.check_log_pressure();
        appended
    }

    #[inline]
    fn log_digest(&mut self, record: LogRecord, sequence: MessageSeq) -> PayloadDigest {
        let digest = digest(self.logged_payload(record), sequence.0);
        self.log.set_digest(record, digest);
        digest
    }

    #[cold]
    fn payload_mismatch(&mut self, to: PeerId, what: PayloadMismatch) {
        self.repeats_otherwise(to, what)
    }

    fn log_acknowledged(&mut self, to: PeerId, received: &ReceivedVector) {
        if let Some(set) = self.set_of(to) {
            self.set_acknowledges(to, true);
            self.trim_log(set, |entry| entry.to == to && received.is_complete(entry));
        }
    }

    fn log_next(&self, to: PeerId, after: Option<LogRecord>) -> Option<(LogRecord, LogEntry)> {
        self.log.next(to, after)
    }

    #[inline]
    fn capacity(&self, buffer: &Op) -> u64 {
        buffer.bytes()
    }

    fn pack(&mut self, buffer: &mut Op, range: Range<u64>, out: &mut Vec<u8>) {
        let bytes = range.end - range.start;
        let old = out.len();
        out.resize(old + bytes as usize, 0);
        self.pack_at(*buffer, range.start, out[old..].as_mut_ptr(), bytes);
    }

    #[inline(always)]
    fn unpack(&mut self, buffer: &mut Op, offset: u64, bytes: &[u8]) {
        self.before_receiving(*buffer);
        match buffer.convertor() {
            None => {
                if bytes.is_empty() {
                    return;
                }
                let into = buffer.start().wrapping_add(offset as usize);
                // SAFETY: the engine keeps within the buffer's capacity; the program does not
                // touch it before the receive is complete, and frames do not lie in it.
                unsafe { rustbtl_ring::copy_bytes(bytes.as_ptr(), into, bytes.len()) };
            }
            Some(convertor) => {
                let length = bytes.len() as u64;
                // SAFETY: as above; the convertor is the receive's own.
                unsafe { (self.glue.unpack)(convertor, offset, bytes.as_ptr(), length) };
            }
        }
    }

    fn copy(&mut self, from: &mut Op, into: &mut Op, bytes: u64) {
        if from.convertor().is_none() {
            // SAFETY: the program's send buffer, unchanged until the send is complete.
            let bytes = unsafe { from.slice(0, bytes) };
            self.unpack(into, 0, bytes);
            return;
        }
        if into.convertor().is_none() {
            self.before_receiving(*into);
            if bytes > 0 {
                self.pack_at(*from, 0, into.start(), bytes);
            }
            return;
        }
        let mut scratch = core::mem::take(&mut self.scratch);
        let mut offset = 0;
        while offset < bytes {
            let next = (offset + COPY_BYTES).min(bytes);
            scratch.clear();
            self.pack(from, offset..next, &mut scratch);
            self.unpack(into, offset, &scratch);
            offset = next;
        }
        self.scratch = scratch;
    }

    fn expose(&mut self, to: PeerId, id: SendId, buffer: Payload<'_, Op>) -> bool {
        let route = self.route(to);
        if !route.pulls() {
            return false;
        }
        if route.is_network() {
            self.forget_freed_log();
        }
        // What receivers fetch is copied at once: all of it is in the log.
        let mut home = None;
        let bytes: &[u8] = match buffer {
            Payload::Program(op, range) if op.convertor().is_none() => {
                // SAFETY: the program's buffer, unchanged until the send is complete.
                unsafe { op.slice(range.start, range.end - range.start) }
            }
            Payload::Log(record, range) => {
                if route.is_network() {
                    home = self.log.segment_of(record).and_then(Segment::anonymous_range);
                    // Of a file nothing is registered.
                    if home.is_none() {
                        return false;
                    }
                }
                &self.log.payload(record)[range.start as usize..range.end as usize]
            }
            _ => return false,
        };
        // SAFETY: stays readable and unchanged until the send is over: program memory by MPI's
        // rules, log memory because records in use are not trimmed.
        unsafe { self.transports.expose(route, to, id.0, bytes, home) }
    }

    fn withdraw(&mut self, to: PeerId, id: SendId) {
        self.transports.withdraw(to, id.0);
    }

    fn pull(
        &mut self,
        from: PeerId,
        id: SendId,
        receive: ReceiveId,
        into: &mut Op,
        bytes: u64,
    ) -> Pull {
        let route = self.route(from);
        if !route.pulls() || into.convertor().is_some() {
            return Pull::Refused;
        }
        self.before_receiving(*into);
        // SAFETY: the receive buffer takes these bytes; the program does not touch it before the
        // receive is complete.
        match unsafe { self.transports.pull(route, from, id.0, into.start(), bytes as usize) } {
            Pulled::Done => Pull::Done,
            Pulled::Refused => Pull::Refused,
            Pulled::Started => {
                self.note_pull(from, id, receive);
                Pull::Started
            }
        }
    }

    #[inline(always)]
    fn complete(&mut self, mut token: Op, status: Status) {
        token.fill(&status);
        if self.settle(token) {
            self.end(token);
        }
    }

    #[cold]
    fn direct_message(&mut self, context: ContextId, source: CommRank, tag: i32, payload: &[u8]) {
        let stream = Stream { window: context, from: source, lane: lane_of(tag) };
        self.windows.inbox.arrived(stream, payload);
    }

    #[cold]
    fn direct_buffer(
        &mut self,
        context: ContextId,
        source: CommRank,
        tag: i32,
        bytes: u64,
    ) -> Option<(Op, Op)> {
        let stream = Stream { window: context, from: source, lane: lane_of(tag) };
        let announced = self.windows.announced(stream, bytes);
        let op = announced.unwrap_or_else(|wrong| wrong.fatal(&self.glue))?;
        Some((op, op))
    }

    fn receive_id_assigned(&mut self, mut token: Op, receive: ReceiveId) {
        token.set_id(receive.0);
    }

    #[inline]
    fn matched(&mut self, receive: ReceiveName, message: MessageName) {
        if self.record.is_on() {
            self.record_match(receive, message);
        }
    }

    #[inline]
    fn marks(&self) -> Marks {
        if self.record.is_on() { self.marks_now() } else { Marks::OPEN }
    }

    #[cold]
    fn frame_gated(&mut self) {
        self.hold();
    }

    fn piggyback(
        &mut self,
        to: (PeerId, Incarnation),
        places: (Recorded, Recorded),
        made: Recorded,
        out: &mut Vec<u8>,
    ) -> PiggybackContent {
        self.append_piggyback(to, places, made, out)
    }

    fn on_piggyback(&mut self, from: PeerId, bytes: &[u8]) -> PiggybackOutcome {
        self.keep(from, bytes)
    }

    #[cold]
    fn checkpoint_frame(&mut self, from: PeerId, frame: CheckpointFrame) {
        self.checkpoint_frames.push_back((from, frame));
        crate::sync::checkpoint_signals::frame_arrived();
    }
}
