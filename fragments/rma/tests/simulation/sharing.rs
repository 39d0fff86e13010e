//! Sets that share memory: what a process makes known to its neighbours, how it calls the machine
//! beside them, and what the world does about it.

use crate::cells::{numbers, values};
use crate::neighbours::{Hood, Shared, View};
use crate::planted::Planted;
use crate::process::{Atomic, Pending, Process, WINDOW, rank_of, window_id};
use crate::script::{Call, SLOT, SUMS};
use crate::world::World;
use rustbtl_rma::arithmetic::Op;
use rustbtl_rma::ids::{CommRank, ContextId, OperationId};
use rustbtl_rma::layout::Layout;
use rustbtl_rma::machine::{Kind, LockMode, Nobody, Quick, Rma};
use rustbtl_rma::primitive::Primitive;
use rustbtl_rma::record::Recorded;
use std::rc::Rc;

impl Process {
    /// Neighbours see what this process has done.
    pub fn publish(&mut self) {
        let Some(shared) = self.hood.shared.clone() else { return };
        let area = shared.area(self.hood.me);
        shared.set_tick(self.hood.me, self.machine.tick());
        for instance in 0..=self.instances.max(1) {
            self.machine.publish_exposure(window_id(instance), &area);
        }
    }

    /// The number of a rank that is of the same set.
    pub fn neighbour(&self, rank: CommRank) -> Option<usize> {
        let of_set = self.hood.shared.as_ref()?.allowed.borrow().len();
        (rank.0 as usize).checked_sub(self.hood.first).filter(|&member| member < of_set)
    }

    /// The set begins to share memory: with new areas.
    pub fn open_area(&mut self, hood: Hood) {
        self.hood = hood;
        let Some(shared) = self.hood.shared.clone() else { return };
        let area = shared.area(self.hood.me);
        let mut machine = self.machine.clone();
        machine.open_area(&shared.lock(), &area, |_, rank| self.neighbour(rank));
        self.machine = machine;
    }

    pub fn publish_window(&mut self, window: ContextId) {
        let Some(shared) = self.hood.shared.clone() else { return };
        let area = shared.area(self.hood.me);
        let neighbours: Vec<_> =
            (0..self.ranks).map(|rank| self.neighbour(CommRank(rank as u32))).collect();
        self.machine.publish(window, &shared.lock(), &area, |rank| neighbours[rank.0 as usize]);
    }

    /// Call the machine, with neighbours or without.
    pub fn call<T>(
        &mut self,
        near: impl FnOnce(&mut Rma, &mut View<'_>) -> T,
        far: impl FnOnce(&mut Rma, &mut Nobody) -> T,
    ) -> T {
        match self.hood.shared.clone() {
            Some(shared) => near(&mut self.machine, &mut View::new(&shared, self.hood.me)),
            None => far(&mut self.machine, &mut Nobody),
        }
    }

    pub fn access(
        &mut self,
        window: ContextId,
        to: CommRank,
        at: usize,
        layout: &Layout,
        kind: Kind,
        data: &[u8],
    ) -> OperationId {
        let at = at as i64;
        let operation = self.call(
            |machine, hood| machine.access(hood, window, to, at, layout, kind, data),
            |machine, hood| machine.access(hood, window, to, at, layout, kind, data),
        );
        operation.expect("in an epoch")
    }

    pub fn lock(&mut self, window: ContextId, to: CommRank, exclusive: bool, mode: LockMode) {
        let wait = self.call(
            |machine, hood| machine.lock_beside(hood, window, to, exclusive, mode),
            |machine, hood| machine.lock_beside(hood, window, to, exclusive, mode),
        );
        self.waits.push(wait.expect("no epoch"));
    }

    pub fn unlock(&mut self, window: ContextId, to: CommRank) {
        let wait = self.call(
            |machine, hood| machine.unlock_beside(hood, window, to),
            |machine, hood| machine.unlock_beside(hood, window, to),
        );
        self.waits.push(wait.expect("locked"));
    }

    pub fn swap(&mut self, to: usize, cell: usize, now: u64) {
        let [old, new] = [self.expected, self.expected + 1].map(u64::to_le_bytes);
        let (rank, element) = (rank_of(to), Primitive::U64);
        let place = (WINDOW, rank, cell as i64);
        let swap = self.call(
            |machine, hood| machine.compare_and_swap_beside(hood, place, element, &old, &new),
            |machine, hood| machine.compare_and_swap_beside(hood, place, element, &old, &new),
        );
        self.await_data(swap.expect("in an epoch"), to, None, now);
        let flush = self.machine.flush_local(WINDOW, Some(rank));
        self.waits.push(flush.expect("in an epoch"));
    }

    /// The short way, in most of the calls that it is for. False: it does not lead there.
    pub fn begin_quickly(&mut self, call: &Call, value: u64, now: u64) -> bool {
        let Some(shared) = self.hood.shared.clone().filter(|_| !value.is_multiple_of(4)) else {
            return false;
        };
        let (mut view, element) = (View::new(&shared, self.hood.me), Primitive::U64);
        let machine = &mut self.machine;
        let mut access = |window, to, cell: usize, quick: Quick<'_>| {
            let of = (window, rank_of(to), cell as i64);
            machine.quick_access(&mut view, of, element, quick)
        };
        let mut data = vec![0; 8 * SLOT];
        match call {
            &Call::Put { to, slot, strided: false } => {
                access(WINDOW, to, slot * SLOT, Quick::Put(&values(value)))
            }
            &Call::PutCell { to, cell } => {
                access(window_id(cell % 2), to, cell, Quick::Put(&value.to_le_bytes()))
            }
            &Call::Get { to, slot, strided: false } => {
                let done = access(WINDOW, to, slot * SLOT, Quick::Get(&mut data));
                done && self.has_fetched(to, data, None, now)
            }
            &Call::Sum { to } => {
                let (op, data) = (Op::Sum, &values(value)[..]);
                access(WINDOW, to, SUMS * SLOT, Quick::Combine { op, data, found: None })
            }
            &Call::FetchAdd { to, cell } => {
                data.truncate(8);
                let (op, one) = (Op::Sum, 1u64.to_le_bytes());
                let found = Some(&mut data[..]);
                let done = access(WINDOW, to, cell, Quick::Combine { op, data: &one, found });
                done && self.has_fetched(to, data, Some(cell), now)
            }
            &Call::Lock { to, exclusive, mode } if mode != LockMode::NoCheck => {
                machine.quick_lock(&mut view, WINDOW, rank_of(to), exclusive)
            }
            &Call::Unlock { to } => {
                let done = machine.quick_unlock(&mut view, WINDOW, rank_of(to));
                self.publish();
                done
            }
            &Call::Flush { to } if !self.is_free => {
                let done = machine.quick_flush(WINDOW, Some(rank_of(to)));
                self.publish();
                done
            }
            Call::FlushAll => {
                let done = machine.quick_flush(WINDOW, None);
                self.publish();
                done
            }
            _ => false,
        }
    }

