//! One-sided communication in simulated jobs: the machine of windows (`fragments/rma`) over the
//! engine, driven as its contract says (fragments/rma/DESIGN.md).
//!
//! Beside this file: programs with windows (`programs`), what their calls do (`calls`), replays and
//! their common end (`replays`).

pub mod calls;
pub mod programs;
pub mod replays;

use crate::host::BLANK;
use crate::host::Buffer;
use crate::model::{Message, Sent, content_digest};
use crate::options::{Options, Planted};
use crate::process::{Process, Shared};
use programs::CELLS;
use rustbtl_coordination::determinants::AppliedRun;
use rustbtl_fragments::engine::{Mode, SendOutcome};
use rustbtl_fragments::host::DIRECT_TAGS;
use rustbtl_fragments::ids::*;
use rustbtl_rma::ids::Tick;
use rustbtl_rma::machine::{Lane, Limits, Output, Rma};
use rustbtl_rma::memory::Memory;
use rustbtl_rma::record::{Applied, Recorded};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Address of the first window.
const BASE: u64 = 0x7000;
/// Tokens of messages for windows begin here, far above those of the program.
pub(crate) const TOKENS: u32 = 1 << 30;
/// Tokens of pairs without a match count down from the top; these begin here.
const TOKENS_END: u32 = 3 << 30;

/// Is this the token of a message for windows?
pub fn is_of_window(token: u32) -> bool {
    (TOKENS..TOKENS_END).contains(&token)
}

fn tag_of(lane: Lane) -> i32 {
    match lane {
        Lane::Operations => *DIRECT_TAGS.start(),
        Lane::Replies => *DIRECT_TAGS.end(),
    }
}

/// Memory of all windows of a process, one after the other.
#[derive(Clone, Default)]
pub struct Cells(Vec<u8>);

impl Cells {
    /// Cells from `first` on of a window.
    pub fn numbers(&self, window: usize, first: usize, count: usize) -> Vec<u64> {
        let at = 8 * (window * CELLS + first);
        numbers(&self.0[at..at + 8 * count])
    }
}

impl Memory for Cells {
    fn read(&self, address: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.0[(address - BASE) as usize..][..into.len()]);
    }

    fn write(&mut self, address: u64, from: &[u8]) {
        self.0[(address - BASE) as usize..][..from.len()].copy_from_slice(from);
    }
}

/// Cells as numbers.
pub fn numbers(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| chunk.try_into().map_or(0, u64::from_le_bytes);
    bytes.chunks(8).map(word).collect()
}

/// Messages of one lane from one rank of a window.
type Source = (ContextId, CommRank, i32);

#[derive(Clone)]
enum Arrival {
    Whole(Vec<u8>),
    Coming(u32),
}

/// What a process has of one-sided communication. All of it is in a checkpoint.
#[derive(Clone)]
pub struct Windows {
    /// The machine.
    pub rma: Rma,
    /// Memory of the windows.
    pub cells: Cells,
    ready: VecDeque<(Source, Vec<u8>)>,
    /// Streams whose first message is still coming.
    coming: BTreeMap<Source, VecDeque<Arrival>>,
    of_token: BTreeMap<u32, Source>,
    come: BTreeMap<u32, Vec<u8>>,
    sends: BTreeSet<u32>,
    next_token: u32,
    /// How many messages the machine has got. (Of each window: a stream goes on in the next one
    /// with its number, and what is for that need not wait for a payload that is for this.)
    given: BTreeMap<Source, u64>,
    /// The communicator of each window, by its place in the script.
    comms: BTreeMap<ContextId, usize>,
    /// A record is followed, or was until its end.
    follows: bool,
    planted: Option<Planted>,
}

impl Windows {
    /// A process that may have so many windows, one after the other.
    pub fn new(options: &Options, windows: usize) -> Self {
        Self {
            rma: Rma::new(Limits { part_bytes_max: options.part_bytes_max }),
            cells: Cells(vec![0; 8 * CELLS * windows]),
            ready: VecDeque::new(),
            coming: BTreeMap::new(),
            of_token: BTreeMap::new(),
            come: BTreeMap::new(),
            sends: BTreeSet::new(),
            next_token: TOKENS,
            given: BTreeMap::new(),
            comms: BTreeMap::new(),
            follows: false,
            planted: options.planted,
        }
    }

