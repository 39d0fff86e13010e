//! What a program's calls about windows do.

use super::programs::{
    ACTIVE_COUNTER, CELLS, COUNTERS, Call, GUARDED, PASSIVE, SLOT, SLOTS, SLOTS_AT, slot_cells,
    values,
};
use super::{BASE, numbers};
use crate::host::Buffer;
use crate::model::{Message, Pattern, Sent, content_digest};
use crate::nondet_calls::fold;
use crate::options::Planted;
use crate::process::{Open, Process, Shared};
use crate::script::Request;
use rustbtl_fragments::ids::*;
use rustbtl_rma::arithmetic::Op;
use rustbtl_rma::ids::OperationId;
use rustbtl_rma::layout::{Block, Layout};
use rustbtl_rma::machine::{FenceAssert, FenceStep, LockMode, Quick, Wait};
use rustbtl_rma::primitive::Primitive;
use rustbtl_rma::window::{Extent, Flavor, Setup};
use std::collections::BTreeMap;

/// Tag of what collectives about windows send.
pub const COUNT_TAG: i32 = -6;

/// A window, a rank of it, a cell.
pub type Place = (usize, u32, usize);

#[derive(Clone, Debug)]
struct Fetch {
    place: Place,
    data: Vec<u8>,
    expected: Option<Vec<u64>>,
    is_complete: bool,
}

/// Data that operations get.
#[derive(Clone, Default, Debug)]
pub struct Fetched {
    open: BTreeMap<OperationId, Fetch>,
    /// Old values of counters, in the order of the program.
    pub counted: Vec<(Place, u64)>,
    last: u64,
}

impl Fetched {
    pub(super) fn data(&mut self, operation: OperationId, first: u64, data: &[u8]) {
        let Some(fetch) = self.open.get_mut(&operation) else { panic!("{operation:?}") };
        assert_eq!(fetch.data.len() as u64, first, "parts in order");
        fetch.data.extend_from_slice(data);
    }

    pub(super) fn complete(&mut self, operation: OperationId) {
        let Some(fetch) = self.open.get_mut(&operation) else { panic!("{operation:?}") };
        if let Some(expected) = &fetch.expected {
            assert_eq!(numbers(&fetch.data), *expected, "not what a sequential run gets");
        }
        assert!(!core::mem::replace(&mut fetch.is_complete, true), "complete twice");
    }
}

/// Where a call about windows stands.
#[derive(Clone, Default, Debug)]
pub struct InCalls {
    /// The program is in a call, and has counted it.
    pub in_call: bool,
    /// Of an `Op::Window`: how many calls are over.
    done: usize,
    waits: Vec<Wait>,
    counted: bool,
    /// In a barrier: so many members know that all are here.
    told: usize,
    own: u64,
    receives: Vec<Request>,
}

const ONE: Layout = Layout::Contiguous { primitive: Primitive::U64, count: 1 };

fn layout(strided: bool) -> Layout {
    let (primitive, cells) = (Primitive::U64, SLOT as u64);
    if !strided {
        return Layout::Contiguous { primitive, count: cells };
    }
    let row =
        |displacement| Block { displacement, stride: -16, length: 1, repeats: SLOT as u32 / 2 };
    let last = 8 * (SLOT as i64 - 2);
    let blocks = vec![row(last), row(last + 8)];
    Layout::Described { primitive, count: 1, extent: 8 * SLOT as i64, blocks }
}

fn place_of(slot: usize) -> i64 {
    (SLOTS_AT + slot * SLOT) as i64
}

