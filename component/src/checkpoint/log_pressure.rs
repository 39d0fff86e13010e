//! The payload log is on its way to its budget: ask for a line of the set that is behind most of
//! it.
//!
//! The message path sets a flag and wakes the checkpoint thread, once for each mark that the log
//! passes. A line need not help: its pictures may have been taken before the messages arrived, and
//! older lines stay usable. So as long as the log is above its first mark it asks again, after
//! twice the time each time.

use crate::checkpoint::thread::{Checkpoint, PUBLIC, count};
use crate::os::now_ns;
use core::sync::atomic::Ordering;
use rustbtl_coordination::control::FromRank;

/// From the first question to the second.
const AGAIN_MS: u64 = 500;
/// And at most.
const AGAIN_MS_MAX: u64 = 300_000;
const MS: u64 = 1_000_000;

/// The payload log has passed a mark: somebody else shall ask for a line.
#[cold]
pub fn log_nearly_full() {
    if let Some(public) = PUBLIC.get() {
        public.nearly_full.store(true, Ordering::Relaxed);
        public.wake.ring();
    }
}

/// When to ask again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pressed(Option<Again>);

#[derive(Clone, Copy, Debug)]
struct Again {
    at_ns: u64,
    after_ms: u64,
}

impl Pressed {
    fn is_due(self, now_ns: u64) -> bool {
        self.0.is_some_and(|again| again.at_ns <= now_ns)
    }

    /// A line was asked for, because of a mark or again.
    fn asked(&mut self, mark: bool, now_ns: u64) {
        let before = self.0.filter(|_| !mark);
        let after_ms = before.map_or(AGAIN_MS, |again| (2 * again.after_ms).min(AGAIN_MS_MAX));
        self.0 = Some(Again { at_ns: now_ns + after_ms * MS, after_ms });
    }

    /// How long the thread may sleep, in milliseconds; -1: until it is woken.
    pub fn timeout_ms(self) -> i32 {
        let left = |again: Again| again.at_ns.saturating_sub(now_ns()).div_ceil(MS);
        self.0.map_or(-1, |again| left(again).min(AGAIN_MS_MAX) as i32)
    }
}

impl Checkpoint {
    /// Ask for a line if the log wants one.
    pub(crate) fn pass_on_log(&mut self) {
        let mark = Self::public().nearly_full.swap(false, Ordering::Relaxed);
        let now = now_ns();
        if !mark && !self.pressed.is_due(now) {
            return;
        }
        let Ok(process) = self.shared.take() else { return };
        let log = &process.host.log;
        let largest = log.largest_set().filter(|_| log.is_nearly_full());
        drop(process);
        let Some((set, bytes)) = largest else {
            self.pressed = Pressed::default();
            return;
        };
        count(0);
        self.say(&FromRank::LogNearlyFull { set, bytes });
        self.pressed.asked(mark, now);
    }

    /// Another process, perhaps on another node, whose clock is another one: look afresh.
    pub(crate) fn restored_log(&mut self) {
        self.pressed = Pressed::default();
        Self::public().nearly_full.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_get_rarer_until_another_mark_is_passed() {
        let (mut pressed, mut now) = (Pressed::default(), 7 * MS);
        assert!(!pressed.is_due(u64::MAX) && pressed.timeout_ms() == -1);
        let mut waits = Vec::new();
        for question in 0..13 {
            pressed.asked(question == 0, now);
            let Some(again) = pressed.0 else { unreachable!() };
            assert!(!pressed.is_due(again.at_ns - 1) && pressed.is_due(again.at_ns));
            waits.push((again.at_ns - now) / MS);
            now = again.at_ns;
        }
        assert_eq!(waits[..4], [500, 1000, 2000, 4000]);
        assert_eq!(waits[11..], [AGAIN_MS_MAX; 2]);
        pressed.asked(true, now);
        assert_eq!(pressed.0.map(|again| again.after_ms), Some(AGAIN_MS));
    }
}
