//! Windows of one-sided communication: what lies between the engine and `Rma`, the machine of
//! windows (`fragments/rma`). Its DESIGN.md has the driver's contract; docs/adr/0037 the reasons.
//!
//! * `inbox`: messages of the engine whose receiver is the machine, in the order of their streams;
//! * `messages`: messages that this process sends for the machine, and buffers of those that come;
//! * `memory`: the process's memory, as the machine touches it;
//! * `mapped`: memory of windows that several processes have mapped;
//! * `neighbours`: ranks that act on each other's windows themselves;
//! * `progress`: one step of the machine: apply, record, send, in this order.

pub mod inbox;
pub mod mapped;
pub mod memory;
pub mod messages;
pub mod neighbours;
pub mod progress;

use crate::engine::windows::inbox::Inbox;
use crate::engine::windows::mapped::MappedMemory;
use crate::engine::windows::messages::{MESSAGE_BYTES_MAX, Stream};
use crate::engine::windows::neighbours::Neighbours;
use crate::ffi::operation::Op;
use crate::ffi::table::Glue;
use rustbtl_fragments::ids::{CommId, CommRank, ContextId};
use rustbtl_rma::ids::OperationId;
use rustbtl_rma::machine::{Limits, Rma};
use rustbtl_rma::wire::PART_BYTES_MAX;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Packed bytes of an operation in one message. Those that a target keeps for their epoch are
/// memory of the target.
const PART_BYTES: u64 = 4 << 20;
const _: () = assert!(PART_BYTES <= PART_BYTES_MAX);

/// Where fetched data goes.
#[derive(Clone, Copy, Debug)]
pub enum ResultBuffer {
    /// Contiguous memory of the program; nobody is told that it is there.
    Memory(*mut u8),
    /// What C gave: completed with the last of the operations that fill it.
    Operation {
        /// Its operation.
        op: Op,
        /// Is this the last?
        is_last: bool,
    },
}

/// An operation that gets data.
#[derive(Clone, Copy, Debug)]
pub struct FetchedInto {
    pub(crate) buffer: ResultBuffer,
    /// Packed bytes of the buffer before its data.
    pub(crate) first: u64,
}

/// A peer announces a message for a window that cannot be one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooLong {
    from: CommRank,
    bytes: u64,
}

impl TooLong {
    /// The end of the job.
    pub(crate) fn fatal(self, glue: &Glue) -> ! {
        let Self { from, bytes } = self;
        let what = format!("a message of {bytes} bytes for a window");
        glue.fatal("protocol", &[&format!("rank {from} of a window"), &what])
    }
}

/// So long a lock's holders and those who wait are the same before shared locks overtake: longer
/// than a lock is held by a program that does nothing but accesses.
const LOCK_STOOD: Duration = Duration::from_millis(2);

/// See the module's documentation.
#[derive(Debug)]
pub struct Windows {
    /// The machine.
    pub rma: Rma,
    pub(crate) inbox: Inbox,
    pub(crate) comms: BTreeMap<ContextId, CommId>,
    /// Windows that others may access while the program computes.
    pub(crate) served: BTreeSet<ContextId>,
    pub(crate) results: BTreeMap<OperationId, FetchedInto>,
    /// Own messages that the engine has done with.
    pub(crate) finished: Vec<Op>,
    /// Synchronizations.
    pub(crate) calls: u32,
    /// Rule 3 of the replay: C is notified of nothing.
    pub(crate) holds: bool,
    /// Who waits for a lock here gets it when a neighbour gives it back, who says nothing, or when
    /// nothing has changed for long.
    pub(crate) lock_waiters: bool,
    /// When time was last counted for them.
    lock_time: Option<Instant>,
    /// Memory that neighbours map, and theirs.
    pub(crate) mapped: MappedMemory,
    /// The program is in a collective of ours, which is held at its end only. One for all threads:
    /// with several, a set with windows is not replayed.
    pub(crate) in_collective: bool,
    /// Since there are windows; `None`: there are none.
    pub(crate) neighbours: Option<Neighbours>,
}

impl Default for Windows {
    fn default() -> Self {
        Self {
            rma: Rma::new(Limits { part_bytes_max: PART_BYTES }),
            inbox: Inbox::default(),
            comms: BTreeMap::new(),
            served: BTreeSet::new(),
            results: BTreeMap::new(),
            finished: Vec::new(),
            calls: 0,
            holds: false,
            lock_waiters: false,
            lock_time: None,
            mapped: MappedMemory::default(),
            in_collective: false,
            neighbours: None,
        }
    }
}

impl Windows {
    /// Is something here for the machine, or has it to look again?
    #[inline]
    pub fn has_news(&self) -> bool {
        self.inbox.has_ready() || !self.finished.is_empty() || self.holds || self.lock_waiters
    }

    /// Who waits for a lock waits longer.
    fn count_time_of_waiters(&mut self) {
        let now = Instant::now();
        // After a restore on another machine its time may be one before.
        let since = self.lock_time.and_then(|before| now.checked_duration_since(before));
        if since.is_none_or(|since| since >= LOCK_STOOD) {
            self.lock_time = Some(now);
            self.rma.locks_stood();
        }
    }

    /// Does somebody have to look for messages while the program computes?
    #[inline]
    pub fn are_served(&self) -> bool {
        !self.served.is_empty()
    }

    /// Room for a message that a peer has announced.
    ///
    /// # Errors
    /// No message is that long, so nothing is allocated because somebody says so.
    pub(crate) fn announced(&mut self, stream: Stream, bytes: u64) -> Result<Option<Op>, TooLong> {
        if bytes > MESSAGE_BYTES_MAX {
            return Err(TooLong { from: stream.from, bytes });
        }
        Ok(self.inbox.announced(stream, bytes))
    }

    /// An operation of an own message, or of one that is coming, is complete.
    pub(crate) fn completed(&mut self, op: Op) {
        if !self.inbox.completed(op) {
            self.finished.push(op);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustbtl_rma::machine::Lane;

    #[test]
    fn no_room_is_made_for_a_message_that_cannot_be_that_long() {
        let from = CommRank(2);
        let stream = Stream { window: ContextId(3), from, lane: Lane::Operations };
        let mut windows = Windows::default();
        // Nothing that the machine sends is refused.
        const { assert!(PART_BYTES_MAX < MESSAGE_BYTES_MAX) };
        for bytes in [MESSAGE_BYTES_MAX + 1, u64::MAX] {
            assert_eq!(windows.announced(stream, bytes), Err(TooLong { from, bytes }));
        }
        // Nothing waits for them: what comes next is the machine's at once.
        windows.inbox.arrived(stream, b"next");
        assert!(windows.has_news());
        assert!(windows.announced(stream, MESSAGE_BYTES_MAX).is_ok_and(|op| op.is_some()));
        windows.inbox.take();
        windows.inbox.arrived(stream, b"behind it");
        assert!(!windows.has_news());
    }
}
