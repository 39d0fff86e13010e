//! Long payloads: the receiver reads them by RDMA from where they lie.
//!
//! The sender registers the memory and exposes it (exposures.rs); its processor has no part in the
//! rest. What is read comes into bounce buffers, a piece at a time, and is copied from there: the
//! receiver's memory is not registered, so whatever the program does with that does no harm, and a
//! queue pair that fails leaves nobody behind that still writes there.

use super::VerbsTransport;
use super::adapter::{Adapter, Outstanding, SENDS_OF_CHANNEL};
use super::api::{SendWork, Verbs, Work};
use super::buffers::Buffers;
use super::exposures::{Exposed, Exposure, WAITING_MAX};
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
    /// Of that, what has to be asked for again: where, and how many bytes.
    again: Vec<(usize, usize)>,
    /// Copied to its place.
    copied: usize,
}

/// A piece of one, under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    reading: u64,
    offset: usize,
    bytes: usize,
    bounce_buffer: u16,
    rail: Rail,
}

/// Which port something is read by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rail {
    First,
    Second,
}

/// What a process reads from its peers.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// In turn.
    all: VecDeque<Reading>,
    pieces: Vec<Piece>,
    finished: VecDeque<(PeerId, u64)>,
    next: u64,
    /// Pieces that have come, by the first and by the second port.
    pub(super) pieces_read: [u64; 2],
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
                // Without a key there it is read by the first port alone.
                let reads_there = queue.second.as_ref().is_some_and(|second| second.reads > 0);
                let second_rkey = self.second.as_mut().filter(|_| reads_there).and_then(|rail| {
                    let adapter = &mut rail.adapter;
                    let (verbs, device) = (&adapter.verbs, adapter.device);
                    let memory = memory.clone();
                    // SAFETY: the caller's promise.
                    unsafe { adapter.registrations.expose(verbs, device, memory, lasts) }.ok()
                });
                let (start, bytes) = (bytes.start as u64, bytes.len() as u64);
                queue.unsent_exposures.push(Exposure { id, start, bytes, rkey, second_rkey });
                channel.exposed.insert(id, Exposed { memory, rkey, second_rkey });
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
        let Some(exposed) = self.channels[at].exposed.remove(id) else { return };
        let Exposed { memory, rkey, second_rkey } = exposed;
        self.adapter.registrations.withdraw(&self.adapter.verbs, &memory, rkey);
        if let (Some(rail), Some(rkey)) = (&mut self.second, second_rkey) {
            rail.adapter.registrations.withdraw(&rail.adapter.verbs, &memory, rkey);
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
        let again = Vec::new();
        let (channel, posted, copied) = (at, 0, 0);
        let reading = Reading { number, channel, exposure, into, bytes, posted, again, copied };
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
            idle = if self.post_read() { 0 } else { idle + 1 };
        }
    }

    /// The port that this is to be read by next, the one with more room: none has any, or one.
    fn rail_for(&self, reading: &Reading) -> Option<Rail> {
        let queue = self.channels[reading.channel].queue.as_ref()?;
        let room = |adapter: &Adapter<V>, outstanding: &Outstanding| {
            let is_free =
                outstanding.len() < SENDS_OF_CHANNEL && adapter.in_flight < adapter.in_flight_max;
            if is_free { adapter.buffers.bounce_buffers() } else { 0 }
        };
        let first = room(&self.adapter, &queue.outstanding);
        let second = match (&self.second, &queue.second, reading.exposure.second_rkey) {
            (Some(rail), Some(queue), Some(_)) if queue.reads > 0 => {
                room(&rail.adapter, &queue.outstanding)
            }
            _ => 0,
        };
        match (first, second) {
            (0, 0) => None,
            _ if second > first => Some(Rail::Second),
            _ => Some(Rail::First),
        }
    }

    /// Ask for the next piece of the payload whose turn it is: was there one, and room for it?
    fn post_read(&mut self) -> bool {
        let Some(mut reading) = self.reads.all.pop_front() else { return false };
        let at = reading.channel;
        let next = reading.again.last().copied();
        let (offset, left) = next.unwrap_or((reading.posted, reading.bytes - reading.posted));
        let rail = if left > 0 { self.rail_for(&reading) } else { None };
        let Some(rail) = rail else {
            self.reads.all.push_back(reading);
            return false;
        };
        let posted = self.post_piece_of(&reading, rail, offset, left);
        if let Ok(piece) = posted {
            match reading.again.last_mut() {
                Some(rest) if rest.1 > piece.bytes => {
                    *rest = (rest.0 + piece.bytes, rest.1 - piece.bytes);
                }
                Some(_) => drop(reading.again.pop()),
                None => reading.posted += piece.bytes,
            }
            self.reads.pieces.push(piece);
        }
        self.reads.all.push_back(reading);
        match (posted, rail) {
            (Ok(_), _) => true,
            (Err(code), Rail::First) => {
                self.fail(at, &format!("ibv_post_send: {}", crate::os::errno_text(code)));
                false
            }
            (Err(_), Rail::Second) => {
                self.retire_second(at);
                false
            }
        }
    }

    /// Post the read of a piece from there on, of which so much is left.
    fn post_piece_of(
        &mut self,
        reading: &Reading,
        rail: Rail,
        offset: usize,
        left: usize,
    ) -> Result<Piece, i32> {
        let queue = self.channels[reading.channel].queue.as_mut().ok_or(libc::EINVAL)?;
        let exposure = &reading.exposure;
        let (adapter, qp, outstanding, rkey) = match (rail, &mut self.second, &mut queue.second) {
            (Rail::Second, Some(rail), Some(second)) => {
                let rkey = exposure.second_rkey.ok_or(libc::EINVAL)?;
                (&mut rail.adapter, second.qp, &mut second.outstanding, rkey)
            }
            (Rail::Second, ..) => return Err(libc::EINVAL),
            (Rail::First, ..) => {
                queue.unsignaled = 0;
                (&mut self.adapter, queue.qp, &mut queue.outstanding, exposure.rkey)
            }
        };
        let bounce_buffer = adapter.buffers.take_bounce_buffer().ok_or(libc::ENOMEM)?;
        let bytes = left.min(adapter.buffers.bounce_bytes());
        let start = adapter.buffers.bounce_buffer(bounce_buffer) as u64;
        let piece = super::api::Piece { start, len: bytes as u32, lkey: adapter.lkey };
        let work = Work::Read { start: exposure.start + offset as u64, rkey };
        let id = outstanding.next_id();
        let work = SendWork { id, work, piece, signaled: true, inline: false };
        // SAFETY: the bounce buffer is the adapter's until the completion.
        if let Err(code) = unsafe { adapter.verbs.post_send(qp, &work) } {
            adapter.buffers.give_back(bounce_buffer);
            return Err(code);
        }
        outstanding.push(bounce_buffer);
        adapter.in_flight += 1;
        Ok(Piece { reading: reading.number, offset, bytes, bounce_buffer, rail })
    }

    /// Pieces are here (`is_done`), or will never be: copy them, and use the bounce buffers again.
    pub(super) fn take_bounced(&mut self, rail: Rail, is_done: bool) {
        let mut bounced = core::mem::take(&mut self.bounced);
        for buffer in bounced.drain(..) {
            let is_it = |piece: &Piece| (piece.bounce_buffer, piece.rail) == (buffer, rail);
            let known = self.reads.pieces.iter().position(is_it);
            match known.map(|at| self.reads.pieces.swap_remove(at)) {
                Some(piece) if is_done => self.copy_bounced(piece),
                Some(piece) => self.ask_again(piece),
                None => {}
            }
            self.buffers_of(rail).give_back(buffer);
        }
        self.bounced = bounced;
        self.post_reads();
    }

    fn buffers_of(&mut self, rail: Rail) -> &mut Buffers {
        match (rail, &mut self.second) {
            (Rail::Second, Some(rail)) => &mut rail.adapter.buffers,
            _ => &mut self.adapter.buffers,
        }
    }

    fn ask_again(&mut self, piece: Piece) {
        let mut all = self.reads.all.iter_mut();
        if let Some(reading) = all.find(|reading| reading.number == piece.reading) {
            reading.again.push((piece.offset, piece.bytes));
        }
    }

    /// What a channel was reading by the second port is read by the first one. The bounce buffers
    /// come back with the completions.
    pub(super) fn read_again(&mut self, at: usize) {
        let all = &self.reads.all;
        let of = |number| all.iter().any(|one| one.number == number && one.channel == at);
        let is_lost = |piece: &Piece| piece.rail == Rail::Second && of(piece.reading);
        let lost: Vec<Piece> = self.reads.pieces.iter().copied().filter(is_lost).collect();
        self.reads.pieces.retain(|piece| !lost.contains(piece));
        for piece in lost {
            self.ask_again(piece);
        }
    }

    fn copy_bounced(&mut self, piece: Piece) {
        let buffers = match (piece.rail, &self.second) {
            (Rail::Second, Some(rail)) => &rail.adapter.buffers,
            _ => &self.adapter.buffers,
        };
        let all = &mut self.reads.all;
        let Some(at) = all.iter().position(|reading| reading.number == piece.reading) else {
            return;
        };
        let reading = &mut all[at];
        let from = buffers.bounce_buffer(piece.bounce_buffer);
        let into = reading.into.wrapping_add(piece.offset);
        // SAFETY: the receive's memory, by the promise of whoever asked; the bounce buffer is
        // not the adapter's any more.
        unsafe { core::ptr::copy_nonoverlapping(from, into, piece.bytes) };
        reading.copied += piece.bytes;
        self.reads.pieces_read[piece.rail as usize] += 1;
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
