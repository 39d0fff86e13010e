//! The invariants of the log as assertions, for tests and the simulator.

use super::config::{SegmentMemory, SegmentSource};
use super::peers::NONE;
use super::record::{self, Position};
use super::{PayloadLog, Role};
use rustbtl_fragments::ids::{LogRecord, PeerId};
use std::collections::BTreeMap;

/// What a walk over all index segments finds.
#[derive(Default)]
struct Found {
    /// Ids of live records by destination, in the order of appending.
    records: BTreeMap<PeerId, Vec<u64>>,
    /// Live payloads by bulk slot: (offset, end).
    payloads: BTreeMap<u32, Vec<(usize, usize)>>,
    messages: u64,
    bytes: u64,
}

impl<M: SegmentMemory> PayloadLog<M> {
    /// Assert the invariants 2 to 7 of the log. Takes time in proportion to the log.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        let mut all = Found::default();
        for (number, set) in self.sets.iter().enumerate() {
            let (messages, bytes) = (all.messages, all.bytes);
            let mut before: Option<Position> = None;
            for &slot in &set.segments {
                let segment = self.segment(slot);
                assert_eq!((segment.set, segment.role), (number as u32, Role::Index));
                let first = Position { serial: segment.serial, slot, offset: 0 };
                assert!(before.is_none_or(|it| first.is_after(it)), "invariant 7: serials");
                before = Some(first);
                self.check_segment(slot, &mut all);
            }
            let sums = (all.messages - messages, all.bytes - bytes);
            assert_eq!(sums, (set.messages, set.bytes), "invariant 5: sums of {}", set.id);
        }
        let counters = self.counters();
        let sums = (all.messages, all.bytes);
        assert_eq!(sums, (counters.messages, counters.bytes), "invariant 5: sums");
        assert!(counters.bytes_peak >= counters.bytes, "invariant 5: peak");
        self.check_chains(&all);
        self.check_bulk(&mut all);
        self.check_account();
    }

    fn check_segment(&self, slot: u32, all: &mut Found) {
        let segment = self.segment(slot);
        let memory = segment.memory.as_ref();
        assert!(segment.used <= segment.bytes && segment.bytes <= memory.len(), "invariant 4");
        let mut live = 0;
        let mut offset = 0;
        while offset < segment.used {
            let head = record::read(memory, offset);
            if head.live {
                assert!(offset >= segment.first, "invariant 4: first");
                live += 1;
                all.messages += 1;
                all.bytes += head.bytes as u64;
                let set = self.sets[segment.set as usize].id;
                let to = record::read_entry(memory, offset, set).to;
                let id = Position { serial: segment.serial, slot, offset }.id();
                all.records.entry(to).or_default().push(id.0);
                if head.bulk {
                    let place = record::read_place(memory, offset);
                    let range = (place.offset, place.offset + head.bytes);
                    all.payloads.entry(place.slot).or_default().push(range);
                    assert_eq!(self.segment(place.slot).set, segment.set, "invariant 4: set");
                }
            }
            offset += record::stride(head.bytes);
        }
        assert_eq!(offset, segment.used, "invariant 4: records fill the used part");
        assert!(live == segment.live && live > 0, "invariant 3: live records of slot {slot}");
    }

    fn check_chains(&self, all: &Found) {
        for (peer, chain) in self.peers.iter() {
            assert!(chain.set != NONE);
            let mut ids = Vec::new();
            let mut id = chain.head;
            while id != 0 {
                ids.push(id);
                let Some((segment, at)) = self.find_live(LogRecord(id)) else {
                    panic!("invariant 2: the chain of {peer} holds a dead record")
                };
                id = record::read(segment.memory.as_ref(), at.offset).next;
            }
            let expected = all.records.get(&peer).cloned().unwrap_or_default();
            assert_eq!(ids, expected, "invariant 2: chain of {peer}");
            assert_eq!(ids.last().copied().unwrap_or(0), chain.tail, "invariant 2: tail");
        }
        assert!(all.records.keys().all(|&peer| self.peers.get(peer).set != NONE), "invariant 2");
    }

    fn check_bulk(&self, all: &mut Found) {
        for (slot, segment) in self.slots.iter().enumerate() {
            let Some(segment) = segment else { continue };
            if segment.role == Role::Index {
                let owner = &self.sets[segment.set as usize];
                assert!(owner.segments.contains(&(slot as u32)), "invariant 3: stray segment");
                continue;
            }
            let mut ranges = all.payloads.remove(&(slot as u32)).unwrap_or_default();
            assert_eq!(ranges.len(), segment.live as usize, "invariant 3: payloads of {slot}");
            assert!(segment.live > 0, "invariant 3: free segment {slot}");
            ranges.sort_unstable();
            let end = ranges.last().map_or(0, |range| range.1);
            assert!(end <= segment.used && end <= segment.bytes, "invariant 4: used");
            assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "invariant 4: overlap");
        }
        assert!(all.payloads.is_empty(), "invariant 3: payload in a free segment");
    }

    fn check_account(&self) {
        let (mut reserved, mut spilled) = self.pool.count_free();
        let counters = self.counters();
        let limits = self.pool.limits;
        assert_eq!(counters.free_bytes, reserved + spilled, "invariant 6: free bytes");
        assert!(counters.free_bytes <= limits.free_bytes_max, "invariant 6: free list's limit");
        for segment in self.slots.iter().flatten() {
            match segment.source {
                SegmentSource::Memory => reserved += segment.bytes as u64,
                SegmentSource::Spill => spilled += segment.bytes as u64,
            }
        }
        let counted = (counters.reserved_bytes, counters.spilled_bytes);
        assert_eq!(counted, (reserved, spilled), "invariant 6: account");
        let most = limits.budget_bytes.max(self.pool.overdraft_bytes);
        assert!(reserved <= most, "invariant 6: budget");
    }
}
