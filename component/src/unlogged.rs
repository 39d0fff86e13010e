//! Messages whose copy in the payload log is still being made.
//!
//! A long message that leaves the set has its record, and the room in it, before anything of it is
//! sent; its bytes are copied into the record while the process waits, for room in the network or
//! for anything else. What is sent comes from the program's buffer: the network does not wait for
//! the copy. Only when all of it is in the log is the send complete, so the buffer stays as it is
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
        let at = self.find(record)?;
        self.copy(log, at, u64::MAX)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glue::{IN_REQUEST, Operation};
    use rustbtl_checkpoint::LogLimits;
    use rustbtl_fragments::host::LogEntry;
    use rustbtl_fragments::ids::*;
    use rustbtl_fragments::wire::StreamKey;

    #[test]
    fn a_send_is_over_when_all_of_it_is_in_the_log_and_told_once() {
        let mut data: Vec<u8> = (0..300_000u32).map(|i| (i / 3) as u8).collect();
        let mut operation = Operation {
            state: 0,
            start: data.as_mut_ptr(),
            bytes: data.len() as u64,
            convertor: core::ptr::null_mut(),
            id: 0,
            received: 0,
            source: 0,
            tag: 0,
            outcome: 0,
            kind: IN_REQUEST,
        };
        // SAFETY: it lives to the end of the test.
        let op = unsafe { Op::new(&mut operation) }.unwrap();
        let mut log = PayloadLog::new(LogMemory::new(None, 0), LogLimits::default());
        let entry = LogEntry {
            to: PeerId(1),
            set: SetId(1),
            stream: StreamKey::of(ContextId(0), 0),
            sequence: MessageSeq(0),
            source: CommRank(0),
            tag: 0,
            bytes: op.bytes(),
        };
        let record = log.append(&entry, |_| ()).unwrap();
        let mut unlogged = Unlogged::default();
        unlogged.add(record, op);
        assert_eq!(unlogged.step(&mut log), None);
        assert_eq!(unlogged.source(record), Some(op), "U1: read from the program's buffer");
        assert!(!unlogged.settle(&mut log, op, 1000), "it is too long to be copied at once");
        let mut over = None;
        for _ in 0..10 {
            assert_eq!(over, None, "U2: told once");
            over = unlogged.step(&mut log);
            if unlogged.is_empty() {
                break;
            }
        }
        assert_eq!(over, Some(op));
        assert_eq!(log.payload(record), data);
        unlogged.add(record, op);
        assert!(unlogged.settle(&mut log, op, u64::MAX) && unlogged.is_empty());
    }
}
