//! Memory of windows: what MPI_Win_allocate gives, at a place of its own, since programs send its
//! address to others. Up to a size neighbours map it.
//!
//! That has no name in any file system: its owner keeps it open, and neighbours open it in /proc,
//! once, while the window is made. In an image it is its owner's; a neighbour maps
//! it again, without content (`FreezeOptions::elsewhere`). Whether both mean the same memory after
//! that is not believed: the owner writes a mark behind its end, and a neighbour that does not find
//! it there does not use its mapping.

use crate::os::OsError;
use crate::os::mapping::{SealedError, SharedMemory};
use crate::os::places::{Places, PrivateMemory};
use core::cell::Cell;
use core::ops::Range;
use core::ptr::null;
use rustbtl_fragments::ids::{ContextId, PeerId};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

const PAGE: usize = 4096;

fn all_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE) + PAGE
}

/// Of which the last page has the mark.
#[derive(Debug)]
struct Marked {
    memory: SharedMemory,
    bytes: usize,
}

impl Marked {
    fn mark_at(&self) -> *mut u64 {
        self.memory.start().as_ptr().wrapping_add(all_bytes(self.bytes) - PAGE).cast()
    }

    fn mark(&self) -> u64 {
        // SAFETY: inside the mapping, page aligned; its owner writes it where nobody reads it yet.
        unsafe { self.mark_at().read_volatile() }
    }

    fn set_mark(&self, mark: u64) {
        // SAFETY: as above.
        unsafe { self.mark_at().write_volatile(mark) }
    }

    fn range(&self) -> Range<usize> {
        let start = self.memory.start().as_ptr().addr();
        start..start + all_bytes(self.bytes)
    }
}

#[derive(Debug)]
struct Own {
    memory: Marked,
    /// `None`: since a restore.
    file: Option<OwnedFd>,
}

/// What a neighbour is told of memory that it may map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The owner's descriptor.
    pub descriptor: RawFd,
    /// Without the page of the mark.
    pub bytes: u64,
}

#[derive(Debug)]
struct OfPeer {
    /// `None`: the program has mapped it (MPI_Win_allocate_shared).
    memory: Option<Marked>,
    /// From the owner's address to that here.
    delta: u64,
}

/// All of a process.
#[derive(Debug, Default)]
pub struct MappedMemory {
    own: BTreeMap<usize, Own>,
    /// That no neighbour maps.
    private: BTreeMap<usize, PrivateMemory>,
    places: Places,
    /// Where the memory is for which a place was taken.
    placed: BTreeMap<usize, usize>,
    peers: BTreeMap<(ContextId, PeerId), OfPeer>,
    /// The present mark of all own memory; 0: none was given yet.
    mark: u64,
    /// Changes with `peers`.
    generation: u64,
}

/// What was found of a neighbour last.
#[derive(Clone, Copy, Debug)]
pub struct LastMapped {
    window: ContextId,
    generation: u64,
    /// Null: it needs none.
    mark_at: *const u64,
    delta: u64,
}

impl MappedMemory {
    /// New memory of this process, which neighbours may map; its address.
    pub fn make(&mut self, bytes: usize) -> Result<*mut u8, OsError> {
        self.at_a_place(all_bytes(bytes), |this, place| {
            let (memory, file) = SharedMemory::sealed(all_bytes(bytes), place)?;
            let start = memory.start().as_ptr();
            let memory = Marked { memory, bytes };
            memory.set_mark(this.mark());
            this.own.insert(start.addr(), Own { memory, file: Some(file) });
            Ok(start)
        })
    }

    /// The same for itself.
    pub fn make_private(&mut self, bytes: usize) -> Result<*mut u8, OsError> {
        // As much, since in a replay there may be no neighbours.
        let bytes = all_bytes(bytes);
        self.at_a_place(bytes, |this, place| {
            let memory = PrivateMemory::new(place, bytes)?;
            let start = memory.start().as_ptr();
            this.private.insert(start.addr(), memory);
            Ok(start)
        })
    }

    fn at_a_place(
        &mut self,
        bytes: usize,
        make: impl FnOnce(&mut Self, Option<usize>) -> Result<*mut u8, OsError>,
    ) -> Result<*mut u8, OsError> {
        let Some(place) = self.places.take(bytes) else { return make(self, None) };
        let made = make(self, Some(place));
        match &made {
            Ok(start) => {
                self.placed.insert(start.addr(), place);
            }
            Err(_) => self.places.give_back(place),
        }
        made
    }

