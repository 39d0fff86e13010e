//! What the processes of a set on one node share, so that they can act on each other's windows
//! themselves: direct accesses (DESIGN.md "Direct accesses").
//!
//! Each process has an *area*: a line, an entry for each of its windows, a cell for each entry and
//! neighbour. The set has a *group*: runs of what was applied directly and is not recorded, under a
//! lock. All zero is a process that nobody may act on, and an empty group.
//!
//! * **D1.** What is done directly is counted at the target under the lock, after it was done (a
//!   lock and an atomic operation: while it is done), at the tick that the target's program has
//!   then.
//! * **D2.** A group is recorded as one determinant, under the lock; and before anything else of
//!   the set is recorded, and before anything leaves the set. So what is stable of a set is closed
//!   under "happened before", whatever depends on what.
//! * **D3.** Places of runs follow each other without a gap, over all that was ever applied to a
//!   process, whoever applied it.

use crate::ids::{CommRank, ContextId, Tick};
use crate::record::Applied;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Windows of a process that have an entry. Others are accessed by messages.
pub const ENTRIES: usize = 64;

/// Others may read.
pub const READS: u32 = 1;
/// Others may write.
pub const WRITES: u32 = 2;

const HELD: u64 = 3;
const HELD_SHARED: u64 = 1;
const HELD_EXCLUSIVE: u64 = 2;
/// One MPI_Win_post, above the bits of the lock.
const POST: u64 = 4;
/// Of an entry's `by_message`: an exclusive lock. Below it: how many shared ones.
const EXCLUSIVE: u32 = 1 << 31;
/// So often the lock is asked for before the processor is left to somebody else.
const SPINS: u32 = 100;

/// Runs of a group: so many that its determinant can be piggybacked.
pub const RUNS: usize = 6;

/// Operations of one origin that were applied directly, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectRun {
    /// Ordered operations that were applied to the target before these, since the job began.
    pub first: u64,
    /// What they are.
    pub applied: Applied,
}

/// Of one neighbour: its number, and what was applied to it.
pub type GroupRun = (usize, DirectRun);

#[repr(C)]
#[derive(Debug, Default)]
struct OpenRun {
    target: AtomicU32,
    source: AtomicU32,
    window: AtomicU32,
    tick: AtomicU64,
    first: AtomicU64,
    count: AtomicU64,
}

/// The group of a set, and its lock.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct SetGroup {
    locked: AtomicU32,
    /// How many of `runs` are in use.
    open: AtomicU32,
    runs: [OpenRun; RUNS],
}

/// The line of a process. Written by it alone but for `applied` and `written_at`.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct TargetLine {
    /// Actions of its program.
    tick: AtomicU64,
    /// Ordered operations that were ever applied.
    applied: AtomicU64,
    /// Tick of the last write by who was not in an active epoch.
    written_at: AtomicU64,
    /// `READS`, `WRITES`.
    accepts: AtomicU32,
}

/// One window of a process.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct WindowEntry {
    /// Its context id and 1; 0: free.
    name: AtomicU64,
    /// Address of its first byte in the owner's memory.
    base: AtomicU64,
    /// Fences that the owner has left.
    fences: AtomicU64,
    /// Locks that were taken directly: the same form as `by_message`.
    direct: AtomicU32,
    /// Locks that the owner has granted.
    by_message: AtomicU32,
    /// How many wait at the owner for the lock.
    waiting: AtomicU32,
    /// The owner's descriptor of the memory, if it may be mapped, and 1.
    descriptor: AtomicU32,
    /// Bytes that may be mapped.
    bytes: AtomicU64,
    /// Who has mapped the owner's memory finds this mark there.
    mark: AtomicU64,
    /// Accesses by neighbours in fence epochs.
    of_fences: AtomicU64,
}

const _: () = assert!(size_of::<TargetLine>() == 64 && size_of::<WindowEntry>() == 64);
const _: () = assert!(size_of::<SetGroup>() == 256);

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct TargetArea<'a> {
    line: &'a TargetLine,
    entries: &'a [WindowEntry; ENTRIES],
    /// By entry, then by neighbour: how often the owner has posted to it, and what lock it has.
    cells: &'a [AtomicU64],
}

/// An entry of an area.
#[derive(Clone, Copy, Debug)]
pub struct EntryRef<'a> {
    entry: &'a WindowEntry,
    cells: &'a [AtomicU64],
}

/// The lock of a group, held.
#[derive(Debug)]
pub struct Locked<'a>(&'a SetGroup);

