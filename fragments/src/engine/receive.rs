//! Receiving: posting, probing, claiming, cancelling.

use super::receive_fifo::FifoReceive;
use super::state::{PendingReceive, Progress, UnexpectedMessage};
use super::{CommId, Engine, Host, ReceiveOutcome, Source, TagMatch, UnpostedReceive};
use crate::host::Status;
use crate::ids::{CommRank, MessageId, ReceiveId};
use crate::matching::{ANY_SOURCE, ANY_TAG, Key};

#[inline]
fn pattern(context: u32, source: Source, tag: TagMatch) -> Key {
    Key {
        context,
        source: match source {
            Source::Any => ANY_SOURCE,
            Source::Rank(rank) => rank.0,
        },
        tag: match tag {
            TagMatch::Any => ANY_TAG,
            TagMatch::Is(tag) => tag,
        },
    }
}

impl<H: Host> Engine<H> {
    #[inline]
    pub(super) fn pattern(&self, comm: CommId, source: Source, tag: TagMatch) -> Key {
        pattern(self.comms[comm.0 as usize].context, source, tag)
    }

    /// For [`Self::on_frame_for`]. None: other receives or messages come first, so a receive has to
    /// be posted. While there is a replay (`has_replay`) every receive has to be posted.
    #[inline]
    pub fn wants(&self, comm: CommId, source: Source, tag: TagMatch) -> Option<UnpostedReceive> {
        debug_assert!(self.replay.is_none(), "P3: a receive is posted");
        self.is_matching_idle().then(|| UnpostedReceive(self.pattern(comm, source, tag)))
    }

    /// No receive is posted, and no message waits for one.
    #[inline]
    pub fn is_matching_idle(&self) -> bool {
        self.fifo.is_empty() && self.posted.is_empty() && self.unexpected.is_empty()
    }

    /// Post a receive with the same pattern as those before it: it has no id ([`ReceiveId::NONE`]).
    /// False: the pattern differs, or a message may have arrived already; nothing has changed.
    #[inline(always)]
    pub fn receive_uniform(
        &mut self,
        comm: CommId,
        source: Source,
        tag: TagMatch,
        buffer: H::ReceiveBuffer,
        token: H::Token,
    ) -> bool {
        let known = &mut self.comms[comm.0 as usize];
        let key = pattern(known.context, source, tag);
        let uniform = self.fifo.is_pattern(&key) && self.unexpected.is_empty();
        if uniform {
            known.posts += u64::from(key.is_user());
            self.fifo.push(FifoReceive { buffer, token, number: known.posts });
        }
        uniform
    }

    /// Post a receive.
    #[inline(never)]
    pub fn receive(
        &mut self,
        host: &mut H,
        comm: CommId,
        source: Source,
        tag: TagMatch,
        buffer: H::ReceiveBuffer,
        token: H::Token,
    ) -> ReceiveOutcome {
        let known = &mut self.comms[comm.0 as usize];
        let key = pattern(known.context, source, tag);
        known.posts += u64::from(key.is_user());
        let number = known.posts;
        if key.source == ANY_SOURCE || self.replay.is_some() {
            return self.receive_slow(host, key, number, buffer, token);
        }
        if !self.unexpected.is_empty()
            && let Some(slot) = self.unexpected.find(key)
        {
            self.unexpected.remove(slot);
            let message = self.messages.take(slot);
            return self.take_message(host, message, buffer, token, Some((key, number)));
        }
        let waiting = FifoReceive { buffer, token, number };
        ReceiveOutcome::Pending(self.post_slow(host, key, waiting))
    }

    /// [`Self::take_message`], out of line.
    #[inline(never)]
    pub(super) fn take_message_slow(
        &mut self,
        host: &mut H,
        message: UnexpectedMessage,
        buffer: H::ReceiveBuffer,
        token: H::Token,
        posted: Option<(Key, u64)>,
    ) -> ReceiveOutcome {
        self.take_message(host, message, buffer, token, posted)
    }

