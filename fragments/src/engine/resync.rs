//! Repair of a channel to another set that was lost: by a reset connection, or because one of the
//! two processes was rolled back to its checkpoint.
//!
//! Source: DESIGN §7.3; paper §3 (recovery). Each side sends its received vector: how many messages
//! of each stream it has accepted, and which of them are open (their payload or their match is
//! still missing). The other side resends from its log, in order, what was not accepted, and
//! announces the open ones again; such an announcement finds the waiting receive or unexpected
//! message. A rolled-back process repeats its sends: those that the peer has received are complete
//! at once (suppressed).
//!
//! Only channels between sets are repaired: messages inside a set are in no log. The processes of a
//! set roll back together, and their channels are as they were at the checkpoint.

use super::queue::queued;
use super::received_vector::{Entry, Name, ReceivedVector, name_of};
use super::send::Outbound;
use super::state::{Announced, Body, LinkState, PayloadSource, Progress};
use super::{Engine, FrameError, Host, PeerId, SendOutcome};
use crate::host::{LogEntry, PeerInfo, Status};
use crate::ids::{Incarnation, LogRecord, SendId};
use crate::matching::Key;
use crate::send_gate::Recorded;
use crate::streams::Lanes;
use crate::wire::{FLAG_LAST, FLAG_REANNOUNCE, FrameType, HEADER_BYTES, Header};
use std::collections::BTreeMap;

/// Entries in one frame at most.
const ENTRIES_MAX: usize = 100;

impl<H: Host> Engine<H> {
    /// The channel to `peer` is lost (connection reset, process failed); what was in flight is
    /// lost. Pulls from it that `Host::pull` had started must be over: they write no more, and
    /// `pull_finished` is not called for them.
    pub fn peer_down(&mut self, host: &mut H, id: PeerId) {
        self.ensure_peer(host, id);
        let peer = self.peer(id);
        peer.link = LinkState::Down;
        peer.direct = false;
        peer.queue.clear();
        peer.held_queue.clear();
        peer.done_sent = false;
        peer.pushes.clear();
        peer.taken = 0;
        peer.ahead = None;
        *peer.resync = ReceivedVector::default();
        peer.acknowledged.forget_arriving();
        peer.accepts_piggyback = false;
        (peer.piggybacked, peer.covered) = (Recorded(0), Recorded(0));
        let mut over = Vec::new();
        for (index, generation, send) in self.sends.iter_mut() {
            if send.peer == id && matches!(send.source, PayloadSource::Log(_)) {
                let send_id = SendId::new(index, generation);
                send.granted = false;
                send.inline = 0;
                if core::mem::take(&mut send.exposed) {
                    host.withdraw(id, send_id);
                }
                if send.token.is_none() || !send.synchronous {
                    over.push(send_id);
                }
            }
        }
        for send in over {
            // The log has it if the peer asks again: the program need not wait.
            self.finish_send(host, send);
        }
        let outgoing = self.peer(id).outgoing;
        for (_, _, receive) in self.receives.iter_mut() {
            if receive.progress.is_matched() && receive.peer == id {
                self.in_flight -= u32::from(!outgoing && receive.progress.is_in_flight());
                receive.progress = Progress::Stale;
            }
        }
        for (_, _, message) in self.messages.iter_mut() {
            if let Some(announced) = &mut message.announced
                && message.peer == id
            {
                announced.stale = true;
            }
        }
    }

    /// Is this a process of another set, with which lost channels can be repaired?
    pub fn is_outgoing_peer(&self, peer: PeerId) -> bool {
        let peer = self.peers.get(peer.0 as usize).and_then(Option::as_ref);
        peer.is_some_and(|peer| peer.outgoing)
    }

    /// Was there any traffic with this process?
    pub fn has_contacted(&self, peer: PeerId) -> bool {
        self.peers.get(peer.0 as usize).is_some_and(Option::is_some)
    }

    /// Is the channel to `peer` one to this incarnation?
    pub fn is_current_incarnation(&self, peer: PeerId, incarnation: Incarnation) -> bool {
        let peer = self.peers.get(peer.0 as usize).and_then(Option::as_ref);
        peer.is_some_and(|peer| peer.info.incarnation == incarnation)
    }

    /// Is the channel to `peer` open and repaired, or was it never used?
    pub fn is_open(&self, peer: PeerId) -> bool {
        let peer = self.peers.get(peer.0 as usize).and_then(Option::as_ref);
        peer.is_none_or(|peer| peer.link == LinkState::Open)
    }

