//! A second port of this process: long payloads are read over both.
//!
//! Everything else goes by the first one. A channel has a queue pair at the second port of each
//! end, if both have one and these reach each other; who exposes memory says its key there, too.
//! Where the second port fails, what was asked for by it is asked for again by the first one.

use super::VerbsTransport;
use super::adapter::{Adapter, Choice, Outstanding, Patience, Sizes};
use super::api::*;
use super::control::SecondPort;
use crate::transports::{Carrier, Event};
use std::collections::BTreeMap;

/// 17 ms, 3 times: then what was asked for is asked for by the first port.
const PATIENCE: Patience = (12, 3);

/// The queue pair of a channel at the second port.
#[derive(Debug)]
pub(super) struct SecondQueue<Q> {
    pub(super) qp: Q,
    /// Its number here.
    pub(super) number: u32,
    /// Of its first packet.
    pub(super) psn: u32,
    /// RDMA READs that both ends can have under way; 0: it is not connected.
    pub(super) reads: u8,
    pub(super) outstanding: Outstanding,
}

/// The second port, with what channels share of it.
pub(super) struct SecondRail<V: Verbs> {
    pub(super) adapter: Adapter<V>,
    /// Index of the channel of each queue pair that has one.
    numbers: BTreeMap<u32, u32>,
}

impl<V: Verbs, C: Carrier> VerbsTransport<V, C> {
    /// Read long payloads over this port, too. Before there are peers.
    ///
    /// # Errors
    /// The adapter cannot be used.
    pub fn add_rail(&mut self, verbs: V, choice: Choice) -> Result<(), VerbsError> {
        // Nothing is sent or received by it.
        let sizes = Sizes { receives: 1, sends: 64, slot_bytes: 64, ..self.adapter.sizes };
        let adapter = Adapter::open(verbs, choice, sizes)?;
        self.second = Some(SecondRail { adapter, numbers: BTreeMap::new() });
        Ok(())
    }

    /// A queue pair at the second port for a channel that gets one at the first.
    pub(super) fn make_second(&mut self, at: usize) -> Option<SecondQueue<V::Qp>> {
        let rail = self.second.as_mut().filter(|rail| rail.adapter.is_healthy)?;
        let (qp, number, _) = rail.adapter.create_qp().ok()?;
        rail.numbers.insert(number, at as u32);
        let psn = super::setup::first_packet(number);
        Some(SecondQueue { qp, number, psn, reads: 0, outstanding: Outstanding::new() })
    }

    /// What the peer is told of it.
    pub(super) fn second_port(&self, queue: &SecondQueue<V::Qp>) -> Option<SecondPort> {
        let port = self.second.as_ref()?.adapter.choice.address;
        Some(SecondPort { qp: queue.number, psn: queue.psn, port })
    }

    /// The peer's is known: connect ours to it, if it is reached.
    pub(super) fn connect_second(&mut self, at: usize, theirs: Option<SecondPort>) {
        let Some(rail) = &self.second else { return };
        let queue = self.channels[at].queue.as_mut();
        let Some(second) = queue.and_then(|queue| queue.second.as_mut()) else { return };
        let own = rail.adapter.choice.address;
        let connects = |to: &SecondPort| {
            let end = (to.qp, to.psn);
            own.reaches(&to.port)
                && rail.adapter.connect(second.qp, second.psn, end, &to.port, PATIENCE).is_ok()
        };
        match theirs.filter(connects) {
            Some(theirs) => second.reads = own.reads.min(theirs.port.reads),
            None => self.retire_second(at),
        }
    }

    /// Take completions of the second port.
    pub(super) fn progress_second(&mut self) {
        while let Some(rail) = &self.second {
            let mut batch = [Completion::NONE; super::COMPLETIONS];
            let taken = match rail.adapter.poll_sends(&mut batch) {
                Ok(taken) => taken,
                Err(code) => {
                    let text = format!("ibv_poll_cq: {}", crate::os::errno_text(code));
                    return self.second_failed(&text);
                }
            };
            for completion in &batch[..taken] {
                self.on_second(completion);
            }
            if taken < super::COMPLETIONS {
                return;
            }
        }
    }

