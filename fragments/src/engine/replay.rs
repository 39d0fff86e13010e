//! Replay of matches: a rolled-back process takes the messages that it took before the failure.
//!
//! Source: DESIGN §7.4; MPI-3.1 §3.5. Given the determinants since the checkpoint, a receive from
//! MPI_ANY_SOURCE waits for one named message (*bound*), a receive that was cancelled takes none
//! (*inert*), and a receive from MPI_ANY_SOURCE without a determinant waits until all determinants
//! are replayed (*undecided*): otherwise it might take a message that belongs to another receive.
//! Receives from a named source need no determinant: with one sender, the order on both sides
//! allows one match only, whenever messages arrive.
//!
//! Invariants:
//! * P1 A message that a determinant names (*reserved*) is taken by that receive or probe alone;
//!   while it waits it is in `reserved_arrived`, not in `unexpected`.
//! * P2 A message that an older undecided receive would take is *withheld*, and so is every later
//!   one of its stream, and no other. So no message overtakes another when the undecided receives
//!   take part, and none waits that the program may wait for before its determinants are replayed.
//! * P3 Until all determinants are replayed no receive from MPI_ANY_SOURCE is in `posted`.

use super::receive_fifo::FifoReceive;
use super::state::{Announced, LinkState, PendingReceive, Progress, UnexpectedMessage};
use super::{Engine, Host, ReceiveOutcome};
use crate::host::Status;
use crate::ids::*;
use crate::matching::{ANY_SOURCE, Key};
use crate::wire::{FLAG_SYNC, StreamKey};
use std::collections::{BTreeMap, BTreeSet};

/// The determinants of matching since the checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplayDeterminants {
    /// Which message each receive from MPI_ANY_SOURCE took.
    pub matches: Vec<(ReceiveName, MessageName)>,
    /// Receives that were cancelled in time.
    pub cancelled: Vec<ReceiveName>,
    /// Messages that matched probes took out of matching.
    pub claimed: Vec<MessageName>,
}

/// An undecided receive: its place in the order of posting, and its slot.
type UndecidedReceive = (u64, u32);

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct Replay {
    matches: BTreeMap<ReceiveName, MessageName>,
    cancelled: BTreeSet<ReceiveName>,
    /// Bound receives that wait for their message.
    bound: BTreeMap<MessageName, u32>,
    reserved: BTreeSet<MessageName>,
    reserved_arrived: BTreeMap<MessageName, u32>,
    undecided: BTreeSet<UndecidedReceive>,
    /// Those of one stream are in its order.
    withheld: Vec<u32>,
    /// The streams of what is withheld.
    streams: BTreeSet<(PeerId, u32, i32)>,
    /// All determinants are replayed: only bound receives and reserved messages are left.
    over: bool,
}

pub(super) fn message_name(key: &Key, from: PeerId, sequence: u64) -> MessageName {
    let StreamKey { context, lane } = StreamKey::of(ContextId(key.context), key.tag);
    MessageName { from, context: context.number(), lane, sequence: MessageSeq(sequence) }
}

fn stream_of(name: &MessageName) -> (PeerId, u32, i32) {
    (name.from, name.context, name.lane)
}

impl UnexpectedMessage {
    pub(super) fn name(&self) -> MessageName {
        message_name(&self.key, self.peer, self.sequence)
    }
}

pub(super) fn receive_name(key: &Key, number: u64) -> ReceiveName {
    let StreamKey { context, lane } = StreamKey::of(ContextId(key.context), key.tag);
    let lane = if key.tag == crate::matching::ANY_TAG { 0 } else { lane };
    ReceiveName { context: context.number(), lane, number }
}

impl<H: Host> Engine<H> {
    /// The process was restored: replay these determinants. Call it after [`Engine::restarted`] and
    /// [`Engine::peer_down`], before any frame or call of the program. Receives and messages of the
    /// checkpoint are classified, too. A snapshot taken during a replay continues it with further
    /// determinants: they may decide receives that messages of the snapshot are withheld for.
    pub fn begin_replay(&mut self, host: &mut H, determinants: &ReplayDeterminants) {
        let mut replay = self.replay.take().unwrap_or_default();
        replay.over = false;
        replay.matches.extend(determinants.matches.iter().copied());
        replay.cancelled.extend(determinants.cancelled.iter().copied());
        let taken = determinants.matches.iter().map(|(_, message)| message);
        replay.reserved.extend(determinants.claimed.iter().chain(taken).copied());
        for (slot, _, message) in self.messages.iter() {
            let name = message.name();
            let waits = self.unexpected.holds(slot) || replay.withheld.contains(&slot);
            if waits && replay.reserved.contains(&name) {
                replay.reserved_arrived.insert(name, slot);
            }
        }
        for slot in replay.reserved_arrived.values() {
            self.unexpected.remove(*slot);
            replay.withheld.retain(|other| other != slot);
        }
        self.assign_receive_ids(host);
        self.posted.force(true);
        self.replay = Some(replay);
        let waiting: Vec<u32> = self.receives.iter().map(|(slot, ..)| slot).collect();
        for slot in waiting {
            self.classify_receive(host, slot);
        }
        self.match_withheld(host);
    }

