//! The message engine of one process.
//!
//! Sources: MPI-3.1 §3 (point-to-point), DESIGN §4, §5 and §7.
//!
//! Invariants (asserted by [`Engine::check`]):
//! * E1 The numbers of a stream are accepted in order, without gaps.
//! * E2 A message is matched once: its record is in `messages` or its receive in `receives` (or
//!   `fifo`), never both, never twice.
//! * E3 No posted receive matches a waiting unexpected message.
//! * E4 An outgoing message is in the log before any part of it is offered to a transport.
//! * E5 Internal payloads never enter the log.
//! * E6 `direct` ⇔ the link is open, the peer is not held and no frame waits for it.
//! * E7 A peer with waiting frames on an open link is listed in `backlog`, once.
//! * E8 `in_flight` counts the matched receives from inside the set whose payload has not arrived.
//! * E9 While a peer of the set is held, `queue` contains no new message; a half-taken frame stays
//!   first. While a peer of another set is held, `queue` contains at most the half-taken frame.
//! * E10 `detached` counts the sends that are complete for the program; these are in the log.
//!
//! The engine never calls itself through the host: `Host` methods only touch transports, memory
//! and queues (docs/adr/0001).

mod acknowledge;
mod arrive;
mod check;
mod comms;
mod direct_placement;
mod fast_path;
mod piggyback;
mod pool;
mod queue;
mod quiesce;
mod receive;
mod receive_fifo;
mod received_vector;
mod rendezvous;
mod replay;
mod resync;
mod send;
mod slot_map;
mod state;
mod verify_sends;

use crate::counters::{Counters, Traffic};
use crate::host::*;
use crate::ids::*;
use crate::matching::{Key, Posted, Unexpected};
use crate::wire::WireError;
pub use acknowledge::AcknowledgeAfter;
use pool::Pool;
pub use quiesce::Side;
use receive_fifo::ReceiveFifo;
pub use received_vector::{ReceivedVector, ReceivedVectorError};
use replay::Replay;
pub use replay::ReplayDeterminants;
use slot_map::SlotMap;
use state::{Channel, Comm, PeerState, PendingReceive, PendingSend, UnexpectedMessage};
use std::collections::BTreeMap;
pub use verify_sends::{PayloadMismatch, Sums};

/// MPI-3.1 §3.4. Ready mode is standard mode here; buffered mode is a standard send from a buffer
/// that the driver owns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Complete when the buffer may be reused.
    Standard,
    /// Complete when the message is matched, too.
    Synchronous,
}

/// Which sender a receive or probe takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// MPI_ANY_SOURCE.
    Any,
    /// This rank of the communicator.
    Rank(CommRank),
}

/// Which tags a receive or probe takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TagMatch {
    /// MPI_ANY_TAG: every tag but the library's own (negative) ones.
    Any,
    /// This tag.
    Is(i32),
}

/// The pattern of a receive that a blocking call has not posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnpostedReceive(Key);

/// Outcome of a send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOutcome {
    /// Complete: the buffer may be reused; the token will not be handed to `Host::complete`.
    Complete,
    /// `Host::complete` will be called with the token.
    Pending(SendId),
}

/// Outcome of a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiveOutcome {
    /// Complete; the token will not be handed to `Host::complete`.
    Complete(Status),
    /// `Host::complete` will be called with the token. [`ReceiveId::NONE`]: it has no id yet
    /// ([`Engine::assign_receive_ids`]).
    Pending(ReceiveId),
}

/// Why a send was not accepted. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendError {
    /// The payload log has no room: its budget is used up and spilling failed.
    Log(LogFull),
}

/// Why a frame was not accepted: the peer broke the protocol or the frame was damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// Not a frame.
    Wire(WireError),
    /// An eager fragment out of order.
    Sequence {
        /// The number that had to come.
        expected: MessageSeq,
        /// The number that came.
        got: MessageSeq,
    },
    /// More payload than was announced, or outside it.
    Overrun,
    /// A frame that is not valid in the state of the channel.
    Unexpected(&'static str),
}

