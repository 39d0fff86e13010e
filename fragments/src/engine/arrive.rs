//! Frames that arrive.

use super::replay::{message_name, receive_name};
use super::state::{Announced, Comm, LinkState, PendingReceive, Progress, UnexpectedMessage};
use super::{Engine, FrameError, Host, UnpostedReceive};
use crate::host::{DIRECT_TAGS, Status};
use crate::ids::{CommRank, ContextId, MessageSeq, PeerId, SendId};
use crate::matching::{ANY_SOURCE, ANY_TAG, Key};
use crate::wire::{
    self, ANNOUNCE_BYTES, FLAG_REANNOUNCE, FrameType, HEADER_BYTES, Header, MESSAGE_BYTES_MAX,
};

/// How many receives of the program a message with this envelope stands for, when it is taken
/// without one being posted: the next one's number must not depend on that.
#[inline]
fn counts(message: &Key) -> u64 {
    u64::from(message.tag >= 0)
}

impl<H: Host> Engine<H> {
    /// A complete frame from the transport of `from`.
    ///
    /// # Errors
    /// The peer broke the protocol; the channel is no longer usable.
    #[inline]
    pub fn on_frame(&mut self, host: &mut H, from: PeerId, frame: &[u8]) -> Result<(), FrameError> {
        let Some(header) = self.admit(host, from, frame)? else { return Ok(()) };
        if header.kind == FrameType::Eager {
            return self.on_eager(host, from, &header, &frame[HEADER_BYTES..]);
        }
        self.on_frame_slow(host, from, &header, frame)
    }

    /// As [`Self::on_frame`], while a call waits for a message that `wanted` takes and has not
    /// posted its receive. `Some`: the message was there, its payload is in `buffer`.
    ///
    /// # Errors
    /// The peer broke the protocol; the channel is no longer usable.
    #[inline(always)]
    pub fn on_frame_for(
        &mut self,
        host: &mut H,
        from: PeerId,
        frame: &[u8],
        wanted: UnpostedReceive,
        buffer: &mut H::ReceiveBuffer,
    ) -> Result<Option<Status>, FrameError> {
        debug_assert!(self.is_matching_idle(), "E3: it is the first");
        debug_assert!(self.replay.is_none(), "P3: nothing is forced");
        let Some(header) = self.admit(host, from, frame)? else { return Ok(None) };
        if header.kind != FrameType::Eager {
            return self.on_frame_slow(host, from, &header, frame).map(|()| None);
        }
        let payload = &frame[HEADER_BYTES..];
        let key = Key { context: header.context, source: header.source, tag: header.tag };
        if wanted.0 != key {
            return self.on_frame_for_slow(host, from, (&header, payload), wanted, buffer);
        }
        self.accept(host, from, &header, payload.len() as u64, counts(&key))?;
        Ok(Some(self.deliver(host, buffer, key, payload)))
    }

    /// The same for a message whose envelope differs from the expected one.
    #[inline(never)]
    fn on_frame_for_slow(
        &mut self,
        host: &mut H,
        from: PeerId,
        (header, payload): (&Header, &[u8]),
        wanted: UnpostedReceive,
        buffer: &mut H::ReceiveBuffer,
    ) -> Result<Option<Status>, FrameError> {
        let key = Key { context: header.context, source: header.source, tag: header.tag };
        let bytes = payload.len() as u64;
        if !wanted.0.takes(&key) {
            self.accept(host, from, header, bytes, 0)?;
            self.store_unexpected(host, key, from, header.sequence, bytes, payload, None);
            return Ok(None);
        }
        self.accept(host, from, header, bytes, counts(&key))?;
        if wanted.0.source == ANY_SOURCE {
            let comm = self.comm_of(key.context) as usize;
            let receive = if wanted.0.is_user() {
                receive_name(&wanted.0, self.comms[comm].posts)
            } else {
                self.next_of_library(&wanted.0)
            };
            host.matched(receive, message_name(&key, from, header.sequence));
        }
        Ok(Some(self.deliver(host, buffer, key, payload)))
    }

    /// The oldest uniform receive takes a message.
    #[inline(always)]
    pub(super) fn complete_oldest(&mut self, host: &mut H, key: Key, payload: &[u8]) {
        if let Some(mut receive) = self.fifo.pop() {
            let status = self.deliver(host, &mut receive.buffer, key, payload);
            host.complete(receive.token, status);
        }
    }

