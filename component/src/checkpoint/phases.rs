//! One checkpoint: the machine of the phases (`coordination::quiescence`) over real transports.

use crate::checkpoint::shared_memory_barrier::SharedMemoryBarrier;
use crate::checkpoint::state::Checkpoint;
use crate::checkpoint::{freeze, restart};
use crate::engine::driver_state::Driver;
use crate::engine::shared::ExclusiveGuard;
use crate::ffi::verbose;
use crate::os::{now_ns, yield_now};
use crate::sync::waiting::WAITING;
use core::sync::atomic::Ordering;
use rustbtl_coordination::control::{CheckpointId, CheckpointKind, FromRank, SnapshotMemory};
use rustbtl_coordination::quiescence::{
    CheckpointAnswer, CheckpointRefusal, CheckpointScope, Input, Output, Phase,
};
use rustbtl_fragments::engine::Side;
use rustbtl_fragments::ids::PeerId;

/// Fruitless rounds before the processor is given away between rounds.
const PATIENCE: u32 = 64;
/// The same where ranks share processors: the others cannot come while we poll.
const PATIENCE_CROWDED: u32 = 1;
/// Rounds between two polls of frames while this process has nothing to do but wait for a count.
const SELDOM: u32 = 4;
/// Rounds between two polls of the guardian's socket, which costs a system call.
const LISTEN_ROUNDS: u32 = 64;

impl Checkpoint {
    /// Order from the coordinator.
    pub(crate) fn begin(&mut self, id: CheckpointId, kind: CheckpointKind, members: &[PeerId]) {
        if members != self.members {
            let reason = format!(
                "the coordinator names other processes of the set than this one knows: {members:?} \
                 instead of {:?}",
                self.members
            );
            self.send(&FromRank::CheckpointFailed { checkpoint: id, reason });
            return self.input(Input::Abort { checkpoint: id.0 });
        }
        // A drain is over, and no set replays.
        WAITING.watch(false);
        self.poll_set_memory(id);
        let scope = match kind {
            CheckpointKind::Set => CheckpointScope::Set,
            CheckpointKind::Global => CheckpointScope::Global,
        };
        self.input(Input::Begin { checkpoint: id.0, scope });
    }

    /// Do what the machine wants, until no checkpoint is being taken. False: that was nothing.
    pub(crate) fn step_checkpoint(&mut self) -> bool {
        let mut taken = None;
        let mut had_it = false;
        let mut rounds = 0u32;
        loop {
            let mut happened = self.frames(&mut taken);
            while let Some(output) = self.quiescence.poll_output() {
                happened = true;
                self.perform(output, &mut taken);
            }
            self.flush_state.in_checkpoint = taken.is_some();
            happened |= self.count(&mut taken);
            had_it |= happened;
            let Some(driver) = &mut taken else { return had_it };
            if !self.awaits_a_count() || rounds % SELDOM == SELDOM - 1 {
                happened |= driver.poll() > 0;
            }
            let patience = if driver.idle.oversubscribed { PATIENCE_CROWDED } else { PATIENCE };
            if self.quiescence.wants_rendezvous_quiescence()
                && driver.engine.is_rendezvous_quiescent()
            {
                let done_recipients = driver.engine.take_done_recipients();
                happened = true;
                self.input(Input::RendezvousQuiescent { done_recipients });
            }
            rounds = if happened { 0 } else { rounds + 1 };
            let waits = matches!(self.quiescence.phase(), Some((_, Phase::AwaitResume)));
            if rounds % LISTEN_ROUNDS == LISTEN_ROUNDS - 1 || waits {
                self.listen(&mut taken);
                if self.over {
                    // The guardian has gone: the job ends.
                    self.give_up(taken);
                    self.flush_state.in_checkpoint = false;
                    return true;
                }
            }
            if waits && rounds > PATIENCE {
                Checkpoint::signals().wake.wait([self.guardian.fd(), -1], 1);
            } else if rounds > patience {
                yield_now();
            }
        }
    }

