//! The determinants of one set as the coordinator has them: in their order, whoever sent them.
//!
//! Source: DESIGN §5; docs/adr/0004, 0019, 0047. The ranks of the set send their own, each in the
//! order of its own numbers; ranks of other sets send what was piggybacked to them. What has all
//! places before it is a beginning of the set's order, closed under "happened before".
//!
//! Invariants:
//! * O1 A place is taken once; what is sent again changes nothing.
//! * O2 What another incarnation of the set recorded is not in it.
//! * O3 A place counts when all before it are here, not earlier.
//! * O4 A place that holds what was piggybacked to the set counts when all before it are here and
//!   what it holds is in the order of the set that it is of. So that order has it whenever this one
//!   is reported to go so far. The same is true of a place that others report ([`Piggybacked`]).
//! * O5 That is also so where it is only said which places were piggybacked, not what is in them
//!   (docs/adr/0032): the content comes from the set itself, or, if that fails, from whoever
//!   received it, and takes the place of what was said.
//! * O6 Of an incarnation that is over, only that is there which was in the order when the next one
//!   began. What is named and lies behind that is lost, and the place never counts (docs/adr/0047).

use super::Determinant;
use super::log::{DeterminantLog, DeterminantRecord};
use super::piggyback::{Piggybacked, PiggybackedEntry, PiggybackedPlaces};
use super::replay_decisions::Numbered;
use core::cmp::Ordering;
use rustbtl_fragments::ids::{Incarnation, PeerId};
use std::collections::BTreeMap;

/// What was piggybacked to a set and is at a place of its order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// With its content.
    Content(Piggybacked),
    /// Without: who has received it sends it if it is asked.
    Places(PiggybackedPlaces),
    /// Without: whose place it is has nothing more to send of it.
    Name(PiggybackedPlaces),
}

/// Is what is named in the order of its set?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Availability {
    /// It is.
    Here,
    /// Not yet.
    NotYet,
    /// It never will be (O6).
    Lost,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct SetOrder {
    incarnation: Incarnation,
    /// How far the orders of earlier incarnations went. One that is not here: not known.
    ended: Vec<(Incarnation, u64)>,
    log: DeterminantLog,
    /// Came before others that have a place before theirs. None: nothing that is replayed.
    early: BTreeMap<u64, Option<(PeerId, Numbered)>>,
    /// What was piggybacked to the set, by the places that hold it and do not count yet.
    received: BTreeMap<u64, Received>,
}

impl SetOrder {
    /// Of a set that runs in this incarnation; `log` has what it inherits.
    pub fn new(incarnation: Incarnation, log: DeterminantLog) -> Self {
        let (early, received) = (BTreeMap::new(), BTreeMap::new());
        Self { incarnation, ended: Vec::new(), log, early, received }
    }

