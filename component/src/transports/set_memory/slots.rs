//! Determinants that any rank of a set may have to piggyback: a ring of slots, one for each place
//! in the set's order (docs/adr/0019).
//!
//! Invariants:
//! * S1 A slot has one writer at a time: who has taken the place. It writes only if the place that
//!   had the slot before is stable, so its writer has done with it long ago.
//! * S2 A reader has all of what was written for the place that it asks for, or nothing: `at` is 0
//!   while a slot is written.
//!
//! All zero is a ring that nobody has used: a new incarnation of a set has new memory, in which
//! there is nothing of an old one's places.

use core::sync::atomic::{AtomicU64, Ordering, fence};
use rustbtl_coordination::determinants::PiggybackedPlaces;
use rustbtl_fragments::ids::{Incarnation, SetId};

/// So many places may be recorded and not stable; those behind them have no slot.
pub const SLOTS: usize = 1024;
const WORDS: usize = 14;
const BYTES_MAX: usize = WORDS * size_of::<u64>();

const OWN: u64 = 1;
const CARRIED: u64 = 2;
const KIND: u64 = 0xFF;
/// Behind the kind: length, or set.
const REST: u32 = 8;
/// Behind the set: its incarnation. The first word says up to which place.
const INCARNATION: u32 = 40;

/// What a place holds. Bytes: an entry as `determinants::piggyback` has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<'a> {
    /// A determinant of a rank of the set.
    Own(&'a [u8]),
    /// What was piggybacked to here, or named.
    Carried(PiggybackedPlaces),
}

/// Outcome of [`Slots::read`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotRead {
    /// A determinant of a rank of the set: its bytes were appended.
    Own,
    /// What was piggybacked to here, or named.
    Carried(PiggybackedPlaces),
}

/// The first cache line is enough for most.
#[repr(C, align(64))]
#[derive(Debug)]
struct Slot {
    /// The place and 1; 0: none, or it is being written.
    at: AtomicU64,
    head: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Slot {
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is a slot of its own")]
    const EMPTY: Self = Self {
        at: AtomicU64::new(0),
        head: AtomicU64::new(0),
        words: [const { AtomicU64::new(0) }; WORDS],
    };
}

/// See the module's documentation.
#[repr(C)]
#[derive(Debug)]
pub struct Slots([Slot; SLOTS]);

const _: () = assert!(size_of::<Slot>() == 128);

/// Of which set, in which incarnation.
fn carried_of(head: u64) -> (SetId, Incarnation) {
    (SetId((head >> REST) as u32), Incarnation((head >> INCARNATION) as u16))
}

impl Default for Slots {
    fn default() -> Self {
        Self([const { Slot::EMPTY }; SLOTS])
    }
}

impl Slots {
    fn slot(&self, place: u64) -> &Slot {
        &self.0[(place % SLOTS as u64) as usize]
    }

    /// Put down what is at a place that the caller has taken. All places before `settled` are
    /// stable, or of an earlier incarnation. False: there is no room for it, it cannot be had here.
    pub fn write(&self, place: u64, settled: u64, what: Entry<'_>) -> bool {
        // S1
        if place >= settled.saturating_add(SLOTS as u64) {
            return false;
        }
        let slot = self.slot(place);
        let head = match what {
            Entry::Own(bytes) if bytes.len() > BYTES_MAX => return false,
            Entry::Own(bytes) => OWN | (bytes.len() as u64) << REST,
            Entry::Carried(places) => {
                let incarnation = u64::from(places.incarnation.0) << INCARNATION;
                CARRIED | u64::from(places.set.0) << REST | incarnation
            }
        };
        slot.at.store(0, Ordering::Relaxed);
        // [slot] who sees a word of these sees that it is being written.
        fence(Ordering::Release);
        slot.head.store(head, Ordering::Relaxed);
        if let Entry::Carried(places) = what {
            slot.words[0].store(places.upto, Ordering::Relaxed);
        } else if let Entry::Own(bytes) = what {
            for (word, bytes) in slot.words.iter().zip(bytes.chunks(size_of::<u64>())) {
                let mut all = [0; size_of::<u64>()];
                all[..bytes.len()].copy_from_slice(bytes);
                word.store(u64::from_le_bytes(all), Ordering::Relaxed);
            }
        }
        // [slot] written.
        slot.at.store(place + 1, Ordering::Release);
        true
    }

    /// The set that has recorded what was piggybacked to here and is at this place, in which
    /// incarnation. `None`: it holds something else, or is not to be had.
    pub fn carried(&self, place: u64) -> Option<(SetId, Incarnation)> {
        let slot = self.slot(place);
        // [slot] written.
        if slot.at.load(Ordering::Acquire) != place + 1 {
            return None;
        }
        let head = slot.head.load(Ordering::Relaxed);
        // [slot] S2
        fence(Ordering::Acquire);
        let whole = slot.at.load(Ordering::Relaxed) == place + 1;
        (whole && head & KIND == CARRIED).then_some(carried_of(head))
    }

