//! What goes into the coordinator's [`CheckpointScheduler`](super::CheckpointScheduler) and what
//! comes out.
//!
//! Source: DESIGN §6; docs/adr/0002. See the machine for the numbered invariants.

use crate::collective_clock::DrainFailure;
use crate::interval::Interval;
use crate::quiescence::{CheckpointAnswer, CheckpointRefusal, CheckpointScope};
use core::fmt;
use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::BTreeMap;

/// What the user chose.
#[derive(Clone, Debug)]
pub struct Config {
    /// Between checkpoints of each set.
    pub set_interval: Interval,
    /// Between global checkpoints.
    pub global_interval: Interval,
    /// Set checkpoints under way at a time, at least 1: storage is shared.
    pub sets_at_once: usize,
    /// Checkpoints to keep, of each set and of the job; at least 1.
    pub checkpoints_kept: usize,
    /// From the order until all have their snapshot.
    pub quiescence_timeout_ms: u64,
    /// From there until all is stored and committed.
    pub store_timeout_ms: u64,
    /// A checkpoint that somebody asked for and that has failed is tried once more after this time,
    /// if the reason may pass. 0: it is not.
    pub retry_ms: u64,
}

/// State that whoever takes over in the middle of a job has to know.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SchedulerState {
    /// Number of the next checkpoint.
    pub next_checkpoint: u64,
    /// Complete global checkpoints, ascending.
    pub globals: Vec<u64>,
    /// The complete checkpoints of each set, ascending.
    pub kept: BTreeMap<SetId, Vec<u64>>,
    /// From which checkpoint on a set can be rolled back alone, where that is not the first.
    pub alone_from: BTreeMap<SetId, u64>,
}

/// What happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A deadline has come, or nothing has.
    Tick,
    /// A checkpoint of this set, soon: a sender's log is nearly full, or a user asks.
    RequestSetCheckpoint {
        /// The set.
        set: SetId,
    },
    /// A global checkpoint, soon.
    RequestGlobalCheckpoint {
        /// End the job when it is complete; the ranks do not go on meanwhile.
        exit: bool,
    },
    /// Logging towards this set costs more than it may: suspend it, if that is possible (L9).
    RequestSuspension {
        /// The set.
        set: SetId,
    },
    /// What a rank's `Quiescence` says.
    Answered {
        /// The rank.
        rank: PeerId,
        /// Its answer.
        answer: CheckpointAnswer,
    },
    /// A rank's snapshot is stored at the configured level.
    Stored {
        /// The rank.
        rank: PeerId,
        /// The checkpoint.
        checkpoint: u64,
    },
    /// While an image was stored, for `of_ms` milliseconds, its program lost `lost_ms` of them.
    StoringCost {
        /// The checkpoint.
        checkpoint: u64,
        /// Milliseconds.
        lost_ms: u64,
        /// Milliseconds.
        of_ms: u64,
    },
    /// From its snapshot to the end of a checkpoint, which is complete, a rank's program lost so
    /// much.
    LostBeside {
        /// The rank.
        rank: PeerId,
        /// The checkpoint.
        checkpoint: u64,
        /// Milliseconds.
        lost_ms: u64,
    },
    /// It cannot be stored.
    NotStored {
        /// The rank.
        rank: PeerId,
        /// The checkpoint.
        checkpoint: u64,
    },
    /// The manifest is written.
    Committed {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// It cannot be written.
    NotCommitted {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// Phase 0 of a global checkpoint (docs/adr/0038), which its driver puts before
    /// `StopOutgoing`, was given up.
    NotDrained {
        /// The checkpoint.
        checkpoint: u64,
        /// Why.
        why: DrainFailure,
    },
    /// A rank has failed; its set has to be rolled back.
    RankFailed {
        /// The rank.
        rank: PeerId,
    },
    /// A set runs again, alone: it replays what it did since its checkpoint.
    SetRestarted {
        /// The set.
        set: SetId,
        /// The checkpoint it was restored from.
        checkpoint: u64,
    },
    /// All sets are rolled back together to this global checkpoint: what they did after it is void.
    /// `SetRestarted` follows for each of them.
    GlobalRollback {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// It has replayed all that other sets have seen of it, and all its channels are repaired
    /// (until then peers may know of matches in its earlier incarnation).
    ReplayComplete {
        /// The set.
        set: SetId,
    },
    /// A rank that has refused a global checkpoint ([`CheckpointRefusal::ReplayPending`]) would not
    /// refuse it any more.
    RankReplayComplete {
        /// The rank.
        rank: PeerId,
    },
    /// A rank is in MPI_Finalize.
    Finishing {
        /// The rank.
        rank: PeerId,
    },
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// To every rank.
    StopOutgoing {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// To every rank of these sets.
    Begin {
        /// The checkpoint.
        checkpoint: u64,
        /// Of one set, or of all.
        scope: CheckpointScope,
        /// The sets.
        sets: Vec<SetId>,
    },
    /// To every rank.
    Resume {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// To every rank of the set: acknowledge what you receive from other sets, so that their logs
    /// drop it, until you take part in a checkpoint of this number or above.
    SuspendLogging {
        /// The set.
        set: SetId,
        /// No checkpoint before this one is under way.
        before: u64,
    },
    /// The set can be rolled back alone again.
    LoggingResumed {
        /// The set.
        set: SetId,
        /// To this checkpoint.
        checkpoint: u64,
    },
    /// To every rank of these sets. What is stored of the checkpoint is dropped (`Delete` follows).
    Abort {
        /// The checkpoint.
        checkpoint: u64,
        /// The sets.
        sets: Vec<SetId>,
        /// For the user.
        reason: AbortReason,
        /// Who asked for it goes on waiting: it is tried again.
        retried: bool,
        /// The next checkpoint of these sets comes by itself after so many milliseconds.
        next_ms: Option<u64>,
    },
    /// Write the manifest, then hand in `Committed`.
    Commit {
        /// The checkpoint.
        checkpoint: u64,
        /// Of one set, or of all.
        scope: CheckpointScope,
        /// The sets.
        sets: Vec<SetId>,
    },
    /// The checkpoint is complete: a restart may use it.
    Complete {
        /// The checkpoint.
        checkpoint: u64,
        /// How long the ranks were stopped, at most.
        pause_ms: u64,
    },
    /// To every rank of the set: send your peers in other sets the received vector of this
    /// checkpoint; they may trim these messages from their logs.
    Trim {
        /// The set.
        set: SetId,
        /// The oldest checkpoint that it can be rolled back to.
        checkpoint: u64,
    },
    /// Delete the files of a checkpoint, its manifest first.
    Delete {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// The checkpoint that the user asked for is complete: end the job.
    Exit {
        /// The checkpoint.
        checkpoint: u64,
    },
}

/// Why a checkpoint was aborted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AbortReason {
    /// A rank has no snapshot.
    Failed(PeerId, CheckpointRefusal),
    /// A rank's snapshot could not be stored.
    NotStored(PeerId),
    /// A rank has failed.
    RankFailed(PeerId),
    /// All ranks are rolled back to an earlier checkpoint.
    GlobalRollback,
    /// Collectives that bypass rustbtl did not come to their end.
    NotDrained(DrainFailure),
    /// This rank did not answer in time.
    Timeout(PeerId),
    /// The manifest could not be written, or not in time.
    Manifest,
}

impl AbortReason {
    /// Can it be otherwise the next time? Not where somebody has been waited for in vain: to wait
    /// for him again would keep the program from its work.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::NotDrained(why) => why.is_retryable(),
            Self::Timeout(_) | Self::Failed(_, CheckpointRefusal::Finishing) => false,
            _ => true,
        }
    }

    /// Does it pass by itself, and is it reported when it has?
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Failed(_, CheckpointRefusal::ReplayPending))
    }
}

