//! A frame waits for what a third set has recorded. Part of [`Determinants`]: no I/O.
//!
//! Source: docs/adr/0047. Most frames name that and leave; but not those whose determinants cannot
//! be piggybacked (too long, too many, no network). Their set has sent what it has. If its order
//! still does not go so far, it waits for that of another set, which nobody there is in a hurry to
//! send: it is asked.
//!
//! A set is asked once for each place, whoever waits for it.

use crate::coordinator::determinants::{Determinants, Out};
use rustbtl_coordination::control::ToRank;
use rustbtl_coordination::determinants::{Availability, PiggybackedPlaces};
use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::BTreeSet;

impl Determinants {
    /// These sets were looked at. Whose next place holds nothing that is missing waits no more.
    pub(super) fn ask_for_gated(&mut self, looked_at: &BTreeSet<SetId>) {
        for set in self.gated.clone() {
            let waits_for = self.sets.get(&set).and_then(|of| of.order.waits_for());
            match waits_for {
                Some((places, _)) => self.ask_for(places),
                None if looked_at.contains(&set) => drop(self.gated.remove(&set)),
                None => {}
            }
        }
    }

    fn ask_for(&mut self, mut places: PiggybackedPlaces) {
        for _ in 0..=self.sets.len() {
            if self.availability(&places) != Availability::NotYet {
                return;
            }
            // It may wait itself, and have no content to send.
            let waits_for = self.sets.get(&places.set).and_then(|of| of.order.waits_for());
            match waits_for {
                Some((further, true)) => places = further,
                _ => return self.ask(&places),
            }
        }
    }

    fn ask(&mut self, places: &PiggybackedPlaces) {
        let asked = self.asked.entry(places.set).or_default();
        if *asked >= (places.incarnation, places.upto) {
            return;
        }
        *asked = (places.incarnation, places.upto);
        let of_set = self.ranks.iter().filter(|(_, known)| known.set == places.set);
        let ranks: Vec<PeerId> = of_set.map(|(&rank, _)| rank).collect();
        let flush = |rank| Out::Rank(rank, ToRank::FlushDeterminants {});
        self.out.extend(ranks.into_iter().map(flush));
    }
}
