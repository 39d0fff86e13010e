//! What the program asks for between synchronizations: put, get, accumulates, compare and swap.

use super::direct::{Neighbourhood, Nobody};
use super::{Lane, Output, Rma};
use crate::arithmetic::Op;
use crate::batch::append;
use crate::direct::{READS, WRITES};
use crate::error::RmaError;
use crate::ids::{CommRank, ContextId, OperationId};
use crate::layout::Layout;
use crate::memory::Part;
use crate::origin::{Access, Awaited};
use crate::primitive::Primitive;
use crate::wire::{Action, Epoch, Operation, Place};

/// A message is sent when it has so many bytes, of operations that nobody waits for.
const BATCH_BYTES_MAX: u64 = 8 << 10;

/// An operation on the target's memory, as MPI's call says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// MPI_Put, MPI_Rput.
    Put,
    /// MPI_Get, MPI_Rget.
    Get,
    /// MPI_Accumulate, MPI_Raccumulate.
    Accumulate(Op),
    /// MPI_Get_accumulate, MPI_Rget_accumulate, MPI_Fetch_and_op.
    GetAccumulate(Op),
}

impl Kind {
    fn needs(self) -> u32 {
        match self {
            Self::Get | Self::GetAccumulate(Op::NoOp) => READS,
            _ => READS | WRITES,
        }
    }
}

impl Rma {
    /// MPI_Put, MPI_Rput: complete for the origin when this returns.
    ///
    /// # Errors
    /// `Window`, `Rank`, `Sync`, `Range` (not for dynamic windows: a synchronization returns it),
    /// `Type`.
    pub fn put(
        &mut self,
        window: ContextId,
        target: CommRank,
        displacement: i64,
        layout: &Layout,
        data: &[u8],
    ) -> Result<(), RmaError> {
        let none = &mut Nobody;
        self.access(none, window, target, displacement, layout, Kind::Put, data).map(|_| ())
    }

    /// MPI_Get, MPI_Rget. [`Output::Completed`] says when its data is there.
    ///
    /// # Errors
    /// As [`Rma::put`].
    pub fn get(
        &mut self,
        window: ContextId,
        target: CommRank,
        displacement: i64,
        layout: &Layout,
    ) -> Result<OperationId, RmaError> {
        self.access(&mut Nobody, window, target, displacement, layout, Kind::Get, &[])
    }

    /// MPI_Accumulate, MPI_Raccumulate: complete for the origin when this returns.
    ///
    /// # Errors
    /// As [`Rma::put`], and `Op`.
    pub fn accumulate(
        &mut self,
        window: ContextId,
        target: CommRank,
        displacement: i64,
        layout: &Layout,
        op: Op,
        data: &[u8],
    ) -> Result<(), RmaError> {
        let (none, kind) = (&mut Nobody, Kind::Accumulate(op));
        self.access(none, window, target, displacement, layout, kind, data).map(|_| ())
    }

    /// MPI_Get_accumulate, MPI_Rget_accumulate, MPI_Fetch_and_op. `data` is empty for MPI_NO_OP.
    ///
    /// # Errors
    /// As [`Rma::accumulate`].
    pub fn get_accumulate(
        &mut self,
        window: ContextId,
        target: CommRank,
        displacement: i64,
        layout: &Layout,
        op: Op,
        data: &[u8],
    ) -> Result<OperationId, RmaError> {
        let kind = Kind::GetAccumulate(op);
        self.access(&mut Nobody, window, target, displacement, layout, kind, data)
    }

    /// MPI_Compare_and_swap; one packed element each.
    ///
    /// # Errors
    /// As [`Rma::put`].
    pub fn compare_and_swap(
        &mut self,
        window: ContextId,
        target: CommRank,
        displacement: i64,
        primitive: Primitive,
        compare: &[u8],
        new: &[u8],
    ) -> Result<OperationId, RmaError> {
        let place = (window, target, displacement);
        self.compare_and_swap_beside(&mut Nobody, place, primitive, compare, new)
    }

