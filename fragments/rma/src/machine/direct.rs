//! Direct accesses: this process does itself, in memory, what otherwise a message would have the
//! target's machine do (DESIGN.md "Direct accesses"). What is recorded of it is the same, in the
//! target's order, and a replay goes by messages.

use super::Rma;
use crate::direct::{EntryRef, GroupRun, Locked, READS, SetGroup, TargetArea, WRITES};
use crate::error::RmaError;
use crate::ids::{CommRank, ContextId};
use crate::memory::Memory;
use crate::wire::{Action, Epoch, Place};

/// The neighbours of a process: those of its set that share memory with it, itself among them. They
/// have numbers, the same in all of them.
pub trait Neighbourhood<'a> {
    /// Memory of a neighbour.
    type Memory: Memory;
    /// The same where it is mapped here.
    type Here: Memory;
    /// The own number.
    fn me(&self) -> usize;
    /// What the set shares.
    fn group(&self) -> Option<&'a SetGroup>;
    /// What a neighbour shares; `None`: nothing, now.
    fn area(&self, neighbour: usize) -> Option<TargetArea<'a>>;
    /// Its memory, of a window that has this entry.
    fn memory(&mut self, neighbour: usize, of: (ContextId, EntryRef<'a>)) -> &mut Self::Memory;
    /// Its memory, of a window that has this entry, if that is mapped here.
    fn here(&self, neighbour: usize, of: (ContextId, EntryRef<'a>)) -> Option<Self::Here>;
    /// Is it quicker to access so many bytes (0: some, read and written, or in several pieces)
    /// directly than by message?
    fn is_quicker(&self, neighbour: usize, of: (ContextId, EntryRef<'a>), bytes: u64) -> bool;
    /// Somebody else has the lock for long: leave the processor to others.
    fn give_way(&self);
    /// Record a group, before its lock is released (D2).
    fn record(&mut self, group: Vec<GroupRun>);
}

/// None: everything goes by messages.
#[derive(Debug)]
pub struct Nobody;

impl<'a> Neighbourhood<'a> for Nobody {
    type Memory = Self;
    type Here = Self;
    fn me(&self) -> usize {
        0
    }
    fn group(&self) -> Option<&'a SetGroup> {
        None
    }
    fn area(&self, _: usize) -> Option<TargetArea<'a>> {
        None
    }
    fn memory(&mut self, _: usize, _: (ContextId, EntryRef<'a>)) -> &mut Self {
        self
    }
    fn here(&self, _: usize, _: (ContextId, EntryRef<'a>)) -> Option<Self> {
        None
    }
    fn is_quicker(&self, _: usize, _: (ContextId, EntryRef<'a>), _: u64) -> bool {
        false
    }
    fn give_way(&self) {}
    fn record(&mut self, _: Vec<GroupRun>) {}
}

impl Memory for Nobody {
    fn read(&self, _: u64, _: &mut [u8]) {}
    fn write(&mut self, _: u64, _: &[u8]) {}
}

/// A target that can be accessed directly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Near<'a> {
    pub(super) group: &'a SetGroup,
    pub(super) area: TargetArea<'a>,
    pub(super) entry: EntryRef<'a>,
    /// The entry's number.
    pub(super) number: usize,
    pub(super) index: usize,
    pub(super) me: usize,
}

/// What was got last: a program that looks at a place again and again waits for somebody.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LastGot {
    window: ContextId,
    target: CommRank,
    displacement: i64,
    data: [u8; FLAG_BYTES_MAX],
    bytes: usize,
    /// Other actions of the own program.
    actions: u64,
    /// Applied to the target.
    applied: u64,
}

impl<'a> Near<'a> {
    /// A neighbour, whose entry for the window has this number.
    #[inline(always)]
    pub(super) fn at(
        hood: &impl Neighbourhood<'a>,
        id: ContextId,
        index: usize,
        number: usize,
    ) -> Option<Self> {
        let area = hood.area(index)?;
        let entry = area.entry(number).filter(|entry| entry.is_of(id))?;
        Some(Self { group: hood.group()?, area, entry, number, index, me: hood.me() })
    }

    /// Does the target expose its window in this epoch? In none that is active: to what is to be
    /// done?
    #[inline(always)]
    pub(super) fn is_exposed(&self, epoch: Epoch, what: u32) -> bool {
        match epoch {
            Epoch::Passive => self.area.accepts(what),
            Epoch::Fence(number) => self.entry.fences() >= number,
            Epoch::Access(number) => self.entry.posts(self.me) >= number,
        }
    }

    /// The lock, with room for another run.
    #[inline(always)]
    pub(super) fn lock(&self, hood: &mut impl Neighbourhood<'a>) -> Locked<'a> {
        let locked = self.group.lock(|| hood.give_way());
        if locked.is_full() {
            hood.record(locked.take());
        }
        locked
    }

    #[inline(always)]
    pub(super) fn count(&self, locked: &Locked<'_>, of: (ContextId, CommRank), is_passive: bool) {
        locked.count((self.index, &self.area), of.0, of.1, is_passive);
    }
}

/// No flag is longer.
const FLAG_BYTES_MAX: usize = 16;

impl Rma {
    /// The own area: it has not been used by anybody. `of`: numbers of the ranks of a window's
    /// group that are neighbours.
    pub fn open_area(
        &mut self,
        locked: &Locked<'_>,
        area: &TargetArea<'_>,
        of: impl Fn(ContextId, CommRank) -> Option<usize>,
    ) {
        self.hot.forget();
        area.begin(self.tick, self.applied);
        for (&id, window) in &mut self.windows {
            window.find_neighbours(|rank| of(id, rank));
            window.publish(id, locked, area);
        }
        self.update_accepts(area);
    }

    /// A window was made: neighbours are made known to it, and it to them.
    pub fn publish(
        &mut self,
        window: ContextId,
        locked: &Locked<'_>,
        area: &TargetArea<'_>,
        of: impl Fn(CommRank) -> Option<usize>,
    ) {
        self.hot.forget();
        if let Some(found) = self.windows.get_mut(&window) {
            found.find_neighbours(of);
            found.publish(window, locked, area);
        }
        self.update_accepts(area);
    }

    /// It is to be freed: nobody finds it any more.
    pub fn withdraw(&mut self, window: ContextId, locked: &Locked<'_>, area: &TargetArea<'_>) {
        self.hot.forget();
        let Some(found) = self.windows.get_mut(&window) else { return };
        found.take_back_locks(locked, area);
        if let Some(entry) = found.entry.take().and_then(|number| area.entry(number)) {
            entry.withdraw();
        }
    }

    /// What the program has done of exposure epochs (fences, posts) since the last call.
    pub fn publish_exposure(&mut self, window: ContextId, area: &TargetArea<'_>) {
        if let Some(found) = self.windows.get_mut(&window) {
            found.publish_exposure(area);
        }
    }

    /// A replay begins or ends, or the program polls its memory: what others may do.
    pub fn update_accepts(&self, area: &TargetArea<'_>) {
        area.set_accepts(match (self.replay.is_some(), self.polls) {
            (true, _) => 0,
            (false, true) => READS,
            (false, false) => READS | WRITES,
        });
    }

    /// The process is frozen, with all of its set: what others have changed in the own area is the
    /// machine's from now on.
    pub fn close_area(&mut self, locked: &Locked<'_>, area: &TargetArea<'_>) {
        self.applied = area.applied();
        self.hot.forget();
        for found in self.windows.values_mut() {
            found.take_back_locks(locked, area);
            found.take_direct(area);
        }
    }

    /// Was [`Rma::polls`] called, or would it do nothing?
    #[inline]
    pub fn has_polled(&self) -> bool {
        self.polls || self.windows.is_empty()
    }

    /// Does the program, where it asks again and again, look at its own windows meanwhile? From
    /// now on others write there by messages, which are applied in its calls only: how often it has
    /// asked is then the same in a replay. False: somebody has written directly since its last
    /// action, and whether it has seen that is not recorded.
    #[must_use]
    pub fn polls(&mut self, _: &Locked<'_>, area: &TargetArea<'_>) -> bool {
        if self.has_polled() {
            return true;
        }
        self.polls = true;
        self.update_accepts(area);
        !area.was_written_at(self.tick)
    }

    /// May this access be done directly? If so the target is locked if MPI_Win_lock_all has left
    /// that for now.
    pub(super) fn near<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        (id, target): (ContextId, CommRank),
        (epoch, must_lock): (Epoch, bool),
        what: u32,
        bytes: u64,
    ) -> Option<Near<'a>> {
        let near = self.find_near(hood, id, target)?;
        if !hood.is_quicker(near.index, (id, near.entry), bytes) {
            return None;
        }
        let found = self.windows.get(&id)?;
        if !near.is_exposed(epoch, what) {
            return None;
        }
        let source = found.setup.me;
        if must_lock && !self.lock_near(hood, &near, (id, source), false) {
            return None;
        }
        Some(near)
    }

    /// Could an access be done directly if the target had left its fence, or posted?
    pub fn awaits_exposure<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        window: ContextId,
        target: CommRank,
    ) -> bool {
        let Some(found) = self.windows.get(&window) else { return false };
        let Ok((epoch, false)) = found.origin.epoch(target, found.target.fences) else {
            return false;
        };
        if epoch == Epoch::Passive {
            return false;
        }
        match self.find_near(hood, window, target) {
            Some(near) => !near.is_exposed(epoch, READS),
            None => false,
        }
    }

    /// A target whose operations can be done directly, if what was sent to it is done.
    fn find_near<'a>(
        &mut self,
        hood: &impl Neighbourhood<'a>,
        id: ContextId,
        target: CommRank,
    ) -> Option<Near<'a>> {
        if self.replay.is_some() {
            return None;
        }
        self.windows.get_mut(&id)?.find_near(hood, id, target)
    }

    fn lock_near<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        near: &Near<'a>,
        of: (ContextId, CommRank),
        exclusive: bool,
    ) -> bool {
        let locked = near.lock(hood);
        let taken = locked.take_lock(near.entry, near.me, exclusive);
        if taken {
            near.count(&locked, of, true);
        }
        taken
    }

    /// MPI_Win_lock, directly. False: by message.
    pub(super) fn try_lock_near<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        id: ContextId,
        target: CommRank,
        exclusive: bool,
    ) -> bool {
        let Some(near) = self.find_near(hood, id, target) else { return false };
        let Some(source) = self.windows.get(&id).map(|found| found.setup.me) else { return false };
        self.lock_near(hood, &near, (id, source), exclusive)
    }

    /// The end of a lock, if it was taken directly. False: by message.
    pub(super) fn try_unlock_near<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        id: ContextId,
        target: CommRank,
    ) -> bool {
        let Some(near) = self.find_near(hood, id, target) else { return false };
        let Some(source) = self.windows.get(&id).map(|found| found.setup.me) else { return false };
        let locked = near.lock(hood);
        let released = locked.release_lock(near.entry, near.me);
        if released {
            near.count(&locked, (id, source), true);
        }
        released
    }

    /// One access, or a part of it. What it fetches is appended.
    pub(super) fn access_near<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        near: &Near<'a>,
        (id, target): (ContextId, CommRank),
        epoch: Epoch,
        action: &Action<'_>,
        fetched: &mut Vec<u8>,
    ) -> Result<(), RmaError> {
        let found = self.windows.get_mut(&id).ok_or(RmaError::Window)?;
        let source = found.setup.me;
        let unit = i64::from(found.setup.extent(target).unit);
        let base = near.entry.base();
        // The range was checked when the access began.
        let address =
            |place: &Place| Ok(base.wrapping_add_signed(place.displacement.wrapping_mul(unit)));
        let is_passive = epoch == Epoch::Passive;
        let mut done = Ok(());
        let (index, of) = (near.index, (id, near.entry));
        if !action.is_atomic() {
            done = super::apply::access(action, hood.memory(index, of), fetched, address);
        }
        if !action.is_ordered(epoch) {
            self.count_of_fence(near, (id, target), epoch);
            return done;
        }
        let locked = near.lock(hood);
        if action.is_atomic() {
            done = super::apply::access(action, hood.memory(index, of), fetched, address);
        }
        near.count(&locked, (id, source), is_passive);
        self.count_of_fence(near, (id, target), epoch);
        if is_passive && action.writes() {
            locked.wrote(&near.area);
            self.wrote_late |= !near.area.accepts(WRITES);
        }
        let applied = near.area.applied();
        drop(locked);
        done?;
        if is_passive && !action.writes() {
            let at = match action {
                Action::Get { place } | Action::GetAccumulate { place, .. } => place.displacement,
                _ => return Ok(()),
            };
            self.got((id, target, at), fetched, applied);
        }
        Ok(())
    }

    /// It was done, or refused: as many are counted as there would have been messages.
    #[inline]
    pub(super) fn count_of_fence(
        &mut self,
        near: &Near<'_>,
        (id, target): (ContextId, CommRank),
        epoch: Epoch,
    ) {
        if let (Epoch::Fence(_), Some(found)) = (epoch, self.windows.get_mut(&id)) {
            found.origin.towards(target).direct_of_fence += 1;
            near.entry.count_of_fence();
        }
    }

    /// A program that gets the same again, does nothing else, and finds something else, although
    /// nobody has written there by MPI: the target has stored it, at a moment that is not recorded.
    #[inline(always)]
    pub(super) fn got(
        &mut self,
        (window, target, displacement): (ContextId, CommRank, i64),
        data: &[u8],
        applied: u64,
    ) {
        let bytes = data.len();
        if bytes > FLAG_BYTES_MAX {
            self.last_got = None;
            return;
        }
        let actions = self.other_actions;
        if let Some(last) = &mut self.last_got {
            let is_same = (last.window, last.target) == (window, target)
                && last.displacement == displacement
                && last.actions == actions
                && last.bytes == bytes;
            if is_same {
                let nobody_wrote = last.applied + 1 == applied;
                self.saw_a_store |= nobody_wrote && last.data[..bytes] != *data;
                last.applied = applied;
                last.data[..bytes].copy_from_slice(data);
                return;
            }
        }
        let mut last = LastGot {
            window,
            target,
            displacement,
            data: [0; FLAG_BYTES_MAX],
            bytes,
            actions,
            applied,
        };
        last.data[..bytes].copy_from_slice(data);
        self.last_got = Some(last);
    }

    /// Has the program written to one that had begun to poll meanwhile ([`Rma::polls`])? Once.
    #[inline]
    pub fn take_wrote_late(&mut self) -> bool {
        core::mem::take(&mut self.wrote_late)
    }

    /// Has the program seen what another one has stored, although neither a message nor an
    /// operation came between? Once.
    #[inline]
    pub fn take_saw_a_store(&mut self) -> bool {
        core::mem::take(&mut self.saw_a_store)
    }
}

