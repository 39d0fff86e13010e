//! Long and synchronous messages: the payload follows when the receive is there.
//!
//! Two protocols: the receiver pulls (memory of the sender that a transport can read), or it grants
//! and the sender pushes frames in any order. With both the sender removes the send when no further
//! request for it can come.

use super::send::Outbound;
use super::state::{Announced, DataPush, PayloadSource, Progress};
use super::{Engine, FrameError, Host, SendOutcome};
use crate::host::{Pull, Status};
use crate::ids::{CommRank, ContextId, PeerId, ReceiveId, SendId};
use crate::matching::Key;
use crate::payload_digest::PayloadDigest;
use crate::wire::{FLAG_PULL, FLAG_SYNC, FrameType};

impl<H: Host> Engine<H> {
    /// A receive is matched: get the payload. Some: it is complete and removed from the table.
    pub(super) fn begin_transfer(
        &mut self,
        host: &mut H,
        slot: u32,
        announced: Announced,
        inline: &[u8],
    ) -> Option<(H::Token, Status)> {
        let me = self.me;
        let generation = self.receives.generation(slot);
        let receive = self.receives.at_mut(slot);
        let (from, total) = (receive.peer, receive.total);
        let wanted = total.min(host.capacity(&receive.buffer));
        let here = (inline.len() as u64).min(wanted);
        if here > 0 {
            host.unpack(&mut receive.buffer, 0, &inline[..here as usize]);
        }
        receive.send = announced.send;
        receive.digest = announced.digest;
        if announced.stale {
            receive.progress = Progress::Stale;
            return None;
        }
        if here == wanted {
            self.complete_sender(host, from, announced.send);
            return Some(self.end_receive(host, slot));
        }
        if from == me {
            self.copy_own(host, slot, announced.send, wanted);
            return Some(self.end_receive(host, slot));
        }
        let id = ReceiveId::new(slot, generation);
        if announced.flags & FLAG_PULL != 0 {
            match host.pull(from, announced.send, id, &mut receive.buffer, wanted) {
                Pull::Done => {
                    self.counters.fetched_messages += 1;
                    self.control(host, from, FrameType::Done, announced.send.0, 0);
                    return Some(self.end_receive(host, slot));
                }
                Pull::Started => {
                    receive.progress = Progress::Pulled;
                    self.count_in_flight(from);
                    return None;
                }
                Pull::Refused => {}
            }
        }
        receive.progress = Progress::Pushed { left: total - inline.len() as u64 };
        self.count_in_flight(from);
        self.control(host, from, FrameType::Grant, announced.send.0, id.0);
        None
    }

    fn complete_sender(&mut self, host: &mut H, from: PeerId, send: SendId) {
        if from == self.me {
            self.finish_send(host, send);
        } else {
            self.control(host, from, FrameType::Done, send.0, 0);
        }
    }

    /// E8: a payload from `from` is in flight.
    fn count_in_flight(&mut self, from: PeerId) {
        self.in_flight += u32::from(!self.peer(from).outgoing);
    }

    /// Take a finished receive out of the table.
    pub(super) fn end_receive(&mut self, host: &H, slot: u32) -> (H::Token, Status) {
        let receive = self.receives.take(slot);
        if receive.progress.is_in_flight() {
            let peer = self.peer(receive.peer);
            if peer.outgoing {
                peer.acknowledged.completed(receive.total);
            } else {
                self.in_flight -= 1;
            }
        }
        let status = Status {
            source: CommRank(receive.key.source),
            tag: receive.key.tag,
            bytes: receive.total,
            truncated: receive.total > host.capacity(&receive.buffer),
            cancelled: false,
        };
        (receive.token, status)
    }

    /// The receiver asks for the payload.
    pub(super) fn on_grant(
        &mut self,
        host: &mut H,
        from: PeerId,
        id: SendId,
        receive: u64,
    ) -> Result<(), FrameError> {
        let Some(send) = self.sends.get_mut(id.index(), id.generation()) else {
            return Err(FrameError::Unexpected("grant for a send that does not exist"));
        };
        if send.peer != from || send.granted {
            return Err(FrameError::Unexpected("grant for another's or a granted send"));
        }
        send.granted = true;
        if send.exposed {
            send.exposed = false;
            host.withdraw(from, id);
        }
        let offset = send.inline;
        self.enqueue_push(from, DataPush { send: id, receive, offset });
        self.flush(host);
        Ok(())
    }

