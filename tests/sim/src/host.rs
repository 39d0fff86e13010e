//! The engine's host in the simulator: memory of the program, log, network.

use crate::model::{Message, Stream};
use crate::network::Network;
use crate::options::{Options, Planted};
use crate::piggyback_share::PiggybackShare;
use crate::windows::{Windows, blank, is_of_window};
use rustbtl_checkpoint::{LogLimits, PayloadLog, SegmentMemory, SegmentSource};
use rustbtl_coordination::determinants::{DeterminantLog, RandomStream, ReplayDecisions};
use rustbtl_fragments::checkpoint_frame::CheckpointFrame;
use rustbtl_fragments::engine::{PayloadMismatch, ReceivedVector};
use rustbtl_fragments::host::*;
use rustbtl_fragments::ids::*;
use rustbtl_fragments::payload_digest::PayloadDigest;
use rustbtl_fragments::send_gate::{Marks, Recorded};
use rustbtl_fragments::wire::{FrameType, Header};
use rustbtl_seeds::Prng;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

/// What fresh receive memory holds.
pub const BLANK: u8 = 0xA5;

/// Memory of the log.
#[derive(Clone, Debug)]
pub struct Segments;

impl SegmentMemory for Segments {
    type Segment = Vec<u8>;
    type Error = ();

    fn allocate(&mut self, bytes: usize, _: SegmentSource) -> Result<Vec<u8>, ()> {
        Ok(vec![0xEE; bytes])
    }
}

/// The log of a simulated process.
pub type Log = PayloadLog<Segments>;

/// A piece of the program's memory. The bytes stay with the program: what the engine reads or
/// writes after an operation is complete is seen.
#[derive(Clone, Copy, Debug)]
pub struct Buffer(pub u32);

/// A pull that goes on.
#[derive(Clone, Copy, Debug)]
pub struct Pulling {
    /// From whom.
    pub from: usize,
    /// The sender's id.
    pub send: SendId,
    /// Our receive.
    pub receive: ReceiveId,
    into: u32,
    bytes: u64,
}

/// What of a host belongs to the process and goes into its checkpoint.
#[derive(Clone)]
pub struct Memory {
    /// Buffers of operations that are not complete.
    pub buffers: BTreeMap<u32, Vec<u8>>,
    /// The payload log.
    pub log: Log,
    /// Members of communicators, by handle.
    pub comms: Vec<Vec<usize>>,
    /// Receives that got their ids after they were posted.
    pub named: BTreeMap<u32, ReceiveId>,
    /// Outcomes: recorded, or forced.
    pub decisions: ReplayDecisions,
    /// Random numbers of the system.
    pub random: RandomStream,
    /// One-sided communication.
    pub windows: Windows,
}

/// Host of one simulated process.
pub struct SimHost {
    /// Own rank.
    pub me: usize,
    /// Memory.
    pub memory: Memory,
    /// Completions since the driver polled last.
    pub completed: Vec<(u32, Status)>,
    /// Frames of checkpoints that the machine of the checkpoint has not seen.
    pub checkpoint_frames: VecDeque<(PeerId, CheckpointFrame)>,
    /// Planted: messages to other sets find no room, everything else does.
    pub refuses_messages: bool,
    /// Pulls that go on.
    pub pulls: Vec<Pulling>,
    /// The set's determinants on their way out.
    pub log: Option<Rc<RefCell<DeterminantLog>>>,
    /// In place of it: its share in what is piggybacked.
    pub share: Option<PiggybackShare>,
    /// Planted: recorded, but not counted yet.
    pub late: Vec<(ReceiveName, MessageName)>,
    /// How often something was not stable.
    pub waited: Cell<u64>,
    /// Planted: the program sends another content than before.
    pub alters: bool,
    /// Payloads that were placed directly.
    pub placed_directly: u64,
    /// Messages that were dropped from the log since their receiver has acknowledged them.
    pub acknowledged: BTreeSet<(Stream, u64)>,
    /// Channels that were given up, since a frame of an incarnation that is over piggybacked
    /// something.
    pub refused: u64,
    /// Frames that depended on nothing but what their receiver had piggybacked to here.
    pub alone: u64,
    /// Runs of one-sided operations that were recorded, and that were forced.
    pub applied_runs: u64,
    /// See there.
    pub forced_runs: u64,
    net: Rc<RefCell<Network>>,
    options: Options,
    prng: Prng,
}

