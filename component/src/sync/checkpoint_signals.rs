//! The flags that every room may set for the checkpoint thread, and the wake-up that it sleeps on.
//! It reads them; nobody else waits for it here but who asks for a checkpoint.

use crate::os::wake::Wake;
use crate::sync::checkpoint_requests::{CheckpointRequest, CheckpointRequests};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use rustbtl_coordination::control::{CheckpointId, FromRank, ReplayBlocker};
use rustbtl_fragments::ids::PeerId;
use std::sync::OnceLock;

/// Sends the guardian a message, from any thread; false: it has gone.
pub(crate) type SendToGuardian = Box<dyn Fn(&FromRank) -> bool + Send + Sync>;

/// What the program's threads need of the checkpoint thread.
pub(crate) struct CheckpointSignals {
    pub(crate) wake: Wake,
    pub(crate) requests: CheckpointRequests,
    /// For what cannot wait for the checkpoint thread: it may wait for the engine.
    pub(crate) send: SendToGuardian,
    /// How often the process was restored.
    pub(crate) restarts: AtomicU32,
    /// The program waits in MPI_Finalize.
    pub(crate) fence: AtomicBool,
    /// The payload log is on its way to its budget.
    pub(crate) nearly_full: AtomicBool,
    /// The payload log costs more than it may.
    pub(crate) over_budget: AtomicBool,
    /// Frames of a checkpoint have come. To poll for them takes the engine from the program.
    pub(crate) checkpoint_frames: AtomicBool,
    /// Why nobody could repeat what the program does, if so.
    pub(crate) not_replayable: [OnceLock<&'static str>; 3],
    /// It has polled memory while others wrote there: what it has seen is not recorded.
    pub(crate) has_raced: AtomicBool,
    /// Checkpoints that the log has asked for, and checkpoints of the own set that are complete.
    pub(crate) checkpoints: [AtomicU32; 2],
}

pub(crate) static SIGNALS: OnceLock<CheckpointSignals> = OnceLock::new();

/// The program is in MPI_Finalize and waits for all others.
pub fn fence() {
    if let Some(signals) = SIGNALS.get() {
        // [fence] the callback's place is filled.
        signals.fence.store(true, Ordering::Release);
        signals.wake.ring();
    }
}

/// What the program does cannot be repeated from now on by who is named.
pub fn mark_not_replayable(reason: &'static str, blocker: ReplayBlocker) {
    if let Some(signals) = SIGNALS.get()
        && let known = &signals.not_replayable[blocker as usize]
        && known.get().is_none()
        && known.set(reason).is_ok()
    {
        signals.wake.ring();
    }
}

/// What the program has just done cannot be repeated; what it does from the set's next checkpoint
/// on can.
pub fn mark_race() {
    if let Some(signals) = SIGNALS.get() {
        signals.has_raced.store(true, Ordering::Relaxed);
        signals.wake.ring();
    }
}

/// In replay this rank does something else than before, or another one has sent something else.
/// False: nobody can be told.
pub fn report_divergence(of: PeerId, problem: &str) -> bool {
    let diverged = || FromRank::Diverged { rank: of, problem: problem.to_owned() };
    SIGNALS.get().is_some_and(|signals| (signals.send)(&diverged()))
}

/// The program wants a checkpoint; returns as the request says. Not while a lock of ours is held.
pub fn request_checkpoint(request: CheckpointRequest) -> Result<CheckpointId, String> {
    let Some(signals) = SIGNALS.get() else {
        return Err("the job runs without protection: nobody takes checkpoints".into());
    };
    signals.requests.ask(request, || signals.wake.ring())
}

/// How often this process was restored from an image.
pub fn restarts() -> u32 {
    SIGNALS.get().map_or(0, |signals| signals.restarts.load(Ordering::Relaxed))
}

/// Checkpoints that the log has asked for, and checkpoints of the own set that are complete.
pub fn checkpoint_counts() -> [u64; 2] {
    let count = |signals: &CheckpointSignals| {
        [0, 1].map(|at| signals.checkpoints[at].load(Ordering::Relaxed).into())
    };
    SIGNALS.get().map_or([0; 2], count)
}

/// Something has come for this thread while nobody looked.
pub fn wake() {
    if let Some(signals) = SIGNALS.get() {
        signals.wake.ring();
    }
}

/// A frame of a checkpoint has come: `host.checkpoint_frames` is not empty.
pub fn frame_arrived() {
    if let Some(signals) = SIGNALS.get() {
        // [frames] it is there.
        signals.checkpoint_frames.store(true, Ordering::Release);
        signals.wake.ring();
    }
}

pub(crate) fn count(which: usize) {
    if let Some(signals) = SIGNALS.get() {
        signals.checkpoints[which].fetch_add(1, Ordering::Relaxed);
    }
}

/// The payload log has passed a mark: somebody else shall ask for a checkpoint.
#[cold]
pub fn log_nearly_full() {
    if let Some(signals) = SIGNALS.get() {
        signals.nearly_full.store(true, Ordering::Relaxed);
        signals.wake.ring();
    }
}

/// The payload log has cost more than it may: somebody else shall have it suspended.
#[cold]
pub fn log_over_budget() {
    if let Some(signals) = SIGNALS.get() {
        signals.over_budget.store(true, Ordering::Relaxed);
        signals.wake.ring();
    }
}
