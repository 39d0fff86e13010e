//! What a member does with its data in a step.

use crate::engine::collectives::room::Room;
use crate::ffi::collective::{CollectiveBlock, CollectiveCall, CollectiveSetup};
use crate::mpi::collectives::messages::Messages;
use core::ops::Range;
use core::sync::atomic::{Ordering, compiler_fence};
use rustbtl_collectives::carrier::Way;
use rustbtl_collectives::member::Host;
use rustbtl_collectives::plan::{Plan, Put, Step, Take, Who};

/// A call of this member, with its surroundings.
pub struct Data<'a> {
    pub setup: &'a CollectiveSetup,
    pub room: &'a Room,
    pub messages: &'a mut Messages,
    pub call: &'a CollectiveCall,
    /// What was put in this step, where it does not lie in memory: it is read again by its owner.
    pub own: &'a mut Vec<u8>,
    /// Steps that this member has finished.
    pub finished: &'a mut u64,
}

impl Data<'_> {
    fn me(&self) -> u32 {
        self.setup.rank
    }

    /// Where blocks vary: one of those that this member gives, and gets.
    fn gives(&self, block: u32) -> CollectiveBlock {
        // SAFETY: C gives as many as the plan asks for.
        unsafe { *self.call.gives.wrapping_add(block as usize) }
    }

    fn gets(&self, block: u32) -> CollectiveBlock {
        // SAFETY: as above.
        unsafe { *self.call.gets.wrapping_add(block as usize) }
    }

    #[inline]
    fn varies(&self) -> bool {
        !self.call.gives.is_null()
    }

    /// Of a writer's slot what is a reader's. One of the two is this member.
    #[inline]
    fn range(&self, plan: &Plan, step: &Step, reader: u32, writer: u32) -> Range<usize> {
        let range = plan.reads(step, reader, writer);
        let end = if self.varies() {
            let block = match writer == self.me() {
                true => self.gives(plan.gives_to(reader)),
                false => self.gets(plan.gets_from(writer)),
            };
            range.start + plan.piece_of(step, block.bytes)
        } else {
            range.end
        };
        range.start as usize..end as usize
    }

    /// Where this member puts what it has read of a writer, or folded.
    #[inline]
    fn goes_to(&self, plan: &Plan, step: &Step, writer: u32) -> *mut u8 {
        if self.varies() {
            return self.gets(plan.gets_from(writer)).start.wrapping_add(step.at as usize);
        }
        self.call.into.wrapping_add(plan.goes_to(step, self.me(), writer) as usize)
    }

    /// [`Self::gather`] where blocks vary.
    fn gather_blocks(&self, plan: &Plan, step: &Step, into: *mut u8) {
        for (place, number) in plan.gives(step).enumerate() {
            let block = self.gives(number);
            let to = into.wrapping_add(place * step.bytes as usize);
            let from = block.start.wrapping_add(step.at as usize);
            // SAFETY: the piece lies inside the block, its place inside a slot.
            unsafe { copy(from, to, plan.piece_of(step, block.bytes)) };
        }
    }

    /// Copy what this member puts, one piece after the other.
    #[inline]
    fn gather(&self, plan: &Plan, step: &Step, into: *mut u8) {
        if self.varies() {
            return self.gather_blocks(plan, step, into);
        }
        let source =
            if step.put == Put::Part { self.call.into.cast_const() } else { self.call.from };
        let mut to = into;
        for (at, bytes) in plan.puts(step, self.me()) {
            // SAFETY: the plan stays inside the call's data, and inside a slot.
            unsafe { copy(source.wrapping_add(at as usize), to, bytes) };
            to = to.wrapping_add(bytes as usize);
        }
    }

    fn put_bytes(&self, plan: &Plan, step: &Step) -> usize {
        if self.varies() {
            return plan.gives(step).count() * step.bytes as usize;
        }
        plan.puts(step, self.me()).map(|(_, bytes)| bytes as usize).sum()
    }

    /// As messages.
    #[cold]
    #[inline(never)]
    fn send(&mut self, plan: &Plan, step: &Step, number: u64) {
        self.keep_own(plan, step);
        let me = self.me();
        for reader in (0..plan.call.size).filter(|&reader| reader != me && step.readers.has(reader))
        {
            let bytes = &self.own[self.range(plan, step, reader, me)];
            // SAFETY: C has made the setup of a communicator that is in use.
            unsafe { self.messages.send(self.setup, reader, number, bytes) };
        }
    }

    #[cold]
    #[inline(never)]
    fn keep_own(&mut self, plan: &Plan, step: &Step) {
        self.own.clear();
        self.own.resize(self.put_bytes(plan, step), 0);
        let into = self.own.as_mut_ptr();
        self.gather(plan, step, into);
    }

    /// Where this member finds what a writer has put for it.
    #[inline]
    fn source(&self, plan: &Plan, step: &Step, number: u64, writer: u32) -> *const u8 {
        let start = plan.reads(step, self.me(), writer).start as usize;
        if self.room.carrier.way(writer, number) == Way::Message
            && let Some(message) = self.messages.payload(writer, number)
        {
            return message;
        }
        let slot = self.room.slot(writer, number, step.line);
        slot.map_or(core::ptr::null(), |(_, payload)| payload.wrapping_add(start).cast_const())
    }

    /// Fold what the writers have put (K4).
    #[inline]
    fn fold(&mut self, plan: &Plan, step: &Step, number: u64) {
        let me = self.me();
        // Decided once: the set may be restored onto several nodes in the middle of this.
        let carrier = &self.room.carrier;
        let copied = !step.writers.has(me) || carrier.is_messages() || carrier.is_held();
        if copied {
            // The result may go where own data is.
            self.keep_own(plan, step);
        }
        let range = self.range(plan, step, me, me);
        let into = self.goes_to(plan, step, me);
        let bytes = range.len() as u64;
        let elements = bytes / plan.call.element;
        let of = |data: &Self, member: u32| {
            if copied && member == me {
                data.own.as_ptr().wrapping_add(range.start)
            } else {
                data.source(plan, step, number, member)
            }
        };
        let mut members = plan.folds(me).rev();
        let Some(last) = members.next() else { return };
        let mut right = of(self, last);
        let mut folded = false;
        if bytes == 0 {
            return;
        }
        for member in members {
            let left = of(self, member);
            let (op, datatype) = (self.call.op, self.call.datatype);
            // SAFETY: slots and the result hold so many elements of the call's type.
            unsafe { (self.setup.fold)(op, datatype, left, right, into, elements) };
            (right, folded) = (into.cast_const(), true);
        }
        if !folded {
            // SAFETY: as above; a slot or a copy, which does not overlap the result.
            unsafe { copy(right, into, bytes) };
        }
    }
}

