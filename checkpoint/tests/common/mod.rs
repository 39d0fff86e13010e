//! Memory and messages for the tests of the payload log.
#![allow(dead_code)]

use rustbtl_checkpoint::{LogLimits, PayloadLog, SegmentMemory, SegmentSource};
use rustbtl_fragments::host::{LogEntry, LogFull};
use rustbtl_fragments::ids::{CommRank, ContextId, LogRecord, MessageSeq, PeerId, SetId};
use rustbtl_fragments::payload_digest::PayloadDigest;
use rustbtl_fragments::wire::StreamKey;

/// Vectors, filled with rubbish; so much spill and no more.
#[derive(Clone, Debug)]
pub struct Vectors {
    pub spill_bytes_left: usize,
    pub memory_fails: bool,
    pub allocations: usize,
}

impl Vectors {
    pub fn with_spill(bytes: usize) -> Self {
        Self { spill_bytes_left: bytes, memory_fails: false, allocations: 0 }
    }
}

impl SegmentMemory for Vectors {
    type Segment = Vec<u8>;
    type Error = &'static str;

    fn allocate(&mut self, bytes: usize, source: SegmentSource) -> Result<Vec<u8>, &'static str> {
        match source {
            SegmentSource::Memory if self.memory_fails => return Err("no memory"),
            SegmentSource::Memory => {}
            SegmentSource::Spill if self.spill_bytes_left < bytes => return Err("no spill"),
            SegmentSource::Spill => self.spill_bytes_left -= bytes,
        }
        self.allocations += 1;
        Ok(vec![0xA5; bytes])
    }
}

/// Peers 0 to 9 are set 0, 10 to 19 set 10, and so on.
pub fn set_of(peer: u32) -> SetId {
    SetId(peer / 10 * 10)
}

pub fn entry(peer: u32, sequence: u64, bytes: usize) -> LogEntry {
    let tag = if sequence % 5 == 4 { -3 } else { sequence as i32 % 7 };
    LogEntry {
        to: PeerId(peer),
        set: set_of(peer),
        stream: StreamKey::of(ContextId(peer % 3), tag),
        sequence: MessageSeq(sequence),
        source: CommRank(1),
        tag,
        bytes: bytes as u64,
        digest: PayloadDigest::from_bits(sequence as u32 * 77_777),
    }
}

/// The payload that a message must have.
pub fn payload(entry: &LogEntry) -> Vec<u8> {
    let seed = entry.sequence.0.wrapping_mul(0x9E37_79B9) ^ u64::from(entry.to.0);
    (0..entry.bytes).map(|at| (seed.wrapping_add(at * 131) >> 3) as u8).collect()
}

pub fn append(log: &mut PayloadLog<Vectors>, entry: &LogEntry) -> Result<LogRecord, LogFull> {
    log.append(entry, |into| into.copy_from_slice(&payload(entry)))
}

/// Small segments, so that a test sees many of them.
pub fn small(budget_bytes: u64) -> LogLimits {
    LogLimits {
        budget_bytes,
        free_bytes_max: 64 << 10,
        segment_bytes_min: 4 << 10,
        segment_bytes_max: 16 << 10,
    }
}

/// All records to a peer, by the chain.
pub fn chain(log: &PayloadLog<Vectors>, peer: u32) -> Vec<(LogRecord, LogEntry)> {
    let mut at = None;
    std::iter::from_fn(|| {
        let step = log.next(PeerId(peer), at)?;
        at = Some(step.0);
        Some(step)
    })
    .collect()
}