    /// It is unmapped.
    pub fn drop_own(&mut self, start: *mut u8) {
        self.own.remove(&start.addr());
        self.private.remove(&start.addr());
        if let Some(place) = self.placed.remove(&start.addr()) {
            self.places.give_back(place);
        }
    }

    /// The mark of own memory.
    pub fn mark(&mut self) -> u64 {
        if self.mark == 0 {
            // Without one nobody takes a mapping for what it may not be any more.
            let random = crate::os::random::bytes().map(u64::from_le_bytes);
            self.mark = random.map_or(0, |mark| mark | 1);
        }
        self.mark
    }

    /// Own memory at this address, for neighbours.
    pub fn offer(&self, start: u64) -> Option<Offer> {
        let own = self.own.get(&(start as usize))?;
        let descriptor = own.file.as_ref()?.as_raw_fd();
        Some(Offer { descriptor, bytes: own.memory.bytes as u64 })
    }

    /// Is own memory at this address?
    pub fn has(&self, start: u64) -> bool {
        self.own.contains_key(&(start as usize))
    }

    /// Map what a neighbour offers of a window, at `base` in its memory.
    pub fn map(
        &mut self,
        (window, rank): (ContextId, PeerId),
        pid: i32,
        offer: Offer,
        base: u64,
    ) -> Result<(), SealedError> {
        let bytes = offer.bytes as usize;
        let memory = SharedMemory::of_process(pid, offer.descriptor, all_bytes(bytes))?;
        let delta = (memory.start().as_ptr().addr() as u64).wrapping_sub(base);
        let memory = Some(Marked { memory, bytes });
        self.generation += 1;
        self.peers.insert((window, rank), OfPeer { memory, delta });
        Ok(())
    }

    /// The program has mapped a neighbour's memory of a window, which has it at `base`.
    pub fn is_at(&mut self, of: (ContextId, PeerId), here: u64, base: u64) {
        let delta = here.wrapping_sub(base);
        self.generation += 1;
        self.peers.insert(of, OfPeer { memory: None, delta });
    }

    /// What is to be added to an address of the owner. `mark`: the owner's present one.
    #[inline]
    pub fn delta(&self, of: (ContextId, PeerId), mark: u64) -> Option<u64> {
        let found = self.peers.get(&of)?;
        let is_marked = |memory: &Marked| mark != 0 && memory.mark() == mark;
        let is_same = found.memory.as_ref().is_none_or(is_marked);
        is_same.then_some(found.delta)
    }

