//! Before a failed set learns what it has to replay: what others have of it.
//!
//! Source: docs/adr/0019. Every rank that may have accepted something of the failed incarnation
//! reports that it accepts no more of it, and how far its own set had recorded then. When the
//! coordinator has all that, it has everything of the failed incarnation that anybody alive depends
//! on.
//!
//! Invariants:
//! * F1 It is complete when all who were asked have answered or have failed themselves, and the
//!   coordinator has the order of every set that answered as far as the answer says.
//! * F2 An answer about another incarnation, of somebody who was not asked, or of an incarnation of
//!   the answering set that is over, changes nothing.

use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use std::collections::BTreeMap;

/// Somebody who was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Asked {
    set: SetId,
    incarnation: Incarnation,
    /// All before this place were recorded before the answer. None: it has not come.
    upto: Option<u64>,
}

/// See the module's documentation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fence {
    /// Incarnations of the failed set before this one are over.
    before: Incarnation,
    asked: BTreeMap<PeerId, Asked>,
}

impl Fence {
    /// Of a set that begins this incarnation. `asked`: rank, its set, and the incarnation it runs
    /// in.
    pub fn new(
        before: Incarnation,
        asked: impl IntoIterator<Item = (PeerId, SetId, Incarnation)>,
    ) -> Self {
        let asked = asked
            .into_iter()
            .map(|(rank, set, incarnation)| (rank, Asked { set, incarnation, upto: None }));
        Self { before, asked: asked.collect() }
    }

    /// The incarnation that begins.
    pub fn before(&self) -> Incarnation {
        self.before
    }

    /// Who has not answered.
    pub fn missing(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.asked.iter().filter(|(_, asked)| asked.upto.is_none()).map(|(&rank, _)| rank)
    }

    /// `rank`, of this incarnation, accepts nothing of incarnations before `before` any more; what
    /// its set had recorded by then lies before `upto`.
    pub fn answered(
        &mut self,
        rank: PeerId,
        before: Incarnation,
        incarnation: Incarnation,
        upto: u64,
    ) {
        if before < self.before {
            return;
        }
        let asked = self.asked.get_mut(&rank);
        if let Some(asked) = asked.filter(|asked| asked.incarnation == incarnation) {
            asked.upto = Some(asked.upto.map_or(upto, |known| known.max(upto)));
        }
    }

    /// This set has failed, too: what it accepted is lost with it.
    pub fn set_failed(&mut self, set: SetId) {
        self.asked.retain(|_, asked| asked.set != set);
    }

    /// Sets whose orders are not as far as their answers say.
    pub fn behind(
        &self,
        next: impl Fn(SetId, Incarnation) -> Option<u64>,
    ) -> impl Iterator<Item = SetId> {
        let is_behind = move |asked: &Asked| {
            let here = |upto| upto == 0 || next(asked.set, asked.incarnation) >= Some(upto);
            asked.upto.is_some_and(|upto| !here(upto))
        };
        self.asked.values().filter(move |asked| is_behind(asked)).map(|asked| asked.set)
    }

    /// F1. `next`: all before this place of the order of a set in this incarnation are here; None:
    /// of another incarnation of it, or nothing of it.
    pub fn is_complete(&self, next: impl Fn(SetId, Incarnation) -> Option<u64>) -> bool {
        self.missing().next().is_none() && self.behind(next).next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CURRENT: Incarnation = Incarnation(3);
    const A: SetId = SetId(0);
    const B: SetId = SetId(2);

    fn fence() -> Fence {
        let first = Incarnation(0);
        let ranks = [(PeerId(0), A, first), (PeerId(1), A, first), (PeerId(2), B, Incarnation(1))];
        Fence::new(CURRENT, ranks)
    }

    #[test]
    fn f1_it_is_complete_with_all_answers_and_all_that_they_speak_of() {
        let mut fence = fence();
        fence.answered(PeerId(0), CURRENT, Incarnation(0), 5);
        fence.answered(PeerId(1), CURRENT, Incarnation(0), 7);
        assert_eq!(fence.missing().collect::<Vec<_>>(), [PeerId(2)]);
        assert!(!fence.is_complete(|_, _| Some(100)));
        fence.answered(PeerId(2), CURRENT, Incarnation(1), 0);
        assert!(!fence.is_complete(|_, _| None), "set 2 has recorded nothing, set 0 has");
        assert!(!fence.is_complete(|_, _| Some(6)));
        assert_eq!(fence.behind(|_, _| Some(6)).collect::<Vec<_>>(), [A], "rank 1's");
        assert!(fence.is_complete(|set, _| (set == A).then_some(7)));
    }

    #[test]
    fn f1_a_rank_that_fails_need_not_answer() {
        let mut fence = fence();
        fence.answered(PeerId(2), CURRENT, Incarnation(1), 0);
        fence.set_failed(A);
        assert!(fence.is_complete(|_, _| None));
    }

    #[test]
    fn f2_what_is_not_an_answer_changes_nothing() {
        let mut fence = fence();
        let before = fence.clone();
        fence.answered(PeerId(0), Incarnation(2), Incarnation(0), 5);
        fence.answered(PeerId(9), CURRENT, Incarnation(0), 5);
        fence.answered(PeerId(2), CURRENT, Incarnation(0), 5);
        assert_eq!(fence, before);
    }
}