    /// What is withheld takes part in matching again, in its order; some may be withheld again.
    fn match_withheld(&mut self, host: &mut H) {
        let Some(replay) = &mut self.replay else { return };
        replay.streams.clear();
        for slot in core::mem::take(&mut replay.withheld) {
            let UnexpectedMessage { key, peer, sequence, .. } = *self.messages.at(slot);
            match self.match_slow(host, key, peer, sequence) {
                Some(receive) => {
                    let PendingReceive { key, sequence, .. } = *self.receives.at(receive);
                    let message = self.messages.at(slot);
                    let announced = message.announced;
                    self.record_sync_match(host, (key, sequence), announced, message.name());
                    self.complete_match(host, receive, slot);
                }
                None if self.hold_for_replay(slot) => {}
                None => self.unexpected.insert(slot, key),
            }
        }
    }

    /// Are there determinants whose receive is not posted yet? (The driver counts those of probes,
    /// tests and cancels.)
    pub fn awaits_receives(&self) -> bool {
        self.replay.as_ref().is_some_and(|replay| !replay.matches.is_empty())
    }

    /// Are there determinants left to replay?
    pub fn is_replaying(&self) -> bool {
        self.replay.as_ref().is_some_and(|replay| !replay.over)
    }

    /// Is the replay complete, as far as this process knows: every determinant replayed, every
    /// repeated send known to have arrived, every channel repaired? A channel that only the peer
    /// knows of is not seen here, but there. So no message is an orphan only if this holds for all
    /// processes of the job while no message leaves a set: a global checkpoint has to ask
    /// (docs/adr/0016).
    pub fn is_replay_complete(&self) -> bool {
        let ahead = self.peers.iter().flatten().any(|peer| peer.ahead.is_some());
        self.replay.is_none() && !ahead && self.is_repaired()
    }

    /// Is every channel open between this process and one of another set, where one of the two was
    /// restarted?
    pub fn is_repaired(&self) -> bool {
        let first = Incarnation(0);
        self.peers.iter().flatten().all(|peer| {
            let restarted = peer.outgoing && self.incarnation.max(peer.info.incarnation) > first;
            !restarted || peer.link == LinkState::Open
        })
    }

    /// All determinants are replayed: the undecided receives take part in matching.
    pub fn end_replay(&mut self, host: &mut H) {
        let Some(replay) = &mut self.replay else { return };
        debug_assert!(replay.matches.is_empty(), "P3: {:?}", replay.matches);
        replay.over = true;
        replay.cancelled.clear();
        for (order, slot) in core::mem::take(&mut replay.undecided) {
            let receive = self.receives.at_mut(slot);
            receive.progress = Progress::Posted;
            self.posted.insert_at(slot, receive.key, order);
        }
        self.match_withheld(host);
        self.forget_replay();
    }

    fn forget_replay(&mut self) {
        if self.replay.as_ref().is_some_and(|replay| replay.over && replay.reserved.is_empty()) {
            self.replay = None;
            self.posted.force(false);
        }
    }

