//! Sets that are lost, and that go back to a line. Part of [`Lines`].

use super::{Line, Lines, SchedulerError, Why};
use crate::lines::Output;
use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::BTreeSet;

impl Lines {
    pub(super) fn on_lost(&mut self, rank: PeerId) -> Result<(), SchedulerError> {
        self.rank(rank)?.lost = true;
        let of_it = |line: &Line| line.ranks.contains(&rank);
        let lines: Vec<u64> =
            self.lines.iter().filter(|(_, line)| of_it(line)).map(|(&number, _)| number).collect();
        lines.into_iter().for_each(|number| self.abort(number, Why::Lost(rank)));
        Ok(())
    }

    pub(super) fn on_back(&mut self, id: SetId, line: u64) -> Result<(), SchedulerError> {
        let set = self.sets.get_mut(&id).ok_or(SchedulerError::Set(id))?;
        set.lost = false;
        set.behind = true;
        // Whatever its ranks have said was in an earlier life.
        set.late.clear();
        // It comes to MPI_Finalize again.
        set.finishing = false;
        let younger: BTreeSet<u64> = set.kept.iter().copied().filter(|kept| *kept > line).collect();
        set.kept.retain(|kept| *kept <= line);
        self.drop_unused(younger);
        Ok(())
    }

    /// L8.
    pub(super) fn on_all_back(&mut self, line: u64) -> Result<(), SchedulerError> {
        if !self.globals.contains(&line) {
            return Err(SchedulerError::NotGlobal(line));
        }
        let under_way: Vec<u64> = self.lines.keys().copied().collect();
        under_way.into_iter().for_each(|number| self.abort(number, Why::AllBack));
        let mut younger: BTreeSet<u64> = self.globals.iter().copied().collect();
        self.globals.retain(|global| *global <= line);
        for set in self.sets.values_mut() {
            set.lost = true;
            younger.extend(&set.kept);
            set.kept.retain(|kept| *kept <= line);
            // It may have had so many younger ones of its own that this one was none of its any
            // more.
            if set.kept.back() != Some(&line) {
                set.kept.push_back(line);
            }
        }
        self.drop_unused(younger);
        Ok(())
    }

    /// Of these lines those that neither the job nor a set can go back to any more.
    pub(super) fn drop_unused(&mut self, lines: BTreeSet<u64>) {
        for line in lines {
            let of_a_set = self.sets.values().any(|set| set.kept.contains(&line));
            if !of_a_set && !self.globals.contains(&line) {
                self.outputs.push_back(Output::Drop { line });
            }
        }
    }
}
