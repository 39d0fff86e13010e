//! Sets that share memory: words that they count in, and rings that can be seen to be empty.

use crate::options::Planted;
use crate::world::World;
use rustbtl_coordination::quiescence::{CounterPhase, Input, PhaseCounter};

/// How many have arrived in whatever checkpoint the word counts.
fn arrived(word: PhaseCounter) -> usize {
    (1..).take_while(|&n| word.all_arrived(word.checkpoint(), n).is_some()).count()
}

impl World {
    /// One more has arrived.
    pub(super) fn arrive(
        &mut self,
        rank: usize,
        (checkpoint, phase): (u64, CounterPhase),
        open: bool,
    ) {
        let planted = self.shared.options.planted;
        let set = self.shared.options.sets[rank];
        let word = &mut self.checkpoints.words.entry(set).or_default()[phase as usize];
        let open = open && planted != Some(Planted::InFlightNotReported);
        let stale = if word.checkpoint() < checkpoint { arrived(*word) } else { 0 };
        // Processes of an older checkpoint change nothing.
        *word = word.arrive(checkpoint, open).unwrap_or(*word);
        if planted == Some(Planted::OldCountsCount) {
            for _ in 0..stale {
                *word = word.arrive(checkpoint, false).unwrap_or(*word);
            }
        }
    }

    /// Is all that was put into the rings of this process taken out?
    fn rings_are_empty(&self, rank: usize) -> bool {
        let members = self.members(self.shared.options.sets[rank]);
        let mut net = self.net.borrow_mut();
        members.iter().all(|&from| net.wire(from, rank).frames.is_empty())
    }

    /// The driver polls the words.
    pub(super) fn count(&mut self, rank: usize) {
        let planted = self.shared.options.planted;
        let engine = &self.processes[rank].engine;
        let has_left = engine.is_set_drained() || planted == Some(Planted::ArrivedEarly);
        if self.checkpoints.threads[rank].machine.wants_drained() && has_left {
            let open = engine.has_internal_in_flight();
            self.machine(rank, Input::Drained { in_flight: open });
        }
        let Some((checkpoint, phase)) = self.checkpoints.threads[rank].machine.awaited_phase()
        else {
            return;
        };
        let set = self.shared.options.sets[rank];
        let n = self.members(set).len();
        let word = self.checkpoints.words.entry(set).or_default()[phase as usize];
        let empty = phase == CounterPhase::SnapshotTaken
            || planted == Some(Planted::RingsNotEmptied)
            || self.rings_are_empty(rank);
        if let Some(open) = word.all_arrived(checkpoint, n).filter(|_| empty) {
            match phase {
                CounterPhase::Drained if !open => self.checkpoints.report.counted[0] += 1,
                CounterPhase::Quiescent => self.checkpoints.report.counted[1] += 1,
                _ => {}
            }
            self.machine(rank, Input::AllArrived { checkpoint, phase, in_flight: open });
        }
    }
}