    /// Decide what replay does with a receive of the checkpoint, or with one that was posted since.
    fn classify_receive(&mut self, host: &mut H, slot: u32) {
        let Some(replay) = &mut self.replay else { return };
        let PendingReceive { key, sequence, progress, .. } = self.receives.at(slot);
        let (key, name) = (*key, receive_name(key, *sequence));
        if !key.is_user() && key.source != ANY_SOURCE {
            return;
        }
        let undecided = replay.undecided.iter().find(|(_, other)| *other == slot).copied();
        let order = match (progress, undecided) {
            (Progress::Posted, _) => self.posted.order(slot),
            (_, Some((order, _))) => order,
            _ => return,
        };
        let bound = replay.matches.remove(&name);
        let inert = replay.cancelled.remove(&name);
        if bound.is_none() && !inert && key.source != ANY_SOURCE {
            return;
        }
        replay.undecided.remove(&(order, slot));
        self.posted.remove(slot, &key);
        self.receives.at_mut(slot).progress = Progress::HeldForReplay;
        match bound {
            Some(message) => match replay.reserved_arrived.remove(&message) {
                Some(here) => {
                    replay.reserved.remove(&message);
                    self.complete_match(host, slot, here);
                }
                None => {
                    replay.bound.insert(message, slot);
                }
            },
            None if inert => {}
            None => {
                replay.undecided.insert((order, slot));
                self.withhold_from(key);
            }
        }
    }

    /// P2: an undecided receive was added. What is withheld already blocks no message that waits
    /// here: all of these were sent before it, if they are of its stream.
    fn withhold_from(&mut self, pattern: Key) {
        let Some(replay) = &mut self.replay else { return };
        let (mut withheld, mut streams) = (Vec::new(), BTreeSet::new());
        for slot in self.unexpected.in_order() {
            let message = self.messages.at(slot);
            let stream = stream_of(&message.name());
            if pattern.takes(&message.key) || streams.contains(&stream) {
                self.unexpected.remove(slot);
                streams.insert(stream);
                withheld.push(slot);
            }
        }
        replay.streams.append(&mut streams);
        replay.withheld.splice(0..0, withheld);
    }

    /// The library's own receives from MPI_ANY_SOURCE have their own counters.
    pub(super) fn next_of_library(&mut self, key: &Key) -> ReceiveName {
        let name = receive_name(key, 0);
        let count = self.library_posts.entry((name.context, name.lane)).or_default();
        *count += 1;
        ReceiveName { number: *count, ..name }
    }

    /// Is there a determinant to replay, or a bound receive, or a reserved message?
    #[inline]
    pub fn has_replay(&self) -> bool {
        self.replay.is_some()
    }

    /// A receive from MPI_ANY_SOURCE, or any receive during a replay.
    #[cold]
    pub(super) fn receive_slow(
        &mut self,
        host: &mut H,
        key: Key,
        mut number: u64,
        buffer: H::ReceiveBuffer,
        token: H::Token,
    ) -> ReceiveOutcome {
        if key.source == ANY_SOURCE && !key.is_user() {
            number = self.next_of_library(&key).number;
        }
        let name = receive_name(&key, number);
        if let Some(replay) = &mut self.replay {
            let known = key.is_user() || key.source == ANY_SOURCE;
            let bound = replay.matches.get(&name).copied().filter(|_| known);
            if let Some(message) = bound
                && let Some(slot) = replay.reserved_arrived.remove(&message)
            {
                replay.matches.remove(&name);
                replay.reserved.remove(&message);
                let message = self.messages.take(slot);
                self.forget_replay();
                return self.take_message_slow(host, message, buffer, token, None);
            }
            let open = key.source == ANY_SOURCE && !replay.over;
            if known && (open || bound.is_some() || replay.cancelled.contains(&name)) {
                let id = self.post_slow(host, key, FifoReceive { buffer, token, number });
                self.classify_receive(host, id.index());
                return ReceiveOutcome::Pending(id);
            }
        }
        if let Some(slot) = self.unexpected.find(key) {
            self.unexpected.remove(slot);
            let message = self.messages.take(slot);
            if key.source == ANY_SOURCE {
                host.matched(name, message.name());
            }
            return self.take_message_slow(host, message, buffer, token, Some((key, number)));
        }
        ReceiveOutcome::Pending(self.post_slow(host, key, FifoReceive { buffer, token, number }))
    }

    /// Which receive takes an arriving message, where there are wildcards or a replay?
    #[cold]
    pub(super) fn match_slow(
        &mut self,
        host: &mut H,
        key: Key,
        from: PeerId,
        sequence: u64,
    ) -> Option<u32> {
        if let Some(replay) = &mut self.replay {
            let name = message_name(&key, from, sequence);
            if let Some(slot) = replay.bound.remove(&name) {
                replay.reserved.remove(&name);
                self.forget_replay();
                return Some(slot);
            }
            if replay.reserved.contains(&name) || replay.streams.contains(&stream_of(&name)) {
                return None;
            }
            let takes = |(_, slot): &&UndecidedReceive| self.receives.at(*slot).key.takes(&key);
            if let Some((order, _)) = replay.undecided.iter().find(takes)
                && self.posted.oldest(key).is_none_or(|posted| posted > *order)
            {
                return None;
            }
        }
        self.take_posted(host, key, from, sequence)
    }

