//! A communicator whose members are of several sets: what travels between those that stand for
//! them. These are messages as Open MPI's collectives send them, with the call's own tag: they are
//! logged, replayed and checked as such.

use crate::engine::driver_state::Driver;
use crate::engine::shared::shared;
use crate::ffi::collective::{
    CollectiveBlock, CollectiveCall, CollectiveSetup, TEST_FAILED, TEST_PENDING,
};
use crate::ffi::table::{DONE, FAILED};
use crate::mpi::collectives::data::{Data, copy};
use core::ffi::c_void;
use rustbtl_collectives::member::Host;
use rustbtl_collectives::over_sets::SetsHost;
use rustbtl_collectives::plan::{Call, Kind, Plan, Step};
use rustbtl_collectives::sets::Sets;
use rustbtl_collectives::shape::{At, Inside, Place, Shape};
use rustbtl_coordination::SetPolicy;
use rustbtl_fragments::host::Host as _;
use rustbtl_fragments::ids::{CommRank, PeerId};
use std::sync::Arc;

/// Larger communicators are left to Open MPI: each member reads the endpoints of all.
const SIZE_MAX: u32 = 256;

/// Of a communicator.
#[derive(Debug)]
pub struct OverSets {
    pub sets: Arc<Sets>,
    /// Own rank.
    me: u32,
    stage: Vec<u8>,
    other: Vec<u8>,
    incoming: Vec<u8>,
    /// What is waited for.
    asked: Option<*mut c_void>,
    sent: Vec<*mut c_void>,
    /// `DONE`, or what has gone wrong first.
    outcome: i32,
}

impl OverSets {
    pub fn new(sets: Sets, me: u32) -> Self {
        Self {
            sets: Arc::new(sets),
            me,
            stage: Vec::new(),
            other: Vec::new(),
            incoming: Vec::new(),
            asked: None,
            sent: Vec::new(),
            outcome: DONE,
        }
    }

    /// A call of all members, as this one takes part in it.
    pub fn shape(&self, of: Call, call: &CollectiveCall) -> Option<Shape> {
        let commutes = call.commutes != 0;
        let blocks = match of.kind {
            Kind::Allgatherv => call.gets,
            Kind::ReduceScatter => call.gives,
            _ => return Shape::new(&self.sets, self.me, of, commutes, &[]),
        };
        // SAFETY: C gives one for each member, and all know them of all.
        let length = |rank: u32| unsafe { (*blocks.wrapping_add(rank as usize)).bytes };
        let lengths: Vec<u64> = (0..self.sets.size()).map(length).collect();
        let bytes = lengths.iter().copied().max().unwrap_or(0);
        Shape::new(&self.sets, self.me, Call { bytes, ..of }, commutes, &lengths)
    }

    /// A call begins.
    pub fn begin(&mut self, shape: &Shape, call: &CollectiveCall) -> Places {
        self.outcome = DONE;
        let [stage, other] = shape.needs();
        let room = |memory: &mut Vec<u8>, bytes: u64| {
            memory.resize(memory.len().max(bytes as usize), 0);
            memory.as_mut_ptr()
        };
        let first = |blocks: *const CollectiveBlock, equal: *mut u8| match blocks.is_null() {
            true => equal,
            // SAFETY: C's, one at least.
            false => unsafe { (*blocks).start },
        };
        Places {
            own: first(call.gives, call.from.cast_mut()),
            result: first(call.gets, call.into),
            stage: room(&mut self.stage, stage),
            other: room(&mut self.other, other),
            incoming: room(&mut self.incoming, shape.needs_of_incoming()),
        }
    }
}

/// Where a member has what in a call.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    own: *mut u8,
    result: *mut u8,
    stage: *mut u8,
    other: *mut u8,
    incoming: *mut u8,
}

impl Places {
    fn at(&self, At(place, at): At) -> *mut u8 {
        let start = match place {
            Place::Own => self.own,
            Place::Result => self.result,
            Place::Stage => self.stage,
            Place::Other => self.other,
            Place::Incoming => self.incoming,
        };
        start.wrapping_add(at as usize)
    }

    /// What is done inside the set, before others are asked and after.
    pub fn inside(&self, shape: &Shape, call: &CollectiveCall) -> [CollectiveCall; 2] {
        shape.inside().map(|inside| {
            let at =
                |of: fn(Inside) -> At| inside.map_or(core::ptr::null_mut(), |i| self.at(of(i)));
            CollectiveCall {
                from: at(|inside| inside.from),
                into: at(|inside| inside.into),
                gives: core::ptr::null(),
                gets: core::ptr::null(),
                packs: core::ptr::null_mut(),
                ..*call
            }
        })
    }
}

/// The sets of a communicator's members, as long as collectives over several of them are ours: all
/// lie on one node each by the policy, whatever has happened since; some have several members.
/// The same at all members.
pub fn sets_of(driver: &mut Driver, comm: u64, size: u32, largest: usize) -> Option<Sets> {
    use SetPolicy::{L3, Node, Numa, Socket};
    let policy = SetPolicy::parse(&driver.host.policy_text).ok()?;
    if !matches!(policy, Node | Numa | Socket | L3) || size > SIZE_MAX {
        return None;
    }
    let peers: Vec<PeerId> =
        (0..size).map(|rank| driver.host.resolve(comm, CommRank(rank))).collect();
    if !peers.iter().all(|&peer| driver.host.peers.is_own(peer)) {
        return None;
    }
    let sets: Vec<u32> = peers.into_iter().map(|peer| set_of(driver, peer)).collect();
    let sets = Sets::new(&sets);
    (sets.count() > 1 && (2..=largest).contains(&sets.largest())).then_some(sets)
}