    /// The same; `last` remembers what was found.
    #[inline(always)]
    pub fn delta_again(
        &self,
        of: (ContextId, PeerId),
        mark: u64,
        last: &Cell<Option<LastMapped>>,
    ) -> Option<u64> {
        match last.get() {
            Some(LastMapped { window, generation, mark_at, delta })
                if window == of.0 && generation == self.generation =>
            {
                // SAFETY: as `Marked::mark`: it is mapped as long as `peers` is not changed.
                let is_same = || mark != 0 && unsafe { mark_at.read_volatile() } == mark;
                (mark_at.is_null() || is_same()).then_some(delta)
            }
            _ => self.find_delta(of, mark, last),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_delta(
        &self,
        of: (ContextId, PeerId),
        mark: u64,
        last: &Cell<Option<LastMapped>>,
    ) -> Option<u64> {
        let found = self.peers.get(&of)?;
        let mark_at = found.memory.as_ref().map_or(null(), |memory| memory.mark_at().cast_const());
        let (window, generation, delta) = (of.0, self.generation, found.delta);
        last.set(Some(LastMapped { window, generation, mark_at, delta }));
        self.delta(of, mark)
    }

    /// A window is freed.
    pub fn unmap(&mut self, window: ContextId) {
        self.generation += 1;
        self.peers.retain(|(of, _), _| *of != window);
    }

    /// The process was restored. Descriptors are not here; neighbours that are not any more are not
    /// mapped again, whatever becomes of them. A new mark is written.
    pub fn restored(&mut self, is_neighbour: impl Fn(PeerId) -> bool) {
        for own in self.own.values_mut() {
            core::mem::forget(own.file.take());
        }
        self.generation += 1;
        self.peers.retain(|(_, rank), _| is_neighbour(*rank));
        self.mark = 0;
        let mark = self.mark();
        self.own.values().for_each(|own| own.memory.set_mark(mark));
    }

    /// Open descriptors.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.own.values().filter_map(|own| own.file.as_ref().map(AsRawFd::as_raw_fd))
    }

    /// What is in the images of others.
    pub fn elsewhere(&self) -> Vec<Range<usize>> {
        self.peers.values().filter_map(|of| of.memory.as_ref().map(Marked::range)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: (ContextId, PeerId) = (ContextId(3), PeerId(1));

    #[test]
    fn a_mapping_is_used_only_while_it_shows_its_owners_mark() {
        let (mut owner, mut other) = (MappedMemory::default(), MappedMemory::default());
        let start = owner.make(5000).expect("memory");
        let (mark, base) = (owner.mark(), start as u64);
        let offer = owner.offer(base).expect("an offer");
        assert_eq!(owner.offer(base + 1), None);
        let me = std::process::id() as i32;
        other.map(OF, me, offer, base).expect("it is there");
        let delta = other.delta(OF, mark).expect("the same memory");
        let there = (base + 4999).wrapping_add(delta) as *mut u8;
        // SAFETY: inside both mappings.
        unsafe { there.write(77) };
        // SAFETY: the same.
        assert_eq!(unsafe { start.wrapping_add(4999).read() }, 77);
        assert_eq!((other.delta(OF, mark + 2), other.delta(OF, 0)), (None, None));
        let last = Cell::new(None);
        let again = |other: &MappedMemory, mark| {
            let found = other.delta_again(OF, mark, &last);
            assert_eq!(found, other.delta(OF, mark), "{last:?}");
            found
        };
        for mark in [mark, mark + 2, mark, 0] {
            again(&other, mark);
        }
        assert_eq!(
            other.elsewhere().iter().map(ExactSizeIterator::len).collect::<Vec<_>>(),
            [12288]
        );
        // After a restore there is no descriptor to offer, and another mark.
        let closes = owner.descriptors().next().expect("one");
        owner.restored(|_| true);
        // SAFETY: nobody else has it: it was left open.
        drop(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(closes) });
        assert_eq!((owner.offer(base), owner.descriptors().count()), (None, 0));
        assert_eq!(other.delta(OF, mark), None);
        assert_eq!(again(&other, mark), None);
        assert!(again(&other, owner.mark()).is_some(), "it is the same memory still");
        other.restored(|_| false);
        assert_eq!(again(&other, owner.mark()), None);
    }

    #[test]
    fn nothing_is_mapped_that_is_not_what_was_offered() {
        let (mut owner, mut other) = (MappedMemory::default(), MappedMemory::default());
        let start = owner.make(4096).expect("memory");
        let offer = owner.offer(start as u64).expect("an offer");
        let me = std::process::id() as i32;
        for wrong in [
            Offer { bytes: 4097, ..offer },
            Offer { descriptor: 0, ..offer },
            Offer { descriptor: 1 << 20, ..offer },
        ] {
            assert!(other.map(OF, me, wrong, 0).is_err(), "{wrong:?}");
        }
        other.is_at(OF, 1000, 400);
        let last = Cell::new(None);
        for _ in 0..2 {
            assert_eq!(other.delta_again(OF, 0, &last), Some(600));
        }
        other.is_at(OF, 1000, 500);
        assert_eq!(other.delta_again(OF, 0, &last), Some(500));
        other.unmap(OF.0);
        assert_eq!((other.delta(OF, 0), other.delta_again(OF, 0, &last)), (None, None));
        owner.drop_own(start);
        assert_eq!(owner.offer(start as u64), None);
    }

    #[test]
    fn who_makes_and_drops_the_same_has_the_same_addresses() {
        // As two processes, of which one has other things mapped.
        let addresses = || {
            let places = Places::within(0x3200_0000_0000..0x3300_0000_0000);
            let mut memory = MappedMemory { places, ..MappedMemory::default() };
            let mut made = Vec::new();
            for k in 0..40 {
                let bytes = 1000 * (k % 7);
                made.push(if k % 3 == 0 { memory.make(bytes) } else { memory.make_private(bytes) });
                if k % 5 == 4 {
                    memory.drop_own(*made[k - 3].as_ref().expect("memory"));
                }
            }
            made.into_iter().map(|made| made.expect("memory").addr()).collect::<Vec<_>>()
        };
        let first = addresses();
        let _between = SharedMemory::sealed(1 << 20, None).expect("memory");
        assert_eq!(first, addresses());
        let apart: std::collections::BTreeSet<_> = first.iter().collect();
        assert!(apart.len() < first.len(), "what is free is used again");
    }
}
