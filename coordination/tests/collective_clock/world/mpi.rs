//! What a rank's program does, call by call, and MPI's progress: the driver of the clock, with the
//! bugs that are planted in it.

use super::{Phase, Planted, Request, World};
use crate::program::{Kind, Op};
use rustbtl_coordination::collective_clock::{Call, Entry, Input};
use rustbtl_fragments::ids::PeerId;
use rustbtl_seeds::mix;
use std::collections::VecDeque;

impl World {
    /// The entry of a call. True: it is passed.
    fn enter(&mut self, rank: usize, comm: usize, is_blocking: bool) -> bool {
        match self.ranks[rank].phase {
            Phase::Ready if is_blocking && self.has(Planted::CountedAtLeaving) => true,
            Phase::Ready => {
                let handle = self.handle(rank, comm);
                let entry = self.ranks[rank].clock.enter(handle, Call::Program);
                if let Entry::Stop(stop) = entry {
                    self.report.stops += 1;
                    self.ranks[rank].phase = Phase::Stopped(stop);
                } else {
                    self.ranks[rank].phase = Phase::Entered;
                }
                self.collect(rank);
                self.ranks[rank].phase == Phase::Entered
            }
            Phase::Entered => true,
            _ => false,
        }
    }

    fn see(&mut self, rank: usize, value: u64) {
        self.ranks[rank].value = mix(self.ranks[rank].value, value);
    }

    /// The program of a rank does something. False: it cannot.
    pub(super) fn step(&mut self, rank: usize) -> bool {
        let Some(op) = self.op(rank) else { return false };
        match op {
            Op::Collective { comm, call, kind, root } => {
                self.blocking(rank, comm, call, kind, root)
            }
            Op::Create { parent, call, comm } => {
                let root = self.program.comms[parent].members[0];
                let is_inside = matches!(self.ranks[rank].phase, Phase::Inside(..));
                let moved = self.blocking(rank, parent, call, Kind::All, root);
                if moved && is_inside && self.ranks[rank].phase == Phase::Ready {
                    let is_member = self.program.comms[comm].members.contains(&rank);
                    if is_member && !self.has(Planted::RegisteredLate) {
                        self.register(rank, comm);
                    }
                }
                moved
            }
            Op::Start { comm, call, kind, root } => {
                let before = self.ranks[rank].phase;
                if !self.enter(rank, comm, false) {
                    return before != self.ranks[rank].phase;
                }
                let value = mix(self.ranks[rank].value, call);
                let key = self.library.enter(rank, comm, (call, kind, root), value);
                if self.has(Planted::NonblockingNotCompleted) {
                    self.leave(rank);
                }
                let request = Request { key: Some(key), idup: None, result: 0, is_complete: false };
                self.ranks[rank].requests.insert(call, request);
                self.next(rank);
                true
            }
            Op::Idup { parent, call, comm } => {
                let before = self.ranks[rank].phase;
                if !self.enter(rank, parent, false) {
                    return before != self.ranks[rank].phase;
                }
                if self.options.idup_counts {
                    self.count(rank, parent);
                }
                let value = mix(self.ranks[rank].value, call);
                let key = self.library.enter(rank, comm, (call, Kind::All, 0), value);
                let idup = Some((parent, comm, 1));
                let request = Request { key: Some(key), idup, result: 0, is_complete: false };
                self.ranks[rank].requests.insert(call, request);
                self.next(rank);
                true
            }
            Op::Wait { call } => {
                if !self.ranks[rank].requests[&call].is_complete {
                    return false;
                }
                let request = self.ranks[rank].requests.remove(&call).unwrap();
                self.see(rank, request.result);
                self.next(rank);
                true
            }
            Op::Test { .. } => {
                self.progress(rank);
                self.next(rank);
                true
            }
            Op::Free { comm } => {
                self.ranks[rank].handles.remove(&comm);
                self.next(rank);
                true
            }
            Op::Send { to, synchronous } => {
                if let Phase::Sending(to, count) = self.ranks[rank].phase {
                    let received = self.received.get(&(rank, to)).copied().unwrap_or(0);
                    if received >= count {
                        self.next(rank);
                    }
                    return received >= count;
                }
                self.mail.entry((rank, to)).or_default().push_back(self.ranks[rank].value);
                let sent = self.sent.entry((rank, to)).or_default();
                *sent += 1;
                let count = *sent;
                if synchronous {
                    self.ranks[rank].phase = Phase::Sending(to, count);
                } else {
                    self.next(rank);
                }
                true
            }
            Op::Receive { from } => {
                let mail = self.mail.get_mut(&(from, rank)).and_then(VecDeque::pop_front);
                let Some(value) = mail else { return false };
                *self.received.entry((from, rank)).or_default() += 1;
                self.see(rank, value);
                self.next(rank);
                true
            }
            Op::SendAny { to } => {
                let value = mix(rank as u64, self.ranks[rank].at as u64);
                self.from_anybody[to].push_back(value);
                self.next(rank);
                true
            }
            Op::ReceiveAny => {
                let Some(value) = self.from_anybody[rank].pop_front() else { return false };
                self.ranks[rank].sum = self.ranks[rank].sum.wrapping_add(value);
                self.next(rank);
                true
            }
            Op::Compute { steps } => {
                self.ranks[rank].computed += 1;
                if self.ranks[rank].computed >= steps {
                    self.ranks[rank].computed = 0;
                    self.next(rank);
                }
                true
            }
            Op::Finalize => {
                self.ranks[rank].clock.handle(Input::Finish).unwrap();
                self.collect(rank);
                self.next(rank);
                true
            }
        }
    }