    /// There is a channel to `peer` again, in its `incarnation`: exchange stream counters, then
    /// repair (DESIGN §7.3). Call it before any frame that came over the new channel is handed in.
    ///
    /// It is enough that one end reports that a channel was lost: its received vector, the first
    /// frame on the new channel, shows that to the other. The first channel of a pair needs no
    /// call, unless the peer runs in another incarnation than `Host::peer_info` has returned.
    /// Without effect on a channel of this incarnation that is not down. The size limits of the
    /// peer are asked for again.
    pub fn peer_up(&mut self, host: &mut H, id: PeerId, incarnation: Incarnation) {
        self.ensure_peer(host, id);
        let peer = self.peer(id);
        if !peer.outgoing {
            // Inside the set nothing is repaired: it rolls back as a whole.
            return;
        }
        if peer.link != LinkState::Down && peer.info.incarnation == incarnation {
            return;
        }
        if peer.link != LinkState::Down {
            self.peer_down(host, id);
        }
        let info = host.peer_info(id);
        let peer = self.peer(id);
        peer.info = PeerInfo { incarnation, ..info };
        peer.link = LinkState::Resync;
        self.send_received_vector(host, id);
        self.flush(host);
    }

    /// Send what was accepted from the peer, as the first frames of a channel.
    pub(super) fn send_received_vector(&mut self, host: &mut H, id: PeerId) {
        let mut entries = self.received_entries(id);
        entries.extend(self.content_entries(id));
        self.send_vector(host, id, FrameType::Resync, &entries);
    }

    /// Send entries of a received vector, in frames of this kind.
    pub(super) fn send_vector(
        &mut self,
        host: &mut H,
        id: PeerId,
        kind: FrameType,
        entries: &[Entry],
    ) {
        let mine = self.incarnation;
        let incarnation = self.peer(id).info.incarnation;
        let frames = entries.len().div_ceil(ENTRIES_MAX).max(1);
        for (number, part) in (1..=frames)
            .zip(entries.chunks(ENTRIES_MAX).map(<[_]>::to_vec).chain(core::iter::once(Vec::new())))
        {
            let body: Vec<u8> = part.into_iter().flatten().collect();
            let mut header = Header::control(kind, mine, incarnation, 0, 0);
            header.length = (HEADER_BYTES + body.len()) as u32;
            header.flags = if number == frames { FLAG_LAST } else { 0 };
            self.enqueue(host, id, queued(&header.encode(), Body::Owned(body)), 0);
        }
    }

    /// A part of the peer's received vector has arrived; after the last part the repair begins.
    pub(super) fn on_resync(
        &mut self,
        host: &mut H,
        from: PeerId,
        flags: u8,
        body: &[u8],
    ) -> Result<(), FrameError> {
        if self.peer(from).link == LinkState::Open {
            // The peer has lost a channel, and we did not notice: for us it is lost, too.
            let incarnation = self.peer(from).info.incarnation;
            self.peer_down(host, from);
            self.peer_up(host, from, incarnation);
        }
        let peer = self.peer(from);
        peer.resync.read(body)?;
        if flags & FLAG_LAST != 0 {
            let received = core::mem::take(&mut *peer.resync);
            peer.link = LinkState::Open;
            peer.direct = !peer.in_backlog && !peer.held;
            if self.accepts_piggyback {
                self.announce_piggyback(host, from);
            }
            self.repair(host, from, received);
        }
        Ok(())
    }

    fn repair(&mut self, host: &mut H, id: PeerId, mut received: ReceivedVector) {
        // Synchronous sends that wait for their match keep their identity.
        let mut waiting: BTreeMap<Name, SendId> = BTreeMap::new();
        for (index, generation, send) in self.sends.iter() {
            if send.peer == id && matches!(send.source, PayloadSource::Log(_)) {
                let name = name_of(send.context, send.tag, send.sequence);
                waiting.insert(name, SendId::new(index, generation));
            }
        }
        self.verify_log(host, id, &mut received);
        let mut after = None;
        while let Some((record, entry)) = host.log_next(id, after) {
            after = Some(record);
            let name = name_of(entry.stream.context.0, entry.stream.lane, entry.sequence.0);
            let send = waiting.remove(&name);
            if !received.accepted(name) {
                self.counters.resent_messages += 1;
                self.resend(host, record, &entry, send, 0);
            } else if received.open.remove(&name) {
                self.resend(host, record, &entry, send, FLAG_REANNOUNCE);
            } else if let Some(send) = send {
                // Accepted and not open: it was matched.
                self.finish_send(host, send);
            }
        }
        for send in waiting.into_values() {
            // Trimmed from the log: a checkpoint of the peer's set contains it, so it was matched.
            self.finish_send(host, send);
        }
        received.lanes.retain(|&context, lanes| match self.by_peer.get(&(context, id)) {
            Some(&at) => lanes.any_above(&self.channels[at as usize].sent),
            None => lanes.any_above(&Lanes::default()),
        });
        let ahead = !received.lanes.is_empty();
        self.peer(id).ahead = ahead.then(|| Box::new(received));
        if self.sends_are_over {
            self.verify_all_repeated(host, id);
        }
        self.flush(host);
    }

