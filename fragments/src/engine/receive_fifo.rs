//! Uniform receives: posted receives with one pattern wait in a plain queue.
//!
//! A window of receives from one sender: while all posted receives have the same pattern without
//! wildcards, the oldest takes the next message. They need no record, no slot and no place in the
//! matching table. The first receive with another pattern turns all of them into records; so does a
//! caller that needs an id.
//!
//! Invariants:
//! * A1 While there is a pattern no other receive is posted, and there is no `replay`.
//! * A2 The pattern has no wildcards, and no waiting message matches it (E3).

use super::state::{PendingReceive, Progress};
use super::{Engine, Host};
use crate::ids::{PeerId, ReceiveId, SendId};
use crate::matching::{ANY_SOURCE, ANY_TAG, Key};
use crate::payload_digest::PayloadDigest;
use std::collections::VecDeque;

/// A uniform receive.
#[derive(Clone, Debug)]
pub(super) struct FifoReceive<R, T> {
    pub buffer: R,
    pub token: T,
    /// Number of the receive (`ReceiveName`).
    pub number: u64,
}

/// The uniform receives, oldest first.
#[derive(Clone, Debug)]
pub(super) struct ReceiveFifo<R, T> {
    /// What each of them takes; it stays when none is left. `None`: other receives are posted, or
    /// were last.
    pattern: Option<Key>,
    /// Where its communicator is among those of the engine.
    comm: u32,
    queue: VecDeque<FifoReceive<R, T>>,
}

impl<R, T> Default for ReceiveFifo<R, T> {
    fn default() -> Self {
        Self { pattern: None, comm: 0, queue: VecDeque::new() }
    }
}

impl<R, T> ReceiveFifo<R, T> {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Is this the pattern of the posted receives, or of the last ones?
    #[inline(always)]
    pub fn is_pattern(&self, key: &Key) -> bool {
        self.pattern.as_ref() == Some(key)
    }

    /// The pattern of the oldest one, and its communicator.
    #[inline(always)]
    pub fn next(&self) -> Option<(Key, u32)> {
        if self.queue.is_empty() { None } else { self.pattern.map(|key| (key, self.comm)) }
    }

    /// Only if [`Self::is_pattern`] holds for its pattern.
    #[inline(always)]
    pub fn push(&mut self, waiting: FifoReceive<R, T>) {
        self.queue.push_back(waiting);
    }

    /// The oldest one.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<FifoReceive<R, T>> {
        self.queue.pop_front()
    }
}

impl<H: Host> Engine<H> {
    /// Post a receive for which no message has arrived.
    #[inline(never)]
    pub(super) fn post_slow(
        &mut self,
        host: &mut H,
        key: Key,
        waiting: FifoReceive<H::ReceiveBuffer, H::Token>,
    ) -> ReceiveId {
        let plain = key.source != ANY_SOURCE && key.tag != ANY_TAG && self.replay.is_none();
        if plain && self.fifo.is_empty() && self.posted.is_empty() {
            self.fifo.pattern = Some(key);
            self.fifo.comm = self.comm_of(key.context);
        }
        if self.fifo.is_pattern(&key) {
            self.fifo.push(waiting);
            return ReceiveId::NONE;
        }
        self.assign_receive_ids(host);
        let (index, generation) = self.receives.insert(record(key, waiting));
        self.posted.insert(index, key);
        ReceiveId::new(index, generation)
    }

    /// From now on until nothing is posted each receive has a record and an id, which the host gets
    /// by `Host::receive_id_assigned`.
    pub fn assign_receive_ids(&mut self, host: &mut H) {
        let Some(key) = self.fifo.pattern.take() else { return };
        while let Some(waiting) = self.fifo.pop() {
            let token = waiting.token;
            let (index, generation) = self.receives.insert(record(key, waiting));
            self.posted.insert(index, key);
            host.receive_id_assigned(token, ReceiveId::new(index, generation));
        }
    }

    /// Take the oldest one, if it takes this message, as a record that is not posted any more.
    pub(super) fn take_from_fifo(&mut self, key: Key) -> Option<u32> {
        if !self.fifo.is_pattern(&key) {
            return None;
        }
        let waiting = self.fifo.pop()?;
        Some(self.receives.insert(record(key, waiting)).0)
    }

    /// Assert A1 and A2.
    pub(super) fn check_fifo(&self) {
        let Some(key) = self.fifo.pattern else {
            assert!(self.fifo.is_empty(), "A1: what waits has a pattern");
            return;
        };
        assert!(self.posted.is_empty(), "A1: posted in one place");
        assert!(self.replay.is_none(), "A1: replay knows receives by their records");
        assert!(key.source != ANY_SOURCE && key.tag != ANY_TAG, "A2: {key:?}");
        let missed = self.unexpected.envelopes().find(|message| key.takes(message));
        assert!(self.fifo.is_empty() || missed.is_none(), "A2, E3: {key:?} and {missed:?}");
    }
}

fn record<R, T>(key: Key, waiting: FifoReceive<R, T>) -> PendingReceive<R, T> {
    PendingReceive {
        buffer: waiting.buffer,
        token: waiting.token,
        key,
        progress: Progress::Posted,
        peer: PeerId(0),
        sequence: waiting.number,
        send: SendId(0),
        total: 0,
        digest: PayloadDigest::NONE,
    }
}