    /// Hand the frames of a checkpoint that have come to the machine.
    fn frames(&mut self, taken: &mut Option<ExclusiveGuard>) -> bool {
        let come = &Checkpoint::signals().checkpoint_frames;
        // [frames] they are there.
        if !come.load(Ordering::Relaxed) || !come.swap(false, Ordering::Acquire) {
            return false;
        }
        let mut frames = match taken {
            Some(driver) => core::mem::take(&mut driver.host.checkpoint_frames),
            None => match self.shared.take() {
                Ok(mut driver) => core::mem::take(&mut driver.host.checkpoint_frames),
                Err(error) => self.fatal(&error.to_string()),
            },
        };
        let some = !frames.is_empty();
        for (from, frame) in frames.drain(..) {
            self.input(Input::Frame { from, frame });
        }
        some
    }

    pub(crate) fn fatal(&self, what: &str) -> ! {
        self.shared.glue.fatal("protocol", &["the checkpoint thread", what])
    }

    /// The engine, for a moment if it is not ours already.
    pub(crate) fn with<T>(
        &self,
        taken: &mut Option<ExclusiveGuard>,
        call: impl FnOnce(&mut Driver) -> T,
    ) -> T {
        if let Some(driver) = taken {
            return call(driver);
        }
        match self.shared.take() {
            Ok(mut driver) => call(&mut driver),
            Err(error) => self.fatal(&error.to_string()),
        }
    }

    fn perform(&mut self, output: Output, taken: &mut Option<ExclusiveGuard>) {
        match output {
            Output::HoldOutgoing => self.with(taken, |p| p.engine.hold(Side::Outgoing)),
            Output::ReleaseOutgoing => {
                // It may never have been entered.
                self.with(taken, |driver| self.leave_sharing(driver));
                self.with(taken, |p| {
                    p.engine.release(&mut p.host, Side::Outgoing);
                    p.host.push();
                });
            }
            Output::Enter { checkpoint: id } => {
                if taken.is_none() {
                    match self.shared.take() {
                        Ok(driver) => *taken = Some(driver),
                        Err(error) => self.fatal(&error.to_string()),
                    }
                }
                (self.phases.entered_ns, self.phases.entered) = (now_ns(), CheckpointId(id));
                if let Some(driver) = taken {
                    self.send_sharing(CheckpointId(id), driver);
                }
                self.with(taken, |p| {
                    // A1: what comes from now on may be behind the snapshot.
                    p.engine.set_acknowledging(None);
                    p.host.log_cost.rearm();
                    p.engine.hold(Side::Internal);
                });
            }
            Output::Send { to, frame } => self.with(taken, |p| {
                p.engine.send_checkpoint_frame(&mut p.host, to, frame);
                p.host.push();
            }),
            Output::Arrive { checkpoint: id, phase, in_flight: open } => {
                self.arrive(taken, (id, phase), open)
            }
            Output::Freeze { checkpoint: id } => self.freeze(CheckpointId(id), taken),
            Output::Answer(answer) => {
                if let CheckpointAnswer::Stopped { checkpoint } = answer {
                    self.stop_node(CheckpointId(checkpoint), taken);
                }
                self.act(answer);
            }
            Output::Resume { .. } => {
                if let Some(driver) = taken {
                    self.leave_sharing(driver);
                }
                self.with(taken, |p| {
                    p.engine.release(&mut p.host, Side::Internal);
                    p.host.push();
                });
                *taken = None;
                self.deliver();
            }
        }
    }

    fn stop_node(&mut self, id: CheckpointId, taken: &mut Option<ExclusiveGuard>) {
        if let Some(driver) = taken {
            return self.join_node(id, driver);
        }
        match self.shared.take() {
            Ok(driver) => self.join_node(id, &driver),
            Err(error) => self.fatal(&error.to_string()),
        }
    }

