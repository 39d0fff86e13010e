//! Memory that the members of a communicator share for their collectives: for each member a line
//! that says how many steps it has finished, lines with a flag and up to 48 bytes, and larger slots
//! with a flag in front. All zero is memory that nobody has used.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use rustbtl_collectives::carrier::Carrier;
use rustbtl_collectives::plan::{CHUNK_BYTES, CHUNKS, LINES};

const LINE: usize = 64;
/// Where in a line, or in front of a chunk, the payload begins.
const LINE_PAYLOAD: usize = 16;
const CHUNK: usize = LINE + CHUNK_BYTES as usize;
/// Of one member, a whole number of pages.
const MEMBER: usize =
    (LINE * (1 + LINES as usize) + CHUNK * CHUNKS as usize).next_multiple_of(4096);

/// A communicator's memory, and how its data travels.
#[derive(Debug)]
pub struct Room {
    /// Messages until there is memory.
    pub carrier: Carrier,
    size: u32,
    start: AtomicPtr<u8>,
}

impl Room {
    /// Without memory.
    pub fn new(size: u32) -> Self {
        let start = AtomicPtr::new(core::ptr::null_mut());
        Self { carrier: Carrier::new(size), size, start }
    }

    /// Bytes that it needs.
    pub fn bytes(size: u32) -> usize {
        MEMBER * size as usize
    }

    /// The memory; null: none yet.
    pub fn start(&self) -> *mut u8 {
        self.start.load(Ordering::Acquire)
    }

    /// This is the memory: [`Room::bytes`] that live until they are taken out again.
    pub fn set_start(&self, start: *mut u8) {
        self.start.store(start, Ordering::Release);
    }

    /// There is no memory any more.
    pub fn take_start(&self) -> *mut u8 {
        let start = self.start.swap(core::ptr::null_mut(), Ordering::AcqRel);
        self.carrier.forget_memory();
        start
    }

    fn member(&self, member: u32) -> Option<NonNull<u8>> {
        debug_assert!(member < self.size);
        NonNull::new(self.start().wrapping_add(MEMBER * member as usize))
            .filter(|_| !self.start().is_null())
    }

    /// How many steps a member has finished.
    #[inline]
    pub fn finished(&self, member: u32) -> Option<&AtomicU64> {
        // SAFETY: the first word of a member's part, aligned, only used as an atomic.
        self.member(member).map(|start| unsafe { start.cast::<AtomicU64>().as_ref() })
    }

    /// Has this member ever used one of its larger slots? Each of their flags is in a page of its
    /// own, which nobody else needs.
    #[inline]
    pub fn used_chunks(&self, member: u32) -> Option<&AtomicU64> {
        let word = self.member(member)?.as_ptr().wrapping_add(size_of::<u64>());
        // SAFETY: the second word of a member's part, aligned, only used as an atomic.
        Some(unsafe { AtomicU64::from_ptr(word.cast()) })
    }

    /// The flag of a slot, and where its payload is. `number`: of the step that uses it.
    #[inline]
    pub fn slot(&self, member: u32, number: u64, line: bool) -> Option<(&AtomicU64, *mut u8)> {
        let start = self.member(member)?.as_ptr();
        let (at, payload) = if line {
            (LINE * (1 + (number % LINES) as usize), LINE_PAYLOAD)
        } else {
            (LINE * (1 + LINES as usize) + CHUNK * (number % CHUNKS) as usize, LINE)
        };
        let flag = start.wrapping_add(at);
        // SAFETY: inside the member's part, aligned to a line, only used as an atomic.
        let flag_word = unsafe { AtomicU64::from_ptr(flag.cast()) };
        Some((flag_word, flag.wrapping_add(payload)))
    }