impl SetGroup {
    /// Take the lock. Whoever has it waits for nothing meanwhile. `give_way`: leave the processor
    /// to somebody else, perhaps to who has it.
    #[inline(always)]
    pub fn lock(&self, mut give_way: impl FnMut()) -> Locked<'_> {
        let mut tries = 0u32;
        loop {
            let is_free = self.locked.load(Ordering::Relaxed) == 0;
            // [group] what was done under the lock is seen by who has it next.
            let taken = |word: &AtomicU32| {
                word.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
            };
            if is_free && taken(&self.locked) {
                return Locked(self);
            }
            tries += 1;
            match tries % SPINS {
                0 => give_way(),
                _ => core::hint::spin_loop(),
            }
        }
    }

    /// Is there anything that is not recorded? Whoever depends on it sees that.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) != 0
    }
}

impl<'a> TargetArea<'a> {
    /// `cells`: as many for each entry as there are neighbours.
    #[inline]
    pub fn new(
        line: &'a TargetLine,
        entries: &'a [WindowEntry; ENTRIES],
        cells: &'a [AtomicU64],
    ) -> Self {
        Self { line, entries, cells }
    }

    /// The entry with this number.
    #[inline(always)]
    pub fn entry(&self, number: usize) -> Option<EntryRef<'a>> {
        let each = self.cells.len() / ENTRIES;
        let entry = self.entries.get(number)?;
        Some(EntryRef { entry, cells: &self.cells[number * each..][..each] })
    }

    /// Number of a window's entry.
    pub fn find(&self, window: ContextId) -> Option<usize> {
        let name = name_of(window);
        // [entry] what belongs to the window was stored before its name.
        self.entries.iter().position(|entry| entry.name.load(Ordering::Acquire) == name)
    }

    /// The owner's program acts: it is at this tick from now on.
    #[inline(always)]
    pub fn set_tick(&self, tick: Tick) {
        // [tick] who is told of what comes next has seen this.
        self.line.tick.store(tick.0, Ordering::Release);
    }

    #[inline(always)]
    fn tick(&self) -> Tick {
        Tick(self.line.tick.load(Ordering::Acquire))
    }

    /// May others do this?
    #[inline(always)]
    pub fn accepts(&self, what: u32) -> bool {
        self.line.accepts.load(Ordering::Acquire) & what == what
    }

    /// The owner says what others may do.
    pub fn set_accepts(&self, what: u32) {
        self.line.accepts.store(what, Ordering::Release);
    }

    /// Ordered operations that were ever applied to the owner.
    #[inline]
    pub fn applied(&self) -> u64 {
        self.line.applied.load(Ordering::Relaxed)
    }

    /// Was something written directly, in no active epoch, while the owner's program was at this
    /// tick?
    pub fn was_written_at(&self, tick: Tick) -> bool {
        self.line.written_at.load(Ordering::Relaxed) == tick.0
    }

    /// The owner begins with this area, which nobody has used.
    pub(crate) fn begin(&self, tick: Tick, applied: u64) {
        self.line.applied.store(applied, Ordering::Relaxed);
        self.set_tick(tick);
    }

    /// The owner makes a window known: in which entry; `None`: all are taken.
    pub(crate) fn publish(&self, window: ContextId, base: u64, fences: u64) -> Option<usize> {
        let number = self.entries.iter().position(|e| e.name.load(Ordering::Relaxed) == 0)?;
        let EntryRef { entry, cells } = self.entry(number)?;
        cells.iter().for_each(|cell| cell.store(0, Ordering::Relaxed));
        for word in [&entry.direct, &entry.by_message, &entry.waiting, &entry.descriptor] {
            word.store(0, Ordering::Relaxed);
        }
        entry.mark.store(0, Ordering::Relaxed);
        entry.of_fences.store(0, Ordering::Relaxed);
        entry.base.store(base, Ordering::Relaxed);
        entry.fences.store(fences, Ordering::Relaxed);
        // [entry]
        entry.name.store(name_of(window), Ordering::Release);
        Some(number)
    }
}

fn name_of(window: ContextId) -> u64 {
    u64::from(window.0) + 1
}

