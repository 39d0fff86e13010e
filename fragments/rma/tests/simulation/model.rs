//! The sequential model: one call after the other, in any order that the program's
//! synchronization allows, on plain arrays. Programs without races give these results.

use crate::script::{CELLS, COUNTERS, Call, GUARDED, SECOND, SLOT, SLOTS, SUMS};
use rustbtl_seeds::mix;
use std::collections::{BTreeMap, VecDeque};

/// What remains at the end.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Cells of each rank's window.
    pub cells: Vec<Vec<u64>>,
    /// Everything that each rank has read and received.
    pub states: Vec<u64>,
}

/// Where the cells of a slot are, in order.
pub fn slot_cells(slot: usize, strided: bool) -> [usize; SLOT] {
    let begin = slot * SLOT;
    match strided {
        // Every other cell backwards, then the rest backwards.
        true => [4, 2, 0, 5, 3, 1].map(|at| begin + at),
        false => [0, 1, 2, 3, 4, 5].map(|at| begin + at),
    }
}

/// Cells that `Read` looks at.
pub fn read_cells() -> impl Iterator<Item = usize> {
    0..(SLOTS + 1) * SLOT
}

/// Cells that `ReadCounters` looks at.
pub fn counter_cells() -> impl Iterator<Item = usize> {
    COUNTERS.into_iter().chain([GUARDED])
}

struct Model<'a> {
    programs: &'a [Vec<Call>],
    at: Vec<usize>,
    outcome: Outcome,
    messages: BTreeMap<(usize, usize), VecDeque<u64>>,
    /// Fences and barriers that each rank has come to.
    came: Vec<u64>,
    is_in: Vec<bool>,
    posts: BTreeMap<(usize, usize), u64>,
    starts: BTreeMap<(usize, usize), u64>,
    completes: BTreeMap<(usize, usize), u64>,
    epochs: Vec<(Vec<usize>, Vec<usize>)>,
    locked: Vec<Option<usize>>,
    second: Vec<[u64; SECOND]>,
    /// What gets have read, by target: seen when they are synchronized.
    pending: Vec<Vec<(usize, u64)>>,
}