impl fmt::Display for AbortReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(rank, why) => write!(f, "rank {rank}: {why}"),
            Self::NotStored(rank) => write!(f, "the image of rank {rank} could not be stored"),
            Self::RankFailed(rank) => write!(f, "rank {rank} has died"),
            Self::GlobalRollback => write!(f, "all ranks go back to an earlier checkpoint"),
            Self::NotDrained(why) => write!(f, "collectives that bypass rustbtl: {why}"),
            Self::Timeout(rank) => write!(f, "rank {rank} did not answer in time"),
            Self::Manifest => write!(f, "the manifest could not be written"),
        }
    }
}

/// Why logging towards a set is not suspended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SuspensionRefusal {
    /// There is no global checkpoint that all ranks could be rolled back to instead.
    NoGlobalCheckpoint,
    /// Snapshots for a checkpoint of the set are being taken.
    SnapshotsUnderWay,
    /// The set is being rolled back, or is in MPI_Finalize.
    NotRunning,
}

impl fmt::Display for SuspensionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoGlobalCheckpoint => "there is no global checkpoint to roll back to",
            Self::SnapshotsUnderWay => "snapshots of it are being taken",
            Self::NotRunning => "it is being rolled back, or is in MPI_Finalize",
        })
    }
}

/// An input that makes no sense, or cannot be followed now. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SchedulerError {
    /// No such rank.
    Rank(PeerId),
    /// No such set.
    Set(SetId),
    /// Ranks of the job are in MPI_Finalize: it is too late for a checkpoint.
    Finishing,
    /// There is no such checkpoint of all ranks.
    NotGlobal(u64),
    /// Logging towards this set cannot be suspended now.
    NotSuspendable(SetId, SuspensionRefusal),
    /// An answer to nothing that was asked.
    NotAsked(PeerId, u64),
}

impl fmt::Display for SchedulerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(rank) => write!(f, "there is no rank {rank} in this job"),
            Self::Set(set) => write!(f, "there is no set {set} in this job"),
            Self::Finishing => write!(f, "the job is in MPI_Finalize: no more checkpoints"),
            Self::NotGlobal(checkpoint) => {
                write!(f, "there is no checkpoint {checkpoint} of all ranks")
            }
            Self::NotSuspendable(set, why) => {
                write!(f, "logging towards set {set} is not suspended: {why}")
            }
            Self::NotAsked(rank, checkpoint) => {
                write!(f, "rank {rank} answers for checkpoint {checkpoint} what was not asked")
            }
        }
    }
}
