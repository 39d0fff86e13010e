//! A communicator whose collectives are ours.

use crate::engine::collectives::room::Room;
use crate::engine::shared::shared;
use crate::ffi::collective::{CollectiveCall, CollectiveSetup};
use crate::ffi::table::{DONE, FAILED};
use crate::mpi::collectives::data::Data;
use crate::mpi::collectives::messages::Messages;
use crate::mpi::collectives::over_sets::{self, Crossed, OverSets};
use crate::mpi::collectives::setup;
use crate::progress::wait;
use rustbtl_collectives::member::Member;
use rustbtl_collectives::over_sets::Crossing;
use rustbtl_collectives::plan::{Call, Kind, Plan};
use rustbtl_collectives::sets::Sets;
use rustbtl_collectives::shape::Shape;
use std::sync::Arc;

/// Calls before memory is made, which takes as long as some hundred calls by messages:
/// communicators that live shorter need none.
const CALLS_WITHOUT_MEMORY: u32 = 64;
/// So often it is tried.
const ATTEMPTS: u32 = 3;
/// Between two looks at messages, where calls need none.
const CALLS_WITHOUT_PROGRESS: u32 = 32;

/// See the module's documentation.
#[derive(Debug)]
pub struct Group {
    /// Rank and size are those among the members of the own set.
    pub setup: CollectiveSetup,
    /// Its members are of several sets.
    over: Option<OverSets>,
    pub room: Arc<Room>,
    member: Member,
    messages: Messages,
    own: Vec<u8>,
    finished: u64,
    /// Calls until something else is to be done.
    left: u32,
    attempts: u32,
}

impl Group {
    pub fn new(mut setup: CollectiveSetup, sets: Option<Sets>) -> Self {
        let mut ranks: Box<[u32]> = (0..setup.size).collect();
        let over = sets.map(|sets| OverSets::new(sets, setup.rank));
        if let Some(OverSets { sets, .. }) = &over {
            ranks = sets.members(sets.of(setup.rank)).into();
            (setup.rank, setup.size) = (sets.place(setup.rank), ranks.len() as u32);
        }
        let room = Arc::new(Room::new(setup.size));
        shared().enter().collectives.rooms.push(Arc::clone(&room));
        Self {
            setup,
            over,
            room,
            member: Member::new(setup.rank, setup.size),
            messages: Messages::new(ranks),
            own: Vec::new(),
            finished: 0,
            left: CALLS_WITHOUT_MEMORY,
            attempts: ATTEMPTS,
        }
    }

    /// Members of the own set.
    pub fn size(&self) -> u32 {
        self.setup.size
    }

    /// A call of members of several sets, as this one takes part in it.
    pub fn shape(&self, of: Call, call: &CollectiveCall) -> Option<Shape> {
        self.over.as_ref()?.shape(of, call)
    }

    /// Are they of several sets?
    #[inline]
    pub fn is_over_sets(&self) -> bool {
        self.over.is_some()
    }

    /// That call.
    pub fn cross(&mut self, shape: Shape, call: &CollectiveCall) -> i32 {
        self.prepare();
        let Self { setup, over, room, member, messages, own, finished, .. } = self;
        let Some(over) = over else { return FAILED };
        // SAFETY: C's function and what belongs to it.
        if !call.packs.is_null() && unsafe { (setup.pack)(call.packs) } != DONE {
            messages.failed = true;
        }
        let places = over.begin(&shape, call);
        let inside = places.inside(&shape, call);
        let data = Data { setup, room, messages, call: &inside[0], own, finished };
        let mut crossed = Crossed { data, over, call, shape: &shape, places, inside: &inside };
        let mut crossing = Crossing::new(&shape);
        if !crossing.advance(member, &mut crossed) {
            let mut advance = || crossing.advance(member, &mut crossed);
            over_sets::wait(shape.stands_for_set(), &mut advance);
        }
        let outcome = crossed.outcome();
        if room.carrier.is_messages() {
            // SAFETY: C has made the setup of a communicator that is in use.
            wait::wait_long_for_memory(shared(), &mut || unsafe { messages.are_sent(setup) });
        }
        if messages.failed { FAILED } else { outcome }
    }

    /// One call of the program.
    #[inline]
    pub fn call(&mut self, plan: &Plan, call: &CollectiveCall) -> i32 {
        self.prepare();
        self.run(plan, call)
    }

