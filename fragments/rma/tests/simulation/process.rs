//! A process: its program, its machine, its memory, and the streams that the engine keeps.

use crate::cells::{BASE, Cells, numbers, values};
use crate::model::{counter_cells, read_cells};
use crate::neighbours::{Hood, View};
use crate::script::{CELLS, Call, GUARDED, SECOND, SLOT, SUMS};
use rustbtl_rma::arithmetic::Op;
use rustbtl_rma::error::RmaError;
use rustbtl_rma::ids::{CommRank, ContextId, OperationId};
use rustbtl_rma::layout::{Block, Layout};
use rustbtl_rma::machine::{
    FenceAssert, FenceStep, Kind, Lane, Limits, LockMode, Output, Rma, Wait,
};
use rustbtl_rma::primitive::Primitive;
use rustbtl_rma::record::Recorded;
use rustbtl_rma::window::{Extent, Flavor, Setup};
use rustbtl_seeds::{mix, mix_bytes};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// The window of all programs.
pub const WINDOW: ContextId = window_id(0);
/// Of the second window: the same cells once more.
const SECOND_BASE: u64 = BASE + 8 * CELLS as u64;

/// The first window, or one of those that are the second, one after the other: instances of one
/// context id.
pub const fn window_id(instance: usize) -> ContextId {
    ContextId::new(5, instance as u16)
}

/// What a stream is for. Each pair has one of each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Line {
    Message,
    Matched,
    Collective,
    Operations(usize),
    Replies(usize),
}

/// A payload in the log of its sender.
#[derive(Clone)]
pub struct Logged {
    pub to: usize,
    pub line: Line,
    pub number: usize,
    pub bytes: Vec<u8>,
}

/// An atomic operation and what it returned: (target, cell), old value, when.
#[derive(Clone, Debug)]
pub struct Atomic {
    pub cell: (usize, usize),
    pub index: usize,
    pub old: Option<u64>,
    pub responded: u64,
}

#[derive(Clone)]
pub struct Pending {
    pub operation: OperationId,
    pub to: usize,
    pub data: Vec<u8>,
    pub is_complete: bool,
    pub atomic: Option<usize>,
}

/// All of it is in a checkpoint.
#[derive(Clone)]
pub struct Process {
    pub rank: usize,
    internal: Vec<bool>,
    pub machine: Rma,
    pub memory: Cells,
    pub hood: Hood,
    pub at: usize,
    pub in_call: bool,
    pub state: u64,
    pub atomics: Vec<Atomic>,
    /// Hashes of what was accepted, by sender and line: the engine's counters.
    pub accepted: BTreeMap<(usize, Line), Vec<u64>>,
    /// How many messages were sent, by receiver and line.
    pub sent: BTreeMap<(usize, Line), usize>,
    pub log: Vec<Logged>,
    /// To be sent.
    pub out: Vec<(usize, Line, Vec<u8>)>,
    pub ranks: usize,
    pub is_free: bool,
    /// Second windows that were made.
    pub instances: usize,
    messages: BTreeMap<usize, VecDeque<(u64, bool)>>,
    /// Receives that have begun, of whom, and what they were told.
    begun: Vec<(usize, Option<u64>)>,
    collective: BTreeMap<usize, VecDeque<u64>>,
    matched: BTreeMap<usize, u64>,
    synchronous: BTreeMap<usize, u64>,
    announced: bool,
    pub waits: Vec<Wait>,
    counted: bool,
    pub expected: u64,
    pub pending: Vec<Pending>,
}

/// What the world decides for a step.
pub struct Moment {
    pub now: u64,
    /// Rule 3 is left out.
    pub completes_early: bool,
    /// For waits only.
    pub waits_unheld: bool,
}

/// No fence has more accesses.
const COUNT_MAX: u64 = u32::MAX as u64;
const SLOT_BYTES: u64 = 8 * SLOT as u64;

fn layout(strided: bool) -> Layout {
    match strided {
        false => Layout::Contiguous { primitive: Primitive::U64, count: SLOT as u64 },
        true => {
            let row = |displacement| Block { displacement, stride: -16, length: 1, repeats: 3 };
            let blocks = vec![row(32), row(40)];
            let extent = SLOT_BYTES as i64;
            Layout::Described { primitive: Primitive::U64, count: 1, extent, blocks }
        }
    }
}

const ONE: Layout = Layout::Contiguous { primitive: Primitive::U64, count: 1 };

pub fn rank_of(rank: usize) -> CommRank {
    CommRank(rank as u32)
}

