//! Messages to the user about unauthenticated peers and the like: not more than somebody can read.

/// Notices for the user, at a bounded rate.
#[derive(Debug, Default)]
pub(super) struct LogLimit {
    budget: u32,
    refilled_ms: u64,
    /// Not shown.
    pub(super) swallowed: u64,
}

const NOTICES: u32 = 10;
const NOTICE_EVERY_MS: u64 = 1_000;

impl LogLimit {
    /// Nothing was shown yet.
    pub(super) fn new() -> Self {
        Self { budget: NOTICES, ..Self::default() }
    }

    /// May another one be shown?
    pub(super) fn admit(&mut self, now_ms: u64) -> bool {
        let more = (now_ms - self.refilled_ms) / NOTICE_EVERY_MS;
        if more > 0 {
            self.budget = NOTICES.min(self.budget.saturating_add(more.min(1 << 20) as u32));
            self.refilled_ms = now_ms;
        }
        if self.budget == 0 {
            self.swallowed += 1;
            return false;
        }
        self.budget -= 1;
        true
    }
}
