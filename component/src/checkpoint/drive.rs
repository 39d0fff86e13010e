//! One line: the machine of the phases (`coordination::quiescence`) over real transports.

use super::together::Together;
use super::{Checkpoint, picture, restored};
use crate::os::{now_ns, yield_now};
use crate::process::{Process, Taken};
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

/// What is known of the line that is being taken.
#[derive(Debug, Default)]
pub struct Drive {
    /// When the program was kept out, and when the first barrier was over.
    entered_ns: u64,
    silent_ns: u64,
    /// For the guardian: what the picture's memory is, and what only the process knows.
    picture: Option<(SnapshotMemory, Vec<u8>)>,
    /// Why there is no picture.
    pub failure: Option<String>,
    pause_ns: u64,
}

impl Checkpoint {
    /// Order from the coordinator.
    pub(super) fn begin(&mut self, line: CheckpointId, kind: CheckpointKind, members: &[PeerId]) {
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
    pub(super) fn line(&mut self) -> bool {
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
            if self.silence.wants_rendezvous_quiescence() && process.engine.is_rendezvous_silent() {
                let told = process.engine.take_told();
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
                super::Checkpoint::public().wake.wait([self.guardian.fd(), -1], 1);
            } else if rounds > patience {
                yield_now();
            }
        }
    }

    /// Hand the frames of a line that have come to the machine.
    fn frames(&mut self, taken: &mut Option<Taken>) -> bool {
        let come = &super::Checkpoint::public().line_frames;
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

    pub(super) fn fatal(&self, what: &str) -> ! {
        self.shared.glue.fatal("protocol", &["the checkpoint thread", what])
    }

    /// The engine, for a moment if it is not ours already.
    pub(super) fn with<T>(
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
                self.drive.entered_ns = now_ns();
                if let Some(process) = taken {
                    self.tell_sharing(CheckpointId(line), process);
                }
                self.with(taken, |p| p.engine.hold(Side::Internal));
            }
            Output::Send { to, frame } => self.with(taken, |p| {
                p.engine.send_line(&mut p.host, to, frame);
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
    pub(super) fn deliver(&self) {
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
        self.drive.silent_ns = now_ns();
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
        self.covered.insert(line, picture::covered(process));
        let mut heard = Vec::new();
        let outcome = picture::take(self, line, taken, &mut heard);
        self.drive.pause_ns = now_ns() - self.drive.silent_ns;
        match outcome {
            picture::Taken::Child(child, description) => {
                let picture = SnapshotMemory::Child(child.pid() as i32);
                self.children.insert(line, child);
                self.drive.picture = Some((picture, description));
                self.input(Input::Frozen { checkpoint: line.0 });
            }
            // The guardian has read it in the pause: it was told then.
            picture::Taken::Stored => {
                self.drive.picture = None;
                self.input(Input::Frozen { checkpoint: line.0 });
            }
            picture::Taken::Failed(reason) => {
                self.drive.failure = Some(reason);
                self.input(Input::SnapshotFailed {
                    checkpoint: line.0,
                    refusal: CheckpointRefusal::Snapshot,
                });
            }
            picture::Taken::Restored(new) => {
                // It was said to another process, and may have been pictured while it came.
                core::mem::forget(core::mem::take(&mut heard));
                restored::go_on(self, line, taken, new);
            }
        }
        heard.into_iter().for_each(|message| self.hear(message, taken));
    }

    /// What the guardian needs to write the image.
    pub(super) fn tell_frozen(&mut self, line: CheckpointId) {
        if let Some((picture, description)) = self.drive.picture.take() {
            let coordination_ns = self.drive.coordination_ns();
            let pause_ns = self.drive.pause_ns;
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

impl Drive {
    /// From keeping the program out to the end of the silence.
    pub(super) fn coordination_ns(&self) -> u64 {
        self.silent_ns - self.entered_ns
    }
}
