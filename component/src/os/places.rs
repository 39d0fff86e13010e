//! Addresses for memory whose address the program may send to others (docs/adr/0037).
//!
//! The kernel chooses addresses by what else is mapped, and after a restore that is not what it
//! was: transports, threads and buffers of ours are new. A program that sends the address of its
//! window (ARMCI and Global Arrays do) would send another one in a replay. So these are the first
//! free ones in a part of the address space that nobody else uses: they follow from what was taken
//! and given back before, and that is in the image.

use crate::os::OsError;
use core::ops::Range;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::os::fd::RawFd;

/// Programs, libraries and stacks are far above, heaps of programs at fixed addresses far below.
const ALL: Range<usize> = 0x2000_0000_0000..0x3000_0000_0000;
const PAGE: usize = 4096;
/// Large memory begins where a large page may.
const LARGE: usize = 2 << 20;

/// Which are taken.
#[derive(Debug)]
pub struct Places {
    all: Range<usize>,
    /// Start, and where the next one may begin.
    taken: BTreeMap<usize, usize>,
}

impl Default for Places {
    fn default() -> Self {
        Self::within(ALL)
    }
}

impl Places {
    /// In this part of the address space.
    pub const fn within(all: Range<usize>) -> Self {
        Self { all, taken: BTreeMap::new() }
    }

    /// The first free place of this size, which is nobody else's before it is given back.
    pub fn take(&mut self, bytes: usize) -> Option<usize> {
        let align = if bytes >= LARGE { LARGE } else { PAGE };
        if bytes > self.all.len() / 2 {
            return None;
        }
        // A page that nobody has is behind each.
        let size = bytes.next_multiple_of(PAGE) + PAGE;
        let mut start = self.all.start;
        for (&taken, &end) in &self.taken {
            if start + size <= taken {
                break;
            }
            start = start.max(end.next_multiple_of(align));
        }
        let end = start + size;
        (end <= self.all.end).then(|| {
            self.taken.insert(start, end);
            start
        })
    }

    /// It is free again.
    pub fn give_back(&mut self, start: usize) {
        self.taken.remove(&start);
    }
}

/// Map `bytes` at `place` if nobody else is there, else where the kernel likes. `descriptor`: of a
/// file, shared; else memory of this process alone.
pub fn map(place: Option<usize>, bytes: usize, descriptor: Option<RawFd>) -> Option<NonNull<u8>> {
    let flags = match descriptor {
        Some(_) => libc::MAP_SHARED,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    };
    let map = |at: usize, more: i32| {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let at = core::ptr::without_provenance_mut(at);
        // SAFETY: a new mapping; where something is mapped already the kernel refuses it.
        let start =
            unsafe { libc::mmap(at, bytes, access, flags | more, descriptor.unwrap_or(-1), 0) };
        NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED)
    };
    place.and_then(|at| map(at, libc::MAP_FIXED_NOREPLACE)).or_else(|| map(0, 0))
}

/// Memory of this process alone.
#[derive(Debug)]
pub struct PrivateMemory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory; whoever accesses it orders the accesses.
unsafe impl Send for PrivateMemory {}

impl PrivateMemory {
    /// At `place` if it is free.
    pub fn new(place: Option<usize>, bytes: usize) -> Result<Self, OsError> {
        match map(place, bytes, None) {
            Some(start) => Ok(Self { start, bytes }),
            None => Err(OsError::last("mmap", format!("{bytes} bytes"))),
        }
    }

    /// First byte (page aligned).
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for PrivateMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size; who gave the memory away has got it back.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_and_given_back_in_the_same_order_is_at_the_same_places() {
        let sizes = [1, 4096, 3 << 20, 8, 100_000, LARGE, 4097];
        let history = |places: &mut Places| -> Vec<usize> {
            let mut taken = Vec::new();
            for (k, &bytes) in sizes.iter().cycle().take(100).enumerate() {
                taken.push(places.take(bytes).expect("room"));
                if k % 3 == 2 {
                    places.give_back(taken[k / 2]);
                }
            }
            taken
        };
        let (mut one, mut two) = (Places::default(), Places::default());
        assert_eq!(history(&mut one), history(&mut two));
        assert_eq!(one.taken, two.taken);
        // Also from the middle on, which is what a restored process does.
        let mut copy = Places { all: one.all.clone(), taken: one.taken.clone() };
        assert_eq!(history(&mut one), history(&mut copy));
    }

    #[test]
    fn places_do_not_meet_are_aligned_and_used_again() {
        let mut places = Places::default();
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for bytes in [5000, LARGE, 1, 3 * LARGE + 1, 4096, 1 << 30, 7] {
            let start = places.take(bytes).expect("room");
            let align = if bytes >= LARGE { LARGE } else { PAGE };
            assert!(start % align == 0 && start >= ALL.start && start + bytes < ALL.end);
            assert!(
                ranges.iter().all(|r| start >= r.end + PAGE || start + bytes + PAGE <= r.start)
            );
            ranges.push(start..start + bytes.next_multiple_of(PAGE));
        }
        let first = ranges[0].start;
        places.give_back(first);
        assert_eq!(places.take(8000), Some(first));
        assert_eq!((places.take(usize::MAX), places.take(ALL.len())), (None, None));
    }

    #[test]
    fn where_somebody_is_the_kernel_chooses() {
        let mut places = Places::within(0x3100_0000_0000..0x3200_0000_0000);
        let place = places.take(LARGE);
        let one = PrivateMemory::new(place, LARGE).expect("memory");
        assert_eq!(Some(one.start().as_ptr().addr()), place, "nobody else is there");
        // SAFETY: inside the mapping.
        let last = unsafe { one.start().add(LARGE - 1) };
        // SAFETY: as above.
        unsafe { last.write(7) };
        let two = PrivateMemory::new(place, LARGE).expect("memory");
        assert_ne!(one.start(), two.start());
        // SAFETY: inside the mappings.
        assert_eq!(unsafe { last.read() }, 7);
        // SAFETY: as above.
        assert_eq!(unsafe { two.start().read() }, 0);
        drop(one);
        let three = PrivateMemory::new(place, 1).expect("memory");
        assert_eq!(Some(three.start().as_ptr().addr()), place);
    }
}
