//! The short way of what needs nothing but memory: elements in a row, of a neighbour whose memory
//! is mapped here, where nothing is under way that would have to be heeded. What is done, counted
//! and recorded is what the long way does (`operations`, `synchronize`, `direct`). Nothing is
//! allocated.
//!
//! Each call says if it was done. If not, nothing has changed, and the long way is to be gone. It
//! counts the program's action itself ([`Rma::action_on_window`]), since only it knows whether
//! there is one: nobody else may have counted it.

use super::direct::{Near, Neighbourhood};
use super::{Rma, Window};
use crate::arithmetic::{Op, combine, combine_one};
use crate::direct::{READS, TargetArea, WRITES};
use crate::ids::{CommRank, ContextId};
use crate::memory::Memory;
use crate::origin::{Access, Held, Towards};
use crate::primitive::Primitive;
use crate::window::Extent;
use crate::wire::Epoch;

/// An atomic operation has at most so many bytes.
pub const QUICK_BYTES_MAX: usize = 64;
/// More is copied before the group's lock is taken: others wait for that.
const LOCKED_BYTES_MAX: u64 = 1024;

/// What is done to elements in a row; all data has their bytes.
#[derive(Debug)]
pub enum Quick<'d> {
    /// MPI_Put.
    Put(&'d [u8]),
    /// MPI_Get.
    Get(&'d mut [u8]),
    /// MPI_Accumulate, MPI_Get_accumulate, MPI_Fetch_and_op: at most [`QUICK_BYTES_MAX`].
    Combine {
        /// How; not `NoOp`.
        op: Op,
        /// With what.
        data: &'d [u8],
        /// What was there, if it is wanted.
        found: Option<&'d mut [u8]>,
    },
    /// MPI_Compare_and_swap of one element.
    Swap {
        /// It is replaced if it is that,
        compare: &'d [u8],
        /// by this.
        new: &'d [u8],
        /// What was there.
        found: &'d mut [u8],
    },
}

impl Quick<'_> {
    #[inline(always)]
    fn needs(&self) -> u32 {
        if let Self::Get(_) = self { READS } else { READS | WRITES }
    }

    #[inline(always)]
    fn is_atomic(&self) -> bool {
        matches!(self, Self::Combine { .. } | Self::Swap { .. })
    }

    /// Bytes of the elements.
    #[inline(always)]
    fn bytes(&self) -> usize {
        match self {
            Self::Put(data) | Self::Combine { data, .. } => data.len(),
            Self::Get(into) => into.len(),
            Self::Swap { compare, .. } => compare.len(),
        }
    }

    /// Are these whole elements, which may be moved or combined like this?
    #[inline(always)]
    pub(super) fn is_sound(&self, primitive: Primitive) -> bool {
        let (bytes, size) = (self.bytes(), primitive.size());
        // Where there is no padding the size is a power of two.
        let is_whole = bytes > 0 && primitive.is_dense() && bytes & (size - 1) == 0;
        is_whole
            && match self {
                Self::Put(_) | Self::Get(_) => true,
                Self::Combine { op, found, .. } => {
                    let fits = found.as_ref().is_none_or(|found| found.len() == bytes);
                    fits && bytes <= QUICK_BYTES_MAX && *op != Op::NoOp && op.is_defined(primitive)
                }
                Self::Swap { new, found, .. } => {
                    bytes == size && new.len() == size && found.len() == size
                }
            }
    }

    #[inline(always)]
    fn apply(&mut self, memory: &mut impl Memory, address: u64, primitive: Primitive) {
        match self {
            Self::Put(data) => memory.write(address, data),
            Self::Get(into) => memory.read(address, into),
            Self::Combine { op, data, found } => {
                if let (Ok(word), 8) = (<&[u8; 8]>::try_from(*data), primitive.size()) {
                    // As most are.
                    let mut there = [0; 8];
                    memory.read(address, &mut there);
                    if let Some(found) = found {
                        found.copy_from_slice(&there);
                    }
                    combine_one(*op, primitive, &mut there, word);
                    memory.write(address, &there);
                } else {
                    combine_all(memory, address, (*op, primitive), data, found.as_deref_mut());
                }
            }
            Self::Swap { compare, new, found } => {
                memory.read(address, found);
                if *found == *compare {
                    memory.write(address, new);
                }
            }
        }
    }
}

#[inline(never)]
fn combine_all(
    memory: &mut impl Memory,
    address: u64,
    (op, primitive): (Op, Primitive),
    data: &[u8],
    found: Option<&mut [u8]>,
) {
    let mut there = [0; QUICK_BYTES_MAX];
    let there = &mut there[..data.len()];
    memory.read(address, there);
    if let Some(found) = found {
        found.copy_from_slice(there);
    }
    // It was found to be defined.
    if combine(op, primitive, there, data).is_ok() {
        memory.write(address, there);
    }
}

/// A target to which the short way leads: this process has it locked, and all that was sent to it
/// is done ([`Towards::is_done`]).
#[derive(Clone, Copy, Debug)]
struct Hot {
    window: ContextId,
    target: CommRank,
    way: Way,
}