impl SimHost {
    /// The host of a rank.
    pub fn new(
        me: usize,
        options: &Options,
        net: Rc<RefCell<Network>>,
        comms: Vec<Vec<usize>>,
        windows: usize,
    ) -> Self {
        let limits =
            LogLimits { segment_bytes_min: 4 << 10, free_bytes_max: 0, ..LogLimits::default() };
        let mut random = RandomStream::default();
        random.seed([me as u8; 32]);
        let memory = Memory {
            buffers: BTreeMap::new(),
            log: Log::new(Segments, limits),
            comms,
            named: BTreeMap::new(),
            decisions: ReplayDecisions::default(),
            random,
            windows: Windows::new(options, windows),
        };
        let prng = Prng::new(options.seed).fork(100 + me as u64);
        let options = options.clone();
        Self {
            me,
            memory,
            completed: Vec::new(),
            checkpoint_frames: VecDeque::new(),
            refuses_messages: false,
            pulls: Vec::new(),
            log: None,
            share: None,
            late: Vec::new(),
            waited: Cell::new(0),
            alters: false,
            placed_directly: 0,
            acknowledged: BTreeSet::new(),
            refused: 0,
            alone: 0,
            applied_runs: 0,
            forced_runs: 0,
            net,
            options,
            prng,
        }
    }

    /// Change the network.
    pub fn net(&self, change: impl FnOnce(&mut Network)) {
        change(&mut self.net.borrow_mut());
    }

    /// Own incarnation.
    pub fn incarnation(&self) -> u16 {
        self.net.borrow().incarnations[self.me]
    }

    /// What is recorded goes into the set's ring.
    pub fn drain(&mut self) {
        while let Some(numbered) = self.memory.decisions.take_recorded() {
            if let Some(log) = &self.log {
                log.borrow_mut().record(PeerId(self.me as u32), numbered);
            } else if let Some(share) = &mut self.share {
                share.record(self.me, numbered);
            }
        }
    }

    /// Planted: now they are.
    pub fn record_late(&mut self) {
        for (receive, message) in core::mem::take(&mut self.late) {
            self.memory.decisions.matched(receive, message);
        }
        self.drain();
    }

    fn buffer(&self, buffer: Buffer) -> &[u8] {
        match self.memory.buffers.get(&buffer.0) {
            Some(bytes) => bytes,
            None => panic!("buffer {} is used after its operation was complete", buffer.0),
        }
    }

    fn buffer_mut(&mut self, buffer: Buffer) -> &mut Vec<u8> {
        match self.memory.buffers.get_mut(&buffer.0) {
            Some(bytes) => bytes,
            None => panic!("buffer {} is used after its operation was complete", buffer.0),
        }
    }

    fn bytes(&self, payload: &Payload<'_, Buffer>) -> Vec<u8> {
        let part = |bytes: &[u8], range: &Range<u64>| {
            bytes[range.start as usize..range.end as usize].to_vec()
        };
        match payload {
            Payload::Empty => Vec::new(),
            Payload::Bytes(bytes) => bytes.to_vec(),
            Payload::Program(buffer, range) => part(self.buffer(**buffer), range),
            Payload::Log(record, range) => part(self.memory.log.payload(*record), range),
        }
    }