    /// Before each call of the program.
    #[inline]
    pub fn prepare(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.seldom();
        }
    }

    #[cold]
    #[inline(never)]
    fn seldom(&mut self) {
        self.left = CALLS_WITHOUT_PROGRESS;
        if self.room.start().is_null() && self.attempts > 0 && self.size() > 1 {
            self.attempts -= 1;
            setup::share_memory(self);
        }
        wait::look(shared());
    }

    /// One call, whoever it is of.
    #[inline]
    pub fn run(&mut self, plan: &Plan, call: &CollectiveCall) -> i32 {
        let Self { setup, room, member, messages, own, finished, .. } = self;
        // SAFETY: C's function and what belongs to it.
        if !call.packs.is_null() && unsafe { (setup.pack)(call.packs) } != DONE {
            messages.failed = true;
        }
        if !call.gives.is_null() {
            copy_own(plan, call, setup.rank);
        } else if let Some((from, into)) = plan.own_block(setup.rank)
            && !core::ptr::eq(call.from, call.into)
        {
            let (from, into) = (call.from.wrapping_add(from as usize), into as usize);
            let bytes = plan.call.bytes as usize;
            // SAFETY: the block lies inside the call's data, and inside its result.
            unsafe { core::ptr::copy(from, call.into.wrapping_add(into), bytes) };
        }
        let mut data = Data { setup, room, messages, call, own, finished };
        let by_messages = room.carrier.is_messages();
        if !member.advance(plan, &mut data) {
            let mut over = || member.advance(plan, &mut data);
            match by_messages {
                true => wait::wait_long_for_memory(shared(), &mut over),
                false => wait::wait_for_memory(shared(), over),
            }
        }
        if room.carrier.is_messages() {
            // SAFETY: C has made the setup of a communicator that is in use.
            wait::wait_long_for_memory(shared(), &mut || unsafe { messages.are_sent(setup) });
        }
        if messages.failed { FAILED } else { DONE }
    }

    /// A short call of bytes that the program knows nothing of.
    pub fn run_own(&mut self, kind: Kind, root: u32, from: &[u8], into: &mut [u8]) -> bool {
        let bytes = from.len() as u64;
        let of = Call { kind, size: self.size(), root, bytes, element: 1 };
        let Some(plan) = Plan::new(of) else { return false };
        let call = CollectiveCall {
            from: from.as_ptr(),
            into: into.as_mut_ptr(),
            bytes,
            element: 1,
            op: core::ptr::null_mut(),
            datatype: core::ptr::null_mut(),
            gives: core::ptr::null(),
            gets: core::ptr::null(),
            packs: core::ptr::null_mut(),
            kind: 0,
            root: 0,
            tag: 0,
            commutes: 0,
        };
        self.run(&plan, &call) == DONE
    }

    /// How long the longest block is, of those of all members.
    pub fn longest(&mut self, kind: Kind, root: u32, own: u64) -> Option<u64> {
        const WORD: usize = size_of::<u64>();
        let own = own.to_ne_bytes();
        let mut all = own.to_vec();
        if kind == Kind::Allgather {
            all.resize(WORD * self.size() as usize, 0);
        }
        let well = self.run_own(kind, root, &own, &mut all);
        let words = all.as_chunks::<WORD>().0.iter();
        words.map(|&word| u64::from_ne_bytes(word)).max().filter(|_| well)
    }
}

/// Where blocks vary, what a member gives itself.
fn copy_own(plan: &Plan, call: &CollectiveCall, me: u32) {
    if !plan.copies_own(me) {
        return;
    }
    let (from, into) = (plan.gives_to(me) as usize, plan.gets_from(me) as usize);
    // SAFETY: who copies one of itself has it.
    let from = unsafe { *call.gives.wrapping_add(from) };
    // SAFETY: as above.
    let into = unsafe { *call.gets.wrapping_add(into) };
    if !core::ptr::eq(from.start, into.start) {
        let bytes = from.bytes.min(into.bytes) as usize;
        // SAFETY: both are that long.
        unsafe { core::ptr::copy(from.start.cast_const(), into.start, bytes) };
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        setup::drop_memory(self);
        let mut driver = shared().enter();
        driver.collectives.rooms.retain(|room| !Arc::ptr_eq(room, &self.room));
    }
}
