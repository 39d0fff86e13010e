//! What goes into the coordinator's [`Lines`](super::Lines) and what comes out.
//!
//! Source: DESIGN §6; docs/adr/0002. See the machine for the numbered invariants.

use crate::interval::Interval;
use crate::silence::{Answer, Refusal, Scope};
use core::fmt;
use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::BTreeMap;

/// What the user chose.
#[derive(Clone, Debug)]
pub struct Config {
    /// Between lines of each set.
    pub set_interval: Interval,
    /// Between global lines.
    pub global_interval: Interval,
    /// Set lines under way at a time, at least 1: storage is shared.
    pub sets_at_once: usize,
    /// Lines to keep, of each set and of the job; at least 1.
    pub kept_lines: usize,
    /// From the order until all have their picture.
    pub silence_timeout_ms: u64,
    /// From there until all is stored and committed.
    pub store_timeout_ms: u64,
    /// A line that somebody asked for and that has failed is tried once more after this time, if
    /// the reason may pass. 0: it is not.
    pub retry_ms: u64,
}

/// What whoever takes over in the middle of a job has to know.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Known {
    /// Number of the next line.
    pub next_line: u64,
    /// Complete global lines, ascending.
    pub globals: Vec<u64>,
    /// The lines that each set can go back to alone, ascending.
    pub kept: BTreeMap<SetId, Vec<u64>>,
}

/// What happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A deadline has come, or nothing has.
    Tick,
    /// A line of this set, soon: a sender's log is nearly full, or a user asks.
    Demand {
        /// The set.
        set: SetId,
    },
    /// A global line, soon.
    Checkpoint {
        /// End the job when it is complete; the ranks do not go on meanwhile.
        exit: bool,
    },
    /// What a rank's `Quiescence` says.
    Answered {
        /// The rank.
        rank: PeerId,
        /// Its answer.
        answer: Answer,
    },
    /// A rank's picture is stored at the configured level.
    Stored {
        /// The rank.
        rank: PeerId,
        /// The line.
        line: u64,
    },
    /// It cannot be stored.
    NotStored {
        /// The rank.
        rank: PeerId,
        /// The line.
        line: u64,
    },
    /// The manifest is written.
    Committed {
        /// The line.
        line: u64,
    },
    /// It cannot be written.
    NotCommitted {
        /// The line.
        line: u64,
    },
    /// A rank has died; its set has to go back.
    Lost {
        /// The rank.
        rank: PeerId,
    },
    /// A set runs again, alone: it repeats what it has done since its line.
    Back {
        /// The set.
        set: SetId,
        /// The line it was restored from.
        line: u64,
    },
    /// All sets go back together to this global line: what was done after it counts for nobody.
    /// `Back` follows for each of them.
    AllBack {
        /// The line.
        line: u64,
    },
    /// It has done again all that other sets have seen of it, and all its channels are repaired
    /// (until then peers may know of matches in its earlier incarnation).
    ReplayComplete {
        /// The set.
        set: SetId,
    },
    /// A rank that has refused a global line ([`Refusal::Behind`]) would not refuse it any more.
    Repaired {
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
        /// The line.
        line: u64,
    },
    /// To every rank of these sets.
    Begin {
        /// The line.
        line: u64,
        /// Of one set, or of all.
        scope: Scope,
        /// The sets.
        sets: Vec<SetId>,
    },
    /// To every rank.
    Resume {
        /// The line.
        line: u64,
    },
    /// To every rank of these sets. What is stored of the line is dropped (`Drop` follows).
    Abort {
        /// The line.
        line: u64,
        /// The sets.
        sets: Vec<SetId>,
        /// For the user.
        why: Why,
        /// Who asked for it goes on waiting: it is tried again.
        retried: bool,
        /// The next line of these sets comes by itself after so many milliseconds.
        next_ms: Option<u64>,
    },
    /// Write the manifest, then hand in `Committed`.
    Commit {
        /// The line.
        line: u64,
        /// Of one set, or of all.
        scope: Scope,
        /// The sets.
        sets: Vec<SetId>,
    },
    /// The line is complete: a restart may use it.
    Complete {
        /// The line.
        line: u64,
        /// How long the ranks were stopped, at most.
        pause_ms: u64,
    },
    /// To every rank of the set: tell your peers in other sets what you held of their messages at
    /// this line; they may drop it from their logs.
    Trim {
        /// The set.
        set: SetId,
        /// The oldest line that it can go back to.
        line: u64,
    },
    /// Delete the files of a line, its manifest first.
    Drop {
        /// The line.
        line: u64,
    },
    /// The line that the user asked for is complete: end the job.
    Exit {
        /// The line.
        line: u64,
    },
}

/// Why a line was aborted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// A rank has no picture.
    Failed(PeerId, Refusal),
    /// A rank's picture could not be stored.
    NotStored(PeerId),
    /// A rank has died.
    Lost(PeerId),
    /// All ranks go back to an earlier line.
    AllBack,
    /// Nothing was heard of this rank in time.
    Timeout(PeerId),
    /// The manifest could not be written, or not in time.
    Manifest,
}

impl Why {
    /// Can it be otherwise the next time? Not where somebody has been waited for in vain: to wait
    /// for him again would keep the program from its work.
    pub fn may_pass(self) -> bool {
        !matches!(self, Self::Timeout(_) | Self::Failed(_, Refusal::Finishing))
    }

    /// Does it pass by itself, and will it be said when?
    pub fn passes(self) -> bool {
        matches!(self, Self::Failed(_, Refusal::Behind))
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(rank, why) => write!(f, "rank {rank}: {why}"),
            Self::NotStored(rank) => write!(f, "the image of rank {rank} could not be stored"),
            Self::Lost(rank) => write!(f, "rank {rank} has died"),
            Self::AllBack => write!(f, "all ranks go back to an earlier line"),
            Self::Timeout(rank) => write!(f, "rank {rank} did not answer in time"),
            Self::Manifest => write!(f, "the manifest could not be written"),
        }
    }
}

/// An input that makes no sense. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SchedulerError {
    /// No such rank.
    Rank(PeerId),
    /// No such set.
    Set(SetId),
    /// Ranks of the job are in MPI_Finalize: it is too late for a line.
    Finishing,
    /// There is no such line of all ranks.
    NotGlobal(u64),
    /// An answer to what was not asked.
    NotAsked(PeerId, u64),
}

impl fmt::Display for SchedulerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(rank) => write!(f, "there is no rank {rank} in this job"),
            Self::Set(set) => write!(f, "there is no set {set} in this job"),
            Self::Finishing => write!(f, "the job is in MPI_Finalize: no more checkpoints"),
            Self::NotGlobal(line) => write!(f, "there is no line {line} of all ranks"),
            Self::NotAsked(rank, line) => {
                write!(f, "rank {rank} answers for line {line} what was not asked")
            }
        }
    }
}
