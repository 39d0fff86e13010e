//! What goes into a [`Quiescence`](super::Quiescence) and what comes out.
//!
//! Source: DESIGN §6. See the machine for the numbered invariants.

use super::Station;
use core::fmt;
use rustbtl_fragments::checkpoint_frame::CheckpointFrame;
use rustbtl_fragments::ids::PeerId;

/// Whose line it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scope {
    /// Of one set. Channels to other sets go on; resync repairs them.
    Set,
    /// Of all sets at once: a whole job can start from it.
    Global,
}

/// What happens to the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// Coordinator, first step of a global line: nothing new leaves the set.
    StopOutgoing {
        /// The line.
        line: u64,
    },
    /// Coordinator: take this line.
    Begin {
        /// The line.
        line: u64,
        /// Whose.
        scope: Scope,
    },
    /// `Host::checkpoint_frame` was called.
    Frame {
        /// The sender.
        from: PeerId,
        /// The frame.
        frame: CheckpointFrame,
    },
    /// `Engine::is_rendezvous_quiescent` is true, while `wants_rendezvous_silence`.
    RendezvousQuiescent {
        /// What `Engine::take_done_recipients` gave.
        told: Vec<PeerId>,
    },
    /// Counts: every frame to the set that is not held has left, while `wants_left`.
    Left {
        /// A send to the set is not finished, or a payload from it is under way.
        open: bool,
    },
    /// Counts: all of the set have come to where this process waits, while `awaits`, and since
    /// then its rings were seen to be empty.
    Met {
        /// The line.
        line: u64,
        /// Where.
        station: Station,
        /// What the word says: one of them has something open.
        open: bool,
    },
    /// The picture of this process is taken (it may still have to be stored).
    Frozen {
        /// The line.
        line: u64,
    },
    /// It cannot be taken. The others are not kept waiting; the line will not be complete.
    NotFrozen {
        /// The line.
        line: u64,
        /// [`Refusal::SnapshotMemory`] or [`Refusal::Behind`].
        why: Refusal,
    },
    /// Coordinator: all sets have frozen this global line, go on.
    Resume {
        /// The line.
        line: u64,
    },
    /// Coordinator: forget this line, whatever phase it is in.
    Abort {
        /// The line.
        line: u64,
    },
    /// The program is in MPI_Finalize and past its last message.
    Finish,
    /// The process was restored from the picture of the line it was in.
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
        /// The line.
        line: u64,
    },
    /// `Engine::send_checkpoint_frame`.
    Send {
        /// To whom.
        to: PeerId,
        /// What.
        frame: CheckpointFrame,
    },
    /// Counts: one more has come, behind everything that has left (release).
    Come {
        /// The line.
        line: u64,
        /// Where to.
        station: Station,
        /// It has something open.
        open: bool,
    },
    /// Take the picture, then hand in `Frozen` or `NotFrozen`.
    Freeze {
        /// The line.
        line: u64,
    },
    /// Tell the coordinator.
    Answer(Answer),
    /// The line is over here: `Engine::release(Side::Internal)`, let the program in again.
    Resume {
        /// The line.
        line: u64,
        /// A picture was taken.
        frozen: bool,
    },
}

/// What a process tells the coordinator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Nothing new leaves the set any more.
    Stopped {
        /// The line.
        line: u64,
    },
    /// The picture is taken.
    Frozen {
        /// The line.
        line: u64,
    },
    /// No picture of this process will be in the line.
    Failed {
        /// The line.
        line: u64,
        /// Why.
        why: Refusal,
    },
}

/// Why a process has no picture in a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It is in MPI_Finalize.
    Finishing,
    /// The picture could not be taken; the driver knows more.
    SnapshotMemory,
    /// Of a global line: what it was before it went back is not repeated, or a channel to a process
    /// that went back is not repaired (docs/adr/0016). It passes by itself.
    Behind,
    /// A global line began here without `StopOutgoing`.
    NotStopped,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Finishing => "the process is in MPI_Finalize",
            Self::SnapshotMemory => "the picture of the process could not be taken",
            Self::Behind => {
                "what was lost when a set went back is not repeated yet, or its channels are not \
                 repaired"
            }
            Self::NotStopped => "a global line began before sends to other sets were stopped",
        })
    }
}

/// Somebody broke the protocol. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuiescenceError {
    /// A frame from a process that is not of the set.
    Stranger(PeerId),
    /// A frame that can only follow our token, for a line that we are not in.
    TooEarly(CheckpointFrame),
    /// A round that a barrier of this set does not have.
    Round(u8),
    /// A frame of a line from a process that is to count.
    OtherWay(PeerId),
    /// The driver reports what was not asked for.
    NotAsked(&'static str),
}

impl fmt::Display for QuiescenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stranger(peer) => {
                write!(f, "frame of a line from process {peer}, which is not of the set")
            }
            Self::TooEarly(frame) => {
                write!(f, "{:?} of line {} before its token", frame.what, frame.checkpoint)
            }
            Self::Round(round) => write!(f, "round {round} of a barrier that is shorter"),
            Self::OtherWay(peer) => {
                write!(f, "process {peer} sends frames of a line; this set counts in memory")
            }
            Self::NotAsked(what) => write!(f, "{what}, which nobody asked for"),
        }
    }
}
