//! Random programs: those without races, whose results are those of a sequential run, and free
//! ones, in which everything depends on the order in which operations are applied.

use rustbtl_rma::machine::LockMode;
use rustbtl_seeds::Prng;

/// Cells (8 bytes) of a slot: written and read together, in two parts.
pub const SLOT: usize = 6;
/// Slots at the beginning of each window.
pub const SLOTS: usize = 3;
/// The slot that is only accumulated to.
pub const SUMS: usize = SLOTS;
/// Cells that are only changed by atomics.
pub const COUNTERS: [usize; 2] = [(SLOTS + 1) * SLOT, (SLOTS + 1) * SLOT + 1];
/// A cell that is only changed under an exclusive lock.
pub const GUARDED: usize = (SLOTS + 1) * SLOT + 2;
/// Cells of the second window that ordered programs use.
pub const SECOND: usize = 3;
/// Cells of a window.
pub const CELLS: usize = (SLOTS + 1) * SLOT + 3;

/// A call of a program.
#[derive(Clone, PartialEq, Debug)]
pub enum Call {
    Send {
        to: usize,
        synchronous: bool,
    },
    Recv {
        from: usize,
    },
    /// A receive begins. It is told as soon as its message is here.
    BeginRecv {
        from: usize,
    },
    /// Waits for it: no action of its own.
    AwaitRecv {
        from: usize,
    },
    Barrier,
    Read,
    ReadCounters,
    Put {
        to: usize,
        slot: usize,
        strided: bool,
    },
    PutCell {
        to: usize,
        cell: usize,
    },
    Get {
        to: usize,
        slot: usize,
        strided: bool,
    },
    Sum {
        to: usize,
    },
    FetchAdd {
        to: usize,
        cell: usize,
    },
    /// Adds 1 by compare and swap, as often as it takes; ends with the flush that it needs.
    Swap {
        to: usize,
        cell: usize,
    },
    /// Gets the guarded cell, waits for it, and puts one more.
    Increment {
        to: usize,
    },
    Fence {
        no_precede: bool,
        no_succeed: bool,
    },
    Post(Vec<usize>),
    Start(Vec<usize>),
    Complete,
    Wait,
    Lock {
        to: usize,
        exclusive: bool,
        mode: LockMode,
    },
    Unlock {
        to: usize,
    },
    LockAll(LockMode),
    UnlockAll,
    Flush {
        to: usize,
    },
    FlushAll,
    /// The second window: made, written (lock, put, unlock), read, freed. One after the other.
    Create,
    PutSecond {
        to: usize,
        cell: usize,
    },
    ReadSecond,
    Free,
}

impl Call {
    /// Does it do no more than to issue operations? Nobody waits in it.
    pub fn is_access(&self) -> bool {
        matches!(
            self,
            Self::Put { .. }
                | Self::PutCell { .. }
                | Self::Get { .. }
                | Self::Sum { .. }
                | Self::FetchAdd { .. }
        )
    }

    /// Does the program wait for what it has issued? It shares a message with that.
    pub fn synchronizes(&self) -> bool {
        matches!(
            self,
            Self::Fence { .. }
                | Self::Complete
                | Self::Unlock { .. }
                | Self::UnlockAll
                | Self::Flush { .. }
                | Self::FlushAll
                | Self::PutSecond { .. }
        )
    }
}

/// What a seed stands for.
pub struct Script {
    /// Of each rank.
    pub programs: Vec<Vec<Call>>,
    /// Programs in which everything is read at once.
    pub is_free: bool,
}

fn lock_mode(prng: &mut Prng) -> LockMode {
    if prng.chance(50) { LockMode::Deferred } else { LockMode::Granted }
}

impl Script {
    /// A program without races.
    pub fn ordered(prng: &mut Prng, ranks: usize) -> Self {
        let mut programs = vec![Vec::new(); ranks];
        for _ in 0..prng.between(2, 6) {
            match prng.below(7) {
                0 => fence_phase(prng, &mut programs),
                1 => post_phase(prng, &mut programs),
                2 => passive_phase(prng, &mut programs),
                3 => counter_phase(prng, &mut programs),
                4 => second_window_phase(prng, &mut programs),
                5 => told_phase(prng, &mut programs),
                _ => guarded_phase(prng, &mut programs),
            }
        }
        Self { programs, is_free: false }
    }