    /// The receiver needs nothing more of this send.
    pub(super) fn on_done(
        &mut self,
        host: &mut H,
        from: PeerId,
        id: SendId,
    ) -> Result<(), FrameError> {
        match self.sends.get(id.index(), id.generation()) {
            Some(send) if send.peer == from && !send.granted => {
                self.finish_send(host, id);
                Ok(())
            }
            _ => Err(FrameError::Unexpected("end of a send that does not exist")),
        }
    }

    /// Payload for a receive.
    pub(super) fn on_data(
        &mut self,
        host: &mut H,
        from: PeerId,
        receive: u64,
        offset: u64,
        payload: &[u8],
    ) -> Result<(), FrameError> {
        let id = ReceiveId(receive);
        let Some(receive) = self.receives.get_mut(id.index(), id.generation()) else {
            return Err(FrameError::Unexpected("payload for a receive that does not exist"));
        };
        let Progress::Pushed { left } = receive.progress else {
            return Err(FrameError::Unexpected("payload that was not asked for"));
        };
        let bytes = payload.len() as u64;
        let end = offset.checked_add(bytes).ok_or(FrameError::Overrun)?;
        if receive.peer != from || end > receive.total || bytes > left {
            return Err(FrameError::Overrun);
        }
        let capacity = host.capacity(&receive.buffer);
        let fits = capacity.min(end).saturating_sub(offset);
        if fits > 0 {
            host.unpack(&mut receive.buffer, offset, &payload[..fits as usize]);
        }
        receive.progress = Progress::Pushed { left: left - bytes };
        if left == bytes {
            let (token, status) = self.end_receive(host, id.index());
            host.complete(token, status);
        }
        Ok(())
    }

    /// A pull that `Host::pull` had started has ended; `ok` false: it failed, ask for a push.
    pub fn pull_finished(&mut self, host: &mut H, id: ReceiveId, ok: bool) {
        let Some(receive) = self.receives.get_mut(id.index(), id.generation()) else { return };
        if receive.progress != Progress::Pulled {
            return;
        }
        let (from, send) = (receive.peer, receive.send);
        if ok {
            self.counters.fetched_messages += 1;
            self.control(host, from, FrameType::Done, send.0, 0);
            let (token, status) = self.end_receive(host, id.index());
            host.complete(token, status);
        } else {
            receive.progress = Progress::Pushed { left: receive.total };
            self.control(host, from, FrameType::Grant, send.0, id.0);
        }
    }

    /// A message to oneself: eager ones are copied now, others when the receive is there.
    pub(super) fn send_to_self(
        &mut self,
        host: &mut H,
        message: Outbound<H::SendBuffer, H::Token>,
    ) -> SendOutcome {
        let key = Key { context: message.context, source: message.rank, tag: message.tag };
        let (bytes, sequence, peer) = (message.bytes, message.sequence, self.me);
        self.count_own(message.context, message.tag, bytes);
        let eager_max = u64::from(self.peer(peer).info.eager_bytes_max);
        if bytes <= eager_max && !message.synchronous {
            self.counters.eager_messages += 1;
            let mut packed = self.pool.take(bytes as usize);
            if let PayloadSource::Program(mut buffer) = message.source {
                host.pack(&mut buffer, 0..bytes, &mut packed);
            }
            self.arrive_own(host, key, sequence, &packed);
            self.pool.give(packed);
            return SendOutcome::Complete;
        }
        self.counters.rendezvous_messages += 1;
        let id = self.remember(message, 0);
        let announced =
            Announced { send: id, flags: FLAG_SYNC, digest: PayloadDigest::NONE, stale: false };
        self.arrive_announced(host, peer, key, sequence, bytes, announced, &[]);
        SendOutcome::Pending(id)
    }

    /// Own messages arrive as they are sent.
    fn count_own(&mut self, context: u32, tag: i32, bytes: u64) {
        let me = self.me;
        if let Some(&at) = self.by_peer.get(&(ContextId(context).number(), me)) {
            self.channels[at as usize].arrived.advance(tag);
        }
        self.peer(me).traffic.received(bytes);
        self.counters.received(false, bytes);
    }

    /// The receive for a long or synchronous message to oneself is there.
    fn copy_own(&mut self, host: &mut H, slot: u32, send: SendId, wanted: u64) {
        if let Some(from) = self.sends.get_mut(send.index(), send.generation())
            && let PayloadSource::Program(buffer) = &mut from.source
        {
            host.copy(buffer, &mut self.receives.at_mut(slot).buffer, wanted);
        }
        self.finish_send(host, send);
    }
}