/// What is known of a target.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Its number.
    index: usize,
    /// The window's entry in its area.
    entry: usize,
    extent: Extent,
    /// The own rank.
    source: CommRank,
}

/// Targets that were accessed lately, so that they need not be looked up: each in a place of its
/// rank. Forgotten whenever something else is done to a window.
#[derive(Clone, Default, Debug)]
pub(super) struct HotTargets {
    targets: [Option<Hot>; HOT_TARGETS],
    /// Is there any?
    any: bool,
}

const HOT_TARGETS: usize = 16;

/// What is only remembered makes no difference.
impl PartialEq for HotTargets {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for HotTargets {}

impl HotTargets {
    #[inline(always)]
    fn get(&self, window: ContextId, target: CommRank) -> Option<&Way> {
        let hot = self.targets[target.0 as usize % HOT_TARGETS].as_ref()?;
        (hot.window == window && hot.target == target).then_some(&hot.way)
    }

    fn set(&mut self, window: ContextId, target: CommRank, way: Way) {
        self.targets[target.0 as usize % HOT_TARGETS] = Some(Hot { window, target, way });
        self.any = true;
    }

    /// Something is done to windows.
    #[inline]
    pub(super) fn forget(&mut self) {
        if self.any {
            *self = Self::default();
        }
    }
}

impl Rma {
    /// Is there nothing to be heeded: no replay, no fault, nothing for the driver?
    #[inline(always)]
    pub(super) fn is_quiet(&self) -> bool {
        self.replay.is_none() && self.faults.is_none() && self.outputs.is_empty()
    }

    /// The program acts, and neighbours see it before what follows.
    #[inline(always)]
    fn act_on_window(&mut self, own: &TargetArea<'_>) {
        self.action_on_window();
        own.set_tick(self.tick());
    }

    #[inline(never)]
    fn find_way<'a>(
        &mut self,
        hood: &impl Neighbourhood<'a>,
        id: ContextId,
        target: CommRank,
    ) -> Option<(Way, Epoch)> {
        let found = self.windows.get_mut(&id)?;
        let Ok((epoch, false)) = found.origin.epoch(target, found.target.fences) else {
            return None;
        };
        let near = found.find_near(hood, id, target)?;
        let way = found.way(&near, target);
        if epoch == Epoch::Passive {
            self.hot.set(id, target, way);
        }
        Some((way, epoch))
    }

