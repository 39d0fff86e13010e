//! One process's part in the checkpoints of its set: enter, become quiescent, pass the barrier,
//! take the snapshot, go on.
//!
//! Source: DESIGN §6; paper §3.1 (its *eager silence* and *rendez-vous silence* are two phases
//! here); docs/adr/0002. Phases of a checkpoint:
//!
//! ```text
//!  Idle ─Begin or first token─> Eager ─all tokens─> Rendezvous ─quiet──> Flush
//!  ─all seen─> First barrier ─> Freeze (snapshot) ─Frozen─> Second barrier ─> Idle
//!                                          └ global checkpoint: wait for Resume ┘
//! ```
//!
//! * **Token** to each process of the set: no message from me follows. When all are in, every
//!   eager fragment that has left has arrived.
//! * **Rendezvous**: matched receives from inside are complete. Then no `Grant` and no `Data` can
//!   be under way, but a `Done` can: to those who were sent one after our token goes a **Flush**,
//!   and we wait for the answer. Most checkpoints need none.
//! * **First barrier** (dissemination in ⌈log₈ n⌉ rounds, `barrier.rs`): who leaves it knows that
//!   all have arrived here, so nothing but frames of the barrier is under way inside the set.
//! * **Second barrier**: nobody sends before all have their snapshot. A set of one needs neither;
//!   in a global checkpoint the order to resume, which comes when all sets have theirs, stands for
//!   it.
//!
//! Invariants (N is the number of processes in the set):
//! * S1 Each checkpoint that is entered is resumed once, before the next is entered.
//! * S2 Each other process of the set gets one token of a checkpoint, after `Enter` and before
//!   `Freeze`.
//! * S3 `Freeze` comes after all tokens are in, all flushes are answered and every round of the
//!   first barrier is in.
//! * S4 Frames and orders of a checkpoint up to `last` (over, abandoned or refused) change nothing.
//! * S5 Outgoing channels are held from `HoldOutgoing` to `ReleaseOutgoing`, which alternate.
//! * S6 N − 1 tokens, at most N − 1 flushes with as many answers and twice 7·⌈log₈ N⌉ barrier
//!   frames are sent in a checkpoint, at most.
//!
//! A newer checkpoint abandons an older one: the coordinator orders it only when the older is over.
//!
//! That is the method by frames. Where all of a set share memory they count instead
//! (`set_counters.rs`): S1, S4 and S5 hold in both, C1 to C4 stand for the others.

mod barrier;
mod io;
mod set_counters;

use barrier::{Barrier, Shape};
pub use io::{
    CheckpointAnswer, CheckpointRefusal, CheckpointScope, Input, Output, QuiescenceError,
};
use rustbtl_fragments::checkpoint_frame::{CheckpointFrame, CheckpointStep};
use rustbtl_fragments::ids::PeerId;
pub use set_counters::{CounterPhase, PhaseCounter, QuiesceMethod};
use std::collections::{BTreeSet, VecDeque};

/// Where a process is in a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// Tokens are awaited.
    Eager,
    /// Matched receives are awaited.
    Rendezvous,
    /// Answers to flushes are awaited.
    Flush,
    /// All have to come.
    FirstBarrier,
    /// The driver takes the snapshot.
    Freeze,
    /// All must have theirs.
    SecondBarrier,
    /// All sets must have theirs.
    AwaitResume,
}

