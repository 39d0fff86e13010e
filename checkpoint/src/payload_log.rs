//! The payload log: a sender's copies of the messages that have left its set.
//!
//! Source: Bouteiller, Herault, Bosilca, Dongarra 2011, §3 (sender-based logging of messages
//! between correlated sets); DESIGN §5. The copy is made once and is also what transports read.
//!
//! Invariants (`check()` asserts 2 to 7, the tests name them):
//! 1. A record reads back as it was appended, at the same address, until `trim` drops it.
//! 2. Each destination's chain holds exactly its live records, in the order of appending.
//! 3. A segment's live count is the number of live records in it (index) or of live records whose
//!    payload lies in it (bulk), and is not 0: segments without live records are free.
//! 4. Records and payloads lie below their segment's `used` mark and do not overlap; live records
//!    lie at its `first` mark or above.
//! 5. Messages and bytes, in all and for each set, are the sums over live records.
//! 6. Reserved and spilled bytes are the sums over segments; reserved bytes keep to the budget,
//!    free ones to their limit.
//! 7. A set's index segments are in the order of their serials.
//! 8. `LogFull`: no record, chain or segment in use has changed.
//! 9. The id of a record that was dropped names nothing, whatever lies there now.
//! 10. Memory in use passes a watermark at half of the budget and one for each eighth above; each
//!     is reported once, and again only after trimming has brought the log below it.

pub mod config;

mod check;
mod peers;
mod pool;
mod record;
mod record_placement;
mod trim;
mod watermarks;

use config::{LogCounters, LogLimits, SegmentMemory, SegmentSource};
use peers::{NONE, Peers};
use pool::Pool;
use record::Position;
use rustbtl_fragments::host::{LogEntry, LogFull};
use rustbtl_fragments::ids::{LogRecord, PeerId, SetId};
use rustbtl_fragments::payload_digest::PayloadDigest;
use std::collections::BTreeMap;
use watermarks::Watermarks;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// Metadata and small payloads.
    Index,
    /// Large payloads.
    Bulk,
}

#[derive(Clone)]
struct Segment<S> {
    memory: S,
    bytes: usize,
    source: SegmentSource,
    /// Held records when the last snapshot was taken.
    shared: bool,
    role: Role,
    /// Age and generation of an index segment; 0 in a bulk segment.
    serial: u32,
    /// Index of the set.
    set: u32,
    used: usize,
    /// No record below is live (index segments).
    first: usize,
    live: u32,
}

#[derive(Clone)]
struct SetLog {
    id: SetId,
    /// Slots of the segments that take more, or `NONE`.
    index: u32,
    bulk: u32,
    /// Sizes of the next ones.
    index_bytes_next: usize,
    bulk_bytes_next: usize,
    /// Slots of all index segments, oldest first.
    segments: Vec<u32>,
    /// Members that were sent to.
    peers: Vec<PeerId>,
    messages: u64,
    bytes: u64,
}

/// See the head of this file and `DESIGN.md`.
#[derive(Clone)]
pub struct PayloadLog<M: SegmentMemory> {
    pool: Pool<M>,
    slots: Vec<Option<Segment<M::Segment>>>,
    free_slots: Vec<u32>,
    sets: Vec<SetLog>,
    set_indexes: BTreeMap<SetId, u32>,
    peers: Peers,
    serial: u32,
    watermarks: Watermarks,
    counters: LogCounters,
}

impl<M: SegmentMemory> PayloadLog<M> {
    /// An empty log. Nothing is allocated before the first message.
    pub fn new(memory: M, limits: LogLimits) -> Self {
        let pool = Pool::new(memory, limits);
        Self {
            watermarks: Watermarks::new(&pool.limits),
            pool,
            slots: Vec::new(),
            free_slots: Vec::new(),
            sets: Vec::new(),
            set_indexes: BTreeMap::new(),
            peers: Peers::default(),
            serial: 0,
            counters: LogCounters::default(),
        }
    }