/// # Safety
/// Both are valid for so many bytes.
#[inline]
pub unsafe fn copy(from: *const u8, into: *mut u8, bytes: u64) {
    if bytes > 0 && !core::ptr::eq(from, into) {
        // SAFETY: the caller's promise; it may overlap where the program has said MPI_IN_PLACE.
        unsafe { core::ptr::copy(from, into, bytes as usize) };
    }
}

impl Host for Data<'_> {
    fn finished(&self, member: u32) -> u64 {
        if self.room.carrier.is_messages() {
            return *self.finished;
        }
        // [collective_finished] what that member has read, it has read.
        self.room.finished(member).map_or(u64::MAX, |finished| finished.load(Ordering::Acquire))
    }

    #[inline]
    fn put(&mut self, plan: &Plan, step: &Step, number: u64) {
        // After a parting others may still read what was there (K6).
        let in_memory = !self.room.carrier.is_messages();
        if let Some((flag, payload)) = self.room.slot(self.me(), number, step.line)
            && in_memory
        {
            if !step.line
                && let Some(used) = self.room.used_chunks(self.me())
            {
                // Seen with the flag.
                used.store(1, Ordering::Relaxed);
            }
            self.gather(plan, step, payload);
            // [collective] after what was put.
            flag.store(number + 1, Ordering::Release);
        }
    }

    #[inline]
    fn deliver(&mut self, plan: &Plan, step: &Step, number: u64) -> bool {
        // A snapshot may fall between the flag and this question, but not the other way round.
        compiler_fence(Ordering::SeqCst);
        match self.room.carrier.way(self.me(), number) {
            Way::Memory => return true,
            Way::Unknown => return false,
            Way::Message => {}
        }
        self.send(plan, step, number);
        true
    }

    #[inline]
    fn is_up(&mut self, plan: &Plan, step: &Step, number: u64, writer: u32) -> bool {
        match self.room.carrier.way(writer, number) {
            Way::Memory => {}
            Way::Unknown => return false,
            Way::Message => {
                let bytes = self.range(plan, step, self.me(), writer).len() as u64;
                // SAFETY: C has made the setup of a communicator that is in use.
                return unsafe { self.messages.is_here(self.setup, writer, number, bytes) };
            }
        }
        let slot = self.room.slot(writer, number, step.line);
        // [collective] what was put is seen.
        slot.is_some_and(|(flag, _)| flag.load(Ordering::Acquire) == number + 1)
            // Was it raised after a snapshot, it may come as a message, too.
            && self.room.carrier.way(writer, number) == Way::Memory
    }

    #[inline]
    fn take(&mut self, plan: &Plan, step: &Step, number: u64) {
        if plan.call.kind.has_no_data() {
            return;
        }
        match step.take {
            Take::Fold | Take::FoldPart => self.fold(plan, step, number),
            Take::Copy | Take::CopyParts => {
                let me = self.me();
                let writers = match step.writers {
                    Who::One(one) => one..one + 1,
                    _ => 0..plan.call.size,
                };
                for writer in writers.filter(|&w| w != me && step.writers.has(w)) {
                    let bytes = self.range(plan, step, me, writer).len() as u64;
                    let from = self.source(plan, step, number, writer);
                    let to = self.goes_to(plan, step, writer);
                    // SAFETY: the plan stays inside the result, and inside a slot.
                    unsafe { copy(from, to, bytes) };
                }
            }
        }
    }

    #[inline]
    fn finish(&mut self, steps: u64) {
        *self.finished = steps;
        if let Some(finished) = self.room.finished(self.setup.rank) {
            // [collective_finished] after what was read.
            finished.store(steps, Ordering::Release);
        }
        if self.room.carrier.is_messages() {
            self.messages.forget(steps);
        }
    }
}
