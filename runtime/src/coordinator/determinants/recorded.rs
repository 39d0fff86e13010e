//! What ranks report that they have recorded. Part of [`Determinants`]: no I/O.

use crate::coordinator::determinants::Determinants;
use crate::coordinator::determinants::piggybacked::OWN_SET;
use rustbtl_coordination::determinants::rank_batch::{self, Recorded};
use rustbtl_fragments::ids::{Incarnation, PeerId};

impl Determinants {
    /// A rank has recorded something: determinants of its own, and which places of other sets were
    /// piggybacked to it (`piggybacked`, 3).
    pub(super) fn recorded(
        &mut self,
        rank: PeerId,
        incarnation: Incarnation,
        from: u64,
        bytes: &[u8],
    ) {
        let Some(known) = self.ranks.get(&rank).copied() else { return };
        if known.incarnation != incarnation {
            return;
        }
        let records = match rank_batch::read_recorded(bytes) {
            Ok(records) => records,
            Err(error) => return self.protocol_error(rank, &error.to_string()),
        };
        let is_own = |recorded: &Recorded| match recorded {
            Recorded::Received(places) | Recorded::Named(places) => {
                places.set == known.set && places.incarnation >= incarnation
            }
            Recorded::Own(_) => false,
        };
        if records.iter().any(|(_, recorded)| is_own(recorded)) {
            return self.protocol_error(rank, OWN_SET);
        }
        self.open(known.set, incarnation);
        let Some(of) = self.sets.get_mut(&known.set) else { return };
        if of.order.incarnation() != incarnation {
            return;
        }
        let (before, last) = (of.order.next(), records.last().map(|(at, _)| *at));
        let mut numbers = from..;
        for (at, recorded) in records {
            match recorded {
                Recorded::Own(determinant) => {
                    let number = numbers.next().unwrap_or(u64::MAX);
                    of.order.add_own(rank, number, at, determinant);
                }
                Recorded::Received(places) => of.order.add_received_places(at, places),
                Recorded::Named(places) => of.order.add_received_name(at, places),
            }
        }
        of.waits(rank, last);
        self.persist_new(known.set, before);
        self.settle(known.set);
    }
}
