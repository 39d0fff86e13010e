//! Determinants that go with messages (docs/adr/0019): what a frame piggybacks, what is kept of
//! what comes, and which incarnations are over.
//!
//! Invariants:
//! * K1 What is piggybacked to here has a place in the set's order, as if the set had recorded it,
//!   before anything that follows it on its channel is looked at.
//! * K2 Once an incarnation of another set is fenced, nothing that it sends is accepted; what was
//!   taken in before lies before the place that the fence gives. One lock orders the two. (What a
//!   set that runs names of it is accepted: the coordinator knows whether it is lost.)
//! * K3 What is named to here has a place as well, unless the set depends on as much already.

use crate::determinants::set_order::{BASE, COUNTS, rustbtl_recording};
use crate::transports::set_memory::{Counts, Entry, SLOTS, SlotRead, Slots};
use core::ops::Range;
use core::sync::atomic::Ordering;
use rustbtl_coordination::determinants::{Piggybacked, PiggybackedPlaces, piggyback};
use rustbtl_fragments::host::PiggybackContent;
use rustbtl_fragments::ids::{Incarnation, SetId};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A frame piggybacks no more than this: one that depends on more waits.
const CARRIED_BYTES_MAX: usize = 4 << 10;

/// Incarnations of other sets before these are over. This stays true: a restored process goes on
/// with what was so at its snapshot.
static FENCES: Mutex<BTreeMap<SetId, Incarnation>> = Mutex::new(BTreeMap::new());

pub(crate) fn fences() -> MutexGuard<'static, BTreeMap<SetId, Incarnation>> {
    FENCES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Of each set an incarnation, and a place of its order.
type Places = BTreeMap<SetId, (Incarnation, u64)>;

/// What other sets have piggybacked to here.
#[derive(Debug, Default)]
pub(crate) struct AcceptedPlaces {
    /// Everything before this place is stable or was kept by this process.
    kept: Places,
    /// The same, or this process has a place for its name.
    named: Places,
}

impl AcceptedPlaces {
    /// Nothing was kept.
    pub(crate) fn clear(&mut self) {
        self.kept.clear();
        self.named.clear();
    }

    /// Is there anything in it that is not known? It is from now on.
    pub(crate) fn is_news(&mut self, piggybacked: &Piggybacked) -> bool {
        let places = piggybacked.places();
        let is_news = is_news_in(&mut self.kept, &places);
        self.is_news_name(&places);
        is_news
    }

    /// The same of what was only named.
    pub(crate) fn is_news_name(&mut self, places: &PiggybackedPlaces) -> bool {
        is_news_in(&mut self.named, places)
    }
}

fn is_news_in(all: &mut Places, places: &PiggybackedPlaces) -> bool {
    let known = (places.incarnation, places.upto);
    match all.get_mut(&places.set) {
        // Of an older incarnation there is no news, but that does not hurt.
        Some(before) if before.0 == known.0 && before.1 >= known.1 => return false,
        Some(before) => *before = known,
        None => drop(all.insert(places.set, known)),
    }
    true
}

/// The order of the own set, where its ranks count together.
pub(crate) struct PiggybackOrder<'a> {
    pub(crate) counts: &'a Counts,
    pub(crate) slots: &'a Slots,
    /// Place of the first of this incarnation.
    pub(crate) base: u64,
}

impl PiggybackOrder<'_> {
    /// Take a place.
    pub(crate) fn next(&self) -> u64 {
        self.base + self.counts.recorded.fetch_add(1, Ordering::AcqRel)
    }

    /// Everything before this place is stable, or of another incarnation: this one replays it.
    fn settled(&self) -> u64 {
        // [stable]
        self.counts.stable.load(Ordering::Acquire).max(self.base)
    }

    /// Say what is at a place that was taken. If there is no room for it, frames that depend on it
    /// wait until it is stable.
    pub(crate) fn write(&self, at: u64, what: Entry<'_>) {
        self.slots.write(at, self.settled(), what);
    }

    /// What is in these places that is not stable, for a frame to `theirs`. The last one tells most
    /// often.
    fn look(&self, theirs: Option<(SetId, Incarnation)>, places: Range<u64>) -> Found {
        let first = places.start.max(self.settled());
        if first >= places.end || places.end - first > SLOTS as u64 {
            return Found::Nothing;
        }
        let mut found = Found::OfReceiver;
        for place in (first..places.end).rev() {
            match self.slots.carried(place) {
                Some(set) if Some(set) == theirs => {}
                Some(_) => found = Found::OfThirdSets,
                None => return Found::Own,
            }
        }
        found
    }

    /// What a frame to `theirs` piggybacks: places `from` on that it depends on and before `made`.
    /// Those before `covered` need not be looked at if it has nothing else.
    pub(crate) fn append(
        &self,
        own: (SetId, Incarnation),
        theirs: Option<(SetId, Incarnation)>,
        (from, covered): (u64, u64),
        made: u64,
        out: &mut Vec<u8>,
    ) -> PiggybackContent {
        let news = from.max(covered);
        let (first, content) = match self.look(theirs, news..made) {
            Found::Nothing => return PiggybackContent::Unavailable,
            Found::OfReceiver => return PiggybackContent::OfReceiver,
            Found::OfThirdSets => (news, PiggybackContent::Names),
            Found::Own => (from, PiggybackContent::Appended),
        };
        let first = first.max(self.settled());
        if first >= made || made - first > SLOTS as u64 {
            return PiggybackContent::Unavailable;
        }
        piggyback::begin(out, own.0, own.1, first);
        let had = (first..made).all(|place| {
            match self.slots.read(place, out) {
                Some(SlotRead::Own) => {}
                Some(SlotRead::Carried(places)) => piggyback::append_received(out, &places),
                None => return false,
            }
            out.len() <= CARRIED_BYTES_MAX
        });
        if !had {
            out.clear();
            return PiggybackContent::Unavailable;
        }
        content
    }
}

