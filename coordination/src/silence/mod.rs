//! One process's part in the lines of its set: enter, fall silent, meet, take the picture, go on.
//!
//! Source: DESIGN §6; paper §3.1 (eager and rendezvous silence); docs/adr/0002. Phases of a line:
//!
//! ```text
//!  Idle ─Begin or first token─> Eager ─all tokens─> Rendezvous ─silent─> Flush
//!  ─all seen─> First barrier ─> Freeze (picture) ─Frozen─> Second barrier ─> Idle
//!                                          └ global line: wait for Resume ┘
//! ```
//!
//! * **Token** to each process of the set: no message from me follows. When all are in, every
//!   eager fragment that has left has arrived.
//! * **Rendezvous silence**: matched receives from inside are complete. Then no `Grant` and no
//!   `Data` can be under way, but a `Done` can: to those who were sent one behind our token goes a
//!   **Flush**, and we wait for the answer. Most lines need none.
//! * **First barrier** (dissemination in ⌈log₈ n⌉ rounds, `barrier.rs`): who leaves it knows that
//!   all have come here, so nothing but frames of the barrier is under way inside the set.
//! * **Second barrier**: nobody sends before all have their picture. A set of one needs neither; in
//!   a global line the order to resume, which comes when all sets have theirs, stands for it.
//!
//! Invariants (N is the number of processes in the set):
//! * S1 Each line that is entered is resumed once, before the next is entered.
//! * S2 Each other process of the set gets one token of a line, after `Enter` and before `Freeze`.
//! * S3 `Freeze` comes after all tokens are in, all flushes are answered and every round of the
//!   first barrier is in.
//! * S4 Frames and orders of a line up to `last` (over, abandoned or refused) change nothing.
//! * S5 Outgoing channels are held from `HoldOutgoing` to `ReleaseOutgoing`, which alternate.
//! * S6 N − 1 tokens, at most N − 1 flushes with as many answers and twice 7·⌈log₈ N⌉ barrier
//!   frames are sent in a line, at most.
//!
//! A newer line abandons an older one: the coordinator orders it only when the older is over.
//!
//! That is the way by frames. Where all of a set share memory they count instead (`counts.rs`):
//! S1, S4 and S5 hold in both, C1 to C4 stand for the others.

mod barrier;
mod counts;
mod words;

use barrier::{Barrier, Shape};
pub use counts::{Count, Station, Way};
use rustbtl_fragments::checkpoint_frame::{CheckpointFrame, CheckpointStep};
use rustbtl_fragments::ids::PeerId;
use std::collections::{BTreeSet, VecDeque};
pub use words::{Answer, Input, Output, Refusal, Scope, QuiescenceError};

/// Where a process is in a line.
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
    /// The driver takes the picture.
    Freeze,
    /// All must have theirs.
    SecondBarrier,
    /// All sets must have theirs.
    AwaitResume,
}

/// A line that is being taken.
#[derive(Clone, Debug)]
struct Current {
    line: u64,
    scope: Scope,
    phase: Phase,
    /// Members whose token is in.
    tokens: BTreeSet<PeerId>,
    /// Members whose answer to a flush is awaited.
    flushing: BTreeSet<PeerId>,
    /// The first and the second one.
    barriers: [Barrier; 2],
    /// The last station that this process has come to.
    came: Option<Station>,
    frozen: bool,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Quiescence {
    me: PeerId,
    /// All processes of the set, ascending.
    members: Vec<PeerId>,
    way: Way,
    current: Option<Current>,
    /// The global line for which outgoing channels are held.
    stopped: Option<u64>,
    /// The youngest line that is over, abandoned or refused.
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
            way: Way::Frames,
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
            Input::StopOutgoing { line } => self.stop_outgoing(line),
            Input::Begin { line, scope } => self.begin(line, scope),
            Input::Frame { from, frame } => return self.on_frame(from, frame),
            Input::RendezvousQuiescent { told } => return self.on_rendezvous_silent(&told),
            Input::Left { open } => return self.on_left(open),
            Input::Met { line, station, open } => return self.on_met(line, station, open),
            Input::Frozen { line } => return self.on_picture(line, None),
            Input::NotFrozen { line, why } => return self.on_picture(line, Some(why)),
            Input::Resume { line } => self.on_resume(line),
            Input::Abort { line } => self.abort(line),
            Input::Finish => self.finish(),
            Input::Restored => return self.on_restored(),
        }
        Ok(())
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// A line is being taken: the program is out of the engine, the driver keeps it going.
    pub fn is_active(&self) -> bool {
        self.current.is_some()
    }

