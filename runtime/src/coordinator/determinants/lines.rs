//! What lines have to do with determinants: what they cover, and what they depend on. Part of
//! [`Determinants`]: no I/O.
//!
//! Source: DESIGN §5; docs/adr/0019, 6. A picture depends on everything that was carried to its
//! set before it was taken. If the set went back to it and the sender did, too, and that were lost,
//! the sender would do something else than what the picture has seen.
//!
//! 1. The job hears that an image is stored when everything is here that its set had recorded when
//!    it was taken. A rank says how much that is before it says that it has its picture, by the
//!    same way: it is known.
//! 2. Of a line that is given up, and of a set that has fallen, it does not hear that any more.
//! 3. A coordinator that comes after this one knows of no lines under way, and completes none.

use crate::coordinator::determinants::{Determinants, Out};
use rustbtl_coordination::control::{CheckpointId, FromNode, RankClock, ToNode};
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use std::collections::BTreeMap;

/// What a rank says of its picture.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct AtLine {
    /// Number of its next determinant.
    pub(super) clock: u64,
    /// The life of its set.
    pub(super) incarnation: Incarnation,
    /// What its set had recorded lies before this place.
    pub(super) recorded: u64,
}

impl Determinants {
    /// Clocks of lines that are kept, of which something may still be trimmed.
    pub fn clocks(&self) -> impl Iterator<Item = (CheckpointId, PeerId, u64)> {
        let of = |(&line, clocks): (&CheckpointId, &BTreeMap<PeerId, AtLine>)| {
            let of_line: Vec<_> = clocks.iter().map(|(&rank, at)| (line, rank, at.clock)).collect();
            of_line
        };
        self.clocks.iter().flat_map(of)
    }

    /// As [`Self::clocks`] gave it.
    pub fn set_clock(&mut self, line: CheckpointId, rank: PeerId, clock: u64) {
        let at_line = AtLine { clock, ..AtLine::default() };
        self.clocks.entry(line).or_default().insert(rank, at_line);
    }

    /// The set of `rank` goes back to no line before this one.
    pub fn trim(&mut self, rank: PeerId, line: CheckpointId) {
        let Some(set) = self.ranks.get(&rank).map(|known| known.set) else { return };
        let of_set = |rank: &PeerId| self.ranks.get(rank).is_some_and(|known| known.set == set);
        let Some(all) = self.clocks.get(&line) else { return };
        let clocks: BTreeMap<PeerId, u64> = all
            .iter()
            .filter(|(rank, _)| of_set(rank))
            .map(|(&rank, at)| (rank, at.clock))
            .collect();
        // Told once for each rank of the set.
        for (_, of_line) in self.clocks.range_mut(..=line) {
            of_line.retain(|rank, _| !clocks.contains_key(rank));
        }
        self.clocks.retain(|_, of_line| !of_line.is_empty());
        let Some(of) = self.sets.get_mut(&set).filter(|_| !clocks.is_empty()) else { return };
        of.order.log_mut().trim(&clocks);
        if self.notes {
            self.out.push(Out::NoteAnew(set, of.noted(set, 0)));
        }
        let list = clocks.into_iter().map(|(rank, clock)| RankClock { rank, clock });
        let clocks: Vec<RankClock> = list.collect();
        for keeper in of.order.log().replicas().collect::<Vec<_>>() {
            let less = ToNode::TrimDeterminants { set, clocks: clocks.clone() };
            self.out.push(Out::Agent(keeper.start, less));
        }
    }

    /// Does the image of this rank depend on something that is not here?
    fn is_early(&self, line: CheckpointId, rank: PeerId) -> bool {
        let at_line = self.clocks.get(&line).and_then(|of_line| of_line.get(&rank));
        let (Some(at), Some(known)) = (at_line, self.ranks.get(&rank)) else { return false };
        at.recorded > 0
            && at.incarnation == known.incarnation
            && self.next(known.set, at.incarnation).is_none_or(|next| next < at.recorded)
    }

    /// An image is stored. True: the job does not hear it yet (1).
    pub(super) fn keeps_back(
        &mut self,
        agent: u64,
        line: CheckpointId,
        rank: PeerId,
        message: &FromNode,
    ) -> bool {
        let is_early = self.is_early(line, rank);
        if is_early {
            self.early.insert((line, rank), (agent, message.clone()));
        }
        is_early
    }

    /// Some may not have to wait any more.
    pub(super) fn look_at_images(&mut self) {
        let early = self.early.keys().copied();
        let now: Vec<_> = early.filter(|&(line, rank)| !self.is_early(line, rank)).collect();
        for key in now {
            let kept = self.early.remove(&key);
            self.out.extend(kept.map(|(agent, message)| Out::Hear(agent, message)));
        }
    }

    /// The line will not be (2).
    pub fn aborted(&mut self, line: CheckpointId) {
        self.early.retain(|(of, _), _| *of != line);
    }

    /// This set has fallen (2).
    pub(super) fn forget_images_of(&mut self, set: SetId) {
        let ranks = &self.ranks;
        let of_set = |rank: &PeerId| ranks.get(rank).is_some_and(|known| known.set == set);
        self.early.retain(|(_, rank), _| !of_set(rank));
    }
}
