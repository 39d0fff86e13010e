//! The engine's side of piggybacked determinants (docs/adr/0019): what a frame piggybacks, what
//! is kept of what comes. K1 and K2 are those of `determinants/piggyback.rs`.

use crate::determinants::outbox::{DeterminantBatch, outbox};
use crate::determinants::piggyback::fences;
use crate::determinants::recorder::{RecorderState, flush_soon, order};
use crate::engine::driver_state::Driver;
use crate::engine::host::EngineHost;
use crate::transports::set_memory::Entry;
use rustbtl_coordination::determinants::{Piggybacked, PiggybackedPlaces};
use rustbtl_fragments::host::{PiggybackContent, PiggybackOutcome};
use rustbtl_fragments::ids::{Incarnation, PeerId};
use rustbtl_fragments::send_gate::Recorded;

impl EngineHost {
    /// `Host::piggyback`.
    #[inline(never)]
    pub fn append_piggyback(
        &self,
        (to, incarnation): (PeerId, Incarnation),
        (from, covered): (Recorded, Recorded),
        made: Recorded,
        out: &mut Vec<u8>,
    ) -> PiggybackContent {
        let RecorderState { on, carries, place, base, .. } = &self.record;
        let order = order(place, *base, &self.transports);
        let order = order.filter(|_| *on && *carries);
        let Some(order) = order else { return PiggybackContent::Unavailable };
        let theirs = self.set_of(to).map(|set| (set, incarnation));
        let own = (self.set, self.incarnation);
        order.append(own, theirs, (from.0, covered.0), made.0, out)
    }

    /// `Host::on_piggyback`.
    pub fn keep(&mut self, from: PeerId, bytes: &[u8]) -> PiggybackOutcome {
        let Ok(piggybacked) = Piggybacked::decode(bytes) else { return PiggybackOutcome::Damaged };
        if self.set_of(from) != Some(piggybacked.set) {
            return PiggybackOutcome::Damaged;
        }
        // K2: until it has its place.
        let fences = fences();
        if fences.get(&piggybacked.set).is_some_and(|&before| piggybacked.incarnation < before) {
            return PiggybackOutcome::Refused;
        }
        let RecorderState { on, place, base, known, .. } = &mut self.record;
        // Switched off: nothing is kept any more, by anybody.
        let Some(order) = order(place, *base, &self.transports).filter(|_| *on) else {
            return PiggybackOutcome::Accepted;
        };
        let mut rings = false;
        // K1
        let mut take_place = |places, content: Option<&[u8]>| {
            let mut outbox = outbox();
            rings |= outbox.is_empty();
            let at = order.next();
            order.write(at, Entry::Carried(places));
            outbox.push_back(match content {
                Some(bytes) => DeterminantBatch::Carried { at, places, bytes: bytes.to_vec() },
                None => DeterminantBatch::Named { at, places },
            });
        };
        if !piggybacked.has_own() {
            // K3
            let own = (self.set, self.incarnation);
            let is_third = |places: &&PiggybackedPlaces| (places.set, places.incarnation) != own;
            let third = piggybacked.received().filter(is_third);
            for &places in third {
                if known.is_news_name(&places) {
                    take_place(places, None);
                }
            }
        } else if known.is_news(&piggybacked) {
            take_place(piggybacked.places(), Some(bytes));
        }
        drop(fences);
        if rings {
            flush_soon();
        }
        PiggybackOutcome::Accepted
    }
}

impl Driver {
    /// What others piggyback to here is kept from now on, if it is wanted and can be: recording is
    /// on, and the set has memory to count in. Tells them.
    pub fn accept_piggyback(&mut self) {
        let RecorderState { on, carries, place, base, .. } = &self.host.record;
        if *on && *carries && order(place, *base, &self.host.transports).is_some() {
            self.engine.accept_piggyback(&mut self.host);
        } else {
            self.engine.stop_accepting_piggyback();
        }
    }
}