    /// Finish a pull: the bytes are copied, if the memory is still on offer.
    pub fn finish_pull(&mut self, pull: Pulling) -> bool {
        let name = (pull.from, self.me, pull.send.0);
        let Some(bytes) = self.net.borrow().exposed.get(&name).cloned() else { return false };
        let into = self.buffer_mut(Buffer(pull.into));
        into[..pull.bytes as usize].copy_from_slice(&bytes[..pull.bytes as usize]);
        true
    }

    /// The log's records: all messages to processes of other sets, with their payload.
    pub fn logged(&self) -> Vec<(Message, Vec<u8>)> {
        let mut all = Vec::new();
        for to in 0..self.options.ranks() {
            let mut after = None;
            while let Some((record, entry)) = self.memory.log.next(PeerId(to as u32), after) {
                let message = Message {
                    context: entry.stream.context.0,
                    stream: (entry.stream.context.number(), self.me, to, entry.stream.lane),
                    sequence: entry.sequence.0,
                    source: entry.source.0,
                    tag: entry.tag,
                    bytes: entry.bytes,
                    digest: 0,
                };
                all.push((message, self.memory.log.payload(record).to_vec()));
                after = Some(record);
            }
        }
        all
    }
}

impl Host for SimHost {
    type SendBuffer = Buffer;
    type ReceiveBuffer = Buffer;
    type Token = u32;

    fn resolve(&mut self, handle: u64, rank: CommRank) -> PeerId {
        PeerId(self.memory.comms[handle as usize][rank.0 as usize] as u32)
    }

    fn peer_info(&mut self, peer: PeerId) -> PeerInfo {
        let at = peer.0 as usize;
        let outside = usize::from(!self.options.same_set(self.me, at));
        let shift = self.net.borrow().limits_shift(self.me, at);
        PeerInfo {
            set: SetId(self.options.sets[at]),
            incarnation: Incarnation(self.net.borrow().incarnations[at]),
            eager_bytes_max: self.options.eager_bytes_max[outside] << shift,
            chunk_bytes_max: self.options.chunk_bytes_max[outside] << shift,
        }
    }

    fn transmit(
        &mut self,
        to: PeerId,
        header: &[u8],
        payload: Payload<'_, Buffer>,
        taken: usize,
    ) -> Transmit {
        let outside = !self.options.same_set(self.me, to.0 as usize);
        let from_program = matches!(payload, Payload::Program(..));
        assert!(!(outside && from_program), "E4: an outgoing payload comes from the log");
        let inside = matches!(payload, Payload::Log(..)) && !outside;
        assert!(!inside, "E5: an internal payload is not in the log");
        let message = [FrameType::Eager as u8, FrameType::Announce as u8].contains(&header[5]);
        if self.refuses_messages && outside && message && taken == 0 {
            return Transmit::Full(0);
        }
        let payload = self.bytes(&payload);
        self.net.borrow_mut().offer(self.me, to.0 as usize, header, &payload, taken)
    }

    fn transmit_eager(
        &mut self,
        to: PeerId,
        header: &Header,
        buffer: &mut Buffer,
        bytes: u64,
    ) -> bool {
        assert!(self.options.same_set(self.me, to.0 as usize), "E4: an outgoing payload is logged");
        let length = header.length as usize;
        if self.prng.chance(30) || !self.net.borrow_mut().has_room(self.me, to.0 as usize, length) {
            return false;
        }
        let payload = self.bytes(&Payload::Program(buffer, 0..bytes));
        let mut net = self.net.borrow_mut();
        let sent = net.offer(self.me, to.0 as usize, &header.encode(), &payload, 0);
        assert!(matches!(sent, Transmit::Accepted | Transmit::Full(0)), "all or nothing");
        sent == Transmit::Accepted
    }

    fn log_append(&mut self, entry: &LogEntry, buffer: &mut Buffer) -> Result<LogRecord, LogFull> {
        assert!(!self.options.same_set(self.me, entry.to.0 as usize), "E5: internal message");
        let mut bytes = self.buffer(*buffer).to_vec();
        if core::mem::take(&mut self.alters)
            && let Some(last) = bytes.last_mut()
        {
            *last ^= 1;
        }
        self.memory.log.append(entry, |into| into.copy_from_slice(&bytes))
    }