    /// Appends a copy of a message: `fill` gets exactly `entry.bytes` bytes (with any contents) to
    /// write the payload into. The record stays until [`Self::trim`] drops it.
    ///
    /// # Errors
    /// [`LogFull`]: neither budget nor spill had memory. Nothing has changed.
    ///
    /// # Panics
    /// If `entry.set` is not the set that earlier entries to the same peer named.
    #[inline]
    pub fn append(
        &mut self,
        entry: &LogEntry,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<LogRecord, LogFull> {
        let chain = self.peers.get(entry.to);
        let set = if chain.set == NONE { self.add_peer(entry) } else { chain.set };
        assert!(self.sets[set as usize].id == entry.set, "the set of a peer never changes");
        let Ok(bytes) = usize::try_from(entry.bytes) else { return Err(self.refuse(entry)) };
        let Some((slot, bulk)) = self.place_record(set, bytes) else {
            return Err(self.refuse(entry));
        };

        let stride = record::stride(bytes);
        let index = self.segment_mut(slot);
        let offset = index.used;
        let id = Position { serial: index.serial, slot, offset }.id();
        let memory = index.memory.as_mut();
        record::write(memory, offset, entry, bulk);
        match bulk {
            None => fill(&mut memory[offset + record::HEAD_BYTES..][..bytes]),
            Some(place) => {
                let segment = self.segment_mut(place.slot);
                fill(&mut segment.memory.as_mut()[place.offset..][..bytes]);
                segment.used = (place.offset + bytes).next_multiple_of(record::BULK_ALIGN);
                segment.live += 1;
            }
        }
        let index = self.segment_mut(slot);
        index.used += stride;
        index.live += 1;
        self.enchain(entry.to, chain.tail, id);
        self.count(set, entry.bytes);
        Ok(id)
    }

    /// The payload of a record. Its address does not change while the record lives.
    ///
    /// # Panics
    /// If the record was trimmed: to transmit whatever lies there now would be worse.
    #[inline]
    pub fn payload(&self, record: LogRecord) -> &[u8] {
        match self.get(record) {
            Some(payload) => payload,
            None => panic!("log record {:#x} was trimmed while in use", record.0),
        }
    }

    /// The payload of a record, if it was not trimmed.
    #[inline]
    pub fn get(&self, record: LogRecord) -> Option<&[u8]> {
        let (segment, at) = self.find(record)?;
        let memory = segment.memory.as_ref();
        let head = record::read(memory, at.offset);
        if !head.live {
            return None;
        }
        if !head.bulk {
            return memory[at.offset + record::HEAD_BYTES..].get(..head.bytes);
        }
        let place = record::read_place(memory, at.offset);
        self.segment(place.slot).memory.as_ref()[place.offset..].get(..head.bytes)
    }

    /// The segment that the payload of a record lies in, if it was not trimmed.
    pub fn segment_of(&self, record: LogRecord) -> Option<&M::Segment> {
        let (segment, at) = self.find(record)?;
        let memory = segment.memory.as_ref();
        let head = record::read(memory, at.offset);
        let of = match head.bulk {
            true => self.segment(record::read_place(memory, at.offset).slot),
            false => segment,
        };
        head.live.then_some(&of.memory)
    }

    /// The same, to be written: for payloads that are copied after [`Self::append`].
    pub fn payload_mut(&mut self, record: LogRecord) -> Option<&mut [u8]> {
        let (segment, at) = self.find(record)?;
        let head = record::read(segment.memory.as_ref(), at.offset);
        if !head.live {
            return None;
        }
        let (slot, from) = if head.bulk {
            let place = record::read_place(segment.memory.as_ref(), at.offset);
            (place.slot, place.offset)
        } else {
            (at.slot, at.offset + record::HEAD_BYTES)
        };
        self.segment_mut(slot).memory.as_mut()[from..].get_mut(..head.bytes)
    }

    /// Keep the digest of a record's payload, which its entry gives from then on.
    #[inline]
    pub fn set_digest(&mut self, record: LogRecord, digest: PayloadDigest) {
        if let Some((_, at)) = self.find_live(record) {
            record::set_digest(self.segment_mut(at.slot).memory.as_mut(), at.offset, digest);
        }
    }

    /// What was appended, if it was not trimmed.
    pub fn entry(&self, record: LogRecord) -> Option<LogEntry> {
        let (segment, at) = self.find_live(record)?;
        let set = self.sets[segment.set as usize].id;
        Some(record::read_entry(segment.memory.as_ref(), at.offset, set))
    }

    /// The oldest record to `to` that is younger than `after` (`None`: the oldest of all), in the
    /// order of appending. One step of a chain, unless `after` was trimmed meanwhile.
    pub fn next(&self, to: PeerId, after: Option<LogRecord>) -> Option<(LogRecord, LogEntry)> {
        let chain = self.peers.get(to);
        let follower = |(segment, at): (&Segment<M::Segment>, Position)| {
            record::read(segment.memory.as_ref(), at.offset).next
        };
        let mut id = chain.head;
        if let Some(after) = after {
            debug_assert!(self.entry(after).is_none_or(|entry| entry.to == to), "its own chain");
            let position = Position::of(after);
            id = self.find_live(after).map_or(id, follower);
            while id != 0 && !Position::of(LogRecord(id)).is_after(position) {
                id = follower(self.find_live(LogRecord(id))?);
            }
        }
        let found = LogRecord(id);
        Some((found, self.entry(found)?))
    }

    /// Live payload bytes towards a set.
    pub fn bytes_of(&self, set: SetId) -> u64 {
        self.set_indexes.get(&set).map_or(0, |&index| self.sets[index as usize].bytes)
    }

    /// The set with the most live payload bytes, and how many.
    pub fn largest_set(&self) -> Option<(SetId, u64)> {
        let largest = self.sets.iter().max_by_key(|set| (set.bytes, core::cmp::Reverse(set.id)))?;
        (largest.bytes > 0).then_some((largest.id, largest.bytes))
    }

    /// The log approaches its budget: a checkpoint of the [`Self::largest_set`] would allow to trim
    /// it. True once for each watermark; cheap, to be called after each append.
    #[inline]
    pub fn take_nearly_full(&mut self) -> bool {
        self.watermarks.take()
    }

    /// Is it still above the first watermark?
    pub fn is_nearly_full(&self) -> bool {
        Watermarks::is_above(self.pool.in_use_bytes(), &self.pool.limits)
    }

    /// What the log holds and has held.
    pub fn counters(&self) -> LogCounters {
        LogCounters {
            reserved_bytes: self.pool.reserved_bytes,
            reserved_bytes_peak: self.pool.reserved_bytes_peak,
            spilled_bytes: self.pool.spilled_bytes,
            spilled_bytes_peak: self.pool.spilled_bytes_peak,
            free_bytes: self.pool.free_bytes(),
            ..self.counters
        }
    }

    /// Most bytes of memory that it takes.
    pub fn budget_bytes(&self) -> u64 {
        self.pool.limits.budget_bytes
    }

    /// Where segments come from.
    pub fn memory(&self) -> &M {
        &self.pool.memory
    }

    /// Where segments come from.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.pool.memory
    }

