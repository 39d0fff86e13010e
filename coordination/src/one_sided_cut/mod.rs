//! A consistent cut through accesses to memory that hardware makes: one process's part.
//!
//! Source: F. Butelle, C. Coti, "Distributed Snapshot for Rollback-Recovery with One-Sided
//! Communications", 2018. Markers between all processes empty the channels of messages and of puts.
//! A get goes there and back: its request is before the marker of who reads, and the data can be
//! behind that of who is read. Then the access **overlaps** the cut (it began before the snapshot
//! of who reads, and is over behind it), and its data may **cross** it (read before one snapshot,
//! written behind the other): it is in neither. Their three solutions are [`CutMethod`]s here, and
//! so are the markers alone.
//!
//! Nothing of ours needs this today: an access to a window is two messages of the engine, each of
//! which is in an image, in a log, or repeated (docs/adr/0037), and no transport reads memory by
//! itself. One that does would take the partial double barrier for its part of the quiescence.
//!
//! ```text
//!  normal ─Begin or first marker─> checkpointing ─all markers, and what the method asks─> frozen
//!     ^ └─ peek-and-get: once no get is open ─┘                                              │
//!     └───────────────────────────── Resume: each process has its snapshot ──────────────────┘
//! ```
//!
//! Invariants:
//! * B1 From the first that is heard of a checkpoint to `Resume` no access of the program is
//!   started, and none is lost: it is started then.
//! * B2 Each other process gets one marker of a checkpoint; with the double barrier also one second
//!   marker, after the markers of all have come.
//! * B3 One snapshot for each checkpoint, after the markers of all (second ones, too).
//! * B4 Peek-and-get: no get is open when markers are sent.
//! * B5 Delay: between markers and `Resume` no data leaves; requests wait, and are in the snapshot.
//! * B6 Partial double barrier: who is asked is whose marker came while a get from it was open,
//!   once in a checkpoint; no snapshot before the answers.
//! * B7 Frames of a checkpoint that is over change nothing.
//!
//! Cost of a checkpoint of n processes: n(n − 1) markers; with the double barrier n(n − 1) more,
//! with the partial one 2g more, where g pairs of processes had a get open when the marker came;
//! peek-and-get pays two frames for each look of each get, checkpoint or not.
//!
//! Where this differs from the paper:
//! * They do not say when a process with its snapshot goes on. Its next put could come to one that
//!   has none, and would be in that one's snapshot without having been made. So `Resume` comes when
//!   all have theirs, as in [`crate::quiescence`]; the simulation finds it left out.
//! * Peek-and-get: they have a process that meets the target's marker inside of a get enter behind
//!   that get. A marker of a third process, or an order, can come there, too. So it enters behind
//!   all of its gets. Where hardware tells that a get is complete, that alone is enough.
//! * Partial double barrier: they have a process enter behind the flush; here it enters at once,
//!   and only its snapshot waits. Their worst case, n(n − 1) more, needs one frame to be question
//!   and answer where two processes read each other; here it is twice that.

mod io;