    /// The line that is being taken, and how far it is.
    pub fn phase(&self) -> Option<(u64, Phase)> {
        self.current.as_ref().map(|current| (current.line, current.phase))
    }

    /// Whose line it is.
    pub fn scope(&self) -> Option<Scope> {
        self.current.as_ref().map(|current| current.scope)
    }

    /// The driver has to look at `Engine::is_rendezvous_quiescent` after each of its rounds.
    pub fn wants_rendezvous_silence(&self) -> bool {
        self.phase().is_some_and(|(_, phase)| phase == Phase::Rendezvous)
    }

    /// After `Finish`: no line is under way here and none will be; MPI may be taken down.
    pub fn has_finished(&self) -> bool {
        self.finishing && self.current.is_none()
    }

    /// The youngest line that is over here.
    pub fn last_line(&self) -> Option<u64> {
        self.last
    }

    fn is_over(&self, line: u64) -> bool {
        self.last.is_some_and(|last| line <= last)
    }

    /// Not over, and not older than what is being done.
    fn is_news(&self, line: u64) -> bool {
        !self.is_over(line)
            && self.current.as_ref().is_none_or(|current| current.line <= line)
            && self.stopped.is_none_or(|stopped| stopped <= line)
    }

    fn answer(&mut self, answer: Answer) {
        self.outputs.push_back(Output::Answer(answer));
    }

    fn stop_outgoing(&mut self, line: u64) {
        if !self.is_news(line) || self.stopped == Some(line) || self.is_in(line) {
            return;
        }
        self.give_up_older(line);
        if self.finishing {
            self.refuse(line, Refusal::Finishing);
            return;
        }
        self.stopped = Some(line);
        self.outputs.push_back(Output::HoldOutgoing);
        self.answer(Answer::Stopped { line });
    }

    fn is_in(&self, line: u64) -> bool {
        self.current.as_ref().is_some_and(|current| current.line == line)
    }

    /// Enter a line: on order, or because a token of it has come.
    fn begin(&mut self, line: u64, scope: Scope) {
        if !self.is_news(line) || self.is_in(line) {
            return;
        }
        self.give_up_older(line);
        if self.finishing {
            self.refuse(line, Refusal::Finishing);
            return;
        }
        if scope == Scope::Global && self.stopped != Some(line) {
            self.refuse(line, Refusal::NotStopped);
            return;
        }
        self.current = Some(Current {
            line,
            scope,
            phase: Phase::Eager,
            tokens: BTreeSet::new(),
            flushing: BTreeSet::new(),
            barriers: Default::default(),
            came: None,
            frozen: false,
        });
        self.outputs.push_back(Output::Enter { line });
        if self.way == Way::Counts {
            return;
        }
        let what = CheckpointStep::Token { global: scope == Scope::Global };
        for at in 0..self.members.len() {
            let to = self.members[at];
            if to != self.me {
                self.outputs.push_back(Output::Send { to, frame: CheckpointFrame { checkpoint: line, what } });
            }
        }
        self.advance();
    }

    /// S4: the line will not be taken here, and nothing of it is listened to.
    fn refuse(&mut self, line: u64, why: Refusal) {
        self.over(line);
        self.answer(Answer::Failed { line, why });
    }

    fn over(&mut self, line: u64) {
        self.last = self.last.max(Some(line));
    }