    /// A program whose every step depends on the order of operations.
    pub fn free(prng: &mut Prng, ranks: usize) -> Self {
        let mode = if prng.chance(50) { LockMode::NoCheck } else { LockMode::Deferred };
        let mut programs = vec![vec![Call::LockAll(mode)]; ranks];
        for _ in 0..prng.between(10, 50) {
            let (a, b) = pair(prng, ranks);
            let cell = prng.below(4);
            match prng.below(20) {
                0..6 => {
                    programs[a].push(Call::Send { to: b, synchronous: false });
                    programs[b].push(Call::Recv { from: a });
                }
                6..8 => {
                    programs[a].push(Call::Send { to: b, synchronous: true });
                    programs[b].push(Call::Recv { from: a });
                }
                8..12 => programs[a].push(Call::PutCell { to: b, cell }),
                12..15 => {
                    programs[a].push(Call::PutCell { to: b, cell });
                    programs[a].push(Call::Flush { to: b });
                }
                15 => programs[a].push(Call::PutCell { to: a, cell }),
                16 => programs[a].push(Call::Swap { to: b, cell: COUNTERS[0] }),
                _ => {
                    programs[a].push(Call::FetchAdd { to: b, cell: COUNTERS[1] });
                    programs[a].push(Call::Flush { to: b });
                }
            }
        }
        for program in &mut programs {
            program.push(Call::UnlockAll);
        }
        Self { programs, is_free: true }
    }
}

fn pair(prng: &mut Prng, ranks: usize) -> (usize, usize) {
    let a = prng.below(ranks);
    (a, (a + 1 + prng.below(ranks - 1)) % ranks)
}

/// In one phase a slot has one writer, or is only read. Returns the accesses of each origin.
fn accesses(prng: &mut Prng, ranks: usize, may: impl Fn(usize, usize) -> bool) -> Vec<Vec<Call>> {
    let mut calls = vec![Vec::new(); ranks];
    for to in 0..ranks {
        let origins: Vec<usize> = (0..ranks).filter(|&origin| may(origin, to)).collect();
        if origins.is_empty() {
            continue;
        }
        for slot in 0..SLOTS {
            let strided = prng.chance(40);
            if prng.chance(50) {
                let owner = origins[prng.below(origins.len())];
                calls[owner].push(Call::Put { to, slot, strided });
            } else {
                let origin = origins[prng.below(origins.len())];
                calls[origin].push(Call::Get { to, slot, strided });
            }
        }
        for &origin in &origins {
            if prng.chance(40) {
                calls[origin].push(Call::Sum { to });
            }
            if prng.chance(30) {
                calls[origin].push(Call::FetchAdd { to, cell: COUNTERS[prng.below(2)] });
            }
        }
    }
    calls
}

/// Messages of the program between what else it does.
fn with_messages(prng: &mut Prng, programs: &mut [Vec<Call>], mut calls: Vec<Vec<Call>>) {
    for _ in 0..prng.below(3) {
        let (a, b) = pair(prng, programs.len());
        programs[a].push(Call::Send { to: b, synchronous: false });
        calls[b].push(Call::Recv { from: a });
    }
    for (program, calls) in programs.iter_mut().zip(calls) {
        program.extend(calls);
    }
}

fn all(programs: &mut [Vec<Call>], call: &Call) {
    for program in programs {
        program.push(call.clone());
    }
}

fn fence_phase(prng: &mut Prng, programs: &mut [Vec<Call>]) {
    let no_precede = prng.chance(50);
    all(programs, &Call::Fence { no_precede, no_succeed: false });
    let mut epochs = prng.between(1, 3);
    while epochs > 0 {
        let calls = accesses(prng, programs.len(), |_, _| true);
        with_messages(prng, programs, calls);
        epochs -= 1;
        all(programs, &Call::Fence { no_precede: false, no_succeed: true });
        all(programs, &Call::Read);
        if epochs > 0 {
            all(programs, &Call::Fence { no_precede: true, no_succeed: false });
        }
    }
    all(programs, &Call::Barrier);
}

fn post_phase(prng: &mut Prng, programs: &mut [Vec<Call>]) {
    let ranks = programs.len();
    for _ in 0..prng.between(1, 3) {
        let edges: Vec<bool> = (0..ranks * ranks).map(|_| prng.chance(40)).collect();
        let may = |origin: usize, to: usize| edges[origin * ranks + to];
        let calls = accesses(prng, ranks, may);
        for (rank, (program, calls)) in programs.iter_mut().zip(calls).enumerate() {
            let origins: Vec<usize> = (0..ranks).filter(|&origin| may(origin, rank)).collect();
            let targets: Vec<usize> = (0..ranks).filter(|&to| may(rank, to)).collect();
            program.push(Call::Post(origins));
            program.push(Call::Start(targets));
            program.extend(calls);
            program.push(Call::Complete);
            program.push(Call::Wait);
            program.push(Call::Read);
        }
    }
    all(programs, &Call::Barrier);
}

