//! Lines of a set whose processes all share memory: they count in three words instead of sending
//! tokens and rounds of a barrier to each other.
//!
//! Source: DESIGN §6, docs/adr/0009. A process comes to a station when the count goes up by it.
//!
//! ```text
//!  Idle ─Begin─> Eager ─all left─> come: Left ─all, rings empty─> (a rendezvous is open anywhere?)
//!      no ────────────────────────────────────────────────────────────────┐
//!      yes ─> Rendezvous ─silent─> come: Silent ─all, rings empty─> Freeze <┘
//!  ─Frozen─> come: Pictured ─all─> Idle      (global line: Resume in place of the third station)
//! ```
//!
//! A ring in shared memory can be seen to be empty, which is what a token was for: when all have
//! come to `Left`, every message that left before the line lies in a ring, and who finds its rings
//! empty after that has it. Then nothing new is matched. Where nobody has an unfinished send
//! to the set or a payload under way, no `Grant`, `Data` or `Done` can follow, and the picture may
//! be taken at once: nobody goes on before all have theirs, so no barrier has to stand before it.
//! Else `Silent` says that all payloads are in; a `Done` may still lie in a ring, before the count.
//!
//! Invariants, beside those of the machine:
//! * C1 A process comes to a station of a line once, and only to the one that it is at.
//! * C2 Whether a rendezvous is open is known when the last one has come, and the same for all:
//!   it is in the word that they count in.
//! * C3 A count of one line never counts for another one, and an older line changes nothing.
//! * C4 Not more than three counts in a line, whatever the number of processes; two if no
//!   rendezvous is open, one less in a global line.

use super::{Current, Output, Phase, Quiescence, Scope, QuiescenceError};

/// Where the processes of a set wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Station {
    /// Every message that is not held has left.
    Left,
    /// Every matched receive is complete.
    Silent,
    /// The picture is taken, or cannot be.
    Pictured,
}

impl Station {
    /// All of them, in their order.
    pub const ALL: [Self; 3] = [Self::Left, Self::Silent, Self::Pictured];
}

/// How those who take part in lines find each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// By frames: tokens and rounds of a barrier. Works wherever frames get.
    Frames,
    /// By counts in memory that all of the set share, through which all their frames pass.
    Counts,
}

const COUNT_BITS: u32 = 23;
const OPEN: u64 = 1 << COUNT_BITS;
const LINE_SHIFT: u32 = COUNT_BITS + 1;

/// The word of a station: a line, how many have come, whether one of them said "open".
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Count(pub u64);

impl Count {
    /// The word after one more has come. `None`: the others are in a newer line.
    pub fn come(self, line: u64, open: bool) -> Option<Self> {
        let open = if open { OPEN } else { 0 };
        match self.line().cmp(&line) {
            core::cmp::Ordering::Less => Some(Self(line << LINE_SHIFT | open | 1)),
            core::cmp::Ordering::Equal => Some(Self((self.0 | open) + 1)),
            core::cmp::Ordering::Greater => None,
        }
    }

    /// Have all `n` come in this line? Then whether one of them said "open".
    pub fn met(self, line: u64, n: usize) -> Option<bool> {
        let come = self.0 & (OPEN - 1);
        (self.line() == line && come >= n as u64).then_some(self.0 & OPEN != 0)
    }

    /// The line that is counted.
    pub fn line(self) -> u64 {
        self.0 >> LINE_SHIFT
    }
}

impl Quiescence {
    /// Take lines in this way from now on. Not while one is taken.
    pub fn go(&mut self, way: Way) {
        debug_assert!(self.current.is_none(), "C1: the way changes between lines");
        self.way = if self.members.len() > 1 { way } else { Way::Frames };
    }

    /// How lines are taken.
    pub fn way(&self) -> Way {
        self.way
    }

    /// The driver has to say `Input::Left` when it is so.
    pub fn wants_left(&self) -> bool {
        self.way == Way::Counts
            && self.current.as_ref().is_some_and(|c| c.phase == Phase::Eager && c.came.is_none())
    }

