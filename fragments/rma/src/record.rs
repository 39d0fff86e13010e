//! In which order, and when, operations of others changed this process's windows: determinants of
//! one-sided communication, as runs; and the record that a replay follows.
//!
//! Source: docs/adr/0037; the rules are in DESIGN.md ("Replay").

use crate::direct::{DirectRun, GroupRun};
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

/// What is recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Recorded {
    /// Applied by this process to its windows.
    Own(Applied),
    /// Applied directly, to processes of the set. One determinant.
    Group(Vec<GroupRun>),
}

/// What is known of a process's past: of each kind of [`Recorded`] what was applied to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Past {
    /// By itself, since its checkpoint.
    Own(Applied),
    /// Directly. It may have begun before the checkpoint.
    Direct(DirectRun),
}

/// What is recorded and was not taken yet.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Recorder {
    runs: Vec<Recorded>,
}

impl Recorder {
    /// One more was applied.
    pub fn record(&mut self, window: ContextId, source: CommRank, tick: Tick) {
        match self.runs.last_mut() {
            Some(Recorded::Own(run))
                if (run.window, run.source, run.tick) == (window, source, tick) =>
            {
                run.count += 1;
            }
            _ => self.runs.push(Recorded::Own(Applied { window, source, count: 1, tick })),
        }
    }

    /// These were applied directly before what comes now.
    pub fn record_group(&mut self, group: Vec<GroupRun>) {
        if !group.is_empty() {
            self.runs.push(Recorded::Group(group));
        }
    }

    /// Is there something to take?
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// All of it. A run that is taken ends.
    pub fn take(&mut self) -> Vec<Recorded> {
        core::mem::take(&mut self.runs)
    }
}

/// Determinants are lost: what is recorded does not follow the checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IncompleteRecord;

/// What is to be repeated. It is followed until the whole job has replayed: then it is dropped.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Replay {
    runs: VecDeque<Applied>,
}

impl Replay {
    /// These follow. `applied`: operations that had been applied when the checkpoint was taken.
    /// What it covers of runs is left out (D3).
    ///
    /// # Errors
    /// A part of the record is missing.
    pub fn extend(
        &mut self,
        applied: u64,
        record: impl IntoIterator<Item = Past>,
    ) -> Result<(), IncompleteRecord> {
        let mut place = self.runs.iter().fold(applied, |place, run| place + run.count);
        for past in record {
            let mut run = match past {
                Past::Own(run) => run,
                Past::Direct(DirectRun { first, applied }) => {
                    let covered = place.checked_sub(first).ok_or(IncompleteRecord)?;
                    Applied { count: applied.count.saturating_sub(covered), ..applied }
                }
            };
            run.count = run.count.min(u64::MAX - place);
            if run.count > 0 {
                place += run.count;
                self.runs.push_back(run);
            }
        }
        Ok(())
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
        assert_eq!(recorder.take(), runs.map(Recorded::Own));
        assert!(recorder.is_empty());
        recorder.record(ContextId(3), CommRank(1), Tick(6));
        let own = |count| Recorded::Own(applied(3, 1, count, 6));
        assert_eq!(recorder.take(), [own(1)], "a run that was taken has ended");
        let direct = DirectRun { first: 7, applied: applied(3, 1, 2, 6) };
        recorder.record(ContextId(3), CommRank(1), Tick(6));
        recorder.record_group(vec![(2, direct)]);
        recorder.record(ContextId(3), CommRank(1), Tick(6));
        assert_eq!(recorder.take(), [own(1), Recorded::Group(vec![(2, direct)]), own(1)]);
    }

    fn replay(runs: &[Applied]) -> Replay {
        let mut replay = Replay::default();
        let own = runs.iter().copied().map(Past::Own);
        replay.extend(0, own).expect("nothing is missing");
        replay
    }

    #[test]
    fn what_the_checkpoint_covers_of_direct_runs_is_left_out() {
        let direct = |first, run| Past::Direct(DirectRun { first, applied: run });
        let mut replay = Replay::default();
        let record = [
            direct(3, applied(3, 1, 4, 1)),
            direct(7, applied(3, 2, 5, 2)),
            Past::Own(applied(3, 4, 1, 2)),
            direct(13, applied(3, 1, 2, 3)),
        ];
        assert_eq!(replay.extend(9, record), Ok(()));
        let expected = [applied(3, 2, 3, 2), applied(3, 4, 1, 2), applied(3, 1, 2, 3)];
        assert_eq!(replay.runs, expected);
        // A later record, and one that does not follow.
        assert_eq!(replay.extend(9, [direct(15, applied(3, 1, 1, 4))]), Ok(()));
        let gap = [direct(17, applied(3, 1, 1, 4))];
        assert_eq!(replay.extend(9, gap), Err(IncompleteRecord));
    }

    #[test]
    fn a_replay_is_behind_when_a_tick_is_reached() {
        let mut replay = replay(&[applied(3, 1, 2, 0), applied(3, 2, 1, 7)]);
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
