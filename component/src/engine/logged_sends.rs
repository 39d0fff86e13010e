//! Sends that end later than the call that made them: their copy in the log is still being made, or
//! a network has gathered them.

use crate::engine::host::EngineHost;
use crate::engine::transmit::transmit;
use crate::ffi::collective_tags::collective_of;
use crate::ffi::operation::Op;
use crate::os::ticks;
use crate::payload_log::deferred_copy::Copied;
use crate::transports::Payload as Outgoing;
use core::ops::Range;
use rustbtl_fragments::engine::PayloadMismatch;
use rustbtl_fragments::host::{LogEntry, Transmit};
use rustbtl_fragments::ids::{LogRecord, PeerId, ReceiveId, SendId, SetId};

/// Up to this size a message that leaves the set is copied into the log before it is sent: that is
/// not worth a thought.
pub(crate) const COPIED_FIRST_BYTES: u64 = 512;
/// Up to this size a message that leaves the set is copied into the log before the call returns.
const COPIED_AT_ONCE_BYTES: u64 = 64 << 10;

impl EngineHost {
    /// Why a send failed, the first time; the program sees each by its error code.
    #[cold]
    pub fn report_log_full(&mut self, wanted: u64) {
        if core::mem::replace(&mut self.reported_log_full, true) {
            return;
        }
        let spill_error = self.log.memory().spill_error.as_deref();
        let why = spill_error.unwrap_or("its budget is used up");
        let held = self.log.counters().bytes;
        self.glue.show("log-full", &[&wanted.to_string(), &held.to_string(), why]);
    }

    /// Something was appended: is a checkpoint wanted that lets the log be trimmed?
    #[inline]
    pub(crate) fn check_log_pressure(&mut self) {
        if self.log.take_nearly_full() {
            crate::sync::checkpoint_signals::log_nearly_full();
        }
    }

    /// Call `send` for an operation in standard mode: its copy in the log may be made later.
    #[inline]
    pub fn allow_copy_later(&mut self, allowed: bool) {
        self.copy_later = allowed;
    }

    /// The engine has done with the operation. False: it is not all in the log, so C is notified
    /// later of its end.
    #[inline]
    pub fn settle(&mut self, op: Op) -> bool {
        self.pending_copies.is_empty() || self.settle_copy(op)
    }

    fn settle_copy(&mut self, op: Op) -> bool {
        let begin = self.log_cost.begin();
        let over = self.pending_copies.settle(op, COPIED_AT_ONCE_BYTES);
        self.count_log_cost(begin);
        over
    }

    /// Something was copied into the log since `begin`.
    #[inline]
    pub(crate) fn count_log_cost(&mut self, begin: u64) {
        if self.log_cost.end(begin) {
            crate::sync::checkpoint_signals::log_over_budget();
        }
    }

    /// The program does not wait for the end of an operation: nothing of it may be left to be
    /// copied when it knows otherwise that it is over.
    pub fn release(&mut self, op: Op) {
        if self.pending_copies.release(op) {
            self.end(op);
        }
    }

    /// This memory is received into next: a message that lies there may not be in the log yet.
    #[inline(always)]
    pub(crate) fn before_receiving(&mut self, into: Op) {
        if !self.pending_copies.is_empty() {
            self.pending_copies.overwritten(into);
        }
    }

    /// A thread may take part in copies from now on.
    pub fn share_copies(&mut self) {
        self.pending_copies.share();
    }

    /// Drop what nobody will ask for: a process of this set has it in its checkpoint, or has
    /// acknowledged it. What of that is not copied yet never is, and its send is over.
    pub fn trim_log(&mut self, set: SetId, is_held: impl Fn(&LogEntry) -> bool) {
        let mut at = 0;
        while let Some(op) = self.pending_copies.drop_copy(&mut at, |record| {
            self.log.entry(record).is_some_and(|entry| entry.set == set && is_held(&entry))
        }) {
            self.end(op);
        }
        self.log.trim(set, is_held);
        self.forget_freed_log();
    }

    /// Memory of the log that was given back is registered with no adapter any more.
    pub(crate) fn forget_freed_log(&mut self) {
        for memory in self.log.memory_mut().take_freed() {
            self.transports.forget_memory(&memory);
        }
    }

    /// A payload is fetched for this receive. What an earlier incarnation of the peer called the
    /// same is none of it.
    pub(crate) fn note_pull(&mut self, from: PeerId, id: SendId, receive: ReceiveId) {
        let _ = self.take_pull(from, id);
        self.pulls.push((from, id, receive));
    }

    /// The channel to this peer is down: nothing is fetched from it any more.
    pub(crate) fn forget_pulls(&mut self, from: PeerId) {
        self.pulls.retain(|(peer, ..)| *peer != from);
    }

    /// The receive for which this was being fetched, if it still is.
    pub(crate) fn take_pull(&mut self, from: PeerId, id: SendId) -> Option<ReceiveId> {
        let at = self.pulls.iter().position(|(peer, send, _)| (*peer, *send) == (from, id))?;
        Some(self.pulls.swap_remove(at).2)
    }