    /// Resend a logged message.
    fn resend(
        &mut self,
        host: &mut H,
        record: LogRecord,
        entry: &LogEntry,
        send: Option<SendId>,
        flags: u8,
    ) {
        // Those that are complete for the program were dropped with the channel.
        let old = send.and_then(|id| self.sends.remove(id.index(), id.generation()));
        let message = Outbound {
            peer: entry.to,
            context: entry.stream.context.0,
            rank: entry.source.0,
            tag: entry.tag,
            sequence: entry.sequence.0,
            bytes: entry.bytes,
            digest: entry.digest,
            source: PayloadSource::Log(record),
            synchronous: old.is_some(),
            token: old.and_then(|send| send.token),
        };
        let eager_max = u64::from(self.peer(entry.to).info.eager_bytes_max);
        if flags == 0 && entry.bytes <= eager_max && !message.synchronous {
            self.send_eager(host, message);
        } else {
            self.send_announced(host, message, flags);
        }
    }

    /// A send while there is no channel: it is in the log, resync will find it.
    pub(super) fn send_while_down(
        &mut self,
        message: Outbound<H::SendBuffer, H::Token>,
    ) -> SendOutcome {
        if message.token.is_some() {
            SendOutcome::Pending(self.remember(message, 0))
        } else {
            SendOutcome::Complete
        }
    }

    /// Had the peer received this message before we were rolled back to our checkpoint?
    pub(super) fn peer_has_received(
        &mut self,
        message: &Outbound<H::SendBuffer, H::Token>,
    ) -> bool {
        let Some(ahead) = &self.peer(message.peer).ahead else { return false };
        ahead.accepted(name_of(message.context, message.tag, message.sequence))
    }

    /// The peer has received it: complete, or announce it again if the peer waits for its payload.
    pub(super) fn repeat_send(
        &mut self,
        host: &mut H,
        mut message: Outbound<H::SendBuffer, H::Token>,
    ) -> SendOutcome {
        self.counters.suppressed_messages += 1;
        message.token = message.token.filter(|_| message.synchronous);
        let name = name_of(message.context, message.tag, message.sequence);
        let Self { peers, by_peer, channels, .. } = self;
        let (mut open, mut mismatch) = (false, None);
        if let Some(Some(peer)) = peers.get_mut(message.peer.0 as usize)
            && let Some(ahead) = &mut peer.ahead
            && let Some(&at) = by_peer.get(&(name.0, message.peer))
        {
            open = ahead.open.remove(&name);
            let channel = &channels[at as usize];
            if channel.contents.is_some() {
                mismatch = ahead.verify_repeated(&message, name, &channel.sent);
            }
            if ahead.lanes.get(&name.0).is_some_and(|lanes| !lanes.any_above(&channel.sent)) {
                // Replay complete in this context.
                ahead.lanes.remove(&name.0);
            }
            if ahead.lanes.is_empty() {
                peer.ahead = None;
            }
        }
        if let Some(mismatch) = mismatch {
            host.payload_mismatch(message.peer, mismatch);
        }
        if open {
            return self.send_announced(host, message, FLAG_REANNOUNCE);
        }
        message.token = None;
        SendOutcome::Complete
    }

    /// The sender of an open message announces it again: find the receive or message that waits for
    /// it.
    pub(super) fn on_reannounce(
        &mut self,
        host: &mut H,
        from: PeerId,
        header: &Header,
        announced: Announced,
        total: u64,
        inline: &[u8],
    ) -> Result<(), FrameError> {
        let name = name_of(header.context, header.tag, header.sequence);
        let same = |key: &Key, sequence: u64| name_of(key.context, key.tag, sequence) == name;
        let receive = self.receives.iter().find(|(_, _, receive)| {
            receive.progress == Progress::Stale
                && receive.peer == from
                && same(&receive.key, receive.sequence)
        });
        if let Some((slot, _, receive)) = receive {
            if receive.total != total {
                return Err(FrameError::Unexpected("announced again with another length"));
            }
            if let Some((token, status)) = self.begin_transfer(host, slot, announced, inline) {
                host.complete(token, status);
            }
            return Ok(());
        }
        let message = self.messages.iter_mut().find(|(_, _, message)| {
            message.announced.is_some_and(|announced| announced.stale)
                && message.peer == from
                && same(&message.key, message.sequence)
        });
        let Some((_, _, message)) = message else {
            return Err(FrameError::Unexpected("announced again, but not open here"));
        };
        if message.total != total {
            return Err(FrameError::Unexpected("announced again with another length"));
        }
        message.announced = Some(announced);
        message.bytes.clear();
        message.bytes.extend_from_slice(inline);
        Ok(())
    }

    /// The program's status of a cancelled operation.
    pub fn cancelled() -> Status {
        Status { cancelled: true, ..Status::default() }
    }
}
