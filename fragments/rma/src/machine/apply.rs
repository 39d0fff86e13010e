//! Operations of others on this process's windows: kept, then applied in their order.
//!
//! An operation is applied when it is the oldest of its origin on this window, its epoch is one
//! that this process exposes, its lock can be granted, and, if the order matters, the record of a
//! replay has it next. To apply, to record and to reply is one step: no checkpoint comes between.

use super::{Fault, Lane, Output, Rma, Window};
use crate::arithmetic::Op;
use crate::batch::{BatchQueue, operation_at, operations};
use crate::direct::{EntryRef, Locked, TargetArea};
use crate::error::RmaError;
use crate::ids::{CommRank, ContextId, Tick};
use crate::layout::Layout;
use crate::memory::{Memory, Part, accumulate, pack, swap};
use crate::window::resolve;
use crate::wire::{Action, Answer, Epoch, Operation, Place, Reply};

/// What became of the oldest operation of an origin.
enum Step {
    /// It was applied.
    Applied,
    /// It stays.
    Waits,
}

impl Rma {
    /// A message of the lane of operations. The engine hands in each once, in order. Call
    /// [`Rma::progress`] after.
    ///
    /// # Errors
    /// A broken protocol; the machine is as before.
    pub fn on_operation(
        &mut self,
        window: ContextId,
        source: CommRank,
        message: Vec<u8>,
    ) -> Result<(), Fault> {
        for operation in operations(&message) {
            operation?;
        }
        let Some(found) = self.windows.get_mut(&window) else {
            let early = self.early.entry(window).or_default();
            early.push((source, Lane::Operations, message));
            return Ok(());
        };
        if !found.setup.knows(source) {
            return Err(Fault::UnknownRank);
        }
        found.target.queues.entry(source).or_default().push(message);
        Ok(())
    }

    /// Apply what can be. After each call of the program on a window and after each message; also
    /// by a thread of the driver while the program computes.
    ///
    /// # Errors
    /// A peer broke the protocol, or a replay diverges: nothing more is applied.
    pub fn progress(&mut self, memory: &mut impl Memory) -> Result<(), Fault> {
        self.progress_beside(memory, None)
    }

    /// The same where neighbours act on the windows of this process themselves: the lock of the
    /// set's group, and the own area. What was recorded is to be taken before the lock is released.
    ///
    /// # Errors
    /// As [`Rma::progress`].
    pub fn progress_beside(
        &mut self,
        memory: &mut impl Memory,
        own: Option<(&Locked<'_>, &TargetArea<'_>)>,
    ) -> Result<(), Fault> {
        if let Some(fault) = self.faults {
            return Err(fault);
        }
        loop {
            let mut moved = false;
            let waiting: Vec<(ContextId, CommRank)> = self
                .windows
                .iter()
                .flat_map(|(&id, window)| window.target.queues.keys().map(move |&s| (id, s)))
                .collect();
            for (window, source) in waiting {
                moved |= self.apply_queue(window, source, memory, own)?;
            }
            if !moved {
                return Ok(());
            }
        }
    }

    /// Apply what can be of an origin, in its order. Was there anything?
    fn apply_queue(
        &mut self,
        id: ContextId,
        source: CommRank,
        memory: &mut impl Memory,
        own: Option<(&Locked<'_>, &TargetArea<'_>)>,
    ) -> Result<bool, Fault> {
        let mut moved = false;
        while let Some((message, begin)) =
            self.queue_of(id, source).and_then(BatchQueue::take_message)
        {
            let mut at = begin;
            let mut step = Ok(Step::Applied);
            while at < message.len() {
                let (operation, end) = operation_at(&message, at)?;
                step = self.apply_next(id, source, &operation, memory, own);
                match step {
                    Ok(Step::Applied) => (at, moved) = (end, true),
                    _ => break,
                }
            }
            if let Some(queue) = self.queue_of(id, source) {
                queue.put_back(message, at);
            }
            if let Step::Waits = step? {
                break;
            }
        }
        if self.queue_of(id, source).is_some_and(|queue| queue.is_empty())
            && let Some(window) = self.windows.get_mut(&id)
        {
            window.target.queues.remove(&source);
        }
        Ok(moved)
    }

    fn queue_of(&mut self, id: ContextId, source: CommRank) -> Option<&mut BatchQueue> {
        self.windows.get_mut(&id)?.target.queues.get_mut(&source)
    }

