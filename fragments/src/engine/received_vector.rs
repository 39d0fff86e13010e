//! The received vector: how many messages of each stream a process has accepted from a peer, and
//! which of these are open: their payload or their match is still missing.
//!
//! Source: DESIGN §7.3; paper §3 (recovery). Two processes of different sets exchange their
//! received vectors when a channel between them opens again (`resync.rs`). The vector of a
//! checkpoint says which records of its payload log the peer may trim.

use super::verify_sends::{AcceptedContents, RECENT};
use super::{Engine, FrameError, Host, PeerId};
use crate::host::LogEntry;
use crate::ids::ContextId;
use crate::little_endian::{LittleEndian, take_array};
use crate::matching::Key;
use crate::payload_digest::PayloadDigest;
use crate::streams::{LaneRun, Lanes};
use crate::wire::StreamKey;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of one entry: u32 kind, u32 context, i32 lane, u32 lanes, u64 number.
const ENTRY_BYTES: usize = 24;
const ARRIVED: u32 = 1;
const OPEN: u32 = 2;
/// Sum over what was accepted in a lane, or in all far ones (`verify_sends.rs`).
const CONTENTS: u32 = 3;
/// Two of the numbers that the receiver remembers; their place is in `lanes`.
const REMEMBERED: u32 = 4;
/// With what digest, in `lanes`, an open message was announced.
const ANNOUNCED: u32 = 5;

/// An encoded entry.
pub(super) type Entry = [u8; ENTRY_BYTES];

fn entry(kind: u32, context: u32, lane: i32, lanes: u32, number: u64) -> [u8; ENTRY_BYTES] {
    let mut out = [0; ENTRY_BYTES];
    kind.write_at(&mut out, 0);
    context.write_at(&mut out, 4);
    lane.write_at(&mut out, 8);
    lanes.write_at(&mut out, 12);
    number.write_at(&mut out, 16);
    out
}

/// What names a message of a channel for ever: context id, lane, number.
pub(super) type Name = (u32, i32, u64);

pub(super) fn name_of(context: u32, tag: i32, sequence: u64) -> Name {
    let stream = StreamKey::of(ContextId(context), tag);
    (stream.context.number(), stream.lane, sequence)
}

fn open((context, lane, sequence): Name) -> [u8; ENTRY_BYTES] {
    entry(OPEN, context, lane, 1, sequence)
}

/// What a process has received from a peer (in a checkpoint: the messages that it contains).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReceivedVector {
    /// Accepted messages of each stream, by context id.
    pub(super) lanes: BTreeMap<u32, Lanes>,
    /// Accepted messages that are not complete.
    pub(super) open: BTreeSet<Name>,
    /// What these messages contained, by context id, where that is verified. Not of a checkpoint.
    pub(super) contents: BTreeMap<u32, AcceptedContents>,
}

/// First bytes of an encoded [`ReceivedVector`]: name and version.
const MAGIC: [u8; 4] = *b"Hld1";

/// Why bytes are no encoded [`ReceivedVector`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceivedVectorError {
    /// The first bytes are not those of this version.
    Magic,
    /// The length is not the one that the header says.
    Length,
    /// An entry that makes no sense.
    Entry(&'static str),
}

impl core::fmt::Display for ReceivedVectorError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Magic => write!(f, "not a received vector of this version"),
            Self::Length => write!(f, "received vector is damaged: wrong length"),
            Self::Entry(what) => write!(f, "received vector is damaged: {what}"),
        }
    }
}

impl ReceivedVector {
    /// Was this message accepted?
    pub(super) fn accepted(&self, (context, lane, sequence): Name) -> bool {
        self.lanes.get(&context).is_some_and(|lanes| sequence < lanes.get(lane))
    }

    /// Read the entries of one frame.
    pub(super) fn read(&mut self, body: &[u8]) -> Result<(), FrameError> {
        if !body.len().is_multiple_of(ENTRY_BYTES) {
            return Err(FrameError::Unexpected("resync frame with half an entry"));
        }
        for raw in body.chunks_exact(ENTRY_BYTES) {
            let (kind, context) = (u32::read_at(raw, 0), u32::read_at(raw, 4));
            let (lane, lanes) = (i32::read_at(raw, 8), u32::read_at(raw, 12));
            let number = u64::read_at(raw, 16);
            if let CONTENTS | REMEMBERED | ANNOUNCED = kind {
                let contents = self.contents.entry(context).or_default();
                match kind {
                    CONTENTS => *contents.sums.of_mut(lane) = number,
                    ANNOUNCED => {
                        let digest = PayloadDigest::from_bits(lanes);
                        contents.open.insert((lane, number), digest);
                    }
                    _ => contents.remember(lanes, number)?,
                }
                continue;
            }
            let span = i64::from(lane) - i64::from(lanes) + 1;
            if lane > 0 || lanes == 0 || span < i64::from(i32::MIN) || (lane == 0 && lanes > 1) {
                return Err(FrameError::Unexpected("resync entry outside of the tags"));
            }
            match kind {
                ARRIVED => {
                    let run = LaneRun { lane, lanes, count: number };
                    self.lanes.entry(context).or_default().set_run(run);
                }
                OPEN => {
                    self.open.insert((context, lane, number));
                }
                _ => return Err(FrameError::Unexpected("resync entry of an unknown kind")),
            }
        }
        Ok(())
    }

