//! In which order, and when, operations of others changed this process's windows: determinants of
//! one-sided communication, as runs; and the record that a replay follows.
//!
//! Source: docs/adr/0037; the rules are in DESIGN.md ("Replay").

use crate::ids::{CommRank, ContextId, Tick};
use crate::wire::Malformed;
use std::collections::VecDeque;

/// `count` ordered operations of one source were applied one after the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Applied {
    /// Whose window's communicator.
    pub window: ContextId,
    /// Rank of the origin there.
    pub source: CommRank,
    /// How many; at least 1.
    pub count: u64,
    /// Actions of the program by then; [`Tick::BY_EPOCH`]: of an active epoch, which says when.
    pub tick: Tick,
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        let bits = u64::from(byte & 0x7F);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            // One form for each number.
            return (byte != 0 || shift == 0).then_some(number);
        }
    }
    None
}

impl Applied {
    /// Append it: four integers of 7 bits a byte, 5 to 12 bytes as a rule.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put(out, self.window.0.into());
        put(out, self.source.0.into());
        put(out, self.count);
        put(out, self.tick.0);
    }

    /// Take one from the front.
    ///
    /// # Errors
    /// There is no whole one; how much was taken is not said.
    pub fn decode(from: &mut &[u8]) -> Result<Self, Malformed> {
        let mut number = || take(from).ok_or(Malformed);
        let (window, source, count, tick) = (number()?, number()?, number()?, number()?);
        let id = |number: u64| u32::try_from(number).map_err(|_| Malformed);
        let (window, source) = (ContextId(id(window)?), CommRank(id(source)?));
        match count {
            0 => Err(Malformed),
            _ => Ok(Self { window, source, count, tick: Tick(tick) }),
        }
    }
}

/// What is recorded and was not taken yet.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Recorder {
    runs: Vec<Applied>,
}

impl Recorder {
    /// One more was applied.
    pub fn record(&mut self, window: ContextId, source: CommRank, tick: Tick) {
        match self.runs.last_mut() {
            Some(run) if (run.window, run.source, run.tick) == (window, source, tick) => {
                run.count += 1;
            }
            _ => self.runs.push(Applied { window, source, count: 1, tick }),
        }
    }

    /// Is there something to take?
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// All of it. A run that is taken ends.
    pub fn take(&mut self) -> Vec<Applied> {
        core::mem::take(&mut self.runs)
    }
}

/// What is to be repeated. It is followed until the whole job has replayed: then it is dropped.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Replay {
    runs: VecDeque<Applied>,
}

impl Replay {
    /// Follow this record.
    pub fn new(runs: impl IntoIterator<Item = Applied>) -> Self {
        Self { runs: runs.into_iter().filter(|run| run.count > 0).collect() }
    }

    /// These follow.
    pub fn extend(&mut self, runs: impl IntoIterator<Item = Applied>) {
        self.runs.extend(runs.into_iter().filter(|run| run.count > 0));
    }

    /// Is all of it applied?
    pub fn is_exhausted(&self) -> bool {
        self.runs.is_empty()
    }

    /// What comes next.
    pub fn next(&self) -> Option<&Applied> {
        self.runs.front()
    }

    /// The next one was applied.
    pub fn consume(&mut self) {
        if let Some(run) = self.runs.front_mut() {
            run.count -= 1;
            if run.count == 0 {
                self.runs.pop_front();
            }
        }
    }

    /// Is something of the record not applied whose tick has been reached (rule 3)?
    pub fn is_behind(&self, now: Tick) -> bool {
        let by_tick = |run: &&Applied| run.tick != Tick::BY_EPOCH;
        self.runs.iter().find(by_tick).is_some_and(|run| run.tick <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn applied(window: u32, source: u32, count: u64, tick: u64) -> Applied {
        Applied { window: ContextId(window), source: CommRank(source), count, tick: Tick(tick) }
    }

    #[test]
    fn equal_ones_in_a_row_are_one_run() {
        let mut recorder = Recorder::default();
        for (source, tick) in [(1, 5), (1, 5), (2, 5), (1, 5), (1, 6), (1, 6)] {
            recorder.record(ContextId(3), CommRank(source), Tick(tick));
        }
        let runs =
            [applied(3, 1, 2, 5), applied(3, 2, 1, 5), applied(3, 1, 1, 5), applied(3, 1, 2, 6)];
        assert_eq!(recorder.take(), runs);
        assert!(recorder.is_empty());
        recorder.record(ContextId(3), CommRank(1), Tick(6));
        assert_eq!(recorder.take(), [applied(3, 1, 1, 6)], "a run that was taken has ended");
    }

    #[test]
    fn a_replay_is_behind_when_a_tick_is_reached() {
        let mut replay = Replay::new([applied(3, 1, 2, 0), applied(3, 2, 1, 7)]);
        assert!(!replay.is_behind(Tick(6)) && replay.is_behind(Tick(7)));
        for left in [2, 1, 0] {
            assert_eq!(replay.runs.iter().map(|run| run.count).sum::<u64>(), left + 1);
            replay.consume();
        }
        assert!(replay.is_exhausted() && !replay.is_behind(Tick(u64::MAX)));
    }

    #[test]
    fn bytes_of_a_run() {
        let mut out = Vec::new();
        applied(0x1_0003, 2, 300, 70_000).encode(&mut out);
        assert_eq!(out, [0x83, 0x80, 0x04, 2, 0xAC, 0x02, 0xF0, 0xA2, 0x04]);
        for bad in [&[3, 2, 0, 1][..], &[3, 2, 1], &[0x80, 0, 2, 1, 1], &[0xFF; 11]] {
            assert_eq!(Applied::decode(&mut &bad[..]), Err(Malformed), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn runs_survive_their_bytes(w: u32, s: u32, count in 1u64.., tick: u64) {
            let run = applied(w, s, count, tick);
            let mut out = Vec::new();
            run.encode(&mut out);
            let mut rest = &out[..];
            prop_assert_eq!(Applied::decode(&mut rest), Ok(run));
            prop_assert!(rest.is_empty());
        }
    }
}
