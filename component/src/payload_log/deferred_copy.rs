//! Messages whose copy in the payload log is still being made.
//!
//! A long message that leaves the set has its record, and the room in it, before anything of it is
//! sent; its bytes are copied into the record while the process waits, for room in the network or
//! for anything else, and by a thread beside it where a processor is idle (`copier`). What is sent
//! comes from the program's buffer: the network does not wait for the copy. Only when the engine
//! has done with it and all of it is in the log is the send complete, so the buffer stays as it is
//! until then.
//!
//! While logging towards its receiver is suspended a very long message is acknowledged when it has
//! arrived, and dropped: its copy is put off as long as something of it moves, and for a while
//! after that, and mostly never made.
//!
//! Invariants:
//! * U1 Nothing is read from a record before all of it is copied.
//! * U2 The end of an operation is reported once, and not before all of it is in the record and the
//!   engine has done with it.
//! * U3 Nobody writes to a record that is dropped: before the log drops records their copies are
//!   abandoned ([`PendingLogCopies::drop_copy`]). Nobody needs these, and their operations are over
//!   (U2). Records that the engine has not done with are not dropped.
//! * U4 Nothing is read from the buffer of an operation that the program has let go
//!   ([`PendingLogCopies::release`]), but for what its receiver still lacks: who is notified by the
//!   receiver that it has everything may take the buffer away (MPI 3.1 section 3.7.3).
//! * U5 Nothing is read from a buffer that was received into meanwhile
//!   ([`PendingLogCopies::overwritten`]): MPI does not allow that, but some programs await the
//!   answer in the buffer of the question (docs/adr/0022).

use crate::ffi::operation::Op;
use crate::os::ticks;
use crate::payload_log::copy_thread::{Copy, LogCopier};
use crate::payload_log::memory::LogMemory;
use core::cell::Cell;
use rustbtl_checkpoint::PayloadLog;
use rustbtl_fragments::ids::{LogRecord, PeerId};
use std::collections::VecDeque;
use std::sync::Arc;

/// A copy that is put off is made when nothing of its message has moved for so long: some 2 ms.
const PATIENCE_TICKS: u64 = 5_000_000;

#[derive(Debug)]
struct Message {
    record: LogRecord,
    op: Op,
    copy: Arc<Copy>,
    /// All of it is in the record, and it was counted as such.
    copied: bool,
    /// The engine has done with it: C has to be notified of the operation.
    sent: bool,
    /// Its buffer was received into.
    overwritten: bool,
    /// Its receiver is expected to acknowledge it.
    acknowledged_by: Option<PeerId>,
    /// When something of it was sent last, in ticks.
    moved: Cell<u64>,
}

impl Message {
    /// Is its copy not to be made yet?
    fn is_put_off(&self, now: u64) -> bool {
        self.acknowledged_by.is_some() && now.saturating_sub(self.moved.get()) < PATIENCE_TICKS
    }
}

/// An operation all of which is in the log now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copied {
    /// The engine has not done with it.
    Before(Op),
    /// The engine has: it is over.
    Last(Op),
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct PendingLogCopies {
    messages: VecDeque<Message>,
    /// How many of them are not in the log.
    uncopied: usize,
    /// There is a processor for a thread that copies.
    may_share: bool,
    copier: Option<LogCopier>,
    /// A receiver that did not acknowledge in time.
    overdue: Option<PeerId>,
    /// The last step has copied something.
    has_copied: bool,
}

impl PendingLogCopies {
    /// Let a thread take part in copies from now on; only where a processor is free for it.
    pub fn share(&mut self) {
        self.may_share = true;
    }

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

