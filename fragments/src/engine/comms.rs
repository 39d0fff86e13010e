//! Communicators, channels and peers: who is rank r, and which counters go with it.

use super::received_vector::ReceivedVector;
use super::state::{Channel, Comm, LinkState, NONE, PeerState};
use super::{CommId, CommRank, Engine, Host, PeerId};
use crate::counters::Traffic;
use crate::ids::{ContextId, Incarnation};
use crate::send_gate::Recorded;
use crate::streams::Lanes;
use std::collections::VecDeque;

impl<H: Host> Engine<H> {
    /// A communicator of `size` processes (of the remote group, for an intercommunicator) in which
    /// this process sends as `rank`. `handle` is passed to `Host::resolve`. Messages that arrived
    /// for `context` before are found by the receives that follow.
    pub fn add_comm(
        &mut self,
        context: ContextId,
        rank: CommRank,
        size: u32,
        handle: u64,
    ) -> CommId {
        let index = self.comm_of(context.0);
        self.make_current(context, index);
        let comm = &mut self.comms[index as usize];
        comm.attached = true;
        comm.rank = rank.0;
        comm.handle = handle;
        comm.channels.clear();
        comm.channels.resize(size as usize, NONE);
        CommId(index)
    }

    /// The communicator is freed; unexpected messages that nobody received are dropped.
    pub fn del_comm(&mut self, comm: CommId) {
        let comm = &mut self.comms[comm.0 as usize];
        comm.attached = false;
        comm.channels = Vec::new();
        let context = comm.context;
        if self.replay.is_some() {
            self.drop_held_for_replay(context);
        }
        if self.unexpected.is_empty() {
            return;
        }
        for slot in self.unexpected.of_context(context) {
            self.unexpected.remove(slot);
            let message = self.messages.take(slot);
            self.pool.give(message.bytes);
        }
    }

    /// The record of a communicator, created at the first mention of it.
    #[inline]
    pub(super) fn comm_of(&mut self, context: u32) -> u32 {
        match self.contexts.get(ContextId(context).number() as usize) {
            Some(&index) if index != NONE && self.comms[index as usize].context == context => index,
            _ => self.comm_of_slow(context),
        }
    }

    #[cold]
    fn comm_of_slow(&mut self, context: u32) -> u32 {
        if let Some(&index) = self.other_instances.get(&context) {
            return index;
        }
        let comm = Comm { context, ..Comm::default() };
        let index = match self.free_comms.pop() {
            Some(index) => {
                self.comms[index as usize] = comm;
                index
            }
            None => {
                self.comms.push(comm);
                self.comms.len() as u32 - 1
            }
        };
        let number = ContextId(context).number() as usize;
        if self.contexts.len() <= number {
            self.contexts.resize(number + 1, NONE);
        }
        if self.contexts[number] == NONE {
            self.contexts[number] = index;
        } else {
            self.other_instances.insert(context, index);
        }
        index
    }

    /// This record is the one that its context id names from now on.
    fn make_current(&mut self, context: ContextId, index: u32) {
        let number = context.number() as usize;
        let before = core::mem::replace(&mut self.contexts[number], index);
        if before == index {
            return;
        }
        self.other_instances.remove(&context.0);
        let Comm { context: old, posts, .. } = self.comms[before as usize];
        self.comms[index as usize].posts = posts;
        debug_assert!(!self.comms[before as usize].attached, "a context id has one communicator");
        if self.unexpected.of_context(old).is_empty() {
            self.free_comms.push(before);
        } else {
            self.other_instances.insert(old, before);
        }
    }

    /// The channel to a rank.
    #[inline]
    pub(super) fn channel_to(&mut self, host: &mut H, comm: CommId, rank: CommRank) -> usize {
        let index = self.comms[comm.0 as usize].channels[rank.0 as usize];
        if index != NONE { index as usize } else { self.open_channel(host, comm, rank) }
    }

    #[cold]
    fn open_channel(&mut self, host: &mut H, comm: CommId, rank: CommRank) -> usize {
        let Comm { handle, context, .. } = self.comms[comm.0 as usize];
        let peer = host.resolve(handle, rank);
        let channel = self.channel_with(host, ContextId(context).number(), peer);
        self.comms[comm.0 as usize].channels[rank.0 as usize] = channel;
        channel as usize
    }

    /// The channel to a peer under a context id (without instance); created if there is none.
    #[cold]
    pub(super) fn channel_with(&mut self, host: &mut H, context: u32, peer: PeerId) -> u32 {
        self.ensure_peer(host, peer);
        let next = self.channels.len() as u32;
        let index = *self.by_peer.entry((context, peer)).or_insert(next);
        if index == next {
            let (sent, arrived) = (Lanes::default(), Lanes::default());
            let verified = self.verifies_sends && self.peer(peer).outgoing;
            let contents = verified.then(Box::default);
            self.channels.push(Channel { peer, context, sent, arrived, contents });
        }
        index
    }

    /// Create the record of a peer at the first contact.
    #[inline]
    pub(super) fn ensure_peer(&mut self, host: &mut H, peer: PeerId) {
        if self.peers.get(peer.0 as usize).is_none_or(Option::is_none) {
            self.new_peer(host, peer);
        }
    }

    #[cold]
    fn new_peer(&mut self, host: &mut H, id: PeerId) {
        let at = id.0 as usize;
        if self.peers.len() <= at {
            self.peers.resize_with(at + 1, || None);
        }
        let info = host.peer_info(id);
        let outgoing = info.set != self.set;
        let held = self.holds[usize::from(outgoing)];
        // Where either end was restarted, the other may know of a channel that this one does not
        // know: the first channel begins with a resync, like one that was lost.
        let first = Incarnation(0);
        let restarted = outgoing && (self.incarnation > first || info.incarnation > first);
        self.peers[at] = Some(Box::new(PeerState {
            info,
            outgoing,
            link: if restarted { LinkState::Resync } else { LinkState::Open },
            direct: !held && !restarted,
            same_set: !outgoing && id != self.me,
            in_backlog: false,
            queue: VecDeque::new(),
            held,
            held_queue: VecDeque::new(),
            done_sent: false,
            pushes: VecDeque::new(),
            taken: 0,
            taken_of_push: false,
            traffic: Traffic::default(),
            ahead: None,
            resync: Box::new(ReceivedVector::default()),
            acknowledged: Box::default(),
            accepts_piggyback: false,
            piggybacked: Recorded(0),
            covered: Recorded(0),
        }));
        if restarted {
            self.send_received_vector(host, id);
        } else if self.accepts_piggyback {
            self.announce_piggyback(host, id);
        }
    }

    /// The record of a peer that was talked to.
    #[inline]
    pub(super) fn peer(&mut self, peer: PeerId) -> &mut PeerState {
        match &mut self.peers[peer.0 as usize] {
            Some(peer) => peer,
            None => unreachable!("a peer has a record before anything refers to it"),
        }
    }
}