    /// The same, directly where the target is a neighbour. `place`: window, target, displacement.
    ///
    /// # Errors
    /// As [`Rma::put`].
    pub fn compare_and_swap_beside<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        place: (ContextId, CommRank, i64),
        primitive: Primitive,
        compare: &[u8],
        new: &[u8],
    ) -> Result<OperationId, RmaError> {
        let (window, target, displacement) = place;
        if compare.len() != primitive.size() || new.len() != primitive.size() {
            return Err(RmaError::Type);
        }
        let layout = Layout::Contiguous { primitive, count: 1 };
        let (epoch, must_lock) = self.enter(window, target, displacement, &layout)?;
        let operation = self.next_operation();
        let action = Action::CompareAndSwap { displacement, primitive, compare, new };
        let to = (window, target);
        if let Some(near) = self.near(hood, to, (epoch, must_lock), READS | WRITES, 0) {
            self.is_locked(to, must_lock);
            let mut fetched = Vec::with_capacity(primitive.size());
            self.access_near(hood, &near, to, epoch, &action, &mut fetched)?;
            self.fetched = Some(fetched);
            return Ok(operation);
        }
        self.lock_first(to, must_lock)?;
        let awaited = Awaited::Data { operation, first: 0, is_last: true };
        self.send(window, target, epoch, action, Some(awaited))?;
        Ok(operation)
    }

    fn next_operation(&mut self) -> OperationId {
        self.next_operation += 1;
        OperationId(self.next_operation)
    }

    /// Everything that can be wrong is found here, before anything changes. The epoch, and whether
    /// the target has to be locked first because MPI_Win_lock_all has left that for now.
    fn enter(
        &mut self,
        window: ContextId,
        target: CommRank,
        displacement: i64,
        layout: &Layout,
    ) -> Result<(Epoch, bool), RmaError> {
        let found = self.window(window)?;
        if !found.setup.knows(target) {
            return Err(RmaError::Rank);
        }
        let (epoch, must_lock) = found.origin.epoch(target, found.target.fences)?;
        found.setup.check_range(target, displacement, layout)?;
        if found.origin.access == Access::FenceOpen {
            found.origin.access = Access::FenceUsed;
        }
        Ok((epoch, must_lock))
    }

    /// MPI_Win_lock_all has locked a target.
    fn is_locked(&mut self, (window, target): (ContextId, CommRank), must_lock: bool) {
        if must_lock
            && let Some(found) = self.windows.get_mut(&window)
            && let Access::LockAll { asked, .. } = &mut found.origin.access
        {
            asked.insert(target);
        }
    }

    /// The same, by message.
    fn lock_first(
        &mut self,
        (window, target): (ContextId, CommRank),
        must_lock: bool,
    ) -> Result<(), RmaError> {
        if !must_lock {
            return Ok(());
        }
        self.is_locked((window, target), must_lock);
        let lock = Action::Lock { exclusive: false, wants_grant: false };
        self.send(window, target, Epoch::Passive, lock, None)
    }

    /// An access, directly where the target is a neighbour.
    ///
    /// # Errors
    /// As [`Rma::put`], and `Op`.
    #[allow(clippy::too_many_arguments, reason = "as MPI's calls")]
    pub fn access<'a>(
        &mut self,
        hood: &mut impl Neighbourhood<'a>,
        window: ContextId,
        target: CommRank,
        displacement: i64,
        layout: &Layout,
        access: Kind,
        data: &[u8],
    ) -> Result<OperationId, RmaError> {
        let all = layout.packed_bytes().ok_or(RmaError::Type)?;
        layout.check()?;
        let (sends, fetches) = match access {
            Kind::Put => (true, false),
            Kind::Get => (false, true),
            Kind::Accumulate(op) => (op != Op::NoOp, false),
            Kind::GetAccumulate(op) => (op != Op::NoOp, true),
        };
        if let Kind::Accumulate(op) | Kind::GetAccumulate(op) = access
            && !op.is_defined(layout.primitive())
        {
            return Err(RmaError::Op);
        }
        if data.len() as u64 != if sends { all } else { 0 } {
            return Err(RmaError::Type);
        }
        let (epoch, must_lock) = self.enter(window, target, displacement, layout)?;
        let operation = self.next_operation();
        let to = (window, target);
        let in_one = match (access, layout) {
            (Kind::Put | Kind::Get, Layout::Contiguous { primitive, .. }) => primitive.is_dense(),
            _ => false,
        };
        let bytes = if in_one { all } else { 0 };
        let near = self.near(hood, to, (epoch, must_lock), access.needs(), bytes);
        match near {
            Some(_) => self.is_locked(to, must_lock),
            None => self.lock_first(to, must_lock)?,
        }
        if all == 0 {
            if fetches {
                self.outputs.push_back(Output::Completed { operation, error: None });
            }
            return Ok(operation);
        }
        let size = layout.primitive().size() as u64;
        let step = (self.limits.part_bytes_max / size) * size;
        let room = if near.is_some() && fetches { all as usize } else { 0 };
        let mut fetched = Vec::with_capacity(room);
        let mut first = 0;
        while first < all {
            let bytes = step.min(all - first);
            let part = Part { first, bytes };
            let place = Place { displacement, layout: layout.clone(), part };
            let data = if sends { &data[first as usize..][..bytes as usize] } else { &[][..] };
            let action = match access {
                Kind::Put => Action::Put { place, data },
                Kind::Get => Action::Get { place },
                Kind::Accumulate(op) => Action::Accumulate { op, place, data },
                Kind::GetAccumulate(op) => Action::GetAccumulate { op, place, data },
            };
            let is_last = first + bytes == all;
            if let Some(near) = &near {
                self.access_near(hood, near, to, epoch, &action, &mut fetched)?;
                first += bytes;
                continue;
            }
            let awaited = fetches.then_some(Awaited::Data { operation, first, is_last });
            self.send(window, target, epoch, action, awaited)?;
            first += bytes;
        }
        self.fetched = (near.is_some() && fetches).then_some(fetched);
        Ok(operation)
    }

    /// The program may wait for what was issued to this target (by a request): it is sent now.
    /// Synchronizations and [`Rma::action`] do that by themselves.
    pub fn send_batch(&mut self, window: ContextId, target: CommRank) {
        let Some(found) = self.windows.get_mut(&window) else { return };
        let Some(towards) = found.origin.towards.get_mut(&target) else { return };
        let message = core::mem::take(&mut towards.batch);
        if message.is_empty() {
            return;
        }
        self.batches.retain(|&open| open != (window, target));
        let me = found.setup.me;
        if target == me {
            found.target.queues.entry(me).or_default().push(message);
        } else {
            let lane = Lane::Operations;
            self.outputs.push_back(Output::Send { window, to: target, lane, message });
        }
    }

    /// A message of operations is full when it is that long.
    pub(super) fn batch_bytes_max(&self) -> usize {
        (4 * self.limits.part_bytes_max).min(BATCH_BYTES_MAX) as usize
    }

    /// One operation to a target, sent when its message is full or somebody waits for it; to
    /// oneself: into the own queue, applied by the next `progress`.
    pub(super) fn send(
        &mut self,
        window: ContextId,
        target: CommRank,
        epoch: Epoch,
        action: Action<'_>,
        awaited: Option<Awaited>,
    ) -> Result<(), RmaError> {
        let full = self.batch_bytes_max();
        let found = self.window(window)?;
        let me = found.setup.me;
        let towards = found.origin.towards(target);
        let number = awaited.map_or(0, |what| towards.ask(what));
        match action {
            Action::Flush | Action::Unlock => towards.is_unconfirmed = false,
            Action::Put { .. } | Action::Accumulate { .. } => towards.is_unconfirmed = true,
            Action::Lock { wants_grant: false, .. } => towards.locks_after = Some(towards.asked),
            _ => {}
        }
        if matches!(epoch, Epoch::Fence(_)) && action.is_access() {
            towards.of_fence += 1;
        }
        let is_first = towards.batch.is_empty();
        append(&Operation { epoch, number, action }, &mut towards.batch)?;
        let length = towards.batch.len();
        if is_first {
            self.batches.push((window, target));
        }
        // It was applied at once where it was done directly, and somebody may have waited for that.
        let repeats = self.replay.is_some();
        let Some(found) = self.windows.get(&window) else { return Ok(()) };
        let is_internal = found.internal.get(target.0 as usize) == Some(&true);
        if target == me || length >= full || repeats && is_internal {
            self.send_batch(window, target);
        }
        if let Err(fault) = self.take_early_replies(window, target) {
            self.faults = self.faults.or(Some(fault));
        }
        Ok(())
    }
}
