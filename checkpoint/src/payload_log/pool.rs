//! Where segments come from and go to: budget, spill, free segments.
//!
//! Fresh pages are slow (each is a fault and a page of zeroes), so a segment without records is
//! kept and used again, the last one first: caches may still have it. An implementation of
//! [`SegmentMemory`] may prepare some.
//!
//! Memory is returned to the system (W1) where the budget is used up and only segments of other
//! sizes are free, the largest and coldest first; (W2) past `free_bytes_max`, spilled segments
//! first; (W3) when the limits get lower. Below the budget and that limit it never does.
//!
//! A segment that held records when a snapshot was taken is shared with the frozen process: each
//! page that is written to is copied while that lives. Such segments are used last (`shared`).

use super::config::{LogLimits, SegmentMemory, SegmentSource};
use std::collections::{BTreeMap, VecDeque};

/// No system has smaller pages.
const PAGE_BYTES: usize = 4 << 10;

/// A segment with what was accounted for it.
#[derive(Clone)]
pub struct Owned<S> {
    pub memory: S,
    /// Accounted and usable bytes (the memory may be longer).
    pub bytes: usize,
    pub source: SegmentSource,
    /// Held records when the last snapshot was taken.
    pub shared: bool,
}

/// Free segments for reuse, by size.
#[derive(Clone)]
struct FreeList<S> {
    /// The one at the back is used next.
    by_bytes: BTreeMap<usize, VecDeque<Owned<S>>>,
    bytes: u64,
}

impl<S> FreeList<S> {
    fn push(&mut self, owned: Owned<S>) {
        self.bytes += owned.bytes as u64;
        let list = self.by_bytes.entry(owned.bytes).or_default();
        if owned.shared { list.push_front(owned) } else { list.push_back(owned) }
    }

    /// One of exactly this size, to be used again or to be freed.
    fn pop(
        &mut self,
        bytes: usize,
        from: fn(&mut VecDeque<Owned<S>>) -> Option<Owned<S>>,
    ) -> Option<Owned<S>> {
        let list = self.by_bytes.get_mut(&bytes)?;
        let owned = from(list)?;
        if list.is_empty() {
            self.by_bytes.remove(&bytes);
        }
        self.bytes -= owned.bytes as u64;
        Some(owned)
    }

    /// One near `want`, else a smaller one that holds `need`.
    fn take(&mut self, need: usize, want: usize) -> Option<Owned<S>> {
        let near = self.by_bytes.range(want..want.saturating_mul(2)).next();
        let found = near.or_else(|| self.by_bytes.range(need..want).next_back());
        let bytes = *found?.0;
        self.pop(bytes, VecDeque::pop_back)
    }

    fn pop_smaller(&mut self, than: usize) -> Option<Owned<S>> {
        let bytes = *self.by_bytes.range(..than).next()?.0;
        self.pop(bytes, VecDeque::pop_front)
    }

    fn pop_largest(&mut self) -> Option<Owned<S>> {
        let bytes = *self.by_bytes.keys().next_back()?;
        self.pop(bytes, VecDeque::pop_front)
    }
}

/// All memory of a log that no record lies in, and the account of the rest.
#[derive(Clone)]
pub struct Pool<M: SegmentMemory> {
    pub memory: M,
    pub limits: LogLimits,
    free: FreeList<M::Segment>,
    free_spill: FreeList<M::Segment>,
    pub reserved_bytes: u64,
    pub reserved_bytes_peak: u64,
    pub spilled_bytes: u64,
    pub spilled_bytes_peak: u64,
    /// What was reserved when the budget was last changed; it may have been more than the budget.
    pub overdraft_bytes: u64,
}

impl<M: SegmentMemory> Pool<M> {
    pub fn new(memory: M, limits: LogLimits) -> Self {
        Self {
            memory,
            limits: limits.made_valid(),
            free: FreeList { by_bytes: BTreeMap::new(), bytes: 0 },
            free_spill: FreeList { by_bytes: BTreeMap::new(), bytes: 0 },
            reserved_bytes: 0,
            reserved_bytes_peak: 0,
            spilled_bytes: 0,
            spilled_bytes_peak: 0,
            overdraft_bytes: 0,
        }
    }

    pub fn free_bytes(&self) -> u64 {
        self.free.bytes + self.free_spill.bytes
    }

    /// The memory of all free segments: its contents are of no use to anybody.
    pub fn free_segments(&self) -> impl Iterator<Item = &M::Segment> {
        let lists = self.free.by_bytes.values().chain(self.free_spill.by_bytes.values());
        lists.flatten().map(|owned| &owned.memory)
    }

    /// Segments that hold records, wherever they come from.
    pub fn in_use_bytes(&self) -> u64 {
        self.reserved_bytes + self.spilled_bytes - self.free_bytes()
    }

