//! Placing a record: in the set's open segments, else in new ones, which double in size from the
//! smallest to the largest so that a set that gets few messages costs little.

use super::config::SegmentMemory;
use super::peers::NONE;
use super::pool::Owned;
use super::record::{self, BulkPlace};
use super::{PayloadLog, Role, Segment};

/// Slot of the index segment for the metadata; place of the payload if it does not lie beside it.
type RecordPlacement = (u32, Option<BulkPlace>);

impl<S> Segment<S> {
    /// Bytes that are left for records or payloads.
    #[inline]
    fn bytes_left(&self) -> usize {
        let usable = match self.role {
            Role::Index => self.bytes.min(record::INDEX_SEGMENT_BYTES_MAX),
            Role::Bulk => self.bytes,
        };
        usable.saturating_sub(self.used)
    }
}

impl<M: SegmentMemory> PayloadLog<M> {
    /// Where a payload of `bytes` towards a set goes. `None`: neither budget nor spill has memory.
    #[inline]
    pub(super) fn place_record(&mut self, set: u32, bytes: usize) -> Option<RecordPlacement> {
        let log = &self.sets[set as usize];
        let (index, bulk) = (log.index, log.bulk);
        if index == NONE || self.segment(index).bytes_left() < record::stride(bytes) {
            return self.open(set, bytes);
        }
        if bytes <= record::INLINE_BYTES_MAX {
            return Some((index, None));
        }
        if bulk == NONE || self.segment(bulk).bytes_left() < bytes {
            return self.open(set, bytes);
        }
        Some((index, Some(BulkPlace { slot: bulk, offset: self.segment(bulk).used })))
    }

    /// The same with new segments.
    #[cold]
    #[inline(never)]
    fn open(&mut self, set: u32, bytes: usize) -> Option<RecordPlacement> {
        let placement = self.open_segments(set, bytes)?;
        self.watermarks.grown(self.pool.in_use_bytes(), &self.pool.limits);
        Some(placement)
    }

    /// Both are acquired before either is put to use.
    fn open_segments(&mut self, set: u32, bytes: usize) -> Option<RecordPlacement> {
        let too_many = self.slots.len() - self.free_slots.len() + 2 > record::SLOTS_MAX;
        if bytes as u64 > record::BYTES_MAX || too_many {
            return None;
        }
        let log = &self.sets[set as usize];
        let (old_index, old_bulk) = (log.index, log.bulk);
        let left = |slot| if slot == NONE { 0 } else { self.segment(slot).bytes_left() };
        let is_bulk = bytes > record::INLINE_BYTES_MAX;
        let needs_bulk = is_bulk && left(old_bulk) < bytes;
        let needs_index = left(old_index) < record::stride(bytes);

        let new_bulk = if needs_bulk { Some(self.acquire_bulk(set, bytes)?) } else { None };
        let new_index = if needs_index {
            let Some(owned) = self.acquire_index(set) else {
                if let Some(owned) = new_bulk {
                    self.pool.release(owned);
                }
                return None;
            };
            Some(owned)
        } else {
            None
        };

        let place = match new_bulk {
            Some(owned) => {
                let alone = self.goes_alone(bytes);
                if !alone {
                    self.grow(set, Role::Bulk);
                }
                let slot = self.install(set, owned, Role::Bulk);
                if !alone {
                    self.sets[set as usize].bulk = slot;
                }
                Some(BulkPlace { slot, offset: 0 })
            }
            None if is_bulk => {
                Some(BulkPlace { slot: old_bulk, offset: self.segment(old_bulk).used })
            }
            None => None,
        };
        let Some(owned) = new_index else { return Some((old_index, place)) };
        self.grow(set, Role::Index);
        let slot = self.install(set, owned, Role::Index);
        self.sets[set as usize].index = slot;
        Some((slot, place))
    }

    /// Does a payload get a segment of its own? Yes, where sharing would waste almost half.
    fn goes_alone(&self, bytes: usize) -> bool {
        let largest = self.pool.limits.segment_bytes_max;
        bytes > largest / 2 && bytes != largest
    }

    fn acquire_bulk(&mut self, set: u32, bytes: usize) -> Option<Owned<M::Segment>> {
        let limits = self.pool.limits;
        let whole = bytes.checked_next_multiple_of(limits.segment_bytes_min)?;
        if self.goes_alone(bytes) {
            return self.pool.acquire(whole, whole);
        }
        let next = self.sets[set as usize].bulk_bytes_next;
        let want = next.max(bytes.next_power_of_two()).min(limits.segment_bytes_max);
        self.pool.acquire(whole, want.max(whole))
    }

    fn acquire_index(&mut self, set: u32) -> Option<Owned<M::Segment>> {
        let limits = self.pool.limits;
        let most = limits.segment_bytes_max.min(record::INDEX_SEGMENT_BYTES_MAX);
        let want = self.sets[set as usize].index_bytes_next.clamp(limits.segment_bytes_min, most);
        self.pool.acquire(limits.segment_bytes_min, want)
    }

    /// Makes the next segment of a set twice as large.
    fn grow(&mut self, set: u32, role: Role) {
        let limits = self.pool.limits;
        let log = &mut self.sets[set as usize];
        let next = match role {
            Role::Index => &mut log.index_bytes_next,
            Role::Bulk => &mut log.bulk_bytes_next,
        };
        *next = (*next * 2).clamp(limits.segment_bytes_min, limits.segment_bytes_max);
    }

    /// Puts a segment into a slot.
    fn install(&mut self, set: u32, owned: Owned<M::Segment>, role: Role) -> u32 {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        let mut serial = 0;
        if role == Role::Index {
            self.serial = record::next_serial(self.serial);
            serial = self.serial;
            self.sets[set as usize].segments.push(slot);
        }
        let Owned { memory, bytes, source, .. } = owned;
        let shared = false;
        let segment = Segment {
            memory,
            bytes,
            source,
            shared,
            role,
            serial,
            set,
            used: 0,
            first: 0,
            live: 0,
        };
        self.slots[slot as usize] = Some(segment);
        slot
    }

    /// Takes a segment without live records out of its slot.
    pub(super) fn close(&mut self, slot: u32) {
        let Some(segment) = self.slots[slot as usize].take() else { return };
        self.free_slots.push(slot);
        let set = &mut self.sets[segment.set as usize];
        if set.index == slot {
            set.index = NONE;
        }
        if set.bulk == slot {
            set.bulk = NONE;
        }
        let Segment { memory, bytes, source, shared, .. } = segment;
        self.pool.release(Owned { memory, bytes, source, shared });
    }
}
