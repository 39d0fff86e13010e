//! Programs with windows. Each window has cells that everybody changes in passive epochs as it
//! likes, and slots that are written and read in fence and exposure epochs without races: what is
//! found there is what a sequential run finds, and the script says it.

use rustbtl_rma::machine::LockMode;
use rustbtl_seeds::Prng;
use std::collections::BTreeMap;

/// Cells that are put and got in passive epochs.
pub const PASSIVE: usize = 4;
/// Cells that are only fetched and added to, in passive epochs; and one in active ones.
pub const COUNTERS: [usize; 2] = [4, 5];
/// Changed under an exclusive lock only: got, and put one higher.
pub const GUARDED: usize = 6;
/// Fetched and added to in active epochs.
pub const ACTIVE_COUNTER: usize = 7;
/// Cells of a slot, written and read together.
pub const SLOT: usize = 24;
/// Where slots begin; the last one is only accumulated to.
pub const SLOTS_AT: usize = 8;
/// Slots.
pub const SLOTS: usize = 3;
/// Cells of a window.
pub const CELLS: usize = SLOTS_AT + SLOTS * SLOT;

/// A call of a program about a window. Ranks are those of the window.
#[allow(missing_docs)]
#[derive(Clone, PartialEq, Debug)]
pub enum Call {
    Create,
    /// With what must be in the counters, and in the guarded cell.
    Free {
        counters: [u64; 3],
    },
    Fence {
        no_precede: bool,
        no_succeed: bool,
    },
    Post(Vec<u32>),
    Start(Vec<u32>),
    Complete,
    Wait,
    LockAll(LockMode),
    UnlockAll,
    Lock {
        to: u32,
        exclusive: bool,
        mode: LockMode,
    },
    Unlock {
        to: u32,
    },
    Flush {
        to: u32,
    },
    FlushLocal {
        to: u32,
    },
    FlushAll,
    Sync,
    /// Who is still in a round of locks is not kept out by who is in the next one.
    Barrier,
    /// The value is what the program has seen.
    PutCell {
        to: u32,
        cell: usize,
    },
    GetCell {
        to: u32,
        cell: usize,
    },
    /// One more than what was got last.
    PutNext {
        to: u32,
        cell: usize,
    },
    FetchAdd {
        to: u32,
        cell: usize,
    },
    CompareAndSwap {
        to: u32,
        cell: usize,
    },
    AddCell {
        to: u32,
        cell: usize,
    },
    PutSlot {
        to: u32,
        slot: usize,
        value: u64,
        strided: bool,
    },
    GetSlot {
        to: u32,
        slot: usize,
        expected: Vec<u64>,
        strided: bool,
    },
    Sum {
        to: u32,
        value: u64,
    },
    /// The own slots by plain loads.
    ReadSlots {
        expected: Vec<u64>,
    },
    /// The own counter of active epochs.
    ReadCounter {
        expected: u64,
    },
}

impl Call {
    /// Does it do no more than to issue operations?
    pub fn is_access(&self) -> bool {
        matches!(
            self,
            Self::PutCell { .. }
                | Self::PutNext { .. }
                | Self::AddCell { .. }
                | Self::PutSlot { .. }
                | Self::Sum { .. }
                | Self::GetCell { .. }
                | Self::FetchAdd { .. }
                | Self::CompareAndSwap { .. }
                | Self::GetSlot { .. }
        )
    }

    /// Does it ask for a lock without waiting for it?
    pub fn locks_later(&self) -> bool {
        let mode = match self {
            Self::Lock { mode, .. } | Self::LockAll(mode) => *mode,
            _ => return false,
        };
        mode != LockMode::Granted
    }

    /// Does the program wait in it for what it has issued?
    pub fn synchronizes(&self) -> bool {
        matches!(
            self,
            Self::Fence { .. }
                | Self::Complete
                | Self::Unlock { .. }
                | Self::UnlockAll
                | Self::Flush { .. }
                | Self::FlushLocal { .. }
                | Self::FlushAll
        )
    }
}

/// Values of a slot.
pub fn values(value: u64) -> Vec<u64> {
    let mut prng = Prng::new(value);
    (0..SLOT).map(|_| prng.bits()).collect()
}

/// Which cells of a slot a layout names, in order.
pub fn slot_cells(strided: bool) -> Vec<usize> {
    let back = |last: usize| (0..SLOT / 2).map(move |row| last - 2 * row);
    match strided {
        false => (0..SLOT).collect(),
        true => back(SLOT - 2).chain(back(SLOT - 1)).collect(),
    }
}