    /// With threads, those who wait sleep until somebody completes what they wait for. Without,
    /// the program's own thread does so when it is let in again.
    pub(crate) fn deliver(&self) {
        if self.shared.threads {
            self.shared.deliver(self.shared.enter());
        }
    }

    fn give_up(&mut self, mut taken: Option<ExclusiveGuard>) {
        if let Some((id, _)) = self.quiescence.phase() {
            self.input(Input::Abort { checkpoint: id });
        }
        while let Some(output) = self.quiescence.poll_output() {
            self.perform(output, &mut taken);
        }
    }

    /// Take the snapshot.
    fn freeze(&mut self, id: CheckpointId, taken: &mut Option<ExclusiveGuard>) {
        self.phases.quiescent_ns = now_ns();
        let Some(driver) = taken else { self.fatal("a snapshot outside of a checkpoint") };
        if self.quiescence.scope() == Some(CheckpointScope::Global)
            && (self.has_endpoints_to_read() || !driver.replay_is_complete())
        {
            // A job that starts from it would have messages that nobody has sent, or will send
            // otherwise (docs/adr/0016).
            SharedMemoryBarrier::of(self, id, driver).failed();
            self.replaying = true;
            return self.input(Input::SnapshotFailed {
                checkpoint: id.0,
                refusal: CheckpointRefusal::ReplayPending,
            });
        }
        let not_drained = self.not_drained(id, &driver.counting);
        if let Some(reason) = not_drained.or_else(|| self.verbs.not_drained(id)) {
            SharedMemoryBarrier::of(self, id, driver).failed();
            self.phases.failure = Some(reason.to_owned());
            return self.input(Input::SnapshotFailed {
                checkpoint: id.0,
                refusal: CheckpointRefusal::Snapshot,
            });
        }
        self.send_clock(id, driver);
        self.covered.insert(id, freeze::received_vectors(driver));
        let mut received = Vec::new();
        let outcome = freeze::take(self, id, taken, &mut received);
        self.phases.pause_ns = now_ns() - self.phases.quiescent_ns;
        match outcome {
            freeze::FreezeOutcome::Child(child, description) => {
                let (coordination_ns, pause_ns) =
                    (self.phases.coordination_ns(), self.phases.pause_ns);
                self.shared.glue.verbose(verbose::INFO, || {
                    format!(
                        "checkpoint {id}: quiescent after {} us, paused for {} us",
                        coordination_ns / 1000,
                        pause_ns / 1000
                    )
                });
                let snapshot = SnapshotMemory::Child(child.pid() as i32);
                self.children.insert(id, child);
                self.phases.snapshot = Some((snapshot, description));
                self.input(Input::Frozen { checkpoint: id.0 });
            }
            // The guardian has read it in the pause: it was notified then.
            freeze::FreezeOutcome::Stored => {
                self.phases.snapshot = None;
                self.input(Input::Frozen { checkpoint: id.0 });
            }
            freeze::FreezeOutcome::Failed(reason) => {
                self.phases.failure = Some(reason);
                self.input(Input::SnapshotFailed {
                    checkpoint: id.0,
                    refusal: CheckpointRefusal::Snapshot,
                });
            }
            freeze::FreezeOutcome::Restored(new, files) => {
                // It was sent to another process, and may have been frozen on its way.
                core::mem::forget(core::mem::take(&mut received));
                restart::resume_after_restart(self, id, taken, (new, files));
            }
        }
        received.into_iter().for_each(|message| self.handle(message, taken));
    }

    /// What the guardian needs to write the image.
    pub(crate) fn send_frozen(&mut self, id: CheckpointId) {
        if let Some((snapshot, description)) = self.phases.snapshot.take() {
            let coordination_ns = self.phases.coordination_ns();
            let pause_ns = self.phases.pause_ns;
            self.send(&FromRank::Frozen {
                checkpoint: id,
                snapshot,
                description,
                coordination_ns,
                pause_ns,
            });
        }
    }
}
