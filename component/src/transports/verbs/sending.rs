//! Sending by queue pairs, and what becomes of it.

use super::adapter::{SENDS_OF_CHANNEL, SIGNAL_EVERY};
use super::api::*;
use super::buffers::NO_SLOT;
use super::channel::Queue;
use super::exposures::{EXPOSURE_BYTES, immediate};
use super::{COMPLETIONS, VerbsTransport};
use crate::transports::{Carrier, Event, Payload, Sent};

impl<V: Verbs, C: Carrier> VerbsTransport<V, C> {
    /// Send a frame by the queue pair of a channel that has one.
    #[inline]
    pub(super) fn post(&mut self, at: usize, header: &[u8], payload: Payload<'_>) -> Sent {
        let frame = header.len() + payload.len();
        let mut total = frame;
        if total > self.adapter.buffers.slot_bytes() {
            let text = format!("a frame of {total} bytes is longer than a buffer");
            self.fail(at, &text);
            return Sent::Down;
        }
        if !self.has_room(at) {
            self.progress_sends();
            if !self.has_room(at) {
                return self.without_room(at);
            }
        }
        let Some(queue) = &self.channels[at].queue else { return Sent::Down };
        let mut exposures = queue.unsent_exposures.len();
        if exposures > 0 {
            exposures = exposures.min((self.adapter.buffers.slot_bytes() - frame) / EXPOSURE_BYTES);
            total += exposures * EXPOSURE_BYTES;
        }
        let is_inline = total <= queue.inline_bytes as usize && total <= self.inline.len();
        let slot = match is_inline {
            true => NO_SLOT,
            false => match self.adapter.buffers.take() {
                Some(slot) => slot,
                None => return Sent::Full(0),
            },
        };
        let room = match slot {
            NO_SLOT => &mut self.inline[..total],
            // SAFETY: the slot was free, and is ours now.
            slot => unsafe { self.adapter.buffers.bytes_mut(slot, total) },
        };
        let start = room.as_ptr() as u64;
        let (room, behind) = room.split_at_mut(frame);
        let (head, body) = room.split_at_mut(header.len());
        head.copy_from_slice(header);
        match payload {
            Payload::Bytes(bytes) => body.copy_from_slice(bytes),
            Payload::Pack(bytes, fill) => fill(body.as_mut_ptr(), bytes),
        }
        for (into, exposure) in behind.chunks_exact_mut(EXPOSURE_BYTES).zip(&queue.unsent_exposures)
        {
            exposure.encode(into);
        }
        let lkey = self.adapter.lkey;
        let piece = Piece { start, len: total as u32, lkey };
        match self.post_piece(at, slot, piece, exposures, is_inline, false) {
            Ok(()) => Sent::Accepted,
            Err(code) => {
                self.adapter.buffers.give_back(slot);
                self.fail(at, &format!("ibv_post_send: {}", crate::os::errno_text(code)));
                Sent::Down
            }
        }
    }

    /// Is there a credit, a place in the queues, and a slot?
    #[inline]
    fn has_room(&self, at: usize) -> bool {
        let is_free = |queue: &Queue<V::Qp>| {
            queue.credits.may_send() && queue.outstanding.len() < SENDS_OF_CHANNEL
        };
        self.channels[at].queue.as_ref().is_some_and(is_free)
            && self.adapter.in_flight < self.adapter.in_flight_max
            && self.adapter.buffers.has_free()
    }

    #[cold]
    fn without_room(&self, at: usize) -> Sent {
        // The queue pair may just have failed.
        if self.channels[at].sends_by_queue { Sent::Full(0) } else { Sent::Down }
    }

    /// Post a message with the credits that are owed; it ends with so many exposures.
    #[inline]
    fn post_piece(
        &mut self,
        at: usize,
        slot: u16,
        piece: Piece,
        exposures: usize,
        inline: bool,
        must_signal: bool,
    ) -> Result<(), i32> {
        let adapter = &mut self.adapter;
        let Some(queue) = &mut self.channels[at].queue else { return Err(libc::EINVAL) };
        // If many hold what only a completion frees, each asks for one: no half of the slots is
        // ever held by tails that nobody asks for.
        let is_short = adapter.buffers.is_short() || 2 * adapter.in_flight >= adapter.in_flight_max;
        let signaled = must_signal || is_short || queue.unsignaled + 1 >= SIGNAL_EVERY;
        let carried = queue.credits.take();
        let id = queue.outstanding.next_id();
        let work = Work::Send { immediate: immediate(carried, exposures) };
        let work = SendWork { id, work, piece, signaled, inline };
        // SAFETY: the slot is the adapter's until the completion; or the bytes are taken at once.
        if let Err(code) = unsafe { adapter.verbs.post_send(queue.qp, &work) } {
            queue.credits.put_back(carried);
            return Err(code);
        }
        if exposures > 0 {
            queue.unsent_exposures.drain(..exposures);
        }
        queue.outstanding.push(slot);
        queue.unsignaled = if signaled { 0 } else { queue.unsignaled + 1 };
        queue.sent += u64::from(piece.len > 0);
        adapter.in_flight += 1;
        Ok(())
    }

