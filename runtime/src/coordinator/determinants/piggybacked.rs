//! Determinants that messages of one set (A) have piggybacked to another one (B). Part of
//! [`Determinants`]: no I/O.
//!
//! Source: docs/adr/0019, 0047. They take one place in B's order. One message of B's rank reports
//! both: the place, and what of A's order it holds.
//!
//! 1. When all places of B before it are here, what the place holds is added to A's order and
//!    persisted; when A's order goes so far the place counts, is persisted, and B is notified. It
//!    does not go so far where places of A name what a third set had recorded, and that is not
//!    here.
//! 2. Of another incarnation than A's present one nothing is replayed: the place counts if that
//!    was here when the incarnation ended.
//! 3. Where nobody waits for the answer, B only says which places of A its place holds (ADR 0032):
//!    A sends what is in them itself. The place counts when A's order goes so far. If A fails
//!    before that, the fence has B send the content.

use crate::coordinator::determinants::Determinants;
use rustbtl_coordination::determinants::{Availability, Piggybacked, PiggybackedPlaces, Received};
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use std::collections::BTreeSet;

/// It never does, nor does a set name what it has recorded itself, but for what an earlier
/// incarnation of it had, which others have named to it.
fn is_of_others(piggybacked: &Piggybacked, receiver: SetId) -> bool {
    let (of, incarnation) = (piggybacked.set, piggybacked.incarnation);
    let is_earlier = |places: &PiggybackedPlaces| places.incarnation < incarnation;
    of != receiver && piggybacked.received().all(|places| places.set != of || is_earlier(places))
}

/// Why such a message is refused.
pub(super) const OWN_SET: &str = "its own set has piggybacked something to it";

impl Determinants {
    /// A rank has recorded what was piggybacked to it.
    pub(super) fn piggybacked(
        &mut self,
        rank: PeerId,
        incarnation: Incarnation,
        at: u64,
        bytes: &[u8],
    ) {
        let Some(known) = self.ranks.get(&rank).copied() else { return };
        if known.incarnation != incarnation {
            return;
        }
        // The place stays empty. So nothing that follows it in this incarnation of the set is ever
        // stable, no checkpoint of it is stored, and who waits for what it has of another set waits
        // until it fails itself. A damaged determinant of its own has the same effect.
        let piggybacked = match Piggybacked::decode(bytes) {
            Ok(piggybacked) if is_of_others(&piggybacked, known.set) => piggybacked,
            Ok(_) => return self.protocol_error(rank, OWN_SET),
            Err(error) => return self.protocol_error(rank, &error.to_string()),
        };
        self.open(known.set, incarnation);
        let Some(of) = self.sets.get_mut(&known.set) else { return };
        if of.order.incarnation() != incarnation {
            return;
        }
        of.order.add_received(at, piggybacked);
        of.waits(rank, Some(at));
        self.settle(known.set);
    }

    /// There is something new in the order of this set: what its next places hold is added to the
    /// orders that it belongs to, and the places count (1). The next places of those sets may have
    /// waited for that.
    pub(super) fn settle(&mut self, set: SetId) {
        match &mut self.unsettled {
            Some(unsettled) => drop(unsettled.insert(set)),
            None => self.settle_all(vec![set]),
        }
    }

    /// The same for several.
    pub(super) fn settle_all(&mut self, mut todo: Vec<SetId>) {
        todo.append(&mut self.released);
        if todo.is_empty() && self.gated.is_empty() {
            return;
        }
        let mut changed = BTreeSet::new();
        while let Some(set) = todo.pop() {
            changed.insert(set);
            while let Some((at, received)) =
                self.sets.get_mut(&set).and_then(|of| of.order.next_received())
            {
                match received {
                    Received::Places(places) | Received::Name(places) => {
                        match self.availability(&places) {
                            Availability::Here => self.place_counts(set, at),
                            Availability::NotYet => {
                                self.wait_for(set, &places);
                                break;
                            }
                            Availability::Lost => {
                                self.names_lost(set, &places);
                                break;
                            }
                        }
                    }
                    Received::Content(piggybacked) => {
                        // Its next places may hold what is here.
                        todo.push(piggybacked.set);
                        self.merge(piggybacked);
                    }
                }
            }
            // Not otherwise: orders that wait for each other, by whatever mistake, would have
            // each other looked at for ever.
            if let Some(of) = self.sets.get_mut(&set)
                && of.order.next() > of.looked_at
            {
                of.looked_at = of.order.next();
                todo.append(&mut of.waited_for_by);
            }
        }
        self.ask_for_gated(&changed);
        changed.into_iter().for_each(|set| self.flush(set));
        self.check_fences();
        self.release_images();
    }

    fn place_counts(&mut self, set: SetId, at: u64) {
        if let Some(of) = self.sets.get_mut(&set) {
            of.order.skip(at);
        }
        self.persist_new(set, at);
    }

    /// The next place of this set waits until another order goes so far. If there is no such order
    /// yet, or one of an incarnation before, it is looked at again when it begins.
    fn wait_for(&mut self, set: SetId, places: &PiggybackedPlaces) {
        match self.sets.get_mut(&places.set) {
            Some(of) if !of.waited_for_by.contains(&set) => of.waited_for_by.push(set),
            Some(_) => {}
            None => self.released.push(set),
        }
    }

    /// Into the order of its set, which need not continue by that.
    fn merge(&mut self, piggybacked: Piggybacked) {
        let set = piggybacked.set;
        if self.begins_order(&piggybacked) {
            self.open(set, piggybacked.incarnation);
        }
        let Some(of) = self.sets.get_mut(&set) else { return };
        let before = of.order.next();
        of.order.add_piggybacked(piggybacked);
        self.persist_new(set, before);
    }

    /// Nothing of this incarnation of its set is here yet, and it is the present one. Its ranks may
    /// have sent nothing so far. If they are lost they may not even have connected to a coordinator
    /// that has just been started: nothing at all is known only of a first incarnation, since each
    /// rollback is persisted (`fences`).
    fn begins_order(&self, piggybacked: &Piggybacked) -> bool {
        let (set, incarnation) = (piggybacked.set, piggybacked.incarnation);
        let known = self.sets.get(&set).map(|of| of.order.incarnation());
        if known.is_some_and(|known| known >= incarnation) {
            return false;
        }
        let mut ranks = self.ranks.values().filter(|rank| rank.set == set).peekable();
        (known.is_none() || ranks.peek().is_some())
            && ranks.all(|rank| rank.incarnation == incarnation)
    }
}