    fn parts(kind: Kind) -> &'static [Kind] {
        match kind {
            Kind::Nested => &[Kind::ToRoot, Kind::FromRoot],
            Kind::All => &[Kind::All],
            Kind::FromRoot => &[Kind::FromRoot],
            Kind::ToRoot => &[Kind::ToRoot],
            Kind::Neighbours => &[Kind::Neighbours],
        }
    }

    fn blocking(&mut self, rank: usize, comm: usize, call: u64, kind: Kind, root: usize) -> bool {
        let parts = Self::parts(kind);
        if let Phase::Inside(part, key) = self.ranks[rank].phase {
            let left = self.library.leave(rank, key, &self.program.comms);
            let Some(value) = left else { return false };
            self.see(rank, value);
            if kind == Kind::Nested {
                self.leave(rank);
            }
            if part + 1 < parts.len() {
                self.part(rank, comm, call, (kind, root), part + 1);
                return true;
            }
            if self.has(Planted::CountedAtLeaving) {
                self.count(rank, comm);
            }
            self.leave(rank);
            self.next(rank);
            return true;
        }
        let before = self.ranks[rank].phase;
        if !self.enter(rank, comm, true) {
            return before != self.ranks[rank].phase;
        }
        self.part(rank, comm, call, (kind, root), 0);
        true
    }

    fn part(
        &mut self,
        rank: usize,
        comm: usize,
        call: u64,
        (kind, root): (Kind, usize),
        part: usize,
    ) {
        if kind == Kind::Nested {
            if self.has(Planted::NestedStopped) {
                let handle = self.handle(rank, comm);
                let entry = self.ranks[rank].clock.enter(handle, Call::Program);
                self.collect(rank);
                assert_eq!(entry, Entry::Go, "stopped inside MPI: nobody lets it go");
            } else {
                self.count(rank, comm);
            }
        }
        let value = mix(self.ranks[rank].value, call);
        let of = (2 * call + part as u64, Self::parts(kind)[part], root);
        let key = self.library.enter(rank, comm, of, value);
        self.ranks[rank].phase = Phase::Inside(part, key);
    }

    pub(super) fn is_in_mpi(&self, rank: usize) -> bool {
        match self.ranks[rank].phase {
            Phase::Ready => matches!(
                self.op(rank),
                None | Some(Op::Wait { .. } | Op::Receive { .. } | Op::ReceiveAny)
            ),
            Phase::Entered => false,
            Phase::Stopped(_) | Phase::Inside(..) | Phase::Sending(..) => true,
        }
    }

    /// Progress of MPI at a rank: one request gets on. False: none can.
    pub(super) fn progress(&mut self, rank: usize) -> bool {
        let calls: Vec<u64> = self.ranks[rank].requests.keys().copied().collect();
        for call in calls {
            let Some(request) = self.ranks[rank].requests.get_mut(&call) else { continue };
            if request.is_complete {
                continue;
            }
            let value = mix(request.result, call);
            let Some(key) = request.key else {
                // The second stage of MPI_Comm_idup.
                let Some((parent, comm, _)) = request.idup else { unreachable!() };
                let key = self.library.enter(rank, comm, (call, Kind::All, 0), value);
                request.key = Some(key);
                request.idup = Some((parent, comm, 2));
                self.count(rank, parent);
                return true;
            };
            let Some(value) = self.library.leave(rank, key, &self.program.comms) else { continue };
            request.key = None;
            request.result = mix(request.result, value);
            let idup = request.idup;
            request.is_complete = idup.is_none_or(|(_, _, stage)| stage == 2);
            if !self.has(Planted::NonblockingNotCompleted) || idup.is_some() {
                self.leave(rank);
            }
            if let Some((_, comm, 2)) = idup {
                self.register(rank, comm);
                if self.options.idup_counts {
                    self.leave(rank);
                }
            }
            return true;
        }
        false
    }

    /// For whom a rank waits in point-to-point communication.
    pub(super) fn blocked_on(&self, rank: usize) -> Vec<PeerId> {
        let is_empty = |mail: Option<&VecDeque<u64>>| mail.is_none_or(VecDeque::is_empty);
        let id = |rank: usize| PeerId(rank as u32);
        match (self.ranks[rank].phase, self.op(rank)) {
            (Phase::Sending(to, count), _)
                if self.received.get(&(rank, to)).is_none_or(|received| *received < count) =>
            {
                vec![id(to)]
            }
            (Phase::Ready, Some(Op::Receive { from }))
                if is_empty(self.mail.get(&(from, rank))) =>
            {
                vec![id(from)]
            }
            (Phase::Ready, Some(Op::ReceiveAny)) if self.from_anybody[rank].is_empty() => {
                (0..self.ranks.len()).filter(|other| *other != rank).map(id).collect()
            }
            _ => Vec::new(),
        }
    }
}