    /// The same set in its next incarnation.
    pub fn succeed(&self, incarnation: Incarnation, log: DeterminantLog) -> Self {
        let mut ended = self.ended.clone();
        ended.push((self.incarnation, self.next()));
        Self { ended, ..Self::new(incarnation, log) }
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

    /// A rank of the set has recorded what was named to it: there is no content to come.
    pub fn add_received_name(&mut self, at: u64, places: PiggybackedPlaces) {
        if at >= self.next() {
            self.received.insert(at, Received::Name(places));
        }
    }

    /// The same without its content.
    pub fn add_received_places(&mut self, at: u64, places: PiggybackedPlaces) {
        if at >= self.next() {
            self.received.entry(at).or_insert(Received::Places(places));
        }
    }

    /// What the next place holds, if that is all that it waits for. Content is to be put into the
    /// order of the set that it is of, if that is in that incarnation; it is handed out once. The
    /// place counts ([`Self::skip`]) when that order has what is named then (O4, O5): content may
    /// name in its turn what is not there.
    pub fn next_received(&mut self) -> Option<(u64, Received)> {
        let next = self.next();
        // Those before it count already.
        while self.received.first_key_value().is_some_and(|(at, _)| *at < next) {
            self.received.pop_first();
        }
        let held = self.received.get_mut(&next)?;
        if let Received::Content(piggybacked) = held {
            let places = piggybacked.places();
            return Some((next, core::mem::replace(held, Received::Name(places))));
        }
        Some((next, held.clone()))
    }

    /// Is something known of each place before this one? For checks.
    pub fn has_no_gap_before(&self, upto: u64) -> bool {
        let known = |at: &u64| self.early.contains_key(at) || self.received.contains_key(at);
        (self.next()..upto).all(|at| known(&at))
    }

    /// The places that its next one holds of another set, without their content. True: the set has
    /// nothing more to send of it.
    pub fn waits_for(&self) -> Option<(PiggybackedPlaces, bool)> {
        match self.received.get(&self.next()) {
            Some(Received::Places(places)) => Some((*places, false)),
            Some(Received::Name(places)) => Some((*places, true)),
            Some(Received::Content(_)) | None => None,
        }
    }

    /// Does this order have what was piggybacked of it? What others have of an incarnation that is
    /// over was put into its order before the next one began (O6).
    pub fn availability(&self, places: &PiggybackedPlaces) -> Availability {
        let (of, upto) = (places.incarnation, places.upto);
        let ended = || self.ended.iter().find(|(incarnation, _)| *incarnation == of);
        match of.cmp(&self.incarnation) {
            Ordering::Equal if self.next() >= upto => Availability::Here,
            Ordering::Equal | Ordering::Greater => Availability::NotYet,
            Ordering::Less if ended().is_some_and(|(_, end)| *end >= upto) => Availability::Here,
            Ordering::Less => Availability::Lost,
        }
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
            match entry {
                PiggybackedEntry::Own(rank, numbered) => self.put(at, Some((rank, numbered))),
                PiggybackedEntry::Received(places) => self.add_received_places(at, places),
            }
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

    fn entry(rank: u32, number: u64, place: u32) -> PiggybackedEntry {
        PiggybackedEntry::Own(PeerId(rank), Numbered { number, determinant: found(place) })
    }

    fn third(upto: u64) -> PiggybackedPlaces {
        PiggybackedPlaces { set: SetId(7), incarnation: Incarnation(0), upto }
    }

    fn order() -> SetOrder {
        SetOrder::new(CURRENT, DeterminantLog::new(SET, CURRENT, [], 0, 100))
    }

    fn piggybacked(from: u64, entries: Vec<PiggybackedEntry>) -> Piggybacked {
        Piggybacked { set: SET, incarnation: CURRENT, from, entries }
    }

    #[test]
    fn o1_o3_places_count_in_their_order_whoever_sends_them() {
        let mut order = order();
        order.add_recorded(PeerId(3), 0, [(2, found(12))]);
        assert_eq!(order.next(), 0, "O3");
        let received = PiggybackedEntry::Received(third(5));
        assert!(order.add_piggybacked(piggybacked(0, vec![entry(2, 0, 10), received])));
        assert_eq!((order.next(), order.waits_for()), (1, Some((third(5), false))), "O4");
        order.skip(1);
        assert_eq!((order.next(), order.waits_for()), (3, None));
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
        assert!(order.has_no_gap_before(0) && !order.has_no_gap_before(1));
        order.add_recorded(PeerId(2), 0, [(0, found(10)), (2, found(12))]);
        let content = Received::Content(theirs(40));
        assert_eq!((order.next(), order.next_received()), (1, Some((1, content))), "not 3");
        let named = theirs(40).places();
        assert_eq!(order.next_received(), Some((1, Received::Name(named))), "once");
        order.add_received(1, theirs(40));
        order.add_received_places(1, named);
        assert_eq!(order.waits_for(), Some((named, true)), "O1");
        order.skip(1);
        assert_eq!(order.next(), 3);
        // Others name what is here with its content.
        let named = PiggybackedEntry::Received(theirs(41).places());
        assert!(order.add_piggybacked(piggybacked(2, vec![entry(2, 1, 12), named])));
        assert_eq!(order.waits_for(), None);
        assert_eq!(order.next_received(), Some((3, Received::Content(theirs(41)))));
        order.skip(3);
        order.add_received(3, theirs(41));
        assert_eq!((order.next(), order.next_received()), (4, None), "sent again");
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
        let has = |of: &SetOrder, number, upto| {
            of.availability(&PiggybackedPlaces { incarnation: Incarnation(number), ..places(upto) })
        };
        assert_eq!(has(&of, 1, 1), Availability::Here);
        assert_eq!(has(&of, 1, 2), Availability::NotYet);
        assert_eq!(has(&of, 2, 1), Availability::NotYet, "it has not begun here");
        assert_eq!(has(&of, 0, 1), Availability::Lost, "nothing is known of it: O6");
        let log = DeterminantLog::new(SetId(0), Incarnation(3), [], 0, 100);
        let of = of.succeed(Incarnation(3), log);
        assert_eq!(has(&of, 1, 1), Availability::Here, "O6");
        assert_eq!(has(&of, 1, 2), Availability::Lost, "O6");
        assert_eq!(has(&of, 2, 1), Availability::Lost, "there was none");
        assert_eq!(has(&of, 3, 1), Availability::NotYet);
    }
}
