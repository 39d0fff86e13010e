//! One line: the machine of the phases (`coordination::quiescence`) over real transports.

use crate::checkpoint::shared_memory_barrier::Together;
use crate::checkpoint::state::Checkpoint;
use crate::checkpoint::{freeze, restart};
use crate::engine::driver_state::Process;
use crate::engine::shared::Taken;
use crate::ffi::verbose;
use crate::os::{now_ns, yield_now};
use core::sync::atomic::Ordering;
use rustbtl_coordination::control::{CheckpointId, CheckpointKind, FromRank, SnapshotMemory};
use rustbtl_coordination::quiescence::{CheckpointRefusal, CheckpointScope, Input, Output, Phase};
use rustbtl_fragments::engine::Side;
use rustbtl_fragments::ids::PeerId;

/// Fruitless rounds before the processor is given away between rounds.
const PATIENCE: u32 = 64;
/// The same where ranks share processors: the others cannot come while we look.
const PATIENCE_CROWDED: u32 = 1;
/// Rounds between two looks at frames while this process has nothing to do but wait for a count.
const SELDOM: u32 = 4;
/// Rounds between two looks at the guardian's socket, which costs a system call.
const LISTEN_ROUNDS: u32 = 64;

impl Checkpoint {
    /// Order from the coordinator.
    pub(crate) fn begin(&mut self, line: CheckpointId, kind: CheckpointKind, members: &[PeerId]) {
        if members != self.members {
            let reason = format!(
                "the coordinator names other processes of the set than this one knows: {members:?} \
                 instead of {:?}",
                self.members
            );
            self.say(&FromRank::CheckpointFailed { checkpoint: line, reason });
            return self.input(Input::Abort { checkpoint: line.0 });
        }
        self.look_at_memory(line);
        let scope = match kind {
            CheckpointKind::Set => CheckpointScope::Set,
            CheckpointKind::Global => CheckpointScope::Global,
        };
        self.input(Input::Begin { checkpoint: line.0, scope });
    }

