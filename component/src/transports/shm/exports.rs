//! Single copy: a receiver fetches a payload straight from the sender's memory.
//!
//! The sender writes address and length under the send's id into its table in the segment; the
//! receiver looks it up and reads by cross-memory attach. Whether the kernel permits that (user
//! namespaces, Yama, containers, seccomp) is found by trying once for each peer.

use crate::os::process;
use crate::transports::Pulled;
use crate::transports::shm::layout::{EXPORTS, STATE_ATTACHED};
use crate::transports::shm::segment::Segment;
use core::ops::Range;
use core::sync::atomic::Ordering;

/// May we read this peer's memory?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    Unknown,
    Permitted,
    Refused,
}

#[inline]
fn index(id: u64) -> usize {
    (id & 0xFFFF_FFFF) as usize
}

/// Put memory on offer. False: the table has no such slot, or it is taken.
#[inline]
pub(super) fn expose(segment: &Segment, to: usize, id: u64, bytes: Range<usize>) -> bool {
    if id == u64::MAX || index(id) >= EXPORTS || !segment.single_copy() {
        return false;
    }
    let slot = &segment.exports(segment.me())[index(id)];
    if slot.tag.load(Ordering::Relaxed) != 0 {
        return false;
    }
    slot.address.store(bytes.start as u64, Ordering::Relaxed);
    slot.bytes.store(bytes.len() as u64, Ordering::Relaxed);
    slot.to.store(to as u64, Ordering::Relaxed);
    // [export] the fields above belong to this id.
    slot.tag.store(!id, Ordering::Release);
    true
}

/// Take it back. Another id than the exposed one changes nothing.
#[inline]
pub(super) fn withdraw(segment: &Segment, to: usize, id: u64) {
    if index(id) >= EXPORTS {
        return;
    }
    let slot = &segment.exports(segment.me())[index(id)];
    let same = slot.tag.load(Ordering::Relaxed) == !id;
    if same && slot.to.load(Ordering::Relaxed) == to as u64 {
        slot.tag.store(0, Ordering::Release);
    }
}

/// Fetch bytes that `from` exposed to us.
///
/// # Safety
/// `into` is writable for `len` bytes.
#[inline]
pub(super) unsafe fn pull(
    segment: &Segment,
    access: &mut Access,
    from: usize,
    id: u64,
    offset: usize,
    into: *mut u8,
    len: usize,
) -> Pulled {
    if index(id) >= EXPORTS || !segment.single_copy() {
        return Pulled::Refused;
    }
    let slot = &segment.exports(from)[index(id)];
    // [export] address, length and target belong to this id.
    if slot.tag.load(Ordering::Acquire) != !id {
        return Pulled::Refused;
    }
    let bytes = slot.bytes.load(Ordering::Relaxed);
    let address = slot.address.load(Ordering::Relaxed);
    let mine = slot.to.load(Ordering::Relaxed) == segment.me() as u64;
    let fits = (offset as u64).checked_add(len as u64).is_some_and(|end| end <= bytes);
    if !mine || !fits {
        return Pulled::Refused;
    }
    if *access != Access::Permitted && !permitted(segment, access, from) {
        return Pulled::Refused;
    }
    let pid = segment.rank(from).pid.load(Ordering::Relaxed) as i32;
    // SAFETY: the caller's promise.
    let read = unsafe { process::read_memory(pid, address.wrapping_add(offset as u64), into, len) };
    // Still on offer? Else the bytes may be of something newer.
    let same = slot.tag.load(Ordering::Acquire) == !id;
    if read.is_ok() && same { Pulled::Done } else { Pulled::Refused }
}

/// Try once, and remember.
#[cold]
fn permitted(segment: &Segment, access: &mut Access, from: usize) -> bool {
    if *access == Access::Unknown {
        *access = if probe(segment, from) { Access::Permitted } else { Access::Refused };
    }
    *access == Access::Permitted
}

/// The system does not let us access a process's memory, or single copies are switched off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inaccessible;

/// Whose memory it is, if it may be accessed. `None`: the process is not there yet.
pub(super) fn accessible(segment: &Segment, from: usize) -> Option<Result<i32, Inaccessible>> {
    let line = segment.rank(from);
    // [state]
    if line.state.load(Ordering::Acquire) < STATE_ATTACHED {
        return None;
    }
    let may = segment.single_copy() && probe(segment, from);
    Some(if may { Ok(line.pid.load(Ordering::Relaxed) as i32) } else { Err(Inaccessible) })
}

/// Read the word that `from` shows for this purpose: also finds a process id that means another
/// process here (pid namespaces).
fn probe(segment: &Segment, from: usize) -> bool {
    let rank_line = segment.rank(from);
    // [state] pid and probe were stored before.
    if rank_line.state.load(Ordering::Acquire) < STATE_ATTACHED {
        return false;
    }
    let pid = rank_line.pid.load(Ordering::Relaxed) as i32;
    let address = rank_line.probe_address.load(Ordering::Relaxed);
    let expected = rank_line.probe_value.load(Ordering::Relaxed);
    let mut found = [0; 8];
    // SAFETY: `found` has 8 bytes.
    let read = unsafe { process::read_memory(pid, address, found.as_mut_ptr(), 8) };
    read.is_ok() && u64::from_ne_bytes(found) == expected
}