pub use io::{Access, CutError, CutFrame, CutMethod, Input, Output};
use rustbtl_fragments::ids::PeerId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A checkpoint that has begun.
#[derive(Clone, Debug)]
struct Wave {
    wave: u64,
    /// Markers are sent.
    entered: bool,
    markers: BTreeSet<PeerId>,
    second_sent: bool,
    second: BTreeSet<PeerId>,
    /// Whose answer to a flush is awaited.
    flushing: BTreeSet<PeerId>,
    frozen: bool,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct OneSidedCut {
    others: Vec<PeerId>,
    method: CutMethod,
    /// Gets that have left and whose data is not here, by target.
    open: BTreeMap<PeerId, u32>,
    /// Gets that wait for an answer to their question.
    peeking: BTreeMap<u64, PeerId>,
    /// Accesses that may not start yet, in the program's order.
    waiting: VecDeque<Access>,
    /// Requests that may not be answered yet.
    delayed: VecDeque<(PeerId, u64)>,
    wave: Option<Wave>,
    /// The youngest checkpoint that is over.
    last: Option<u64>,
    outputs: VecDeque<Output>,
}

impl OneSidedCut {
    /// The part of process `me`; `members`: all, in any order.
    pub fn new(me: PeerId, members: &[PeerId], method: CutMethod) -> Self {
        Self {
            others: members.iter().copied().filter(|&other| other != me).collect(),
            method,
            open: BTreeMap::new(),
            peeking: BTreeMap::new(),
            waiting: VecDeque::new(),
            delayed: VecDeque::new(),
            wave: None,
            last: None,
            outputs: VecDeque::new(),
        }
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Is every access of the program started and every get complete?
    pub fn is_idle(&self) -> bool {
        self.open.is_empty() && self.peeking.is_empty() && self.waiting.is_empty()
    }

    /// The checkpoint that is under way here.
    pub fn wave(&self) -> Option<u64> {
        self.wave.as_ref().map(|wave| wave.wave)
    }

    /// Is a get from this process open?
    pub fn has_open(&self, target: PeerId) -> bool {
        self.open.contains_key(&target)
    }

    /// Something has happened.
    ///
    /// # Errors
    /// [`CutError`]; nothing has changed then.
    pub fn handle(&mut self, input: Input) -> Result<(), CutError> {
        match input {
            Input::Begin { wave } => {
                if self.is_new(wave)? {
                    self.begin(wave);
                }
            }
            Input::Access(access) => {
                self.member(access.to)?;
                self.access(access);
            }
            Input::Frame { from, frame } => {
                self.member(from)?;
                self.frame(from, frame)?;
            }
            Input::Request { from, id } => {
                self.member(from)?;
                if self.method == CutMethod::Delay && self.is_checkpointing() {
                    self.delayed.push_back((from, id));
                } else {
                    self.outputs.push_back(Output::Reply { to: from, id });
                }
            }
            Input::Data { from } => {
                self.member(from)?;
                let count = self.open.get_mut(&from).ok_or(CutError::NoSuchGet)?;
                *count -= 1;
                if *count == 0 {
                    self.open.remove(&from);
                }
            }
            Input::Resume { wave } => {
                let over = self.last.is_some_and(|last| wave <= last);
                if !over && !self.is_frozen(wave) {
                    return Err(CutError::NoSnapshot);
                }
                if !over {
                    self.resume();
                }
            }
            Input::Restored => {
                if !self.wave.as_ref().is_some_and(|wave| wave.frozen) {
                    return Err(CutError::NoSnapshot);
                }
                self.ask_again();
                self.resume();
            }
        }
        self.go_on();
        Ok(())
    }

    fn member(&self, peer: PeerId) -> Result<(), CutError> {
        if self.others.contains(&peer) { Ok(()) } else { Err(CutError::NotMember(peer)) }
    }

    /// B7. A newer checkpoint is ordered when all have their snapshot of the one before.
    fn is_new(&self, wave: u64) -> Result<bool, CutError> {
        match &self.wave {
            Some(current) if wave > current.wave && !current.frozen => {
                Err(CutError::NotOver(current.wave))
            }
            Some(current) => Ok(wave > current.wave),
            None => Ok(self.last.is_none_or(|last| wave > last)),
        }
    }

    fn is_checkpointing(&self) -> bool {
        self.wave.as_ref().is_some_and(|wave| wave.entered)
    }

    fn is_frozen(&self, number: u64) -> bool {
        self.wave.as_ref().is_some_and(|wave| wave.wave == number && wave.frozen)
    }

    fn current(&mut self, number: u64) -> Option<&mut Wave> {
        self.wave.as_mut().filter(|wave| wave.wave == number)
    }

    fn begin(&mut self, wave: u64) {
        if self.wave.is_some() {
            self.resume();
        }
        self.wave = Some(Wave {
            wave,
            entered: false,
            markers: BTreeSet::new(),
            second_sent: false,
            second: BTreeSet::new(),
            flushing: BTreeSet::new(),
            frozen: false,
        });
    }

    fn access(&mut self, access: Access) {
        if self.wave.is_some() {
            self.waiting.push_back(access); // B1
        } else if access.is_get && self.method == CutMethod::PeekAndGet {
            self.peek(access.to, access.id);
        } else {
            self.start(access);
        }
    }

    fn start(&mut self, access: Access) {
        if access.is_get {
            *self.open.entry(access.to).or_default() += 1;
        }
        self.outputs.push_back(Output::Start(access));
    }

    fn peek(&mut self, to: PeerId, id: u64) {
        self.peeking.insert(id, to);
        self.send(to, CutFrame::Peek { id });
    }

    fn send(&mut self, to: PeerId, frame: CutFrame) {
        self.outputs.push_back(Output::Send { to, frame });
    }

    fn send_to_all(&mut self, frame: CutFrame) {
        for &to in &self.others {
            self.outputs.push_back(Output::Send { to, frame });
        }
    }

    fn frame(&mut self, from: PeerId, frame: CutFrame) -> Result<(), CutError> {
        match frame {
            CutFrame::Marker { wave } => {
                if self.is_new(wave)? {
                    self.begin(wave);
                }
                let ask = self.method == CutMethod::PartialDoubleBarrier && self.has_open(from);
                if let Some(current) = self.current(wave).filter(|current| !current.frozen) {
                    current.markers.insert(from);
                    if ask && current.flushing.insert(from) {
                        self.send(from, CutFrame::FlushAsk { wave }); // B6
                    }
                }
            }
            CutFrame::SecondMarker { wave } => {
                if let Some(current) = self.current(wave) {
                    current.second.insert(from);
                }
            }
            CutFrame::FlushAsk { wave } => self.send(from, CutFrame::FlushAnswer { wave }),
            CutFrame::FlushAnswer { wave } => {
                if let Some(current) = self.current(wave) {
                    current.flushing.remove(&from);
                }
            }
            CutFrame::Peek { id } => {
                let checkpointing = self.is_checkpointing();
                self.send(from, CutFrame::State { id, checkpointing });
            }
            CutFrame::State { id, checkpointing } => {
                let to = self.peeking.get(&id).copied().filter(|&to| to == from);
                let to = to.ok_or(CutError::NoSuchGet)?;
                self.peeking.remove(&id);
                let access = Access { to, id, is_get: true };
                if checkpointing && self.wave.is_none() {
                    self.peek(to, id);
                } else if self.wave.is_some() {
                    self.waiting.push_back(access); // B1
                } else {
                    self.start(access);
                }
            }
        }
        Ok(())
    }

    /// Enter, and freeze, if that may be.
    fn go_on(&mut self) {
        let gets_are_over = self.method != CutMethod::PeekAndGet || self.open.is_empty(); // B4
        let count = self.others.len();
        let Some(current) = &mut self.wave else { return };
        let wave = current.wave;
        if !current.entered && gets_are_over {
            current.entered = true;
            self.send_to_all(CutFrame::Marker { wave }); // B2
        }
        let Some(current) = &mut self.wave else { return };
        let all = current.entered && current.markers.len() == count;
        let double = self.method == CutMethod::DoubleBarrier;
        if all && double && !current.second_sent {
            current.second_sent = true;
            self.send_to_all(CutFrame::SecondMarker { wave }); // B2
        }
        let Some(current) = &mut self.wave else { return };
        let empty = current.flushing.is_empty() && (!double || current.second.len() == count);
        if all && empty && !current.frozen {
            current.frozen = true;
            self.outputs.push_back(Output::Snapshot { wave }); // B3
        }
    }

    /// Questions that were under way when the snapshot was taken are on no channel any more.
    fn ask_again(&mut self) {
        for (id, to) in std::mem::take(&mut self.peeking) {
            self.waiting.push_back(Access { to, id, is_get: true });
        }
    }

    fn resume(&mut self) {
        self.last = self.wave.take().map(|wave| wave.wave).or(self.last);
        for (to, id) in std::mem::take(&mut self.delayed) {
            self.outputs.push_back(Output::Reply { to, id }); // B5
        }
        for access in std::mem::take(&mut self.waiting) {
            self.access(access);
        }
    }
}