    /// There is nothing else to do: go on with the copies in the log. An operation all of which is
    /// in the log now, and which the engine has not done with.
    #[inline]
    pub fn copy_some(&mut self) -> Option<Op> {
        if self.pending_copies.has_uncopied() { self.copy_step() } else { None }
    }

    #[cold]
    fn copy_step(&mut self) -> Option<Op> {
        let begin = self.log_cost.begin();
        let copied = self.pending_copies.step();
        if self.pending_copies.has_copied() {
            self.count_log_cost(begin);
        }
        if let Some(peer) = self.pending_copies.take_overdue() {
            self.set_acknowledges(peer, false);
        }
        match copied? {
            Copied::Before(op) => Some(op),
            Copied::Last(op) => {
                self.end(op);
                None
            }
        }
    }

    /// Is all of an operation in the log?
    pub fn is_logged(&self, op: Op) -> bool {
        self.pending_copies.is_logged(op)
    }

    /// Tell of the end of an operation.
    #[inline]
    pub fn end(&mut self, op: Op) {
        // A replay may hold it, or somebody else than the program be inside: then it is told later.
        if op.on_stack() && self.completes_at_once {
            op.set_complete();
            return;
        }
        if op.is_of_window() {
            return self.windows.completed(op);
        }
        // SAFETY: the operation is complete and its fields are filled; this does not call back.
        if self.completes_at_once && unsafe { (self.glue.complete_now)(op.as_ptr()) } != 0 {
            return;
        }
        self.done.push_back(op);
    }

    /// What this process sends again to `to` is not what it had sent: nothing comes of it.
    pub(crate) fn repeats_otherwise(&self, to: PeerId, what: PayloadMismatch) -> ! {
        let to = self.describe(to);
        let call = match collective_of(what.lane()) {
            Some(call) => format!(", in {call}"),
            None => String::new(),
        };
        self.replay_diverged(&format!(
            "it does not send again to {to} what it had sent{call}: {what}"
        ))
    }

    /// The operation of a message that is not all in the log yet.
    #[inline]
    fn pending_source(&self, record: LogRecord) -> Option<Op> {
        if self.pending_copies.is_empty() { None } else { self.pending_copies.source(record) }
    }

    /// All of a logged message, wherever it lies.
    #[inline]
    pub(crate) fn logged_payload(&self, record: LogRecord) -> &[u8] {
        match self.pending_source(record) {
            // SAFETY: the program's buffer, which stays unchanged until the send is complete.
            Some(op) => unsafe { op.slice(0, op.bytes()) },
            None => self.log.payload(record),
        }
    }

    /// A frame with a part of a logged message.
    pub(crate) fn transmit_logged(
        &mut self,
        to: PeerId,
        header: &[u8],
        (record, range): (LogRecord, Range<u64>),
        taken: usize,
    ) -> Transmit {
        let route = self.route(to);
        let source = self.pending_source(record);
        let bytes = match source {
            // SAFETY: the program's buffer, which stays unchanged until the send is complete.
            Some(op) => unsafe { op.slice(range.start, range.end - range.start) },
            None => &self.log.payload(record)[range.start as usize..range.end as usize],
        };
        // What of it is not in the log yet is copied when there is nothing to send, or no room.
        transmit(&mut self.transports, route, to, header, Outgoing::Bytes(bytes), taken)
    }

    /// Push out what networks still hold.
    #[inline]
    pub fn push(&mut self) {
        self.call();
        self.push_now();
    }

    /// Has a network something for which there was no room, and which nobody waits for?
    #[inline]
    pub fn lacks_room(&self) -> bool {
        self.transports.holds() && self.gathered.is_empty()
    }

    /// Another call of MPI has begun.
    #[inline]
    pub fn call(&mut self) {
        if self.burst.is_open() {
            self.call_in_burst();
        }
    }

    #[inline(never)]
    fn call_in_burst(&mut self) {
        self.burst.call(ticks(), !self.gathered.is_empty());
    }

    /// The same in the middle of a call that sends.
    #[inline]
    pub fn push_now(&mut self) {
        if self.transports.holds() {
            self.push_networks();
        }
    }

    #[inline(never)]
    fn push_networks(&mut self) {
        if self.transports.flush_networks() {
            while let Some(op) = self.gathered.pop() {
                self.end(op);
            }
        }
    }

    /// A nonblocking send to another node is about to return.
    #[inline]
    pub fn sent(&mut self) {
        self.burst.sent(ticks());
    }

    /// A nonblocking send is complete but for what a network has gathered: further ones may join
    /// it. False: nothing is held back.
    #[inline]
    pub fn gather(&mut self, op: Op) -> bool {
        let holds = self.transports.is_gathering()
            && self.burst.may_hold(ticks(), self.gathered.is_empty());
        if holds {
            self.gathered.push(op);
        }
        holds
    }
}
