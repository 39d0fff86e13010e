//! Receives that are alike: no record, no slot, no place in the table.
//!
//! A window of receives from one sender: while all that are posted have the same pattern without
//! wildcards, the oldest takes what comes, so they wait in a plain queue. The first other one, and
//! whoever has to know one of them by its id, makes records of all.
//!
//! Invariants:
//! * A1 While there is a pattern no other receive is posted, and nothing is forced (`replay`).
//! * A2 What waits here has a pattern without wildcards, which no waiting message fits (E3).

use super::state::{Progress, Receive};
use super::{Engine, Host};
use crate::ids::{PeerId, ReceiveId, SendId};
use crate::matching::{ANY_SOURCE, ANY_TAG, Key};
use std::collections::VecDeque;

/// One of them.
#[derive(Clone, Debug)]
pub(super) struct Waiting<R, T> {
    pub buffer: R,
    pub token: T,
    /// Number of the receive (`ReceiveName`).
    pub number: u64,
}

/// All of them, oldest first.
#[derive(Clone, Debug)]
pub(super) struct Alike<R, T> {
    /// What each of them takes; kept when none is left. `None`: others are posted, or were last.
    pattern: Option<Key>,
    /// Where its communicator is among those of the engine.
    comm: u32,
    queue: VecDeque<Waiting<R, T>>,
}

impl<R, T> Default for Alike<R, T> {
    fn default() -> Self {
        Self { pattern: None, comm: 0, queue: VecDeque::new() }
    }
}

impl<R, T> Alike<R, T> {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Is this what the receives that are posted take, or the last ones took?
    #[inline(always)]
    pub fn is_pattern(&self, key: &Key) -> bool {
        self.pattern.as_ref() == Some(key)
    }

    /// What the oldest one takes, and its communicator.
    #[inline(always)]
    pub fn next(&self) -> Option<(Key, u32)> {
        if self.queue.is_empty() { None } else { self.pattern.map(|key| (key, self.comm)) }
    }

    /// [`Self::is_pattern`] of what it takes holds.
    #[inline(always)]
    pub fn push(&mut self, waiting: Waiting<R, T>) {
        self.queue.push_back(waiting);
    }

    /// The oldest one.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<Waiting<R, T>> {
        self.queue.pop_front()
    }
}

impl<H: Host> Engine<H> {
    /// Post a receive that no message was here for.
    #[inline(never)]
    pub(super) fn post_other(
        &mut self,
        host: &mut H,
        key: Key,
        waiting: Waiting<H::ReceiveBuffer, H::Token>,
    ) -> ReceiveId {
        let plain = key.source != ANY_SOURCE && key.tag != ANY_TAG && self.replay.is_none();
        if plain && self.alike.is_empty() && self.posted.is_empty() {
            self.alike.pattern = Some(key);
            self.alike.comm = self.comm_of(key.context);
        }
        if self.alike.is_pattern(&key) {
            self.alike.push(waiting);
            return ReceiveId::NONE;
        }
        self.assign_receive_ids(host);
        let (index, generation) = self.receives.insert(record(key, waiting));
        self.posted.insert(index, key);
        ReceiveId::new(index, generation)
    }

    /// From now on until nothing is posted each receive has a record and an id, which the host is
    /// told (`Host::receive_id_assigned`).
    pub fn assign_receive_ids(&mut self, host: &mut H) {
        let Some(key) = self.alike.pattern.take() else { return };
        while let Some(waiting) = self.alike.pop() {
            let token = waiting.token;
            let (index, generation) = self.receives.insert(record(key, waiting));
            self.posted.insert(index, key);
            host.named(token, ReceiveId::new(index, generation));
        }
    }

    /// The oldest one, if it takes this message, as a record that is not posted any more.
    pub(super) fn record_alike(&mut self, key: Key) -> Option<u32> {
        if !self.alike.is_pattern(&key) {
            return None;
        }
        let waiting = self.alike.pop()?;
        Some(self.receives.insert(record(key, waiting)).0)
    }

    /// Assert A1 and A2.
    pub(super) fn check_alike(&self) {
        let Some(key) = self.alike.pattern else {
            assert!(self.alike.is_empty(), "A1: what waits has a pattern");
            return;
        };
        assert!(self.posted.is_empty(), "A1: posted in one place");
        assert!(self.replay.is_none(), "A1: replay knows receives by their records");
        assert!(key.source != ANY_SOURCE && key.tag != ANY_TAG, "A2: {key:?}");
        let missed = self.unexpected.envelopes().find(|message| key.takes(message));
        assert!(self.alike.is_empty() || missed.is_none(), "A2, E3: {key:?} and {missed:?}");
    }
}

fn record<R, T>(key: Key, waiting: Waiting<R, T>) -> Receive<R, T> {
    Receive {
        buffer: waiting.buffer,
        token: waiting.token,
        key,
        progress: Progress::Posted,
        peer: PeerId(0),
        sequence: waiting.number,
        send: SendId(0),
        total: 0,
    }
}
