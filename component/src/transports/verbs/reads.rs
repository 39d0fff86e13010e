//! Long payloads: the receiver reads them by RDMA from where they lie.
//!
//! The sender registers the memory and exposes it (exposures.rs); its processor has no part in the
//! rest. What is read comes into bounce buffers, a piece at a time, and is copied from there: the
//! receiver's memory is not registered, so whatever the program does with that does no harm, and a
//! queue pair that fails leaves nobody behind that still writes there.

use super::VerbsTransport;
use super::adapter::SENDS_OF_CHANNEL;
use super::api::*;
use super::exposures::{Exposure, WAITING_MAX};
use crate::transports::{Carrier, Pulled};
use core::ops::Range;
use rustbtl_fragments::ids::PeerId;
use std::collections::VecDeque;

/// A payload that is being read.
#[derive(Debug)]
struct Reading {
    /// Names it in this process.
    number: u64,
    /// Index of the channel.
    channel: usize,
    /// The exposure: its id, and where the peer has it.
    exposure: Exposure,
    into: *mut u8,
    bytes: usize,
    /// Asked for so far.
    posted: usize,
    /// Copied to its place.
    copied: usize,
}

/// A piece of one, under way.
#[derive(Clone, Copy, Debug)]
struct Piece {
    reading: u64,
    offset: usize,
    bytes: usize,
    bounce_buffer: u16,
}

/// What a process reads from its peers.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// In turn.
    all: VecDeque<Reading>,
    pieces: Vec<Piece>,
    finished: VecDeque<(PeerId, u64)>,
    next: u64,
}

// SAFETY: the destinations belong to receives of the engine, which whoever has the transport has.
unsafe impl Send for Reads {}

impl Reads {
    /// Is anything to be read?
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

impl<V: Verbs, C: Carrier> VerbsTransport<V, C> {
    /// See `Transport::expose`.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn expose_memory(
        &mut self,
        to: PeerId,
        id: u64,
        bytes: Range<usize>,
        home: Option<Range<usize>>,
    ) -> bool {
        let least = self.adapter.sizes.read_bytes_min;
        let Some(at) = self.channel(to) else { return false };
        let channel = &mut self.channels[at];
        let Some(queue) = channel.queue.as_mut().filter(|_| channel.sends_by_queue) else {
            return false;
        };
        let may = queue.reads > 0 && queue.unsent_exposures.len() < WAITING_MAX;
        if !may || least == 0 || bytes.len() < least || channel.exposed.is_taken(id) {
            return false;
        }
        let lasts = home.is_some();
        let memory = home.unwrap_or(bytes.clone());
        debug_assert!(memory.start <= bytes.start && bytes.end <= memory.end);
        let adapter = &mut self.adapter;
        let (verbs, device) = (&adapter.verbs, adapter.device);
        // SAFETY: the caller's promise.
        match unsafe { adapter.registrations.expose(verbs, device, memory.clone(), lasts) } {
            Ok(rkey) => {
                let (start, bytes) = (bytes.start as u64, bytes.len() as u64);
                queue.unsent_exposures.push(Exposure { id, start, bytes, rkey });
                channel.exposed.insert(id, (memory, rkey));
                true
            }
            Err(why) => {
                if let Some(error) = why {
                    let text = "the limit of locked memory (ulimit -l) may be too low";
                    self.notice(format!("{error}; long messages are sent in pieces: {text}"));
                }
                false
            }
        }
    }

    /// See `Transport::withdraw`.
    pub(super) fn end_exposure(&mut self, to: PeerId, id: u64) {
        let Some(at) = self.channel(to) else { return };
        if let Some((memory, rkey)) = self.channels[at].exposed.remove(id) {
            self.adapter.registrations.withdraw(&self.adapter.verbs, &memory, rkey);
        }
    }

    /// See `Transport::pull`.
    ///
    /// # Safety
    /// `into` is writable for so many bytes until the pull is over, or the channel is down.
    pub(super) unsafe fn read(
        &mut self,
        from: PeerId,
        id: u64,
        offset: usize,
        into: *mut u8,
        bytes: usize,
    ) -> Pulled {
        let Some(at) = self.channel(from) else { return Pulled::Refused };
        let Some(queue) = self.channels[at].queue.as_ref() else { return Pulled::Refused };
        // V7
        let Some(exposure) = queue.exposures.get(id) else { return Pulled::Refused };
        let fits =
            (offset as u64).checked_add(bytes as u64).is_some_and(|end| end <= exposure.bytes);
        let Some(start) = exposure.start.checked_add(offset as u64).filter(|_| fits) else {
            return Pulled::Refused;
        };
        if queue.reads == 0 || bytes == 0 {
            return Pulled::Refused;
        }
        let exposure = Exposure { start, ..*exposure };
        let number = self.reads.next;
        self.reads.next += 1;
        let reading = Reading { number, channel: at, exposure, into, bytes, posted: 0, copied: 0 };
        self.reads.all.push_back(reading);
        self.post_reads();
        Pulled::Started
    }

