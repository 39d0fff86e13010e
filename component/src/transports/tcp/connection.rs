//! One open connection: frames out of a large buffer, frames in by reference.

pub mod direct_placement;
mod receive_window;
pub mod wire;

use crate::os::socket;
use crate::os::socket::Io;
use crate::transports::tcp::connection::direct_placement::DirectPlacement;
use crate::transports::tcp::connection::receive_window::ReceiveWindow;
use crate::transports::tcp::connection::wire::{FORGED, ROOM_MIN, Wire};
use crate::transports::{Payload, Sent};
use rustbtl_fragments::ids::PeerId;
use rustbtl_fragments::wire::{HEADER_BYTES, Header, VERSION};
use std::io::IoSlice;
use std::net::{Shutdown, SocketAddr};

/// A record of 8 bytes, shorter than any frame: nothing follows.
const GOODBYE: [u8; 8] = [8, 0, 0, 0, VERSION, 0xFF, 0, 0];
/// Small frames sent without progress in between go out at once up to this many; the following
/// ones are gathered.
const GATHER_AFTER: u32 = 2;
/// Gathered bytes are pushed out from here on.
const GATHERED_PUSH: usize = 32 << 10;
/// The rest of a frame that the kernel took in part is kept here if it is not longer than this;
/// a longer one is left to the caller.
const REST_KEPT: usize = 16 << 10;

/// What the inbox starts with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    Frame(*const u8, usize),
    Goodbye,
    /// No complete frame.
    Nothing,
    /// No frame can start like this.
    Garbage(u32),
}

/// What a read brought.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fill {
    Some,
    Nothing,
    Lost(String),
}

/// An open connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) wire: Wire,
    pub(super) peer: PeerId,
    /// Index of the peer.
    pub(super) slot: usize,
    address: SocketAddr,
    window: ReceiveWindow,
    inbox: Box<[u8]>,
    /// Unread bytes of the inbox: `start..filled`.
    start: usize,
    filled: usize,
    frame_bytes_max: usize,
    /// Which payloads may have a place of their own.
    pub(super) places: fn(&[u8; HEADER_BYTES]) -> bool,
    /// A payload that does not come by way of the inbox, which is empty while it is not complete.
    direct: Option<DirectPlacement>,
    /// The frame at the start of the inbox comes by way of it, however long it is.
    refused: bool,
    /// Long payloads follow each other: little is read into the inbox at a time.
    short_reads: bool,
    /// Accepted and not yet written: from `pushed` on.
    outbox: Vec<u8>,
    pushed: usize,
    gather_bytes_max: usize,
    /// What is held is determinants that go with the next frame, and maybe that frame.
    ahead: bool,
    /// Small frames since the last progress, and when that was.
    burst: u32,
    epoch: u64,
    /// The kernel had no room in this epoch.
    full_in: u64,
    /// Writing fails; reading may still bring what came before.
    mute: bool,
    /// We said goodbye, and the kernel has it.
    pub(super) finished: bool,
    /// In the list of those that have a complete frame.
    pub(super) listed: bool,
    /// In the list of those that hold bytes.
    pub(super) dirty: bool,
}

impl Connection {
    pub(super) fn new(
        wire: Wire,
        peer: PeerId,
        slot: usize,
        address: SocketAddr,
        inbox_bytes: usize,
        frame_bytes_max: usize,
        gather_bytes_max: usize,
    ) -> Self {
        let room = if wire.is_sealed() { 2 * ROOM_MIN } else { 0 };
        Self {
            wire,
            peer,
            slot,
            address,
            window: ReceiveWindow::default(),
            inbox: vec![0; inbox_bytes.max(2 * frame_bytes_max + room)].into(),
            start: 0,
            filled: 0,
            frame_bytes_max,
            places: |_| false,
            direct: None,
            refused: false,
            short_reads: false,
            outbox: Vec::new(),
            pushed: 0,
            gather_bytes_max,
            ahead: false,
            burst: 0,
            epoch: 0,
            full_in: 0,
            mute: false,
            finished: false,
            listed: false,
            dirty: false,
        }
    }

