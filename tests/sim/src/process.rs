//! One simulated process: engine, host, program; and what MPI promises about each call.

mod sends;

use crate::host::{BLANK, Buffer, SimHost};
use crate::model::{Book, Matching, Message, Pattern, Sent as SentRecord, Stream, lane};
use crate::nondet_calls::Pending;
use crate::options::{Options, Planted};
use crate::script::{Op, Request, Script, lonely, pattern};
use crate::windows::calls::{Fetched, InCalls};
use crate::windows::is_of_window;
use rustbtl_coordination::instances::Instances;
use rustbtl_fragments::engine::*;
use rustbtl_fragments::host::{Host, Status};
use rustbtl_fragments::ids::*;
use rustbtl_fragments::wire::{FLAG_REANNOUNCE, FrameType, HEADER_BYTES, Header};
use std::collections::{BTreeMap, BTreeSet};

/// What all processes share and no fault touches.
pub struct Shared {
    /// The run.
    pub options: Options,
    /// All programs.
    pub script: Script,
    /// All messages.
    pub book: Book,
    /// (communicator, process): has come to `Op::Agree`.
    pub agreed: BTreeSet<(usize, usize)>,
    /// Steps of the run: what clocks go by.
    pub now: u64,
}

/// A request that is not complete.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug)]
pub enum Open {
    Send { message: Message, synchronous: bool },
    Receive { id: Option<ReceiveId>, comm: usize, pattern: Pattern, capacity: u64 },
}

/// What a receive gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    status: Status,
    bytes: Vec<u8>,
}

impl Outcome {
    /// What was received.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All of it in one word.
    pub fn sum(&self) -> u64 {
        let Status { source, tag, bytes, .. } = self.status;
        let first = (u64::from(source.0) << 40) ^ (tag as u64) ^ (bytes << 20);
        self.bytes.iter().fold(first, |sum, byte| sum.rotate_left(9) ^ u64::from(*byte))
    }
}

/// The program's state: goes into a checkpoint.
#[derive(Clone, Default)]
pub struct Program {
    segment: usize,
    done: Vec<bool>,
    pub(crate) open: BTreeMap<Request, Open>,
    /// Requests of the program that it has not seen complete.
    pub(crate) pending: Vec<Pending>,
    /// All that it has observed.
    pub(crate) digest: u64,
    /// The last date that it has read.
    pub(crate) date: u64,
    pub(crate) comms: BTreeMap<usize, CommId>,
    sent: BTreeMap<Stream, u64>,
    /// Matching as MPI says it.
    pub matching: Matching,
    /// What receives gave.
    pub results: BTreeMap<Request, Outcome>,
    lonely: u32,
    instances: Instances,
    /// Where it stands in calls about windows.
    pub(crate) calls: InCalls,
    /// What it gets from windows.
    pub fetched: Fetched,
}

impl Program {
    /// The number of the next message of a stream, which is sent now.
    pub(crate) fn next_of(&mut self, stream: Stream) -> u64 {
        let next = self.sent.entry(stream).or_default();
        *next += 1;
        *next - 1
    }

    /// Is this send open?
    pub fn send_is_open(&self, stream: &Stream, sequence: u64) -> bool {
        self.open.values().any(|open| match open {
            Open::Send { message, .. } => (&message.stream, message.sequence) == (stream, sequence),
            Open::Receive { .. } => false,
        })
    }

    /// How many messages of a stream were sent.
    pub fn sent(&self, stream: &Stream) -> u64 {
        self.sent.get(stream).copied().unwrap_or(0)
    }
}

/// A process.
pub struct Process {
    /// Its rank in the world.
    pub me: usize,
    /// Its engine.
    pub engine: Engine<SimHost>,
    /// Its host.
    pub host: SimHost,
    /// Its program.
    pub program: Program,
}

impl Process {
    /// Nothing left to do?
    pub fn is_finished(&self, shared: &Shared) -> bool {
        self.program.segment == shared.script.programs[self.me].len()
    }

