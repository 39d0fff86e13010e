//! The determinants of one set as the coordinator has them: in their order, whoever sent them.
//!
//! Source: DESIGN §5; docs/adr/0004, 0019. The ranks of the set send their own, each in the order
//! of its own numbers; ranks of other sets send what was piggybacked to them. What has all places
//! before it is a beginning of the set's order, closed under "happened before".
//!
//! Invariants:
//! * O1 A place is taken once; what is sent again changes nothing.
//! * O2 What another incarnation of the set recorded is not in it.
//! * O3 A place counts when all before it are here, not earlier.
//! * O4 A place that holds what was piggybacked to the set counts when all before it are here and
//!   what it holds is in the order of the set that it is of. So that order has it whenever this one
//!   is reported to go so far, and of a place that another set reports to hold something of its own
//!   ([`Piggybacked`] without an entry) the same is true: it reports so at a later place of its
//!   own.
//! * O5 That is also so where it is only said which places were piggybacked, not what is in them
//!   (docs/adr/0032): the content comes from the set itself, or, if that fails, from whoever
//!   received it, and takes the place of what was said.

use super::Determinant;
use super::log::{DeterminantLog, DeterminantRecord};
use super::piggyback::{Piggybacked, PiggybackedPlaces};
use super::replay_decisions::Numbered;
use rustbtl_fragments::ids::{Incarnation, PeerId};
use std::collections::BTreeMap;

/// What was piggybacked to a set and is at a place of its order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// With its content.
    Content(Piggybacked),
    /// Without.
    Places(PiggybackedPlaces),
}

/// See the module's documentation.
#[derive(Debug)]
pub struct SetOrder {
    incarnation: Incarnation,
    log: DeterminantLog,
    /// Came before others that have a place before theirs. None: nothing that is replayed.
    early: BTreeMap<u64, Option<(PeerId, Numbered)>>,
    /// What was piggybacked to the set, by the places that hold it and do not count yet.
    received: BTreeMap<u64, Received>,
}

impl SetOrder {
    /// Of a set that runs in this incarnation; `log` has what it inherits.
    pub fn new(incarnation: Incarnation, log: DeterminantLog) -> Self {
        Self { incarnation, log, early: BTreeMap::new(), received: BTreeMap::new() }
    }

    /// The incarnation that it is of.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// What is here in its order.
    pub fn log(&self) -> &DeterminantLog {
        &self.log
    }

    /// The same, to send it.
    pub fn log_mut(&mut self) -> &mut DeterminantLog {
        &mut self.log
    }

    /// All places before this one are here.
    pub fn next(&self) -> u64 {
        self.log.next()
    }

    /// A rank of the set has recorded determinants of consecutive numbers, each with its place.
    pub fn add_recorded(
        &mut self,
        rank: PeerId,
        first: u64,
        records: impl IntoIterator<Item = (u64, Determinant)>,
    ) {
        for (number, (at, determinant)) in (first..).zip(records) {
            self.add_own(rank, number, at, determinant);
        }
    }

    /// A rank of the set has recorded this determinant, its `number`-th, at this place.
    pub fn add_own(&mut self, rank: PeerId, number: u64, at: u64, determinant: Determinant) {
        self.put(at, Some((rank, Numbered { number, determinant })));
        self.advance();
    }

    /// A rank of the set has recorded what was piggybacked to it. It is handed out by
    /// [`Self::next_received`].
    pub fn add_received(&mut self, at: u64, piggybacked: Piggybacked) {
        if at >= self.next() {
            let held = self.received.entry(at);
            let held = held.or_insert_with(|| Received::Places(piggybacked.places()));
            if matches!(held, Received::Places(_)) {
                // O5
                *held = Received::Content(piggybacked);
            }
        }
    }

    /// The same without its content.
    pub fn add_received_places(&mut self, at: u64, places: PiggybackedPlaces) {
        if at >= self.next() {
            self.received.entry(at).or_insert(Received::Places(places));
        }
    }

    /// What the next place holds, if that is all that it waits for. Content is to be put into the
    /// order of the set that it is of, if that is in that incarnation; without it, that order has
    /// to go so far already, or be that of a later incarnation. After that ([`Self::skip`]) the
    /// place counts (O4, O5). Content is handed out once.
    pub fn next_received(&mut self) -> Option<(u64, Received)> {
        let next = self.next();
        // Of those before it others have reported that they hold something.
        while let Some(first) = self.received.first_entry()
            && *first.key() <= next
        {
            if *first.key() == next
                && let Received::Places(places) = first.get()
            {
                return Some((next, Received::Places(*places)));
            }
            let (at, received) = first.remove_entry();
            if at == next {
                return Some((next, received));
            }
        }
        None
    }

    /// Does this order have what was piggybacked of it, or is that of an incarnation that is over?
    /// What others have of one that is over was put into its order before its next one began.
    pub fn has(&self, places: &PiggybackedPlaces) -> bool {
        self.incarnation > places.incarnation
            || self.incarnation == places.incarnation && self.next() >= places.upto
    }

    /// A place that holds what was piggybacked to the set: nothing that it replays.
    pub fn skip(&mut self, at: u64) {
        self.put(at, None);
        self.advance();
    }

    /// What the set's messages piggybacked to another one. False: of another incarnation (O2).
    pub fn add_piggybacked(&mut self, piggybacked: Piggybacked) -> bool {
        if piggybacked.incarnation != self.incarnation {
            return false;
        }
        for (at, entry) in (piggybacked.from..).zip(piggybacked.entries) {
            self.put(at, entry);
        }
        self.advance();
        true
    }

