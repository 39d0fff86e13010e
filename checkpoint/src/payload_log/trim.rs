//! Dropping records whose messages a checkpoint has received. One walk over the set's index
//! segments decides each record, rebuilds the chains of its members and frees every segment that is
//! left without records. Where a receiver acknowledges often, most of a segment was dropped before:
//! the walk begins behind that.

use super::config::{SegmentMemory, Trimmed};
use super::record::{self, Position};
use super::{PayloadLog, Role};
use rustbtl_fragments::host::LogEntry;
use rustbtl_fragments::ids::SetId;

impl<M: SegmentMemory> PayloadLog<M> {
    /// A checkpoint of `set` is complete: drops the records towards it that the checkpoint has
    /// received. `received` is called once for each live record, in the order of appending.
    ///
    /// It must be false for a record that a transport or an exposed send still refers to.
    pub fn trim(&mut self, set: SetId, mut received: impl FnMut(&LogEntry) -> bool) -> Trimmed {
        let mut trimmed = Trimmed::default();
        let Some(&index) = self.set_indexes.get(&set) else { return trimmed };
        for &peer in &self.sets[index as usize].peers {
            let chain = self.peers.entry(peer);
            (chain.head, chain.tail) = (0, 0);
        }
        let mut segments = core::mem::take(&mut self.sets[index as usize].segments);
        segments.retain(|&slot| {
            self.trim_segment(slot, set, &mut received, &mut trimmed);
            let kept = self.segment(slot).live > 0;
            if !kept {
                self.close(slot);
            }
            kept
        });
        let log = &mut self.sets[index as usize];
        log.segments = segments;
        log.messages -= trimmed.messages;
        log.bytes -= trimmed.bytes;
        self.counters.messages -= trimmed.messages;
        self.counters.bytes -= trimmed.bytes;
        self.watermarks.shrunk(self.pool.in_use_bytes(), &self.pool.limits);
        trimmed
    }

    fn trim_segment(
        &mut self,
        slot: u32,
        set: SetId,
        received: &mut impl FnMut(&LogEntry) -> bool,
        trimmed: &mut Trimmed,
    ) {
        let segment = self.segment(slot);
        debug_assert_eq!(segment.role, Role::Index);
        let (serial, used) = (segment.serial, segment.used);
        let mut offset = segment.first;
        let mut first = None;
        while offset < used {
            let memory = self.segment(slot).memory.as_ref();
            let head = record::read(memory, offset);
            let entry = record::read_entry(memory, offset, set);
            if head.live && received(&entry) {
                self.drop_record(slot, offset, head.bulk);
                trimmed.messages += 1;
                trimmed.bytes += entry.bytes;
            } else if head.live {
                first = first.or(Some(offset));
                let tail = self.peers.get(entry.to).tail;
                record::link(self.segment_mut(slot).memory.as_mut(), offset, 0);
                self.enchain(entry.to, tail, Position { serial, slot, offset }.id());
            }
            offset += record::stride(head.bytes);
        }
        self.segment_mut(slot).first = first.unwrap_or(used);
    }

    fn drop_record(&mut self, slot: u32, offset: usize, bulk: bool) {
        let segment = self.segment_mut(slot);
        record::kill(segment.memory.as_mut(), offset);
        segment.live -= 1;
        if bulk {
            let place = record::read_place(segment.memory.as_ref(), offset);
            let payloads = self.segment_mut(place.slot);
            payloads.live -= 1;
            if payloads.live == 0 {
                self.close(place.slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::{LogLimits, SegmentSource};
    use super::*;
    use rustbtl_fragments::ids::{CommRank, ContextId, MessageSeq, PeerId};
    use rustbtl_fragments::payload_digest::PayloadDigest;
    use rustbtl_fragments::wire::StreamKey;

    struct Vectors;

    impl SegmentMemory for Vectors {
        type Segment = Vec<u8>;
        type Error = ();

        fn allocate(&mut self, bytes: usize, _: SegmentSource) -> Result<Vec<u8>, ()> {
            Ok(vec![0; bytes])
        }
    }

    #[test]
    fn a_walk_begins_behind_what_was_dropped_before() {
        let mut log = PayloadLog::new(Vectors, LogLimits::default());
        let (stream, set) = (StreamKey::of(ContextId(0), 0), SetId(1));
        for sequence in (0..100).map(MessageSeq) {
            let (to, source, digest) = (PeerId(1), CommRank(0), PayloadDigest::NONE);
            let entry = LogEntry { to, set, stream, sequence, source, tag: 0, bytes: 8, digest };
            log.append(&entry, |into| into.fill(1)).unwrap();
        }
        let first = |log: &PayloadLog<Vectors>| log.segment(0).first / record::stride(8);
        for below in [0, 10, 10, 40, 99] {
            log.trim(set, |entry| entry.sequence.0 < below || entry.sequence.0 == 70);
            log.check();
            assert_eq!(first(&log), below as usize);
        }
        assert_eq!(log.trim(set, |_| true).messages, 1);
    }
}
