//! Collectives of the ranks of one set, and of several, as C calls them (`glue.h`, docs/adr/0040,
//! 0041). What is done in
//! which order is `rustbtl_collectives`; here are memory, messages and waiting.

mod counted;
mod data;
mod group;
mod messages;
mod over_sets;
mod setup;

use crate::determinants::set_order::{SLOW_PATH, WINDOWS};
use crate::engine::shared::{is_installed, shared};
use crate::ffi::collective::{CollectiveCall, CollectiveSetup};
use crate::ffi::table::{DONE, FAILED};
use crate::mpi::collectives::group::Group;
use crate::progress::wait;
use core::ffi::c_void;
use core::sync::atomic::Ordering;
use rustbtl_collectives::plan::{Call, Kind, Plan};
use rustbtl_collectives::sets::Sets;
use rustbtl_fragments::host::Host;
use rustbtl_fragments::ids::CommRank;

/// `rustbtl_collective`: the layer below has to do it. The same at all members.
const BELOW: i32 = -3;
/// `rustbtl_collectives_may`: none of them; all of them; those that go over several sets.
const NONE: i32 = 0;
const OF_SET: i32 = 1;
const OF_SETS: i32 = 2;

/// Which collectives of this communicator may be ours? See glue.h.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_collectives_may(comm: *mut c_void, size: u32, ranks_max: u32) -> i32 {
    if !is_installed() {
        return NONE;
    }
    match sets_of(comm, size, ranks_max) {
        None => NONE,
        Some(None) => OF_SET,
        Some(Some(_)) => OF_SETS,
    }
}

/// `None`: they are not ours; of several sets, or of one.
fn sets_of(comm: *mut c_void, size: u32, ranks_max: u32) -> Option<Option<Sets>> {
    let mut driver = shared().enter();
    let is_home = size as usize <= driver.collectives.home.len()
        && (0..size).all(|rank| {
            let peer = driver.host.resolve(comm as u64, CommRank(rank));
            driver.collectives.home.binary_search(&peer).is_ok()
        });
    let sets = match is_home {
        true => (size <= ranks_max).then_some(None),
        false => over_sets::sets_of(&mut driver, comm as u64, size, ranks_max as usize).map(Some),
    };
    shared().deliver(driver);
    sets
}

/// A communicator whose collectives are ours; null: not to be had.
///
/// # Safety
/// `setup` is null or as glue.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_collectives_make(setup: *const CollectiveSetup) -> *mut c_void {
    // SAFETY: the caller's promise.
    let Some(setup) = (unsafe { setup.as_ref() }) else { return core::ptr::null_mut() };
    match sets_of(setup.comm, setup.size, setup.ranks_max) {
        None => core::ptr::null_mut(),
        Some(sets) => Box::into_raw(Box::new(Group::new(*setup, sets))).cast(),
    }
}

/// It is freed.
///
/// # Safety
/// `group` is null or comes from [`rustbtl_collectives_make`], and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_collectives_free(group: *mut c_void) {
    if !group.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(group.cast::<Group>()) });
    }
}

/// One collective. DONE, FAILED, or `BELOW`: nothing has happened.
///
/// # Safety
/// `group` comes from [`rustbtl_collectives_make`], and is used by one thread at a time; `call` is
/// as glue.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_collective(
    group: *mut c_void,
    call: *const CollectiveCall,
) -> i32 {
    // SAFETY: the caller's promise.
    let Some(group) = (unsafe { group.cast::<Group>().as_mut() }) else { return FAILED };
    // SAFETY: the caller's promise.
    let Some(call) = (unsafe { call.as_ref() }) else { return FAILED };
    let Some(&kind) = Kind::ALL.get(call.kind as usize) else { return FAILED };
    let (bytes, element) = (call.bytes, call.element.max(1));
    let of = Call { kind, size: group.size(), root: call.root, bytes, element };
    let windows = SLOW_PATH.load(Ordering::Relaxed) & WINDOWS != 0;
    if windows {
        shared().enter().host.windows.in_collective = true;
    }
    let outcome = match kind.longest_by() {
        _ if group.is_over_sets() => over(group, of, call),
        Some(by) => varying(group, of, by, call),
        None => inside(group, of, call),
    };
    if windows {
        shared().enter().host.windows.in_collective = false;
    }
    if outcome != BELOW && SLOW_PATH.load(Ordering::Relaxed) & WINDOWS != 0 {
        // Rule 3 of a replay. Only now: others need what this member does in the call.
        wait::wait_while_held(shared());
    }
    outcome
}

/// One whose members are of one set.
#[inline]
fn inside(group: &mut Group, of: Call, call: &CollectiveCall) -> i32 {
    let Some(plan) = Plan::new(of) else { return BELOW };
    if SLOW_PATH.load(Ordering::Relaxed) != 0 {
        act(call.tag);
    }
    if plan.steps() == 0 {
        // MPI may not even call it at the others.
        return DONE;
    }
    group.call(&plan, call)
}

/// One of a communicator of several sets.
fn over(group: &mut Group, of: Call, call: &CollectiveCall) -> i32 {
    let Some(shape) = group.shape(of, call) else { return BELOW };
    if SLOW_PATH.load(Ordering::Relaxed) != 0 {
        act(call.tag);
    }
    if shape.is_empty() {
        // MPI may not even call it at the others.
        return DONE;
    }
    group.cross(shape, call)
}

/// One of whose blocks not everybody knows all. Where it is for the layer below, all know that only
/// after they have told each other: that is an action of its own.
fn varying(group: &mut Group, of: Call, by: Kind, call: &CollectiveCall) -> i32 {
    if SLOW_PATH.load(Ordering::Relaxed) != 0 {
        act(call.tag);
    }
    group.prepare();
    let Some(bytes) = group.longest(by, of.root, of.bytes) else { return FAILED };
    Plan::new(Call { bytes, ..of }).map_or(BELOW, |plan| group.run(&plan, call))
}

/// A nonblocking one of Open MPI's begins, with the tag of a blocking one. Its messages count
/// nothing: most leave at some later moment.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_collective_begins(tag: i32) {
    if SLOW_PATH.load(Ordering::Relaxed) != 0 {
        act(tag);
    }
}

/// A collective is one action of the program, however its data travels, and posts what a replay has
/// put off, as a message does.
#[cold]
#[inline(never)]
fn act(tag: i32) {
    let mut driver = shared().enter();
    driver.post_late();
    driver.act(tag);
    shared().deliver(driver);
}
