//! Frames from nowhere: whatever bytes a peer sends, the engine answers with an error or goes on.
//! Used by the property tests and by the fuzz target (tests/fuzz).

use rustbtl_fragments::checkpoint_frame::CheckpointFrame;
use rustbtl_fragments::engine::*;
use rustbtl_fragments::host::*;
use rustbtl_fragments::ids::*;
use rustbtl_fragments::wire::{HEADER_BYTES, VERSION};
use std::ops::Range;

/// A host that takes everything and keeps what was sent.
#[derive(Default)]
pub struct Deaf {
    /// Frames that were sent.
    pub frames: Vec<Vec<u8>>,
    log: Vec<(LogEntry, Vec<u8>)>,
    /// Calls of `complete`.
    pub completed: usize,
    /// No room: so many bytes of the next frame are taken.
    pub full: Option<usize>,
    /// Frames of checkpoints that came.
    pub checkpoint_frames: Vec<CheckpointFrame>,
}

impl Deaf {
    fn bytes(&self, payload: &Payload<'_, Vec<u8>>) -> Vec<u8> {
        let part = |bytes: &[u8], r: &Range<u64>| bytes[r.start as usize..r.end as usize].to_vec();
        match payload {
            Payload::Empty => Vec::new(),
            Payload::Bytes(bytes) => bytes.to_vec(),
            Payload::Program(buffer, range) => part(buffer, range),
            Payload::Log(record, range) => part(&self.log[record.0 as usize].1, range),
        }
    }
}

impl Host for Deaf {
    type SendBuffer = Vec<u8>;
    type ReceiveBuffer = Vec<u8>;
    type Token = u32;

    fn resolve(&mut self, _: u64, rank: CommRank) -> PeerId {
        PeerId(rank.0)
    }

    fn peer_info(&mut self, peer: PeerId) -> PeerInfo {
        PeerInfo {
            set: SetId(peer.0 & !1),
            incarnation: Incarnation(0),
            eager_bytes_max: 64,
            chunk_bytes_max: 100,
        }
    }

    fn transmit(
        &mut self,
        _: PeerId,
        header: &[u8],
        payload: Payload<'_, Vec<u8>>,
        taken: usize,
    ) -> Transmit {
        if let Some(part) = self.full {
            return Transmit::Full(part.max(taken));
        }
        let mut frame = header.to_vec();
        frame.extend_from_slice(&self.bytes(&payload));
        self.frames.push(frame);
        Transmit::Accepted
    }

    fn log_append(&mut self, entry: &LogEntry, from: &mut Vec<u8>) -> Result<LogRecord, LogFull> {
        self.log.push((*entry, from.clone()));
        Ok(LogRecord(self.log.len() as u64 - 1))
    }

    fn log_next(&self, to: PeerId, after: Option<LogRecord>) -> Option<(LogRecord, LogEntry)> {
        let first = after.map_or(0, |record| record.0 + 1);
        let mut rest =
            (first..self.log.len() as u64).map(|at| (LogRecord(at), self.log[at as usize].0));
        rest.find(|(_, entry)| entry.to == to)
    }

    fn capacity(&self, buffer: &Vec<u8>) -> u64 {
        buffer.len() as u64
    }

    fn pack(&mut self, buffer: &mut Vec<u8>, range: Range<u64>, out: &mut Vec<u8>) {
        out.extend_from_slice(&buffer[range.start as usize..range.end as usize]);
    }

    fn unpack(&mut self, buffer: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
        buffer[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn copy(&mut self, from: &mut Vec<u8>, into: &mut Vec<u8>, bytes: u64) {
        into[..bytes as usize].copy_from_slice(&from[..bytes as usize]);
    }

    fn expose(&mut self, _: PeerId, id: SendId, _: Payload<'_, Vec<u8>>) -> bool {
        id.0.is_multiple_of(2)
    }

    fn withdraw(&mut self, _: PeerId, _: SendId) {}

    fn pull(&mut self, _: PeerId, id: SendId, _: ReceiveId, _: &mut Vec<u8>, _: u64) -> Pull {
        [Pull::Done, Pull::Refused, Pull::Started][(id.0 % 3) as usize]
    }

    fn complete(&mut self, _: u32, _: Status) {
        self.completed += 1;
    }

    fn checkpoint_frame(&mut self, _: PeerId, frame: CheckpointFrame) {
        self.checkpoint_frames.push(frame);
    }
}

/// An engine in the middle of its work: messages of all kinds under way in both directions.
pub fn busy(me: u32) -> (Engine<Deaf>, Deaf) {
    let mut host = Deaf::default();
    let mut engine = Engine::new(PeerId(me), SetId(me & !1), Incarnation(0));
    engine.verify_sends();
    let world = engine.add_comm(ContextId(0), CommRank(me), 4, 0);
    let other = engine.add_comm(ContextId::new(3, 7), CommRank(me), 4, 1);
    for to in (0..4).map(CommRank) {
        for (bytes, mode) in [
            (10, Mode::Standard),
            (0, Mode::Synchronous),
            (500, Mode::Standard),
            (500, Mode::Synchronous),
        ] {
            let buffer = vec![to.0 as u8; bytes];
            for (comm, tag) in [(world, 1), (world, -5), (other, -300)] {
                let (buffer, bytes) = (buffer.clone(), bytes as u64);
                let sent = engine.send(&mut host, comm, to, tag, mode, buffer, bytes, 0);
                assert!(sent.is_ok(), "the log has room");
            }
        }
        let source = Source::Rank(to);
        engine.receive(&mut host, world, source, TagMatch::Is(1), vec![0; 500], 1);
        engine.receive(&mut host, world, Source::Any, TagMatch::Any, vec![0; 20], 2);
        engine.receive(&mut host, world, source, TagMatch::Is(-5), vec![], 3);
    }
    (engine, host)
}

/// Read `data` as frames and hand them in. The first byte of each says from whom it comes and
/// whether its header is put right (so that more than the first check is reached).
pub fn feed(data: &[u8]) {
    let (mut engine, mut host) = busy(0);
    let mut rest = data;
    while let [how, length, tail @ ..] = rest {
        let (raw, next) = tail.split_at(usize::from(*length).min(tail.len()));
        let mut frame = raw.to_vec();
        if how & 4 != 0 {
            frame.resize(frame.len().max(HEADER_BYTES), 0);
            let length = frame.len() as u32;
            frame[..4].copy_from_slice(&length.to_le_bytes());
            frame[4] = VERSION;
            frame[20..24].fill(0);
        }
        let from = PeerId(1 + u32::from(how & 3) % 3);
        match how >> 5 {
            0 => engine.peer_down(&mut host, from),
            1 => engine.peer_up(&mut host, from, Incarnation(0)),
            2 => engine.hold(if how & 8 == 0 { Side::Internal } else { Side::Outgoing }),
            3 => {
                let side = if how & 8 == 0 { Side::Internal } else { Side::Outgoing };
                engine.release(&mut host, side);
            }
            _ => {
                let placed_directly = frame.split_first_chunk().is_some_and(|(head, payload)| {
                    let Some((buffer, at)) = engine.direct_placement(&host, from, head) else {
                        return false;
                    };
                    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
                    assert!(at as usize + length - HEADER_BYTES <= buffer.len());
                    if how & 16 != 0 && payload.len() + HEADER_BYTES == length {
                        engine.on_directly_placed(&mut host, from, head);
                        return true;
                    }
                    false
                });
                if !placed_directly {
                    let _ = engine.on_frame(&mut host, from, &frame);
                }
            }
        }
        engine.check();
        rest = next;
    }
}