    /// What comes next. Cheap.
    #[inline]
    pub(super) fn next(&self) -> Next {
        let unread = &self.inbox[self.start..self.filled];
        let Some(head) = unread.first_chunk::<4>() else { return Next::Nothing };
        let length = u32::from_le_bytes(*head);
        let len = length as usize;
        if len < HEADER_BYTES || len > self.frame_bytes_max {
            return match unread.first_chunk::<8>() {
                Some(&GOODBYE) => Next::Goodbye,
                None if head[..] == GOODBYE[..4] => Next::Nothing,
                _ => Next::Garbage(length),
            };
        }
        if unread.len() < len {
            return Next::Nothing;
        }
        Next::Frame(unread.as_ptr(), len)
    }

    /// The frame at the start is done with. True: it had determinants that go with another one.
    #[inline]
    pub(super) fn consume(&mut self, len: usize) -> bool {
        debug_assert!(self.start + len <= self.filled);
        let determinants = Header::is_piggyback(&self.inbox[self.start..]);
        self.start += len;
        self.refused = false;
        self.short_reads &=
            len <= crate::transports::tcp::connection::direct_placement::SHORT_READ_BYTES;
        determinants
    }

    /// Read more. Only when `next` has said [`Next::Nothing`]: bytes may move.
    #[inline]
    pub(super) fn fill(&mut self) -> Fill {
        if self.direct.is_some() {
            return self.fill_direct();
        }
        if self.start == self.filled {
            self.start = 0;
            self.filled = 0;
        } else if self.start + self.frame_bytes_max > self.inbox.len()
            || self.wire.is_sealed() && self.inbox.len() - self.filled < ROOM_MIN
        {
            // The started frame must fit behind what there is of it, and so must a record.
            self.inbox.copy_within(self.start..self.filled, 0);
            self.filled -= self.start;
            self.start = 0;
        }
        let end = match self.short_reads {
            true => self.inbox.len().min(
                self.filled
                    + crate::transports::tcp::connection::direct_placement::SHORT_READ_BYTES,
            ),
            false => self.inbox.len(),
        };
        match self.wire.receive(&mut self.inbox[self.filled..end]) {
            Io::Done(n) => {
                self.filled += n;
                self.window.has_read(&self.wire.stream);
                Fill::Some
            }
            other => self.not_filled(other),
        }
    }

    fn not_filled(&self, io: Io) -> Fill {
        match io {
            Io::Done(_) | Io::WouldBlock => Fill::Nothing,
            Io::End => Fill::Lost(format!("{} closed the connection", self.address)),
            Io::Broken(FORGED) => {
                Fill::Lost(format!("what {} sent was changed on its way", self.address))
            }
            Io::Broken(code) => {
                Fill::Lost(format!("connection to {}: {}", self.address, socket::broken(code)))
            }
        }
    }

    /// Throw away what has arrived and look whether the other end has closed.
    pub(super) fn drain(&mut self) -> bool {
        self.direct = None;
        self.start = 0;
        self.filled = 0;
        loop {
            match socket::receive(&self.wire.stream, &mut self.inbox) {
                Io::Done(_) => {}
                Io::WouldBlock => return false,
                Io::End | Io::Broken(_) => return true,
            }
        }
    }

    /// Bytes accepted and not yet written.
    #[inline]
    pub(super) fn held(&self) -> usize {
        self.outbox.len() - self.pushed + self.wire.waiting()
    }

