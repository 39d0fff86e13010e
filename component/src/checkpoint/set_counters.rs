//! Checkpoints of a set whose ranks all share this node's memory: they count where others send
//! frames (`coordination::quiescence`, docs/adr/0009).

use crate::checkpoint::state::Checkpoint;
use crate::engine::driver_state::Driver;
use crate::engine::shared::ExclusiveGuard;
use crate::transports::set_memory::{SetCounters, SetMemory};
use rustbtl_coordination::quiescence::{CounterPhase, Input, QuiesceMethod, Quiescence};
use rustbtl_fragments::ids::PeerId;

/// How checkpoints of this set are taken, as its ranks reach each other now. All of them come to
/// the same answer: either each sees all others in the segment, or each misses one.
pub fn choose(quiescence: &mut Quiescence, driver: &Driver, members: &[PeerId]) {
    let together = driver.host.index_of_set(members).is_some();
    quiescence.set_method(if together { QuiesceMethod::Counters } else { QuiesceMethod::Frames });
}

fn set_counters<'a>(driver: &'a Driver, members: &[PeerId]) -> Option<&'a SetCounters> {
    let index = driver.host.index_of_set(members)?;
    driver.host.transports.set_counters(index)
}

impl Checkpoint {
    /// One more has come.
    pub(crate) fn arrive(
        &self,
        taken: &Option<ExclusiveGuard>,
        (id, at): (u64, CounterPhase),
        open: bool,
    ) {
        let counters = taken.as_ref().and_then(|taken| set_counters(taken, &self.members));
        let Some(counters) = counters else { self.fatal("the set counts, and shares no memory") };
        // Others may be in a newer checkpoint: then this one is over, and the coordinator will
        // abort it.
        counters.arrive(id, at, open);
    }

    /// Check how far the others are. True: the state machine got an input.
    pub(crate) fn count(&mut self, taken: &mut Option<ExclusiveGuard>) -> bool {
        let Some(driver) = taken else { return false };
        if self.quiescence.wants_drained() && driver.engine.is_set_drained() {
            let open = driver.engine.has_internal_in_flight();
            self.input(Input::Drained { in_flight: open });
            return true;
        }
        let Some((id, phase)) = self.quiescence.awaited_phase() else { return false };
        let Some(counters) = set_counters(driver, &self.members) else { return false };
        let word = counters.load(phase);
        let Some(open) = word.all_arrived(id, self.members.len()) else { return false };
        if phase != CounterPhase::SnapshotTaken {
            // What the others had put there before they came is there to be seen.
            driver.empty_rings(&self.members);
        }
        self.input(Input::AllArrived { checkpoint: id, phase, in_flight: open });
        true
    }

    /// Is there nothing to do for this process but to wait? (While all payloads are to come in,
    /// others may still ask for one.)
    pub(crate) fn awaits_a_count(&self) -> bool {
        matches!(
            self.quiescence.awaited_phase(),
            Some((_, CounterPhase::Drained | CounterPhase::SnapshotTaken))
        )
    }
}
