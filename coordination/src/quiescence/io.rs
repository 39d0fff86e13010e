//! What goes into a [`Quiescence`](super::Quiescence) and what comes out.
//!
//! Source: DESIGN §6. See the machine for the numbered invariants.

use super::CounterPhase;
use core::fmt;
use rustbtl_fragments::checkpoint_frame::CheckpointFrame;
use rustbtl_fragments::ids::PeerId;

/// Whose checkpoint it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CheckpointScope {
    /// Of one set. Channels to other sets go on; resync repairs them.
    Set,
    /// Of all sets at once: a whole job can start from it.
    Global,
}

/// What happens to the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// Coordinator, first step of a global checkpoint: nothing new leaves the set.
    StopOutgoing {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// Coordinator: take this checkpoint.
    Begin {
        /// The checkpoint.
        checkpoint: u64,
        /// Whose.
        scope: CheckpointScope,
    },
    /// `Host::checkpoint_frame` was called.
    Frame {
        /// The sender.
        from: PeerId,
        /// The frame.
        frame: CheckpointFrame,
    },
    /// `Engine::is_rendezvous_quiescent` is true, while `wants_rendezvous_quiescence`.
    RendezvousQuiescent {
        /// What `Engine::take_done_recipients` gave.
        done_recipients: Vec<PeerId>,
    },
    /// A send to the set is not finished, or a payload from it is under way.
    Drained {
        /// A send to the set is not finished, or a payload from it is under way.
        in_flight: bool,
    },
    /// Counters: all of the set have arrived where this process waits, while `awaited_phase`, and
    /// since then its rings were seen to be empty.
    AllArrived {
        /// The checkpoint.
        checkpoint: u64,
        /// Where.
        phase: CounterPhase,
        /// What the word says: one of them has something in flight.
        in_flight: bool,
    },
    /// The snapshot of this process is taken (it may still have to be stored).
    Frozen {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// It cannot be taken. The others are not kept waiting; the checkpoint will not be complete.
    SnapshotFailed {
        /// The checkpoint.
        checkpoint: u64,
        /// [`CheckpointRefusal::Snapshot`] or [`CheckpointRefusal::ReplayPending`].
        refusal: CheckpointRefusal,
    },
    /// Coordinator: all sets have frozen this global checkpoint, go on.
    Resume {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// Coordinator: forget this checkpoint, whatever phase it is in.
    Abort {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// The program is in MPI_Finalize and past its last message.
    Finish,
    /// The process was restored from the snapshot of the checkpoint it was in.
    Restored,
}

/// What the driver has to do, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// `Engine::hold(Side::Outgoing)`.
    HoldOutgoing,
    /// `Engine::release(Side::Outgoing)`.
    ReleaseOutgoing,
    /// Keep the program out of the engine, then `Engine::hold(Side::Internal)`.
    Enter {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// `Engine::send_checkpoint`.
    Send {
        /// To whom.
        to: PeerId,
        /// What.
        frame: CheckpointFrame,
    },
    /// Counters: one more has arrived, after everything that has left (release).
    Arrive {
        /// The checkpoint.
        checkpoint: u64,
        /// Where to.
        phase: CounterPhase,
        /// It has something in flight.
        in_flight: bool,
    },
    /// Take the snapshot, then hand in `Frozen` or `SnapshotFailed`.
    Freeze {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// Send to the coordinator.
    Answer(CheckpointAnswer),
    /// The checkpoint is over here: `Engine::release(Side::Internal)`, let the program in again.
    Resume {
        /// The checkpoint.
        checkpoint: u64,
        /// A snapshot was taken.
        frozen: bool,
    },
}

/// What a process reports to the coordinator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckpointAnswer {
    /// Nothing new leaves the set any more.
    Stopped {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// The snapshot is taken.
    Frozen {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// No snapshot of this process will be in the checkpoint.
    Failed {
        /// The checkpoint.
        checkpoint: u64,
        /// Why.
        refusal: CheckpointRefusal,
    },
}

/// Why a process has no snapshot in a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckpointRefusal {
    /// It is in MPI_Finalize.
    Finishing,
    /// The snapshot could not be taken; the driver knows more.
    Snapshot,
    /// Of a global checkpoint: what it was before its rollback is not replayed, or a channel to a
    /// process that was rolled back is not repaired (docs/adr/0016). It passes by itself.
    ReplayPending,
    /// A global checkpoint began here without `StopOutgoing`.
    NotStopped,
}

impl fmt::Display for CheckpointRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Finishing => "the process is in MPI_Finalize",
            Self::Snapshot => "the snapshot of the process could not be taken",
            Self::ReplayPending => {
                "what was lost when a set went back is not repeated yet, or its channels are not \
                 repaired"
            }
            Self::NotStopped => "a global checkpoint began before sends to other sets were stopped",
        })
    }
}

/// Somebody broke the protocol. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuiescenceError {
    /// A frame from a process that is not of the set.
    NotMember(PeerId),
    /// A frame that can only follow our token, for a checkpoint that we are not in.
    TooEarly(CheckpointFrame),
    /// A round that a barrier of this set does not have.
    Round(u8),
    /// A frame of a checkpoint from a process that is to count.
    OtherMethod(PeerId),
    /// The driver reports what was not asked for.
    Unexpected(&'static str),
}

impl fmt::Display for QuiescenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMember(peer) => {
                write!(f, "frame of a checkpoint from process {peer}, which is not of the set")
            }
            Self::TooEarly(frame) => {
                write!(f, "{:?} of checkpoint {} before its token", frame.what, frame.checkpoint)
            }
            Self::Round(round) => write!(f, "round {round} of a barrier that is shorter"),
            Self::OtherMethod(peer) => {
                write!(f, "process {peer} sends frames of a checkpoint; this set counts in memory")
            }
            Self::Unexpected(what) => write!(f, "{what}, which nobody asked for"),
        }
    }
}