impl Process {
    pub fn new(rank: usize, set_of: &[usize], is_free: bool) -> Self {
        let ranks = set_of.len();
        // Slots go in two parts, or in one: then the short way leads there.
        let part_bytes_max = if ranks.is_multiple_of(2) { 32 } else { SLOT_BYTES };
        let mut machine = Rma::new(Limits { part_bytes_max });
        let bytes = 8 * CELLS as u64;
        let extents = vec![Extent { bytes, unit: 8 }; ranks];
        let (me, flavor) = (rank_of(rank), Flavor::Allocate);
        let setup = Setup { flavor, me, base: BASE, extents, no_locks: false };
        machine.create(WINDOW, setup.clone()).expect("a new window");
        if is_free {
            let setup = Setup { base: SECOND_BASE, ..setup };
            machine.create(window_id(1), setup).expect("a new window");
        }
        let internal: Vec<_> = set_of.iter().map(|&set| set == set_of[rank]).collect();
        for instance in 0..2 {
            machine.set_internal(window_id(instance), |of| internal[of.0 as usize]);
        }
        Self {
            rank,
            internal,
            machine,
            memory: Cells(Rc::new(RefCell::new(vec![0; 16 * CELLS]))),
            hood: Hood::default(),
            at: 0,
            in_call: false,
            state: mix(7, rank as u64),
            atomics: Vec::new(),
            accepted: BTreeMap::new(),
            sent: BTreeMap::new(),
            log: Vec::new(),
            out: Vec::new(),
            ranks,
            is_free,
            instances: 0,
            messages: BTreeMap::new(),
            begun: Vec::new(),
            collective: BTreeMap::new(),
            matched: BTreeMap::new(),
            synchronous: BTreeMap::new(),
            announced: false,
            waits: Vec::new(),
            counted: false,
            expected: 0,
            pending: Vec::new(),
        }
    }

    pub fn cell(&self, cell: usize) -> u64 {
        numbers(&self.memory.0.borrow()[8 * cell..8 * cell + 8]).next().expect("a cell")
    }

    /// The engine hands in the next message of a stream.
    pub fn receive(&mut self, from: usize, line: Line, bytes: Vec<u8>) {
        self.accepted.entry((from, line)).or_default().push(mix_bytes(1, &bytes));
        let number = |at: usize| numbers(&bytes[at..at + 8]).next().expect("8 bytes");
        match line {
            Line::Message => {
                let message = (number(0), bytes[8] == 1);
                self.messages.entry(from).or_default().push_back(message);
            }
            Line::Matched => *self.matched.entry(from).or_default() += 1,
            Line::Collective => self.collective.entry(from).or_default().push_back(number(0)),
            Line::Operations(window) => {
                let window = window_id(window);
                let given = self.machine.on_operation(window, rank_of(from), bytes);
                given.expect("sound");
            }
            Line::Replies(window) => {
                let window = window_id(window);
                self.machine.on_reply(window, rank_of(from), &bytes).expect("sound");
            }
        }
    }

    /// Apply what can be applied; returns what was recorded.
    pub fn progress(&mut self, now: u64) -> Vec<Recorded> {
        let shared = self.hood.shared.clone();
        let area = shared.as_ref().map(|shared| shared.area(self.hood.me));
        let locked = shared.as_ref().map(|shared| shared.lock());
        let own = locked.as_ref().zip(area.as_ref());
        self.machine.progress_beside(&mut self.memory, own).expect("no fault");
        let recorded = self.machine.take_recorded();
        drop(locked);
        self.machine.check();
        self.outputs(now);
        self.publish();
        recorded
    }