    /// A token that was never used.
    pub(crate) fn token(&mut self) -> u32 {
        self.next_token += 1;
        self.next_token
    }

    /// Receives of the engine that no receive of the program stands for.
    pub fn receives(&self) -> usize {
        self.of_token.len()
    }

    /// How many messages of each window and source the machine has got.
    pub(crate) fn given(&self) -> &BTreeMap<Source, u64> {
        &self.given
    }

    /// Rule 3.
    pub fn holds(&self) -> bool {
        self.rma.holds_completions() && self.planted != Some(Planted::WindowCompletesEarly)
    }

    /// Nothing is left of any window?
    pub fn is_idle(&self) -> bool {
        !self.rma.has_windows()
            && self.rma.kept() == (0, 0)
            && self.ready.is_empty()
            && self.coming.is_empty()
            && self.sends.is_empty()
    }

    /// See `Host::direct_message`.
    pub fn arrived(&mut self, source: Source, payload: &[u8]) {
        match self.coming.get_mut(&source) {
            None => self.ready.push_back((source, payload.to_vec())),
            Some(behind) => behind.push_back(Arrival::Whole(payload.to_vec())),
        }
    }

    /// See `Host::direct_buffer`: its token.
    pub fn announced(&mut self, source: Source) -> u32 {
        let token = self.token();
        self.coming.entry(source).or_default().push_back(Arrival::Coming(token));
        self.of_token.insert(token, source);
        token
    }

    /// The engine has done with an operation. Gives the buffer's content for what has come.
    fn completed(&mut self, token: u32, bytes: Vec<u8>) {
        let Some(source) = self.of_token.remove(&token) else {
            assert!(self.sends.remove(&token), "{token} is complete a second time");
            return;
        };
        self.come.insert(token, bytes);
        let Some(arrivals) = self.coming.get_mut(&source) else { panic!("nothing is coming") };
        while let Some(first) = arrivals.pop_front() {
            let bytes = match first {
                Arrival::Whole(bytes) => bytes,
                Arrival::Coming(token) => match self.come.remove(&token) {
                    Some(bytes) => bytes,
                    None => {
                        arrivals.push_front(Arrival::Coming(token));
                        return;
                    }
                },
            };
            self.ready.push_back((source, bytes));
        }
        self.coming.remove(&source);
    }
}

impl Process {
    /// The machine of windows.
    pub fn windows(&mut self) -> &mut Windows {
        &mut self.host.memory.windows
    }

    /// The engine has done with a message for a window.
    pub(crate) fn window_message_is_complete(&mut self, token: u32) {
        let bytes = self.host.memory.buffers.remove(&token).unwrap_or_default();
        self.windows().completed(token, bytes);
    }

    /// One step of the machine: hand in, apply, record, and only then send (rule 2 of the
    /// contract).
    pub fn progress_windows(&mut self, shared: &mut Shared) {
        if !shared.options.windows {
            return;
        }
        let planted = shared.options.planted;
        loop {
            while let Some((source, message)) = self.windows().ready.pop_front() {
                self.hand_in(shared, source, message);
            }
            self.apply();
            let late = planted == Some(Planted::WindowRecordedLate);
            if !late {
                self.record_applied();
            }
            while let Some(output) = self.windows().rma.poll_output() {
                self.carry_out(shared, output);
            }
            self.record_applied();
            if self.windows().ready.is_empty() {
                break;
            }
        }
        let all = planted == Some(Planted::WindowNotWithheld)
            || planted == Some(Planted::WindowWithheldAlone) && self.is_through();
        if all && self.windows().follows && self.windows().rma.end_replay() {
            self.windows().follows = false;
            self.progress_windows(shared);
        }
        self.windows().rma.check();
    }

    /// Is its replay complete, as far as this process knows?
    pub fn is_through(&self) -> bool {
        !self.host.memory.decisions.has_outcomes_to_replay()
            && self.host.memory.windows.rma.is_record_applied()
            && self.engine.is_replay_complete()
    }

