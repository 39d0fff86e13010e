//! What the checkpoint thread knows: plain data, for all files of this room.

use crate::checkpoint::guardian_link::Guardian;
use crate::checkpoint::log_pressure::LogPressure;
use crate::checkpoint::shadow_verbs::ShadowVerbs;
use crate::engine::shared::Shared;
use crate::ffi::table::{LOG_CHECKPOINT, LOG_SPILL};
use crate::peers::transport_setup::TransportSetup;
use crate::sync::checkpoint_signals::{CheckpointSignals, SIGNALS};
use crate::sync::waiting::TickRate;
use rustbtl_coordination::control::{CheckpointId, SnapshotMemory, ToRank};
use rustbtl_coordination::quiescence::Quiescence;
use rustbtl_fragments::ids::{Incarnation, PeerId};
use rustbtl_process::freeze::{Freezer, FrozenChild};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where the checkpoint thread is in MPI_Finalize.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    Not,
    /// `Finishing` is sent.
    Told,
    /// `MayFinish` has come.
    Over,
}

/// See the module's documentation.
pub(crate) struct Checkpoint {
    pub(crate) shared: &'static Shared,
    pub(crate) guardian: Arc<Guardian>,
    pub(crate) transport_setup: TransportSetup,
    pub(crate) quiescence: Quiescence,
    pub(crate) members: Vec<PeerId>,
    pub(crate) huge_pages: bool,
    /// The kernel notes what is written between snapshots, where it can.
    pub(crate) tracks_changes: bool,
    /// It was said how changes are found: are they noted by the kernel?
    pub(crate) said_changes: Option<bool>,
    /// The checkpoint for which they were made.
    pub(crate) huge_pages_for: CheckpointId,
    pub(crate) freezer: Freezer,
    /// Frozen copies that are being stored.
    pub(crate) children: BTreeMap<CheckpointId, FrozenChild>,
    /// What the checkpoints that are being stored cover of other processes' logs.
    pub(crate) covered: BTreeMap<CheckpointId, Vec<(PeerId, Vec<u8>)>>,
    pub(crate) ready: bool,
    /// The coordinator knows why the program cannot be repeated.
    pub(crate) reported_not_replayable: [bool; 3],
    /// A file that is not put back was named.
    pub(crate) file_named: bool,
    /// It was restarted alone, and has not repeated all that others have of its lost future; or
    /// it has refused a global checkpoint since that, or a channel, was not as it should be.
    pub(crate) replaying: bool,
    /// Others were restarted, and there is no channel to some of them yet.
    pub(crate) repairing: bool,
    /// It was restarted alone, and nobody has said that all replays are over.
    pub(crate) replays_open: bool,
    /// What the coordinator has asked (`ReportReplay`): its number, and whether the own replay is
    /// meant.
    pub(crate) replay_question: Option<(u64, bool)>,
    /// For the first `Hello`.
    pub(crate) endpoint: Vec<u8>,
    pub(crate) ending: Ending,
    /// `MayFinish` or the end of the guardian: nothing more to do.
    pub(crate) over: bool,
    /// The log has asked for a checkpoint, and none has helped yet.
    pub(crate) log_pressure: LogPressure,
    /// The same of what the log costs, where it has asked to be suspended.
    pub(crate) cost_pressure: LogPressure,
    /// Of the clock by which waiting is measured.
    pub(crate) tick_rate: TickRate,
    /// What to ask for when the log is on its way to its budget.
    pub(crate) log_full: LogFullReaction,
    pub(crate) phases: Phases,
    pub(crate) flush_state: DeterminantFlush,
    pub(crate) sharing: Sharing,
    /// What it shares in the image that it is made of, or that was made last.
    pub(crate) shared_memory: Vec<u64>,
    /// When the job was started, ranks of this node were of several sets.
    pub(crate) several_sets: bool,
    pub(crate) drain: CollectiveDraining,
    pub(crate) verbs: ShadowVerbs,
}

impl Checkpoint {
    pub(crate) fn signals() -> &'static CheckpointSignals {
        SIGNALS.get().expect("set before the thread starts")
    }
}

/// What a log that is on its way to its budget asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFullReaction {
    /// That logging is suspended.
    Suspend,
    /// A checkpoint.
    Checkpoint,
    /// Nothing: the rest goes to a file.
    Spill,
}

impl LogFullReaction {
    /// As C has it.
    pub fn of(log_full: u8) -> Self {
        match log_full {
            LOG_CHECKPOINT => Self::Checkpoint,
            LOG_SPILL => Self::Spill,
            _ => Self::Suspend,
        }
    }
}

/// What is known of the checkpoint that is being taken.
#[derive(Debug, Default)]
pub struct Phases {
    /// When the program was kept out, and when the first barrier was over.
    pub(crate) entered_ns: u64,
    /// The youngest checkpoint that was entered.
    pub(crate) entered: CheckpointId,
    pub(crate) quiescent_ns: u64,
    /// For the guardian: what the snapshot's memory is, and what only the process knows.
    pub(crate) snapshot: Option<(SnapshotMemory, Vec<u8>)>,
    /// Why there is no snapshot.
    pub failure: Option<String>,
    pub(crate) pause_ns: u64,
}

impl Phases {
    /// From keeping the program out to the end of quiescence.
    pub(crate) fn coordination_ns(&self) -> u64 {
        self.quiescent_ns - self.entered_ns
    }
}

/// What is on its way, and what came at the wrong time.
#[derive(Debug, Default)]
pub struct DeterminantFlush {
    pub(crate) incarnation: Incarnation,
    /// Where the coordinator is, and the secret, until it was tried.
    pub(crate) coordinator: Option<(String, Vec<u8>)>,
    /// The program was polling when this thread was here last.
    pub(crate) polling: bool,
    /// For a process that is being restored: `at` and the determinants.
    pub(crate) replay: Option<(u64, Vec<u8>)>,
    /// Messages that need the engine and came while a checkpoint had it.
    pub(crate) later: Vec<ToRank>,
    /// A checkpoint has the engine.
    pub in_checkpoint: bool,
    /// The program's polls when this thread was here last.
    pub(crate) program_polls: u32,
    /// What the set had recorded then, and whether that was more than the time before.
    pub(crate) recorded: u64,
    pub(crate) recording: bool,
    /// Up to which place frames of the set had waited then.
    pub(crate) wanted: u64,
    /// For so many rounds more, frames of the set are expected to wait again.
    pub(crate) frames_wait: u32,
    /// What was stable when held frames were sent last.
    pub(crate) stable: u64,
    /// Rounds since then in which one waited.
    pub(crate) polls: u32,
}

/// Phase 0 of a checkpoint (docs/adr/0038).
#[derive(Clone, Copy, Debug, Default)]
pub struct CollectiveDraining {
    /// For this checkpoint.
    pub(crate) checkpoint: Option<CheckpointId>,
    /// The coordinator knows that collectives bypass rustbtl.
    pub(crate) announced: bool,
    /// How long the program had waited inside MPI when it was looked at last, and when that was.
    pub(crate) waited: (u64, u64),
}

/// What is known about a checkpoint before its snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sharing {
    pub(crate) id: CheckpointId,
    pub(crate) shares: bool,
    pub(crate) joined: bool,
    /// With all ranks of the node, which are of several sets.
    pub(crate) of_node: bool,
}