    /// Apply the oldest operation of an origin, if it can be.
    fn apply_next(
        &mut self,
        id: ContextId,
        source: CommRank,
        operation: &Operation<'_>,
        memory: &mut impl Memory,
        own: Option<(&Locked<'_>, &TargetArea<'_>)>,
    ) -> Result<Step, Fault> {
        let Some(window) = self.windows.get_mut(&id) else { return Ok(Step::Waits) };
        if !window.target.is_exposed_to(source, operation.epoch) {
            return Ok(Step::Waits);
        }
        let passive = operation.epoch == Epoch::Passive;
        let is_ordered = operation.action.is_ordered(operation.epoch);
        let mut is_forced = false;
        if let (true, Some(replay)) = (is_ordered, &self.replay) {
            // Rules 1, 2 and 4.
            let Some(run) = replay.next() else { return Ok(Step::Waits) };
            if (run.window, run.source) != (id, source) {
                return Ok(Step::Waits);
            }
            if passive != (run.tick != Tick::BY_EPOCH) {
                self.faults = Some(Fault::Diverged);
                return Err(Fault::Diverged);
            }
            if run.tick > self.tick {
                return Ok(Step::Waits);
            }
            is_forced = true;
        }
        let area = own.map(|(_, area)| area);
        let own = own.map(|(locked, area)| (locked, window.entry.and_then(|at| area.entry(at))));
        if let Action::Lock { exclusive, .. } = operation.action {
            if window.target.lock.is_held_by(source) {
                self.faults = Some(Fault::LockedTwice);
                return Err(Fault::LockedTwice);
            }
            let granted = match is_forced {
                true => window.target.lock.is_available(exclusive),
                false => {
                    let is_free = match own {
                        Some((locked, Some(entry))) => locked.is_free_of_direct(entry, exclusive),
                        _ => true,
                    };
                    window.target.lock.ask(source, exclusive, is_free)
                }
            };
            if let (false, Some((locked, Some(entry)))) = (granted, own) {
                window.target.lock.publish(locked, entry);
            }
            if !granted && is_forced {
                self.faults = Some(Fault::Diverged);
                return Err(Fault::Diverged);
            }
            if !granted {
                return Ok(Step::Waits);
            }
        }
        let reply = window.apply(source, operation, memory, own);
        if is_ordered {
            self.applied += 1;
            if let (Some((locked, _)), Some(area)) = (own, area) {
                self.applied = locked.count_own(area) + 1;
                // What was done before comes before it in the record, too.
                self.recorder.record_group(locked.take());
            }
        }
        if is_forced {
            if let Some(replay) = &mut self.replay {
                replay.consume();
            }
        } else if is_ordered {
            let tick = if passive { self.tick } else { Tick::BY_EPOCH };
            self.recorder.record(id, source, tick);
        }
        match reply {
            Err(fault) => {
                self.faults = Some(fault);
                return Err(fault);
            }
            Ok(Some(message)) if source == window.setup.me => {
                self.on_reply(id, source, &message)?
            }
            Ok(Some(message)) => {
                let lane = Lane::Replies;
                self.outputs.push_back(Output::Send { window: id, to: source, lane, message });
            }
            Ok(None) => {}
        }
        Ok(Step::Applied)
    }
}

impl Window {
    /// Do it; returns the reply.
    fn apply(
        &mut self,
        source: CommRank,
        operation: &Operation<'_>,
        memory: &mut impl Memory,
        own: Option<(&Locked<'_>, Option<EntryRef<'_>>)>,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let mut fetched = Vec::new();
        let mut error = None;
        let mut answer = None;
        match &operation.action {
            Action::Lock { exclusive, .. } => {
                self.target.lock.grant(source, *exclusive);
                self.publish_lock(own);
                answer = Some(Answer::Granted);
            }
            Action::Unlock => {
                if !self.target.lock.release(source) && !self.release_direct(source, own) {
                    return Err(Fault::NotLocked);
                }
                self.publish_lock(own);
                error = self.target.errors.remove(&source);
                answer = Some(Answer::Done);
            }
            Action::Flush => {
                error = self.target.errors.remove(&source);
                answer = Some(Answer::Done);
            }
            Action::Complete => {
                if let Some(open) = &mut self.target.exposed {
                    open.remove(&source);
                }
            }
            access => {
                let address = |place: &Place| resolve(&self.setup, &self.regions, place);
                if let Err(why) = self::access(access, memory, &mut fetched, address) {
                    fetched.clear();
                    error = Some(why);
                    if !access.is_replied() {
                        self.target.errors.entry(source).or_insert(why);
                    }
                }
                if let Epoch::Fence(_) = operation.epoch {
                    self.target.applied_since_fence += 1;
                }
                answer = Some(Answer::Data(&fetched));
            }
        }
        if !operation.action.is_replied() {
            return Ok(None);
        }
        Ok(answer.map(|answer| {
            let mut message = Vec::new();
            Reply { number: operation.number, error, answer }.encode(&mut message);
            message
        }))
    }

    fn publish_lock(&self, own: Option<(&Locked<'_>, Option<EntryRef<'_>>)>) {
        if let Some((locked, Some(entry))) = own {
            self.target.lock.publish(locked, entry);
        }
    }

    /// The lock was taken directly, and is given back by message.
    fn release_direct(
        &self,
        source: CommRank,
        own: Option<(&Locked<'_>, Option<EntryRef<'_>>)>,
    ) -> bool {
        let neighbour = self.neighbours.get(source.0 as usize).copied().flatten();
        let (Some((locked, Some(entry))), Some(neighbour)) = (own, neighbour) else { return false };
        locked.release_lock(entry, neighbour)
    }
}

/// An access to memory at `address`; what it gets is appended to `fetched`.
pub(super) fn access(
    action: &Action<'_>,
    memory: &mut impl Memory,
    fetched: &mut Vec<u8>,
    address: impl Fn(&Place) -> Result<u64, RmaError>,
) -> Result<(), RmaError> {
    match action {
        Action::Put { place, data } => {
            accumulate(memory, address(place)?, &place.layout, place.part, Op::Replace, data)
        }
        Action::Get { place } => pack(memory, address(place)?, &place.layout, place.part, fetched),
        Action::Accumulate { op, place, data } => {
            accumulate(memory, address(place)?, &place.layout, place.part, *op, data)
        }
        Action::GetAccumulate { op, place, data } => {
            let at = address(place)?;
            if !op.is_defined(place.layout.primitive()) {
                return Err(RmaError::Op);
            }
            pack(memory, at, &place.layout, place.part, fetched)?;
            accumulate(memory, at, &place.layout, place.part, *op, data)
        }
        Action::CompareAndSwap { displacement, primitive, compare, new } => {
            let layout = Layout::Contiguous { primitive: *primitive, count: 1 };
            let part = Part { first: 0, bytes: primitive.size() as u64 };
            let at = address(&Place { displacement: *displacement, layout, part })?;
            swap(memory, at, *primitive, compare, new, fetched);
            Ok(())
        }
        Action::Lock { .. } | Action::Unlock | Action::Flush | Action::Complete => Ok(()),
    }
}
