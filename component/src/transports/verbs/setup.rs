//! From a connection to a queue pair and back: news of connections, control messages, news of the
//! adapter.

use super::VerbsTransport;
use super::adapter::{Outstanding, PATIENCE};
use super::api::*;
use super::channel::Queue;
use super::control::{Control, PortAddress, SecondPort};
use super::credits::Credits;
use super::exposures::{ById, WAITING_MAX};
use crate::transports::{Carrier, Event, Payload, Sent};
use rustbtl_fragments::ids::PeerId;
use rustbtl_fragments::wire::HEADER_BYTES;

/// Packet numbers have 24 bits.
const PSN_MASK: u32 = 0x00FF_FFFF;

/// Number of the first packet of a queue pair, of which nobody knows it before.
pub(super) fn first_packet(number: u32) -> u32 {
    crate::os::random::bytes().map_or(number, u32::from_le_bytes) & PSN_MASK
}

impl<V: Verbs, C: Carrier> VerbsTransport<V, C> {
    /// A peer can be reached by verbs, there.
    pub(super) fn set_port(&mut self, peer: PeerId, port: Option<PortAddress>) {
        let at = self.channel_or_new(peer);
        let own = self.adapter.choice.address;
        self.channels[at].port = port.filter(|port| own.reaches(port));
        if self.channels[at].is_up && self.channels[at].queue.is_none() {
            self.begin(at, false);
        }
    }

    /// News of connections.
    pub(super) fn carrier_events(&mut self) {
        while let Some(event) = self.carrier.event() {
            match &event {
                Event::Up(peer, _) => {
                    let at = self.channel_or_new(*peer);
                    self.end_at_once(at);
                    self.retire(at);
                    self.channels[at].forget_connection();
                    self.channels[at].is_up = true;
                    self.events.push_back(event);
                    self.begin(at, false);
                    self.way_changed();
                }
                Event::Down { peer, said_goodbye, .. } => {
                    let at = self.channel_or_new(*peer);
                    let said_goodbye = *said_goodbye;
                    self.end_at_once(at);
                    self.channels[at].is_up = false;
                    self.channels[at].down = Some(event);
                    if said_goodbye {
                        self.end_if_all_consumed(at);
                    } else {
                        self.end_at_once(at);
                    }
                }
                Event::Notice(_) => self.events.push_back(event),
            }
        }
    }

    /// V6: is the end of a connection to be reported now?
    pub(super) fn end_if_all_consumed(&mut self, at: usize) {
        let channel = &self.channels[at];
        let waits = match (&channel.queue, channel.leave) {
            (Some(queue), Some(sent)) => queue.consumed < sent,
            _ => false,
        };
        if !waits {
            self.end_at_once(at);
        }
    }

    fn end_at_once(&mut self, at: usize) {
        if let Some(down) = self.channels[at].down.take() {
            self.retire(at);
            self.channels[at].forget_connection();
            self.events.push_back(down);
            self.way_changed();
        }
    }

    /// Make a queue pair for a channel whose connection is open, and tell the peer.
    fn begin(&mut self, at: usize, is_fresh: bool) {
        let channel = &self.channels[at];
        let may = self.adapter.is_healthy && self.closing_since_ms.is_none();
        if may && !channel.stays && channel.port.is_some() && channel.queue.is_none() {
            self.make_queue(at, is_fresh);
        }
    }

    fn make_queue(&mut self, at: usize, is_fresh: bool) {
        let made = self.adapter.create_qp();
        let (qp, number, inline_bytes) = match made {
            Ok(made) => made,
            Err(error) => {
                self.channels[at].stays = true;
                // The adapter may be gone, which says why for all peers.
                self.adapter_news();
                if self.adapter.is_healthy {
                    self.notice(format!("{error}; messages to a peer go over TCP"));
                }
                return;
            }
        };
        let psn = first_packet(number);
        let second = self.make_second(at);
        let told = second.as_ref().and_then(|second| self.second_port(second));
        let grant = self.adapter.sizes.grant;
        let queue = Queue {
            qp,
            number,
            psn,
            inline_bytes,
            is_connected: false,
            credits: Credits::new(0, u32::from(grant)),
            outstanding: Outstanding::new(),
            unsignaled: 0,
            sent: 0,
            consumed: 0,
            early: Vec::with_capacity(usize::from(grant)),
            reads: 0,
            second,
            unsent_exposures: Vec::with_capacity(WAITING_MAX),
            exposures: ById::default(),
        };
        self.channels[at].queue = Some(queue);
        self.numbers.insert(number, at as u32);
        let port = self.adapter.choice.address;
        self.tell(at, Control::Setup { is_fresh, grant, qp: number, psn, port, second: told });
    }

    /// Send a control message as soon as the connection takes it.
    pub(super) fn tell(&mut self, at: usize, control: Control) {
        self.channels[at].outbox.push_back(control);
        self.push_outbox(at);
        self.way_changed();
    }