    /// This record has no contents yet; they are those of `op`. `acknowledged_by`: its receiver,
    /// if it is expected to acknowledge the message soon after it has arrived.
    pub fn add(
        &mut self,
        log: &mut PayloadLog<LogMemory>,
        record: LogRecord,
        op: Op,
        acknowledged_by: Option<PeerId>,
    ) {
        let Some(into) = log.payload_mut(record) else { return };
        // SAFETY: the program's buffer, which stays unchanged until the send is complete.
        let from = unsafe { op.slice(0, op.bytes()) };
        // SAFETY: as above; the record has room for it and stays until then (U3), and nobody reads
        // or writes its contents meanwhile (U1).
        let copy = Arc::new(unsafe { Copy::new(from, into.as_mut_ptr()) });
        // A single one is copied while the network is busy with it, and nearer to the caches.
        if self.may_share && self.uncopied > 0 && acknowledged_by.is_none() {
            self.offer(&copy);
        }
        self.uncopied += 1;
        let moved = Cell::new(ticks());
        let (copied, sent, overwritten) = (false, false, false);
        let message =
            Message { record, op, copy, copied, sent, overwritten, acknowledged_by, moved };
        self.messages.push_back(message);
    }

    fn offer(&mut self, copy: &Arc<Copy>) {
        if self.copier.is_none() {
            self.copier = LogCopier::start();
            self.may_share = self.copier.is_some();
        }
        if let Some(copier) = &self.copier {
            copier.offer(copy);
        }
    }

    /// The newest one is looked for first: most are found at once.
    #[inline]
    fn find(&self, record: LogRecord) -> Option<usize> {
        self.messages.iter().rposition(|message| message.record == record)
    }

    /// Where the bytes of a record are to be read, if not in the record. They are sent.
    #[inline]
    pub fn source(&self, record: LogRecord) -> Option<Op> {
        let message = &self.messages[self.find(record)?];
        if message.overwritten {
            return None;
        }
        if message.acknowledged_by.is_some() {
            message.moved.set(ticks());
        }
        Some(message.op)
    }

    /// A receiver that was expected to acknowledge, and did not in time.
    pub fn take_overdue(&mut self) -> Option<PeerId> {
        self.overdue.take()
    }

    /// Has the last step copied anything? Where all copies are put off it has not.
    pub fn has_copied(&self) -> bool {
        self.has_copied
    }

    /// Is all of a message in the record by now?
    fn poll_copy(&mut self, at: usize) -> bool {
        let message = &mut self.messages[at];
        if !message.copied && message.copy.is_done() {
            message.copied = true;
            self.uncopied -= 1;
        }
        message.copied
    }

    /// Is all of `op` in the log, as far as is known?
    #[inline]
    pub fn is_logged(&self, op: Op) -> bool {
        self.messages.iter().rev().find(|message| message.op == op).is_none_or(|of| of.copied)
    }

    /// Copy a little of the oldest message that nobody has begun to copy the rest of. Gives an
    /// operation all of which is in the log now.
    pub fn step(&mut self) -> Option<Copied> {
        let now = ticks();
        let may = |message: &&Message| !message.copy.is_begun() && !message.is_put_off(now);
        let next = self.messages.iter().find(may);
        self.has_copied = next.is_some();
        if let Some(message) = next {
            self.overdue = message.acknowledged_by.filter(|_| message.sent).or(self.overdue);
            message.copy.step();
        }
        let is_new = |of: &Message| !of.copied && of.copy.is_done();
        let at = self.messages.iter().position(is_new)?;
        self.poll_copy(at);
        let Message { op, sent, .. } = self.messages[at];
        if !sent {
            return Some(Copied::Before(op));
        }
        self.messages.remove(at);
        Some(Copied::Last(op))
    }

    /// The engine has done with `op`. True: all is in the log, so it is over.
    pub fn settle(&mut self, op: Op, bytes_now: u64) -> bool {
        let Some(at) = self.messages.iter().rposition(|message| message.op == op) else {
            return true;
        };
        if op.bytes() <= bytes_now {
            self.messages[at].copy.finish();
        }
        let over = self.poll_copy(at);
        if over {
            self.messages.remove(at);
        } else {
            self.messages[at].sent = true;
        }
        over
    }

