//! What the engine remembers, as plain data: communicators, channels, peers, sends, receives and
//! messages. Together with the payload log this is everything that a checkpoint must hold.

use super::acknowledge::Acknowledged;
use super::received_vector::ReceivedVector;
use super::verify_sends::ContentSums;
use crate::counters::Traffic;
use crate::host::PeerInfo;
use crate::ids::*;
use crate::matching::Key;
use crate::payload_digest::PayloadDigest;
use crate::send_gate::Recorded;
use crate::streams::Lanes;
use std::collections::VecDeque;

/// No channel yet.
pub const NONE: u32 = u32::MAX;

/// A communicator: created here, or mentioned by a message before that.
#[derive(Clone, Debug, Default)]
pub struct Comm {
    /// Context id with instance.
    pub context: u32,
    /// False: not created here yet, or freed.
    pub attached: bool,
    /// Own rank, as in outgoing frames.
    pub rank: u32,
    /// The driver's name for it.
    pub handle: u64,
    /// User receives posted so far under this context id; they are named by it.
    pub posts: u64,
    /// Channel of each rank of the (remote) group, or [`NONE`]. 4 bytes a rank.
    pub channels: Vec<u32>,
}

/// The streams of one context id between this process and one other. They go on when another
/// communicator gets the id.
#[derive(Clone, Debug)]
pub struct Channel {
    pub peer: PeerId,
    /// MPI's context id, without instance.
    pub context: u32,
    /// Next number to send, per stream.
    pub sent: Lanes,
    /// Next number to accept, per stream.
    pub arrived: Lanes,
    /// Between sets, where repeated sends are verified: what their messages contained.
    pub contents: Option<Box<ContentSums>>,
}

/// State of the link to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkState {
    /// Frames may be sent.
    Open,
    /// Nothing can be sent; outgoing messages only go to the log.
    Down,
    /// Opened again: our received vector is in flight, the peer's is awaited.
    Resync,
}

/// A process with which there was traffic.
#[derive(Clone, Debug)]
pub struct PeerState {
    pub info: PeerInfo,
    pub outgoing: bool,
    pub link: LinkState,
    /// Open, not held, and nothing waits: a frame may be offered to the transport at once.
    pub direct: bool,
    /// Of this process' set, and not this process.
    pub same_set: bool,
    /// Listed in `Engine::backlog`.
    pub in_backlog: bool,
    /// Frames that stay in order.
    pub queue: VecDeque<QueuedFrame>,
    /// A checkpoint is being taken: new messages to it (to another set: every frame but payloads)
    /// wait in `held_queue`.
    pub held: bool,
    /// Frames that are sent after the checkpoint, behind those of `queue`.
    pub held_queue: VecDeque<QueuedFrame>,
    /// A receive ended with a `Done` to it while it was held: that frame may still be in flight.
    pub done_sent: bool,
    /// Rendezvous payloads that are being pushed; frames of `queue` overtake them between two
    /// chunks.
    pub pushes: VecDeque<DataPush>,
    /// Bytes already taken of the first frame of `queue` or of the first push's next frame.
    pub taken: usize,
    /// `taken` belongs to a frame of a push.
    pub taken_of_push: bool,
    pub traffic: Traffic,
    /// What the peer has received beyond our own counters (after our own restart).
    pub ahead: Option<Box<ReceivedVector>>,
    /// The peer's received vector, while it arrives.
    pub resync: Box<ReceivedVector>,
    pub(super) acknowledged: Box<Acknowledged>,
    /// It accepts piggybacked determinants on this channel.
    pub accepts_piggyback: bool,
    /// Determinants before this one are stable, or were piggybacked to it on this channel.
    pub piggybacked: Recorded,
    /// Determinants before this one it has, or their names: they were piggybacked as well, or by it
    /// to here, or were named (C4).
    pub covered: Recorded,
}

/// A frame that waits for room.
#[derive(Clone, Debug)]
pub struct QueuedFrame {
    pub header: [u8; crate::wire::ANNOUNCE_BYTES],
    pub header_bytes: u8,
    pub body: Body,
    /// To another set: the determinants that the set had recorded when the frame was made
    /// (send_gate.rs).
    pub depends_on: Recorded,
}

/// Where the payload of a waiting frame lies.
#[derive(Clone, Debug)]
pub enum Body {
    Empty,
    /// The first bytes of a log record's payload.
    Log(LogRecord, u64),
    /// The first bytes of the buffer of a send; the send completes when the frame is accepted
    /// if `finish`.
    Send {
        id: SendId,
        bytes: u64,
        finish: bool,
    },
    Owned(Vec<u8>),
}

/// A granted rendezvous payload that is being pushed in chunks.
#[derive(Clone, Copy, Debug)]
pub struct DataPush {
    pub send: SendId,
    pub receive: u64,
    pub offset: u64,
}

/// Where the payload of a send lies.
#[derive(Clone, Debug)]
pub enum PayloadSource<B> {
    Program(B),
    Log(LogRecord),
}

/// A send that is not finished.
#[derive(Clone, Debug)]
pub struct PendingSend<B, T> {
    pub peer: PeerId,
    pub context: u32,
    /// Own rank in the communicator.
    pub rank: u32,
    pub tag: i32,
    pub sequence: u64,
    pub bytes: u64,
    pub digest: PayloadDigest,
    /// Bytes that travelled inside the announcement.
    pub inline: u64,
    pub source: PayloadSource<B>,
    /// None: complete for the program already.
    pub token: Option<T>,
    /// Not complete before it is matched.
    pub synchronous: bool,
    pub exposed: bool,
    pub granted: bool,
}

/// How far a receive is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Posted, not matched.
    Posted,
    /// Posted, not matched, and held out of matching by replay.
    HeldForReplay,
    /// The sender was asked to push: this many bytes are still to come.
    Pushed { left: u64 },
    /// The host pulls.
    Pulled,
    /// Matched, but the channel was lost: the sender announces it again.
    Stale,
}

impl Progress {
    /// Is it matched?
    pub fn is_matched(&self) -> bool {
        !matches!(self, Self::Posted | Self::HeldForReplay)
    }

    /// Is the payload in flight?
    pub fn is_in_flight(self) -> bool {
        matches!(self, Self::Pushed { .. } | Self::Pulled)
    }
}

/// A receive that is not finished.
#[derive(Clone, Debug)]
pub struct PendingReceive<R, T> {
    pub buffer: R,
    pub token: T,
    /// What it takes; once matched: the envelope of the message.
    pub key: Key,
    pub progress: Progress,
    pub peer: PeerId,
    /// Number of the message; until it is matched: of the receive (`ReceiveName`).
    pub sequence: u64,
    pub send: SendId,
    pub total: u64,
    /// Once matched: the digest that it was announced with.
    pub digest: PayloadDigest,
}

/// A message without a receive.
#[derive(Clone, Debug)]
pub struct UnexpectedMessage {
    pub key: Key,
    pub peer: PeerId,
    pub sequence: u64,
    pub total: u64,
    /// The whole payload, or what came with the announcement.
    pub bytes: Vec<u8>,
    pub announced: Option<Announced>,
}

/// The sender's half of a message that is not complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announced {
    pub send: SendId,
    pub flags: u8,
    pub digest: PayloadDigest,
    /// The channel was lost since; the sender announces it again.
    pub stale: bool,
}
