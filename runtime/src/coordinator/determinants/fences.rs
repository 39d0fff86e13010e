//! What others have received of a failed set. Part of [`Determinants`]: no I/O.
//!
//! Source: docs/adr/0019, 5; the rules are those of coordination's `Fence`. The job decides who is
//! asked, and is notified when nobody is waited for any more.
//!
//! 1. The order of the failed incarnation stays until the next one is sent what is in it: what
//!    others have received of it is added to that order. It is there, and persisted, before anybody
//!    is asked.
//! 2. Who has not answered is asked again when it connects again: the question, or the answer, may
//!    be lost with an agent. Two answers do no harm.

use crate::coordinator::determinants::tables::Fencing;
use crate::coordinator::determinants::{Determinants, Out};
use rustbtl_coordination::control::ToRank;
use rustbtl_coordination::determinants::Fence;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};

impl Determinants {
    /// A set has failed in the incarnation `ran_in`, and will begin `before`. `asked`: all that may
    /// have received something of it, their sets, and the incarnations that they run in.
    pub fn fence(
        &mut self,
        set: SetId,
        ran_in: Incarnation,
        before: Incarnation,
        asked: Vec<(PeerId, SetId, Incarnation)>,
    ) {
        for fencing in self.fences.values_mut() {
            fencing.fence.set_failed(set);
        }
        self.drop_deferred_images(set);
        // It may have sent nothing yet that others have.
        if !self.sets.contains_key(&set) {
            self.start(set, ran_in, Vec::new());
        }
        for &(rank, ..) in &asked {
            self.out.push(Out::Rank(rank, ToRank::Fence { set, before }));
        }
        let fencing = Fencing { fence: Fence::new(before, asked), reported: false };
        self.fences.insert(set, fencing);
        self.check_fences();
    }

    /// An answer.
    pub(super) fn fenced(
        &mut self,
        rank: PeerId,
        set: SetId,
        before: Incarnation,
        incarnation: Incarnation,
        recorded: u64,
    ) {
        if let Some(fencing) = self.fences.get_mut(&set) {
            fencing.fence.answered(rank, before, incarnation, recorded);
            self.check_fences();
        }
    }

    /// This rank has connected (2).
    pub(super) fn repeat_fences(&mut self, rank: PeerId) {
        for (&set, Fencing { fence, .. }) in &self.fences {
            if fence.missing().any(|missing| missing == rank) {
                let before = fence.before();
                self.out.push(Out::Rank(rank, ToRank::Fence { set, before }));
            }
        }
    }

    /// Is everything here that the answers name?
    pub(super) fn check_fences(&mut self) {
        let is_complete = |fencing: &Fencing| {
            !fencing.reported
                && fencing.fence.is_complete(|set, incarnation| self.next(set, incarnation))
        };
        let complete = self.fences.iter().filter(|(_, fencing)| is_complete(fencing));
        for set in complete.map(|(&set, _)| set).collect::<Vec<_>>() {
            if let Some(fencing) = self.fences.get_mut(&set) {
                fencing.reported = true;
                self.out.push(Out::Fenced(set, fencing.fence.before()));
            }
        }
        self.check_orphans();
    }
}
