//! Operations on memory ([`crate::btl::operation`]): this process asks for them and executes them.
//!
//! Long data travel as they do for a put: in frames that say where they go, over TCP read straight
//! to there. The operation, or its answer, comes behind them and is their end.

use crate::btl::frame;
use crate::btl::frame::{Way, What};
use crate::btl::operation::{Atomic, OPERATION_BYTES, Operation, Request, Result};
use crate::btl::outbox::{Cookie, Message};
use crate::btl::state::{Arrived, Outcome, State, node_bytes_max};
use crate::transports::{Incoming, Sent, Transport};
use rustbtl_fragments::ids::PeerId;

/// Data up to this size travel in the frame of the operation, if a frame holds so many.
const JOINED_BYTES_MAX: usize = 16 << 10;
/// Operations of others that are executed before Open MPI has its turn again.
pub(super) const BURST: u32 = 64;
/// Data that are none.
const NOTHING: (*const u8, usize) = (core::ptr::null(), 0);

/// Asking. Each is over later, with its cookie, unless the outcome is [`Outcome::Down`].
impl State {
    /// Write memory of a peer. When that is over, every process sees it.
    ///
    /// # Safety
    /// The data stay as they are until it is over; and Open MPI of the peer has given the address.
    pub unsafe fn ask_write(
        &mut self,
        (way, of): (Way, PeerId),
        address: u64,
        data: (*const u8, usize),
        cookie: Cookie,
    ) -> Outcome {
        let joined = data.1 <= self.joined_bytes_max(way);
        // SAFETY: the caller's promise.
        if !joined && unsafe { self.write_pieces(way, of, address, data) } == Outcome::Down {
            return Outcome::Down;
        }
        let answer = Some(self.asked.add(of, cookie, Result::None));
        let request = Request { operation: Operation::Write(address), answer };
        let data = if joined { data } else { NOTHING };
        // SAFETY: the caller's promise.
        unsafe { self.send_operation(way, of, &request, data) }
    }

    /// Read memory of a peer.
    ///
    /// # Safety
    /// Nobody else uses `into` until it is over; and Open MPI of the peer has given the address.
    pub unsafe fn ask_read(
        &mut self,
        (way, of): (Way, PeerId),
        address: u64,
        (into, len): (*mut u8, usize),
        cookie: Cookie,
    ) -> Outcome {
        let answer = Some(self.asked.add(of, cookie, Result::Data(into, len)));
        let operation = Operation::Read(address, len as u64, into as u64);
        // SAFETY: no data.
        unsafe { self.send_operation(way, of, &Request { operation, answer }, NOTHING) }
    }

    /// Change memory of a peer; what was there before goes to `into`, if that is not null.
    ///
    /// # Safety
    /// As for [`Self::ask_read`].
    pub unsafe fn ask_change(
        &mut self,
        (way, of): (Way, PeerId),
        atomic: Atomic,
        into: *mut u8,
        cookie: Cookie,
    ) -> Outcome {
        let width = if atomic.narrow { 4 } else { 8 };
        let result = if into.is_null() { Result::None } else { Result::Value(into, width) };
        let answer = Some(self.asked.add(of, cookie, result));
        let request = Request { operation: Operation::Change(atomic), answer };
        // SAFETY: no data.
        unsafe { self.send_operation(way, of, &request, NOTHING) }
    }

    /// Write memory of a process of another node, or keep what has no room until there is.
    ///
    /// # Safety
    /// The memory stays as it is until [`Outcome::Done`], or until the cookie is over; and Open MPI
    /// of the other process has given the address.
    pub unsafe fn put(
        &mut self,
        to: PeerId,
        address: u64,
        (start, len): (*const u8, usize),
        cookie: Cookie,
    ) -> Outcome {
        let piece_bytes = self.settings.tcp.chunk_bytes_max as usize;
        let mut at = 0;
        loop {
            let bytes = piece_bytes.min(len - at);
            let last = at + bytes == len;
            let message = Message {
                what: What::Put(address + at as u64),
                first: (start.wrapping_add(at), bytes),
                second: (core::ptr::null(), 0),
            };
            // They leave in order: the last one is the end of all.
            let cookie = if last { cookie } else { 0 };
            // SAFETY: the caller's promise.
            let outcome = unsafe { self.send(Way::Network, to, message, cookie) };
            if last || outcome == Outcome::Down {
                return outcome;
            }
            at += bytes;
        }
    }

    fn joined_bytes_max(&self, way: Way) -> usize {
        match way {
            Way::Node => JOINED_BYTES_MAX.min(self.piece_bytes_max(way)),
            Way::Network => {
                let chunk_bytes = self.settings.tcp.chunk_bytes_max as usize;
                JOINED_BYTES_MAX.min(chunk_bytes.saturating_sub(OPERATION_BYTES))
            }
        }
    }

    /// The largest piece that a frame holds behind an operation.
    fn piece_bytes_max(&self, way: Way) -> usize {
        match way {
            Way::Node => {
                let ring_bytes = self.settings.segment.ring_bytes;
                node_bytes_max(ring_bytes, self.place.local.len()) - OPERATION_BYTES
            }
            Way::Network => self.settings.tcp.chunk_bytes_max as usize,
        }
    }