impl super::Window {
    /// A target whose operations can be done directly, if what was sent to it is done.
    #[inline]
    pub(super) fn find_near<'a>(
        &mut self,
        hood: &impl Neighbourhood<'a>,
        id: ContextId,
        target: CommRank,
    ) -> Option<Near<'a>> {
        let index = (*self.neighbours.get(target.0 as usize)?)?;
        let area = hood.area(index)?;
        let towards = self.origin.towards(target);
        if !towards.is_done() || !area.accepts(READS) {
            return None;
        }
        let is_of = |&number: &usize| area.entry(number).is_some_and(|entry| entry.is_of(id));
        if towards.entry.as_ref().is_none_or(|number| !is_of(number)) {
            towards.entry = area.find(id);
        }
        Near::at(hood, id, index, towards.entry?)
    }

    fn find_neighbours(&mut self, of: impl Fn(CommRank) -> Option<usize>) {
        let ranks = self.setup.extents.len() as u32;
        self.neighbours = (0..ranks).map(|rank| of(CommRank(rank))).collect();
        for towards in self.origin.towards.values_mut() {
            towards.entry = None;
        }
    }

    fn publish(&mut self, id: ContextId, locked: &Locked<'_>, area: &TargetArea<'_>) {
        debug_assert!(area.find(id).is_none(), "a window has one entry");
        self.entry = None;
        self.posts_published.clear();
        // Only the owner knows which memory is attached to a dynamic window.
        if self.setup.flavor == crate::window::Flavor::Dynamic {
            return;
        }
        self.entry = area.publish(id, self.setup.base, self.target.fences);
        self.target.direct_seen = 0;
        if let Some(entry) = self.entry.and_then(|number| area.entry(number)) {
            self.target.lock.publish(locked, entry);
        }
        self.publish_exposure(area);
    }

    /// Locks that were taken directly become such that were granted by message.
    fn take_back_locks(&mut self, locked: &Locked<'_>, area: &TargetArea<'_>) {
        let Some(entry) = self.entry.and_then(|number| area.entry(number)) else { return };
        for (rank, neighbour) in self.neighbours.iter().enumerate() {
            let Some(neighbour) = *neighbour else { continue };
            if let Some(exclusive) = locked.lock_of(entry, neighbour) {
                locked.release_lock(entry, neighbour);
                self.target.lock.grant(CommRank(rank as u32), exclusive);
            }
        }
        self.target.lock.publish(locked, entry);
    }

    /// What neighbours have done in the fence epoch counts as what this process has applied.
    pub(super) fn take_direct(&mut self, area: &TargetArea<'_>) {
        let Some(entry) = self.entry.and_then(|number| area.entry(number)) else { return };
        let all = entry.of_fences();
        self.target.applied_since_fence += all - self.target.direct_seen;
        self.target.direct_seen = all;
    }

    fn publish_exposure(&mut self, area: &TargetArea<'_>) {
        let Some(entry) = self.entry.and_then(|number| area.entry(number)) else { return };
        entry.set_fences(self.target.fences);
        for (&origin, &posts) in &self.target.posts {
            let known = self.posts_published.entry(origin).or_default();
            if posts > *known
                && let Some(Some(neighbour)) = self.neighbours.get(origin.0 as usize)
            {
                entry.add_posts(*neighbour, posts - *known);
            }
            *known = posts;
        }
    }
}
