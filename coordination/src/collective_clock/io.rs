//! What goes into the machines of the collective clock and what comes out.
//!
//! Source: Xu and Cooperman 2024, section 4; docs/adr/0038. See the machines for the invariants.

use crate::control::{FromClock, Hindrance, ToClock};
use crate::quiescence::CheckpointRefusal;
use core::fmt;
use rustbtl_fragments::ids::PeerId;

/// A communicator at one process: an index, for the driver to keep in the communicator's module.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CommHandle(pub u32);

/// Who calls a collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// The program, outside of any other call: it may be stopped here.
    Program,
    /// The library: inside another collective, or from progress (stages of MPI_Comm_idup). Others
    /// may be in it already, and whatever the process does depends on it: it is never stopped.
    Nested,
}

/// What becomes of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Entry {
    /// It is counted. Call the function below, then [`leave`](super::CollectiveClock::leave).
    Go,
    /// Not yet: keep the program here, and MPI's progress going, until [`Output::Go`] with this
    /// number or a higher one. The call is counted then; do not enter again.
    Stop(u32),
}

/// What happens at a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// From the coordinator, in the order in which it was sent.
    Order(ToClock),
    /// The program is blocked in point-to-point communication until one of these processes does
    /// something (MPI_ANY_SOURCE: all of them that may). Empty: it is not.
    Blocked {
        /// Who.
        waits_for: Vec<PeerId>,
    },
    /// The checkpoint is over: `Resume` of it, or `Abort`.
    Release {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// The program is in MPI_Finalize and starts no collective any more.
    Finish,
    /// The process was restored from a snapshot.
    Restored,
}

/// What the driver of a process has to do, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// To the coordinator.
    Send(FromClock),
    /// Calls that were stopped with this number or a lower one go on; they are counted.
    Go {
        /// The number.
        stop: u32,
    },
    /// To the coordinator: no snapshot of this process will be in the checkpoint.
    Refuse {
        /// The checkpoint.
        checkpoint: u64,
        /// Why.
        refusal: CheckpointRefusal,
    },
}

/// What happens at the coordinator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DrainInput {
    /// Phase 0 of a global checkpoint: a communicator's functions bypass rustbtl.
    Begin {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// A rank's clock says something.
    Message {
        /// The rank.
        rank: PeerId,
        /// What.
        message: FromClock,
    },
    /// A rank takes part in no checkpoint.
    Refused {
        /// The rank.
        rank: PeerId,
        /// The checkpoint.
        checkpoint: u64,
        /// Why.
        refusal: CheckpointRefusal,
    },
    /// A rank has failed.
    RankFailed {
        /// The rank.
        rank: PeerId,
    },
    /// The checkpoint is over: all ranks have their snapshots, or it is aborted.
    End {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// A deadline has come.
    Tick,
}

/// What the driver of the coordinator has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DrainOutput {
    /// To a rank's clock.
    Send {
        /// The rank.
        rank: PeerId,
        /// What.
        message: ToClock,
    },
    /// Nothing of any collective is under way: the next phase of the checkpoint.
    Drained {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// Abort the checkpoint, whatever phase it is in.
    GiveUp {
        /// The checkpoint.
        checkpoint: u64,
        /// For the user.
        reason: DrainFailure,
    },
}

/// Why a drain was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DrainFailure {
    /// This rank was not drained in time.
    Timeout(PeerId, Hindrance),
    /// This rank did not answer in time.
    NoAnswer(PeerId),
    /// This rank takes part in no checkpoint.
    Refused(PeerId, CheckpointRefusal),
    /// This rank has failed.
    RankFailed(PeerId),
    /// A collective began at this rank after all were drained: a stage of MPI_Comm_idup.
    BeganWhileHeld(PeerId),
    /// This rank has entered collectives with this process, which is of another job.
    OtherJob(PeerId, u64),
}

impl DrainFailure {
    /// Can it be otherwise the next time? Not where somebody has been waited for in vain.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::RankFailed(_) | Self::BeganWhileHeld(_))
    }
}

impl fmt::Display for DrainFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout(rank, Hindrance::BelowTarget) => write!(
                f,
                "rank {rank} did not come in time to a collective that other ranks are in"
            ),
            Self::Timeout(rank, Hindrance::Incomplete) => {
                write!(f, "a collective of rank {rank} was not complete in time")
            }
            Self::Timeout(rank, Hindrance::None) => write!(
                f,
                "rank {rank} did not make in time a communicator that other ranks use already"
            ),
            Self::NoAnswer(rank) => write!(f, "rank {rank} did not answer in time"),
            Self::Refused(rank, refusal) => write!(f, "rank {rank}: {refusal}"),
            Self::RankFailed(rank) => write!(f, "rank {rank} has failed"),
            Self::BeganWhileHeld(rank) => {
                write!(f, "a collective began inside MPI at rank {rank} after all had ended")
            }
            Self::OtherJob(rank, process) => write!(
                f,
                "rank {rank} has called collectives with process {process}, which is of another \
                 job and takes part in no checkpoint"
            ),
        }
    }
}

/// Somebody broke the protocol. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClockError {
    /// A communicator that the process is not a member of.
    NotMember(PeerId),
    /// There is no such rank.
    Rank(PeerId),
    /// The process has not named a clock with this number, or twice.
    Clock(u32),
    /// This is no list of members.
    Members,
    /// A message of a drain from a rank that has not answered to its beginning.
    TooEarly(PeerId),
    /// A rank has received more than it was sent, or less than it had.
    Orders(PeerId),
}

impl fmt::Display for ClockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMember(peer) => {
                write!(f, "process {peer} is no member of the communicator it is to count for")
            }
            Self::Rank(rank) => write!(f, "there is no rank {rank} in this job"),
            Self::Clock(clock) => write!(f, "collective clock {clock} is not known, or is twice"),
            Self::Members => f.write_str("a communicator whose list of members makes no sense"),
            Self::TooEarly(rank) => {
                write!(f, "rank {rank} has not said which communicators it has")
            }
            Self::Orders(rank) => {
                write!(f, "rank {rank} acknowledges messages that it was not sent")
            }
        }
    }
}

impl core::error::Error for ClockError {}