    /// The number of the step after the last one for which a member has raised its flag.
    fn up(&self, member: u32) -> u64 {
        let flag = |line| {
            move |number| {
                self.slot(member, number, line).map_or(0, |(flag, _)| {
                    // [collective] what was put before is there.
                    flag.load(Ordering::Acquire)
                })
            }
        };
        let lines = (0..LINES).map(flag(true)).max().unwrap_or(0);
        let has_chunks =
            self.used_chunks(member).is_some_and(|used| used.load(Ordering::Acquire) != 0);
        let chunks = (0..CHUNKS).filter(|_| has_chunks).map(flag(false)).max().unwrap_or(0);
        lines.max(chunks)
    }

    /// To be called while all members are suspended for a snapshot.
    pub fn hold(&self) {
        let has_memory = !self.start().is_null();
        self.carrier.hold(has_memory.then(|| (0..self.size).map(|member| self.up(member))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustbtl_collectives::carrier::Way;

    #[test]
    fn slots_do_not_overlap_and_lie_in_the_memory() {
        let room = Room::new(3);
        let mut memory = vec![0u128; Room::bytes(3) / 16 + 8];
        let start = memory.as_mut_ptr().cast::<u8>();
        let start = start.wrapping_add(start.align_offset(LINE));
        room.set_start(start);
        let mut ranges = Vec::new();
        for member in 0..3 {
            let finished = core::ptr::from_ref(room.finished(member).unwrap()) as usize;
            ranges.push((finished, finished + LINE));
            for (line, slots, bytes) in
                [(true, LINES, LINE - LINE_PAYLOAD), (false, CHUNKS, CHUNK_BYTES as usize)]
            {
                for number in 0..slots {
                    let (flag, payload) = room.slot(member, number, line).unwrap();
                    let flag = core::ptr::from_ref(flag) as usize;
                    assert_eq!(flag % LINE, 0);
                    ranges.push((flag, payload as usize + bytes));
                }
            }
        }
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|two| two[0].1 <= two[1].0), "{ranges:x?}");
        assert!(ranges[0].0 >= start as usize);
        assert!(ranges.last().unwrap().1 <= start as usize + Room::bytes(3));
    }

    #[test]
    fn what_was_up_when_the_memory_parts_is_known_of_each_member() {
        let room = Room::new(2);
        let mut memory = vec![0u128; Room::bytes(2) / 16 + 8];
        let start = memory.as_mut_ptr().cast::<u8>();
        room.set_start(start.wrapping_add(start.align_offset(LINE)));
        assert_eq!(room.carrier.share(0), Some(true));
        room.used_chunks(1).unwrap().store(1, Ordering::Relaxed);
        for (number, line) in [(40, true), (42, true), (41, false)] {
            room.slot(1, number, line).unwrap().0.store(number + 1, Ordering::Relaxed);
        }
        let way = |writer, number| room.carrier.way(writer, number);
        assert_eq!(way(1, 99), Way::Memory);
        room.hold();
        // A thread that runs before anybody knows.
        room.slot(1, 43, true).unwrap().0.store(44, Ordering::Relaxed);
        assert_eq!((way(1, 42), way(1, 43), way(0, 0)), (Way::Memory, Way::Unknown, Way::Unknown));
        assert_eq!(room.carrier.share(0), None);
        room.carrier.go_on();
        assert_eq!(way(1, 43), Way::Memory);
        room.hold();
        room.slot(1, 44, true).unwrap().0.store(45, Ordering::Relaxed);
        room.carrier.part();
        assert_eq!((way(1, 43), way(1, 44), way(0, 0)), (Way::Memory, Way::Message, Way::Message));
        assert_eq!(room.carrier.share(0), Some(false), "some have used it, others have not");
        room.hold();
        assert_eq!(way(1, 44), Way::Message, "it was sent");
        room.carrier.part();
        assert_eq!(way(1, 44), Way::Message);
        // Other memory, later.
        assert!(!room.take_start().is_null());
        room.set_start(start.wrapping_add(start.align_offset(LINE)));
        room.hold();
        assert_eq!(way(1, 44), Way::Message, "it is not used yet");
        room.carrier.go_on();
        assert_eq!(room.carrier.share(room.carrier.partings()), Some(true));
        room.hold();
        assert_eq!(way(1, 44), Way::Memory, "noted anew");
    }
}
