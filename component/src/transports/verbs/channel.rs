//! The channel to one peer: a connection that is always there, and a queue pair beside it.
//!
//! Invariants:
//! * V3 Each end sends either by the connection or by the queue pair; `Switch` is the last frame
//!   before it changes, and is not sent in the middle of a frame.
//! * V4 What came by the queue pair waits until `Switch` was read: frames keep their order.
//! * V5 The queue pair lives no longer than the connection.
//! * V6 After `Leave` the end of the connection is reported when all that was sent by the queue
//!   pair has been handed out.

use crate::transports::Event;
use crate::transports::verbs::adapter::Outstanding;
use crate::transports::verbs::control::{Control, PortAddress};
use crate::transports::verbs::credits::Credits;
use crate::transports::verbs::exposures::{ById, Exposed, Exposure};
use crate::transports::verbs::second_rail::SecondQueue;
use rustbtl_fragments::ids::PeerId;
use std::collections::VecDeque;

/// A received message that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Arrived {
    /// Where it lies.
    pub(super) slot: u16,
    /// Its bytes.
    pub(super) bytes: u32,
}

/// A queue pair that belongs to a channel.
#[derive(Debug)]
pub(super) struct Queue<Q> {
    pub(super) qp: Q,
    /// Its number here.
    pub(super) number: u32,
    /// Of its first packet.
    pub(super) psn: u32,
    /// What it takes inline.
    pub(super) inline_bytes: u32,
    /// It is connected: RTS.
    pub(super) is_connected: bool,
    pub(super) credits: Credits,
    pub(super) outstanding: Outstanding,
    /// Sent since a completion was last asked for.
    pub(super) unsignaled: u32,
    /// Messages with payload that were sent by it.
    pub(super) sent: u64,
    /// Messages with payload that were handed out and consumed.
    pub(super) consumed: u64,
    /// Messages that came before `Switch` was read (V4).
    pub(super) early: Vec<Arrived>,
    /// RDMA READs that both ends can have under way; 0: none.
    pub(super) reads: u8,
    /// At the second port.
    pub(super) second: Option<SecondQueue<Q>>,
    /// Exposures that no message has carried yet.
    pub(super) unsent_exposures: Vec<Exposure>,
    /// Exposures of the peer (V7).
    pub(super) exposures: ById<Exposure>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Channel<Q> {
    pub(super) peer: PeerId,
    /// Where its port is, if it has published one that can be reached.
    pub(super) port: Option<PortAddress>,
    /// The connection is open.
    pub(super) is_up: bool,
    /// We have asked for the connection.
    pub(super) is_dialing: bool,
    /// A queue pair has failed: no other one is tried before a port has come back.
    pub(super) stays: bool,
    /// The connection has taken a frame in part.
    pub(super) is_mid_frame: bool,
    /// For the connection; it takes them in this order, between frames.
    pub(super) outbox: VecDeque<Control>,
    pub(super) queue: Option<Queue<Q>>,
    /// What is exposed to the peer.
    pub(super) exposed: ById<Exposed>,
    /// V3: `Switch` is sent.
    pub(super) sends_by_queue: bool,
    /// V4: `Switch` is read.
    pub(super) receives_by_queue: bool,
    /// V6: what `Leave` has said.
    pub(super) leave: Option<u64>,
    /// V6: the end of the connection.
    pub(super) down: Option<Event>,
    /// At the end: the last message, which asks for a completion, is sent; `Leave` is.
    pub(super) is_marked: bool,
    pub(super) has_left: bool,
}

impl<Q> Channel<Q> {
    pub(super) fn new(peer: PeerId) -> Self {
        Self {
            peer,
            port: None,
            is_up: false,
            is_dialing: false,
            stays: false,
            is_mid_frame: false,
            outbox: VecDeque::new(),
            queue: None,
            exposed: ById::default(),
            sends_by_queue: false,
            receives_by_queue: false,
            leave: None,
            down: None,
            is_marked: false,
            has_left: false,
        }
    }

    /// Does anything come, or go, by the connection?
    pub(super) fn needs_connection(&self) -> bool {
        let switched = self.sends_by_queue && self.receives_by_queue && self.outbox.is_empty();
        self.is_dialing || self.is_up && !switched
    }

    /// At the end: nothing has to be sent any more.
    pub(super) fn has_closed(&self) -> bool {
        self.outbox.is_empty() && (self.has_left || !self.sends_by_queue)
    }

    /// The connection is another one, or gone (V5).
    pub(super) fn forget_connection(&mut self) {
        self.is_dialing = false;
        self.is_mid_frame = false;
        self.outbox.clear();
        self.forget_queue();
    }

    /// The queue pair is gone.
    pub(super) fn forget_queue(&mut self) {
        self.sends_by_queue = false;
        self.receives_by_queue = false;
        self.leave = None;
        self.is_marked = false;
    }
}
