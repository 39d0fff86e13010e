//! What the log needs of its driver, its limits and its counters.

/// Where the memory of a segment comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentSource {
    /// Main memory, within the budget.
    Memory,
    /// A file mapping, once the budget is spent.
    Spill,
}

/// Gives out the memory of segments.
pub trait SegmentMemory {
    /// A piece of memory. Its bytes may not move while it lives (transports read from them); it
    /// starts on a page boundary where speed counts. Dropping it frees the memory, if
    /// [`Self::free`] does not.
    type Segment: AsRef<[u8]> + AsMut<[u8]>;
    /// Why there is none.
    type Error;

    /// A segment of at least `bytes` bytes (a multiple of the smallest segment), any contents.
    fn allocate(
        &mut self,
        bytes: usize,
        source: SegmentSource,
    ) -> Result<Self::Segment, Self::Error>;

    /// Nobody needs it any more.
    fn free(&mut self, segment: Self::Segment) {
        drop(segment);
    }
}

/// Limits of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogLimits {
    /// Most bytes reserved from [`SegmentSource::Memory`], the free list included.
    pub budget_bytes: u64,
    /// Most bytes kept for reuse. Below the budget: memory is returned to the system each time that
    /// more was trimmed, and the next messages pay for fresh pages.
    pub free_bytes_max: u64,
    /// First segment of a set: a power of two from 4 KiB to 4 MiB.
    pub segment_bytes_min: usize,
    /// Largest segment that several messages share: a power of two from the smallest to 1 GiB.
    pub segment_bytes_max: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self {
            budget_bytes: 1 << 30,
            free_bytes_max: 1 << 30,
            segment_bytes_min: 64 << 10,
            segment_bytes_max: 4 << 20,
        }
    }
}

impl LogLimits {
    /// The nearest values that the log can work with.
    pub(super) fn made_valid(mut self) -> Self {
        let smallest = self.segment_bytes_min.clamp(4 << 10, 4 << 20);
        self.segment_bytes_min = smallest.next_power_of_two();
        let largest = self.segment_bytes_max.clamp(self.segment_bytes_min, 1 << 30);
        self.segment_bytes_max = largest.next_power_of_two();
        self
    }
}

/// What a log holds and has held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogCounters {
    /// Messages now.
    pub messages: u64,
    /// Payload bytes now.
    pub bytes: u64,
    /// Most payload bytes at any time.
    pub bytes_peak: u64,
    /// Messages ever appended.
    pub messages_total: u64,
    /// Payload bytes ever appended.
    pub bytes_total: u64,
    /// Bytes reserved from [`SegmentSource::Memory`] now, the free list included.
    pub reserved_bytes: u64,
    /// Most of these at any time.
    pub reserved_bytes_peak: u64,
    /// Bytes reserved from [`SegmentSource::Spill`] now, the free list included.
    pub spilled_bytes: u64,
    /// Most of these at any time.
    pub spilled_bytes_peak: u64,
    /// The part of both that is free for reuse.
    pub free_bytes: u64,
    /// Messages refused with `LogFull`.
    pub refused: u64,
}

/// What [`super::PayloadLog::trim`] dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trimmed {
    /// Messages.
    pub messages: u64,
    /// Their payload bytes.
    pub bytes: u64,
}