/// How a window is used in a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    LockAll(LockMode),
    Locks,
    Fence,
    Post,
}

/// A window of the job, while its script is made.
pub struct Made {
    /// Its communicator.
    pub comm: usize,
    /// Its place among the windows.
    pub window: usize,
    ranks: usize,
    mode: Mode,
    slots: BTreeMap<usize, Vec<u64>>,
    counters: BTreeMap<usize, [u64; 3]>,
    active: BTreeMap<usize, u64>,
    /// (origin, target) of this round's access epochs.
    edges: Vec<(usize, usize)>,
    /// Accesses of the active epoch that are still to be made: origin and call.
    planned: Vec<(usize, Call)>,
    fenced: bool,
}

fn lock_mode(prng: &mut Prng) -> LockMode {
    prng.pick(&[LockMode::Deferred, LockMode::Granted])
}

impl Made {
    /// A new one.
    pub fn new(comm: usize, window: usize, ranks: usize) -> Self {
        let slots = (0..ranks).map(|rank| (rank, vec![0; SLOTS * SLOT])).collect();
        Self {
            comm,
            window,
            ranks,
            mode: Mode::Locks,
            slots,
            counters: BTreeMap::new(),
            active: BTreeMap::new(),
            edges: Vec::new(),
            planned: Vec::new(),
            fenced: false,
        }
    }

    /// What each rank calls at the beginning of a round.
    pub fn begin(&mut self, prng: &mut Prng) -> Vec<Vec<Call>> {
        self.mode = match prng.below(8) {
            0..3 => {
                Mode::LockAll(if prng.chance(30) { LockMode::NoCheck } else { lock_mode(prng) })
            }
            3 | 4 => Mode::Locks,
            5 | 6 => Mode::Fence,
            _ => Mode::Post,
        };
        let all = || (0..self.ranks).flat_map(|a| (0..self.ranks).map(move |b| (a, b)));
        self.edges = match self.mode {
            Mode::Fence => all().collect(),
            Mode::Post => all().filter(|_| prng.chance(50)).collect(),
            _ => Vec::new(),
        };
        let mode = self.mode;
        self.plan(prng);
        let no_precede = !self.fenced || prng.chance(50);
        (0..self.ranks)
            .map(|rank| match mode {
                Mode::LockAll(mode) => vec![Call::LockAll(mode)],
                Mode::Locks => Vec::new(),
                Mode::Fence => vec![Call::Fence { no_precede, no_succeed: false }],
                Mode::Post => {
                    let origins = self.edges.iter().filter(|(_, to)| *to == rank);
                    let targets = self.edges.iter().filter(|(from, _)| *from == rank);
                    vec![
                        Call::Post(origins.map(|(from, _)| *from as u32).collect()),
                        Call::Start(targets.map(|(_, to)| *to as u32).collect()),
                    ]
                }
            })
            .collect()
    }

    /// In an epoch a slot has one writer, or is only read.
    fn plan(&mut self, prng: &mut Prng) {
        let mut written = self.slots.clone();
        for to in 0..self.ranks {
            let origins: Vec<usize> =
                self.edges.iter().filter(|(_, t)| *t == to).map(|(from, _)| *from).collect();
            if origins.is_empty() {
                continue;
            }
            let (target, sums) = (to as u32, (SLOTS - 1) * SLOT);
            for slot in 0..SLOTS - 1 {
                let (origin, strided) = (prng.pick(&origins), prng.chance(40));
                let cells = slot_cells(strided);
                if prng.chance(50) {
                    let value = prng.bits();
                    for (cell, value) in cells.into_iter().zip(values(value)) {
                        if let Some(slots) = written.get_mut(&to) {
                            slots[slot * SLOT + cell] = value;
                        }
                    }
                    let put = Call::PutSlot { to: target, slot, value, strided };
                    self.planned.push((origin, put));
                } else {
                    let old = &self.slots[&to];
                    let expected = cells.iter().map(|cell| old[slot * SLOT + cell]).collect();
                    let get = Call::GetSlot { to: target, slot, expected, strided };
                    self.planned.push((origin, get));
                }
            }
            for &origin in &origins {
                if prng.chance(30) {
                    let value = prng.bits();
                    for (at, value) in values(value).into_iter().enumerate() {
                        if let Some(slots) = written.get_mut(&to) {
                            slots[sums + at] = slots[sums + at].wrapping_add(value);
                        }
                    }
                    self.planned.push((origin, Call::Sum { to: target, value }));
                }
                if prng.chance(30) {
                    *self.active.entry(to).or_default() += 1;
                    let add = Call::FetchAdd { to: target, cell: ACTIVE_COUNTER };
                    self.planned.push((origin, add));
                }
            }
        }
        self.slots = written;
    }

