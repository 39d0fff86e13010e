//! Determinants that go with messages (docs/adr/0019): what a frame takes along, what is kept of
//! what comes, and whose lives are over.
//!
//! Invariants:
//! * K1 What is carried here has a place in the set's order, as if the set had recorded it, before
//!   anything that follows it on its channel is looked at.
//! * K2 Once a life of another set is fenced, nothing of it is taken in; what was taken in before
//!   lies before the place that the fence gives. One lock orders the two.

use super::outbox::{Parcel, outbox};
use super::{BASE, COUNTS, HAS_RECORDED, Record, direct, of_set, rustbtl_recording};
use crate::host::Surroundings;
use crate::peers::Route;
use crate::process::Process;
use crate::transports::shm::{Entry, Found, SLOTS};
use core::sync::atomic::Ordering;
use rustbtl_coordination::determinants::{Carried, carried};
use rustbtl_fragments::gate::Recorded;
use rustbtl_fragments::host::Taken;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A frame takes along no more than this: one that depends on more waits.
const CARRIED_BYTES_MAX: usize = 4 << 10;

/// Lives of other sets before these are over. What it says stays true: a restored process goes on
/// with what was so at its picture.
static FENCES: Mutex<BTreeMap<SetId, Incarnation>> = Mutex::new(BTreeMap::new());

fn fences() -> MutexGuard<'static, BTreeMap<SetId, Incarnation>> {
    FENCES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What other sets have carried here: everything before this place, in this life of theirs, is
/// stable or was kept by this process.
#[derive(Debug, Default)]
pub(super) struct Known(BTreeMap<SetId, (Incarnation, u64)>);

impl Known {
    /// Nothing was kept.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Is there anything in it that is not known? It is from now on.
    fn is_news(&mut self, carried: &Carried) -> bool {
        let known = (carried.incarnation, carried.upto());
        match self.0.get_mut(&carried.set) {
            // Of an older life there is no news, but that does not hurt.
            Some(before) if before.0 == known.0 && before.1 >= known.1 => return false,
            Some(before) => *before = known,
            None => drop(self.0.insert(carried.set, known)),
        }
        true
    }
}

/// Lives of a set before this one are over: nothing that they carry is taken in from now on. All
/// that this process' set has recorded so far lies before the place that it gives (K2). Without
/// the engine: the program may be in it for long.
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

impl Surroundings {
    /// `Host::carry`.
    #[inline(never)]
    pub fn take_along(
        &self,
        to: PeerId,
        from: Recorded,
        made: Recorded,
        out: &mut Vec<u8>,
    ) -> bool {
        let Record { on, carries, place, base, .. } = &self.record;
        if !on || !carries || self.route(to) != Route::Tcp {
            return false;
        }
        let Some((counts, slots)) = of_set(place, &self.shm) else { return false };
        // [stable] What another life has left is as good: this one repeats it.
        let settled = counts.stable.load(Ordering::Acquire).max(*base);
        let first = from.0.max(settled);
        // Nothing is left of it: the frame goes when it is looked at next.
        if first >= made.0 || made.0 - first > SLOTS as u64 {
            return false;
        }
        let theirs = self.set_of(to);
        carried::begin(out, self.set, self.incarnation, first);
        for place in first..made.0 {
            match slots.read(place, out) {
                Some(Found::Own) => {}
                // They have it. What somebody else gave is not handed on: one hop.
                Some(Found::Carried(set)) if Some(set) == theirs => out.push(carried::BLANK),
                _ => return refused(out),
            }
            if out.len() > CARRIED_BYTES_MAX {
                return refused(out);
            }
        }
        true
    }

    /// `Host::carried`.
    pub fn keep(&mut self, from: PeerId, bytes: &[u8]) -> Taken {
        let Ok(carried) = Carried::decode(bytes) else { return Taken::Damaged };
        if self.set_of(from) != Some(carried.set) {
            return Taken::Damaged;
        }
        // K2: until it has its place.
        let fences = fences();
        if fences.get(&carried.set).is_some_and(|&before| carried.incarnation < before) {
            return Taken::Refused;
        }
        let Record { on, place, base, known, .. } = &mut self.record;
        // Switched off: nothing is kept any more, by anybody.
        let Some((counts, slots)) = of_set(place, &self.shm).filter(|_| *on) else {
            return Taken::Kept;
        };
        if !known.is_news(&carried) {
            return Taken::Kept;
        }
        HAS_RECORDED.store(true, Ordering::Relaxed);
        let mut outbox = outbox();
        let ring = outbox.is_empty();
        // K1
        let at = *base + counts.recorded.fetch_add(1, Ordering::AcqRel);
        // [stable]
        let settled = counts.stable.load(Ordering::Acquire).max(*base);
        slots.write(at, settled, Entry::Carried(carried.set));
        outbox.push_back(Parcel::Carried { at, bytes: bytes.to_vec() });
        drop(outbox);
        drop(fences);
        if ring && !direct::send(false) {
            crate::checkpoint::ring();
        }
        Taken::Kept
    }
}

fn refused(out: &mut Vec<u8>) -> bool {
    out.clear();
    false
}

impl Process {
    /// What others carry here is kept from now on, if it is wanted and can be: recording is on, and
    /// the set has memory to count in. Tells them.
    pub fn keep_carried(&mut self) {
        let Record { on, carries, place, .. } = &self.host.record;
        if *on && *carries && of_set(place, &self.host.shm).is_some() {
            self.engine.keep_carried(&mut self.host);
        } else {
            self.engine.keep_no_carried();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: SetId = SetId(70);

    fn carried(incarnation: u16, from: u64, places: usize) -> Carried {
        let entries = vec![None; places];
        Carried { set: SET, incarnation: Incarnation(incarnation), from, entries }
    }

    #[test]
    fn what_is_known_is_no_news_and_another_life_is() {
        let mut known = Known::default();
        assert!(known.is_news(&carried(0, 5, 3)));
        assert!(!known.is_news(&carried(0, 5, 3)) && !known.is_news(&carried(0, 6, 1)));
        assert!(known.is_news(&carried(0, 6, 3)) && !known.is_news(&carried(0, 5, 4)));
        assert!(known.is_news(&carried(1, 5, 1)) && !known.is_news(&carried(1, 5, 1)));
        known.clear();
        assert!(known.is_news(&carried(1, 5, 1)));
    }

    #[test]
    fn a_fence_is_never_taken_back() {
        assert_eq!(fence(SET, Incarnation(3)), 0, "nothing is recorded");
        fence(SET, Incarnation(2));
        assert_eq!(fences().get(&SET), Some(&Incarnation(3)));
    }
}