/// The message engine of one process. See the crate's documentation.
pub struct Engine<H: Host> {
    me: PeerId,
    set: SetId,
    incarnation: Incarnation,
    comms: Vec<Comm>,
    /// MPI context id → record of the communicator that has it, or had it last.
    contexts: Vec<u32>,
    /// Other instances with the same context id, of which messages wait.
    other_instances: BTreeMap<u32, u32>,
    /// Records of communicators that are not in use.
    free_comms: Vec<u32>,
    channels: Vec<Channel>,
    /// (MPI context id, peer) → channel: channels outlive their communicators.
    by_peer: BTreeMap<(u32, PeerId), u32>,
    /// 8 bytes for a process without traffic.
    peers: Vec<Option<Box<PeerState>>>,
    backlog: Vec<PeerId>,
    fifo: ReceiveFifo<H::ReceiveBuffer, H::Token>,
    posted: Posted,
    unexpected: Unexpected,
    sends: SlotMap<PendingSend<H::SendBuffer, H::Token>>,
    receives: SlotMap<PendingReceive<H::ReceiveBuffer, H::Token>>,
    messages: SlotMap<UnexpectedMessage>,
    pool: Pool,
    counters: Counters,
    /// Inside the set, to other sets: are new frames held back for a checkpoint?
    holds: [bool; 2],
    in_flight: u32,
    /// Sends that are complete for the program, not for the engine.
    detached: usize,
    /// Messages that leave the set have a digest, and repeated ones are compared.
    verifies_sends: bool,
    /// The program sends nothing more.
    sends_are_over: bool,
    /// Piggybacked determinants are accepted (piggyback.rs).
    accepts_piggyback: bool,
    acknowledging: Option<AcknowledgeAfter>,
    /// Buffer for the next piggybacked determinants.
    piggyback_buffer: Vec<u8>,
    /// Receives from MPI_ANY_SOURCE that were posted with the library's own tags.
    library_posts: BTreeMap<(u32, i32), u64>,
    /// Determinants that are replayed after a restore.
    replay: Option<Box<Replay>>,
}

/// A copy is a snapshot: it holds everything that the process's messages depend on but the log.
impl<H: Host> Clone for Engine<H>
where
    H::SendBuffer: Clone,
    H::ReceiveBuffer: Clone,
{
    fn clone(&self) -> Self {
        Self {
            me: self.me,
            set: self.set,
            incarnation: self.incarnation,
            comms: self.comms.clone(),
            contexts: self.contexts.clone(),
            other_instances: self.other_instances.clone(),
            free_comms: self.free_comms.clone(),
            channels: self.channels.clone(),
            by_peer: self.by_peer.clone(),
            peers: self.peers.clone(),
            backlog: self.backlog.clone(),
            fifo: self.fifo.clone(),
            posted: self.posted.clone(),
            unexpected: self.unexpected.clone(),
            sends: self.sends.clone(),
            receives: self.receives.clone(),
            messages: self.messages.clone(),
            pool: Pool::default(),
            counters: self.counters,
            holds: self.holds,
            in_flight: self.in_flight,
            detached: self.detached,
            verifies_sends: self.verifies_sends,
            sends_are_over: self.sends_are_over,
            accepts_piggyback: self.accepts_piggyback,
            acknowledging: self.acknowledging,
            piggyback_buffer: Vec::new(),
            library_posts: self.library_posts.clone(),
            replay: self.replay.clone(),
        }
    }
}

impl<H: Host> Engine<H> {
    /// An engine for process `me` of set `set`.
    pub fn new(me: PeerId, set: SetId, incarnation: Incarnation) -> Self {
        Self {
            me,
            set,
            incarnation,
            comms: Vec::new(),
            contexts: Vec::new(),
            other_instances: BTreeMap::new(),
            free_comms: Vec::new(),
            channels: Vec::new(),
            by_peer: BTreeMap::new(),
            peers: Vec::new(),
            backlog: Vec::new(),
            fifo: ReceiveFifo::default(),
            posted: Posted::default(),
            unexpected: Unexpected::default(),
            sends: SlotMap::default(),
            receives: SlotMap::default(),
            messages: SlotMap::default(),
            pool: Pool::default(),
            counters: Counters::default(),
            holds: [false; 2],
            in_flight: 0,
            detached: 0,
            verifies_sends: false,
            sends_are_over: false,
            accepts_piggyback: false,
            acknowledging: None,
            piggyback_buffer: Vec::new(),
            library_posts: BTreeMap::new(),
            replay: None,
        }
    }

    /// The incarnation that this process runs in.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Totals.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Receives that are not finished, messages without a receive, sends that are not finished.
    pub fn unfinished(&self) -> (usize, usize, usize) {
        (self.receives.len() + self.fifo.len(), self.messages.len(), self.sends.len())
    }

    /// Traffic with each contacted peer, ascending.
    pub fn traffic(&self) -> impl Iterator<Item = (PeerId, SetId, Traffic)> + '_ {
        self.peers.iter().zip(0u32..).filter_map(|(peer, id)| {
            peer.as_ref().map(|peer| (PeerId(id), peer.info.set, peer.traffic))
        })
    }
}