    /// The memory of segments without records: what is in it is of no use to anybody.
    pub fn free_segments(&self) -> impl Iterator<Item = &M::Segment> {
        self.pool.free_segments()
    }

    /// A snapshot of the process was taken: writing to what holds records now is slow for a while,
    /// so it is used again after all other memory.
    pub fn snapshot_taken(&mut self) {
        self.slots.iter_mut().flatten().for_each(|segment| segment.shared = true);
    }

    /// Has memory for so many bytes faulted in before it is needed: page faults are much slower
    /// than a copy. As far as the budget allows; returns how much there is.
    pub fn prefault(&mut self, bytes: u64) -> u64 {
        self.pool.prefault(bytes)
    }

    /// Other limits from now on. A lower budget holds for new segments; free ones past the new
    /// limit are freed.
    pub fn set_limits(&mut self, limits: LogLimits) {
        self.pool.set_limits(limits);
        self.watermarks = Watermarks::new(&self.pool.limits);
        self.watermarks.grown(self.pool.in_use_bytes(), &self.pool.limits);
    }

    #[cold]
    fn add_peer(&mut self, entry: &LogEntry) -> u32 {
        let count = self.sets.len() as u32;
        let index = *self.set_indexes.entry(entry.set).or_insert(count);
        if index == count {
            self.sets.push(SetLog {
                id: entry.set,
                index: NONE,
                bulk: NONE,
                index_bytes_next: self.pool.limits.segment_bytes_min,
                bulk_bytes_next: self.pool.limits.segment_bytes_min,
                segments: Vec::new(),
                peers: Vec::new(),
                messages: 0,
                bytes: 0,
            });
        }
        self.sets[index as usize].peers.push(entry.to);
        self.peers.entry(entry.to).set = index;
        index
    }

    #[cold]
    fn refuse(&mut self, entry: &LogEntry) -> LogFull {
        self.counters.refused += 1;
        LogFull { bytes: entry.bytes }
    }

    /// Append a record to the chain of its destination.
    #[inline]
    fn enchain(&mut self, to: PeerId, tail: u64, id: LogRecord) {
        let chain = self.peers.entry(to);
        chain.tail = id.0;
        if tail == 0 {
            chain.head = id.0;
            return;
        }
        let before = Position::of(LogRecord(tail));
        let segment = self.segment_mut(before.slot);
        record::link(segment.memory.as_mut(), before.offset, id.0);
    }

    #[inline]
    fn count(&mut self, set: u32, bytes: u64) {
        let set = &mut self.sets[set as usize];
        set.messages += 1;
        set.bytes += bytes;
        let counters = &mut self.counters;
        counters.messages += 1;
        counters.messages_total += 1;
        counters.bytes += bytes;
        counters.bytes_total += bytes;
        counters.bytes_peak = counters.bytes_peak.max(counters.bytes);
    }

    /// The segment that a record's id names, if it still is the same.
    #[inline]
    fn find(&self, record: LogRecord) -> Option<(&Segment<M::Segment>, Position)> {
        let at = Position::of(record);
        let segment = self.slots.get(at.slot as usize)?.as_ref()?;
        let same = segment.serial == at.serial && at.offset < segment.used;
        (same && at.serial != 0).then_some((segment, at))
    }

    fn find_live(&self, record: LogRecord) -> Option<(&Segment<M::Segment>, Position)> {
        let (segment, at) = self.find(record)?;
        record::read(segment.memory.as_ref(), at.offset).live.then_some((segment, at))
    }

    #[inline]
    fn segment(&self, slot: u32) -> &Segment<M::Segment> {
        match &self.slots[slot as usize] {
            Some(segment) => segment,
            None => unreachable!("live records keep their segments"),
        }
    }

    #[inline]
    fn segment_mut(&mut self, slot: u32) -> &mut Segment<M::Segment> {
        match &mut self.slots[slot as usize] {
            Some(segment) => segment,
            None => unreachable!("live records keep their segments"),
        }
    }
}