    /// The driver has to say `Input::Met` when all are there, and (but for the last station)
    /// nothing is left in the rings that was there then.
    pub fn awaits(&self) -> Option<(u64, Station)> {
        let current = self.current.as_ref().filter(|_| self.way == Way::Counts)?;
        let station = match current.phase {
            Phase::Eager => current.came?,
            Phase::FirstBarrier => Station::Silent,
            Phase::SecondBarrier => Station::Pictured,
            _ => return None,
        };
        Some((current.line, station))
    }

    /// C1: count.
    pub(super) fn come(&mut self, station: Station, open: bool) {
        let Some(Current { line, came, .. }) = &mut self.current else { return };
        debug_assert!(came.is_none_or(|came| came < station), "C1: {came:?}, then {station:?}");
        *came = Some(station);
        self.outputs.push_back(Output::Come { line: *line, station, open });
    }

    pub(super) fn on_left(&mut self, open: bool) -> Result<(), QuiescenceError> {
        if !self.wants_left() {
            return Err(QuiescenceError::NotAsked("that all has left"));
        }
        self.come(Station::Left, open);
        Ok(())
    }

    pub(super) fn on_met(
        &mut self,
        line: u64,
        station: Station,
        open: bool,
    ) -> Result<(), QuiescenceError> {
        if self.is_over(line) {
            return Ok(());
        }
        if self.awaits() != Some((line, station)) {
            return Err(QuiescenceError::NotAsked("a count that is complete"));
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        match station {
            Station::Left if open => current.phase = Phase::Rendezvous,
            Station::Left | Station::Silent => {
                current.phase = Phase::Freeze;
                self.outputs.push_back(Output::Freeze { line });
            }
            Station::Pictured => self.leave(),
        }
        Ok(())
    }

    /// What comes after a phase that both ways have.
    pub(super) fn go_on_counting(&mut self) {
        let Some(current) = &mut self.current else { return };
        match current.phase {
            // Whom a `Done` was sent to does not matter: it lies in a ring before the count.
            Phase::Flush => {
                current.flushing.clear();
                current.phase = Phase::FirstBarrier;
                self.come(Station::Silent, false);
            }
            Phase::SecondBarrier if current.scope == Scope::Set => {
                self.come(Station::Pictured, false);
            }
            _ => {}
        }
    }

    pub(super) fn check_counts(&self) {
        let Some(current) = self.current.as_ref().filter(|_| self.way == Way::Counts) else {
            return;
        };
        let came = match current.phase {
            Phase::Eager => current.came.is_none() || current.came == Some(Station::Left),
            Phase::Rendezvous => current.came == Some(Station::Left),
            Phase::FirstBarrier => current.came == Some(Station::Silent),
            Phase::Freeze | Phase::AwaitResume => {
                matches!(current.came, Some(Station::Left | Station::Silent))
            }
            Phase::SecondBarrier => current.came == Some(Station::Pictured),
            Phase::Flush => false,
        };
        assert!(came, "C1: in {:?}, came last to {:?}", current.phase, current.came);
        let frames = |o: &Output| matches!(o, Output::Send { .. });
        assert!(!self.outputs.iter().any(frames), "C4: a frame where all is counted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c2_and_c3_a_word_counts_one_line_and_keeps_what_one_has_said() {
        let word = Count::default().come(5, false).and_then(|word| word.come(5, true));
        let word = word.and_then(|word| word.come(5, false)).unwrap();
        assert_eq!((word.met(5, 3), word.met(5, 4), word.met(4, 1)), (Some(true), None, None));
        assert_eq!(word.come(4, true), None, "an older line changes nothing");
        let next = word.come(6, false).unwrap();
        assert_eq!((next.met(6, 1), next.met(5, 1), next.line()), (Some(false), None, 6));
    }

    #[test]
    fn c2_every_place_among_those_who_come_may_say_open() {
        for n in 1..50 {
            for at in 0..=n {
                let word = (0..n).try_fold(Count::default(), |word, i| word.come(1, i == at));
                assert_eq!(word.unwrap().met(1, n), Some(at < n));
            }
        }
    }
}