    /// An access to elements in a row. `of`: window, target, displacement.
    #[inline(always)]
    pub fn quick_access<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        of: (ContextId, CommRank, i64),
        primitive: Primitive,
        quick: Quick<'_>,
    ) -> bool {
        if !self.is_quiet() || !quick.is_sound(primitive) {
            return false;
        }
        let done = match self.hot.get(of.0, of.1) {
            Some(&way) => self.access_hot(hood, of, way, primitive, quick),
            None => self.access_cold(hood, of, primitive, quick),
        };
        done.is_some()
    }

    #[cold]
    #[inline(never)]
    fn access_cold<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        of: (ContextId, CommRank, i64),
        primitive: Primitive,
        quick: Quick<'_>,
    ) -> Option<()> {
        let (way, epoch) = self.find_way(hood, of.0, of.1)?;
        self.access_by(hood, of, (way, epoch), primitive, quick)
    }

    #[inline(always)]
    fn access_hot<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        of: (ContextId, CommRank, i64),
        way: Way,
        primitive: Primitive,
        quick: Quick<'_>,
    ) -> Option<()> {
        self.access_by(hood, of, (way, Epoch::Passive), primitive, quick)
    }

    #[inline(always)]
    fn access_by<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        of: (ContextId, CommRank, i64),
        (way, epoch): (Way, Epoch),
        primitive: Primitive,
        quick: Quick<'_>,
    ) -> Option<()> {
        let mut quick = quick;
        let (id, _, displacement) = of;
        let bytes = quick.bytes() as u64;
        if bytes > self.limits.part_bytes_max {
            return None;
        }
        let Way { index, entry, extent, source } = way;
        let at = extent.place(displacement, bytes)?;
        let near = Near::at(hood, id, index, entry)?;
        let own = hood.area(near.me)?;
        let mut memory = hood.here(index, (id, near.entry))?;
        let needs = quick.needs();
        if !near.is_exposed(epoch, needs) {
            return None;
        }
        let address = near.entry.base().wrapping_add(at);
        let (is_passive, is_atomic) = (epoch == Epoch::Passive, quick.is_atomic());
        let of_target = (id, of.1);
        if !is_passive {
            self.use_fence(id);
        }
        if !is_passive && !is_atomic {
            self.act_on_window(&own);
            quick.apply(&mut memory, address, primitive);
            self.count_of_fence(&near, of_target, epoch);
            return Some(());
        }
        let is_long = !is_atomic && bytes > LOCKED_BYTES_MAX;
        if is_long {
            self.act_on_window(&own);
            quick.apply(&mut memory, address, primitive);
        }
        let locked = near.lock(hood);
        let is_exposed = !is_passive || near.is_exposed(epoch, needs);
        if is_long {
            self.wrote_late |= !is_exposed;
        } else if is_exposed {
            self.act_on_window(&own);
            quick.apply(&mut memory, address, primitive);
        } else {
            return None;
        }
        near.count(&locked, (id, source), is_passive);
        if !is_passive {
            self.count_of_fence(&near, of_target, epoch);
        }
        match quick {
            Quick::Get(into) => {
                let applied = near.area.applied();
                drop(locked);
                self.got(of, into, applied);
            }
            _ if is_passive => locked.wrote(&near.area),
            _ => {}
        }
        Some(())
    }

    /// The epoch behind a fence has an access.
    #[inline(never)]
    fn use_fence(&mut self, id: ContextId) {
        if let Some(found) = self.windows.get_mut(&id)
            && let Access::FenceOpen = found.origin.access
        {
            found.origin.access = Access::FenceUsed;
        }
    }

    /// MPI_Win_lock, asked for or granted. Nothing waits to be sent where it is granted.
    #[inline(always)]
    pub fn quick_lock<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        id: ContextId,
        target: CommRank,
        exclusive: bool,
    ) -> bool {
        self.is_quiet()
            && self.batches.is_empty()
            && self.try_lock(hood, id, target, exclusive).is_some()
    }

    #[inline]
    fn try_lock<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        id: ContextId,
        target: CommRank,
        exclusive: bool,
    ) -> Option<()> {
        let found = self.windows.get_mut(&id)?;
        let is_exposed = target == found.setup.me && found.target.exposed.is_some();
        let may = found.setup.knows(target) && found.origin.may_lock(target) && !is_exposed;
        if found.setup.no_locks || !may {
            return None;
        }
        let near = found.find_near(hood, id, target)?;
        let own = hood.area(near.me)?;
        let locked = near.lock(hood);
        if !locked.take_lock(near.entry, near.me, exclusive) {
            return None;
        }
        let source = found.setup.me;
        found.origin.lock(target, Held::Locked);
        let way = found.way(&near, target);
        self.hot.set(id, target, way);
        self.act_on_window(&own);
        near.count(&locked, (id, source), true);
        Some(())
    }

    /// MPI_Win_unlock of a lock that was taken directly.
    #[inline(always)]
    pub fn quick_unlock<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        id: ContextId,
        target: CommRank,
    ) -> bool {
        self.is_quiet() && self.batches.is_empty() && self.try_unlock(hood, id, target).is_some()
    }

    #[inline]
    fn try_unlock<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        id: ContextId,
        target: CommRank,
    ) -> Option<()> {
        let found = self.windows.get_mut(&id)?;
        let is_locked = matches!(found.origin.access, Access::Locks)
            && found.origin.locks.get(target) == Some(Held::Locked);
        if !is_locked {
            return None;
        }
        let near = match self.hot.get(id, target) {
            Some(way) => Near::at(hood, id, way.index, way.entry)?,
            None => found.find_near(hood, id, target)?,
        };
        let own = hood.area(near.me)?;
        let locked = near.lock(hood);
        if !locked.release_lock(near.entry, near.me) {
            return None;
        }
        let source = found.setup.me;
        found.origin.unlock(target);
        self.hot.forget();
        self.act_on_window(&own);
        near.count(&locked, (id, source), true);
        Some(())
    }

    /// MPI_Win_flush (`None`: of all) and its local relatives, where nothing is under way. The
    /// caller makes the tick known.
    #[inline(always)]
    pub fn quick_flush(&mut self, id: ContextId, target: Option<CommRank>) -> bool {
        if !self.is_quiet() || !self.batches.is_empty() {
            return false;
        }
        if target.is_some_and(|target| self.hot.get(id, target).is_some()) {
            self.action_on_window();
            return true;
        }
        self.flush_done(id, target)
    }

    #[inline(never)]
    fn flush_done(&mut self, id: ContextId, target: Option<CommRank>) -> bool {
        let Some(found) = self.windows.get(&id) else { return false };
        let origin = &found.origin;
        let may = match (&origin.access, target) {
            (Access::Locks, Some(target)) => origin.locks.has(target),
            (Access::LockAll { .. }, Some(target)) => found.setup.knows(target),
            (Access::Locks | Access::LockAll { .. }, None) => true,
            _ => false,
        };
        let is_done = match target {
            Some(target) => origin.towards.get(&target).is_none_or(Towards::is_done),
            None => origin.towards.values().all(Towards::is_done),
        };
        if may && is_done {
            self.action_on_window();
        }
        may && is_done
    }
}

impl Window {
    fn way(&self, near: &Near<'_>, target: CommRank) -> Way {
        let (index, entry) = (near.index, near.number);
        Way { index, entry, extent: self.setup.extent(target), source: self.setup.me }
    }
}

impl Extent {
    /// Where so many bytes lie in the window, from its first byte on. `None`: not inside.
    #[inline(always)]
    fn place(self, displacement: i64, bytes: u64) -> Option<u64> {
        let at = u64::try_from(displacement.checked_mul(i64::from(self.unit))?).ok()?;
        (at.checked_add(bytes)? <= self.bytes).then_some(at)
    }
}