    /// Older lines than `line` are over, whatever became of them.
    fn give_up_older(&mut self, line: u64) {
        if let Some(current) = &self.current
            && current.line < line
        {
            self.leave();
        }
        if self.stopped.is_some_and(|stopped| stopped < line) {
            self.release_outgoing();
        }
    }

    fn release_outgoing(&mut self) {
        if let Some(line) = self.stopped.take() {
            self.over(line);
            self.outputs.push_back(Output::ReleaseOutgoing);
        }
    }

    /// The line is over here.
    fn leave(&mut self) {
        let Some(Current { line, frozen, scope, .. }) = self.current.take() else { return };
        self.over(line);
        self.outputs.push_back(Output::Resume { line, frozen });
        if scope == Scope::Global {
            self.release_outgoing();
        }
    }

    fn on_frame(&mut self, from: PeerId, frame: CheckpointFrame) -> Result<(), QuiescenceError> {
        if from == self.me || self.members.binary_search(&from).is_err() {
            return Err(QuiescenceError::Stranger(from));
        }
        let CheckpointFrame { checkpoint: line, what } = frame;
        if !self.is_news(line) {
            return Ok(());
        }
        if self.way == Way::Counts {
            return Err(QuiescenceError::OtherWay(from));
        }
        if let CheckpointStep::Token { global } = what {
            self.begin(line, if global { Scope::Global } else { Scope::Set });
        }
        let shape = self.shape();
        let Some(current) = self.current.as_mut().filter(|current| current.line == line) else {
            // A token that was refused is answered by then; anything else follows our token.
            let refused = matches!(what, CheckpointStep::Token { .. });
            return if refused { Ok(()) } else { Err(QuiescenceError::TooEarly(frame)) };
        };
        match what {
            CheckpointStep::Token { .. } => {
                current.tokens.insert(from);
            }
            CheckpointStep::Flush => {
                let frame = CheckpointFrame { checkpoint: line, what: CheckpointStep::Flushed };
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

    fn on_rendezvous_silent(&mut self, told: &[PeerId]) -> Result<(), QuiescenceError> {
        if let Some(&stranger) = told.iter().find(|peer| self.members.binary_search(peer).is_err())
        {
            return Err(QuiescenceError::Stranger(stranger));
        }
        let me = self.me;
        let counts = self.way == Way::Counts;
        let Some(current) =
            self.current.as_mut().filter(|current| current.phase == Phase::Rendezvous)
        else {
            return Err(QuiescenceError::NotAsked("rendezvous silence"));
        };
        if counts {
            current.phase = Phase::Flush;
            self.go_on_counting();
            return Ok(());
        }
        current.flushing = told.iter().copied().filter(|&peer| peer != me).collect();
        current.phase = Phase::Flush;
        let frame = CheckpointFrame { checkpoint: current.line, what: CheckpointStep::Flush };
        self.outputs.extend(current.flushing.iter().map(|&to| Output::Send { to, frame }));
        self.advance();
        Ok(())
    }

    fn on_picture(&mut self, line: u64, refusal: Option<Refusal>) -> Result<(), QuiescenceError> {
        if self.is_over(line) {
            return Ok(());
        }
        let alone = self.members.len() == 1;
        let Some(current) = self
            .current
            .as_mut()
            .filter(|current| current.line == line && current.phase == Phase::Freeze)
        else {
            return Err(QuiescenceError::NotAsked("a picture"));
        };
        current.frozen = refusal.is_none();
        let scope = current.scope;
        current.phase =
            if scope == Scope::Global { Phase::AwaitResume } else { Phase::SecondBarrier };
        self.answer(match refusal {
            None => Answer::Frozen { line },
            Some(why) => Answer::Failed { line, why },
        });
        if scope == Scope::Set && alone {
            self.leave();
        } else if self.way == Way::Counts {
            self.go_on_counting();
        } else {
            self.advance();
        }
        Ok(())
    }

    fn on_resume(&mut self, line: u64) {
        let awaited = self
            .current
            .as_ref()
            .is_some_and(|current| current.line == line && current.phase == Phase::AwaitResume);
        if awaited {
            self.leave();
        }
    }

    fn abort(&mut self, line: u64) {
        if !self.is_news(line) {
            return;
        }
        self.give_up_older(line);
        if self.is_in(line) {
            self.leave();
        }
        if self.stopped == Some(line) {
            self.release_outgoing();
        }
        self.over(line);
    }

    fn finish(&mut self) {
        self.finishing = true;
        if self.current.is_none()
            && let Some(line) = self.stopped
        {
            self.release_outgoing();
            self.answer(Answer::Failed { line, why: Refusal::Finishing });
        }
    }

    fn on_restored(&mut self) -> Result<(), QuiescenceError> {
        let Some(current) = self.current.take_if(|current| current.phase == Phase::Freeze) else {
            return Err(QuiescenceError::NotAsked("a restored process"));
        };
        self.outputs.clear();
        // `Engine::restarted` has released the channels.
        self.stopped = None;
        self.over(current.line);
        self.outputs.push_back(Output::Resume { line: current.line, frozen: true });
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
            let (line, next) = match current.phase {
                Phase::Eager if current.tokens.len() == others => (current.line, Phase::Rendezvous),
                Phase::Flush if current.flushing.is_empty() => (current.line, Phase::FirstBarrier),
                Phase::FirstBarrier | Phase::SecondBarrier => {
                    let second = current.phase == Phase::SecondBarrier;
                    let line = current.line;
                    let barrier = &mut current.barriers[usize::from(second)];
                    let frames = barrier.advance(shape);
                    let complete = barrier.is_complete(shape);
                    for round in frames {
                        self.send_round(line, second, round);
                    }
                    if !complete {
                        return;
                    }
                    if second {
                        self.leave();
                        return;
                    }
                    (line, Phase::Freeze)
                }
                _ => return,
            };
            if let Some(current) = &mut self.current {
                current.phase = next;
            }
            if next == Phase::Freeze {
                self.outputs.push_back(Output::Freeze { line });
            }
        }
    }

    /// To the process that is so many places further.
    fn send_round(&mut self, line: u64, second: bool, round: u8) {
        let Ok(at) = self.members.binary_search(&self.me) else {
            unreachable!("a process is of its own set")
        };
        let to = self.members[(at + Shape::distance(round)) % self.members.len()];
        let what = CheckpointStep::Barrier { second, round };
        self.outputs.push_back(Output::Send { to, frame: CheckpointFrame { checkpoint: line, what } });
    }

    /// Assert what can be seen of the invariants from inside.
    pub fn check(&self) {
        self.check_counts();
        if let Some(current) = &self.current {
            assert!(!self.is_over(current.line), "S4: the line is not over");
            let global = current.scope == Scope::Global;
            assert!(!global || self.stopped == Some(current.line), "S5: outgoing is not held");
        }
        if let Some(current) = self.current.as_ref().filter(|_| self.way == Way::Frames) {
            let past = !matches!(current.phase, Phase::Eager);
            let all = current.tokens.len() + 1 == self.members.len();
            assert!(!past || all, "S3: past eager silence without a token");
            let barrier = !matches!(current.phase, Phase::Flush | Phase::Rendezvous | Phase::Eager);
            assert!(!barrier || current.flushing.is_empty(), "S3: a flush is not answered");
            let picture = barrier && current.phase != Phase::FirstBarrier;
            let met = current.barriers[0].is_complete(self.shape());
            assert!(!picture || met, "S3: a round is missing");
        }
        assert!(self.stopped.is_none_or(|line| !self.is_over(line)), "S5: held for an old line");
        let bound = 6 * self.members.len() + 200;
        assert!(self.outputs.len() <= bound, "S6: {} outputs", self.outputs.len());
    }
}