fn set_of(driver: &mut Driver, peer: PeerId) -> u32 {
    if peer == driver.host.peers.me() {
        return driver.host.set.0;
    }
    if let Some(&set) = driver.collectives.sets.get(&peer) {
        return set.0;
    }
    let set = driver.host.checked_endpoint(peer).set;
    driver.collectives.sets.insert(peer, set);
    set.0
}

/// A call of this member.
pub struct Crossed<'a> {
    /// Inside its set.
    pub data: Data<'a>,
    pub over: &'a mut OverSets,
    /// The program's.
    pub call: &'a CollectiveCall,
    pub shape: &'a Shape,
    pub places: Places,
    /// What [`Places::inside`] gave.
    pub inside: &'a [CollectiveCall; 2],
}

impl Crossed<'_> {
    fn setup(&self) -> &CollectiveSetup {
        self.data.setup
    }

    /// Is it complete, and how?
    fn test(&self, request: *mut c_void) -> Option<i32> {
        // SAFETY: the request of this communicator, which is not complete.
        match unsafe { (self.setup().test)(request) } {
            TEST_PENDING => None,
            TEST_FAILED => Some(FAILED),
            _ => Some(DONE),
        }
    }

    /// What has gone wrong ends nothing: what is still awaited does not depend on it, and comes.
    fn note(&mut self, code: i32) {
        if self.over.outcome == DONE {
            self.over.outcome = code;
        }
    }

    pub fn outcome(&self) -> i32 {
        self.over.outcome
    }
}

impl Host for Crossed<'_> {
    fn finished(&self, member: u32) -> u64 {
        self.data.finished(member)
    }

    #[inline]
    fn put(&mut self, plan: &Plan, step: &Step, number: u64) {
        self.data.put(plan, step, number);
    }

    #[inline]
    fn deliver(&mut self, plan: &Plan, step: &Step, number: u64) -> bool {
        self.data.deliver(plan, step, number)
    }

    #[inline]
    fn is_up(&mut self, plan: &Plan, step: &Step, number: u64, writer: u32) -> bool {
        self.data.is_up(plan, step, number, writer)
    }

    #[inline]
    fn take(&mut self, plan: &Plan, step: &Step, number: u64) {
        self.data.take(plan, step, number);
    }

    #[inline]
    fn finish(&mut self, steps: u64) {
        self.data.finish(steps);
    }
}

impl SetsHost for Crossed<'_> {
    fn enter(&mut self, after: bool) {
        self.data.call = &self.inside[usize::from(after)];
    }

    #[inline]
    fn copy(&mut self, from: At, into: At, bytes: u64) {
        // SAFETY: the shape stays inside the call's data, and inside what it needs.
        unsafe { copy(self.places.at(from), self.places.at(into), bytes) };
    }

    #[inline]
    fn give(&mut self, from: At, rank: u32, bytes: u64) {
        let into = match self.call.gets.is_null() {
            true => self.places.at(At(Place::Result, u64::from(rank) * self.call.bytes)),
            // SAFETY: C gives one for each member.
            false => unsafe { (*self.call.gets.wrapping_add(rank as usize)).start },
        };
        // SAFETY: as above.
        unsafe { copy(self.places.at(from), into, bytes) };
    }

    fn fold(&mut self, left: At, right: At, into: At, bytes: u64) {
        let elements = bytes / self.call.element.max(1);
        if elements == 0 {
            return;
        }
        let [left, right, into] = [left, right, into].map(|at| self.places.at(at));
        let (fold, op, datatype) = (self.setup().fold, self.call.op, self.call.datatype);
        // SAFETY: all hold so many elements of the call's type.
        unsafe { fold(op, datatype, left, right, into, elements) };
    }

    fn send(&mut self, from: At, bytes: u64, set: u32) {
        let (to, tag, mut request) =
            (self.shape.stands_for(set), self.call.tag, core::ptr::null_mut());
        let (setup, start) = (self.setup(), self.places.at(from));
        // SAFETY: C has made the setup of a communicator that is in use; the data is there until
        // it is sent.
        let code = unsafe { (setup.send)(setup.comm, to, tag, start, bytes, &mut request) };
        self.note(code);
        if code == 0 && !request.is_null() {
            self.over.sent.push(request);
        }
    }

    fn are_sent(&mut self) -> bool {
        while let Some(&request) = self.over.sent.last() {
            match self.test(request) {
                None => return false,
                Some(code) => self.note(code),
            }
            self.over.sent.pop();
        }
        true
    }

    fn is_here(&mut self, into: At, bytes: u64, set: u32) -> bool {
        let request = match self.over.asked {
            Some(request) => request,
            None => {
                let (from, tag) = (self.shape.stands_for(set), self.call.tag);
                let (setup, mut request) = (self.setup(), core::ptr::null_mut());
                let start = self.places.at(into);
                // SAFETY: as in `send`; nobody else uses that memory until it is here.
                let code =
                    unsafe { (setup.receive)(setup.comm, from, tag, start, bytes, &mut request) };
                self.note(code);
                request
            }
        };
        self.over.asked = None;
        if request.is_null() {
            return true;
        }
        let Some(code) = self.test(request) else {
            self.over.asked = Some(request);
            return false;
        };
        self.note(code);
        true
    }
}

/// Wait for what others do: who stands for its set waits for messages.
pub fn wait(stands_for_set: bool, over: &mut dyn FnMut() -> bool) {
    use crate::progress::wait;
    if stands_for_set {
        wait::wait_long_for_memory(shared(), over);
    } else {
        wait::wait_for_memory(shared(), over);
    }
}
