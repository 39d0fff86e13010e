//! A host without transport: the last frame is in a buffer.

use rustbtl_fragments::checkpoint_frame::CheckpointFrame;
use rustbtl_fragments::host::*;
use rustbtl_fragments::ids::*;
use rustbtl_fragments::wire::Header;
use std::ops::Range;

/// One end of a job of two processes in one set.
pub struct Null {
    /// The last frame sent.
    pub frame: Vec<u8>,
    /// Completions.
    pub completed: u64,
    /// The token of the last one.
    pub last: u64,
    /// Receives that were assigned an id.
    pub assigned_ids: Vec<(u64, ReceiveId)>,
    /// Matches that are determinants.
    pub matched: Vec<(ReceiveName, MessageName)>,
    /// Messages for the driver: context, source and tag, and their bytes.
    pub direct: Vec<((u32, u32, i32), usize)>,
    /// The token of a long one, if the driver takes it.
    pub room_for: Option<u64>,
    /// Of both peers.
    pub eager_bytes_max: u32,
    memory: [u8; 4096],
}

impl Null {
    pub fn new() -> Self {
        let frame = Vec::with_capacity(8192);
        let (assigned_ids, matched) = (Vec::new(), Vec::new());
        Self {
            frame,
            completed: 0,
            last: 0,
            assigned_ids,
            matched,
            direct: Vec::new(),
            room_for: None,
            eager_bytes_max: 4096,
            memory: [7; 4096],
        }
    }
}

/// Buffers are lengths: what counts is the engine, not the copy.
impl Host for Null {
    type SendBuffer = u64;
    type ReceiveBuffer = u64;
    type Token = u64;

    fn resolve(&mut self, _: u64, rank: CommRank) -> PeerId {
        PeerId(rank.0)
    }

    fn peer_info(&mut self, _: PeerId) -> PeerInfo {
        PeerInfo {
            set: SetId(0),
            incarnation: Incarnation(0),
            eager_bytes_max: self.eager_bytes_max,
            chunk_bytes_max: 4096,
        }
    }

    #[inline]
    fn transmit(
        &mut self,
        _: PeerId,
        header: &[u8],
        payload: Payload<'_, u64>,
        _: usize,
    ) -> Transmit {
        self.frame.clear();
        self.frame.extend_from_slice(header);
        match payload {
            Payload::Program(_, range) => {
                let range = range.start as usize..range.end as usize;
                self.frame.extend_from_slice(&self.memory[range]);
            }
            Payload::Bytes(bytes) => self.frame.extend_from_slice(bytes),
            _ => {}
        }
        Transmit::Accepted
    }

    #[inline]
    fn transmit_eager(&mut self, to: PeerId, header: &Header, at: &mut u64, bytes: u64) -> bool {
        let payload = Payload::Program(at, 0..bytes);
        self.transmit(to, &header.encode(), payload, 0) == Transmit::Accepted
    }

    fn log_append(&mut self, _: &LogEntry, _: &mut u64) -> Result<LogRecord, LogFull> {
        Ok(LogRecord(0))
    }

    fn log_next(&self, _: PeerId, _: Option<LogRecord>) -> Option<(LogRecord, LogEntry)> {
        None
    }

    #[inline]
    fn capacity(&self, buffer: &u64) -> u64 {
        *buffer
    }

    fn pack(&mut self, _: &mut u64, range: Range<u64>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.memory[range.start as usize..range.end as usize]);
    }

    #[inline]
    fn unpack(&mut self, _: &mut u64, offset: u64, bytes: &[u8]) {
        self.memory[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn copy(&mut self, _: &mut u64, _: &mut u64, _: u64) {}

    fn expose(&mut self, _: PeerId, _: SendId, _: Payload<'_, u64>) -> bool {
        false
    }

    fn withdraw(&mut self, _: PeerId, _: SendId) {}

    fn pull(&mut self, _: PeerId, _: SendId, _: ReceiveId, _: &mut u64, _: u64) -> Pull {
        Pull::Refused
    }

    #[inline]
    fn complete(&mut self, token: u64, _: Status) {
        self.completed += 1;
        self.last = token;
    }

    fn receive_id_assigned(&mut self, token: u64, receive: ReceiveId) {
        self.assigned_ids.push((token, receive));
    }

    fn direct_message(&mut self, of: ContextId, from: CommRank, tag: i32, payload: &[u8]) {
        self.direct.push(((of.0, from.0, tag), payload.len()));
    }

    fn direct_buffer(&mut self, _: ContextId, _: CommRank, _: i32, n: u64) -> Option<(u64, u64)> {
        self.room_for.map(|token| (n, token))
    }

    fn checkpoint_frame(&mut self, _: PeerId, _: CheckpointFrame) {}

    fn matched(&mut self, receive: ReceiveName, message: MessageName) {
        self.matched.push((receive, message));
    }
}

/// Two engines, and the delivery of frames between them.
pub struct Pair {
    pub engines: [rustbtl_fragments::engine::Engine<Null>; 2],
    pub hosts: [Null; 2],
    pub comm: CommId,
}

impl Pair {
    pub fn new() -> Self {
        let engine =
            |me| rustbtl_fragments::engine::Engine::new(PeerId(me), SetId(0), Incarnation(0));
        let mut engines = [engine(0), engine(1)];
        let mut comm = CommId(0);
        for (rank, engine) in engines.iter_mut().enumerate() {
            comm = engine.add_comm(ContextId(0), CommRank(rank as u32), 2, 0);
        }
        Self { engines, hosts: [Null::new(), Null::new()], comm }
    }

    /// `from` sends.
    #[inline]
    pub fn send(&mut self, from: usize, tag: i32, bytes: u64) {
        let (comm, to) = (self.comm, CommRank(1 - from as u32));
        let mode = rustbtl_fragments::engine::Mode::Standard;
        let sent =
            self.engines[from].send(&mut self.hosts[from], comm, to, tag, mode, bytes, bytes, 0);
        debug_assert!(sent.is_ok());
    }

    /// `at` posts a receive.
    #[inline]
    pub fn receive(&mut self, at: usize, tag: i32, bytes: u64) {
        use rustbtl_fragments::engine::{Source, TagMatch};
        let (source, tag) = (Source::Rank(CommRank(1 - at as u32)), TagMatch::Is(tag));
        let received =
            self.engines[at].receive(&mut self.hosts[at], self.comm, source, tag, bytes, 0);
        std::hint::black_box(&received);
    }

    /// The last frame of the other one reaches `at`.
    #[inline]
    pub fn deliver(&mut self, at: usize) {
        let (a, b) = self.hosts.split_at_mut(1);
        let (mine, theirs) = if at == 0 { (&mut a[0], &b[0]) } else { (&mut b[0], &a[0]) };
        let from = PeerId(1 - at as u32);
        let accepted = self.engines[at].on_frame(mine, from, &theirs.frame);
        assert!(accepted.is_ok());
    }
}
