//! Determinants that go with messages (docs/adr/0019): what a frame piggybacks, what is kept of
//! what comes, and which incarnations are over.
//!
//! Invariants:
//! * K1 What is piggybacked to here has a place in the set's order, as if the set had recorded it,
//!   before anything that follows it on its channel is looked at.
//! * K2 Once an incarnation of another set is fenced, nothing of it is accepted; what was taken in
//!   before lies before the place that the fence gives. One lock orders the two.

use crate::determinants::set_order::{BASE, COUNTS, rustbtl_recording};
use crate::transports::set_memory::{Counts, Entry, SLOTS, SlotRead, Slots};
use core::sync::atomic::Ordering;
use rustbtl_coordination::determinants::{Piggybacked, piggyback};
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

/// What other sets have piggybacked to here: everything before this place, in this incarnation of
/// theirs, is stable or was kept by this process.
#[derive(Debug, Default)]
pub(crate) struct AcceptedPlaces(BTreeMap<SetId, (Incarnation, u64)>);

impl AcceptedPlaces {
    /// Nothing was kept.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Is there anything in it that is not known? It is from now on.
    pub(crate) fn is_news(&mut self, piggybacked: &Piggybacked) -> bool {
        let known = (piggybacked.incarnation, piggybacked.upto());
        match self.0.get_mut(&piggybacked.set) {
            // Of an older incarnation there is no news, but that does not hurt.
            Some(before) if before.0 == known.0 && before.1 >= known.1 => return false,
            Some(before) => *before = known,
            None => drop(self.0.insert(piggybacked.set, known)),
        }
        true
    }
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

    /// Is there nothing that is not stable in these places but what `theirs` has piggybacked to
    /// here? The last one tells most often.
    pub(crate) fn are_of(&self, theirs: Option<SetId>, places: core::ops::Range<u64>) -> bool {
        let first = places.start.max(self.settled());
        let here = first < places.end && places.end - first <= SLOTS as u64;
        here && (first..places.end)
            .rev()
            .all(|place| theirs.is_some() && self.slots.carried(place) == theirs)
    }

    /// What a frame to `theirs` piggybacks. False: not all of it can be had, or nothing is left.
    pub(crate) fn append(
        &self,
        own: (SetId, Incarnation),
        theirs: Option<SetId>,
        places: core::ops::Range<u64>,
        out: &mut Vec<u8>,
    ) -> bool {
        let first = places.start.max(self.settled());
        if first >= places.end || places.end - first > SLOTS as u64 {
            return false;
        }
        piggyback::begin(out, own.0, own.1, first);
        let had = (first..places.end).all(|place| {
            let had = match self.slots.read(place, out) {
                Some(SlotRead::Own) => true,
                Some(SlotRead::Carried(set)) if Some(set) == theirs => {
                    // They have it.
                    out.push(piggyback::BLANK);
                    true
                }
                // What somebody else gave is not handed on: one hop.
                Some(SlotRead::Carried(_)) | None => false,
            };
            had && out.len() <= CARRIED_BYTES_MAX
        });
        if !had {
            out.clear();
        }
        had
    }
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
    use rustbtl_fragments::ids::PeerId;

    const SET: SetId = SetId(70);

    fn piggybacked(incarnation: u16, from: u64, places: usize) -> Piggybacked {
        let entries = vec![None; places];
        Piggybacked { set: SET, incarnation: Incarnation(incarnation), from, entries }
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
            let had = order.append(OWN, Some(SET), from..made, &mut out);
            assert!(had || out.is_empty());
            had.then(|| Piggybacked::decode(&out).unwrap())
        };
        assert_eq!(take(0, 100), None, "nothing was recorded");
        assert_eq!(own(), 100);
        order.write(order.next(), Entry::Carried(SET));
        let entry = Some((PeerId(6), numbered.clone()));
        let all = Piggybacked {
            set: OWN.0,
            incarnation: OWN.1,
            from: 100,
            entries: vec![entry.clone(), None],
        };
        assert_eq!(take(0, 102), Some(all.clone()));
        assert_eq!(
            take(101, 102),
            Some(Piggybacked { from: 101, entries: vec![None], ..all.clone() })
        );
        // Stable, or not written yet.
        counts.stable.store(101, Ordering::Release);
        assert_eq!(take(0, 102).map(|piggybacked| piggybacked.from), Some(101));
        counts.stable.store(102, Ordering::Release);
        assert_eq!(take(0, 102), None);
        let hole = order.next();
        assert_eq!((own(), take(0, 104)), (103, None));
        order.write(hole, Entry::Own(&[0; 1000]));
        assert_eq!(take(0, 104), None, "too long");
        assert_eq!(take(103, 104), Some(Piggybacked { from: 103, entries: vec![entry], ..all }));
        order.write(order.next(), Entry::Carried(SetId(71)));
        assert_eq!(take(103, 105), None, "a third set's");
        // Nothing but what they have themselves.
        let (last, of) = (order.next(), |places| order.are_of(Some(SET), places));
        order.write(last, Entry::Carried(SET));
        order.write(order.next(), Entry::Carried(SET));
        assert!(of(105..107) && of(106..107) && !of(104..107), "a third set's");
        assert!(!of(107..107) && !of(105..108), "nothing, or not written yet");
        assert!(!order.are_of(None, 105..107) && !order.are_of(Some(SetId(71)), 105..107));
        counts.stable.store(105, Ordering::Release);
        assert!(of(100..107), "the others are stable");
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
        assert!(order.append(OWN, None, 0..30, &mut out) && out.len() > 3000);
        out.clear();
        assert!(!order.append(OWN, None, 0..41, &mut out) && out.is_empty());
    }

    #[test]
    fn a_fence_is_never_taken_back() {
        assert_eq!(fence(SET, Incarnation(3)), 0, "nothing is recorded");
        fence(SET, Incarnation(2));
        assert_eq!(fences().get(&SET), Some(&Incarnation(3)));
    }
}