fn bytes_of(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

impl Process {
    /// The program calls MPI, or is still in that call. (The tick counts it once.)
    pub(crate) fn begin_call(&mut self, shared: &mut Shared) {
        if !shared.options.windows {
            return;
        }
        if !core::mem::replace(&mut self.program.calls.in_call, true) {
            self.windows().rma.action();
        }
        self.progress_windows(shared);
    }

    /// The same of a call about a window: what it issues may share a message with what was issued
    /// before.
    fn begin_window_call(&mut self, shared: &mut Shared, call: &Call) {
        let may_share = call.is_access() || call.synchronizes() || call.locks_later();
        if !may_share {
            return self.begin_call(shared);
        }
        self.program.calls.in_call = true;
        self.windows().rma.action_on_window();
        self.progress_windows(shared);
    }

    /// Rule 3: may nothing be complete for the program?
    pub(crate) fn holds(&self, shared: &Shared) -> bool {
        shared.options.windows && self.host.memory.windows.holds()
    }

    /// The call returns. `completes`: something that it waited for, so that the program may look at
    /// its memory.
    pub(crate) fn end_call(&mut self, shared: &Shared, completes: bool) -> bool {
        self.program.calls.in_call = false;
        if shared.options.windows_free && completes {
            for window in 0..shared.script.windows {
                for cell in self.host.memory.windows.cells.numbers(window, 0, PASSIVE) {
                    fold(&mut self.program.digest, cell);
                }
            }
        }
        true
    }

    /// One step of calls about a window. True: all are over.
    pub(crate) fn window_calls(
        &mut self,
        shared: &mut Shared,
        (window, comm): (usize, usize),
        calls: &[Call],
    ) -> bool {
        let Some(call) = calls.get(self.program.calls.done) else {
            self.program.calls.done = 0;
            return true;
        };
        let name = shared.script.comms[comm].context;
        if !self.program.calls.in_call {
            self.before_action(shared, false);
            if self.gathers(shared, window, name, call) {
                self.program.calls.in_call = true;
            } else {
                self.begin_window_call(shared, call);
                self.issue(shared, (window, comm), name, call);
                if call.synchronizes() || !shared.options.windows_share {
                    self.windows().rma.send_batches();
                }
                self.progress_windows(shared);
            }
        } else {
            self.progress_windows(shared);
        }
        if !self.is_over(shared, (window, comm), name, call) {
            return false;
        }
        self.progress_windows(shared);
        self.end_call(shared, true);
        self.program.calls.done += 1;
        if self.program.calls.done == calls.len() {
            self.program.calls.done = 0;
            return true;
        }
        false
    }

    /// The short way of what joins a message to the same target; in three of four calls that it may
    /// be for.
    fn gathers(&mut self, shared: &Shared, window: usize, name: ContextId, call: &Call) -> bool {
        let value = self.program.digest ^ (window as u64) << 32;
        let &(Call::PutCell { to, cell } | Call::AddCell { to, cell }) = call else { return false };
        if !shared.options.windows_share || value.is_multiple_of(4) {
            return false;
        }
        let data = value.to_le_bytes();
        let quick = match call {
            Call::PutCell { .. } => Quick::Put(&data),
            _ => Quick::Combine { op: Op::Sum, data: &data, found: None },
        };
        let of = (name, CommRank(to), cell as i64);
        let done = self.windows().rma.quick_gather(of, Primitive::U64, &quick);
        if done {
            (self.program.calls.counted, self.program.calls.told) = (false, 0);
        }
        done
    }

    fn fetch(&mut self, operation: OperationId, place: Place, expected: Option<Vec<u64>>) {
        let fetch = Fetch { place, data: Vec::new(), expected, is_complete: false };
        let fetched = &mut self.program.fetched;
        assert!(fetched.open.insert(operation, fetch).is_none(), "{operation:?} twice");
    }

    fn issue(
        &mut self,
        shared: &mut Shared,
        (window, comm): (usize, usize),
        name: ContextId,
        call: &Call,
    ) {
        (self.program.calls.counted, self.program.calls.told) = (false, 0);
        let value = self.program.digest ^ (window as u64) << 32;
        let last = self.program.fetched.last;
        let rank = |to: u32| CommRank(to);
        let rma = &mut self.host.memory.windows.rma;
        let waits = &mut self.program.calls.waits;
        match call {
            Call::Create => self.make(shared, window, comm),
            Call::Free { .. } => {
                assert_eq!(rma.may_free(name), Ok(()), "no epoch is open");
                self.begin_collective(shared, comm, |_| 0);
            }
            Call::Barrier => self.begin_barrier(shared, comm),
            &Call::Fence { no_precede, no_succeed } => {
                let assert = FenceAssert { no_precede, no_succeed };
                match rma.fence(name, assert) {
                    Ok(FenceStep::Over) => self.program.calls.counted = true,
                    Ok(FenceStep::Count(counts)) => {
                        let me = self.rank_in(shared, comm);
                        self.program.calls.own = counts[me];
                        self.begin_collective(shared, comm, |to| counts[to]);
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
            Call::Post(origins) => {
                let origins: Vec<CommRank> = origins.iter().copied().map(rank).collect();
                assert_eq!(rma.post(name, &origins), Ok(()));
            }
            Call::Start(targets) => {
                let targets: Vec<CommRank> = targets.iter().copied().map(rank).collect();
                assert_eq!(rma.start(name, &targets), Ok(()));
            }
            Call::Complete => waits.extend(rma.complete(name)),
            Call::Wait => waits.extend(rma.wait(name)),
            &Call::LockAll(mode) => waits.extend(rma.lock_all(name, mode)),
            Call::UnlockAll => waits.extend(rma.unlock_all(name)),
            &Call::Lock { to, exclusive, mode } => {
                waits.extend(rma.lock(name, rank(to), exclusive, mode));
            }
            &Call::Unlock { to } => waits.extend(rma.unlock(name, rank(to))),
            &Call::Flush { to } => waits.extend(rma.flush(name, Some(rank(to)))),
            &Call::FlushLocal { to } => waits.extend(rma.flush_local(name, Some(rank(to)))),
            Call::FlushAll => waits.extend(rma.flush(name, None)),
            Call::Sync | Call::ReadSlots { .. } | Call::ReadCounter { .. } => {}
            &Call::PutCell { to, cell } => {
                let put = rma.put(name, rank(to), cell as i64, &ONE, &value.to_le_bytes());
                assert_eq!(put, Ok(()));
            }
            &Call::PutNext { to, cell } => {
                let next = (last + 1).to_le_bytes();
                assert_eq!(rma.put(name, rank(to), cell as i64, &ONE, &next), Ok(()));
            }
            &Call::AddCell { to, cell } => {
                let (place, data) = (cell as i64, value.to_le_bytes());
                let added = rma.accumulate(name, rank(to), place, &ONE, Op::Sum, &data);
                assert_eq!(added, Ok(()));
            }
            &Call::PutSlot { to, slot, value, strided } => {
                let data = bytes_of(&values(value));
                let put = rma.put(name, rank(to), place_of(slot), &layout(strided), &data);
                assert_eq!(put, Ok(()));
            }
            &Call::Sum { to, value } => {
                let (data, place) = (bytes_of(&values(value)), place_of(SLOTS - 1));
                let layout = layout(false);
                let sum = rma.accumulate(name, rank(to), place, &layout, Op::Sum, &data);
                assert_eq!(sum, Ok(()));
            }
            &Call::GetCell { to, cell } => {
                let got = rma.get(name, rank(to), cell as i64, &ONE);
                self.must_fetch(got, (window, to, cell), None);
            }
            &Call::FetchAdd { to, cell } => {
                let one = 1u64.to_le_bytes();
                let got = rma.get_accumulate(name, rank(to), cell as i64, &ONE, Op::Sum, &one);
                self.must_fetch(got, (window, to, cell), None);
            }
            &Call::CompareAndSwap { to, cell } => {
                let (place, old, new) = (cell as i64, last.to_le_bytes(), value.to_le_bytes());
                let element = Primitive::U64;
                let got = rma.compare_and_swap(name, rank(to), place, element, &old, &new);
                self.must_fetch(got, (window, to, cell), None);
            }
            Call::GetSlot { to, slot, expected, strided } => {
                let got = rma.get(name, rank(*to), place_of(*slot), &layout(*strided));
                debug_assert_eq!(slot_cells(*strided).len(), expected.len());
                self.must_fetch(got, (window, *to, SLOTS_AT), Some(expected.clone()));
            }
        }
        let waits_for = matches!(
            call,
            Call::Complete
                | Call::Wait
                | Call::LockAll(_)
                | Call::UnlockAll
                | Call::Lock { .. }
                | Call::Unlock { .. }
                | Call::Flush { .. }
                | Call::FlushLocal { .. }
                | Call::FlushAll
        );
        assert_eq!(usize::from(waits_for), self.program.calls.waits.len(), "{call:?} is refused");
    }

    fn must_fetch<E: core::fmt::Debug>(
        &mut self,
        got: Result<OperationId, E>,
        place: Place,
        expected: Option<Vec<u64>>,
    ) {
        match got {
            Ok(operation) => self.fetch(operation, place, expected),
            Err(error) => panic!("{error:?}"),
        }
    }

    fn rank_in(&self, shared: &Shared, comm: usize) -> usize {
        let members = &shared.script.comms[comm].members;
        members.iter().position(|&rank| rank == self.me).unwrap_or(0)
    }

    fn make(&mut self, shared: &Shared, window: usize, comm: usize) {
        let info = &shared.script.comms[comm];
        let extents = vec![Extent { bytes: 8 * CELLS as u64, unit: 8 }; info.members.len()];
        let setup = Setup {
            flavor: Flavor::Allocate,
            me: CommRank(self.rank_in(shared, comm) as u32),
            base: BASE + (8 * CELLS * window) as u64,
            extents,
            no_locks: false,
        };
        let name = info.context;
        let windows = self.windows();
        windows.comms.insert(name, comm);
        assert_eq!(windows.rma.create(name, setup), Ok(()));
    }

    fn others(&self, shared: &Shared, comm: usize) -> impl Iterator<Item = usize> + use<> {
        let ranks = shared.script.comms[comm].members.len();
        let me = self.rank_in(shared, comm);
        (0..ranks).filter(move |&other| other != me)
    }

    /// A blocking collective in which each tells each a number.
    fn begin_collective(&mut self, shared: &mut Shared, comm: usize, of: impl Fn(usize) -> u64) {
        for other in self.others(shared, comm) {
            self.tell(shared, (comm, other), of(other));
        }
        for other in self.others(shared, comm) {
            self.expect(shared, (comm, other));
        }
    }

    /// A collective in which others go on because of what one of them does after he has waited,
    /// while he still waits for more: all tell the first one that they are here, and he tells them
    /// that all are, one after the other; they answer.
    fn begin_barrier(&mut self, shared: &mut Shared, comm: usize) {
        if self.rank_in(shared, comm) > 0 {
            self.tell(shared, (comm, 0), 0);
            return self.expect(shared, (comm, 0));
        }
        for other in self.others(shared, comm) {
            self.expect(shared, (comm, other));
        }
    }

    /// Is the barrier over?
    fn barrier_is_over(&mut self, shared: &mut Shared, comm: usize) -> bool {
        // Rule 3 is about what the program sees, not about what a call does inside.
        let held = shared.options.planted == Some(Planted::WindowBarrierHeld);
        while !self.program.calls.counted {
            if held && self.holds(shared) || self.sum().is_none() {
                return false;
            }
            if self.rank_in(shared, comm) > 0 {
                self.tell(shared, (comm, 0), 0);
                self.program.calls.counted = true;
                break;
            }
            let told = self.program.calls.told;
            self.program.calls.told += 1;
            match self.others(shared, comm).nth(told) {
                Some(next) => {
                    self.tell(shared, (comm, next), 0);
                    self.expect(shared, (comm, next));
                }
                None => self.program.calls.counted = true,
            }
        }
        !self.holds(shared)
    }

    fn expect(&mut self, shared: &mut Shared, (comm, from): (usize, usize)) {
        let request = self.windows().token() - super::TOKENS / 2;
        let context = shared.script.comms[comm].context.0;
        let (source, tag) = (Some(from as u32), Some(COUNT_TAG));
        self.program.calls.receives.push(request);
        self.receive(shared, comm, Pattern { context, source, tag }, 8, request);
    }

    fn tell(&mut self, shared: &mut Shared, (comm, to): (usize, usize), number: u64) {
        let request = self.windows().token() - super::TOKENS / 2;
        let me = self.rank_in(shared, comm);
        self.send_number(shared, comm, (me, to), number, request);
    }

    fn send_number(
        &mut self,
        shared: &mut Shared,
        comm: usize,
        (me, to): (usize, usize),
        number: u64,
        request: Request,
    ) {
        self.before_action(shared, true);
        let info = &shared.script.comms[comm];
        let stream = (info.context.number(), self.me, info.members[to], COUNT_TAG);
        let content = number.to_le_bytes().to_vec();
        let message = Message {
            context: info.context.0,
            stream,
            sequence: self.program.next_of(stream),
            source: me as u32,
            tag: COUNT_TAG,
            bytes: 8,
            digest: content_digest(&content),
        };
        shared.book.send(Sent { message, synchronous: false });
        self.host.memory.buffers.insert(request, content);
        self.program.open.insert(request, Open::Send { message, synchronous: false });
        self.post_send(shared, (comm, to as u32), &message, false, (Buffer(request), 8));
    }

    /// The sum of what the others said, when all have, and the program may go on.
    fn collected(&mut self, shared: &Shared) -> Option<u64> {
        if self.holds(shared) { None } else { self.sum() }
    }

    fn sum(&mut self) -> Option<u64> {
        let open = &self.program.open;
        let all = self.program.calls.receives.iter().all(|request| !open.contains_key(request));
        if !all {
            return None;
        }
        let mut sum = 0u64;
        for request in core::mem::take(&mut self.program.calls.receives) {
            let Some(outcome) = self.program.results.remove(&request) else { panic!("{request}") };
            sum = sum.wrapping_add(numbers(outcome.bytes())[0]);
        }
        Some(sum)
    }

    /// Does the call return?
    fn is_over(
        &mut self,
        shared: &mut Shared,
        (window, comm): (usize, usize),
        name: ContextId,
        call: &Call,
    ) -> bool {
        if let &Call::Fence { no_precede, no_succeed } = call
            && !self.program.calls.counted
        {
            let Some(sum) = self.collected(shared) else { return false };
            let assert = FenceAssert { no_precede, no_succeed };
            let expected = sum.wrapping_add(self.program.calls.own);
            let rma = &mut self.host.memory.windows.rma;
            self.program.calls.waits.extend(rma.fence_counted(name, expected, assert, None));
            assert_eq!(self.program.calls.waits.len(), 1, "the fence goes on");
            self.program.calls.counted = true;
            self.progress_windows(shared);
        }
        if let Some(wait) = self.program.calls.waits.last() {
            match self.host.memory.windows.rma.poll(wait) {
                None => return false,
                Some(result) => assert_eq!(result, Ok(()), "{call:?}"),
            }
            self.program.calls.waits.pop();
        }
        let cells = |process: &Self, first, count| {
            process.host.memory.windows.cells.numbers(window, first, count)
        };
        match call {
            Call::Free { counters } => {
                if self.collected(shared).is_none() {
                    return false;
                }
                self.progress_windows(shared);
                let windows = self.windows();
                assert_eq!(windows.rma.free(name), Ok(()), "nobody uses it");
                windows.comms.remove(&name);
                let found = cells(self, COUNTERS[0], 3);
                assert_eq!(GUARDED, COUNTERS[0] + 2);
                assert_eq!(found, counters, "counters of window {window} at {}", self.me);
            }
            Call::Barrier if !self.barrier_is_over(shared, comm) => return false,
            Call::Fence { .. } | Call::Complete | Call::UnlockAll | Call::FlushAll => {
                self.synchronized(window, None);
            }
            &Call::Unlock { to } | &Call::Flush { to } | &Call::FlushLocal { to } => {
                self.synchronized(window, Some(to));
            }
            Call::ReadSlots { expected } => {
                let found = cells(self, SLOTS_AT, SLOTS * SLOT);
                assert_eq!(found, *expected, "not what a sequential run leaves");
            }
            Call::ReadCounter { expected } => {
                assert_eq!(cells(self, ACTIVE_COUNTER, 1), [*expected], "counter of epochs");
            }
            Call::Lock { mode: LockMode::NoCheck, .. } => {}
            // All others look at memory, or return at once.
            Call::Sync => return !self.holds(shared),
            _ => {}
        }
        !(shared.options.windows_free && self.holds(shared))
    }

    /// What was got is here: look at it.
    fn synchronized(&mut self, window: usize, with: Option<u32>) {
        let fetched = &mut self.program.fetched;
        let seen: Vec<OperationId> = fetched
            .open
            .iter()
            .filter(|(_, fetch)| {
                let (of, to, _) = fetch.place;
                of == window && with.is_none_or(|with| with == to)
            })
            .map(|(operation, _)| *operation)
            .collect();
        for operation in seen {
            let Some(fetch) = fetched.open.remove(&operation) else { continue };
            assert!(fetch.is_complete, "synchronized without its data");
            let data = numbers(&fetch.data);
            fetched.last = data[0];
            let (_, _, cell) = fetch.place;
            if COUNTERS.contains(&cell) || cell == ACTIVE_COUNTER {
                fetched.counted.push((fetch.place, data[0]));
            }
            for number in data {
                fold(&mut self.program.digest, number);
            }
        }
    }
}