    /// The program lets an operation go and will not wait for its end: have all of it in the log
    /// now (U4). True: the engine has done with it, so it is over.
    pub fn release(&mut self, op: Op) -> bool {
        let Some(at) = self.messages.iter().rposition(|message| message.op == op) else {
            return false;
        };
        self.messages[at].copy.finish();
        self.poll_copy(at);
        self.messages.remove(at).is_some_and(|message| message.sent)
    }

    /// `into` is received into next: have all of the messages in the log that lie there (U5).
    #[cold]
    pub fn overwritten(&mut self, into: Op) {
        let memory = |op: Op| {
            let start = op.start().addr();
            start..start.saturating_add(op.bytes() as usize)
        };
        for message in &mut self.messages {
            let (from, into_memory) = (memory(message.op), memory(into));
            // What a convertor describes may lie anywhere.
            let apart = into.convertor().is_none()
                && (into_memory.end <= from.start || from.end <= into_memory.start);
            if !apart && !message.overwritten {
                message.copy.finish();
                message.overwritten = true;
            }
        }
    }

    /// Records are dropped next: the copy of one of them is abandoned (U3). Gives its operation,
    /// which is over. To be called with the same `at`, 0 at first, until there are no more.
    pub fn drop_copy(
        &mut self,
        at: &mut usize,
        mut is_dropped: impl FnMut(LogRecord) -> bool,
    ) -> Option<Op> {
        while let Some(message) = self.messages.get(*at) {
            if !is_dropped(message.record) {
                *at += 1;
                continue;
            }
            debug_assert!(message.sent, "the engine has not done with a record that is dropped");
            if !message.sent {
                // Its memory is used again all the same.
                message.copy.finish();
                *at += 1;
                continue;
            }
            message.copy.abandon();
            let Message { op, copied, .. } = *message;
            self.uncopied -= usize::from(!copied);
            self.messages.remove(*at);
            return Some(op);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::table::{IN_REQUEST, Operation};
    use rustbtl_checkpoint::LogLimits;
    use rustbtl_fragments::host::LogEntry;
    use rustbtl_fragments::ids::*;
    use rustbtl_fragments::payload_digest::PayloadDigest;
    use rustbtl_fragments::wire::StreamKey;

    fn operation(data: &mut [u8]) -> Operation {
        Operation {
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
        }
    }

    fn entry(op: Op) -> LogEntry {
        LogEntry {
            to: PeerId(1),
            set: SetId(1),
            stream: StreamKey::of(ContextId(0), 0),
            sequence: MessageSeq(0),
            source: CommRank(0),
            tag: 0,
            bytes: op.bytes(),
            digest: PayloadDigest::NONE,
        }
    }

    #[test]
    fn a_send_is_over_when_all_of_it_is_in_the_log_and_reported_once() {
        let mut data: Vec<u8> = (0..300_000u32).map(|i| (i / 3) as u8).collect();
        let mut operation = operation(&mut data);
        // SAFETY: it lives to the end of the test.
        let op = unsafe { Op::new(&mut operation) }.unwrap();
        let mut log = PayloadLog::new(LogMemory::new(None, 0), LogLimits::default());
        let record = log.append(&entry(op), |_| ()).unwrap();
        let mut pending_copies = PendingLogCopies::default();
        pending_copies.add(&mut log, record, op, None);
        assert_eq!(pending_copies.step(), None);
        assert_eq!(pending_copies.source(record), Some(op), "U1: read from the program's buffer");
        assert!(!pending_copies.settle(op, 1000), "it is too long to be copied at once");
        let mut over = None;
        for _ in 0..10 {
            assert_eq!(over, None, "U2: reported once");
            over = pending_copies.step();
            if pending_copies.is_empty() {
                break;
            }
        }
        assert_eq!(over, Some(Copied::Last(op)));
        assert_eq!(log.payload(record), data);
        pending_copies.add(&mut log, record, op, None);
        assert!(pending_copies.settle(op, u64::MAX) && pending_copies.is_empty());

        // All of the first is in the log, and the engine has not done with it: on to the second.
        let second = log.append(&entry(op), |_| ()).unwrap();
        pending_copies.add(&mut log, record, op, None);
        pending_copies.add(&mut log, second, op, None);
        assert!(!pending_copies.is_logged(op));
        let seen: Vec<Copied> = (0..20).filter_map(|_| pending_copies.step()).collect();
        assert_eq!(seen, [Copied::Before(op); 2], "U2: the engine has not done with them");
        assert!(pending_copies.is_logged(op));
        assert!(!pending_copies.has_uncopied() && !pending_copies.is_empty());
        assert_eq!(log.payload(second), data);
        assert!(pending_copies.settle(op, 0) && pending_copies.settle(op, 0));
        assert!(pending_copies.is_empty());
    }

    #[test]
    fn what_the_program_frees_is_in_the_log_at_once() {
        let mut data: Vec<u8> = (0..300_000u32).map(|i| (i / 11) as u8).collect();
        let mut operations = [operation(&mut data), operation(&mut data)];
        // SAFETY: they live to the end of the test.
        let [one, other] = operations.each_mut().map(|op| unsafe { Op::new(op) }.unwrap());
        let mut log = PayloadLog::new(LogMemory::new(None, 0), LogLimits::default());
        let mut pending_copies = PendingLogCopies::default();
        let records = [one, other].map(|op| {
            let record = log.append(&entry(op), |_| ()).unwrap();
            pending_copies.add(&mut log, record, op, None);
            record
        });
        assert!(!pending_copies.release(one), "the engine has not done with it");
        assert_eq!(pending_copies.source(records[0]), None, "U4: read from the log");
        assert_eq!(log.payload(records[0]), data);
        assert!(pending_copies.is_logged(one) && pending_copies.settle(one, 0));
        assert!(!pending_copies.settle(other, 0));
        assert!(pending_copies.release(other), "U2: the engine has, so it is reported now");
        assert_eq!(log.payload(records[1]), data);
        assert!(pending_copies.is_empty() && !pending_copies.has_uncopied());
        assert!(!pending_copies.release(other), "U2: reported once");
    }

    #[test]
    fn what_is_received_into_a_message_is_not_what_was_sent() {
        let mut data: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
        let sent = data.clone();
        let mut elsewhere = [0u8; 8];
        let (first, rest) = data.split_at_mut(200_000);
        let mut operations =
            [operation(first), operation(rest), operation(&mut first[199_999..]), {
                operation(&mut elsewhere)
            }];
        // SAFETY: they live to the end of the test.
        let [one, other, answer, apart] =
            operations.each_mut().map(|op| unsafe { Op::new(op) }.unwrap());
        let mut log = PayloadLog::new(LogMemory::new(None, 0), LogLimits::default());
        let mut pending_copies = PendingLogCopies::default();
        let records = [one, other].map(|op| {
            let record = log.append(&entry(op), |_| ()).unwrap();
            pending_copies.add(&mut log, record, op, None);
            record
        });
        pending_copies.overwritten(apart);
        assert_eq!(pending_copies.source(records[0]), Some(one));
        pending_copies.overwritten(answer);
        data[..200_000].fill(0xEE);
        assert_eq!(pending_copies.source(records[0]), None, "U5: read from the log");
        assert_eq!(pending_copies.source(records[1]), Some(other), "it lies elsewhere");
        assert_eq!(log.payload(records[0]), &sent[..200_000]);
        assert!(pending_copies.has_uncopied(), "U2: it is not reported yet");
        assert!(pending_copies.settle(one, 0), "U2: all of it is in the log");
        while !pending_copies.is_logged(other) {
            pending_copies.step();
        }
        assert_eq!(log.payload(records[1]), &sent[200_000..]);
    }

    /// What the driver does: abandon the copies, then drop the records. The operations that end.
    fn trim(
        pending_copies: &mut PendingLogCopies,
        log: &mut PayloadLog<LogMemory>,
        is_held: impl Fn(&LogEntry) -> bool,
    ) -> Vec<Op> {
        let mut at = 0;
        let is_dropped = |record| log.entry(record).is_some_and(|entry| is_held(&entry));
        let over = core::iter::from_fn(|| pending_copies.drop_copy(&mut at, is_dropped)).collect();
        log.trim(SetId(1), is_held);
        over
    }

    #[test]
    fn what_is_dropped_is_not_copied_and_its_operation_is_over() {
        let mut data: Vec<u8> = (0..300_000u32).map(|i| (i / 5) as u8).collect();
        let mut log = PayloadLog::new(LogMemory::new(None, 0), LogLimits::default());
        let mut pending_copies = PendingLogCopies::default();
        let mut operations: Vec<Operation> = (0..4).map(|_| operation(&mut data)).collect();
        // SAFETY: they live to the end of the test.
        let ops: Vec<Op> = operations.iter_mut().map(|o| unsafe { Op::new(o) }.unwrap()).collect();
        let records: Vec<LogRecord> = (0..4)
            .map(|at| {
                let entry = LogEntry { sequence: MessageSeq(at as u64), ..entry(ops[at]) };
                let record = log.append(&entry, |into| into.fill(0)).unwrap();
                pending_copies.add(&mut log, record, ops[at], None);
                record
            })
            .collect();
        // 0 and 2 are sent; a little of 0 is copied. 1 is sent, and held by nobody.
        assert!(ops[..3].iter().all(|&op| !pending_copies.settle(op, 0)));
        assert_eq!(pending_copies.step(), None);
        let copies: Vec<Arc<Copy>> =
            pending_copies.messages.iter().map(|of| Arc::clone(&of.copy)).collect();
        let even = |entry: &LogEntry| entry.sequence.0.is_multiple_of(2);
        assert_eq!(trim(&mut pending_copies, &mut log, even), [ops[0], ops[2]], "U2: over");
        assert!(!copies[0].is_done() && !copies[2].is_done(), "nothing was copied for nobody");
        assert!(!copies[0].step() && !copies[2].step(), "U3: nobody writes to them any more");
        assert_eq!(trim(&mut pending_copies, &mut log, even), [], "U2: reported once");
        let held = records.iter().map(|&record| log.get(record).is_some());
        assert!(held.eq([false, true, false, true]));
        assert_eq!(pending_copies.source(records[0]), None);
        // The others are copied as ever.
        assert!(!pending_copies.settle(ops[3], 0));
        let seen: Vec<Copied> = (0..20).filter_map(|_| pending_copies.step()).collect();
        assert_eq!(seen, [Copied::Last(ops[1]), Copied::Last(ops[3])]);
        assert!(pending_copies.is_empty() && !pending_copies.has_uncopied());
        assert!(log.payload(records[1]) == data && log.payload(records[3]) == data);
    }

    #[test]
    fn a_copy_that_is_done_and_was_not_looked_at_is_over_when_its_record_is_dropped() {
        let mut data = vec![7u8; 100_000];
        let mut operation = operation(&mut data);
        // SAFETY: it lives to the end of the test.
        let op = unsafe { Op::new(&mut operation) }.unwrap();
        let mut log = PayloadLog::new(LogMemory::new(None, 0), LogLimits::default());
        let mut pending_copies = PendingLogCopies::default();
        let record = log.append(&entry(op), |_| ()).unwrap();
        pending_copies.add(&mut log, record, op, None);
        assert!(!pending_copies.settle(op, 0));
        // As the thread does it.
        pending_copies.messages[0].copy.finish();
        assert_eq!(trim(&mut pending_copies, &mut log, |_| true), [op], "U2");
        assert!(pending_copies.is_empty() && !pending_copies.has_uncopied());
        assert_eq!(pending_copies.step(), None, "U2: reported once");
    }

    #[test]
    fn memory_of_dropped_records_is_used_again_while_a_thread_copies() {
        let mut data: Vec<u8> = (0..1_000_000u32).map(|i| (i / 5) as u8).collect();
        let mut log = PayloadLog::new(LogMemory::new(None, 0), LogLimits::default());
        let mut pending_copies = PendingLogCopies::default();
        pending_copies.share();
        let mut operations: Vec<Operation> = (0..8).map(|_| operation(&mut data)).collect();
        // SAFETY: they live to the end of the test.
        let ops: Vec<Op> = operations.iter_mut().map(|o| unsafe { Op::new(o) }.unwrap()).collect();
        for round in 0..40 {
            for (at, &op) in ops.iter().enumerate() {
                let entry = LogEntry { sequence: MessageSeq(at as u64), ..entry(op) };
                let record = log.append(&entry, |_| ()).unwrap();
                pending_copies.add(&mut log, record, op, None);
            }
            let mut over: Vec<Op> =
                ops[..6].iter().filter(|&&op| pending_copies.settle(op, 0)).copied().collect();
            over.extend(trim(&mut pending_copies, &mut log, |entry| entry.sequence.0 < 6));
            // In the memory of those that were dropped.
            let rows: Vec<LogRecord> = (0..6)
                .map(|_| log.append(&entry(ops[0]), |into| into.fill(round)).unwrap())
                .collect();
            over.extend(ops[6..].iter().filter(|&&op| pending_copies.settle(op, u64::MAX)));
            while !pending_copies.is_empty() {
                over.extend(
                    pending_copies.step().map(|(Copied::Before(op) | Copied::Last(op))| op),
                );
            }
            assert!(!pending_copies.has_uncopied());
            assert!(ops.iter().all(|op| over.iter().filter(|other| *other == op).count() == 1));
            let is_intact = |&row: &LogRecord| log.payload(row).iter().all(|&byte| byte == round);
            assert!(rows.iter().all(is_intact), "U3: round {round}");
            log.trim(SetId(1), |_| true);
        }
    }

    #[test]
    fn what_will_be_acknowledged_is_copied_only_when_that_does_not_come() {
        let mut data: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
        let mut operation = operation(&mut data);
        // SAFETY: it lives to the end of the test.
        let op = unsafe { Op::new(&mut operation) }.unwrap();
        let mut log = PayloadLog::new(LogMemory::new(None, 0), LogLimits::default());
        let record = log.append(&entry(op), |_| ()).unwrap();
        let mut pending_copies = PendingLogCopies::default();
        pending_copies.add(&mut log, record, op, Some(PeerId(1)));
        assert!(!pending_copies.settle(op, 1000) && pending_copies.step().is_none());
        assert!(!pending_copies.messages[0].copy.is_begun(), "put off");
        assert!(!pending_copies.has_copied(), "waiting is not the log's cost");
        // It is acknowledged.
        let mut at = 0;
        assert_eq!(pending_copies.drop_copy(&mut at, |of| of == record), Some(op), "U2");
        assert!(pending_copies.is_empty() && !pending_copies.has_uncopied());
        // It is not.
        pending_copies.add(&mut log, record, op, Some(PeerId(1)));
        assert!(!pending_copies.settle(op, 1000));
        let long_ago = ticks() - PATIENCE_TICKS;
        let wait = |pending_copies: &PendingLogCopies| {
            pending_copies.messages[0].moved.set(long_ago);
        };
        wait(&pending_copies);
        assert_eq!(pending_copies.source(record), Some(op));
        assert!(pending_copies.step().is_none() && pending_copies.take_overdue().is_none());
        assert!(!pending_copies.messages[0].copy.is_begun(), "something of it has moved");
        wait(&pending_copies);
        let over = (0..20).find_map(|_| pending_copies.step());
        assert!(pending_copies.has_copied());
        assert_eq!(
            (over, pending_copies.take_overdue()),
            (Some(Copied::Last(op)), Some(PeerId(1)))
        );
        assert_eq!(log.payload(record), data);
    }
}
