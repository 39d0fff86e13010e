//! The host interface: what the engine needs from outside. The component implements it over real
//! transports and memory, the simulator over simulated ones; the engine is compiled once for each,
//! without indirect calls (docs/adr/0001).

use crate::checkpoint_frame::CheckpointFrame;
use crate::engine::{PayloadMismatch, ReceivedVector};
use crate::ids::*;
use crate::payload_digest::PayloadDigest;
use crate::send_gate::{Marks, Recorded};
use crate::wire::{Header, StreamKey};
use core::ops::Range;

/// Tags of messages whose receiver is the driver, not a receive: one-sided communication. They are
/// handed to [`Host::direct_message`] in the order of their stream, as far as their payload came
/// with them, and received into [`Host::direct_buffer`] otherwise. Below all tags of Open MPI's
/// collectives.
pub const DIRECT_TAGS: core::ops::RangeInclusive<i32> = i32::MIN + 0x100..=i32::MIN + 0x101;

/// What the engine must know of a process before it communicates with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerInfo {
    /// The correlated set it belongs to.
    pub set: SetId,
    /// The incarnation it runs in.
    pub incarnation: Incarnation,
    /// Largest payload, in bytes, that travels inside an eager fragment to it.
    pub eager_bytes_max: u32,
    /// Largest payload, in bytes, of one rendezvous data frame to it.
    pub chunk_bytes_max: u32,
}

/// Payload of a frame, by reference to where it lies.
pub enum Payload<'a, B> {
    /// No payload.
    Empty,
    /// These bytes.
    Bytes(&'a [u8]),
    /// Bytes `range` of the packed form of the program's buffer.
    Program(&'a mut B, Range<u64>),
    /// Bytes `range` of the payload of a record in the log.
    Log(LogRecord, Range<u64>),
}

/// What a transport did with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transmit {
    /// All of it is accepted; header and payload may be reused.
    Accepted,
    /// No room. So far the first `n` bytes of the frame (header + payload) were taken, now or by
    /// earlier calls: 0 means that the frame may still be dropped, anything else that the very
    /// same frame must be offered again, with `taken = n`, before any other frame to that peer.
    Full(usize),
    /// There is no channel to the peer now; the driver reports it by `peer_down`.
    Down,
}

/// Outcome of [`Host::pull`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pull {
    /// The bytes are in the receive buffer.
    Done,
    /// Not possible for this message (not exposed, not permitted, buffer not suited): the engine
    /// asks the sender to push.
    Refused,
    /// In flight; the driver calls `Engine::pull_finished` later.
    Started,
}

/// Outcome of [`Host::piggyback`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PiggybackContent {
    /// All of it was appended.
    Appended,
    /// There is nothing of the sender's own in it: what it holds of third sets since the place that
    /// the receiver needs not look behind was named.
    Names,
    /// There is nothing in it but what the receiver's set has piggybacked to here: it has that.
    OfReceiver,
    /// Not all of it can be had, or nothing is left.
    Unavailable,
}

/// Outcome of [`Host::on_piggyback`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PiggybackOutcome {
    /// They are stored until they are stable.
    Accepted,
    /// They belong to an incarnation of the peer that has ended, whose recovery is decided. Pulls
    /// from it have ended.
    Refused,
    /// They cannot be read.
    Damaged,
}

/// How a receive ended. `bytes` is the length of the message, which may exceed the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// Sender's rank in the communicator.
    pub source: CommRank,
    /// The message's tag.
    pub tag: i32,
    /// Length of the message in bytes.
    pub bytes: u64,
    /// The message was longer than the buffer (MPI_ERR_TRUNCATE).
    pub truncated: bool,
    /// The receive was cancelled; nothing else in here means anything.
    pub cancelled: bool,
}

