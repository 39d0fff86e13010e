//! Somebody depends on what only sets had that have failed: an orphan.
//!
//! Source: docs/adr/0047. What a set has recorded and what is not stable, the sets have that it was
//! piggybacked to; who received a message of those has only its name. If a set fails together with
//! all to whom it had piggybacked something, nobody alive may have that, and somebody depend on it.
//! Then nobody can go on but from a checkpoint of all.
//!
//! A set's order is *stuck* where nothing that is still to come can continue it:
//! * N1 The order of a set that runs is stuck only while its next place names what is lost (O6 of
//!   `set_order`), or is in an order that is stuck, and the set has no content of it to send: what
//!   comes next in it, the set sends itself.
//! * N2 That of a set that has failed is stuck if all who were asked have answered, and each of
//!   them whose order is not as far as its answer says is stuck; or as in N1. (If nobody depends on
//!   what is behind, it ends there.)
//! * N3 There is an orphan if a set that was asked is stuck before the place that it answered: that
//!   fence would never be complete.
//!
//! What is named was recorded before, so what is not stuck makes progress.

use super::{Availability, Fence, PiggybackedPlaces, SetOrder};
use rustbtl_fragments::ids::{Incarnation, SetId};
use std::collections::{BTreeMap, BTreeSet};

/// Who depends on what is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Orphan {
    /// This set.
    pub set: SetId,
    /// Its order waits for these, or for what does.
    pub lost: PiggybackedPlaces,
}

/// N3. `fences`: of all sets that have failed.
pub fn find_orphan(
    orders: &BTreeMap<SetId, &SetOrder>,
    fences: &BTreeMap<SetId, &Fence>,
) -> Option<Orphan> {
    let next = |set, incarnation| next(orders, set, incarnation);
    let waits = |fence: &&&Fence| fence.missing().next().is_none() && !fence.is_complete(next);
    // Most often there is none, or it still waits for answers.
    fences.values().find(waits)?;
    let stuck = stuck(orders, fences);
    let of_fence = |fence: &&Fence| fence.behind(next).find(|set| stuck.contains(set));
    let set = fences.values().filter(waits).find_map(of_fence)?;
    let (mut lost, _) = orders.get(&set)?.waits_for()?;
    // What it names may wait itself.
    for _ in orders {
        let of = orders.get(&lost.set).filter(|of| of.availability(&lost) == Availability::NotYet);
        let Some((further, _)) = of.and_then(|of| of.waits_for()) else { break };
        lost = further;
    }
    Some(Orphan { set, lost })
}

fn next(orders: &BTreeMap<SetId, &SetOrder>, set: SetId, of: Incarnation) -> Option<u64> {
    let order = orders.get(&set).filter(|order| order.incarnation() == of);
    order.map(|order| order.next())
}

