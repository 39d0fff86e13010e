//! What the program asks for between synchronizations: put, get, accumulates, compare and swap.

use super::{Lane, Output, Rma};
use crate::arithmetic::Op;
use crate::batch::append;
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
pub(super) enum Kind {
    Put,
    Get,
    Accumulate(Op),
    GetAccumulate(Op),
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
        self.issue(window, target, displacement, layout, Kind::Put, data).map(|_| ())
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
        self.issue(window, target, displacement, layout, Kind::Get, &[])
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
        let access = Kind::Accumulate(op);
        self.issue(window, target, displacement, layout, access, data).map(|_| ())
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
        let access = Kind::GetAccumulate(op);
        self.issue(window, target, displacement, layout, access, data)
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
        if compare.len() != primitive.size() || new.len() != primitive.size() {
            return Err(RmaError::Type);
        }
        let layout = Layout::Contiguous { primitive, count: 1 };
        let epoch = self.enter(window, target, displacement, &layout)?;
        let operation = self.next_operation();
        let awaited = Awaited::Data { operation, first: 0, is_last: true };
        let action = Action::CompareAndSwap { displacement, primitive, compare, new };
        self.send(window, target, epoch, action, Some(awaited))?;
        Ok(operation)
    }

    fn next_operation(&mut self) -> OperationId {
        self.next_operation += 1;
        OperationId(self.next_operation)
    }

    /// Everything that can be wrong is found here, before anything changes; then the target is
    /// locked if MPI_Win_lock_all has left that for now.
    fn enter(
        &mut self,
        window: ContextId,
        target: CommRank,
        displacement: i64,
        layout: &Layout,
    ) -> Result<Epoch, RmaError> {
        let found = self.window(window)?;
        if !found.setup.knows(target) {
            return Err(RmaError::Rank);
        }
        let (epoch, must_lock) = found.origin.epoch(target, found.target.fences)?;
        found.setup.check_range(target, displacement, layout)?;
        if found.origin.access == Access::FenceOpen {
            found.origin.access = Access::FenceUsed;
        }
        if must_lock {
            if let Access::LockAll { asked, .. } = &mut found.origin.access {
                asked.insert(target);
            }
            let lock = Action::Lock { exclusive: false, wants_grant: false };
            self.send(window, target, Epoch::Passive, lock, None)?;
        }
        Ok(epoch)
    }

    fn issue(
        &mut self,
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
        let epoch = self.enter(window, target, displacement, layout)?;
        let operation = self.next_operation();
        if all == 0 {
            if fetches {
                self.outputs.push_back(Output::Completed { operation, error: None });
            }
            return Ok(operation);
        }
        let size = layout.primitive().size() as u64;
        let step = (self.limits.part_bytes_max / size) * size;
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
            let awaited = fetches.then_some(Awaited::Data { operation, first, is_last });
            self.send(window, target, epoch, action, awaited)?;
            first += bytes;
        }
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
    fn batch_bytes_max(&self) -> usize {
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
        if target == me || length >= full {
            self.send_batch(window, target);
        }
        if let Err(fault) = self.take_early_replies(window, target) {
            self.faults = self.faults.or(Some(fault));
        }
        Ok(())
    }
}