/// Puts that are flushed, then a message that says so, then the target reads.
fn passive_phase(prng: &mut Prng, programs: &mut [Vec<Call>]) {
    let ranks = programs.len();
    let calls = accesses(prng, ranks, |_, _| true);
    let mut receives = vec![Vec::new(); ranks];
    let lock_all = prng.chance(50);
    let mode = if prng.chance(30) { LockMode::NoCheck } else { lock_mode(prng) };
    for (rank, (program, calls)) in programs.iter_mut().zip(calls).enumerate() {
        let to = |call: &Call| match call {
            Call::Put { to, .. } | Call::Get { to, .. } => *to,
            Call::Sum { to } | Call::FetchAdd { to, .. } => *to,
            _ => 0,
        };
        let targets: Vec<usize> =
            (0..ranks).filter(|&target| calls.iter().any(|call| to(call) == target)).collect();
        if lock_all {
            program.push(Call::LockAll(mode));
        }
        for &target in &targets {
            if !lock_all {
                program.push(Call::Lock { to: target, exclusive: false, mode });
            }
            program.extend(calls.iter().filter(|call| to(call) == target).cloned());
            program.push(match lock_all {
                true => Call::Flush { to: target },
                false => Call::Unlock { to: target },
            });
            if target != rank {
                program.push(Call::Send { to: target, synchronous: false });
                receives[target].push(Call::Recv { from: rank });
            }
        }
        if lock_all {
            program.push(Call::FlushAll);
        }
    }
    for (program, receives) in programs.iter_mut().zip(receives) {
        program.extend(receives);
        program.push(Call::Read);
        if lock_all {
            program.push(Call::UnlockAll);
        }
        program.push(Call::Barrier);
    }
}

/// A rank puts, and another one tells the target, which has begun to receive that before it has
/// sent something.
fn told_phase(prng: &mut Prng, programs: &mut [Vec<Call>]) {
    let ranks = programs.len();
    let (target, origin) = pair(prng, ranks);
    let others: Vec<usize> = (0..ranks).filter(|&r| r != target && r != origin).collect();
    let teller = if others.is_empty() { origin } else { others[prng.below(others.len())] };
    let send = |to| Call::Send { to, synchronous: false };
    let (slot, strided, mode) = (prng.below(SLOTS), prng.chance(40), lock_mode(prng));
    programs[target].extend([
        Call::BeginRecv { from: teller },
        send(origin),
        Call::AwaitRecv { from: teller },
        Call::Read,
    ]);
    programs[origin].extend([
        Call::Lock { to: target, exclusive: false, mode },
        Call::Put { to: target, slot, strided },
        Call::Unlock { to: target },
    ]);
    if teller != origin {
        programs[origin].push(send(teller));
        programs[teller].push(Call::Recv { from: origin });
    }
    programs[teller].push(send(target));
    programs[origin].push(Call::Recv { from: target });
    all(programs, &Call::Barrier);
}

fn counter_phase(prng: &mut Prng, programs: &mut [Vec<Call>]) {
    let ranks = programs.len();
    let mode = if prng.chance(30) { LockMode::NoCheck } else { lock_mode(prng) };
    all(programs, &Call::LockAll(mode));
    for program in programs.iter_mut() {
        for _ in 0..prng.between(1, 5) {
            let (to, cell) = (prng.below(ranks), COUNTERS[prng.below(2)]);
            if prng.chance(30) {
                program.push(Call::Swap { to, cell });
            } else {
                program.push(Call::FetchAdd { to, cell });
            }
            if prng.chance(50) {
                program.push(Call::Flush { to });
            }
        }
        program.push(Call::UnlockAll);
    }
    all(programs, &Call::Barrier);
    all(programs, &Call::ReadCounters);
    all(programs, &Call::Barrier);
}

fn second_window_phase(prng: &mut Prng, programs: &mut [Vec<Call>]) {
    let ranks = programs.len();
    all(programs, &Call::Create);
    for to in 0..ranks {
        for cell in 0..SECOND {
            programs[prng.below(ranks)].push(Call::PutSecond { to, cell });
        }
    }
    all(programs, &Call::Barrier);
    all(programs, &Call::ReadSecond);
    all(programs, &Call::Free);
}

/// Some change a cell under an exclusive lock, others have the locks of all.
fn guarded_phase(prng: &mut Prng, programs: &mut [Vec<Call>]) {
    let ranks = programs.len();
    for program in programs.iter_mut() {
        if prng.chance(40) {
            program.push(Call::LockAll(lock_mode(prng)));
            for _ in 0..prng.between(1, 4) {
                let (to, cell) = (prng.below(ranks), COUNTERS[prng.below(2)]);
                program.push(Call::FetchAdd { to, cell });
            }
            program.push(Call::UnlockAll);
            continue;
        }
        for _ in 0..prng.between(1, 3) {
            let to = prng.below(ranks);
            program.push(Call::Lock { to, exclusive: true, mode: lock_mode(prng) });
            program.push(Call::Increment { to });
            program.push(Call::Unlock { to });
        }
    }
    all(programs, &Call::Barrier);
    all(programs, &Call::ReadCounters);
    all(programs, &Call::Barrier);
}