/// One message in the payload log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogEntry {
    /// The receiver.
    pub to: PeerId,
    /// That process's correlated set (the unit of trimming).
    pub set: SetId,
    /// Stream of the message.
    pub stream: StreamKey,
    /// Its number in the stream.
    pub sequence: MessageSeq,
    /// Sender's rank in the communicator, as in the eager fragment.
    pub source: CommRank,
    /// The message's tag.
    pub tag: i32,
    /// Payload bytes.
    pub bytes: u64,
    /// Digest of the payload, once [`Host::log_digest`] was asked for it.
    pub digest: PayloadDigest,
}

/// Why the log did not take a message: budget exhausted and no room to spill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogFull {
    /// Bytes that were wanted.
    pub bytes: u64,
}

/// What the engine needs from outside.
pub trait Host {
    /// The program's memory to send from.
    type SendBuffer;
    /// The program's memory to receive into.
    type ReceiveBuffer;
    /// What the driver gets back when an operation completes (for MPI: the request).
    type Token: Copy;

    /// Which process is `rank` of the communicator that was added with this handle?
    fn resolve(&mut self, handle: u64, rank: CommRank) -> PeerId;
    /// What the engine must know of that process.
    fn peer_info(&mut self, peer: PeerId) -> PeerInfo;

    /// Offer a frame to the transport of `to`; frames to one peer keep their order. `taken`: how
    /// many bytes of this very frame were taken by earlier offers (see [`Transmit::Full`]).
    fn transmit(
        &mut self,
        to: PeerId,
        header: &[u8],
        payload: Payload<'_, Self::SendBuffer>,
        taken: usize,
    ) -> Transmit;

    /// Offer a whole short message inside the set, if that is quick. False: it is not, or there is
    /// no room; nothing of the frame was taken, and it is offered by [`Self::transmit`].
    #[inline(always)]
    fn transmit_eager(
        &mut self,
        to: PeerId,
        header: &Header,
        buffer: &mut Self::SendBuffer,
        bytes: u64,
    ) -> bool {
        let _ = (to, header, buffer, bytes);
        false
    }

    /// Copy the program's buffer (`entry.bytes` packed bytes) into the payload log.
    fn log_append(
        &mut self,
        entry: &LogEntry,
        buffer: &mut Self::SendBuffer,
    ) -> Result<LogRecord, LogFull>;
    /// The oldest record to `to` that is younger than `after`, in the order of appending.
    fn log_next(&self, to: PeerId, after: Option<LogRecord>) -> Option<(LogRecord, LogEntry)>;

    /// No rollback of `to` asks for these messages: drop them from the log.
    fn log_acknowledged(&mut self, _to: PeerId, _received: &ReceivedVector) {}

    /// The digest of a record's payload, which [`Self::log_next`] gives from then on. Asked for
    /// once for each message that leaves the set, after [`Self::log_append`], where repeated sends
    /// are verified (`Engine::verify_sends`).
    fn log_digest(&mut self, _record: LogRecord, _sequence: MessageSeq) -> PayloadDigest {
        PayloadDigest::NONE
    }
    /// Replay divergence: this process has been rolled back, and does not send again to `to` what
    /// it had sent. The driver sees to it that nothing comes of that.
    fn payload_mismatch(&mut self, _to: PeerId, _what: PayloadMismatch) {}

    /// Bytes the receive buffer takes.
    fn capacity(&self, buffer: &Self::ReceiveBuffer) -> u64;
    /// Append bytes `range` of the packed form of `buffer` to `out` (messages to oneself).
    fn pack(&mut self, buffer: &mut Self::SendBuffer, range: Range<u64>, out: &mut Vec<u8>);
    /// Put `bytes` at `offset` of the packed form of `buffer`; `offset + bytes.len()` is within
    /// its capacity.
    fn unpack(&mut self, buffer: &mut Self::ReceiveBuffer, offset: u64, bytes: &[u8]);
    /// Copy the first `bytes` packed bytes of `from` into `into` (messages to oneself).
    fn copy(&mut self, from: &mut Self::SendBuffer, into: &mut Self::ReceiveBuffer, bytes: u64);