    /// Behind others to the same target, in most of the calls that this is for. False: not that.
    pub fn gather(&mut self, call: &Call, value: u64) -> bool {
        let (window, to, cell, is_put, data) = match *call {
            _ if value.is_multiple_of(4) => return false,
            Call::Put { to, slot, strided: false } => {
                (WINDOW, to, slot * SLOT, true, values(value))
            }
            Call::PutCell { to, cell } => {
                (window_id(cell % 2), to, cell, true, value.to_le_bytes().to_vec())
            }
            Call::Sum { to } => (WINDOW, to, SUMS * SLOT, false, values(value)),
            _ => return false,
        };
        let (of, data) = ((window, rank_of(to), cell as i64), &data[..]);
        let quick = match is_put {
            true => Quick::Put(data),
            false => Quick::Combine { op: Op::Sum, data, found: None },
        };
        let done = self.machine.quick_gather(of, Primitive::U64, &quick);
        self.publish();
        done
    }

    /// What was fetched is here.
    fn has_fetched(&mut self, to: usize, data: Vec<u8>, cell: Option<usize>, now: u64) -> bool {
        let atomic = cell.map(|cell| {
            let (index, old) = (self.atomics.len(), numbers(&data).next());
            self.atomics.push(Atomic { cell: (to, cell), index, old, responded: now });
            index
        });
        let operation = OperationId(u64::MAX);
        self.pending.push(Pending { operation, to, data, is_complete: true, atomic });
        true
    }

    pub fn action_on_window(&mut self) {
        self.machine.action_on_window();
        self.publish();
    }
}

impl World {
    /// The processes of a set share memory, which nobody has used.
    pub fn open_areas(&mut self, set: usize) {
        if !self.is_direct {
            return;
        }
        let members = self.sets[set].members.clone();
        let memories = members.iter().map(|&rank| self.processes[rank].memory.share()).collect();
        let shared = Rc::new(Shared::new(memories, self.is(Planted::OldTick)));
        for (me, &rank) in members.iter().enumerate() {
            let hood = Hood { shared: Some(Rc::clone(&shared)), me, first: members[0] };
            self.processes[rank].open_area(hood);
        }
        self.sets[set].shared = Some(shared);
    }

    /// What was recorded of neighbours goes into the set's order.
    pub fn record_direct(&mut self, set: usize) {
        let Some(shared) = self.sets[set].shared.clone() else { return };
        for group in shared.recorded.borrow_mut().drain(..) {
            self.report.determinants += 1;
            self.report.direct += group.len();
            let recorder = self.sets[set].members[0];
            self.sets[set].recorded.push((recorder, Recorded::Group(group)));
        }
    }

    /// Before anything else is recorded, and before anything leaves the set.
    pub fn close_group(&mut self, set: usize) {
        if let Some(shared) = self.sets[set].shared.clone()
            && !self.is(Planted::GroupLeftOpen)
        {
            shared.close_group();
            self.record_direct(set);
        }
    }

    /// In free programs who is not in a call looks at its memory: nobody changes it then.
    pub fn allow(&self, rank: usize) {
        let set = &self.sets[self.set_of[rank]];
        if let (true, Some(shared)) = (self.script.is_free, &set.shared) {
            let is_in = |&member: &usize| member == rank || self.processes[member].in_call;
            *shared.allowed.borrow_mut() = set.members.iter().map(is_in).collect();
        }
    }
}