    /// Control messages that their connections have not taken yet.
    pub(super) fn push_outboxes(&mut self) {
        self.has_outbox = false;
        for at in 0..self.channels.len() {
            self.push_outbox(at);
        }
        self.way_changed();
    }

    fn push_outbox(&mut self, at: usize) {
        let channel = &mut self.channels[at];
        while let Some(&control) = channel.outbox.front() {
            // V3
            if channel.is_mid_frame {
                break;
            }
            let frame = control.encode();
            let (header, body) = frame.split_at(HEADER_BYTES);
            match self.carrier.send(channel.peer, header, Payload::Bytes(body), 0) {
                Sent::Accepted => {
                    channel.outbox.pop_front();
                    channel.sends_by_queue |= control == Control::Switch;
                }
                Sent::Full(0) => break,
                // A connection takes as little as that as a whole, or not at all.
                Sent::Full(_) | Sent::Down => {
                    channel.outbox.clear();
                }
            }
        }
        self.has_outbox |= !channel.outbox.is_empty();
    }

    /// The peer has told us something.
    pub(super) fn on_control(&mut self, from: PeerId, control: Option<Control>) {
        let at = self.channel_or_new(from);
        if self.closing_since_ms.is_some() {
            return;
        }
        match control {
            Some(Control::Setup { is_fresh, grant, qp, psn, port, second }) => {
                if is_fresh && self.channels[at].queue.is_none() {
                    self.channels[at].stays = false;
                }
                if self.adapter.choice.address.reaches(&port) {
                    self.channels[at].port.get_or_insert(port);
                }
                self.begin(at, false);
                self.connect(at, u32::from(grant), (qp, psn), &port, second);
            }
            Some(Control::Ready { qp }) => {
                let is_ours = |queue: &Queue<V::Qp>| queue.is_connected && queue.number == qp;
                if self.channels[at].queue.as_ref().is_some_and(is_ours) {
                    self.tell(at, Control::Switch);
                }
            }
            Some(Control::Switch) if self.channels[at].queue.is_some() => {
                self.channels[at].receives_by_queue = true;
                self.release_early(at);
                self.way_changed();
            }
            Some(Control::Refuse) => self.retire(at),
            Some(Control::Leave { sent }) => self.channels[at].leave = Some(sent),
            Some(Control::Switch) | None => {
                self.fail(at, "the peer has sent a control message that makes no sense");
            }
        }
    }

    /// The peer's queue pair is known: connect ours to it.
    fn connect(
        &mut self,
        at: usize,
        granted: u32,
        theirs: (u32, u32),
        port: &PortAddress,
        second: Option<SecondPort>,
    ) {
        let is_new = self.channels[at].queue.as_ref().is_some_and(|queue| !queue.is_connected);
        let connected = match &mut self.channels[at].queue {
            None => None,
            Some(queue) if queue.is_connected => Some(Ok(())),
            Some(queue) => {
                let done = self.adapter.connect(queue.qp, queue.psn, theirs, port, PATIENCE);
                queue.is_connected = done.is_ok();
                queue.reads = self.adapter.choice.address.reads.min(port.reads);
                queue.credits = Credits::new(granted, u32::from(self.adapter.sizes.grant));
                Some(done)
            }
        };
        match connected {
            Some(Ok(())) => {
                if is_new {
                    self.connect_second(at, second);
                }
                self.tell(at, Control::Ready { qp: theirs.0 });
            }
            Some(Err(error)) => {
                self.channels[at].stays = true;
                self.retire(at);
                self.notice(format!("{error}; messages to a peer go over TCP"));
                self.tell(at, Control::Refuse);
            }
            None => self.tell(at, Control::Refuse),
        }
    }

    /// News of the adapter.
    pub(super) fn adapter_news(&mut self) {
        while let Some(event) = self.adapter.event() {
            let own = self.adapter.choice.port;
            match event {
                AsyncEvent::PortDown(port) if port == own => self.adapter_failed("port is down"),
                AsyncEvent::DeviceFatal => self.adapter_is_gone("the adapter has failed"),
                AsyncEvent::PortActive(port) if port == own => self.port_is_back(),
                _ => {}
            }
        }
    }

    /// Back from connections to queue pairs.
    fn port_is_back(&mut self) {
        let is_active = self.adapter.port().is_ok_and(|port| port.is_active);
        if self.adapter.is_healthy || !is_active {
            return;
        }
        self.adapter.is_healthy = true;
        let choice = &self.adapter.choice;
        self.notice(format!("{} port {} is active again", choice.device, choice.port));
        for at in 0..self.channels.len() {
            self.channels[at].stays = false;
            if self.channels[at].is_up {
                self.begin(at, true);
            }
        }
    }
}