impl EntryRef<'_> {
    #[inline(always)]
    pub(crate) fn is_of(&self, window: ContextId) -> bool {
        self.entry.name.load(Ordering::Acquire) == name_of(window)
    }

    /// The window is no more.
    pub(crate) fn withdraw(&self) {
        self.entry.name.store(0, Ordering::Release);
    }

    /// Address of the window's first byte in its owner's memory.
    #[inline]
    pub fn base(&self) -> u64 {
        self.entry.base.load(Ordering::Relaxed)
    }

    /// The owner's descriptor of the window's memory and its bytes, if it may be mapped.
    pub fn offered(&self) -> Option<(i32, u64)> {
        // [offer] the size belongs to the descriptor.
        let descriptor = self.entry.descriptor.load(Ordering::Acquire).checked_sub(1)?;
        Some((i32::try_from(descriptor).ok()?, self.entry.bytes.load(Ordering::Relaxed)))
    }

    /// The owner says so.
    pub fn offer(&self, descriptor: i32, bytes: u64) {
        self.entry.bytes.store(bytes, Ordering::Relaxed);
        // [offer]
        self.entry.descriptor.store(descriptor as u32 + 1, Ordering::Release);
    }

    /// The owner's mark; 0: there is none.
    #[inline]
    pub fn mark(&self) -> u64 {
        self.entry.mark.load(Ordering::Acquire)
    }

    /// The owner has written it to its memory.
    pub fn set_mark(&self, mark: u64) {
        self.entry.mark.store(mark, Ordering::Release);
    }

    /// Fences that the owner has left.
    #[inline]
    pub(crate) fn fences(&self) -> u64 {
        // [exposure] what was applied before the owner left the fence is there.
        self.entry.fences.load(Ordering::Acquire)
    }

    pub(crate) fn set_fences(&self, fences: u64) {
        self.entry.fences.store(fences, Ordering::Release);
    }

    /// One more access in a fence epoch was done.
    #[inline(always)]
    pub(crate) fn count_of_fence(&self) {
        // [fence count] who has seen it counted sees what was done.
        self.entry.of_fences.fetch_add(1, Ordering::Release);
    }

    /// How many were, since the owner made the window known here.
    pub(crate) fn of_fences(&self) -> u64 {
        // [fence count]
        self.entry.of_fences.load(Ordering::Acquire)
    }

    /// How often the owner has posted to this neighbour.
    #[inline]
    pub(crate) fn posts(&self, neighbour: usize) -> u64 {
        // [exposure]
        self.cells.get(neighbour).map_or(0, |cell| cell.load(Ordering::Acquire) / POST)
    }

    pub(crate) fn add_posts(&self, neighbour: usize, posts: u64) {
        if let Some(cell) = self.cells.get(neighbour) {
            cell.fetch_add(posts * POST, Ordering::Release);
        }
    }
}

fn is_free_for(word: u32, exclusive: bool) -> bool {
    if exclusive { word == 0 } else { word & EXCLUSIVE == 0 }
}