    /// A segment of `want` bytes, or fewer but at least `need` where there is not more. Both are
    /// multiples of the smallest segment.
    pub fn acquire(&mut self, need: usize, want: usize) -> Option<Owned<M::Segment>> {
        if let Some(owned) = self.free.take(need, want) {
            return Some(owned);
        }
        let mut bytes = want;
        while bytes >= need {
            if let Some(owned) = self.allocate(bytes, SegmentSource::Memory) {
                return Some(owned);
            }
            bytes /= 2;
        }
        if self.free_for(need)
            && let Some(owned) = self.allocate(need, SegmentSource::Memory)
        {
            return Some(owned);
        }
        if let Some(owned) = self.free_spill.take(need, want) {
            return Some(owned);
        }
        self.allocate(want, SegmentSource::Spill)
            .or_else(|| self.allocate(need, SegmentSource::Spill))
    }

    /// Frees free segments until `bytes` fit the budget; none if that cannot succeed.
    fn free_for(&mut self, bytes: usize) -> bool {
        let budget = self.limits.budget_bytes;
        if self.reserved_bytes - self.free.bytes + bytes as u64 > budget {
            return false;
        }
        while self.reserved_bytes + bytes as u64 > budget {
            let Some(owned) = self.free.pop_largest() else { return false };
            self.free_segment(owned);
        }
        true
    }

    fn allocate(&mut self, bytes: usize, source: SegmentSource) -> Option<Owned<M::Segment>> {
        if source == SegmentSource::Memory
            && self.reserved_bytes + bytes as u64 > self.limits.budget_bytes
        {
            return None;
        }
        let memory = self.memory.allocate(bytes, source).ok()?;
        if memory.as_ref().len() < bytes {
            return None;
        }
        self.account(bytes, source);
        Some(Owned { memory, bytes, source, shared: false })
    }

    fn account(&mut self, bytes: usize, source: SegmentSource) {
        match source {
            SegmentSource::Memory => {
                self.reserved_bytes += bytes as u64;
                self.reserved_bytes_peak = self.reserved_bytes_peak.max(self.reserved_bytes);
            }
            SegmentSource::Spill => {
                self.spilled_bytes += bytes as u64;
                self.spilled_bytes_peak = self.spilled_bytes_peak.max(self.spilled_bytes);
            }
        }
    }

    fn free_segment(&mut self, owned: Owned<M::Segment>) {
        match owned.source {
            SegmentSource::Memory => self.reserved_bytes -= owned.bytes as u64,
            SegmentSource::Spill => self.spilled_bytes -= owned.bytes as u64,
        }
        self.memory.free(owned.memory);
    }

    /// A segment that no live record lies in any more: kept within the limit, in place of spilled
    /// and smaller ones if need be.
    pub fn release(&mut self, owned: Owned<M::Segment>) {
        let most = self.limits.free_bytes_max;
        let bytes = owned.bytes as u64;
        while bytes <= most && self.free_bytes() + bytes > most {
            let other = match owned.source {
                SegmentSource::Memory => {
                    self.free_spill.pop_largest().or_else(|| self.free.pop_smaller(owned.bytes))
                }
                SegmentSource::Spill => self.free_spill.pop_smaller(owned.bytes),
            };
            let Some(other) = other else { break };
            self.free_segment(other);
        }
        if self.free_bytes() + bytes > most {
            self.free_segment(owned);
            return;
        }
        match owned.source {
            SegmentSource::Memory => self.free.push(owned),
            SegmentSource::Spill => self.free_spill.push(owned),
        }
    }

    /// Has segments whose pages are faulted in for so many bytes, as far as the budget and the
    /// limit of free segments allow. Returns what there is then.
    pub fn prefault(&mut self, bytes: u64) -> u64 {
        let want = self.limits.segment_bytes_max;
        let most = bytes.min(self.limits.free_bytes_max);
        while self.free.bytes + want as u64 <= most {
            let Some(mut owned) = self.allocate(want, SegmentSource::Memory) else { break };
            for page in owned.memory.as_mut().chunks_mut(PAGE_BYTES) {
                // `black_box`: the write changes nothing and must not be optimised away.
                *core::hint::black_box(&mut page[0]) = 0;
            }
            self.free.push(owned);
        }
        self.free.bytes
    }

    /// Other limits; free segments beyond them are freed.
    pub fn set_limits(&mut self, limits: LogLimits) {
        self.limits = limits.made_valid();
        while self.free_bytes() > self.limits.free_bytes_max {
            let largest = self.free_spill.pop_largest().or_else(|| self.free.pop_largest());
            let Some(owned) = largest else { break };
            self.free_segment(owned);
        }
        self.overdraft_bytes = self.reserved_bytes;
    }

    /// Sums for `check`: (memory, spill) bytes in the free lists, recounted.
    pub fn count_free(&self) -> (u64, u64) {
        let sum = |list: &FreeList<M::Segment>| {
            let all = list.by_bytes.values().flatten();
            let bytes = all.inspect(|owned| assert!(owned.memory.as_ref().len() >= owned.bytes));
            let bytes: u64 = bytes.map(|owned| owned.bytes as u64).sum();
            assert_eq!(bytes, list.bytes, "invariant 6: free bytes");
            bytes
        };
        (sum(&self.free), sum(&self.free_spill))
    }
}
