//! Long payloads are read straight to where they belong, not by way of the inbox.

use crate::os::socket;
use crate::os::socket::Io;
use crate::transports::tcp::connection::{Connection, Fill};
use core::ptr::NonNull;
use rustbtl_fragments::little_endian::LittleEndian;
use rustbtl_fragments::wire::HEADER_BYTES;

/// So much of a frame must still be to come.
const LANDED_BYTES_MIN: usize = 16 << 10;
/// Read into the inbox at a time while long payloads follow each other: the beginning of the next
/// one comes with it.
pub(super) const SHORT_READ_BYTES: usize = 16 << 10;

/// Bytes of the whole frame, with which every header begins.
fn frame_bytes(head: &[u8; HEADER_BYTES]) -> usize {
    u32::read_at(head, 0) as usize
}

/// A payload that is being read.
#[derive(Debug)]
pub(super) struct DirectPlacement {
    head: [u8; HEADER_BYTES],
    /// Where the rest goes. Invariant ([`Connection::place_directly_at`]): writable for `left`
    /// bytes.
    into: NonNull<u8>,
    left: usize,
}

// SAFETY: memory of the process, which whoever has the connection may write to.
unsafe impl Send for DirectPlacement {}

impl Connection {
    /// The header of the next frame, if its payload may have a place of its own and most of it is
    /// still to come.
    pub(in crate::transports::tcp) fn unplaced(&self) -> Option<[u8; HEADER_BYTES]> {
        if self.refused || self.direct.is_some() || self.wire.is_sealed() {
            return None;
        }
        let unread = &self.inbox[self.start..self.filled];
        let head = unread.first_chunk::<HEADER_BYTES>()?;
        let len = frame_bytes(head);
        let long = len >= unread.len() + LANDED_BYTES_MIN && len <= self.frame_bytes_max;
        (long && (self.places)(head)).then_some(*head)
    }

    /// The payload of that frame has no place of its own.
    pub(in crate::transports::tcp) fn decline_direct_placement(&mut self) {
        self.refused = true;
        self.short_reads = false;
    }

    /// The payload of that frame goes to `into`.
    ///
    /// # Safety
    /// `into` is writable for all of it until [`Self::landed`] or the end of the connection, and
    /// nobody else touches it.
    pub(in crate::transports::tcp) unsafe fn place_directly_at(&mut self, into: NonNull<u8>) {
        let Some(head) = self.unplaced() else { return };
        let here = &self.inbox[self.start + HEADER_BYTES..self.filled];
        // SAFETY: `here` is shorter than the payload, for which there is room.
        unsafe { core::ptr::copy_nonoverlapping(here.as_ptr(), into.as_ptr(), here.len()) };
        // SAFETY: inside the same memory.
        let into = unsafe { into.add(here.len()) };
        let left = frame_bytes(&head) - HEADER_BYTES - here.len();
        self.direct = Some(DirectPlacement { head, into, left });
        self.start = 0;
        self.filled = 0;
        self.short_reads = true;
    }

    /// Is there a payload that is all in its place?
    pub(in crate::transports::tcp) fn has_direct_payload(&self) -> bool {
        self.direct.as_ref().is_some_and(|direct| direct.left == 0)
    }

    /// The header of the frame whose payload is all in its place.
    pub(in crate::transports::tcp) fn landed(&mut self) -> Option<[u8; HEADER_BYTES]> {
        self.direct.take_if(|direct| direct.left == 0).map(|direct| direct.head)
    }

    /// Read more of the payload, and the header of the frame behind it.
    pub(super) fn fill_direct(&mut self) -> Fill {
        let Some(direct) = self.direct.as_mut().filter(|direct| direct.left > 0) else {
            return Fill::Nothing;
        };
        let (into, left) = (direct.into, direct.left);
        let rest = &mut self.inbox[..HEADER_BYTES];
        // SAFETY: invariant of `Landing`; the inbox is other memory.
        let got = match unsafe { socket::receive_at(&self.wire.stream, into, left, rest) } {
            Io::Done(n) => n,
            other => return self.not_filled(other),
        };
        let part = got.min(left);
        // SAFETY: at most the end of the same memory.
        direct.into = unsafe { into.add(part) };
        direct.left -= part;
        self.filled = got - part;
        Fill::Some
    }
}