impl Locked<'_> {
    /// Is there no room for another run? The group has to be recorded first.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.0.open.load(Ordering::Relaxed) as usize == RUNS
    }

    /// All that is not recorded, of each target in its order. It is to be recorded before the lock
    /// is released (D2).
    pub fn take(&self) -> Vec<GroupRun> {
        let open = self.0.open.load(Ordering::Relaxed) as usize;
        if open == 0 {
            // As most often: what others sent is applied one after the other.
            return Vec::new();
        }
        self.0.open.store(0, Ordering::Relaxed);
        let run = |run: &OpenRun| {
            let applied = Applied {
                window: ContextId(run.window.load(Ordering::Relaxed)),
                source: CommRank(run.source.load(Ordering::Relaxed)),
                count: run.count.load(Ordering::Relaxed),
                tick: Tick(run.tick.load(Ordering::Relaxed)),
            };
            let first = run.first.load(Ordering::Relaxed);
            (run.target.load(Ordering::Relaxed) as usize, DirectRun { first, applied })
        };
        self.0.runs.iter().take(open).map(run).collect()
    }

    /// One more ordered operation was applied directly. The group is not full.
    #[inline(always)]
    pub(crate) fn count(
        &self,
        (target, area): (usize, &TargetArea<'_>),
        window: ContextId,
        source: CommRank,
        is_passive: bool,
    ) {
        let tick = if is_passive { area.tick() } else { Tick::BY_EPOCH };
        let first = self.count_own(area);
        let open = self.0.open.load(Ordering::Relaxed) as usize;
        let runs = &self.0.runs;
        let mut before = open.min(RUNS);
        while before > 0 {
            before -= 1;
            let last = &runs[before];
            if last.target.load(Ordering::Relaxed) as usize != target {
                continue;
            }
            if last.window.load(Ordering::Relaxed) == window.0
                && last.source.load(Ordering::Relaxed) == source.0
                && last.tick.load(Ordering::Relaxed) == tick.0
            {
                last.count.store(last.count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                return;
            }
            break;
        }
        let Some(run) = runs.get(open) else { return };
        run.target.store(target as u32, Ordering::Relaxed);
        run.window.store(window.0, Ordering::Relaxed);
        run.source.store(source.0, Ordering::Relaxed);
        run.tick.store(tick.0, Ordering::Relaxed);
        run.first.store(first, Ordering::Relaxed);
        run.count.store(1, Ordering::Relaxed);
        self.0.open.store(open as u32 + 1, Ordering::Relaxed);
    }

    /// What was done last wrote, in no active epoch.
    #[inline(always)]
    pub(crate) fn wrote(&self, area: &TargetArea<'_>) {
        area.line.written_at.store(area.tick().0, Ordering::Relaxed);
    }

    /// One more was applied by the owner, who records it: its place.
    #[inline(always)]
    pub(crate) fn count_own(&self, area: &TargetArea<'_>) -> u64 {
        let applied = &area.line.applied;
        let first = applied.load(Ordering::Relaxed);
        applied.store(first + 1, Ordering::Relaxed);
        first
    }

    /// A neighbour takes the lock of a window directly. False: it is not free, or somebody waits.
    #[inline]
    pub(crate) fn take_lock(&self, of: EntryRef<'_>, neighbour: usize, exclusive: bool) -> bool {
        let EntryRef { entry, cells } = of;
        let word = entry.direct.load(Ordering::Relaxed);
        let by_message = entry.by_message.load(Ordering::Relaxed);
        let is_free = is_free_for(word, exclusive)
            && is_free_for(by_message, exclusive)
            && entry.waiting.load(Ordering::Relaxed) == 0;
        let Some(cell) = cells.get(neighbour).filter(|_| is_free) else { return false };
        if cell.load(Ordering::Relaxed) & HELD != 0 {
            return false;
        }
        let (held, word) =
            if exclusive { (HELD_EXCLUSIVE, EXCLUSIVE) } else { (HELD_SHARED, word + 1) };
        cell.fetch_add(held, Ordering::Relaxed);
        entry.direct.store(word, Ordering::Relaxed);
        true
    }

    /// What lock a neighbour has taken directly: is it exclusive?
    #[inline]
    pub(crate) fn lock_of(&self, of: EntryRef<'_>, neighbour: usize) -> Option<bool> {
        match of.cells.get(neighbour)?.load(Ordering::Relaxed) & HELD {
            0 => None,
            held => Some(held == HELD_EXCLUSIVE),
        }
    }

    /// It gives it back. False: it has none.
    #[inline]
    pub(crate) fn release_lock(&self, of: EntryRef<'_>, neighbour: usize) -> bool {
        let Some(exclusive) = self.lock_of(of, neighbour) else { return false };
        of.cells[neighbour].fetch_and(!HELD, Ordering::Relaxed);
        let word = of.entry.direct.load(Ordering::Relaxed);
        of.entry.direct.store(if exclusive { 0 } else { word - 1 }, Ordering::Relaxed);
        true
    }

    /// Do the locks that were taken directly leave room for another one?
    pub(crate) fn is_free_of_direct(&self, of: EntryRef<'_>, exclusive: bool) -> bool {
        is_free_for(of.entry.direct.load(Ordering::Relaxed), exclusive)
    }

    /// The owner says which locks it has granted by message, and how many wait for one.
    pub(crate) fn set_by_message(
        &self,
        of: EntryRef<'_>,
        exclusive: bool,
        shared: usize,
        waiting: usize,
    ) {
        let word = if exclusive { EXCLUSIVE } else { shared as u32 };
        of.entry.by_message.store(word, Ordering::Relaxed);
        of.entry.waiting.store(waiting as u32, Ordering::Relaxed);
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        // [group]
        self.0.locked.store(0, Ordering::Release);
    }
}

/// An area with memory of its own: for who shares nothing, and for tests.
#[derive(Debug)]
pub struct OwnedArea {
    line: TargetLine,
    entries: [WindowEntry; ENTRIES],
    cells: Vec<AtomicU64>,
}

impl OwnedArea {
    /// For so many neighbours, the owner among them.
    pub fn new(neighbours: usize) -> Self {
        let cells = (0..ENTRIES * neighbours).map(|_| AtomicU64::new(0)).collect();
        Self {
            line: TargetLine::default(),
            entries: core::array::from_fn(|_| WindowEntry::default()),
            cells,
        }
    }

    /// As others see it.
    pub fn area(&self) -> TargetArea<'_> {
        TargetArea::new(&self.line, &self.entries, &self.cells)
    }
}
