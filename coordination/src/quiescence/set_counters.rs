//! Checkpoints of a set whose processes all share memory: they count in three words instead of
//! sending tokens and rounds of a barrier to each other.
//!
//! Source: DESIGN §6, docs/adr/0009. A process arrives at a phase when it raises the count.
//!
//! ```text
//!  Idle ─Begin─> Eager ─all left─> come: Drained ─all, rings empty─> (a rendezvous in flight?)
//!      no ────────────────────────────────────────────────────────────────┐
//!      yes ─> Rendezvous ─quiet──> come: Quiescent ─all, rings empty─> Freeze <┘
//!  ─Frozen─> come: SnapshotTaken ─all─> Idle (global: Resume in place of the third phase)
//! ```
//!
//! A ring in shared memory can be seen to be empty, which is what a token was for: when all have
//! arrived at `Drained`, every message that left before the checkpoint lies in a ring, and who
//! finds its rings empty after that has it. Then nothing new is matched. Where nobody has an
//! unfinished send to the set or a payload under way, no `Grant`, `Data` or `Done` can follow, and
//! the snapshot may be taken at once: nobody goes on before all have theirs, so no barrier is
//! needed before it. Else `Quiescent` says that all payloads are in; a `Done` may still lie in a
//! ring, before the count.
//!
//! Invariants, beside those of the machine:
//! * C1 A process arrives at a phase of a checkpoint once, and only at the one that it is in.
//! * C2 Whether a rendezvous is in flight is known when the last one has arrived, and the same for
//!   all: it is in the word that they count in.
//! * C3 A count of one checkpoint never counts for another one, and an older checkpoint changes
//!   nothing.
//! * C4 Not more than three counts in a checkpoint, whatever the number of processes; two if no
//!   rendezvous is in flight, one less in a global checkpoint.

use super::{ActiveCheckpoint, CheckpointScope, Output, Phase, Quiescence, QuiescenceError};

/// Where the processes of a set wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CounterPhase {
    /// Every message that is not held has left.
    Drained,
    /// Every matched receive is complete.
    Quiescent,
    /// The snapshot is taken, or cannot be.
    SnapshotTaken,
}

impl CounterPhase {
    /// All of them, in their order.
    pub const ALL: [Self; 3] = [Self::Drained, Self::Quiescent, Self::SnapshotTaken];
}

/// How those who take part in checkpoints coordinate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuiesceMethod {
    /// By frames: tokens and rounds of a barrier. Works wherever frames get.
    Frames,
    /// By counts in memory that all of the set share, through which all their frames pass.
    Counters,
}

const COUNT_BITS: u32 = 23;
const IN_FLIGHT: u64 = 1 << COUNT_BITS;
const CHECKPOINT_SHIFT: u32 = COUNT_BITS + 1;

/// The word of a phase: a checkpoint, how many have arrived, whether one has something in flight.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PhaseCounter(pub u64);

impl PhaseCounter {
    /// The word after one more has arrived. `None`: the others are in a newer checkpoint.
    pub fn arrive(self, checkpoint: u64, in_flight: bool) -> Option<Self> {
        let in_flight = if in_flight { IN_FLIGHT } else { 0 };
        match self.checkpoint().cmp(&checkpoint) {
            core::cmp::Ordering::Less => Some(Self(checkpoint << CHECKPOINT_SHIFT | in_flight | 1)),
            core::cmp::Ordering::Equal => Some(Self((self.0 | in_flight) + 1)),
            core::cmp::Ordering::Greater => None,
        }
    }

    /// Have all `n` arrived in this checkpoint? Then whether one of them has something in flight.
    pub fn all_arrived(self, checkpoint: u64, n: usize) -> Option<bool> {
        let come = self.0 & (IN_FLIGHT - 1);
        (self.checkpoint() == checkpoint && come >= n as u64).then_some(self.0 & IN_FLIGHT != 0)
    }

    /// The checkpoint that is counted.
    pub fn checkpoint(self) -> u64 {
        self.0 >> CHECKPOINT_SHIFT
    }
}

impl Quiescence {
    /// Take checkpoints by this method from now on. Not while one is taken.
    pub fn set_method(&mut self, method: QuiesceMethod) {
        debug_assert!(self.current.is_none(), "C1: the method changes between checkpoints");
        self.method = if self.members.len() > 1 { method } else { QuiesceMethod::Frames };
    }

    /// How checkpoints are taken.
    pub fn method(&self) -> QuiesceMethod {
        self.method
    }

    /// The driver has to hand in `Input::Drained` when it is so.
    pub fn wants_drained(&self) -> bool {
        self.method == QuiesceMethod::Counters
            && self.current.as_ref().is_some_and(|c| c.phase == Phase::Eager && c.arrived.is_none())
    }

