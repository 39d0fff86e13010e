//! Sets that share memory: words that they count in, and rings that can be seen to be empty.

use crate::options::Planted;
use crate::world::World;
use rustbtl_coordination::quiescence::{Count, Input, Station};

/// How many have come in whatever line the word counts.
fn come(word: Count) -> usize {
    (1..).take_while(|&n| word.met(word.line(), n).is_some()).count()
}

impl World {
    /// One more has come.
    pub(super) fn come(&mut self, rank: usize, (line, station): (u64, Station), open: bool) {
        let planted = self.shared.options.planted;
        let set = self.shared.options.sets[rank];
        let word = &mut self.lines.words.entry(set).or_default()[station as usize];
        let open = open && planted != Some(Planted::OpenNotTold);
        let stale = if word.line() < line { come(*word) } else { 0 };
        // Processes of an older line change nothing.
        *word = word.come(line, open).unwrap_or(*word);
        if planted == Some(Planted::OldCountsCount) {
            for _ in 0..stale {
                *word = word.come(line, false).unwrap_or(*word);
            }
        }
    }

    /// Is all that was put into the rings of this process taken out?
    fn rings_are_empty(&self, rank: usize) -> bool {
        let members = self.members(self.shared.options.sets[rank]);
        let mut net = self.net.borrow_mut();
        members.iter().all(|&from| net.wire(from, rank).frames.is_empty())
    }

    /// The driver's look at the words.
    pub(super) fn count(&mut self, rank: usize) {
        let planted = self.shared.options.planted;
        let engine = &self.processes[rank].engine;
        let has_left = engine.is_set_drained() || planted == Some(Planted::CameEarly);
        if self.lines.threads[rank].machine.wants_left() && has_left {
            let open = engine.has_internal_in_flight();
            self.machine(rank, Input::Left { open });
        }
        let Some((line, station)) = self.lines.threads[rank].machine.awaits() else { return };
        let set = self.shared.options.sets[rank];
        let n = self.members(set).len();
        let word = self.lines.words.entry(set).or_default()[station as usize];
        let empty = station == Station::Pictured
            || planted == Some(Planted::RingsNotEmptied)
            || self.rings_are_empty(rank);
        if let Some(open) = word.met(line, n).filter(|_| empty) {
            match station {
                Station::Left if !open => self.lines.report.counted[0] += 1,
                Station::Silent => self.lines.report.counted[1] += 1,
                _ => {}
            }
            self.machine(rank, Input::Met { line, station, open });
        }
    }
}
