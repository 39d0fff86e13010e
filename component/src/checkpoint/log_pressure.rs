//! The payload log is on its way to its budget, or costs more time than it may: ask for a
//! checkpoint of the set that causes most of it, or to suspend logging towards that set.
//!
//! The message path sets a flag and wakes the checkpoint thread, once for each mark that the log
//! passes. A checkpoint need not help: its snapshots may have been taken before the messages
//! arrived, and older checkpoints stay usable. So as long as the log is above its first mark it
//! asks again, after twice the time each time. The same is true of what it costs.

use crate::os::now_ns;

/// From the first question to the second.
const AGAIN_MS: u64 = 500;
/// And at most.
const AGAIN_MS_MAX: u64 = 30_000;
const MS: u64 = 1_000_000;

/// When to ask again.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogPressure(Option<Again>);

#[derive(Clone, Copy, Debug)]
struct Again {
    at_ns: u64,
    after_ms: u64,
}

impl LogPressure {
    /// Is there something to be asked for, now that a mark was passed or time has gone by?
    /// `largest`: what to ask for, if the log is still above the mark; `None`: that cannot be known
    /// now.
    pub fn handle<T>(
        &mut self,
        mark: bool,
        now_ns: u64,
        largest: impl FnOnce() -> Option<Option<T>>,
    ) -> Option<T> {
        if !mark && !self.is_due(now_ns) {
            return None;
        }
        let largest = largest()?;
        match largest {
            Some(_) => self.requested(mark, now_ns),
            None => *self = Self::default(),
        }
        largest
    }

    fn is_due(self, now_ns: u64) -> bool {
        self.0.is_some_and(|again| again.at_ns <= now_ns)
    }

    /// A checkpoint was asked for, because of a mark or again.
    fn requested(&mut self, mark: bool, now_ns: u64) {
        let before = self.0.filter(|_| !mark);
        let after_ms = before.map_or(AGAIN_MS, |again| (2 * again.after_ms).min(AGAIN_MS_MAX));
        self.0 = Some(Again { at_ns: now_ns + after_ms * MS, after_ms });
    }

    /// How long the thread may sleep for both, in milliseconds; -1: until it is woken.
    pub fn sooner(self, other: Self) -> i32 {
        match (self.timeout_ms(), other.timeout_ms()) {
            (-1, ms) | (ms, -1) => ms,
            (one, other) => one.min(other),
        }
    }

    fn timeout_ms(self) -> i32 {
        let left = |again: Again| again.at_ns.saturating_sub(now_ns()).div_ceil(MS);
        self.0.map_or(-1, |again| left(again).min(AGAIN_MS_MAX) as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_get_rarer_until_another_mark_is_passed() {
        let (mut pressed, mut now) = (LogPressure::default(), 7 * MS);
        assert!(!pressed.is_due(u64::MAX) && pressed.timeout_ms() == -1);
        let mut waits = Vec::new();
        for question in 0..13 {
            pressed.requested(question == 0, now);
            let Some(again) = pressed.0 else { unreachable!() };
            assert!(!pressed.is_due(again.at_ns - 1) && pressed.is_due(again.at_ns));
            waits.push((again.at_ns - now) / MS);
            now = again.at_ns;
        }
        assert_eq!(waits[..4], [500, 1000, 2000, 4000]);
        assert_eq!(waits[11..], [AGAIN_MS_MAX; 2]);
        pressed.requested(true, now);
        assert_eq!(pressed.0.map(|again| again.after_ms), Some(AGAIN_MS));
    }
}