    /// The driver has to hand in `Input::AllArrived` when all are there, and (but for the last
    /// phase) nothing is left in the rings that was there then.
    pub fn awaited_phase(&self) -> Option<(u64, CounterPhase)> {
        let current = self.current.as_ref().filter(|_| self.method == QuiesceMethod::Counters)?;
        let phase = match current.phase {
            Phase::Eager => current.arrived?,
            Phase::FirstBarrier => CounterPhase::Quiescent,
            Phase::SecondBarrier => CounterPhase::SnapshotTaken,
            _ => return None,
        };
        Some((current.checkpoint, phase))
    }

    /// C1: count.
    pub(super) fn arrive(&mut self, phase: CounterPhase, in_flight: bool) {
        let Some(ActiveCheckpoint { checkpoint, arrived, .. }) = &mut self.current else { return };
        debug_assert!(
            arrived.is_none_or(|arrived| arrived < phase),
            "C1: {arrived:?}, then {phase:?}"
        );
        *arrived = Some(phase);
        self.outputs.push_back(Output::Arrive { checkpoint: *checkpoint, phase, in_flight });
    }

    pub(super) fn on_drained(&mut self, in_flight: bool) -> Result<(), QuiescenceError> {
        if !self.wants_drained() {
            return Err(QuiescenceError::Unexpected("that all has left"));
        }
        self.arrive(CounterPhase::Drained, in_flight);
        Ok(())
    }

    pub(super) fn on_all_arrived(
        &mut self,
        checkpoint: u64,
        phase: CounterPhase,
        in_flight: bool,
    ) -> Result<(), QuiescenceError> {
        if self.is_over(checkpoint) {
            return Ok(());
        }
        if self.awaited_phase() != Some((checkpoint, phase)) {
            return Err(QuiescenceError::Unexpected("a count that is complete"));
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        match phase {
            CounterPhase::Drained if in_flight => current.phase = Phase::Rendezvous,
            CounterPhase::Drained | CounterPhase::Quiescent => {
                current.phase = Phase::Freeze;
                self.outputs.push_back(Output::Freeze { checkpoint });
            }
            CounterPhase::SnapshotTaken => self.leave(),
        }
        Ok(())
    }

    /// What comes after a phase that both methods have.
    pub(super) fn advance_counters(&mut self) {
        let Some(current) = &mut self.current else { return };
        match current.phase {
            // Whom a `Done` was sent to does not matter: it lies in a ring before the count.
            Phase::Flush => {
                current.flushing.clear();
                current.phase = Phase::FirstBarrier;
                self.arrive(CounterPhase::Quiescent, false);
            }
            Phase::SecondBarrier if current.scope == CheckpointScope::Set => {
                self.arrive(CounterPhase::SnapshotTaken, false);
            }
            _ => {}
        }
    }

    pub(super) fn check_counters(&self) {
        let Some(current) =
            self.current.as_ref().filter(|_| self.method == QuiesceMethod::Counters)
        else {
            return;
        };
        let arrived = match current.phase {
            Phase::Eager => {
                current.arrived.is_none() || current.arrived == Some(CounterPhase::Drained)
            }
            Phase::Rendezvous => current.arrived == Some(CounterPhase::Drained),
            Phase::FirstBarrier => current.arrived == Some(CounterPhase::Quiescent),
            Phase::Freeze | Phase::AwaitResume => {
                matches!(current.arrived, Some(CounterPhase::Drained | CounterPhase::Quiescent))
            }
            Phase::SecondBarrier => current.arrived == Some(CounterPhase::SnapshotTaken),
            Phase::Flush => false,
        };
        assert!(arrived, "C1: in {:?}, arrived last to {:?}", current.phase, current.arrived);
        let frames = |o: &Output| matches!(o, Output::Send { .. });
        assert!(!self.outputs.iter().any(frames), "C4: a frame where all is counted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c2_and_c3_a_word_counts_one_checkpoint_and_keeps_that_one_has_something_in_flight() {
        let word = PhaseCounter::default().arrive(5, false).and_then(|word| word.arrive(5, true));
        let word = word.and_then(|word| word.arrive(5, false)).unwrap();
        assert_eq!(
            (word.all_arrived(5, 3), word.all_arrived(5, 4), word.all_arrived(4, 1)),
            (Some(true), None, None)
        );
        assert_eq!(word.arrive(4, true), None, "an older checkpoint changes nothing");
        let next = word.arrive(6, false).unwrap();
        assert_eq!(
            (next.all_arrived(6, 1), next.all_arrived(5, 1), next.checkpoint()),
            (Some(false), None, 6)
        );
    }

    #[test]
    fn c2_any_of_those_who_arrive_may_have_something_in_flight() {
        for n in 1..50 {
            for at in 0..=n {
                let word =
                    (0..n).try_fold(PhaseCounter::default(), |word, i| word.arrive(1, i == at));
                assert_eq!(word.unwrap().all_arrived(1, n), Some(at < n));
            }
        }
    }
}