    fn log_digest(&mut self, record: LogRecord, sequence: MessageSeq) -> PayloadDigest {
        let mut payload = self.memory.log.payload(record);
        if self.options.planted == Some(Planted::DigestIgnoresEnd) {
            payload = &payload[..payload.len() / 8 * 7];
        }
        let digest = PayloadDigest::of(payload, sequence.0);
        self.memory.log.set_digest(record, digest);
        digest
    }

    fn payload_mismatch(&mut self, to: PeerId, what: PayloadMismatch) {
        let forgotten = self.options.planted == Some(Planted::ComparisonForgotten);
        let again = self.incarnation() > 1;
        assert!(forgotten && again, "{} does not send again to {to}: {what}", self.me);
    }

    fn log_acknowledged(&mut self, to: PeerId, received: &ReceivedVector) {
        let (me, acknowledged) = (self.me, &mut self.acknowledged);
        let set = SetId(self.options.sets[to.0 as usize]);
        self.memory.log.trim(set, |entry| {
            let dropped = entry.to == to && received.is_complete(entry);
            if dropped {
                let lane = entry.stream.lane;
                let stream = (entry.stream.context.number(), me, to.0 as usize, lane);
                acknowledged.insert((stream, entry.sequence.0));
            }
            dropped
        });
    }

    fn log_next(&self, to: PeerId, after: Option<LogRecord>) -> Option<(LogRecord, LogEntry)> {
        if self.options.planted == Some(Planted::WindowRepliesNotLogged) {
            let mut next = self.memory.log.next(to, after);
            while let Some((record, entry)) = next
                && entry.tag == *DIRECT_TAGS.end()
            {
                next = self.memory.log.next(to, Some(record));
            }
            return next;
        }
        if self.options.planted != Some(Planted::ResendOutOfOrder) {
            return self.memory.log.next(to, after);
        }
        let mut all = Vec::new();
        while let Some(next) = self.memory.log.next(to, all.last().map(|(record, _)| *record)) {
            all.push(next);
        }
        all.reverse();
        let at = match after {
            None => 0,
            Some(after) => all.iter().position(|(record, _)| *record == after)? + 1,
        };
        all.get(at).copied()
    }

    fn capacity(&self, buffer: &Buffer) -> u64 {
        let overrun = if self.options.planted == Some(Planted::Overrun) { 8 } else { 0 };
        self.buffer(*buffer).len() as u64 + overrun
    }

    fn pack(&mut self, buffer: &mut Buffer, range: Range<u64>, out: &mut Vec<u8>) {
        assert!(out.is_empty(), "pack appends to what is empty");
        out.extend_from_slice(&self.buffer(*buffer)[range.start as usize..range.end as usize]);
    }

    fn unpack(&mut self, buffer: &mut Buffer, offset: u64, bytes: &[u8]) {
        let into = self.buffer_mut(*buffer);
        let end = offset as usize + bytes.len();
        assert!(end <= into.len(), "written past the end of a receive buffer");
        into[offset as usize..end].copy_from_slice(bytes);
    }

    fn copy(&mut self, from: &mut Buffer, into: &mut Buffer, bytes: u64) {
        let bytes = self.buffer(*from)[..bytes as usize].to_vec();
        self.unpack(into, 0, &bytes);
    }

    fn expose(&mut self, to: PeerId, id: SendId, buffer: Payload<'_, Buffer>) -> bool {
        if !self.prng.chance(self.options.exposures) {
            return false;
        }
        let bytes = self.bytes(&buffer);
        let name = (self.me, to.0 as usize, id.0);
        let old = self.net.borrow_mut().exposed.insert(name, bytes);
        assert!(old.is_none(), "exposed twice: {name:?}");
        true
    }