    fn on_second(&mut self, completion: &Completion) {
        let Some(rail) = &mut self.second else { return };
        let Some(&at) = rail.numbers.get(&completion.qp) else {
            return rail.adapter.complete_finished(completion.qp, completion.id);
        };
        let at = at as usize;
        let is_done = completion.status == Status::SUCCESS;
        let queue = self.channels[at].queue.as_mut();
        if let Some(second) = queue.and_then(|queue| queue.second.as_mut()) {
            let (buffers, bounced) = (&mut rail.adapter.buffers, &mut self.bounced);
            let done = second.outstanding.complete(completion.id, buffers, bounced);
            rail.adapter.in_flight -= done;
        }
        self.take_bounced(super::reads::Rail::Second, is_done);
        if !is_done {
            // The port may be down, which says why for all peers.
            self.second_news();
            let is_healthy = self.second.as_ref().is_some_and(|rail| rail.adapter.is_healthy);
            let has_worked = self.pieces_read()[1] > 0;
            if !has_worked && completion.status == Status::RETRIES_EXCEEDED {
                // It may be in another network than the peers' second ports: one try is enough.
                self.second_failed(completion.status.text());
            } else if is_healthy {
                self.retire_second(at);
                let text = format!("{}: {}", rail_choice(&self.second), completion.status.text());
                self.notice(format!("{text}; long messages of a peer are read over one port"));
            }
            self.post_reads();
        }
    }

    /// A channel has no queue pair at the second port any more. What was asked for by it is asked
    /// for by the first one.
    pub(super) fn retire_second(&mut self, at: usize) {
        let queue = self.channels[at].queue.as_mut();
        if let Some(second) = queue.and_then(|queue| queue.second.take()) {
            self.finish_second(second);
            self.read_again(at);
        }
    }

    /// It is destroyed when nothing of ours belongs to it.
    pub(super) fn finish_second(&mut self, queue: SecondQueue<V::Qp>) {
        let Some(rail) = &mut self.second else { return };
        rail.numbers.remove(&queue.number);
        rail.adapter.finish(queue.qp, queue.number, queue.outstanding);
    }

    /// Are there queue pairs without a channel?
    pub(super) fn second_has_finished(&self) -> bool {
        self.second.as_ref().is_some_and(|rail| rail.adapter.has_finished())
    }

    /// What is due beside reading.
    pub(super) fn look_at_second(&mut self) {
        self.second_news();
        if self.second_has_finished() {
            self.progress_second();
            if let Some(rail) = &mut self.second
                && rail.adapter.look_at_finished()
            {
                rail.adapter.destroy_finished();
            }
        }
    }

    fn second_news(&mut self) {
        while let Some(event) = self.second.as_mut().and_then(|rail| rail.adapter.event()) {
            match event {
                AsyncEvent::PortDown(port) if self.is_second(port) => {
                    self.second_failed("port is down");
                }
                AsyncEvent::DeviceFatal => self.second_failed("the adapter has failed"),
                AsyncEvent::PortActive(port) if self.is_second(port) => {
                    // Connections that are made from now on use it.
                    let rail = self.second.as_mut();
                    rail.into_iter().for_each(|rail| rail.adapter.is_healthy = true);
                }
                _ => {}
            }
        }
    }

    fn is_second(&self, port: u8) -> bool {
        self.second.as_ref().is_some_and(|rail| rail.adapter.choice.port == port)
    }

    #[cold]
    fn second_failed(&mut self, why: &str) {
        let Some(rail) = &mut self.second else { return };
        if !core::mem::take(&mut rail.adapter.is_healthy) {
            return;
        }
        let choice = rail_choice(&self.second);
        for at in 0..self.channels.len() {
            self.retire_second(at);
        }
        if self.closing_since_ms.is_none() {
            let text = format!("{choice}: {why}; long messages are read over one port");
            self.events.push_back(Event::Notice(text));
        }
        self.post_reads();
    }

    /// Destroy everything of it. The queue pairs of channels are given.
    pub(super) fn destroy_second(&mut self, queues: Vec<V::Qp>) {
        if let Some(rail) = &mut self.second {
            rail.adapter.destroy(queues.into_iter());
            rail.numbers.clear();
        }
    }
}

/// For messages: which port.
fn rail_choice<V: Verbs>(rail: &Option<SecondRail<V>>) -> String {
    let choice = rail.as_ref().map(|rail| &rail.adapter.choice);
    choice.map_or_else(String::new, |choice| format!("{} port {}", choice.device, choice.port))
}
