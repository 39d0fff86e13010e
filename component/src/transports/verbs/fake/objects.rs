//! What a node has: registered memory, queues, queue pairs.

use crate::transports::verbs::api::*;
use std::collections::{BTreeMap, VecDeque};

/// Numbers of queue pairs begin here, on every node.
const FIRST_QP: u32 = 0x11;

/// A node, and the adapter in it.
pub(super) struct Node {
    /// How often its process was restarted.
    pub(super) life: u32,
    pub(super) port_up: bool,
    pub(super) removed: bool,
    pub(super) open: u32,
    pub(super) regions: BTreeMap<u32, Region>,
    pub(super) cqs: BTreeMap<u32, Cq>,
    pub(super) srqs: BTreeMap<u32, Srq>,
    pub(super) qps: BTreeMap<u32, Qp>,
    pub(super) events: VecDeque<AsyncEvent>,
    /// RDMA READs that were answered.
    pub(super) answered: u64,
    next: u32,
    next_qp: u32,
}

/// Registered memory. Its number is its local key.
pub(super) struct Region {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) rkey: u32,
    pub(super) access: u32,
    /// Work requests with it that are under way.
    pub(super) users: u32,
}

/// A completion queue.
pub(super) struct Cq {
    pub(super) capacity: usize,
    pub(super) entries: VecDeque<Completion>,
}

/// A shared receive queue.
pub(super) struct Srq {
    pub(super) capacity: usize,
    pub(super) posted: VecDeque<PostedReceive>,
}

/// A posted receive, and what was in its memory then.
pub(super) struct PostedReceive {
    pub(super) work: ReceiveWork,
    pub(super) digest: u64,
}

/// State of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Reset,
    Init,
    Rtr,
    Rts,
    Error,
}

/// A queue pair.
pub(super) struct Qp {
    pub(super) state: State,
    pub(super) send_cq: u32,
    pub(super) receive_cq: u32,
    pub(super) srq: u32,
    pub(super) sends_max: usize,
    pub(super) inline_bytes: u32,
    pub(super) destination: Option<Destination>,
    pub(super) psn: u32,
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    pub(super) reads: u8,
    pub(super) access: u32,
    pub(super) queue: VecDeque<PostedSend>,
    /// Work requests, by id, that hold a place in the queue until a completion behind them is
    /// polled.
    pub(super) unpolled: VecDeque<u64>,
}

/// A posted send.
pub(super) struct PostedSend {
    pub(super) work: SendWork,
    /// Inline: what was taken.
    pub(super) taken: Option<Vec<u8>>,
    /// What was in its memory when it was posted.
    pub(super) digest: u64,
    pub(super) delivered: bool,
    pub(super) attempts: u8,
}

impl Qp {
    /// Messages that the peer has and that are not complete here.
    pub(super) fn unacknowledged(&self) -> usize {
        self.queue.iter().take_while(|send| send.delivered).count()
    }
}

impl Node {
    /// In its first incarnation.
    pub(super) fn new(node: usize) -> Self {
        Self {
            life: 0,
            port_up: true,
            removed: false,
            open: 0,
            regions: BTreeMap::new(),
            cqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            events: VecDeque::new(),
            answered: 0,
            // Keys and handles differ from node to node, queue pairs do not.
            next: 0x1000 * (node as u32 + 1),
            next_qp: FIRST_QP,
        }
    }

    pub(super) fn live(&self) -> usize {
        let queues = self.cqs.len() + self.srqs.len() + self.qps.len();
        self.regions.len() + queues + self.open as usize
    }

    pub(super) fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub(super) fn qp_number(&mut self) -> u32 {
        self.next_qp += 1;
        self.next_qp - 1
    }

    /// The region of a piece of own memory, if key, range and access are right.
    pub(super) fn region(&mut self, piece: Piece, access: u32) -> Option<&mut Region> {
        let region = self.regions.get_mut(&piece.lkey)?;
        let end = piece.start.checked_add(u64::from(piece.len))?;
        let is_inside = region.start <= piece.start && end <= region.start + region.len;
        (is_inside && region.access & access == access).then_some(region)
    }

    /// The same for a range that a peer names by the remote key.
    pub(super) fn remote(&self, rkey: u32, start: u64, len: u32, access: u32) -> Option<&Region> {
        let region = self.regions.values().find(|region| region.rkey == rkey)?;
        let end = start.checked_add(u64::from(len))?;
        let is_inside = region.start <= start && end <= region.start + region.len;
        (is_inside && region.access & access == access).then_some(region)
    }

    /// Report a completion. A full queue is a bug of its owner.
    pub(super) fn complete(&mut self, cq: u32, completion: Completion) {
        let cq = self.cqs.get_mut(&cq).expect("a queue pair outlives no completion queue");
        assert!(cq.entries.len() < cq.capacity, "fake verbs: a completion queue overflows");
        cq.entries.push_back(completion);
    }
}