    fn withdraw(&mut self, to: PeerId, id: SendId) {
        let name = (self.me, to.0 as usize, id.0);
        let was = self.net.borrow_mut().exposed.remove(&name).is_some();
        // What was exposed before a restart may be gone.
        let restarted = self.net.borrow().incarnations[self.me] > 0;
        assert!(was || restarted, "withdrawn without being exposed: {name:?}");
    }

    fn pull(
        &mut self,
        from: PeerId,
        id: SendId,
        receive: ReceiveId,
        into: &mut Buffer,
        bytes: u64,
    ) -> Pull {
        let [refused, done] = self.options.pulls;
        let draw = self.prng.below(100) as u32;
        let pull = Pulling { from: from.0 as usize, send: id, receive, into: into.0, bytes };
        if draw < refused {
            Pull::Refused
        } else if draw < refused + done {
            if self.finish_pull(pull) { Pull::Done } else { Pull::Refused }
        } else {
            self.pulls.push(pull);
            Pull::Started
        }
    }

    fn complete(&mut self, token: u32, status: Status) {
        self.completed.push((token, status));
    }

    fn direct_message(&mut self, context: ContextId, source: CommRank, tag: i32, payload: &[u8]) {
        self.memory.windows.arrived((context, source, tag), payload);
    }

    fn direct_buffer(
        &mut self,
        context: ContextId,
        source: CommRank,
        tag: i32,
        bytes: u64,
    ) -> Option<(Buffer, u32)> {
        let token = self.memory.windows.announced((context, source, tag));
        self.memory.buffers.insert(token, blank(bytes));
        Some((Buffer(token), token))
    }

    fn receive_id_assigned(&mut self, request: u32, receive: ReceiveId) {
        if is_of_window(request) {
            return;
        }
        self.memory.named.insert(request, receive);
    }

    fn matched(&mut self, receive: ReceiveName, message: MessageName) {
        if self.options.planted == Some(Planted::RecordedAfterSend) {
            self.late.push((receive, message));
            return;
        }
        if self.log.is_some() || self.share.is_some() {
            self.memory.decisions.matched(receive, message);
            self.drain();
        }
    }

    fn marks(&self) -> Marks {
        let marks = match (&self.log, &self.share) {
            (Some(log), _) => log.borrow().marks(),
            (None, Some(share)) => share.marks(),
            (None, None) => return Marks::NONE,
        };
        if self.options.planted == Some(Planted::GateRemoved) {
            let Recorded(stable) = marks.recorded;
            return Marks { stable, ..marks };
        }
        self.waited.set(self.waited.get() + u64::from(marks.permit_now().is_none()));
        marks
    }

    fn piggyback(
        &mut self,
        (to, incarnation): (PeerId, Incarnation),
        (from, covered): (Recorded, Recorded),
        made: Recorded,
        out: &mut Vec<u8>,
    ) -> PiggybackContent {
        let to = self.options.sets[to.0 as usize];
        // Nobody has to.
        let may = self.prng.chance(80);
        let Some(share) = self.share.as_ref().filter(|_| may) else {
            return PiggybackContent::Unavailable;
        };
        let to = (to, incarnation);
        let content = share.append_entries(to, (from.0, covered.0), made.0, out);
        self.alone += u64::from(content == PiggybackContent::OfReceiver);
        content
    }

    fn on_piggyback(&mut self, from: PeerId, bytes: &[u8]) -> PiggybackOutcome {
        let Some(share) = &mut self.share else { panic!("nothing is kept here") };
        if share.accept(bytes).is_some() {
            return PiggybackOutcome::Accepted;
        }
        self.pulls.retain(|pull| pull.from != from.0 as usize);
        self.refused += 1;
        PiggybackOutcome::Refused
    }

    fn checkpoint_frame(&mut self, from: PeerId, frame: CheckpointFrame) {
        self.checkpoint_frames.push_back((from, frame));
    }
}