    /// See [`crate::transports::Transport::send`]. `epoch` changes with every progress.
    #[inline]
    pub(super) fn send(
        &mut self,
        header: &[u8],
        payload: Payload<'_>,
        taken: usize,
        epoch: u64,
    ) -> Sent {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.burst = 0;
        }
        let total = header.len() + payload.len();
        let small = taken == 0 && total <= self.gather_bytes_max;
        let has_room = small && self.held() + total <= 2 * GATHERED_PUSH;
        if has_room && Header::is_piggyback(header) && !payload.is_empty() {
            // The frame that needs them follows at once, and both go out together. If it does not,
            // they go with what is held at the next progress.
            self.ahead |= self.held() == 0;
            self.append(header, payload);
            return Sent::Accepted;
        }
        if small {
            self.burst += 1;
        }
        if has_room && self.held() > 0 {
            self.append(header, payload);
            let at_once = core::mem::take(&mut self.ahead) && self.burst <= GATHER_AFTER;
            if at_once || self.held() >= GATHERED_PUSH {
                self.push(epoch);
            }
            return Sent::Accepted;
        }
        let at_once = !small || self.burst <= GATHER_AFTER;
        match payload {
            Payload::Bytes(bytes) if at_once => self.write(header, bytes, taken, epoch),
            _ if !self.push(epoch) => Sent::Full(taken),
            payload => {
                self.append(header, payload);
                if at_once {
                    self.push(epoch);
                }
                Sent::Accepted
            }
        }
    }

    fn append(&mut self, header: &[u8], payload: Payload<'_>) {
        self.outbox.extend_from_slice(header);
        match payload {
            Payload::Bytes(bytes) => self.outbox.extend_from_slice(bytes),
            Payload::Pack(bytes, fill) => {
                let at = self.outbox.len();
                self.outbox.resize(at + bytes, 0);
                fill(self.outbox[at..].as_mut_ptr(), bytes);
            }
        }
    }

    /// Write straight from where the bytes lie, in one piece with what is held: determinants that
    /// go with a long frame leave with it.
    fn write(&mut self, header: &[u8], bytes: &[u8], taken: usize, epoch: u64) -> Sent {
        if self.mute || self.full_in == epoch {
            return Sent::Full(taken);
        }
        let total = header.len() + bytes.len();
        let head = &header[taken.min(header.len())..];
        let body = &bytes[taken.saturating_sub(header.len())..];
        let held = self.outbox.len() - self.pushed;
        let parts = [&self.outbox[self.pushed..], head, body].map(IoSlice::new);
        let put = match self.wire.send(&parts[usize::from(held == 0)..]) {
            Io::Done(n) if n < held => {
                self.pushed += n;
                0
            }
            Io::Done(n) => {
                self.all_pushed();
                n - held
            }
            Io::WouldBlock | Io::End => 0,
            Io::Broken(_) => {
                // What came before, perhaps a goodbye, is still to be read.
                self.mute = true;
                return Sent::Full(taken);
            }
        };
        let taken = taken + put;
        if taken == total {
            return Sent::Accepted;
        }
        self.full_in = epoch;
        if taken == 0 || total - taken > REST_KEPT {
            return Sent::Full(taken);
        }
        self.outbox.extend_from_slice(&header[taken.min(header.len())..]);
        self.outbox.extend_from_slice(&bytes[taken.saturating_sub(header.len())..]);
        Sent::Accepted
    }

    /// Write what is held. True: nothing is left.
    #[inline]
    pub(super) fn push(&mut self, epoch: u64) -> bool {
        while self.held() > 0 {
            if self.mute || self.full_in == epoch {
                return false;
            }
            let put = match &self.outbox[self.pushed..] {
                [] => self.wire.flush(),
                held => self.wire.send(&[IoSlice::new(held)]),
            };
            match put {
                Io::Done(n) => self.pushed += n,
                Io::WouldBlock | Io::End => self.full_in = epoch,
                Io::Broken(_) => self.mute = true,
            }
        }
        self.all_pushed();
        true
    }

    fn all_pushed(&mut self) {
        self.outbox.clear();
        self.pushed = 0;
        self.ahead = false;
    }

    /// Can nothing be written any more?
    pub(super) fn is_silent(&self) -> bool {
        self.mute
    }

    /// The last record.
    pub(super) fn say_goodbye(&mut self) {
        self.outbox.extend_from_slice(&GOODBYE);
    }

    /// Nothing more will be written; the peer reads an end after what was written.
    pub(super) fn finish(&mut self) {
        self.finished = true;
        let _ = self.wire.stream.shutdown(Shutdown::Write);
    }

    /// To whom, for messages.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}