/// Outcome of [`PiggybackOrder::look`].
enum Found {
    /// All is stable, or there is more than there are slots.
    Nothing,
    /// Nothing but what the receiver's set has recorded, in the incarnation that it runs in.
    OfReceiver,
    /// The same, and what others have recorded.
    OfThirdSets,
    /// Something of its own, or what is not to be had.
    Own,
}

/// Incarnations of a set before this one are over: nothing that they piggyback is accepted from now
/// on. All that this process' set has recorded so far lies before the place that it gives (K2).
/// Without the engine: the program may be in it for long.
pub fn fence(set: SetId, before: Incarnation) -> u64 {
    let mut fences = fences();
    let known = fences.entry(set).or_insert(before);
    *known = before.max(*known);
    recorded()
}

/// All that the set has recorded so far lies before this place; 0: nothing is recorded. Not where
/// the memory of its counts may have gone.
pub fn recorded() -> u64 {
    if rustbtl_recording.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    let counts = COUNTS.load(Ordering::Acquire);
    // SAFETY: null, or in memory that is never unmapped while this process records.
    let counts = unsafe { counts.as_ref() };
    let upto = |recorded| BASE.load(Ordering::Relaxed) + recorded;
    counts.map_or(0, |counts| upto(counts.recorded.load(Ordering::Acquire)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustbtl_coordination::determinants::PiggybackedEntry;
    use rustbtl_fragments::ids::PeerId;

    const SET: SetId = SetId(70);

    fn piggybacked(incarnation: u16, from: u64, places: usize) -> Piggybacked {
        let entries = vec![PiggybackedEntry::Received(of(OWN.0, 7)); places];
        Piggybacked { set: SET, incarnation: Incarnation(incarnation), from, entries }
    }

    fn of(set: SetId, upto: u64) -> PiggybackedPlaces {
        PiggybackedPlaces { set, incarnation: Incarnation(1), upto }
    }

    #[test]
    fn what_is_known_is_no_news_and_another_incarnation_is() {
        let mut known = AcceptedPlaces::default();
        assert!(known.is_news(&piggybacked(0, 5, 3)));
        assert!(!known.is_news(&piggybacked(0, 5, 3)) && !known.is_news(&piggybacked(0, 6, 1)));
        assert!(known.is_news(&piggybacked(0, 6, 3)) && !known.is_news(&piggybacked(0, 5, 4)));
        assert!(known.is_news(&piggybacked(1, 5, 1)) && !known.is_news(&piggybacked(1, 5, 1)));
        known.clear();
        assert!(known.is_news(&piggybacked(1, 5, 1)));
    }

    #[test]
    fn what_is_only_named_is_news_unless_as_much_was_kept_or_named_and_its_content_still_is() {
        let mut known = AcceptedPlaces::default();
        assert!(known.is_news(&piggybacked(1, 0, 5)));
        assert!(!known.is_news_name(&of(SET, 5)), "kept");
        assert!(known.is_news_name(&of(SET, 6)) && !known.is_news_name(&of(SET, 6)), "named");
        assert!(known.is_news(&piggybacked(1, 5, 1)), "not kept");
        assert!(known.is_news_name(&of(OWN.0, 1)), "another set");
    }

    const OWN: (SetId, Incarnation) = (SetId(4), Incarnation(2));

    #[test]
    fn a_frame_piggybacks_what_is_not_stable_and_only_if_all_of_it_can_be_had() {
        use rustbtl_coordination::determinants::{Determinant, NondetCall, Numbered, Outcome};
        let (counts, slots) = (Counts::default(), Slots::default());
        let order = PiggybackOrder { counts: &counts, slots: &slots, base: 100 };
        let (call, outcome) = (NondetCall::file(1, 8), Outcome::Value(5));
        let determinant = Determinant::Outcome { call, outcome };
        let numbered = Numbered { number: 9, determinant };
        let own = || {
            let (at, mut entry) = (order.next(), Vec::new());
            piggyback::append(&mut entry, PeerId(6), &numbered);
            order.write(at, Entry::Own(&entry));
            at
        };
        let take = |from, made| {
            let mut out = Vec::new();
            let content = order.append(OWN, Some((SET, Incarnation(1))), (from, 0), made, &mut out);
            assert!(content != PiggybackContent::Unavailable || out.is_empty());
            (!out.is_empty()).then(|| Piggybacked::decode(&out).unwrap())
        };
        assert_eq!(take(0, 100), None, "nothing was recorded");
        assert_eq!(own(), 100);
        let theirs = |upto| order.write(order.next(), Entry::Carried(of(SET, upto)));
        theirs(3);
        let entry = PiggybackedEntry::Own(PeerId(6), numbered.clone());
        let received = PiggybackedEntry::Received(of(SET, 3));
        let all = Piggybacked {
            set: OWN.0,
            incarnation: OWN.1,
            from: 100,
            entries: vec![entry.clone(), received],
        };
        assert_eq!(take(0, 102), Some(all.clone()));
        assert_eq!(take(101, 102), None, "they have it");
        // Stable, or not written yet.
        counts.stable.store(101, Ordering::Release);
        assert_eq!(take(0, 102), None, "they have it");
        counts.stable.store(102, Ordering::Release);
        assert_eq!(take(0, 102), None);
        let hole = order.next();
        assert_eq!((own(), take(0, 104)), (103, None));
        order.write(hole, Entry::Own(&[0; 1000]));
        assert_eq!(take(0, 104), None, "too long");
        let entries = vec![entry.clone()];
        assert_eq!(take(103, 104), Some(Piggybacked { from: 103, entries, ..all.clone() }));
        let third = of(SetId(71), 9);
        order.write(order.next(), Entry::Carried(third));
        let entries = vec![entry, PiggybackedEntry::Received(third)];
        assert_eq!(take(103, 105), Some(Piggybacked { from: 103, entries, ..all.clone() }));
        // Nothing but what they have themselves, or what a third set has recorded.
        theirs(4);
        theirs(5);
        let content = |theirs, from, covered, made| {
            let mut out = Vec::new();
            let content = order.append(OWN, theirs, (from, covered), made, &mut out);
            (content, Piggybacked::decode(&out).ok().map(|piggybacked| piggybacked.from))
        };
        let receiver = |incarnation| Some((SET, Incarnation(incarnation)));
        let of = |from, made| content(receiver(1), from, 0, made);
        let alone = (PiggybackContent::OfReceiver, None);
        assert_eq!((of(105, 107), of(106, 107)), (alone, alone));
        assert_eq!(of(104, 107), (PiggybackContent::Names, Some(104)));
        assert_eq!(of(103, 107), (PiggybackContent::Appended, Some(103)));
        assert_eq!(content(receiver(1), 103, 104, 107), (PiggybackContent::Names, Some(104)));
        assert_eq!(content(receiver(1), 103, 105, 107), alone, "the others were named");
        let anew = content(receiver(2), 103, 105, 107);
        assert_eq!(anew, (PiggybackContent::Names, Some(105)), "of an earlier incarnation");
        let nothing = (PiggybackContent::Unavailable, None);
        assert_eq!((of(107, 107), of(105, 108)), (nothing, nothing), "not written yet");
        assert_eq!(content(None, 105, 0, 107), (PiggybackContent::Names, Some(105)));
        counts.stable.store(105, Ordering::Release);
        assert_eq!(of(100, 107), alone, "the others are stable");
        // More than there are slots for.
        for _ in 0..SLOTS {
            own();
        }
        assert_eq!(take(105, 106 + SLOTS as u64), None);
        assert_eq!(take(106, 106 + SLOTS as u64), None, "its slot was used again");
    }

    #[test]
    fn a_frame_does_not_piggyback_too_much() {
        let (counts, slots) = (Counts::default(), Slots::default());
        let order = PiggybackOrder { counts: &counts, slots: &slots, base: 0 };
        for _ in 0..CARRIED_BYTES_MAX / 100 + 1 {
            order.write(order.next(), Entry::Own(&[0; 100]));
        }
        let mut out = Vec::new();
        let append = |made, out: &mut _| order.append(OWN, None, (0, 0), made, out);
        assert_eq!(append(30, &mut out), PiggybackContent::Appended);
        assert!(out.len() > 3000);
        out.clear();
        assert_eq!((append(41, &mut out), out.is_empty()), (PiggybackContent::Unavailable, true));
    }

    #[test]
    fn a_fence_is_never_taken_back() {
        assert_eq!(fence(SET, Incarnation(3)), 0, "nothing is recorded");
        fence(SET, Incarnation(2));
        assert_eq!(fences().get(&SET), Some(&Incarnation(3)));
    }
}