/// A checkpoint that is being taken.
#[derive(Clone, Debug)]
struct ActiveCheckpoint {
    checkpoint: u64,
    scope: CheckpointScope,
    phase: Phase,
    /// Members whose token is in.
    tokens: BTreeSet<PeerId>,
    /// Members whose answer to a flush is awaited.
    flushing: BTreeSet<PeerId>,
    /// The first and the second one.
    barriers: [Barrier; 2],
    /// The last phase that this process has arrived at.
    arrived: Option<CounterPhase>,
    frozen: bool,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Quiescence {
    me: PeerId,
    /// All processes of the set, ascending.
    members: Vec<PeerId>,
    method: QuiesceMethod,
    current: Option<ActiveCheckpoint>,
    /// The global checkpoint for which outgoing channels are held.
    stopped: Option<u64>,
    /// The youngest checkpoint that is over, abandoned or refused.
    last: Option<u64>,
    finishing: bool,
    outputs: VecDeque<Output>,
}

impl Quiescence {
    /// The machine of process `me`, one of `members` (all processes of its set, in any order).
    pub fn new(me: PeerId, members: &[PeerId]) -> Self {
        let mut members = members.to_vec();
        members.push(me);
        members.sort_unstable();
        members.dedup();
        Self {
            me,
            members,
            method: QuiesceMethod::Frames,
            current: None,
            stopped: None,
            last: None,
            finishing: false,
            outputs: VecDeque::new(),
        }
    }