    /// Try one step of the program. False: it waits.
    pub fn step(&mut self, shared: &mut Shared, draw: usize) -> bool {
        let Some(segment) = shared.script.programs[self.me].get(self.program.segment) else {
            return false;
        };
        let program = &mut self.program;
        program.done.resize(segment.ops.len(), false);
        let mut blocked: Vec<i32> = Vec::new();
        let mut ready = Vec::new();
        for (at, op) in segment.ops.iter().enumerate() {
            if program.done[at] {
                continue;
            }
            if !blocked.contains(&op.lane()) {
                ready.push(at);
                blocked.push(op.lane());
            }
            if !segment.loose {
                break;
            }
        }
        let at = ready[draw % ready.len()];
        let op = segment.ops[at].clone();
        if !self.execute(shared, &op, draw >> 8) {
            return false;
        }
        self.program.done[at] = true;
        if self.program.done.iter().all(|done| *done) {
            self.program.segment += 1;
            self.program.done.clear();
            if self.is_finished(shared) {
                self.engine.end_sends(&mut self.host);
            }
        }
        true
    }

    /// True: the step is done.
    fn execute(&mut self, shared: &mut Shared, op: &Op, draw: usize) -> bool {
        let asks = shared.options.determinants;
        match *op {
            Op::Agree { comm } => {
                shared.agreed.insert((comm, self.me));
                self.begin_call(shared);
                let members = &shared.script.comms[comm].members;
                members.iter().all(|&rank| shared.agreed.contains(&(comm, rank)))
                    && !self.holds(shared)
                    && self.end_call(shared, true)
            }
            Op::AddComm { comm } => {
                self.begin_call(shared);
                self.end_call(shared, false);
                self.add_comm(shared, comm)
            }
            Op::Window { window, comm, ref calls } => {
                self.window_calls(shared, (window, comm), calls)
            }
            Op::DelComm { comm } => {
                self.begin_call(shared);
                self.end_call(shared, false);
                self.before_action(shared, false);
                let Some(id) = self.program.comms.remove(&comm) else { panic!("no comm {comm}") };
                self.engine.del_comm(id);
                true
            }
            Op::Send { comm, to, tag, bytes, synchronous, request } => {
                if tag >= 0 {
                    self.begin_call(shared);
                    self.end_call(shared, false);
                }
                self.send(shared, comm, to, tag, bytes, synchronous, request);
                true
            }
            Op::Receive { comm, pattern, capacity, request } => {
                if pattern.tag.is_none_or(|tag| tag >= 0) {
                    self.begin_call(shared);
                    self.end_call(shared, false);
                }
                self.receive(shared, comm, pattern, capacity, request);
                true
            }
            Op::Probe { comm, pattern } => {
                self.begin_call(shared);
                // A blocking probe for a named source is no event.
                let blocks = pattern.source.is_some() && pattern.tag.is_some_and(|t| t % 2 == 0);
                if asks && !blocks {
                    self.iprobe(shared, comm, pattern)
                } else {
                    !self.holds(shared) && self.probe(comm, pattern) && self.end_call(shared, true)
                }
            }
            Op::Claim { comm, pattern, capacity, request } => {
                self.begin_call(shared);
                self.claim(shared, comm, pattern, capacity, request)
            }
            Op::CancelAndRepeat { request, .. } if asks => {
                self.begin_call(shared);
                if self.holds(shared) {
                    return false;
                }
                self.before_action(shared, false);
                self.cancel_recorded(shared, request);
                self.end_call(shared, false)
            }
            Op::CancelAndRepeat { request, .. } => {
                self.cancel_and_repeat(shared, request);
                true
            }
            Op::CancelLonely { comm } => {
                self.cancel_lonely(comm);
                true
            }
            Op::Wait { request } => {
                self.begin_call(shared);
                let done = !self.program.open.contains_key(&request) && !self.holds(shared);
                if done {
                    self.observe(shared, request);
                    self.end_call(shared, true);
                }
                done
            }
            Op::WaitAll | Op::WaitRest
                if asks && !self.drain(shared, matches!(op, Op::WaitRest), draw) =>
            {
                false
            }
            Op::WaitAll => {
                self.begin_call(shared);
                !self.holds(shared)
                    && self.program.open.values().all(|open| match open {
                        Open::Send { message, .. } => is_wild(&shared.options, message),
                        Open::Receive { .. } => false,
                    })
                    && self.end_call(shared, true)
            }
            Op::WaitRest => {
                self.begin_call(shared);
                !self.holds(shared) && self.program.open.is_empty() && self.end_call(shared, true)
            }
        }
    }

