//! Marks that the log's memory passes on its way to the budget: at each it is time to ask the set
//! that holds most of it for a line, so that trimming comes before spilling.
//!
//! Source: DESIGN §5 (the log's budget). Lines that keep older ones usable do not free all that
//! they cover, and a line takes time, so there is more than one mark: the first at half of the
//! budget, then one for each further eighth. Only opening a segment can pass one, never the short
//! way of a message.

use super::config::LogLimits;

#[derive(Clone, Debug)]
pub(super) struct Marks {
    /// Memory in use at which the next one is passed.
    next_bytes: u64,
    /// One was passed, and nobody was told.
    passed: bool,
}

fn first(limits: &LogLimits) -> u64 {
    // Without a budget everything is spilled: there is nothing to save by a line.
    if limits.budget_bytes == 0 { u64::MAX } else { limits.budget_bytes / 2 }
}

fn step(limits: &LogLimits) -> u64 {
    (limits.budget_bytes / 8).max(limits.segment_bytes_min as u64)
}

impl Marks {
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

    /// The log was trimmed. A trim that frees little must not put off the next mark.
    pub fn shrunk(&mut self, in_use_bytes: u64, limits: &LogLimits) {
        let first = first(limits);
        self.passed &= in_use_bytes >= first;
        let next = first.max(in_use_bytes.saturating_add(step(limits)));
        self.next_bytes = self.next_bytes.min(next);
    }

    /// Is the first mark passed?
    pub fn is_above(in_use_bytes: u64, limits: &LogLimits) -> bool {
        in_use_bytes >= first(limits)
    }

    /// Told once.
    #[inline]
    pub fn take(&mut self) -> bool {
        self.passed && core::mem::take(&mut self.passed)
    }
}