    /// The header of a frame, unless it belongs to another incarnation.
    #[inline(always)]
    fn admit(
        &mut self,
        host: &mut H,
        from: PeerId,
        frame: &[u8],
    ) -> Result<Option<Header>, FrameError> {
        let header = Header::decode(frame).map_err(FrameError::Wire)?;
        self.ensure_peer(host, from);
        let mine = self.incarnation;
        let peer = self.peer(from);
        if header.from != peer.info.incarnation || header.to != mine || peer.link == LinkState::Down
        {
            self.counters.stale_frames += 1;
            return Ok(None);
        }
        if peer.link == LinkState::Resync && header.kind != FrameType::Resync {
            // The peer does not know yet that the channel was lost: our received vector, which is
            // in flight, reports that, and the peer resends what we have not accepted.
            self.counters.stale_frames += 1;
            return Ok(None);
        }
        Ok(Some(header))
    }

    #[inline]
    fn on_eager(
        &mut self,
        host: &mut H,
        from: PeerId,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), FrameError> {
        self.accept(host, from, header, payload.len() as u64, 0)?;
        let key = Key { context: header.context, source: header.source, tag: header.tag };
        if let Some(slot) = self.find_posted(host, key, from, header.sequence) {
            let mut receive = self.receives.take(slot);
            let status = self.deliver(host, &mut receive.buffer, key, payload);
            host.complete(receive.token, status);
        } else {
            self.store_unexpected(
                host,
                key,
                from,
                header.sequence,
                payload.len() as u64,
                payload,
                None,
            );
        }
        Ok(())
    }

    #[inline(never)]
    fn on_frame_slow(
        &mut self,
        host: &mut H,
        from: PeerId,
        header: &Header,
        frame: &[u8],
    ) -> Result<(), FrameError> {
        match header.kind {
            FrameType::Eager => unreachable!("taken care of by on_frame"),
            FrameType::Announce => self.on_announce(host, from, header, frame),
            FrameType::Grant => self.on_grant(host, from, SendId(header.a()), header.b()),
            FrameType::Data => {
                let payload = &frame[HEADER_BYTES..];
                self.on_data(host, from, header.a(), header.b(), payload)
            }
            FrameType::Done => self.on_done(host, from, SendId(header.a())),
            FrameType::Resync => self.on_resync(host, from, header.flags, &frame[HEADER_BYTES..]),
            FrameType::Checkpoint => self.on_checkpoint_frame(host, from, header),
            FrameType::Piggyback => self.on_piggyback(host, from, &frame[HEADER_BYTES..]),
            FrameType::Acknowledge => {
                self.on_acknowledge(host, from, header.flags, &frame[HEADER_BYTES..])
            }
        }
    }

    fn on_announce(
        &mut self,
        host: &mut H,
        from: PeerId,
        header: &Header,
        frame: &[u8],
    ) -> Result<(), FrameError> {
        let Some((total, send)) = wire::announced(frame) else {
            return Err(FrameError::Unexpected("announcement without its fields"));
        };
        let inline = &frame[ANNOUNCE_BYTES..];
        if inline.len() as u64 > total || total > MESSAGE_BYTES_MAX {
            return Err(FrameError::Overrun);
        }
        let (flags, digest) = (header.flags & !FLAG_REANNOUNCE, header.digest);
        let announced = Announced { send, flags, digest, stale: false };
        if header.flags & FLAG_REANNOUNCE != 0 {
            return self.on_reannounce(host, from, header, announced, total, inline);
        }
        self.accept(host, from, header, total, 0)?;
        let key = Key { context: header.context, source: header.source, tag: header.tag };
        self.peer(from).acknowledged.announced(total);
        self.arrive_announced(host, from, key, header.sequence, total, announced, inline);
        Ok(())
    }