    /// What is at this place. `None`: it is not to be had, or not yet, or is stable since long;
    /// `out` is as it was.
    pub fn read(&self, place: u64, out: &mut Vec<u8>) -> Option<SlotRead> {
        let slot = self.slot(place);
        // [slot] written.
        if slot.at.load(Ordering::Acquire) != place + 1 {
            return None;
        }
        let head = slot.head.load(Ordering::Relaxed);
        let before = out.len();
        let found = match head & KIND {
            OWN => {
                let bytes = ((head >> REST) as usize).min(BYTES_MAX);
                for word in &slot.words[..bytes.div_ceil(size_of::<u64>())] {
                    out.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
                }
                out.truncate(before + bytes);
                Some(SlotRead::Own)
            }
            CARRIED => {
                let ((set, incarnation), upto) =
                    (carried_of(head), slot.words[0].load(Ordering::Relaxed));
                Some(SlotRead::Carried(PiggybackedPlaces { set, incarnation, upto }))
            }
            _ => None,
        };
        // [slot] S2: if any of it was of another place, `at` is seen to be another one.
        fence(Ordering::Acquire);
        let found = found.filter(|_| slot.at.load(Ordering::Relaxed) == place + 1);
        if found.is_none() {
            out.truncate(before);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;
    use std::thread;

    fn read(slots: &Slots, place: u64) -> Option<(SlotRead, Vec<u8>)> {
        let mut out = vec![7];
        let found = slots.read(place, &mut out);
        assert_eq!(out.remove(0), 7);
        assert!(found.is_some() || out.is_empty());
        found.map(|found| (found, out))
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let slots = Slots::default();
        assert_eq!(read(&slots, 0), None);
        for bytes in [0, 1, 8, 13, BYTES_MAX] {
            let entry: Vec<u8> = (0..bytes as u8).collect();
            let place = bytes as u64;
            assert!(slots.write(place, 0, Entry::Own(&entry)));
            assert_eq!(read(&slots, place), Some((SlotRead::Own, entry)));
        }
        let set = SetId(u32::MAX);
        let incarnation = Incarnation(u16::MAX);
        let places = PiggybackedPlaces { set, incarnation, upto: u64::MAX };
        assert!(slots.write(9, 0, Entry::Carried(places)));
        assert_eq!(read(&slots, 9), Some((SlotRead::Carried(places), vec![])));
        assert_eq!(
            [0, 8, 9, 10].map(|at| slots.carried(at)),
            [None, None, Some((set, incarnation)), None]
        );
        assert_eq!(read(&slots, 9 + SLOTS as u64), None);
        assert_eq!(read(&slots, 10), None);
    }

    #[test]
    fn what_is_too_long_is_not_to_be_had() {
        let slots = Slots::default();
        assert!(!slots.write(3, 0, Entry::Own(&[1; BYTES_MAX + 1])));
        assert_eq!(read(&slots, 3), None);
    }

    #[test]
    fn s1_a_slot_is_not_used_again_before_its_place_is_stable() {
        let (slots, around) = (Slots::default(), SLOTS as u64);
        assert!(slots.write(5, 0, Entry::Own(&[1])));
        assert!(!slots.write(5 + around, 5, Entry::Own(&[2])));
        assert_eq!(read(&slots, 5), Some((SlotRead::Own, vec![1])));
        assert_eq!(read(&slots, 5 + around), None);
        // That one had no slot; the next one may.
        assert!(slots.write(5 + 2 * around, 6 + around, Entry::Own(&[3])));
        assert_eq!(read(&slots, 5), None);
        assert_eq!(read(&slots, 5 + 2 * around), Some((SlotRead::Own, vec![3])));
        // A later incarnation begins with any place.
        let (slots, base) = (Slots::default(), 1_000_000);
        assert!(slots.write(base, base, Entry::Own(&[4])));
        assert!(!slots.write(base + around, base, Entry::Own(&[4])));
    }

    /// The bytes of a place can be told from it.
    fn entry(place: u64) -> Vec<u8> {
        let word = place.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        word.repeat(WORDS)[..(place % (BYTES_MAX as u64 + 1)) as usize].to_vec()
    }

    #[test]
    fn s2_readers_have_all_of_a_place_or_nothing_while_slots_are_used_again() {
        let enough = if cfg!(miri) { 3 } else { 3000 };
        let (slots, written) = (Slots::default(), AtomicU64::new(0));
        let (over, found) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 2]);
        let reads = |found: &AtomicU64| {
            let mut out = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let upto = written.load(Ordering::Relaxed);
                // The one that is written now, and those that are written next.
                for place in [upto, upto.saturating_sub(1), upto.saturating_sub(SLOTS as u64 - 1)] {
                    out.clear();
                    if slots.read(place, &mut out).is_some() {
                        assert_eq!(out, entry(place));
                        found.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        };
        thread::scope(|scope| {
            for found in &found {
                scope.spawn(move || reads(found));
            }
            let mut place = 0;
            while found.iter().any(|found| found.load(Ordering::Relaxed) < enough) {
                assert!(slots.write(place, place, Entry::Own(&entry(place))));
                place += 1;
                written.store(place, Ordering::Relaxed);
                if place % 64 == 0 {
                    thread::yield_now();
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