    /// Post an empty message: it brings credits, or its completion says that all before it are
    /// complete. False: not now.
    pub(super) fn post_empty(&mut self, at: usize, must_signal: bool) -> bool {
        let is_full = |queue: &Queue<V::Qp>| queue.outstanding.len() >= SENDS_OF_CHANNEL;
        let full = self.channels[at].queue.as_ref().is_none_or(is_full);
        if full || self.adapter.in_flight >= self.adapter.in_flight_max {
            return false;
        }
        let (start, lkey) = (self.adapter.buffers.start() as u64, self.adapter.lkey);
        let piece = Piece { start, len: 0, lkey };
        match self.post_piece(at, NO_SLOT, piece, 0, false, must_signal) {
            Ok(()) => true,
            Err(code) => {
                self.fail(at, &format!("ibv_post_send: {}", crate::os::errno_text(code)));
                false
            }
        }
    }

    /// Credits that no message carries.
    pub(super) fn return_credits(&mut self) {
        self.has_debts = false;
        for at in 0..self.channels.len() {
            self.return_credit(at);
        }
    }

    /// The same to one peer, if more than half of a grant is owed.
    #[inline]
    pub(super) fn return_credit(&mut self, at: usize) {
        let is_due = |queue: &Queue<V::Qp>| queue.credits.must_return();
        if self.channels[at].queue.as_ref().is_some_and(is_due) && !self.post_empty(at, false) {
            self.progress_sends();
            self.has_debts |= !self.post_empty(at, false);
        }
    }

    /// Take completions of sends.
    pub(super) fn progress_sends(&mut self) {
        loop {
            let mut batch = [Completion::NONE; COMPLETIONS];
            let taken = match self.adapter.poll_sends(&mut batch) {
                Ok(taken) => taken,
                Err(code) => {
                    let text = format!("ibv_poll_cq: {}", crate::os::errno_text(code));
                    self.adapter_failed(&text);
                    return;
                }
            };
            for completion in &batch[..taken] {
                self.on_sent(completion);
            }
            if taken < COMPLETIONS {
                return;
            }
        }
    }

    #[inline]
    fn on_sent(&mut self, completion: &Completion) {
        let Some(&at) = self.numbers.get(&completion.qp) else {
            self.adapter.complete_finished(completion.qp, completion.id);
            return;
        };
        let at = at as usize;
        let is_done = completion.status == Status::SUCCESS;
        if let Some(queue) = &mut self.channels[at].queue {
            let (buffers, bounced) = (&mut self.adapter.buffers, &mut self.bounced);
            let done = queue.outstanding.complete(completion.id, buffers, bounced);
            self.adapter.in_flight -= done;
        }
        if !self.bounced.is_empty() {
            self.take_bounced(super::reads::Rail::First, is_done);
        }
        if !is_done {
            self.fail(at, completion.status.text());
        }
    }

    /// The queue pair of a channel does not work: the channel is down, and its next connection
    /// stays the way until a port has come back.
    #[cold]
    pub(super) fn fail(&mut self, at: usize, why: &str) {
        self.channels[at].stays = true;
        self.bring_down(at, why);
    }

    /// End a channel because of its queue pair.
    pub(super) fn bring_down(&mut self, at: usize, why: &str) {
        self.retire(at);
        let choice = &self.adapter.choice;
        let reason = format!("{} port {}: {why}", choice.device, choice.port);
        let channel = &mut self.channels[at];
        if let Some(down) = channel.down.take() {
            // It had ended already, and only its last messages were waited for.
            self.events.push_back(down);
        } else if channel.is_up {
            self.carrier.disconnect(channel.peer, reason);
            self.carrier_events();
        }
    }

    /// A channel has no queue pair any more. What came by it and was not handed out is forgotten:
    /// it will be sent again.
    pub(super) fn retire(&mut self, at: usize) {
        self.channels[at].forget_queue();
        let Some(mut queue) = self.channels[at].queue.take() else { return };
        self.numbers.remove(&queue.number);
        self.forget_reads(at);
        if let Some(second) = queue.second.take() {
            self.finish_second(second);
        }
        for early in queue.early {
            self.post_again(early.slot);
        }
        let held = usize::from(self.current == Some(super::Source::Queue));
        let mut place = 0;
        while place < self.ready.len() {
            if place >= held && self.ready[place].number == queue.number {
                let ready = self.ready.remove(place);
                self.post_again(ready.map_or(NO_SLOT, |ready| ready.arrived.slot));
            } else {
                place += 1;
            }
        }
        self.adapter.finish(queue.qp, queue.number, queue.outstanding);
        self.way_changed();
    }

    /// An event of the adapter itself: all channels continue by their connections, until its port
    /// is active again.
    pub(super) fn adapter_failed(&mut self, why: &str) {
        self.leave_adapter(why, " until it is back");
    }

    /// The adapter is gone: they continue so for good. One that takes its place is opened when the
    /// process is restored.
    pub(super) fn adapter_is_gone(&mut self, why: &str) {
        self.leave_adapter(why, "");
    }

    #[cold]
    fn leave_adapter(&mut self, why: &str, until: &str) {
        if !core::mem::take(&mut self.adapter.is_healthy) {
            return;
        }
        let choice = &self.adapter.choice;
        let (device, port) = (choice.device.clone(), choice.port);
        for at in 0..self.channels.len() {
            if self.channels[at].queue.is_some() {
                self.bring_down(at, why);
            }
        }
        if self.closing_since_ms.is_none() {
            let text = format!("{device} port {port}: {why}; messages go over TCP{until}");
            self.events.push_back(Event::Notice(text));
        }
    }
}