    fn add_comm(&mut self, shared: &Shared, comm: usize) -> bool {
        self.before_action(shared, false);
        let info = &shared.script.comms[comm];
        let Some(rank) = info.members.iter().position(|&rank| rank == self.me) else {
            panic!("not a member of {comm}")
        };
        if comm > 0 && shared.options.instances {
            let ids: Vec<PeerId> = info.members.iter().map(|&rank| PeerId(rank as u32)).collect();
            let context = self.program.instances.next(info.context.number() as u16, &ids);
            assert_eq!(context, info.context, "members agree on the instance of {comm}");
        }
        let (rank, size) = (CommRank(rank as u32), info.members.len() as u32);
        let id = self.engine.add_comm(info.context, rank, size, comm as u64);
        self.program.comms.insert(comm, id);
        true
    }

    fn arrive(&mut self, shared: &mut Shared, message: Message) {
        *shared.book.accepted.entry(message.stream).or_default() = message.sequence + 1;
        if self.program.matching.arrive(message).is_some() {
            shared.book.note_match(&message);
        }
    }

    pub(crate) fn receive(
        &mut self,
        shared: &mut Shared,
        comm: usize,
        pattern: Pattern,
        capacity: u64,
        request: Request,
    ) {
        let library = pattern.tag.is_some_and(|tag| tag < 0);
        self.before_action(shared, library);
        self.note_pending(shared, library, request);
        self.host.memory.buffers.insert(request, vec![BLANK; capacity as usize]);
        let open = Open::Receive { id: None, comm, pattern, capacity };
        self.program.open.insert(request, open);
        if let Some(message) = self.program.matching.post(request, pattern) {
            shared.book.note_match(&message);
        }
        let comm = self.program.comms[&comm];
        let (source, tag) = engine_pattern(pattern);
        let buffer = Buffer(request);
        let received = self.engine.receive(&mut self.host, comm, source, tag, buffer, request);
        self.received(shared, request, received);
    }

    fn note_pending(&mut self, shared: &Shared, library: bool, request: Request) {
        let pending = &mut self.program.pending;
        let new = pending.iter().all(|pending| pending.request != request);
        if shared.options.determinants && !library && new {
            pending.push(Pending { request, wild: false });
        }
    }

    fn received(&mut self, shared: &mut Shared, request: Request, received: ReceiveOutcome) {
        match received {
            ReceiveOutcome::Complete(status) => self.receive_is_complete(request, status),
            ReceiveOutcome::Pending(id) => {
                if let Some(Open::Receive { id: slot, .. }) = self.program.open.get_mut(&request) {
                    *slot = Some(id);
                }
            }
        }
        self.settle(shared);
    }

    pub(crate) fn check_probe(&self, pattern: Pattern, status: Option<Status>) {
        let want = self.program.matching.probe(pattern).map(|message| status_of(&message));
        assert_eq!(status, want, "probe of {pattern:?}");
    }

    fn probe(&mut self, comm: usize, pattern: Pattern) -> bool {
        let (source, tag) = engine_pattern(pattern);
        let status = self.engine.probe(self.program.comms[&comm], source, tag);
        self.check_probe(pattern, status);
        status.is_some()
    }

    fn claim(
        &mut self,
        shared: &mut Shared,
        comm: usize,
        pattern: Pattern,
        capacity: u64,
        request: Request,
    ) -> bool {
        let id = if shared.options.determinants {
            let Some(id) = self.improbe(shared, comm, pattern, request) else { return false };
            self.note_pending(shared, pattern.tag.is_some_and(|tag| tag < 0), request);
            id
        } else {
            let (source, tag) = engine_pattern(pattern);
            let claimed = self.engine.claim(self.program.comms[&comm], source, tag);
            self.check_probe(pattern, claimed.map(|(_, status)| status));
            let Some((id, _)) = claimed else { return false };
            self.program.matching.claim(request, pattern);
            id
        };
        self.check(shared);
        self.host.memory.buffers.insert(request, vec![BLANK; capacity as usize]);
        let open = Open::Receive { id: None, comm, pattern, capacity };
        self.program.open.insert(request, open);
        let message = self.program.matching.receive_claimed(request);
        shared.book.note_match(&message);
        let buffer = Buffer(request);
        let received = self.engine.receive_claimed(&mut self.host, id, buffer, request);
        let Some(received) = received else { panic!("a claimed message is gone") };
        self.received(shared, request, received);
        let again = self.engine.receive_claimed(&mut self.host, id, buffer, request);
        assert_eq!(again, None, "a claimed message is received once");
        true
    }