    /// A receive takes a message that has arrived already. `posted`: its pattern and number.
    #[inline(always)]
    fn take_message(
        &mut self,
        host: &mut H,
        message: UnexpectedMessage,
        mut buffer: H::ReceiveBuffer,
        token: H::Token,
        posted: Option<(Key, u64)>,
    ) -> ReceiveOutcome {
        let Some(announced) = message.announced else {
            let status = self.deliver(host, &mut buffer, message.key, &message.bytes);
            self.pool.give(message.bytes);
            return ReceiveOutcome::Complete(status);
        };
        if let Some(posted) = posted {
            self.record_sync_match(host, posted, Some(announced), message.name());
        }
        let (index, generation) = self.receives.insert(PendingReceive {
            buffer,
            token,
            key: message.key,
            progress: Progress::Stale,
            peer: message.peer,
            sequence: message.sequence,
            send: announced.send,
            total: message.total,
            digest: announced.digest,
        });
        let outcome = self.begin_transfer(host, index, announced, &message.bytes);
        self.pool.give(message.bytes);
        match outcome {
            Some((_, status)) => ReceiveOutcome::Complete(status),
            None => ReceiveOutcome::Pending(ReceiveId::new(index, generation)),
        }
    }

    /// Put a whole payload into a receive's buffer, as far as it fits.
    #[inline(always)]
    pub(super) fn deliver(
        &mut self,
        host: &mut H,
        buffer: &mut H::ReceiveBuffer,
        key: Key,
        payload: &[u8],
    ) -> Status {
        let bytes = payload.len() as u64;
        let capacity = host.capacity(buffer);
        let fits = bytes.min(capacity) as usize;
        if fits > 0 {
            host.unpack(buffer, 0, &payload[..fits]);
        }
        let source = CommRank(key.source);
        Status { source, tag: key.tag, bytes, truncated: bytes > capacity, cancelled: false }
    }

    pub(super) fn status_of(&self, slot: u32) -> Status {
        let message = self.messages.at(slot);
        Status {
            source: CommRank(message.key.source),
            tag: message.key.tag,
            bytes: message.total,
            truncated: false,
            cancelled: false,
        }
    }

    /// The message that a receive posted now would match, left where it is (MPI_Iprobe).
    pub fn probe(&mut self, comm: CommId, source: Source, tag: TagMatch) -> Option<Status> {
        let key = self.pattern(comm, source, tag);
        let slot = match self.replay {
            None => self.unexpected.find(key)?,
            Some(_) => self.probe_in_replay(key)?,
        };
        Some(self.status_of(slot))
    }

    /// Take that message out of matching (MPI_Improbe).
    pub fn claim(
        &mut self,
        comm: CommId,
        source: Source,
        tag: TagMatch,
    ) -> Option<(MessageId, Status)> {
        let key = self.pattern(comm, source, tag);
        let slot = self.unexpected.find(key)?;
        self.unexpected.remove(slot);
        let id = MessageId::new(slot, self.messages.generation(slot));
        Some((id, self.status_of(slot)))
    }

    /// Receive a claimed message (MPI_Mrecv). None: there is no such message (it was received).
    pub fn receive_claimed(
        &mut self,
        host: &mut H,
        message: MessageId,
        buffer: H::ReceiveBuffer,
        token: H::Token,
    ) -> Option<ReceiveOutcome> {
        let message = self.messages.remove(message.index(), message.generation())?;
        Some(self.take_message_slow(host, message, buffer, token, None))
    }

    /// Cancel a receive. True: it had not matched; it is removed, and its token is not handed to
    /// `Host::complete` (the driver completes it as cancelled). False: it will complete. (A receive
    /// without an id needs one before: [`Self::assign_receive_ids`].)
    pub fn cancel_receive(&mut self, receive: ReceiveId) -> bool {
        match self.receives.get(receive.index(), receive.generation()) {
            Some(posted) if posted.progress == Progress::Posted => {
                let key = posted.key;
                let was = self.posted.remove(receive.index(), &key);
                debug_assert!(was, "E2: a receive in state Posted is in the table");
                self.receives.take(receive.index());
                true
            }
            Some(posted) if posted.progress == Progress::HeldForReplay => {
                self.cancel_held_for_replay(receive.index())
            }
            _ => false,
        }
    }
}
