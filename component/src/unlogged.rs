//! Messages whose copy in the payload log is still being made.
//!
//! A long message that leaves the set has its record, and the room in it, before anything of it is
//! sent; its bytes are copied into the record while they travel, or while the process waits. What
//! is sent comes from the program's buffer: it is warm, and the network does not wait for the
//! copy. Only when all of it is in the log is the send complete, so the buffer stays as it is
//! until then.
//!
//! Invariants:
//! * U1 Bytes below `copied` are in the record; nothing reads the others from there.
//! * U2 An operation is told of its end once, and not before all of it is in the record.

use crate::memory::LogMemory;
use crate::operation::Op;
use crate::os::copy::past_caches;
use core::ops::Range;
use rustbtl_checkpoint::PayloadLog;
use rustbtl_fragments::ids::LogRecord;
use std::collections::VecDeque;

/// Bytes that are copied in one go while a process waits.
const STEP_BYTES: u64 = 128 << 10;

#[derive(Debug)]
struct Message {
    record: LogRecord,
    op: Op,
    copied: u64,
    /// The call that sends has returned: the operation has to be told.
    returned: bool,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Unlogged {
    messages: VecDeque<Message>,
}

impl Unlogged {
    /// Nothing to do?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// This record has no contents yet; they are those of `op`.
    pub fn add(&mut self, record: LogRecord, op: Op) {
        self.messages.push_back(Message { record, op, copied: 0, returned: false });
    }

    /// The newest one is looked for first: most are found at once.
    #[inline]
    fn find(&self, record: LogRecord) -> Option<usize> {
        self.messages.iter().rposition(|message| message.record == record)
    }

    /// Where the bytes of a record are to be read, if not in the record.
    #[inline]
    pub fn source(&self, record: LogRecord) -> Option<Op> {
        self.find(record).map(|at| self.messages[at].op)
    }

    /// The bytes of a record before `end` were sent: copy them. Gives the operation if that was
    /// all of it.
    pub fn copy_until(
        &mut self,
        log: &mut PayloadLog<LogMemory>,
        record: LogRecord,
        end: u64,
    ) -> Option<Op> {
        let at = self.find(record)?;
        self.copy(log, at, end)
    }

    fn copy(&mut self, log: &mut PayloadLog<LogMemory>, at: usize, end: u64) -> Option<Op> {
        let message = &mut self.messages[at];
        let Range { start, end } = message.copied..end.min(message.op.bytes());
        if start < end
            && let Some(into) = log.payload_mut(message.record)
        {
            // SAFETY: inside the program's buffer, which stays unchanged until the send is
            // complete.
            let bytes = unsafe { message.op.slice(start, end - start) };
            past_caches(&mut into[start as usize..end as usize], bytes);
        }
        message.copied = message.copied.max(end);
        let over = message.returned && message.copied == message.op.bytes();
        over.then(|| self.messages.remove(at).map(|message| message.op)).flatten()
    }

    /// Copy a little of the oldest message. Gives the operation if that was all of it.
    pub fn step(&mut self, log: &mut PayloadLog<LogMemory>) -> Option<Op> {
        let end = self.messages.front()?.copied + STEP_BYTES;
        self.copy(log, 0, end)
    }

    /// All of a record, now.
    pub fn copy_all(&mut self, log: &mut PayloadLog<LogMemory>, record: LogRecord) -> Option<Op> {
        self.copy_until(log, record, u64::MAX)
    }

    /// The call that sends `op` is about to return. True: all is in the log.
    pub fn settle(&mut self, log: &mut PayloadLog<LogMemory>, op: Op, bytes_now: u64) -> bool {
        let Some(at) = self.messages.iter().rposition(|message| message.op == op) else {
            return true;
        };
        if op.bytes() <= bytes_now {
            self.copy(log, at, u64::MAX);
        }
        if self.messages[at].copied == op.bytes() {
            self.messages.remove(at);
            return true;
        }
        self.messages[at].returned = true;
        false
    }
}