    /// The engine's name for a receive whose post gave this id.
    pub(crate) fn receive_id(&mut self, request: Request, id: ReceiveId) -> ReceiveId {
        self.engine.assign_receive_ids(&mut self.host);
        let named = || self.host.memory.named.get(&request).copied();
        if id == ReceiveId::NONE { named().unwrap_or(id) } else { id }
    }

    fn cancel_and_repeat(&mut self, shared: &mut Shared, request: Request) {
        let Some(Open::Receive { id, comm, pattern, capacity }) =
            self.program.open.get(&request).copied()
        else {
            return;
        };
        let Some(id) = id else { panic!("a receive that is open has an id") };
        let id = self.receive_id(request, id);
        let gone = self.engine.cancel_receive(id);
        assert_eq!(gone, self.program.matching.cancel(request), "cancel of an unmatched receive");
        if gone {
            assert!(!self.engine.cancel_receive(id), "cancelled once");
            self.receive(shared, comm, pattern, capacity, request);
        }
    }

    fn cancel_lonely(&mut self, comm: usize) {
        let token = u32::MAX - self.program.lonely;
        self.program.lonely += 1;
        self.host.memory.buffers.insert(token, Vec::new());
        self.program.matching.name(token, lonely(0));
        let (source, tag) = engine_pattern(lonely(0));
        let comm = self.program.comms[&comm];
        let buffer = Buffer(token);
        match self.engine.receive(&mut self.host, comm, source, tag, buffer, token) {
            ReceiveOutcome::Pending(id) => {
                let id = self.receive_id(token, id);
                assert!(self.engine.cancel_receive(id), "nothing matches it");
            }
            ReceiveOutcome::Complete(status) => panic!("matched by nothing: {status:?}"),
        }
        self.host.memory.buffers.remove(&token);
    }

    /// A frame comes in. `ghost`: from or to an older incarnation.
    pub fn on_frame(&mut self, shared: &mut Shared, from: usize, frame: &[u8], ghost: bool) {
        let stale = self.engine.counters().stale_frames;
        let Ok(header) = Header::decode(frame) else { panic!("a frame that does not decode") };
        let first = header.kind == FrameType::Eager
            || header.kind == FrameType::Announce && header.flags & FLAG_REANNOUNCE == 0;
        if first && !ghost {
            let context = ContextId(header.context).number();
            let stream = (context, from, self.me, lane(header.tag));
            let message = shared.book.find(stream, header.sequence);
            let envelope = (header.context, header.source, header.tag);
            assert_eq!((message.context, message.source, message.tag), envelope, "envelope");
            self.arrive(shared, message);
        }
        // Half of the frames take the fast path, if it is theirs.
        let peer = PeerId(from as u32);
        let short = self.place_directly(from, &header, frame)
            || header.b() & 1 == 0 && self.engine.complete_fast_path(&mut self.host, peer, frame);
        assert!(!short || !ghost, "a frame of an older incarnation took the fast path");
        if !short && let Err(error) = self.engine.on_frame(&mut self.host, peer, frame) {
            panic!("{} refuses a frame from {from}: {error:?} {header:?}", self.me);
        }
        self.engine.acknowledge(&mut self.host, peer);
        let dropped = self.engine.counters().stale_frames - stale;
        assert_eq!(dropped, u64::from(ghost), "older incarnations are dropped, others are not");
        self.settle(shared);
        // A thread applies while the program computes.
        if !shared.options.windows_free && header.sequence % 2 == 0 {
            self.progress_windows(shared);
        }
    }