    /// # Safety
    /// The data stay as they are until what is sent next has arrived.
    unsafe fn write_pieces(
        &mut self,
        way: Way,
        to: PeerId,
        address: u64,
        (start, len): (*const u8, usize),
    ) -> Outcome {
        if way == Way::Network {
            // SAFETY: the caller's promise.
            return unsafe { self.put(to, address, (start, len), 0) };
        }
        let piece_bytes = self.piece_bytes_max(way);
        for at in (0..len).step_by(piece_bytes) {
            let operation = Operation::Write(address + at as u64);
            let piece = (start.wrapping_add(at), piece_bytes.min(len - at));
            let request = Request { operation, answer: None };
            // SAFETY: the caller's promise.
            if unsafe { self.send_operation(way, to, &request, piece) } == Outcome::Down {
                return Outcome::Down;
            }
        }
        Outcome::Done
    }

    /// # Safety
    /// The data stay as they are until an answer, or until what is sent next has arrived.
    unsafe fn send_operation(
        &mut self,
        way: Way,
        to: PeerId,
        request: &Request,
        data: (*const u8, usize),
    ) -> Outcome {
        let head = request.encode();
        let first = (head.as_ptr(), OPERATION_BYTES);
        let message = Message { what: What::Operation, first, second: data };
        let mut taken = 0;
        if self.outbox.is_empty_to(to) {
            // SAFETY: the caller's promise, and `head` lives.
            match unsafe { self.offer(way, to, &message, 0) } {
                Sent::Accepted => return Outcome::Done,
                Sent::Down => return Outcome::Down,
                Sent::Full(n) => taken = n,
            }
        }
        self.outbox.keep_operation(to, way, (&head, data), taken, 0);
        Outcome::NoRoom
    }
}

/// Executing.
impl State {
    /// A frame of a neighbour that is no message of Open MPI. The next one that is.
    #[cold]
    #[inline(never)]
    pub(super) fn read_operations(&mut self, mut frame: Incoming) -> Option<Arrived> {
        for _ in 0..BURST {
            match frame::read(Way::Node, self.bytes(&frame)) {
                Some(What::Message(tag)) => return Some(Arrived::new(Way::Node, tag, frame)),
                Some(What::Operation) => self.execute(Way::Node, frame),
                _ => {
                    self.refuse(Way::Node, frame);
                    return None;
                }
            }
            frame = self.node.as_mut()?.peek()?;
        }
        None
    }

    /// Execute what this frame asks for, or end what it answers.
    pub(super) fn execute(&mut self, way: Way, frame: Incoming) {
        let from = frame.from;
        let payload = self.bytes(&frame).split_at(way.head_bytes()).1;
        let Some((request, data)) = Request::decode(payload) else {
            return self.refuse(way, frame);
        };
        let mut value = 0;
        match request.operation {
            Operation::Write(address) => {
                // SAFETY: Open MPI on the other side, which has proved that it belongs to the job,
                // was given this memory by ours, and nobody else uses it meanwhile.
                unsafe { (address as *mut u8).copy_from(data.as_ptr(), data.len()) };
            }
            // SAFETY: as above; threads that use it do so by instructions that are atomic.
            Operation::Change(of) => value = unsafe { of.execute() },
            Operation::Read(..) => {}
            Operation::Answer(value) => {
                if !self.end(&request, from, value, data) {
                    return self.refuse(way, frame);
                }
            }
        }
        self.consume_frame(way, frame);
        match request.operation {
            Operation::Answer(_) => {}
            Operation::Read(address, len, into) => {
                let data = (address as *const u8, len as usize);
                self.answer_read(way, from, data, into, &request);
            }
            _ if request.answer.is_none() => {}
            _ => {
                let answer = Request { operation: Operation::Answer(value), ..request };
                // SAFETY: no data. If the peer is lost, that is told as news.
                unsafe { self.send_operation(way, from, &answer, NOTHING) };
            }
        }
    }

    fn answer_read(
        &mut self,
        way: Way,
        to: PeerId,
        data: (*const u8, usize),
        into: u64,
        request: &Request,
    ) {
        let answer = Request { operation: Operation::Answer(0), ..*request };
        let joined = data.1 <= self.joined_bytes_max(way);
        // SAFETY: Open MPI keeps what others may read until they have it: they wait for the answer.
        if !joined && unsafe { self.write_pieces(way, to, into, data) } == Outcome::Down {
            return;
        }
        // SAFETY: as above.
        unsafe { self.send_operation(way, to, &answer, if joined { data } else { NOTHING }) };
    }

    /// What this process asked is over. False: it has not asked that.
    fn end(&mut self, request: &Request, from: PeerId, value: u64, data: &[u8]) -> bool {
        let Some(answer) = request.answer else { return false };
        let Some((cookie, result)) = self.asked.take(from, answer) else { return false };
        let bytes = value.to_le_bytes();
        let (into, data) = match result {
            Result::Value(into, width) if data.is_empty() => (into, &bytes[..width]),
            Result::Data(into, len) if data.is_empty() || data.len() == len => (into, data),
            Result::None if data.is_empty() => (core::ptr::null_mut(), data),
            _ => return false,
        };
        if !data.is_empty() {
            // SAFETY: who asked keeps so much room for it until it is over.
            unsafe { into.copy_from(data.as_ptr(), data.len()) };
        }
        self.outbox.is_over(cookie);
        true
    }
}