    /// See `Transport::pulled`.
    #[inline]
    pub(super) fn finished_read(&mut self) -> Option<(PeerId, u64)> {
        self.reads.finished.pop_front()
    }

    /// Ask for pieces while there is room, of all payloads in turn.
    pub(super) fn post_reads(&mut self) {
        // So many have been found to have no room, or nothing to ask for.
        let mut idle = 0;
        while idle < self.reads.all.len() {
            match self.post_read() {
                Some(true) => idle = 0,
                Some(false) => idle += 1,
                None => return,
            }
        }
    }

    /// The next piece of the payload whose turn it is: was it asked for? `None`: there are no
    /// bounce buffers, or a channel has failed.
    fn post_read(&mut self) -> Option<bool> {
        let mut reading = self.reads.all.pop_front()?;
        let at = reading.channel;
        let left = reading.bytes - reading.posted;
        let adapter = &mut self.adapter;
        let queue = self.channels[at].queue.as_mut();
        let queue = queue.filter(|queue| queue.outstanding.len() < SENDS_OF_CHANNEL);
        let may = left > 0 && adapter.in_flight < adapter.in_flight_max;
        let (Some(queue), true) = (queue, may) else {
            self.reads.all.push_back(reading);
            return Some(false);
        };
        let Some(bounce_buffer) = adapter.buffers.take_bounce_buffer() else {
            self.reads.all.push_front(reading);
            return None;
        };
        let (offset, bytes) = (reading.posted, left.min(adapter.buffers.bounce_bytes()));
        let start = adapter.buffers.bounce_buffer(bounce_buffer) as u64;
        let piece = super::api::Piece { start, len: bytes as u32, lkey: adapter.lkey };
        let start = reading.exposure.start + offset as u64;
        let work = Work::Read { start, rkey: reading.exposure.rkey };
        let id = queue.outstanding.next_id();
        let work = SendWork { id, work, piece, signaled: true, inline: false };
        // SAFETY: the bounce buffer is the adapter's until the completion.
        let posted = unsafe { adapter.verbs.post_send(queue.qp, &work) };
        if posted.is_ok() {
            queue.outstanding.push(bounce_buffer);
            queue.unsignaled = 0;
            adapter.in_flight += 1;
            self.reads.pieces.push(Piece { reading: reading.number, offset, bytes, bounce_buffer });
            reading.posted += bytes;
        } else {
            adapter.buffers.give_back(bounce_buffer);
        }
        self.reads.all.push_back(reading);
        match posted {
            Ok(()) => Some(true),
            Err(code) => {
                self.fail(at, &format!("ibv_post_send: {}", crate::os::errno_text(code)));
                None
            }
        }
    }

    /// Pieces are here (`is_done`), or will never be: copy them, and use the bounce buffers again.
    #[cold]
    pub(super) fn take_bounced(&mut self, is_done: bool) {
        let mut bounced = core::mem::take(&mut self.bounced);
        for bounce_buffer in bounced.drain(..) {
            let known =
                self.reads.pieces.iter().position(|piece| piece.bounce_buffer == bounce_buffer);
            if let Some(piece) = known.map(|at| self.reads.pieces.swap_remove(at))
                && is_done
            {
                self.copy_bounced(piece);
            }
            self.adapter.buffers.give_back(bounce_buffer);
        }
        self.bounced = bounced;
        self.post_reads();
    }

    fn copy_bounced(&mut self, piece: Piece) {
        let all = &mut self.reads.all;
        let Some(at) = all.iter().position(|reading| reading.number == piece.reading) else {
            return;
        };
        let reading = &mut all[at];
        let from = self.adapter.buffers.bounce_buffer(piece.bounce_buffer);
        let into = reading.into.wrapping_add(piece.offset);
        // SAFETY: the receive's memory, by the promise of whoever asked; the bounce buffer is
        // not the adapter's any more.
        unsafe { core::ptr::copy_nonoverlapping(from, into, piece.bytes) };
        reading.copied += piece.bytes;
        if reading.copied == reading.bytes {
            let peer = self.channels[reading.channel].peer;
            self.reads.finished.push_back((peer, reading.exposure.id));
            all.remove(at);
        }
    }

    /// The queue pair of a channel is gone, and with it what is read there. Bounce buffers come
    /// back with the completions.
    pub(super) fn forget_reads(&mut self, at: usize) {
        let peer = self.channels[at].peer;
        self.reads.all.retain(|reading| reading.channel != at);
        self.reads.finished.retain(|(of, _)| *of != peer);
        let all = &self.reads.all;
        self.reads.pieces.retain(|piece| all.iter().any(|one| one.number == piece.reading));
    }
}
