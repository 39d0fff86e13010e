//! Watermarks of the log's memory below its budget: at each one the set that holds most of it is
//! asked for a checkpoint, so that trimming comes before spilling.
//!
//! Source: DESIGN §5 (the log's budget). A checkpoint that keeps older ones usable does not free
//! all records that it has received, and a checkpoint takes time, so there is more than one
//! watermark: the first at half of the budget, then one for each further eighth. Only opening a
//! segment can pass one, never the fast path of a message.

use super::config::LogLimits;

#[derive(Clone, Debug)]
pub(super) struct Watermarks {
    /// Memory in use at which the next one is passed.
    next_bytes: u64,
    /// One was passed and not reported yet.
    passed: bool,
}

fn first(limits: &LogLimits) -> u64 {
    // Without a budget everything is spilled: a checkpoint would save nothing.
    if limits.budget_bytes == 0 { u64::MAX } else { limits.budget_bytes / 2 }
}

fn step(limits: &LogLimits) -> u64 {
    (limits.budget_bytes / 8).max(limits.segment_bytes_min as u64)
}

impl Watermarks {
    pub fn new(limits: &LogLimits) -> Self {
        Self { next_bytes: first(limits), passed: false }
    }

    /// A segment was opened.
    pub fn grown(&mut self, in_use_bytes: u64, limits: &LogLimits) {
        if in_use_bytes >= self.next_bytes {
            self.passed = true;
            self.next_bytes = in_use_bytes.saturating_add(step(limits));
        }
    }

    /// The log was trimmed. A trim that frees little must not postpone the next watermark.
    pub fn shrunk(&mut self, in_use_bytes: u64, limits: &LogLimits) {
        let first = first(limits);
        self.passed &= in_use_bytes >= first;
        let next = first.max(in_use_bytes.saturating_add(step(limits)));
        self.next_bytes = self.next_bytes.min(next);
    }

    /// Is the first watermark passed?
    pub fn is_above(in_use_bytes: u64, limits: &LogLimits) -> bool {
        in_use_bytes >= first(limits)
    }

    /// Reports it once.
    #[inline]
    pub fn take(&mut self) -> bool {
        self.passed && core::mem::take(&mut self.passed)
    }
}