    fn put(&mut self, at: u64, entry: Option<(PeerId, Numbered)>) {
        let next = self.log.next();
        if at == next {
            self.count(entry);
        } else if at > next {
            self.early.entry(at).or_insert(entry);
        }
    }

    /// The next place.
    fn count(&mut self, entry: Option<(PeerId, Numbered)>) {
        match entry {
            Some((rank, numbered)) => self.log.record(rank, numbered),
            None => self.log.skip(),
        }
    }

    fn advance(&mut self) {
        while let Some(first) = self.early.first_entry()
            && *first.key() <= self.log.next()
        {
            let (at, entry) = first.remove_entry();
            // A place before it has come by another way meanwhile.
            if at == self.log.next() {
                self.count(entry);
            }
        }
    }

    /// What a next incarnation replays.
    pub fn history(&self) -> impl Iterator<Item = &DeterminantRecord> + '_ {
        self.log.records()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CallKind, NondetCall, Outcome};
    use super::*;
    use rustbtl_fragments::ids::SetId;

    const SET: SetId = SetId(2);
    const CURRENT: Incarnation = Incarnation(1);

    fn found(place: u32) -> Determinant {
        let call = NondetCall::requests(CallKind::TestAny, 3);
        Determinant::Outcome { call, outcome: Outcome::Requests(vec![place]) }
    }

    fn entry(rank: u32, number: u64, place: u32) -> Option<(PeerId, Numbered)> {
        Some((PeerId(rank), Numbered { number, determinant: found(place) }))
    }

    fn order() -> SetOrder {
        SetOrder::new(CURRENT, DeterminantLog::new(SET, CURRENT, [], 0, 100))
    }

    fn piggybacked(from: u64, entries: Vec<Option<(PeerId, Numbered)>>) -> Piggybacked {
        Piggybacked { set: SET, incarnation: CURRENT, from, entries }
    }

    #[test]
    fn o1_o3_places_count_in_their_order_whoever_sends_them() {
        let mut order = order();
        order.add_recorded(PeerId(3), 0, [(2, found(12))]);
        assert_eq!(order.next(), 0, "O3");
        assert!(order.add_piggybacked(piggybacked(0, vec![entry(2, 0, 10), None])));
        assert_eq!(order.next(), 3);
        // Again, by its own rank: O1.
        order.add_recorded(PeerId(2), 0, [(0, found(10)), (4, found(14))]);
        order.skip(3);
        assert_eq!(order.next(), 5);
        let places: Vec<(u64, u32, u64)> =
            order.history().map(|r| (r.at, r.rank.0, r.numbered.number)).collect();
        assert_eq!(places, [(0, 2, 0), (2, 3, 0), (4, 2, 1)]);
        assert_eq!(order.log().marks().stable, 5);
    }

    #[test]
    fn o2_what_another_incarnation_piggybacked_is_not_in_it() {
        let mut order = order();
        let old =
            Piggybacked { incarnation: Incarnation(0), ..piggybacked(0, vec![entry(2, 0, 1)]) };
        assert!(!order.add_piggybacked(old));
        assert_eq!((order.next(), order.history().count()), (0, 0));
    }

    #[test]
    fn o4_what_was_piggybacked_here_is_due_when_all_before_it_are_here_and_counts_after_that() {
        let theirs =
            |from| Piggybacked { set: SetId(0), ..piggybacked(from, vec![entry(7, from, 1)]) };
        let mut order = order();
        order.add_received(1, theirs(40));
        order.add_received(3, theirs(41));
        assert_eq!(order.next_received(), None);
        order.add_recorded(PeerId(2), 0, [(0, found(10)), (2, found(12))]);
        let content = Received::Content(theirs(40));
        assert_eq!((order.next(), order.next_received()), (1, Some((1, content))), "not 3");
        assert_eq!(order.next_received(), None, "once");
        order.skip(1);
        assert_eq!(order.next(), 3);
        // The set that it is of was faster: it reports that there is something of its own.
        assert!(order.add_piggybacked(piggybacked(2, vec![entry(2, 1, 12), None])));
        assert_eq!((order.next(), order.next_received()), (4, None));
        order.add_received(3, theirs(41));
        assert_eq!(order.next_received(), None, "sent again");
    }

    #[test]
    fn o5_what_is_only_named_is_due_until_it_counts_and_content_takes_its_place() {
        let theirs = Piggybacked { set: SetId(0), ..piggybacked(40, vec![entry(7, 40, 1)]) };
        let (named, mut order) = (Received::Places(theirs.places()), order());
        assert_eq!(theirs.places().upto, 41);
        order.add_received_places(0, theirs.places());
        order.add_received_places(1, theirs.places());
        for _ in 0..2 {
            assert_eq!(order.next_received(), Some((0, named.clone())));
        }
        order.skip(0);
        order.add_received(1, theirs.clone());
        order.add_received_places(1, theirs.places());
        assert_eq!(order.next_received(), Some((1, Received::Content(theirs.clone()))));
        order.skip(1);
        order.add_received_places(1, theirs.places());
        assert_eq!((order.next(), order.next_received()), (2, None), "it counts already");

        let mut of = SetOrder::new(CURRENT, DeterminantLog::new(SetId(0), CURRENT, [], 0, 100));
        let places = |upto| PiggybackedPlaces { upto, ..theirs.places() };
        of.add_own(PeerId(7), 0, 0, found(1));
        assert!(of.has(&places(1)) && !of.has(&places(2)));
        let of_incarnation =
            |number| PiggybackedPlaces { incarnation: Incarnation(number), ..places(9) };
        assert!(of.has(&of_incarnation(0)), "it is over, and everything of it was here");
        assert!(!of.has(&of_incarnation(2)), "it has not begun here");
    }
}
