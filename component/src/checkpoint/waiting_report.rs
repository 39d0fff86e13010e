//! The coordinator asks how long the program has waited inside MPI, and what it has moved.

use crate::checkpoint::state::Checkpoint;
use crate::engine::shared::ExclusiveGuard;
use crate::sync::waiting::WAITING;
use rustbtl_coordination::control::FromRank;

impl Checkpoint {
    /// Answer. Somebody may decide by the next one what it is to be taken for: it has to be exact
    /// from now on.
    pub(crate) fn report_waiting(&mut self, sample: u32, taken: &mut Option<ExclusiveGuard>) {
        WAITING.watch(true);
        let messages = self.with(taken, |driver| driver.engine.counters().messages());
        let waited_ns = self.tick_rate.ns(WAITING.ticks());
        self.send(&FromRank::Waited { sample, waited_ns, messages });
    }
}
