//! Messages whose copy in the payload log is still being made.
//!
//! A long message that leaves the set has its record, and the room in it, before anything of it is
//! sent; its bytes are copied into the record while the process waits, for room in the network or
//! for anything else. What is sent comes from the program's buffer: the network does not wait for
//! the copy. Only when the engine has done with it and all of it is in the log is the send
//! complete, so the buffer stays as it is until then.
//!
//! Invariants:
//! * U1 Bytes below `copied` are in the record; nothing reads the others from there.
//! * U2 An operation is told of its end once, and not before all of it is in the record and the
//!   engine has done with it.

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
    /// The engine has done with it: the operation has to be told.
    sent: bool,
}

impl Message {
    fn is_copied(&self) -> bool {
        self.copied == self.op.bytes()
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Unlogged {
    messages: VecDeque<Message>,
    /// How many of them are not in the log.
    uncopied: usize,
}

impl Unlogged {
    /// Nothing to do?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Is there anything to be copied?
    #[inline]
    pub fn has_uncopied(&self) -> bool {
        self.uncopied > 0
    }

    /// This record has no contents yet; they are those of `op`.
    pub fn add(&mut self, record: LogRecord, op: Op) {
        self.uncopied += 1;
        self.messages.push_back(Message { record, op, copied: 0, sent: false });
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
        let whole = message.op.bytes();
        let Range { start, end } = message.copied..end.min(whole);
        if start < end
            && let Some(into) = log.payload_mut(message.record)
        {
            // SAFETY: inside the program's buffer, which stays unchanged until the send is
            // complete.
            let bytes = unsafe { message.op.slice(start, end - start) };
            past_caches(&mut into[start as usize..end as usize], bytes);
        }
        message.copied = message.copied.max(end);
        self.uncopied -= usize::from(start < whole && end == whole);
        let over = message.sent && message.is_copied();
        over.then(|| self.messages.remove(at).map(|message| message.op)).flatten()
    }

    /// Copy a little of the oldest message that is not copied. Gives the operation if it is over.
    pub fn step(&mut self, log: &mut PayloadLog<LogMemory>) -> Option<Op> {
        let at = self.messages.iter().position(|message| !message.is_copied())?;
        self.copy(log, at, self.messages[at].copied + STEP_BYTES)
    }

    /// The engine has done with `op`. True: all is in the log, so it is over.
    pub fn settle(&mut self, log: &mut PayloadLog<LogMemory>, op: Op, bytes_now: u64) -> bool {
        let Some(at) = self.messages.iter().rposition(|message| message.op == op) else {
            return true;
        };
        if op.bytes() <= bytes_now {
            self.copy(log, at, u64::MAX);
        }
        if self.messages[at].is_copied() {
            self.messages.remove(at);
            return true;
        }
        self.messages[at].sent = true;
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

        // All of the first is in the log, and the engine has not done with it: on to the second.
        let second = log.append(&entry, |_| ()).unwrap();
        unlogged.add(record, op);
        unlogged.add(second, op);
        for _ in 0..10 {
            assert_eq!(unlogged.step(&mut log), None, "U2: the engine has not done with them");
        }
        assert!(!unlogged.has_uncopied() && !unlogged.is_empty());
        assert_eq!(log.payload(second), data);
        assert!(unlogged.settle(&mut log, op, 0) && unlogged.settle(&mut log, op, 0));
        assert!(unlogged.is_empty());
    }
}