    /// Half of the payloads that may be are placed directly; the others leave rubbish there first,
    /// as a connection does that breaks before all of the payload has arrived.
    fn place_directly(&mut self, from: usize, header: &Header, frame: &[u8]) -> bool {
        let Some((head, payload)) = frame.split_first_chunk::<HEADER_BYTES>() else { return false };
        let from = PeerId(from as u32);
        let Some((&buffer, at)) = self.engine.direct_placement(&self.host, from, head) else {
            return false;
        };
        let mut buffer = buffer;
        if (header.a() ^ header.b() ^ payload.len() as u64) & 1 == 0 {
            self.host.unpack(&mut buffer, at, payload);
            self.engine.on_directly_placed(&mut self.host, from, head);
            self.host.placed_directly += 1;
            return true;
        }
        let rubbish: Vec<u8> = payload.iter().map(|byte| !byte).collect();
        self.host.unpack(&mut buffer, at, &rubbish);
        false
    }

    /// What the driver does after each call of the engine.
    pub fn settle(&mut self, shared: &mut Shared) {
        for (request, status) in core::mem::take(&mut self.host.completed) {
            if is_of_window(request) {
                self.window_message_is_complete(request);
                continue;
            }
            match self.program.open.get(&request) {
                Some(Open::Send { .. }) => self.send_is_complete(shared, request),
                Some(Open::Receive { .. }) => self.receive_is_complete(request, status),
                None => panic!("{request} is complete a second time"),
            }
        }
        self.check(shared);
        self.maybe_end_replay(shared);
    }

    fn check(&self, _shared: &Shared) {
        self.engine.check();
        let (receives, messages, _) = self.engine.unfinished();
        let of_windows = self.host.memory.windows.receives();
        assert_eq!(
            receives,
            self.program.matching.receives() + of_windows,
            "receives that are not finished"
        );
        assert_eq!(messages, self.program.matching.messages(), "messages without a receive");
    }

    fn send_is_complete(&mut self, shared: &Shared, request: Request) {
        let Some(Open::Send { message, synchronous }) = self.program.open.remove(&request) else {
            panic!("{request} is no open send")
        };
        let matched = shared.book.matched.contains(&(message.stream, message.sequence));
        assert!(!synchronous || matched, "a synchronous send is complete before its match");
        self.host.memory.buffers.remove(&request);
    }

    fn receive_is_complete(&mut self, request: Request, status: Status) {
        let Some(Open::Receive { capacity, .. }) = self.program.open.remove(&request) else {
            panic!("{request} is no open receive")
        };
        let Some(message) = self.program.matching.matched.remove(&request) else {
            panic!("{request} is complete without a match: {status:?}")
        };
        let want = Status { truncated: message.bytes > capacity, ..status_of(&message) };
        assert_eq!(status, want, "status of a receive");
        let Some(bytes) = self.host.memory.buffers.remove(&request) else { panic!("no buffer") };
        let fits = message.bytes.min(capacity) as usize;
        assert!(message.begins_with(&bytes[..fits]), "content of {message:?}");
        assert!(bytes[fits..].iter().all(|&byte| byte == BLANK), "written past the message");
        let old = self.program.results.insert(request, Outcome { status, bytes });
        assert!(old.is_none(), "{request} has a result already");
    }

    /// How many messages of a stream it has sent.
    pub fn sent(&self, stream: &Stream) -> u64 {
        self.program.sent(stream)
    }

    /// Where the program stands, for messages.
    pub fn position(&self) -> String {
        let Program { segment, done, open, .. } = &self.program;
        format!(
            "{}: segment {segment} {done:?} open {open:?} {:?} {}",
            self.me,
            self.engine.unfinished(),
            self.window_position(),
        )
    }

    /// Matched receives from processes that `test` picks.
    pub fn incomplete_from(&self, test: impl Fn(usize) -> bool) -> usize {
        let matched = self.program.matching.matched.values();
        matched.filter(|message| test(message.stream.1)).count()
    }
}

fn status_of(message: &Message) -> Status {
    Status {
        source: CommRank(message.source),
        tag: message.tag,
        bytes: message.bytes,
        truncated: false,
        cancelled: false,
    }
}

pub(crate) fn engine_pattern(pattern: Pattern) -> (Source, TagMatch) {
    let source = pattern.source.map_or(Source::Any, |rank| Source::Rank(CommRank(rank)));
    (source, pattern.tag.map_or(TagMatch::Any, TagMatch::Is))
}

fn is_wild(options: &Options, message: &Message) -> bool {
    pattern(options, ContextId(message.context), message.source, message.tag).source.is_none()
}
