//! What messages of one set (A) have carried to another one (B). Part of [`Determinants`]: no I/O.
//!
//! Source: docs/adr/0019. It takes one place in B's order, and one message of B's rank says both:
//! the place, and what of A's order it holds.
//!
//! 1. What the place holds goes into A's order, and is noted, when all places of B before it are
//!    here; then the place counts, is noted, and B is told. Not earlier: of places of A that hold
//!    something of B (`Piggybacked` without an entry) it is not known how much that is, only that B
//!    had recorded it before. If A's order went on over them while something of B before is
//!    missing, and B fell, A's order would seem to have what it has not, and B would not be told.
//! 2. Of another life than A's present one there is nothing to be repeated: only the place counts.

use crate::coordinator::determinants::Determinants;
use rustbtl_coordination::determinants::Piggybacked;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use std::collections::BTreeSet;

impl Determinants {
    /// A rank has recorded what was carried to it.
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
        // The place stays empty: nothing of this life of the set that follows it is ever stable, no
        // line of it is stored, and who waits for what it has of another set waits until it falls
        // itself. With a determinant of its own that is damaged it is the same.
        let piggybacked = match Piggybacked::decode(bytes) {
            Ok(piggybacked) if piggybacked.set != known.set => piggybacked,
            Ok(_) => return self.protocol_error(rank, "its own set has carried something to it"),
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

    /// There is something new in the order of this set: what its next places hold goes where it
    /// belongs, and they count (1). That may be what the next places of those sets wait for.
    pub(super) fn settle(&mut self, set: SetId) {
        let (mut todo, mut changed) = (vec![set], BTreeSet::new());
        while let Some(set) = todo.pop() {
            changed.insert(set);
            while let Some((at, piggybacked)) =
                self.sets.get_mut(&set).and_then(|of| of.order.next_received())
            {
                let sender = piggybacked.set;
                if self.merge(piggybacked) {
                    todo.push(sender);
                }
                if let Some(of) = self.sets.get_mut(&set) {
                    of.order.skip(at);
                }
                self.persist_new(set, at);
            }
        }
        changed.into_iter().for_each(|set| self.flush(set));
        self.check_fences();
        self.release_images();
    }

    /// True: more of the order of the set that it is of is here.
    fn merge(&mut self, piggybacked: Piggybacked) -> bool {
        let set = piggybacked.set;
        if self.begins_order(&piggybacked) {
            self.open(set, piggybacked.incarnation);
        }
        let Some(of) = self.sets.get_mut(&set) else { return false };
        let before = of.order.next();
        of.order.add_piggybacked(piggybacked);
        let more = of.order.next() > before;
        self.persist_new(set, before);
        more
    }

    /// Of this life of its set nothing is here yet, and it is the present one. Its ranks may have
    /// shipped nothing so far, and not even have come to a coordinator that has just been started,
    /// if they are lost: nothing at all is known of a set only in its first life here, since
    /// whoever goes back is noted (`fences`).
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
