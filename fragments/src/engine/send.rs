//! Sending: number, log, and the eager or the rendezvous protocol.

use super::queue::{offer, offer_eager, payload_of, queued};
use super::state::{Body, Comm, LinkState, PayloadSource, PendingSend};
use super::{CommId, CommRank, Engine, Host, Mode, PeerId, SendError, SendId, SendOutcome};
use crate::host::{LogEntry, Transmit};
use crate::ids::{ContextId, LogRecord, MessageSeq};
use crate::payload_digest::PayloadDigest;
use crate::send_gate::SendPermit;
use crate::wire::{
    ANNOUNCE_BYTES, FLAG_PULL, FLAG_REANNOUNCE, FLAG_SYNC, FrameType, HEADER_BYTES, Header,
    StreamKey,
};

/// A message that is being sent.
pub(super) struct Outbound<B, T> {
    pub peer: PeerId,
    pub context: u32,
    pub rank: u32,
    pub tag: i32,
    pub sequence: u64,
    pub bytes: u64,
    pub digest: PayloadDigest,
    pub source: PayloadSource<B>,
    pub token: Option<T>,
    pub synchronous: bool,
}

impl<H: Host> Engine<H> {
    /// Send `bytes` packed bytes of `buffer`. A short standard-mode message that leaves the set is
    /// complete as soon as it is in the log; an announced one when its payload has been sent, or at
    /// once when there is no channel, or when the driver detaches it ([`Self::detach_send`],
    /// docs/adr/0015).
    ///
    /// `Host::complete` may be called for the token before this returns `SendOutcome::Pending`.
    ///
    /// # Errors
    /// The log has no room; nothing has changed.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    pub fn send(
        &mut self,
        host: &mut H,
        comm: CommId,
        to: CommRank,
        tag: i32,
        mode: Mode,
        mut buffer: H::SendBuffer,
        bytes: u64,
        token: H::Token,
    ) -> Result<SendOutcome, SendError> {
        if mode != Mode::Synchronous && self.send_fast_path(host, comm, to, tag, &mut buffer, bytes)
        {
            return Ok(SendOutcome::Complete);
        }
        self.send_slow(host, comm, to, tag, mode, buffer, bytes, token)
    }

    /// The fast path: inside the set, short, room at the transport, nothing to remember. False: the
    /// message cannot take it, nothing has changed.
    #[inline(always)]
    pub fn send_fast_path(
        &mut self,
        host: &mut H,
        comm: CommId,
        to: CommRank,
        tag: i32,
        buffer: &mut H::SendBuffer,
        bytes: u64,
    ) -> bool {
        let comm = &self.comms[comm.0 as usize];
        let Some(&at) = comm.channels.get(to.0 as usize) else { return false };
        // No channel yet: NONE is past the end of the list.
        let Some(channel) = self.channels.get_mut(at as usize) else { return false };
        let id = channel.peer;
        let Some(Some(peer)) = self.peers.get_mut(id.0 as usize) else { return false };
        if !peer.same_set || !peer.direct || bytes > u64::from(peer.info.eager_bytes_max) {
            return false;
        }
        let header = Header {
            length: HEADER_BYTES as u32 + bytes as u32,
            kind: FrameType::Eager,
            flags: 0,
            context: comm.context,
            source: comm.rank,
            tag,
            from: self.incarnation,
            to: peer.info.incarnation,
            sequence: channel.sent.get(tag),
            digest: PayloadDigest::NONE,
        };
        if !offer_eager(host, SendPermit::internal(), id, &header, buffer, bytes) {
            return false;
        }
        channel.sent.advance(tag);
        peer.traffic.sent_messages += 1;
        peer.traffic.sent_bytes += bytes;
        self.counters.sent_internal_messages += 1;
        self.counters.sent_internal_bytes += bytes;
        self.counters.eager_messages += 1;
        true
    }

    /// All of a pending send is in the log. If its receiver has not asked for it yet, it is
    /// detached: complete for the program now, and its token is not handed to `Host::complete`;
    /// somebody must go on polling for the requests of receivers. False: nothing has changed, and
    /// the token is handed to `Host::complete` (or was).
    pub fn detach_send(&mut self, id: SendId) -> bool {
        let Some(send) = self.sends.get_mut(id.index(), id.generation()) else { return false };
        let is_logged = matches!(send.source, PayloadSource::Log(_));
        if !is_logged || send.granted || send.synchronous || send.token.take().is_none() {
            return false;
        }
        self.detached += 1;
        true
    }

    /// An eager message inside the set that found no room owns its buffer until it is sent.
    #[cold]
    fn wait_for_room(
        &mut self,
        host: &H,
        message: Outbound<H::SendBuffer, H::Token>,
        header: &[u8],
        taken: usize,
    ) -> SendId {
        let (to, bytes) = (message.peer, message.bytes);
        let id = self.remember(message, 0);
        self.enqueue(host, to, queued(header, Body::Send { id, bytes, finish: true }), taken);
        id
    }

    /// The slow path: to oneself, out of the set, synchronous, long, or without room at the
    /// transport.
    #[allow(clippy::too_many_arguments)]
    #[inline(never)]
    fn send_slow(
        &mut self,
        host: &mut H,
        comm: CommId,
        to: CommRank,
        tag: i32,
        mode: Mode,
        mut buffer: H::SendBuffer,
        bytes: u64,
        token: H::Token,
    ) -> Result<SendOutcome, SendError> {
        let at = self.channel_to(host, comm, to);
        let Comm { rank, context, .. } = self.comms[comm.0 as usize];
        let channel = &mut self.channels[at];
        let id = channel.peer;
        let synchronous = mode == Mode::Synchronous;
        let mut message = Outbound {
            peer: id,
            context,
            rank,
            tag,
            sequence: channel.sent.get(tag),
            bytes,
            digest: PayloadDigest::NONE,
            source: PayloadSource::Log(LogRecord(0)),
            token: Some(token),
            synchronous,
        };
        let outgoing = self.peer(id).outgoing;
        if outgoing {
            // E4: into the log first; everything is sent from there.
            let set = self.peer(id).info.set;
            let entry = LogEntry {
                to: id,
                set,
                stream: StreamKey::of(ContextId(context), tag),
                sequence: MessageSeq(message.sequence),
                source: CommRank(rank),
                tag,
                bytes,
                digest: PayloadDigest::NONE,
            };
            let record = host.log_append(&entry, &mut buffer).map_err(SendError::Log)?;
            message.source = PayloadSource::Log(record);
            if self.verifies_sends {
                message.digest = host.log_digest(record, entry.sequence);
                self.count_content(at, tag, message.sequence, message.digest);
            }
            self.counters.sent_outgoing_messages += 1;
            self.counters.sent_outgoing_bytes += bytes;
        } else {
            message.source = PayloadSource::Program(buffer);
            self.counters.sent_internal_messages += 1;
            self.counters.sent_internal_bytes += bytes;
        }
        self.channels[at].sent.advance(tag);
        let me = self.me;
        let peer = self.peer(id);
        peer.traffic.sent_messages += 1;
        peer.traffic.sent_bytes += bytes;
        if id == me {
            return Ok(self.send_to_self(host, message));
        }
        let (eager_max, link) = (peer.info.eager_bytes_max, peer.link);
        let short = bytes <= u64::from(eager_max);
        if outgoing && !synchronous && (short || link != LinkState::Open) {
            // It is in the log.
            message.token = None;
        }
        if outgoing && link != LinkState::Open {
            return Ok(self.send_while_down(message));
        }
        let repeated = peer.ahead.is_some() && self.peer_has_received(&message);
        Ok(if repeated {
            // A restarted process repeats a send: complete, unless its match is still awaited.
            self.repeat_send(host, message)
        } else if short && !synchronous {
            self.send_eager(host, message)
        } else {
            self.send_announced(host, message, 0)
        })
    }

    /// Send the whole message in one frame.
    pub(super) fn send_eager(
        &mut self,
        host: &mut H,
        mut message: Outbound<H::SendBuffer, H::Token>,
    ) -> SendOutcome {
        self.counters.eager_messages += 1;
        let (to, bytes) = (message.peer, message.bytes);
        let header =
            self.header(&message, FrameType::Eager, 0, HEADER_BYTES as u64 + bytes).encode();
        let mut taken = 0;
        if self.peer(to).direct
            && let Some(permit) = self.permit_for_new_frame(host, to)
        {
            let payload = payload_of(&mut message.source, 0..bytes);
            match offer(host, permit, to, &header, payload, 0) {
                Transmit::Accepted => return SendOutcome::Complete,
                Transmit::Full(n) => taken = n,
                Transmit::Down => {}
            }
        }
        match message.source {
            PayloadSource::Log(record) => {
                self.enqueue(host, to, queued(&header, Body::Log(record, bytes)), taken);
                SendOutcome::Complete
            }
            PayloadSource::Program(_) => {
                SendOutcome::Pending(self.wait_for_room(host, message, &header, taken))
            }
        }
    }

    /// Send the envelope now, the payload when the receiver asks for it. `flags`:
    /// [`FLAG_REANNOUNCE`] or 0.
    pub(super) fn send_announced(
        &mut self,
        host: &mut H,
        message: Outbound<H::SendBuffer, H::Token>,
        flags: u8,
    ) -> SendOutcome {
        if flags & FLAG_REANNOUNCE == 0 {
            self.counters.rendezvous_messages += 1;
        }
        let (complete, to) = (message.token.is_none(), message.peer);
        let (bytes, synchronous) = (message.bytes, message.synchronous);
        let id = self.remember(message, 0);
        let mut flags = flags | if synchronous { FLAG_SYNC } else { 0 };
        let eager_max = u64::from(self.peer(to).info.eager_bytes_max);
        let send = self.sends.at_mut(id.index());
        if bytes > eager_max && host.expose(to, id, payload_of(&mut send.source, 0..bytes)) {
            send.exposed = true;
            flags |= FLAG_PULL;
        } else {
            send.inline = bytes.min(eager_max);
        }
        let inline = send.inline;
        let header = self.header_of(id, flags, ANNOUNCE_BYTES as u64 + inline);
        let header = header.encode_announce(bytes, id);
        let mut taken = 0;
        if self.peer(to).direct
            && let Some(permit) = self.permit_for_new_frame(host, to)
        {
            let payload = payload_of(&mut self.sends.at_mut(id.index()).source, 0..inline);
            match offer(host, permit, to, &header, payload, 0) {
                Transmit::Accepted => return sent(complete, id),
                Transmit::Full(n) => taken = n,
                Transmit::Down => {}
            }
        }
        let body = Body::Send { id, bytes: inline, finish: false };
        self.enqueue(host, to, queued(&header, body), taken);
        sent(complete, id)
    }

    /// Store a send in the table.
    pub(super) fn remember(
        &mut self,
        message: Outbound<H::SendBuffer, H::Token>,
        inline: u64,
    ) -> SendId {
        self.detached += usize::from(message.token.is_none());
        let (index, generation) = self.sends.insert(PendingSend {
            peer: message.peer,
            context: message.context,
            rank: message.rank,
            tag: message.tag,
            sequence: message.sequence,
            bytes: message.bytes,
            digest: message.digest,
            inline,
            source: message.source,
            token: message.token,
            synchronous: message.synchronous,
            exposed: false,
            granted: false,
        });
        SendId::new(index, generation)
    }

    /// The header of a message.
    fn header(
        &mut self,
        message: &Outbound<H::SendBuffer, H::Token>,
        kind: FrameType,
        flags: u8,
        length: u64,
    ) -> Header {
        Header {
            length: length as u32,
            kind,
            flags,
            context: message.context,
            source: message.rank,
            tag: message.tag,
            from: self.incarnation,
            to: self.peer(message.peer).info.incarnation,
            sequence: message.sequence,
            digest: message.digest,
        }
    }

    /// The header of an announcement of a remembered send.
    fn header_of(&mut self, id: SendId, flags: u8, length: u64) -> Header {
        let send = self.sends.at(id.index());
        let (peer, context, source) = (send.peer, send.context, send.rank);
        let (tag, sequence, digest) = (send.tag, send.sequence, send.digest);
        Header {
            length: length as u32,
            kind: FrameType::Announce,
            flags,
            context,
            source,
            tag,
            from: self.incarnation,
            to: self.peer(peer).info.incarnation,
            sequence,
            digest,
        }
    }
}

fn sent(complete: bool, id: SendId) -> SendOutcome {
    if complete { SendOutcome::Complete } else { SendOutcome::Pending(id) }
}