/// The greatest set of sets to which N1 and N2 apply.
fn stuck(orders: &BTreeMap<SetId, &SetOrder>, fences: &BTreeMap<SetId, &Fence>) -> BTreeSet<SetId> {
    let mut stuck: BTreeSet<SetId> = orders.keys().copied().collect();
    loop {
        let goes_on = |set: &SetId| {
            let waits_for = orders.get(set).and_then(|order| order.waits_for());
            match (waits_for, fences.get(set)) {
                (Some((_, false)), None) => true,
                (Some((places, _)), _) => {
                    let of = orders.get(&places.set);
                    let lost = of.is_some_and(|of| of.availability(&places) == Availability::Lost);
                    !lost && !stuck.contains(&places.set)
                }
                (None, None) => true,
                (None, Some(fence)) => {
                    let next = |set, incarnation| next(orders, set, incarnation);
                    fence.missing().next().is_some()
                        || fence.behind(next).any(|set| !stuck.contains(&set))
                }
            }
        };
        let going: Vec<SetId> = stuck.iter().filter(|set| goes_on(set)).copied().collect();
        if going.is_empty() {
            return stuck;
        }
        for set in going {
            stuck.remove(&set);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CallKind, Determinant, DeterminantLog, NondetCall, Outcome};
    use super::*;
    use rustbtl_fragments::ids::PeerId;

    const FIRST: Incarnation = Incarnation(0);
    const NEXT: Incarnation = Incarnation(1);
    const A: SetId = SetId(0);
    const B: SetId = SetId(1);
    const C: SetId = SetId(2);

    fn order(set: SetId) -> SetOrder {
        SetOrder::new(FIRST, DeterminantLog::new(set, FIRST, [], 0, 100))
    }

    fn places(set: SetId, upto: u64) -> PiggybackedPlaces {
        PiggybackedPlaces { set, incarnation: FIRST, upto }
    }

    fn own(order: &mut SetOrder, at: u64) {
        let call = NondetCall::requests(CallKind::TestAny, 3);
        let found = Determinant::Outcome { call, outcome: Outcome::Requests(vec![0]) };
        order.add_own(PeerId(0), at, at, found);
    }

    /// Of a set, with answers of others.
    fn fence(answers: &[(SetId, Option<u64>)]) -> Fence {
        let asked = answers.iter().map(|&(set, _)| (PeerId(set.0), set, FIRST));
        let mut fence = Fence::new(NEXT, asked);
        for &(set, upto) in answers {
            if let Some(upto) = upto {
                fence.answered(PeerId(set.0), NEXT, FIRST, upto);
            }
        }
        fence
    }

    fn find(orders: [&SetOrder; 3], fences: &[(SetId, &Fence)]) -> Option<Orphan> {
        let orders = [A, B, C].into_iter().zip(orders).collect();
        find_orphan(&orders, &fences.iter().copied().collect())
    }

    #[test]
    fn n3_who_depends_on_what_two_failed_sets_had_is_an_orphan() {
        // A has recorded something and piggybacked it to B, which has named it to C.
        let (a, b, mut c) = (order(A), order(B), order(C));
        c.add_received_name(0, places(A, 1));
        let of_a = fence(&[(C, Some(1))]);
        let orphan = Some(Orphan { set: C, lost: places(A, 1) });
        assert_eq!(find([&a, &b, &c], &[(A, &of_a), (B, &fence(&[(C, Some(1))]))]), orphan);
        // Only A's fence is left.
        assert_eq!(find([&a, &b, &c], &[(A, &of_a)]), orphan);
        // What it has answered does not depend on it.
        let before = fence(&[(C, Some(0))]);
        assert_eq!(find([&a, &b, &c], &[(A, &before), (B, &before)]), None);
    }

    #[test]
    fn n2_as_long_as_somebody_may_have_it_there_is_none() {
        let (mut a, mut b, mut c) = (order(A), order(B), order(C));
        c.add_received_name(0, places(A, 1));
        // B has not answered, or it has, and what it has is on its way.
        let waits = fence(&[(B, None), (C, Some(1))]);
        assert_eq!(find([&a, &b, &c], &[(A, &waits)]), None);
        let comes = fence(&[(B, Some(1)), (C, Some(1))]);
        assert_eq!(find([&a, &b, &c], &[(A, &comes)]), None);
        // Others have reported what it has; its content is still to come.
        b.add_received_places(0, places(A, 1));
        assert_eq!(find([&a, &b, &c], &[(A, &comes)]), None);
        own(&mut a, 0);
        assert_eq!(find([&a, &b, &c], &[(A, &comes)]), None, "it is here");
    }

    #[test]
    fn n2_what_is_lost_of_a_failed_set_s_order_matters_only_if_somebody_depends_on_it() {
        // B had received what A had recorded, and A goes on without that.
        let (a, mut b, mut c) = (order(A), order(B), order(C));
        b.add_received_places(0, places(A, 1));
        let log = DeterminantLog::new(A, NEXT, [], 0, 100);
        let a = a.succeed(NEXT, log);
        let of_b = fence(&[(C, Some(1))]);
        own(&mut c, 0);
        assert_eq!(find([&a, &b, &c], &[(B, &of_b)]), None);
        let mut c = order(C);
        c.add_received_name(0, places(B, 1));
        let orphan = Some(Orphan { set: C, lost: places(A, 1) });
        assert_eq!(find([&a, &b, &c], &[(B, &of_b)]), orphan);
    }

    #[test]
    fn n1_a_set_that_runs_sends_what_others_wait_for() {
        let (a, mut b, mut c) = (order(A), order(B), order(C));
        c.add_received_name(0, places(B, 2));
        let of_a = fence(&[(B, Some(0)), (C, Some(1))]);
        assert_eq!(find([&a, &b, &c], &[(A, &of_a)]), None);
        // Unless it waits itself for what is lost.
        b.add_received_name(0, places(A, 1));
        let of_a = fence(&[(B, Some(0)), (C, Some(1))]);
        let orphan = Some(Orphan { set: C, lost: places(A, 1) });
        assert_eq!(find([&a, &b, &c], &[(A, &of_a)]), orphan);
    }
}