    fn take_posted(&mut self, host: &mut H, key: Key, from: PeerId, sequence: u64) -> Option<u32> {
        let slot = self.posted.take(key)?;
        let receive = self.receives.at(slot);
        if receive.key.source == ANY_SOURCE {
            let name = receive_name(&receive.key, receive.sequence);
            host.matched(name, message_name(&key, from, sequence));
        }
        Some(slot)
    }

    /// A receive from a named source takes a synchronous message of another set: the report of that
    /// match leaves the set, so it is a nondeterministic event, too. Otherwise the process could
    /// roll back, cancel the receive in time, and the send would be complete without a match. (The
    /// library's own traffic is never cancelled.)
    #[inline(never)]
    pub(super) fn record_sync_match(
        &mut self,
        host: &mut H,
        (key, number): (Key, u64),
        announced: Option<Announced>,
        message: MessageName,
    ) {
        let is_synchronous = announced.is_some_and(|announced| announced.flags & FLAG_SYNC != 0);
        if is_synchronous
            && key.is_user()
            && key.source != ANY_SOURCE
            && self.peer(message.from).outgoing
        {
            host.matched(receive_name(&key, number), message);
        }
    }

    /// A message that no receive took: does replay hold it out of matching (P1, P2)?
    #[cold]
    pub(super) fn hold_for_replay(&mut self, slot: u32) -> bool {
        let Some(replay) = &mut self.replay else { return false };
        let message = self.messages.at(slot);
        let name = message.name();
        if replay.reserved.contains(&name) {
            replay.reserved_arrived.insert(name, slot);
            return true;
        }
        let takes = |(_, slot): &UndecidedReceive| self.receives.at(*slot).key.takes(&message.key);
        let withheld =
            replay.streams.contains(&stream_of(&name)) || replay.undecided.iter().any(takes);
        if withheld {
            replay.streams.insert(stream_of(&name));
            replay.withheld.push(slot);
        }
        withheld
    }

    /// A waiting receive takes a waiting message.
    fn complete_match(&mut self, host: &mut H, slot: u32, message: u32) {
        let message = self.messages.take(message);
        let receive = self.receives.at_mut(slot);
        receive.key = message.key;
        receive.peer = message.peer;
        receive.sequence = message.sequence;
        receive.total = message.total;
        receive.progress = Progress::Stale;
        let done = match message.announced {
            Some(announced) => self.begin_transfer(host, slot, announced, &message.bytes),
            None => {
                let mut receive = self.receives.take(slot);
                let status = self.deliver(host, &mut receive.buffer, message.key, &message.bytes);
                Some((receive.token, status))
            }
        };
        self.pool.give(message.bytes);
        if let Some((token, status)) = done {
            host.complete(token, status);
        }
    }

    /// What a probe for a named source finds during a replay: the oldest message of its stream that
    /// no receive has taken, reserved or not.
    pub(super) fn probe_in_replay(&mut self, pattern: Key) -> Option<u32> {
        let found = self.unexpected.find(pattern);
        let reserved =
            self.replay.iter().flat_map(|replay| replay.reserved_arrived.values()).copied();
        let takes = |slot: &u32| pattern.takes(&self.messages.at(*slot).key);
        reserved.filter(takes).chain(found).min_by_key(|slot| self.messages.at(*slot).sequence)
    }

    /// The name of a communicator, the same at all its members.
    pub fn name_of(&self, comm: CommId) -> ContextId {
        ContextId(self.comms[comm.0 as usize].context)
    }

    /// The host's handle of a communicator (`Host::resolve`).
    pub fn handle_of(&self, comm: CommId) -> u64 {
        self.comms[comm.0 as usize].handle
    }

    /// MPI's context id of a communicator, for the record of a probe.
    pub fn context_of(&self, comm: CommId) -> u16 {
        ContextId(self.comms[comm.0 as usize].context).number() as u16
    }

    /// The name of the message that a probe would find, for the record of its outcome.
    pub fn probe_name(
        &mut self,
        comm: CommId,
        source: super::Source,
        tag: super::TagMatch,
    ) -> Option<MessageName> {
        let key = self.pattern(comm, source, tag);
        self.unexpected.find(key).map(|slot| self.messages.at(slot).name())
    }