    /// Offer the memory of a send for [`Host::pull`] by `to`; false where that cannot be.
    fn expose(&mut self, to: PeerId, id: SendId, buffer: Payload<'_, Self::SendBuffer>) -> bool;
    /// The send is over: its memory is no longer on offer.
    fn withdraw(&mut self, to: PeerId, id: SendId);
    /// Fetch the first `bytes` bytes of a peer's exposed send into `into`.
    fn pull(
        &mut self,
        from: PeerId,
        id: SendId,
        receive: ReceiveId,
        into: &mut Self::ReceiveBuffer,
        bytes: u64,
    ) -> Pull;

    /// A send or receive that was pending is complete. Called with the engine borrowed: the driver
    /// queues it and completes the MPI request after the engine has returned.
    fn complete(&mut self, token: Self::Token, status: Status);

    /// A whole message with one of the [`DIRECT_TAGS`]. Called with the engine borrowed: the driver
    /// queues it, behind those of the same stream whose payload is still coming.
    fn direct_message(&mut self, context: ContextId, source: CommRank, tag: i32, payload: &[u8]) {
        let _ = (context, source, tag, payload);
    }

    /// Such a message was announced: where its payload of `bytes` goes. The token is completed when
    /// it is there. `None`: drivers that send none.
    fn direct_buffer(
        &mut self,
        context: ContextId,
        source: CommRank,
        tag: i32,
        bytes: u64,
    ) -> Option<(Self::ReceiveBuffer, Self::Token)> {
        let _ = (context, source, tag, bytes);
        None
    }

    /// A receive that was posted without an id has one now. For drivers that cancel receives.
    fn receive_id_assigned(&mut self, _token: Self::Token, _receive: ReceiveId) {}

    /// A receive from MPI_ANY_SOURCE has taken a message (a determinant; not called for replayed
    /// matches). Nothing that depends on it is offered to a transport before this returns, so the
    /// driver must have counted it in [`Host::marks`] by then.
    fn matched(&mut self, _receive: ReceiveName, _message: MessageName) {}

    /// What the set has recorded and what of it is stable. Asked once for each frame that leaves
    /// the set: two loads. Drivers without determinants leave it as it is.
    #[inline]
    fn marks(&self) -> Marks {
        Marks::NONE
    }

    /// A frame waits at the send gate: it depends on determinants that are neither stable nor
    /// piggybacked.
    fn frame_gated(&mut self) {}

    /// Determinants that a frame for `to` depends on, and that are not stable: those from place
    /// `from` on and before `depends_on`. Append them to `out` if all of them may be piggybacked;
    /// else the frame waits. Between `from` and `covered` there is nothing but what the receiver's
    /// set has piggybacked to here, or was named to it; if the former is so up to `depends_on`,
    /// nothing need be appended. Called only for a frame that would have to wait. `to` runs in this
    /// incarnation: what an earlier one of it had piggybacked to here it need not have.
    fn piggyback(
        &mut self,
        to: (PeerId, Incarnation),
        (from, covered): (Recorded, Recorded),
        depends_on: Recorded,
        out: &mut Vec<u8>,
    ) -> PiggybackContent {
        let _ = (to, from, covered, depends_on, out);
        PiggybackContent::Unavailable
    }

    /// What `piggyback` of a peer gave: from now on everything here depends on it, as if it had
    /// been recorded here. Not called before [`crate::engine::Engine::accept_piggyback`].
    fn on_piggyback(&mut self, from: PeerId, bytes: &[u8]) -> PiggybackOutcome {
        let _ = (from, bytes);
        PiggybackOutcome::Refused
    }

    /// A checkpoint frame came from a process of the own set, in order behind everything that it
    /// sent before. The driver queues it and hands it to the quiescence machine (coordination's
    /// `Quiescence`) after the engine has returned.
    fn checkpoint_frame(&mut self, from: PeerId, frame: CheckpointFrame);
}