    /// Some accesses in the middle of a round: who, and what.
    pub fn access(&mut self, prng: &mut Prng) -> Option<(usize, Vec<Call>)> {
        let (origin, target) = (prng.below(self.ranks), prng.below(self.ranks));
        let to = target as u32;
        let locks = match self.mode {
            Mode::Fence | Mode::Post => {
                let (origin, call) = self.planned.pop()?;
                return Some((origin, vec![call]));
            }
            Mode::LockAll(_) => false,
            Mode::Locks => true,
        };
        let mut calls = Vec::new();
        let exclusive = locks && prng.chance(50);
        if exclusive && prng.chance(50) {
            let cell = GUARDED;
            calls.push(Call::GetCell { to, cell });
            calls.push(Call::FlushLocal { to });
            calls.push(Call::PutNext { to, cell });
            self.counters.entry(target).or_default()[2] += 1;
        }
        for _ in 0..prng.from_to(1, 3) {
            let cell = prng.below(PASSIVE);
            let counter = prng.below(2);
            calls.push(match prng.below(12) {
                0..4 => Call::PutCell { to, cell },
                4 | 5 => Call::GetCell { to, cell },
                6..8 => {
                    self.counters.entry(target).or_default()[counter] += 1;
                    Call::FetchAdd { to, cell: COUNTERS[counter] }
                }
                8 => Call::CompareAndSwap { to, cell },
                9 => Call::AddCell { to, cell },
                10 => Call::Sync,
                _ => Call::Flush { to },
            });
        }
        if prng.chance(40) {
            calls.push(if prng.chance(70) { Call::Flush { to } } else { Call::FlushAll });
        }
        if locks {
            let mode = lock_mode(prng);
            calls.insert(0, Call::Lock { to, exclusive, mode });
            calls.push(Call::Unlock { to });
        }
        Some((origin, calls))
    }

    /// What each rank calls at the end of a round. `rush`: who comes out of a barrier acts at once
    /// on the window of the first one, who may still be in it.
    pub fn end(&mut self, rush: Option<&mut Prng>) -> Vec<Vec<Call>> {
        let mut calls = vec![Vec::new(); self.ranks];
        for (origin, call) in core::mem::take(&mut self.planned) {
            calls[origin].push(call);
        }
        self.fenced = false;
        for (rank, calls) in calls.iter_mut().enumerate() {
            match self.mode {
                Mode::LockAll(_) => calls.extend([Call::UnlockAll, Call::Barrier]),
                Mode::Locks => calls.push(Call::Barrier),
                Mode::Fence => calls.push(Call::Fence { no_precede: false, no_succeed: true }),
                Mode::Post => calls.extend([Call::Complete, Call::Wait]),
            }
            if matches!(self.mode, Mode::Fence | Mode::Post) {
                calls.push(Call::ReadSlots { expected: self.slots[&rank].clone() });
                let expected = self.active.get(&rank).copied().unwrap_or(0);
                calls.push(Call::ReadCounter { expected });
            }
        }
        if let (Mode::LockAll(_) | Mode::Locks, Some(prng)) = (self.mode, rush) {
            for (rank, calls) in calls.iter_mut().enumerate() {
                if rank > 0 && prng.chance(70) {
                    let (to, counter, exclusive) = (0, prng.below(2), prng.chance(50));
                    self.counters.entry(0).or_default()[counter] += 1;
                    calls.push(Call::Lock { to, exclusive, mode: LockMode::Deferred });
                    calls.push(Call::FetchAdd { to, cell: COUNTERS[counter] });
                    calls.push(Call::Unlock { to });
                }
                calls.push(Call::Barrier);
            }
        }
        calls
    }

    /// It is freed.
    pub fn free(&self) -> Vec<Vec<Call>> {
        let counters = |rank| self.counters.get(&rank).copied().unwrap_or_default();
        (0..self.ranks).map(|rank| vec![Call::Free { counters: counters(rank) }]).collect()
    }
}
