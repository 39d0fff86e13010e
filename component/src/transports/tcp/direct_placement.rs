//! Which payloads have a place of their own; see `connection/direct_placement.rs`.

use crate::transports::PeerHeader;
use crate::transports::tcp::Tcp;
use crate::transports::tcp::connection::Next;
use core::ptr::NonNull;

impl Tcp {
    /// A frame of which the header is here, but most of the payload is not. [`Self::place`] is to
    /// be called next.
    pub fn unplaced(&mut self) -> Option<PeerHeader> {
        while let Some(&at) = self.unplaced.last() {
            if let Some(connection) = &self.connections[at as usize]
                && let Some(head) = connection.unplaced()
            {
                return Some((connection.peer, head));
            }
            self.unplaced.pop();
        }
        None
    }

    /// The payload of the frame that [`Self::unplaced`] has named goes to `into`, and
    /// [`Self::placed`] tells when it is there. `None`: it comes as a frame.
    ///
    /// # Safety
    /// `into` is writable for all of the payload, and nobody else touches it, until then or until
    /// the channel is down.
    pub unsafe fn place(&mut self, into: Option<NonNull<u8>>) {
        let Some(at) = self.unplaced.pop() else { return };
        let Some(connection) = &mut self.connections[at as usize] else { return };
        match into {
            // SAFETY: the caller's promise.
            Some(into) => unsafe { connection.place_directly_at(into) },
            None => connection.decline_direct_placement(),
        }
    }

    /// A frame whose payload is in its place.
    #[inline]
    pub fn placed(&mut self) -> Option<PeerHeader> {
        let at = self.landed.pop()?;
        let connection = self.connections[at as usize].as_mut()?;
        let landed = (connection.peer, connection.landed()?);
        // The frame behind it may be here already: a header is all of it.
        if connection.next() == Next::Nothing {
            self.request_direct_placement(at);
        } else {
            connection.listed = true;
            self.ready.push_back(at);
        }
        Some(landed)
    }

    /// Has a payload come to its place?
    #[inline]
    pub fn has_placed(&self) -> bool {
        !self.landed.is_empty()
    }

    /// The connection has no complete frame: has it the beginning of a long one?
    pub(super) fn request_direct_placement(&mut self, at: u32) {
        if let Some(connection) = &self.connections[at as usize]
            && connection.unplaced().is_some()
            && !self.unplaced.contains(&at)
        {
            self.unplaced.push(at);
        }
    }
}
