//! Sets that depend on what nobody has any more. Part of [`Determinants`]: no I/O.
//!
//! Source: docs/adr/0047; the rules are those of coordination's `find_orphan`.
//!
//! 1. The job is notified once: then all are rolled back, and nobody depends on it.
//! 2. What a failed set depends on that is lost only ends its order, unless somebody alive depends
//!    on what is behind.
//! 3. A coordinator after a failover does not know how far the orders of incarnations went that
//!    were over before: what somebody names of those counts as lost.

use crate::coordinator::determinants::{Determinants, Out};
use rustbtl_coordination::determinants::{
    Availability, Fence, PiggybackedPlaces, SetOrder, find_orphan,
};
use rustbtl_fragments::ids::SetId;
use serde_json::json;
use std::collections::BTreeMap;

impl Determinants {
    /// Is what these places hold here?
    pub(super) fn availability(&self, places: &PiggybackedPlaces) -> Availability {
        let of = self.sets.get(&places.set);
        of.map_or(Availability::NotYet, |of| of.order.availability(places))
    }

    /// The next place of this set names what is lost (2).
    pub(super) fn names_lost(&mut self, set: SetId, lost: &PiggybackedPlaces) {
        if !self.fences.contains_key(&set) {
            self.orphan(set, lost);
        }
    }

    /// Waits a fence for what will never come?
    pub(super) fn check_orphans(&mut self) {
        if self.has_orphan || self.fences.values().all(|fencing| fencing.reported) {
            return;
        }
        let orders = self.sets.iter().map(|(&set, of)| (set, &of.order));
        let orders: BTreeMap<SetId, &SetOrder> = orders.collect();
        let fences = self.fences.iter().map(|(&set, fencing)| (set, &fencing.fence));
        let fences: BTreeMap<SetId, &Fence> = fences.collect();
        if let Some(orphan) = find_orphan(&orders, &fences) {
            self.orphan(orphan.set, &orphan.lost);
        }
    }

    fn orphan(&mut self, set: SetId, lost: &PiggybackedPlaces) {
        if core::mem::replace(&mut self.has_orphan, true) {
            return;
        }
        let of = self.sets.get(&lost.set).map(|of| (of.order.incarnation().0, of.order.next()));
        self.log(json!({
            "event": "orphan", "set": set.0, "lost_set": lost.set.0,
            "lost_incarnation": lost.incarnation.0, "lost_upto": lost.upto,
            "incarnation": of.map(|of| of.0), "received": of.map(|of| of.1),
        }));
        self.out.push(Out::Orphan(set, lost.set));
    }
}
