//! A communicator whose members are of several sets: what travels between those that stand for
//! them. These are messages as Open MPI's collectives send them, with the call's own tag: they are
//! logged, replayed and checked as such.

use crate::engine::driver_state::Driver;
use crate::engine::shared::shared;
use crate::ffi::collective::{CollectiveCall, CollectiveSetup, TEST_FAILED, TEST_PENDING};
use crate::ffi::table::{DONE, FAILED};
use crate::mpi::collectives::data::{Data, copy};
use core::ffi::c_void;
use rustbtl_collectives::member::Host;
use rustbtl_collectives::over_sets::{Crossing, Place, SetsHost};
use rustbtl_collectives::plan::{Plan, Step};
use rustbtl_collectives::sets::{Sets, Side};
use rustbtl_coordination::SetPolicy;
use rustbtl_fragments::host::Host as _;
use rustbtl_fragments::ids::{CommRank, PeerId};

/// Larger communicators are left to Open MPI: each member reads the endpoints of all.
const SIZE_MAX: u32 = 256;

/// Of a communicator.
#[derive(Debug)]
pub struct OverSets {
    pub sets: Sets,
    /// Own rank.
    me: u32,
    scratch: Vec<u8>,
    incoming: Vec<u8>,
    /// The set that is waited for; its message has come where the request is null.
    asked: Option<(u32, *mut c_void)>,
    sent: Vec<*mut c_void>,
    tag: i32,
    /// `DONE`, or what has gone wrong first.
    outcome: i32,
}

impl OverSets {
    pub fn new(sets: Sets, me: u32) -> Self {
        Self {
            sets,
            me,
            scratch: Vec::new(),
            incoming: Vec::new(),
            asked: None,
            sent: Vec::new(),
            tag: 0,
            outcome: DONE,
        }
    }

    /// Own rank.
    pub fn me(&self) -> u32 {
        self.me
    }

    /// A call begins: where this member reads and writes inside its set, before and after.
    pub fn begin(&mut self, crossing: &Crossing, call: &CollectiveCall) -> [CollectiveCall; 2] {
        let bytes = call.bytes as usize;
        (self.tag, self.outcome) = (call.tag, DONE);
        let mut place = call.into;
        if crossing.place() == Place::Scratch && crossing.stands_for_set() {
            self.scratch.resize(bytes.max(self.scratch.len()), 0);
            place = self.scratch.as_mut_ptr();
        }
        if crossing.copies_own() {
            // SAFETY: both are that long.
            unsafe { copy(call.from, place, call.bytes) };
        }
        let inside = CollectiveCall { into: place, packs: core::ptr::null_mut(), ..*call };
        [inside, CollectiveCall { from: place, ..inside }]
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
    /// What [`OverSets::begin`] gave.
    pub calls: &'a [CollectiveCall; 2],
    /// By whom it is known who stands for which set.
    pub root: u32,
}

impl Crossed<'_> {
    fn setup(&self) -> &CollectiveSetup {
        self.data.setup
    }

    fn rank_of(&self, set: u32) -> u32 {
        self.over.sets.stands_for(set, self.root)
    }

    /// Where it collects.
    fn place(&self) -> *mut u8 {
        self.calls[1].into
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
    fn enter(&mut self, from: Place, _: Place) {
        self.data.call = match from {
            Place::Own => &self.calls[0],
            Place::Result | Place::Scratch => &self.calls[1],
        };
    }

    fn send(&mut self, _: Place, set: u32) {
        let (to, tag, mut request) = (self.rank_of(set), self.over.tag, core::ptr::null_mut());
        let (setup, start, bytes) = (self.setup(), self.place(), self.calls[0].bytes);
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

    fn is_here(&mut self, _: Place, set: u32, side: Side) -> bool {
        let asked = self.over.asked.filter(|asked| asked.0 == set);
        let request = match asked {
            Some((_, request)) => request,
            None => {
                let (from, tag, bytes) = (self.rank_of(set), self.over.tag, self.calls[0].bytes);
                let start = if side == Side::Instead {
                    self.place()
                } else {
                    let incoming = &mut self.over.incoming;
                    incoming.resize(incoming.len().max(bytes as usize), 0);
                    incoming.as_mut_ptr()
                };
                let (setup, mut request) = (self.setup(), core::ptr::null_mut());
                // SAFETY: as in `send`; nobody else uses that memory until it is here.
                let code =
                    unsafe { (setup.receive)(setup.comm, from, tag, start, bytes, &mut request) };
                self.note(code);
                self.over.asked = Some((set, request));
                request
            }
        };
        if request.is_null() {
            return true;
        }
        let Some(code) = self.test(request) else { return false };
        self.note(code);
        self.over.asked = Some((set, core::ptr::null_mut()));
        true
    }

    fn take_from(&mut self, _: Place, _: u32, side: Side) {
        self.over.asked = None;
        let call = &self.calls[0];
        let (place, came) = (self.place(), self.over.incoming.as_mut_ptr());
        let elements = call.bytes / call.element.max(1);
        if elements == 0 || side == Side::Instead {
            return;
        }
        let (fold, op, datatype) = (self.setup().fold, call.op, call.datatype);
        if side == Side::Left {
            // SAFETY: both hold so many elements of the call's type.
            unsafe { fold(op, datatype, came, place, place, elements) };
            return;
        }
        // SAFETY: as above. What is right may be the result, what is left not.
        unsafe { fold(op, datatype, place, came, came, elements) };
        // SAFETY: as above.
        unsafe { copy(came, place, call.bytes) };
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