    /// Do what the machine wants, until no line is being taken. False: that was nothing.
    pub(crate) fn line(&mut self) -> bool {
        let mut taken = None;
        let mut had_it = false;
        let mut rounds = 0u32;
        loop {
            let mut happened = self.frames(&mut taken);
            while let Some(output) = self.silence.poll_output() {
                happened = true;
                self.perform(output, &mut taken);
            }
            self.shipping.in_line = taken.is_some();
            happened |= self.count(&mut taken);
            had_it |= happened;
            let Some(process) = &mut taken else { return had_it };
            if !self.awaits_a_count() || rounds % SELDOM == SELDOM - 1 {
                happened |= process.poll() > 0;
            }
            let patience = if process.idle.oversubscribed { PATIENCE_CROWDED } else { PATIENCE };
            if self.silence.wants_rendezvous_quiescence()
                && process.engine.is_rendezvous_quiescent()
            {
                let told = process.engine.take_done_recipients();
                happened = true;
                self.input(Input::RendezvousQuiescent { done_recipients: told });
            }
            rounds = if happened { 0 } else { rounds + 1 };
            let waits = matches!(self.silence.phase(), Some((_, Phase::AwaitResume)));
            if rounds % LISTEN_ROUNDS == LISTEN_ROUNDS - 1 || waits {
                self.listen(&mut taken);
                if self.over {
                    // The guardian has gone: the job ends.
                    self.give_up(taken);
                    self.shipping.in_line = false;
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

    /// Hand the frames of a line that have come to the machine.
    fn frames(&mut self, taken: &mut Option<Taken>) -> bool {
        let come = &Checkpoint::signals().checkpoint_frames;
        // [frames] they are there.
        if !come.load(Ordering::Relaxed) || !come.swap(false, Ordering::Acquire) {
            return false;
        }
        let mut frames = match taken {
            Some(process) => core::mem::take(&mut process.host.line_frames),
            None => match self.shared.take() {
                Ok(mut process) => core::mem::take(&mut process.host.line_frames),
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
        taken: &mut Option<Taken>,
        call: impl FnOnce(&mut Process) -> T,
    ) -> T {
        if let Some(process) = taken {
            return call(process);
        }
        match self.shared.take() {
            Ok(mut process) => call(&mut process),
            Err(error) => self.fatal(&error.to_string()),
        }
    }

    fn perform(&mut self, output: Output, taken: &mut Option<Taken>) {
        match output {
            Output::HoldOutgoing => self.with(taken, |p| p.engine.hold(Side::Outgoing)),
            Output::ReleaseOutgoing => self.with(taken, |p| {
                p.engine.release(&mut p.host, Side::Outgoing);
                p.host.push();
            }),
            Output::Enter { checkpoint: line } => {
                if taken.is_none() {
                    match self.shared.take() {
                        Ok(process) => *taken = Some(process),
                        Err(error) => self.fatal(&error.to_string()),
                    }
                }
                self.phases.entered_ns = now_ns();
                if let Some(process) = taken {
                    self.tell_sharing(CheckpointId(line), process);
                }
                self.with(taken, |p| p.engine.hold(Side::Internal));
            }
            Output::Send { to, frame } => self.with(taken, |p| {
                p.engine.send_checkpoint_frame(&mut p.host, to, frame);
                p.host.push();
            }),
            Output::Arrive { checkpoint: line, phase: station, in_flight: open } => {
                self.come(taken, (line, station), open)
            }
            Output::Freeze { checkpoint: line } => self.freeze(CheckpointId(line), taken),
            Output::Answer(answer) => self.answer(answer),
            Output::Resume { .. } => {
                if let Some(process) = taken {
                    self.leave_sharing(process);
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

    /// With threads, those who wait sleep until somebody completes what they wait for. Without,
    /// the program's own thread tells itself when it is let in again.
    pub(crate) fn deliver(&self) {
        if self.shared.threads {
            self.shared.deliver(self.shared.enter());
        }
    }

    fn give_up(&mut self, mut taken: Option<Taken>) {
        if let Some((line, _)) = self.silence.phase() {
            self.input(Input::Abort { checkpoint: line });
        }
        while let Some(output) = self.silence.poll_output() {
            self.perform(output, &mut taken);
        }
    }

    /// Take the picture.
    fn freeze(&mut self, line: CheckpointId, taken: &mut Option<Taken>) {
        self.phases.silent_ns = now_ns();
        let Some(process) = taken else { self.fatal("a picture out of a line") };
        if self.silence.scope() == Some(CheckpointScope::Global)
            && (self.has_cards_to_read() || !process.has_caught_up())
        {
            // A job that starts from it would have messages that nobody has sent, or will send
            // otherwise (docs/adr/0016).
            Together::of(self, line, process).failed();
            self.behind = true;
            return self.input(Input::SnapshotFailed {
                checkpoint: line.0,
                refusal: CheckpointRefusal::ReplayPending,
            });
        }
        self.tell_clock(line, process);
        self.covered.insert(line, freeze::covered(process));
        let mut heard = Vec::new();
        let outcome = freeze::take(self, line, taken, &mut heard);
        self.phases.pause_ns = now_ns() - self.phases.silent_ns;
        match outcome {
            freeze::Taken::Child(child, description) => {
                let (coordination_ns, pause_ns) =
                    (self.phases.coordination_ns(), self.phases.pause_ns);
                self.shared.glue.verbose(verbose::INFO, || {
                    format!(
                        "checkpoint {line}: quiescent after {} us, paused for {} us",
                        coordination_ns / 1000,
                        pause_ns / 1000
                    )
                });
                let picture = SnapshotMemory::Child(child.pid() as i32);
                self.children.insert(line, child);
                self.phases.picture = Some((picture, description));
                self.input(Input::Frozen { checkpoint: line.0 });
            }
            // The guardian has read it in the pause: it was told then.
            freeze::Taken::Stored => {
                self.phases.picture = None;
                self.input(Input::Frozen { checkpoint: line.0 });
            }
            freeze::Taken::Failed(reason) => {
                self.phases.failure = Some(reason);
                self.input(Input::SnapshotFailed {
                    checkpoint: line.0,
                    refusal: CheckpointRefusal::Snapshot,
                });
            }
            freeze::Taken::Restored(new) => {
                // It was said to another process, and may have been pictured while it came.
                core::mem::forget(core::mem::take(&mut heard));
                restart::go_on(self, line, taken, new);
            }
        }
        heard.into_iter().for_each(|message| self.hear(message, taken));
    }

    /// What the guardian needs to write the image.
    pub(crate) fn tell_frozen(&mut self, line: CheckpointId) {
        if let Some((picture, description)) = self.phases.picture.take() {
            let coordination_ns = self.phases.coordination_ns();
            let pause_ns = self.phases.pause_ns;
            self.say(&FromRank::Frozen {
                checkpoint: line,
                snapshot: picture,
                description,
                coordination_ns,
                pause_ns,
            });
        }
    }
}