/// Run it.
pub fn run(programs: &[Vec<Call>]) -> Outcome {
    let ranks = programs.len();
    let outcome = Outcome {
        cells: vec![vec![0; CELLS]; ranks],
        states: (0..ranks as u64).map(|rank| mix(7, rank)).collect(),
    };
    let mut model = Model {
        programs,
        at: vec![0; ranks],
        outcome,
        messages: BTreeMap::new(),
        came: vec![0; ranks],
        is_in: vec![false; ranks],
        posts: BTreeMap::new(),
        starts: BTreeMap::new(),
        completes: BTreeMap::new(),
        epochs: vec![(Vec::new(), Vec::new()); ranks],
        locked: vec![None; ranks],
        second: vec![[0; SECOND]; ranks],
        pending: vec![Vec::new(); ranks],
    };
    loop {
        let mut moved = false;
        for (rank, program) in programs.iter().enumerate() {
            while model.at[rank] < program.len() && model.call(rank) {
                model.at[rank] += 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let ends: Vec<_> = programs.iter().map(Vec::len).collect();
    assert_eq!(model.at, ends, "the program of the model ends");
    model.outcome
}

impl Model<'_> {
    fn absorb(&mut self, rank: usize, value: u64) {
        self.outcome.states[rank] = mix(self.outcome.states[rank], value);
    }

    /// False: it cannot go on yet.
    fn call(&mut self, rank: usize) -> bool {
        let at = self.at[rank] as u64;
        let value = mix(self.outcome.states[rank], at);
        match &self.programs[rank][at as usize] {
            Call::Send { to, .. } => {
                self.messages.entry((rank, *to)).or_default().push_back(value);
            }
            Call::Recv { from } | Call::AwaitRecv { from } => {
                let found = self.messages.entry((*from, rank)).or_default().pop_front();
                let Some(value) = found else { return false };
                self.absorb(rank, value);
            }
            Call::Fence { .. } => {
                let over = self.meets(rank);
                if over {
                    self.synchronize(rank, None);
                }
                return over;
            }
            Call::Barrier | Call::Free => return self.meets(rank),
            Call::Create => {
                if !self.is_in[rank] {
                    self.second[rank] = [0; SECOND];
                }
                return self.meets(rank);
            }
            &Call::PutSecond { to, cell } => self.second[to][cell] = value,
            Call::ReadSecond => {
                for cell in self.second[rank] {
                    self.absorb(rank, cell);
                }
            }
            Call::Read => {
                for cell in read_cells() {
                    self.absorb(rank, self.outcome.cells[rank][cell]);
                }
            }
            Call::ReadCounters => {
                for cell in counter_cells() {
                    self.absorb(rank, self.outcome.cells[rank][cell]);
                }
            }
            &Call::Put { to, slot, strided } => {
                for (cell, i) in slot_cells(slot, strided).into_iter().zip(0..) {
                    self.outcome.cells[to][cell] = mix(value, i);
                }
            }
            &Call::Get { to, slot, strided } => {
                for cell in slot_cells(slot, strided) {
                    self.pending[rank].push((to, self.outcome.cells[to][cell]));
                }
            }
            &Call::Sum { to } => {
                for (cell, i) in slot_cells(SUMS, false).into_iter().zip(0..) {
                    let sum = &mut self.outcome.cells[to][cell];
                    *sum = sum.wrapping_add(mix(value, i));
                }
            }
            &Call::FetchAdd { to, cell } | &Call::Swap { to, cell } => {
                self.outcome.cells[to][cell] += 1;
            }
            &Call::Increment { to } => self.outcome.cells[to][GUARDED] += 1,
            Call::Post(origins) => {
                for &origin in origins {
                    *self.posts.entry((rank, origin)).or_default() += 1;
                }
                self.epochs[rank].0.clone_from(origins);
            }
            Call::Start(targets) => {
                let waits = |&to: &usize| {
                    let posts = self.posts.get(&(to, rank)).copied().unwrap_or(0);
                    posts <= self.starts.get(&(rank, to)).copied().unwrap_or(0)
                };
                if targets.iter().any(waits) {
                    return false;
                }
                for &to in targets {
                    *self.starts.entry((rank, to)).or_default() += 1;
                }
                self.epochs[rank].1.clone_from(targets);
            }
            Call::Complete => {
                self.synchronize(rank, None);
                for to in self.epochs[rank].1.clone() {
                    *self.completes.entry((rank, to)).or_default() += 1;
                }
            }
            Call::Wait => {
                let posts = |&origin: &usize| self.posts.get(&(rank, origin));
                let waits = |origin: &usize| self.completes.get(&(*origin, rank)) != posts(origin);
                return !self.epochs[rank].0.iter().any(waits);
            }
            &Call::Lock { to, exclusive: true, .. } => {
                if self.locked[to].is_some() {
                    return false;
                }
                self.locked[to] = Some(rank);
            }
            &Call::Unlock { to } => {
                if self.locked[to] == Some(rank) {
                    self.locked[to] = None;
                }
                self.synchronize(rank, Some(to));
            }
            &Call::Flush { to } => self.synchronize(rank, Some(to)),
            Call::UnlockAll | Call::FlushAll => self.synchronize(rank, None),
            Call::Lock { .. } | Call::LockAll(_) | Call::BeginRecv { .. } => {}
            Call::PutCell { .. } => unreachable!("only in free programs"),
        }
        true
    }

    fn synchronize(&mut self, rank: usize, with: Option<usize>) {
        let (seen, later) = core::mem::take(&mut self.pending[rank])
            .into_iter()
            .partition::<Vec<_>, _>(|&(to, _)| with.is_none_or(|with| with == to));
        self.pending[rank] = later;
        for (_, value) in seen {
            self.absorb(rank, value);
        }
    }

    fn meets(&mut self, rank: usize) -> bool {
        if !self.is_in[rank] {
            self.is_in[rank] = true;
            self.came[rank] += 1;
        }
        let over = self.came.iter().all(|&came| came >= self.came[rank]);
        self.is_in[rank] &= !over;
        over
    }
}