    /// A message by its name: what a replayed probe finds. None: it has not arrived yet.
    pub fn probe_named(&self, name: &MessageName) -> Option<Status> {
        let (slot, ..) = self.messages.iter().find(|(_, _, message)| message.name() == *name)?;
        Some(self.status_of(slot))
    }

    /// Take a reserved message out of matching: what a replayed matched probe finds. None: it has
    /// not arrived yet.
    pub fn claim_named(&mut self, name: &MessageName) -> Option<(MessageId, Status)> {
        let replay = self.replay.as_mut()?;
        let slot = replay.reserved_arrived.remove(name)?;
        replay.reserved.remove(name);
        self.forget_replay();
        let id = MessageId::new(slot, self.messages.generation(slot));
        Some((id, self.status_of(slot)))
    }

    /// The name of a receive that has not matched, for the record of its being cancelled.
    pub fn receive_name(&self, receive: ReceiveId) -> Option<ReceiveName> {
        let receive = self.receives.get(receive.index(), receive.generation())?;
        let waits = !receive.progress.is_matched() && receive.key.is_user();
        waits.then(|| receive_name(&receive.key, receive.sequence))
    }

    /// Cancel a receive that replay holds out of matching. A bound one has a message coming.
    pub(super) fn cancel_held_for_replay(&mut self, slot: u32) -> bool {
        if let Some(replay) = &mut self.replay {
            if replay.bound.values().any(|bound| *bound == slot) {
                return false;
            }
            // What is withheld for it stays so until the replay ends. That is soon: a cancel in
            // time that is not in `cancelled` comes after all that is replayed.
            replay.undecided.retain(|(_, other)| *other != slot);
        }
        self.receives.take(slot);
        true
    }

    /// The communicator is freed: drop its withheld messages.
    #[cold]
    pub(super) fn drop_held_for_replay(&mut self, context: u32) {
        let Some(replay) = &mut self.replay else { return };
        let of = |slot: &u32| self.messages.at(*slot).key.context == context;
        let gone: Vec<u32> = replay.withheld.iter().copied().filter(of).collect();
        replay.withheld.retain(|slot| !gone.contains(slot));
        let left = replay.withheld.iter().map(|slot| stream_of(&self.messages.at(*slot).name()));
        replay.streams = left.collect();
        for slot in gone {
            self.messages.take(slot);
        }
    }

    /// Assert P2: `streams` are those of what is withheld, no message overtakes another.
    fn check_withheld(&self, replay: &Replay) {
        let mut last = BTreeMap::new();
        for slot in &replay.withheld {
            let message = self.messages.at(*slot);
            let (name, stream) = (message.name(), stream_of(&message.name()));
            let before = last.insert(stream, name.sequence);
            assert!(before.is_none_or(|before| before < name.sequence), "P2: {name:?} overtakes");
        }
        assert!(last.keys().eq(&replay.streams), "P2: {last:?} and {:?}", replay.streams);
        let free = self.messages.iter().filter(|(slot, ..)| self.unexpected.holds(*slot));
        for name in free.map(|(_, _, message)| message.name()) {
            let last = last.get(&stream_of(&name));
            assert!(last.is_none_or(|last| name.sequence < *last), "P2: {name:?} overtakes");
        }
    }

    /// Assert P1–P3.
    pub(super) fn check_replay(&self) {
        let held = self.receives.iter().filter(|(_, _, r)| r.progress == Progress::HeldForReplay);
        let Some(replay) = &self.replay else {
            assert_eq!(held.count(), 0, "P3: receives are held for a replay that is over");
            return;
        };
        for (name, slot) in &replay.reserved_arrived {
            assert!(replay.reserved.contains(name), "P1: {name:?}");
            assert!(!self.unexpected.holds(*slot), "P1: {name:?}");
        }
        for (name, slot) in &replay.bound {
            assert!(replay.reserved.contains(name), "P1: {name:?}");
            assert_eq!(self.receives.at(*slot).progress, Progress::HeldForReplay, "P1: {name:?}");
        }
        self.check_withheld(replay);
        for (_, _, message) in self.messages.iter() {
            let name = message.name();
            if replay.bound.contains_key(&name) {
                panic!("P1: {name:?} is here, and its receive waits");
            }
        }
        for (_, _, receive) in self.receives.iter() {
            let free = receive.progress == Progress::Posted && receive.key.source == ANY_SOURCE;
            assert!(!free || replay.over, "P3: {:?}", receive.key);
        }
    }
}