    fn apply(&mut self) {
        let Windows { rma, cells, planted, .. } = &mut self.host.memory.windows;
        // Rule 2 left out: the record's ticks do not matter.
        let ahead = *planted == Some(Planted::WindowTickIgnored) && !rma.is_record_applied();
        let actions = if ahead { 10_000 } else { 0 };
        (0..actions).for_each(|_| rma.action());
        if let Err(fault) = rma.progress(cells) {
            panic!("{}: {fault}", self.me);
        }
        (0..actions).for_each(|_| rma.undo_action());
    }

    fn hand_in(&mut self, shared: &Shared, source: Source, mut message: Vec<u8>) {
        let (window, from, tag) = source;
        let comm = self.comm_of(shared, window);
        let sender = shared.script.comms[comm].members[from.0 as usize];
        let stream = (window.number(), sender, self.me, tag);
        let number = self.windows().given.entry(source).or_default();
        let sent = shared.book.find_in(stream, window, *number);
        assert_eq!(sent.digest, content_digest(&message), "content of {sent:?}");
        *number += 1;
        if shared.options.planted == Some(Planted::WindowEpochsIgnored)
            && tag == tag_of(Lane::Operations)
        {
            let number = u64::from(message[1] != 0);
            message[8..16].copy_from_slice(&number.to_le_bytes());
        }
        let rma = &mut self.windows().rma;
        let taken = if tag == tag_of(Lane::Operations) {
            rma.on_operation(window, from, message)
        } else {
            rma.on_reply(window, from, &message)
        };
        if let Err(fault) = taken {
            panic!("{}: {fault}: {sent:?}", self.me);
        }
    }

    fn comm_of(&self, shared: &Shared, window: ContextId) -> usize {
        let comms = &shared.script.comms;
        let Some(comm) = comms.iter().position(|comm| comm.context == window) else {
            panic!("no communicator {window:?}")
        };
        comm
    }

    fn record_applied(&mut self) {
        if !self.windows().rma.has_recorded() {
            return;
        }
        let runs = self.windows().rma.take_recorded();
        let decisions = &mut self.host.memory.decisions;
        decisions.before_library_action();
        for recorded in runs {
            let Recorded::Own(run) = recorded else { panic!("nothing is direct here") };
            let Applied { window, source, count, tick: Tick(tick) } = run;
            decisions.applied(AppliedRun { window, source, count, tick });
            self.host.applied_runs += 1;
        }
        self.host.drain();
    }

    fn carry_out(&mut self, shared: &mut Shared, output: Output) {
        match output {
            Output::Send { window, to, lane, message } => {
                self.send_of_window(shared, window, to, lane, message);
            }
            Output::Data { operation, first, data } => {
                self.program.fetched.data(operation, first, &data);
            }
            Output::Completed { operation, error } => {
                assert_eq!(error, None, "an operation is refused");
                self.program.fetched.complete(operation);
            }
        }
    }

    fn send_of_window(
        &mut self,
        shared: &mut Shared,
        window: ContextId,
        to: CommRank,
        lane: Lane,
        content: Vec<u8>,
    ) {
        let comm = self.windows().comms[&window];
        let members = &shared.script.comms[comm].members;
        let receiver = members[to.0 as usize];
        let source = members.iter().position(|&rank| rank == self.me).unwrap_or(0) as u32;
        let tag = tag_of(lane);
        let stream = (window.number(), self.me, receiver, tag);
        let sequence = self.program.next_of(stream);
        let (bytes, digest) = (content.len() as u64, content_digest(&content));
        let context = window.0;
        let message = Message { context, stream, sequence, source, tag, bytes, digest };
        shared.book.send(Sent { message, synchronous: false });
        let token = self.windows().token();
        self.host.memory.buffers.insert(token, content);
        self.windows().sends.insert(token);
        let id = self.program.comms[&comm];
        let buffer = Buffer(token);
        let mode = Mode::Standard;
        match self.engine.send(&mut self.host, id, to, tag, mode, buffer, bytes, token) {
            Ok(SendOutcome::Complete) => self.window_message_is_complete(token),
            Ok(SendOutcome::Pending(id)) => {
                if self.engine.detach_send(id) {
                    self.window_message_is_complete(token);
                }
            }
            Err(error) => panic!("the log refused a message: {error:?}"),
        }
    }
}

/// A buffer for a message that was announced.
pub fn blank(bytes: u64) -> Vec<u8> {
    vec![BLANK; bytes as usize]
}