    /// An announced message, from a peer or from this process itself.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn arrive_announced(
        &mut self,
        host: &mut H,
        from: PeerId,
        key: Key,
        sequence: u64,
        total: u64,
        announced: Announced,
        inline: &[u8],
    ) {
        let Some(slot) = self.find_posted(host, key, from, sequence) else {
            self.store_unexpected(host, key, from, sequence, total, inline, Some(announced));
            return;
        };
        let receive = self.receives.at(slot);
        if receive.progress == Progress::Posted {
            let posted = (receive.key, receive.sequence);
            let name = message_name(&key, from, sequence);
            self.record_sync_match(host, posted, Some(announced), name);
        }
        let receive = self.receives.at_mut(slot);
        receive.key = key;
        receive.peer = from;
        receive.sequence = sequence;
        receive.send = announced.send;
        receive.total = total;
        receive.progress = Progress::Stale;
        if let Some((token, status)) = self.begin_transfer(host, slot, announced, inline) {
            host.complete(token, status);
        }
    }

    /// A whole message of this process to itself.
    pub(super) fn arrive_own(&mut self, host: &mut H, key: Key, sequence: u64, payload: &[u8]) {
        let me = self.me;
        if let Some(slot) = self.find_posted(host, key, me, sequence) {
            let mut receive = self.receives.take(slot);
            let status: Status = self.deliver(host, &mut receive.buffer, key, payload);
            host.complete(receive.token, status);
        } else {
            self.store_unexpected(host, key, me, sequence, payload.len() as u64, payload, None);
        }
    }

    /// Store a message for a receive that is posted later.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    fn store_unexpected(
        &mut self,
        host: &mut H,
        key: Key,
        peer: PeerId,
        sequence: u64,
        total: u64,
        payload: &[u8],
        announced: Option<Announced>,
    ) {
        if DIRECT_TAGS.contains(&key.tag) {
            return self.hand_to_driver(host, key, peer, sequence, total, payload, announced);
        }
        self.counters.unexpected_messages += 1;
        let mut bytes = self.pool.take(payload.len());
        bytes.extend_from_slice(payload);
        let message = UnexpectedMessage { key, peer, sequence, total, bytes, announced };
        let (slot, _) = self.messages.insert(message);
        if self.replay.is_some() && self.hold_for_replay(slot) {
            return;
        }
        self.unexpected.insert(slot, key);
    }

    /// A message for which no receive is ever posted.
    #[allow(clippy::too_many_arguments)]
    fn hand_to_driver(
        &mut self,
        host: &mut H,
        key: Key,
        peer: PeerId,
        sequence: u64,
        total: u64,
        payload: &[u8],
        announced: Option<Announced>,
    ) {
        let (context, source) = (ContextId(key.context), CommRank(key.source));
        let Some(announced) = announced else {
            host.direct_message(context, source, key.tag, payload);
            return;
        };
        let Some((buffer, token)) = host.direct_buffer(context, source, key.tag, total) else {
            return;
        };
        let Announced { send, digest, .. } = announced;
        let progress = Progress::Stale;
        let receive =
            PendingReceive { buffer, token, key, progress, peer, sequence, send, total, digest };
        let (slot, _) = self.receives.insert(receive);
        if let Some((token, status)) = self.begin_transfer(host, slot, announced, payload) {
            host.complete(token, status);
        }
    }

    /// The receive that takes an arriving message; it is taken out of `fifo` or `posted`.
    #[inline]
    fn find_posted(&mut self, host: &mut H, key: Key, from: PeerId, sequence: u64) -> Option<u32> {
        if !self.posted.is_plain() {
            return self.match_slow(host, key, from, sequence);
        }
        self.take_from_fifo(key).or_else(|| self.posted.take_plain(key))
    }

    /// E1: the next number of its stream, or an error. Counts the message, and `posts` receives of
    /// the program in its communicator.
    #[inline(always)]
    pub(super) fn accept(
        &mut self,
        host: &mut H,
        from: PeerId,
        header: &Header,
        bytes: u64,
        posts: u64,
    ) -> Result<(), FrameError> {
        if header.source == ANY_SOURCE || header.tag == ANY_TAG {
            return Err(FrameError::Unexpected("a message with a wildcard for a name"));
        }
        let comm = self.comm_of(header.context) as usize;
        let of = &mut self.comms[comm];
        of.posts += posts;
        let known = of.channels.get(header.source as usize).copied();
        let channel = match known.and_then(|at| self.channels.get_mut(at as usize)) {
            Some(channel) if channel.peer == from => channel,
            _ => {
                let at = self.channel_of(host, comm, from, CommRank(header.source))?;
                &mut self.channels[at]
            }
        };
        if let Err(expected) = channel.arrived.accept(header.tag, header.sequence) {
            let (expected, got) = (MessageSeq(expected), MessageSeq(header.sequence));
            return Err(FrameError::Sequence { expected, got });
        }
        if let Some(contents) = &mut channel.contents {
            contents.accept(header.digest, header.tag, header.sequence);
        }
        let peer = self.peer(from);
        peer.traffic.received(bytes);
        let ingoing = peer.outgoing;
        self.counters.received(ingoing, bytes);
        Ok(())
    }

    /// The channel of a sender that has sent nothing in this communicator yet.
    #[cold]
    fn channel_of(
        &mut self,
        host: &mut H,
        comm: usize,
        from: PeerId,
        source: CommRank,
    ) -> Result<usize, FrameError> {
        let Comm { context, attached, handle, .. } = self.comms[comm];
        if attached && source.0 as usize >= self.comms[comm].channels.len() {
            return Err(FrameError::Unexpected("source rank outside of the communicator"));
        }
        if attached && host.resolve(handle, source) != from {
            return Err(FrameError::Unexpected("source rank of another process"));
        }
        let channel = self.channel_with(host, ContextId(context).number(), from);
        if let Some(slot) = self.comms[comm].channels.get_mut(source.0 as usize) {
            *slot = channel;
        }
        Ok(channel as usize)
    }
}