    /// Was this message of the peer's log accepted, and is it complete? Then the log may drop it
    /// as soon as the checkpoint is stored: a restart from that checkpoint does not need it.
    pub fn is_complete(&self, entry: &LogEntry) -> bool {
        let name = name_of(entry.stream.context.0, entry.stream.lane, entry.sequence.0);
        self.accepted(name) && !self.open.contains(&name)
    }

    /// Encode it for the peer: magic, u32 number of entries, then the entries of a resync.
    pub fn encode(&self) -> Vec<u8> {
        let mut entries = Vec::new();
        for (&context, lanes) in &self.lanes {
            for run in lanes.runs() {
                entries.push(entry(ARRIVED, context, run.lane, run.lanes, run.count));
            }
        }
        entries.extend(self.open.iter().map(|&name| open(name)));
        let mut out = Vec::with_capacity(8 + entries.len() * ENTRY_BYTES);
        out.extend_from_slice(&MAGIC);
        (entries.len() as u32).append(&mut out);
        entries.iter().for_each(|entry| out.extend_from_slice(entry));
        out
    }

    /// Decode what `encode` wrote.
    ///
    /// # Errors
    /// The bytes are damaged or of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, ReceivedVectorError> {
        let mut body = bytes;
        if take_array(&mut body).ok_or(ReceivedVectorError::Length)? != MAGIC {
            return Err(ReceivedVectorError::Magic);
        }
        let count = u32::take_from(&mut body).ok_or(ReceivedVectorError::Length)?;
        if body.len() as u64 != u64::from(count) * ENTRY_BYTES as u64 {
            return Err(ReceivedVectorError::Length);
        }
        let mut received = Self::default();
        match received.read(body) {
            Ok(()) => Ok(received),
            Err(FrameError::Unexpected(what)) => Err(ReceivedVectorError::Entry(what)),
            Err(_) => Err(ReceivedVectorError::Entry("it cannot be read")),
        }
    }
}

impl<H: Host> Engine<H> {
    /// What this process has received from `peer`.
    pub fn received_from(&self, peer: PeerId) -> ReceivedVector {
        let mut received = ReceivedVector::default();
        for entry in self.received_entries(peer) {
            let read = received.read(&entry);
            debug_assert!(read.is_ok(), "own entries can be read");
        }
        received
    }

    /// What these messages contained, as encoded entries.
    pub(super) fn content_entries(&self, id: PeerId) -> Vec<Entry> {
        let mut entries = Vec::new();
        for channel in self.channels.iter().filter(|channel| channel.peer == id) {
            let Some(contents) = &channel.contents else { continue };
            for (lane, sum) in contents.accepted.lanes() {
                entries.push(entry(CONTENTS, channel.context, lane, 0, sum));
            }
            let (pairs, _) = contents.recent.as_chunks();
            const { assert!(RECENT.is_multiple_of(2)) };
            for (at, &[even, odd]) in (0..).zip(pairs) {
                let both = u64::from(even) | u64::from(odd) << 32;
                if both != 0 {
                    entries.push(entry(REMEMBERED, channel.context, 0, at, both));
                }
            }
        }
        if self.verifies_sends {
            entries.extend(self.open_messages(id).map(|((context, lane, number), digest)| {
                entry(ANNOUNCED, context, lane, digest.bits(), number)
            }));
        }
        entries
    }

    /// Messages of this peer that are accepted and not complete, with their digests.
    fn open_messages(&self, id: PeerId) -> impl Iterator<Item = (Name, PayloadDigest)> {
        let name = |key: Key, sequence| name_of(key.context, key.tag, sequence);
        let receives = self.receives.iter().filter_map(move |(_, _, receive)| {
            let open = receive.progress.is_matched() && receive.peer == id;
            open.then(|| (name(receive.key, receive.sequence), receive.digest))
        });
        let messages = self.messages.iter().filter_map(move |(_, _, message)| {
            let announced = message.announced.filter(|_| message.peer == id)?;
            Some((name(message.key, message.sequence), announced.digest))
        });
        receives.chain(messages)
    }

    /// The same as encoded entries.
    pub(super) fn received_entries(&self, id: PeerId) -> Vec<Entry> {
        let mut entries = Vec::new();
        for channel in self.channels.iter().filter(|channel| channel.peer == id) {
            for run in channel.arrived.runs() {
                entries.push(entry(ARRIVED, channel.context, run.lane, run.lanes, run.count));
            }
        }
        entries.extend(self.open_messages(id).map(|(name, _)| open(name)));
        entries
    }
}
