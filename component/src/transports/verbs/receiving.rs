//! Receiving by queue pairs.

use super::api::*;
use super::buffers::NO_SLOT;
use super::channel::Arrived;
use super::exposures::{of_immediate, split};
use super::{COMPLETIONS, Ready, VerbsTransport};
use crate::transports::{Carrier, Incoming};

impl<V: Verbs, C: Carrier> VerbsTransport<V, C> {
    /// Take completions of receives, some at a time: how many.
    #[inline]
    pub(super) fn poll_receives(&mut self) -> usize {
        let taken = match self.adapter.poll_receives(&mut self.batch) {
            Ok(taken) => taken,
            Err(code) => {
                self.adapter_failed(&format!("ibv_poll_cq: {}", crate::os::errno_text(code)));
                return 0;
            }
        };
        debug_assert!(taken <= COMPLETIONS);
        for place in 0..taken {
            let completion = self.batch[place];
            self.on_received(&completion);
        }
        taken
    }

    #[inline]
    fn on_received(&mut self, completion: &Completion) {
        let slot = completion.id as u16;
        let Some(&channel) = self.numbers.get(&completion.qp) else {
            // Of a queue pair that has no channel any more.
            self.post_again(slot);
            return;
        };
        let at = channel as usize;
        if completion.status != Status::SUCCESS {
            self.post_again(slot);
            self.fail(at, completion.status.text());
            return;
        }
        let receives_by_queue = self.channels[at].receives_by_queue;
        let Some(queue) = &mut self.channels[at].queue else { return };
        let (credits, exposures) = of_immediate(completion.immediate);
        queue.credits.add(credits);
        let mut bytes = completion.bytes;
        if exposures > 0 {
            // SAFETY: the message lies in the slot, which is no more the adapter's.
            let message = unsafe { self.adapter.buffers.bytes(slot, bytes as usize) };
            let Some((frame, exposures)) = split(message, exposures) else {
                self.post_again(slot);
                self.fail(at, "exposures of memory that are damaged");
                return;
            };
            bytes = frame.len() as u32;
            exposures.for_each(|exposure| queue.exposures.insert(exposure.id, exposure));
        }
        if bytes == 0 {
            queue.credits.consumed();
            self.post_again(slot);
            self.return_credit(at);
            return;
        }
        let arrived = Arrived { slot, bytes };
        if receives_by_queue {
            self.ready.push_back(Ready { channel, number: completion.qp, arrived });
        } else {
            queue.early.push(arrived);
        }
    }

    /// The peer has switched: what came early is next.
    pub(super) fn release_early(&mut self, at: usize) {
        let Some(queue) = &mut self.channels[at].queue else { return };
        let number = queue.number;
        for arrived in queue.early.drain(..) {
            self.ready.push_back(Ready { channel: at as u32, number, arrived });
        }
    }

    /// The next message.
    #[inline]
    pub(super) fn front(&self) -> Option<Incoming> {
        let ready = self.ready.front()?;
        let start = self.adapter.buffers.slot(ready.arrived.slot);
        let from = self.channels[ready.channel as usize].peer;
        Some(Incoming { from, start, len: ready.arrived.bytes as usize })
    }

    /// It is done with.
    #[inline]
    pub(super) fn consume_front(&mut self) {
        let Some(ready) = self.ready.pop_front() else { return };
        self.post_again(ready.arrived.slot);
        let at = ready.channel as usize;
        let channel = &mut self.channels[at];
        // The channel may be down since the message was handed out.
        let Some(queue) = channel.queue.as_mut().filter(|queue| queue.number == ready.number)
        else {
            return;
        };
        queue.credits.consumed();
        queue.consumed += 1;
        if queue.credits.must_return() {
            self.return_credit(at);
        }
        if self.channels[at].down.is_some() {
            self.end_if_all_consumed(at);
        }
    }

    /// The slot is the adapter's again.
    #[inline]
    pub(super) fn post_again(&mut self, slot: u16) {
        if slot != NO_SLOT
            && let Err(code) = self.adapter.post_receive(slot)
        {
            let text = format!("ibv_post_srq_recv: {}", crate::os::errno_text(code));
            self.adapter_failed(&text);
        }
    }
}
