//! Messages about unauthenticated peers and the like: not more than somebody can read, and than a
//! disk has room for. Anybody who can connect causes them.

/// Notices at a bounded rate.
#[derive(Debug)]
pub struct NoticeLimit {
    budget: u32,
    refilled_ms: u64,
    left_out: u64,
}

/// At once.
const NOTICES: u32 = 10;
/// One more in so many milliseconds.
const NOTICE_EVERY_MS: u64 = 1_000;

impl Default for NoticeLimit {
    fn default() -> Self {
        Self { budget: NOTICES, refilled_ms: 0, left_out: 0 }
    }
}

impl NoticeLimit {
    /// May another one be shown? Then: how many were left out since the one before.
    pub fn admit(&mut self, now_ms: u64) -> Option<u64> {
        let more = now_ms.saturating_sub(self.refilled_ms) / NOTICE_EVERY_MS;
        if more > 0 {
            self.budget = NOTICES.min(self.budget.saturating_add(more.min(1 << 20) as u32));
            self.refilled_ms = now_ms;
        }
        if self.budget == 0 {
            self.left_out += 1;
            return None;
        }
        self.budget -= 1;
        Some(core::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_at_once_then_one_each_second_and_what_is_left_out_is_counted() {
        let mut limit = NoticeLimit::default();
        let shown = (0..1000).filter(|_| limit.admit(5).is_some()).count();
        assert_eq!(shown, 10);
        assert_eq!(limit.admit(1_004), Some(990));
        assert_eq!(limit.admit(1_004), None);
        assert_eq!(limit.admit(2_005), Some(1));
        assert_eq!((0..1000).filter(|_| limit.admit(1 << 40).is_some()).count(), 10);
        assert_eq!(limit.admit(0), None, "a clock that is set back stops nothing");
    }
}