    fn outputs(&mut self, now: u64) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Send { window, to, lane, message } => {
                    let window = (window.0 >> 16) as usize;
                    let line = match lane {
                        Lane::Operations => Line::Operations(window),
                        Lane::Replies => Line::Replies(window),
                    };
                    self.out.push((to.0 as usize, line, message));
                }
                Output::Data { operation, first, data } => {
                    let found = self.pending.iter_mut().find(|p| p.operation == operation);
                    let pending = found.expect("an operation that is open");
                    assert_eq!(pending.data.len() as u64, first, "parts in order");
                    pending.data.extend(data);
                }
                Output::Completed { operation, error } => {
                    assert_eq!(error, None);
                    let found = self.pending.iter_mut().find(|p| p.operation == operation);
                    let pending = found.expect("an operation that is open");
                    pending.is_complete = true;
                    if let Some(atomic) = pending.atomic {
                        self.atomics[atomic].old = numbers(&pending.data).next();
                        self.atomics[atomic].responded = now;
                    }
                }
            }
        }
    }

    fn absorb(&mut self, value: u64) {
        self.state = mix(self.state, value);
    }

    /// What was got is here: look at it.
    fn synchronized(&mut self, with: Option<usize>) {
        let (seen, later): (Vec<_>, Vec<_>) = core::mem::take(&mut self.pending)
            .into_iter()
            .partition(|pending| with.is_none_or(|with| with == pending.to));
        self.pending = later;
        for pending in seen {
            assert!(pending.is_complete, "synchronized without its data");
            if pending.atomic.is_none() || self.is_free {
                for value in numbers(&pending.data) {
                    self.absorb(value);
                }
            }
        }
    }

    fn send_number(&mut self, to: usize, line: Line, number: u64, flag: bool) {
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.push(u8::from(flag));
        self.out.push((to, line, bytes));
    }

    pub fn await_data(&mut self, operation: OperationId, to: usize, cell: Option<usize>, now: u64) {
        let atomic = cell.map(|cell| {
            let index = self.atomics.len();
            self.atomics.push(Atomic { cell: (to, cell), index, old: None, responded: 0 });
            index
        });
        let fetched = self.machine.take_fetched();
        let is_complete = fetched.is_some();
        let data = fetched.unwrap_or_default();
        if let (true, Some(atomic)) = (is_complete, atomic) {
            self.atomics[atomic].old = numbers(&data).next();
            self.atomics[atomic].responded = now;
        }
        self.pending.push(Pending { operation, to, data, is_complete, atomic });
    }

    fn collective(&mut self, of: impl Fn(usize) -> u64) {
        let me = self.rank;
        for to in (0..self.ranks).filter(|&to| to != me) {
            self.send_number(to, Line::Collective, of(to), false);
        }
    }

    /// The sum over all, once all others have come.
    fn collected(&mut self) -> Option<u64> {
        let others = || (0..self.ranks).filter(|&other| other != self.rank);
        let has = |other: usize| self.collective.get(&other).is_some_and(|q| !q.is_empty());
        if !others().all(has) {
            return None;
        }
        let queues = self.collective.values_mut();
        Some(queues.filter_map(VecDeque::pop_front).fold(0, u64::wrapping_add))
    }

    /// The program calls MPI. Returns what was recorded.
    pub fn begin(&mut self, call: &Call, moment: &Moment) -> Vec<Recorded> {
        let value = mix(self.state, self.at as u64);
        self.in_call = true;
        (self.counted, self.announced) = (false, false);
        self.tell(moment);
        if matches!(call, Call::AwaitRecv { .. }) {
            return self.progress(moment.now);
        }
        if self.begin_quickly(call, value, moment.now) || self.gather(call, value) {
            return self.progress(moment.now);
        }
        match call.is_access() || call.synchronizes() {
            true => self.machine.action_on_window(),
            false => self.machine.action(),
        }
        self.publish();
        let machine = &mut self.machine;
        match call {
            &Call::Send { to, synchronous } => {
                *self.synchronous.entry(to).or_default() += u64::from(synchronous);
                self.send_number(to, Line::Message, value, synchronous);
            }
            Call::Barrier => self.collective(|_| 0),
            &Call::BeginRecv { from } => self.begun.push((from, None)),
            Call::Recv { .. } | Call::AwaitRecv { .. } => {}
            Call::Read | Call::ReadCounters | Call::ReadSecond => {}
            Call::Create => {
                self.instances += 1;
                self.memory.0.borrow_mut()[8 * CELLS..].fill(0);
                let extents = vec![Extent { bytes: 8 * SECOND as u64, unit: 8 }; self.ranks];
                let (me, flavor, base) = (rank_of(self.rank), Flavor::Create, SECOND_BASE);
                let setup = Setup { flavor, me, base, extents, no_locks: false };
                let made = machine.create(window_id(self.instances), setup);
                made.expect("a new window");
                let window = window_id(self.instances);
                machine.set_internal(window, |of| self.internal[of.0 as usize]);
                self.publish_window(window);
                self.collective(|_| 0);
            }
            Call::Free => {
                machine.may_free(window_id(self.instances)).expect("no epoch");
                self.collective(|_| 0);
            }
            &Call::PutSecond { to, cell } => {
                let (window, to) = (window_id(self.instances), rank_of(to));
                self.lock(window, to, false, LockMode::Deferred);
                self.action_on_window();
                self.access(window, to, cell, &ONE, Kind::Put, &value.to_le_bytes());
                self.action_on_window();
                self.unlock(window, to);
            }
            &Call::Put { to, slot, strided } => {
                let (data, at) = (values(value), slot * SLOT);
                self.access(WINDOW, rank_of(to), at, &layout(strided), Kind::Put, &data);
            }
            &Call::PutCell { to, cell } => {
                let window = window_id(cell % 2);
                let data = value.to_le_bytes();
                self.access(window, rank_of(to), cell, &ONE, Kind::Put, &data);
            }
            &Call::Get { to, slot, strided } => {
                let layout = layout(strided);
                let got = self.access(WINDOW, rank_of(to), slot * SLOT, &layout, Kind::Get, &[]);
                self.await_data(got, to, None, moment.now);
            }
            &Call::Sum { to } => {
                let (kind, data) = (Kind::Accumulate(Op::Sum), values(value));
                self.access(WINDOW, rank_of(to), SUMS * SLOT, &layout(false), kind, &data);
            }
            &Call::FetchAdd { to, cell } => {
                let (kind, data) = (Kind::GetAccumulate(Op::Sum), 1u64.to_le_bytes());
                let got = self.access(WINDOW, rank_of(to), cell, &ONE, kind, &data);
                self.await_data(got, to, Some(cell), moment.now);
            }
            &Call::Swap { to, cell } => {
                self.expected = 0;
                self.swap(to, cell, moment.now);
            }
            &Call::Increment { to } => {
                let got = self.access(WINDOW, rank_of(to), GUARDED, &ONE, Kind::Get, &[]);
                self.await_data(got, to, None, moment.now);
                let flush = self.machine.flush_local(WINDOW, Some(rank_of(to)));
                self.waits.push(flush.expect("in an epoch"));
            }
            &Call::Fence { no_precede, no_succeed } => {
                let assert = FenceAssert { no_precede, no_succeed };
                match machine.fence(WINDOW, assert).expect("a fence") {
                    FenceStep::Over => self.counted = true,
                    FenceStep::Count(counts) => {
                        self.expected = counts[self.rank];
                        // Sums in parts may show each process all counts of another one.
                        let all: u64 = counts.iter().sum();
                        self.collective(|to| counts[to] + all * (COUNT_MAX + 1));
                    }
                }
            }
            Call::Post(origins) => {
                let origins: Vec<_> = origins.iter().copied().map(rank_of).collect();
                machine.post(WINDOW, &origins).expect("not exposed");
            }
            Call::Start(targets) => {
                let targets: Vec<_> = targets.iter().copied().map(rank_of).collect();
                machine.start(WINDOW, &targets).expect("no epoch");
            }
            Call::Complete => self.waits.push(machine.complete(WINDOW).expect("started")),
            Call::Wait => self.waits.push(machine.wait(WINDOW).expect("exposed")),
            &Call::Lock { to, exclusive, mode } => {
                self.lock(WINDOW, rank_of(to), exclusive, mode);
            }
            &Call::Unlock { to } => self.unlock(WINDOW, rank_of(to)),
            &Call::LockAll(mode) => self.on_windows(|m, window| m.lock_all(window, mode)),
            Call::UnlockAll => match self.hood.shared.clone() {
                None => self.on_windows(Rma::unlock_all),
                Some(shared) => {
                    let me = self.hood.me;
                    let hood = || View::new(&shared, me);
                    self.on_windows(|m, window| m.unlock_all_beside(&mut hood(), window));
                }
            },
            &Call::Flush { to } => self.on_windows(|m, window| m.flush(window, Some(rank_of(to)))),
            Call::FlushAll => {
                self.waits.push(machine.flush(WINDOW, None).expect("passive"));
            }
        }
        if call.synchronizes() {
            self.machine.send_batches();
        }
        self.progress(moment.now)
    }

    /// The same call for each window that the program uses.
    fn on_windows(&mut self, call: impl Fn(&mut Rma, ContextId) -> Result<Wait, RmaError>) {
        for instance in 0..if self.is_free { 2 } else { 1 } {
            if instance > 0 {
                self.action_on_window();
            }
            let wait = call(&mut self.machine, window_id(instance));
            self.waits.push(wait.expect("the right epoch"));
        }
    }

    fn holds(&self, moment: &Moment) -> bool {
        self.machine.holds_completions() && !moment.completes_early
    }

    /// Receives that have begun are told what is here, unless a replay holds that.
    fn tell(&mut self, moment: &Moment) {
        if !self.holds(moment) {
            for (from, told) in self.begun.iter_mut().filter(|(_, told)| told.is_none()) {
                let here = self.messages.get_mut(from).and_then(VecDeque::pop_front);
                *told = here.map(|(value, _)| value);
            }
        }
    }

    /// Does the call return? The program goes on then.
    pub fn finish(&mut self, call: &Call, moment: &Moment) -> bool {
        self.tell(moment);
        if self.is_free && self.holds(moment) {
            return false;
        }
        let ends = self.is_over(call, moment);
        if ends {
            self.in_call = false;
            self.at += 1;
            if self.is_free {
                let all = mix_bytes(self.state, &self.memory.0.borrow());
                self.absorb(all);
            }
        }
        ends
    }

    fn is_over(&mut self, call: &Call, moment: &Moment) -> bool {
        while let Some(wait) = self.waits.last() {
            match self.machine.poll(wait) {
                None => return false,
                Some(result) => result.expect("no error"),
            }
            self.waits.pop();
        }
        match call {
            &Call::Send { to, synchronous } => {
                let matched = self.matched.get(&to).copied().unwrap_or(0);
                let over = matched >= self.synchronous.get(&to).copied().unwrap_or(0);
                return !synchronous || over && !self.holds(moment);
            }
            &Call::Recv { from } => {
                let queue = self.messages.get(&from);
                let Some(&(value, synchronous)) = queue.and_then(VecDeque::front) else {
                    return false;
                };
                if synchronous && !self.announced {
                    // The match is reported at once, also in a replay.
                    self.announced = true;
                    self.send_number(from, Line::Matched, 0, false);
                }
                if self.holds(moment) {
                    return false;
                }
                self.messages.get_mut(&from).and_then(VecDeque::pop_front);
                self.absorb(value);
            }
            &Call::AwaitRecv { from } => {
                if self.holds(moment) && !moment.waits_unheld {
                    return false;
                }
                let Some(at) = self.begun.iter().position(|&(of, _)| of == from) else {
                    unreachable!("it has begun");
                };
                let Some(value) = self.begun[at].1 else { return false };
                self.begun.remove(at);
                self.absorb(value);
            }
            Call::Barrier | Call::Create => {
                return !self.holds(moment) && self.collected().is_some();
            }
            Call::Free => {
                let over = !self.holds(moment) && self.collected().is_some();
                if over {
                    let window = window_id(self.instances);
                    if let Some(shared) = self.hood.shared.clone() {
                        let area = shared.area(self.hood.me);
                        self.machine.withdraw(window, &shared.lock(), &area);
                    }
                    self.machine.free(window).expect("nobody uses it");
                }
                return over;
            }
            Call::ReadSecond => (0..SECOND).for_each(|cell| self.absorb(self.cell(CELLS + cell))),
            Call::Fence { .. } if !self.counted => {
                let Some(sum) = self.collected() else { return false };
                let &Call::Fence { no_precede, no_succeed } = call else { return false };
                let expected = sum % (COUNT_MAX + 1) + self.expected;
                let assert = FenceAssert { no_precede, no_succeed };
                let shared = self.hood.shared.clone();
                let area = shared.as_ref().map(|shared| shared.area(self.hood.me));
                let wait = self.machine.fence_counted(WINDOW, expected, assert, area.as_ref());
                self.waits.push(wait.expect("a fence"));
                self.counted = true;
                return false;
            }
            Call::Fence { .. } | Call::Complete | Call::UnlockAll | Call::FlushAll => {
                self.synchronized(None);
            }
            &Call::Unlock { to } | &Call::Flush { to } => self.synchronized(Some(to)),
            Call::Read => read_cells().for_each(|cell| self.absorb(self.cell(cell))),
            Call::ReadCounters => counter_cells().for_each(|cell| self.absorb(self.cell(cell))),
            &Call::Swap { to, cell } => {
                let found = self.pending.pop().expect("the swap");
                let old = numbers(&found.data).next().expect("data");
                if self.is_free {
                    self.absorb(old);
                }
                if old != self.expected {
                    self.expected = old;
                    self.machine.action();
                    self.publish();
                    self.swap(to, cell, moment.now);
                    return false;
                }
                let (index, now) = (self.atomics.len(), moment.now);
                let atomic = Atomic { cell: (to, cell), index, old: Some(old), responded: now };
                self.atomics.push(atomic);
            }
            &Call::Increment { to } => {
                let found = self.pending.pop().expect("the get");
                let old = numbers(&found.data).next().expect("data");
                let data = (old + 1).to_le_bytes();
                self.action_on_window();
                self.access(WINDOW, rank_of(to), GUARDED, &ONE, Kind::Put, &data);
            }
            _ => {}
        }
        true
    }
}
