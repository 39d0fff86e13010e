//! A communicator whose collectives are ours.

use crate::engine::collectives::room::Room;
use crate::engine::shared::shared;
use crate::ffi::collective::{CollectiveCall, CollectiveSetup};
use crate::ffi::table::{DONE, FAILED};
use crate::mpi::collectives::data::Data;
use crate::mpi::collectives::messages::Messages;
use crate::mpi::collectives::setup;
use crate::progress::wait;
use rustbtl_collectives::member::Member;
use rustbtl_collectives::plan::Plan;
use std::sync::Arc;

/// Calls before memory is made: communicators that live shorter need none.
const CALLS_WITHOUT_MEMORY: u32 = 8;
/// So often it is tried.
const ATTEMPTS: u32 = 3;
/// Between two looks at messages, where calls need none.
const CALLS_WITHOUT_PROGRESS: u32 = 32;

/// See the module's documentation.
#[derive(Debug)]
pub struct Group {
    pub setup: CollectiveSetup,
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
    pub fn new(setup: CollectiveSetup) -> Self {
        let room = Arc::new(Room::new(setup.size));
        shared().enter().collectives.rooms.push(Arc::clone(&room));
        Self {
            setup,
            room,
            member: Member::new(setup.rank, setup.size),
            messages: Messages::default(),
            own: Vec::new(),
            finished: 0,
            left: CALLS_WITHOUT_MEMORY,
            attempts: ATTEMPTS,
        }
    }

    pub fn size(&self) -> u32 {
        self.setup.size
    }

    /// One call of the program.
    #[inline]
    pub fn call(&mut self, plan: &Plan, call: &CollectiveCall) -> i32 {
        self.left -= 1;
        if self.left == 0 {
            self.seldom();
        }
        self.run(plan, call)
    }

    #[cold]
    #[inline(never)]
    fn seldom(&mut self) {
        self.left = CALLS_WITHOUT_PROGRESS;
        if self.room.start().is_null() && self.attempts > 0 {
            self.attempts -= 1;
            setup::share_memory(self);
        }
        wait::look(shared());
    }

    /// One call, whoever it is of.
    #[inline]
    pub fn run(&mut self, plan: &Plan, call: &CollectiveCall) -> i32 {
        let Self { setup, room, member, messages, own, finished, .. } = self;
        if let Some((from, into)) = plan.own_block(setup.rank)
            && !core::ptr::eq(call.from, call.into)
        {
            let (from, into) = (call.from.wrapping_add(from as usize), into as usize);
            let bytes = plan.call.bytes as usize;
            // SAFETY: the block lies inside the call's data, and inside its result.
            unsafe { core::ptr::copy(from, call.into.wrapping_add(into), bytes) };
        }
        let mut data = Data { setup, room, messages, call, own, finished };
        if !member.advance(plan, &mut data) {
            wait::wait_for_memory(shared(), || member.advance(plan, &mut data));
        }
        if room.carrier.is_messages() {
            // SAFETY: C has made the setup of a communicator that is in use.
            wait::wait_for_memory(shared(), || unsafe { messages.are_sent(setup) });
        }
        if messages.failed { FAILED } else { DONE }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        setup::drop_memory(self);
        let mut driver = shared().enter();
        driver.collectives.rooms.retain(|room| !Arc::ptr_eq(room, &self.room));
    }
}
