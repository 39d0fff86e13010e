//! After sets that had failed have reported their replays as complete: are they? Asked by the
//! coordinator, before anybody applies one-sided operations that no record names.
//!
//! Source: docs/adr/0037. A restarted process takes its replay for complete as far as it knows. A
//! channel that only its peer knows of shows nothing to be repeated until it is open: the
//! checkpoint may be from before the first message over it (docs/adr/0016). So all ranks are asked
//! whether each channel to a restarted process is repaired, and then, *after the last of these
//! answers*, the restarted ones whether their replay is complete. What a process has received of
//! an earlier incarnation is known to that rank by then.
//!
//! Invariants:
//! * N1 Replays are over only if every rank has answered the first question and after that every
//!   restarted one the second, and no set has failed in between.
//! * N2 An answer to another question, or of somebody who was not asked, changes nothing.

use rustbtl_fragments::ids::PeerId;
use std::collections::BTreeSet;

/// What a rank is asked. It answers as soon as it can say yes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayQuestion {
    /// Repeated in the answer. None is used twice in a job.
    pub number: u64,
    /// False: is each of its channels to restarted processes repaired? True: is its own replay
    /// complete?
    pub replay: bool,
}

/// What follows from an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplayStep {
    /// Ask these.
    Ask(ReplayQuestion, Vec<PeerId>),
    /// All replays are over, and these were restarted.
    Over(Vec<PeerId>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Idle,
    Repair,
    Replay,
    Over,
}

/// See the module's documentation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplaysEnd {
    number: u64,
    stage: Stage,
    missing: BTreeSet<PeerId>,
    restarted: BTreeSet<PeerId>,
}

impl ReplaysEnd {
    /// Nobody is asked. Questions have numbers above this one.
    pub fn new(number: u64) -> Self {
        let (missing, restarted) = (BTreeSet::new(), BTreeSet::new());
        Self { number, stage: Stage::Idle, missing, restarted }
    }

    /// All sets that had failed have reported that their replays are complete. `all` who run or
    /// will run again; of them those that were `restarted`.
    pub fn begin(
        &mut self,
        all: impl IntoIterator<Item = PeerId>,
        restarted: impl IntoIterator<Item = PeerId>,
    ) -> Option<ReplayStep> {
        self.restarted = restarted.into_iter().collect();
        self.ask(Stage::Repair, all.into_iter().collect())
    }

    /// A set has failed: nothing of what was answered holds.
    pub fn void(&mut self) {
        self.stage = Stage::Idle;
        self.missing.clear();
    }

    /// Is somebody being asked?
    pub fn is_asking(&self) -> bool {
        matches!(self.stage, Stage::Repair | Stage::Replay)
    }

    /// Are all replays over, and has no set failed since?
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// What this rank has not answered: to ask it again when it has connected again.
    pub fn open_question(&self, rank: PeerId) -> Option<ReplayQuestion> {
        self.missing.contains(&rank).then_some(self.question())
    }

    /// `rank` says yes to a question.
    pub fn answered(&mut self, rank: PeerId, number: u64) -> Option<ReplayStep> {
        if !self.is_asking() || number != self.number {
            return None;
        }
        self.is_not_missing(rank)
    }

    /// `rank` has ended for good: nothing that it has received matters any more.
    pub fn ended(&mut self, rank: PeerId) -> Option<ReplayStep> {
        self.restarted.remove(&rank);
        self.is_not_missing(rank)
    }

    fn is_not_missing(&mut self, rank: PeerId) -> Option<ReplayStep> {
        let was_missing = self.missing.remove(&rank);
        (was_missing && self.missing.is_empty()).then(|| self.next()).flatten()
    }

    fn next(&mut self) -> Option<ReplayStep> {
        match self.stage {
            Stage::Repair => self.ask(Stage::Replay, self.restarted.clone()),
            Stage::Replay => {
                self.stage = Stage::Over;
                Some(ReplayStep::Over(self.restarted.iter().copied().collect()))
            }
            Stage::Idle | Stage::Over => None,
        }
    }

    fn question(&self) -> ReplayQuestion {
        ReplayQuestion { number: self.number, replay: self.stage == Stage::Replay }
    }

    fn ask(&mut self, stage: Stage, asked: BTreeSet<PeerId>) -> Option<ReplayStep> {
        self.number += 1;
        self.stage = stage;
        self.missing = asked;
        if self.missing.is_empty() {
            return self.next();
        }
        Some(ReplayStep::Ask(self.question(), self.missing.iter().copied().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PeerId = PeerId(0);
    const B: PeerId = PeerId(1);
    const C: PeerId = PeerId(2);

    fn ask(number: u64, replay: bool, of: &[PeerId]) -> Option<ReplayStep> {
        Some(ReplayStep::Ask(ReplayQuestion { number, replay }, of.to_vec()))
    }

    #[test]
    fn n1_the_restarted_are_asked_when_all_channels_are_repaired() {
        let mut end = ReplaysEnd::new(4);
        assert_eq!(end.begin([A, B, C], [B]), ask(5, false, &[A, B, C]));
        assert_eq!(end.answered(B, 5), None);
        assert_eq!(end.answered(A, 5), None);
        assert!(end.is_asking() && !end.is_over());
        assert_eq!(end.answered(C, 5), ask(6, true, &[B]));
        assert_eq!(end.answered(B, 6), Some(ReplayStep::Over(vec![B])));
        assert!(end.is_over() && !end.is_asking());
    }

    #[test]
    fn n1_a_set_that_fails_makes_all_answers_void() {
        let mut end = ReplaysEnd::new(0);
        assert!(end.begin([A, B], [B]).is_some());
        assert_eq!(end.answered(A, 1), None);
        end.void();
        assert_eq!((end.answered(B, 1), end.is_asking()), (None, false));
        assert_eq!(end.begin([A, B], [A, B]), ask(2, false, &[A, B]));
        assert_eq!(end.answered(B, 1), None, "to the question before");
        assert_eq!(end.answered(B, 2), None);
        assert_eq!(end.answered(A, 2), ask(3, true, &[A, B]));
        end.void();
        assert_eq!((end.answered(A, 3), end.answered(B, 3)), (None, None));
        assert!(!end.is_over());
    }

    #[test]
    fn n2_what_is_not_an_answer_changes_nothing() {
        let mut end = ReplaysEnd::new(0);
        assert_eq!(end.answered(A, 0), None);
        assert!(end.begin([A, B], [B]).is_some());
        let before = end.clone();
        assert_eq!(
            (end.answered(C, 1), end.answered(A, 0), end.answered(A, 2)),
            (None, None, None)
        );
        assert_eq!(end, before);
        assert_eq!(end.answered(A, 1), None);
        assert_eq!((end.answered(A, 1), end.is_asking()), (None, true), "twice is once");
        assert_eq!((end.open_question(A), end.open_question(B).map(|q| q.number)), (None, Some(1)));
    }

    #[test]
    fn who_has_ended_is_not_waited_for() {
        let mut end = ReplaysEnd::new(0);
        assert!(end.begin([A, B], [B]).is_some());
        assert_eq!(end.ended(A), None);
        assert_eq!(end.answered(B, 1), ask(2, true, &[B]));
        assert_eq!(end.ended(B), Some(ReplayStep::Over(vec![])));
        assert_eq!(ReplaysEnd::new(0).begin([], []), Some(ReplayStep::Over(vec![])), "nobody is");
    }
}