    /// Something has happened.
    ///
    /// # Errors
    /// A process of the set or the driver broke the protocol; nothing has changed.
    pub fn handle(&mut self, input: Input) -> Result<(), QuiescenceError> {
        match input {
            Input::StopOutgoing { checkpoint } => self.stop_outgoing(checkpoint),
            Input::Begin { checkpoint, scope } => self.begin(checkpoint, scope),
            Input::Frame { from, frame } => return self.on_frame(from, frame),
            Input::RendezvousQuiescent { done_recipients } => {
                return self.on_rendezvous_quiescent(&done_recipients);
            }
            Input::Drained { in_flight } => return self.on_drained(in_flight),
            Input::AllArrived { checkpoint, phase, in_flight } => {
                return self.on_all_arrived(checkpoint, phase, in_flight);
            }
            Input::Frozen { checkpoint } => return self.on_snapshot(checkpoint, None),
            Input::SnapshotFailed { checkpoint, refusal } => {
                return self.on_snapshot(checkpoint, Some(refusal));
            }
            Input::Resume { checkpoint } => self.on_resume(checkpoint),
            Input::Abort { checkpoint } => self.abort(checkpoint),
            Input::Finish => self.finish(),
            Input::Restored => return self.on_restored(),
        }
        Ok(())
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// A checkpoint is being taken: the program is out of the engine, the driver keeps it going.
    pub fn is_active(&self) -> bool {
        self.current.is_some()
    }

    /// The checkpoint that is being taken, and how far it is.
    pub fn phase(&self) -> Option<(u64, Phase)> {
        self.current.as_ref().map(|current| (current.checkpoint, current.phase))
    }

    /// Whose checkpoint it is.
    pub fn scope(&self) -> Option<CheckpointScope> {
        self.current.as_ref().map(|current| current.scope)
    }

    /// The driver has to poll `Engine::is_rendezvous_quiescent` after each of its rounds.
    pub fn wants_rendezvous_quiescence(&self) -> bool {
        self.phase().is_some_and(|(_, phase)| phase == Phase::Rendezvous)
    }

    /// After `Finish`: no checkpoint is under way here and none will be; MPI may be taken down.
    pub fn has_finished(&self) -> bool {
        self.finishing && self.current.is_none()
    }

    /// The youngest checkpoint that is over here.
    pub fn last_checkpoint(&self) -> Option<u64> {
        self.last
    }

    fn is_over(&self, checkpoint: u64) -> bool {
        self.last.is_some_and(|last| checkpoint <= last)
    }

    /// Not over, and not older than what is being done.
    fn is_news(&self, checkpoint: u64) -> bool {
        !self.is_over(checkpoint)
            && self.current.as_ref().is_none_or(|current| current.checkpoint <= checkpoint)
            && self.stopped.is_none_or(|stopped| stopped <= checkpoint)
    }

    fn answer(&mut self, answer: CheckpointAnswer) {
        self.outputs.push_back(Output::Answer(answer));
    }

    fn stop_outgoing(&mut self, checkpoint: u64) {
        if !self.is_news(checkpoint) || self.stopped == Some(checkpoint) || self.is_in(checkpoint) {
            return;
        }
        self.abandon_older(checkpoint);
        if self.finishing {
            self.refuse(checkpoint, CheckpointRefusal::Finishing);
            return;
        }
        self.stopped = Some(checkpoint);
        self.outputs.push_back(Output::HoldOutgoing);
        self.answer(CheckpointAnswer::Stopped { checkpoint });
    }

    fn is_in(&self, checkpoint: u64) -> bool {
        self.current.as_ref().is_some_and(|current| current.checkpoint == checkpoint)
    }

    /// Enter a checkpoint: on order, or because a token of it has come.
    fn begin(&mut self, checkpoint: u64, scope: CheckpointScope) {
        if !self.is_news(checkpoint) || self.is_in(checkpoint) {
            return;
        }
        self.abandon_older(checkpoint);
        if self.finishing {
            self.refuse(checkpoint, CheckpointRefusal::Finishing);
            return;
        }
        if scope == CheckpointScope::Global && self.stopped != Some(checkpoint) {
            self.refuse(checkpoint, CheckpointRefusal::NotStopped);
            return;
        }
        self.current = Some(ActiveCheckpoint {
            checkpoint,
            scope,
            phase: Phase::Eager,
            tokens: BTreeSet::new(),
            flushing: BTreeSet::new(),
            barriers: Default::default(),
            arrived: None,
            frozen: false,
        });
        self.outputs.push_back(Output::Enter { checkpoint });
        if self.method == QuiesceMethod::Counters {
            return;
        }
        let what = CheckpointStep::Token { global: scope == CheckpointScope::Global };
        for at in 0..self.members.len() {
            let to = self.members[at];
            if to != self.me {
                self.outputs
                    .push_back(Output::Send { to, frame: CheckpointFrame { checkpoint, what } });
            }
        }
        self.advance();
    }

    /// S4: the checkpoint will not be taken here, and its frames are ignored.
    fn refuse(&mut self, checkpoint: u64, refusal: CheckpointRefusal) {
        self.over(checkpoint);
        self.answer(CheckpointAnswer::Failed { checkpoint, refusal });
    }

    fn over(&mut self, checkpoint: u64) {
        self.last = self.last.max(Some(checkpoint));
    }

    /// Older checkpoints than `checkpoint` are over, whatever became of them.
    fn abandon_older(&mut self, checkpoint: u64) {
        if let Some(current) = &self.current
            && current.checkpoint < checkpoint
        {
            self.leave();
        }
        if self.stopped.is_some_and(|stopped| stopped < checkpoint) {
            self.release_outgoing();
        }
    }

    fn release_outgoing(&mut self) {
        if let Some(checkpoint) = self.stopped.take() {
            self.over(checkpoint);
            self.outputs.push_back(Output::ReleaseOutgoing);
        }
    }

    /// The checkpoint is over here.
    fn leave(&mut self) {
        let Some(ActiveCheckpoint { checkpoint, frozen, scope, .. }) = self.current.take() else {
            return;
        };
        self.over(checkpoint);
        self.outputs.push_back(Output::Resume { checkpoint, frozen });
        if scope == CheckpointScope::Global {
            self.release_outgoing();
        }
    }

    fn on_frame(&mut self, from: PeerId, frame: CheckpointFrame) -> Result<(), QuiescenceError> {
        if from == self.me || self.members.binary_search(&from).is_err() {
            return Err(QuiescenceError::NotMember(from));
        }
        let CheckpointFrame { checkpoint, what } = frame;
        if !self.is_news(checkpoint) {
            return Ok(());
        }
        if self.method == QuiesceMethod::Counters {
            return Err(QuiescenceError::OtherMethod(from));
        }
        if let CheckpointStep::Token { global } = what {
            self.begin(
                checkpoint,
                if global { CheckpointScope::Global } else { CheckpointScope::Set },
            );
        }
        let shape = self.shape();
        let Some(current) =
            self.current.as_mut().filter(|current| current.checkpoint == checkpoint)
        else {
            // A token that was refused is answered by then; anything else follows our token.
            let refused = matches!(what, CheckpointStep::Token { .. });
            return if refused { Ok(()) } else { Err(QuiescenceError::TooEarly(frame)) };
        };
        match what {
            CheckpointStep::Token { .. } => {
                current.tokens.insert(from);
            }
            CheckpointStep::Flush => {
                let frame = CheckpointFrame { checkpoint, what: CheckpointStep::Flushed };
                self.outputs.push_back(Output::Send { to: from, frame });
            }
            CheckpointStep::Flushed => {
                current.flushing.remove(&from);
            }
            CheckpointStep::Barrier { second, round } => {
                if !current.barriers[usize::from(second)].take(shape, round) {
                    return Err(QuiescenceError::Round(round));
                }
            }
        }
        self.advance();
        Ok(())
    }

    fn on_rendezvous_quiescent(
        &mut self,
        done_recipients: &[PeerId],
    ) -> Result<(), QuiescenceError> {
        if let Some(&other) =
            done_recipients.iter().find(|peer| self.members.binary_search(peer).is_err())
        {
            return Err(QuiescenceError::NotMember(other));
        }
        let me = self.me;
        let counts = self.method == QuiesceMethod::Counters;
        let Some(current) =
            self.current.as_mut().filter(|current| current.phase == Phase::Rendezvous)
        else {
            return Err(QuiescenceError::Unexpected("rendezvous silence"));
        };
        if counts {
            current.phase = Phase::Flush;
            self.advance_counters();
            return Ok(());
        }
        current.flushing = done_recipients.iter().copied().filter(|&peer| peer != me).collect();
        current.phase = Phase::Flush;
        let frame = CheckpointFrame { checkpoint: current.checkpoint, what: CheckpointStep::Flush };
        self.outputs.extend(current.flushing.iter().map(|&to| Output::Send { to, frame }));
        self.advance();
        Ok(())
    }

    fn on_snapshot(
        &mut self,
        checkpoint: u64,
        refusal: Option<CheckpointRefusal>,
    ) -> Result<(), QuiescenceError> {
        if self.is_over(checkpoint) {
            return Ok(());
        }
        let alone = self.members.len() == 1;
        let Some(current) = self
            .current
            .as_mut()
            .filter(|current| current.checkpoint == checkpoint && current.phase == Phase::Freeze)
        else {
            return Err(QuiescenceError::Unexpected("a snapshot"));
        };
        current.frozen = refusal.is_none();
        let scope = current.scope;
        current.phase = if scope == CheckpointScope::Global {
            Phase::AwaitResume
        } else {
            Phase::SecondBarrier
        };
        self.answer(match refusal {
            None => CheckpointAnswer::Frozen { checkpoint },
            Some(refusal) => CheckpointAnswer::Failed { checkpoint, refusal },
        });
        if scope == CheckpointScope::Set && alone {
            self.leave();
        } else if self.method == QuiesceMethod::Counters {
            self.advance_counters();
        } else {
            self.advance();
        }
        Ok(())
    }

    fn on_resume(&mut self, checkpoint: u64) {
        let awaited = self.current.as_ref().is_some_and(|current| {
            current.checkpoint == checkpoint && current.phase == Phase::AwaitResume
        });
        if awaited {
            self.leave();
        }
    }

    fn abort(&mut self, checkpoint: u64) {
        if !self.is_news(checkpoint) {
            return;
        }
        self.abandon_older(checkpoint);
        if self.is_in(checkpoint) {
            self.leave();
        }
        if self.stopped == Some(checkpoint) {
            self.release_outgoing();
        }
        self.over(checkpoint);
    }

    fn finish(&mut self) {
        self.finishing = true;
        if self.current.is_none()
            && let Some(checkpoint) = self.stopped
        {
            self.release_outgoing();
            self.answer(CheckpointAnswer::Failed {
                checkpoint,
                refusal: CheckpointRefusal::Finishing,
            });
        }
    }

    fn on_restored(&mut self) -> Result<(), QuiescenceError> {
        let Some(current) = self.current.take_if(|current| current.phase == Phase::Freeze) else {
            return Err(QuiescenceError::Unexpected("a restored process"));
        };
        self.outputs.clear();
        // `Engine::restarted` has released the channels.
        self.stopped = None;
        self.over(current.checkpoint);
        self.outputs.push_back(Output::Resume { checkpoint: current.checkpoint, frozen: true });
        Ok(())
    }

    fn shape(&self) -> Shape {
        Shape::of(self.members.len())
    }

    /// Go through all phases whose conditions hold.
    fn advance(&mut self) {
        let (others, shape) = (self.members.len() - 1, self.shape());
        loop {
            let Some(current) = &mut self.current else { return };
            let (checkpoint, next) = match current.phase {
                Phase::Eager if current.tokens.len() == others => {
                    (current.checkpoint, Phase::Rendezvous)
                }
                Phase::Flush if current.flushing.is_empty() => {
                    (current.checkpoint, Phase::FirstBarrier)
                }
                Phase::FirstBarrier | Phase::SecondBarrier => {
                    let second = current.phase == Phase::SecondBarrier;
                    let checkpoint = current.checkpoint;
                    let barrier = &mut current.barriers[usize::from(second)];
                    let frames = barrier.advance(shape);
                    let complete = barrier.is_complete(shape);
                    for round in frames {
                        self.send_round(checkpoint, second, round);
                    }
                    if !complete {
                        return;
                    }
                    if second {
                        self.leave();
                        return;
                    }
                    (checkpoint, Phase::Freeze)
                }
                _ => return,
            };
            if let Some(current) = &mut self.current {
                current.phase = next;
            }
            if next == Phase::Freeze {
                self.outputs.push_back(Output::Freeze { checkpoint });
            }
        }
    }

    /// To the process that is so many places further.
    fn send_round(&mut self, checkpoint: u64, second: bool, round: u8) {
        let Ok(at) = self.members.binary_search(&self.me) else {
            unreachable!("a process is of its own set")
        };
        let to = self.members[(at + Shape::distance(round)) % self.members.len()];
        let what = CheckpointStep::Barrier { second, round };
        self.outputs.push_back(Output::Send { to, frame: CheckpointFrame { checkpoint, what } });
    }

    /// Assert what can be seen of the invariants from inside.
    pub fn check(&self) {
        self.check_counters();
        if let Some(current) = &self.current {
            assert!(!self.is_over(current.checkpoint), "S4: the checkpoint is not over");
            let global = current.scope == CheckpointScope::Global;
            assert!(
                !global || self.stopped == Some(current.checkpoint),
                "S5: outgoing is not held"
            );
        }
        if let Some(current) =
            self.current.as_ref().filter(|_| self.method == QuiesceMethod::Frames)
        {
            let past = !matches!(current.phase, Phase::Eager);
            let all = current.tokens.len() + 1 == self.members.len();
            assert!(!past || all, "S3: past eager silence without a token");
            let barrier = !matches!(current.phase, Phase::Flush | Phase::Rendezvous | Phase::Eager);
            assert!(!barrier || current.flushing.is_empty(), "S3: a flush is not answered");
            let snapshot = barrier && current.phase != Phase::FirstBarrier;
            let met = current.barriers[0].is_complete(self.shape());
            assert!(!snapshot || met, "S3: a round is missing");
        }
        assert!(
            self.stopped.is_none_or(|checkpoint| !self.is_over(checkpoint)),
            "S5: held for an old checkpoint"
        );
        let bound = 6 * self.members.len() + 200;
        assert!(self.outputs.len() <= bound, "S6: {} outputs", self.outputs.len());
    }
}
