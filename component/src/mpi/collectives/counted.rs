//! Collectives of components that bypass the engine, as C counts them (`glue_clock.h`,
//! docs/adr/0038).

use crate::engine::counting::BYPASSES;
use crate::engine::shared::{EngineGuard, Shared, is_installed, shared};
use crate::mpi::collectives::rustbtl_collective_begins;
use crate::progress::wait;
use crate::sync::checkpoint_signals;
use core::cell::Cell;
use core::ffi::c_void;
use core::sync::atomic::Ordering;
use rustbtl_coordination::collective_clock::{Call, CommHandle, Entry};
use rustbtl_fragments::host::Host;
use rustbtl_fragments::ids::{CommRank, PeerId};

/// `rustbtl_clock_register`: they are not to be used.
const NOT_COUNTED: u32 = u32::MAX;
/// Tests: count, and do not drain.
const NO_DRAIN: &str = "RUSTBTL_NO_COLLECTIVE_DRAIN";

thread_local! {
    /// Calls that this thread is in, where the program has several.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A communicator whose collectives bypass the engine is being made: what its calls are counted by,
/// or [`NOT_COUNTED`]. The same at all members.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_clock_register(comm: *mut c_void, size: u32, context: u32) -> u32 {
    if !is_installed() {
        return NOT_COUNTED;
    }
    let mut driver = shared().enter();
    let handle = register(&mut driver, comm, size, context);
    shared().deliver(driver);
    handle.map_or(NOT_COUNTED, |handle| handle.0)
}

fn register(
    driver: &mut EngineGuard,
    comm: *mut c_void,
    size: u32,
    context: u32,
) -> Option<CommHandle> {
    if !driver.counting.counts {
        return None;
    }
    let member = |rank| driver.host.resolve(comm as u64, CommRank(rank));
    let members: Vec<PeerId> = (0..size).map(member).collect();
    let job = driver.host.peers.size();
    if members.iter().any(|peer| peer.0 >= job) {
        // A job that was spawned takes part in no checkpoint of this one.
        return None;
    }
    let handle = driver.counting.register(&members, context)?;
    if std::env::var_os(NO_DRAIN).is_none() {
        driver.counting.is_used = true;
        // [bypass] it is registered.
        BYPASSES.store(true, Ordering::Release);
        checkpoint_signals::wake();
    }
    Some(handle)
}

/// A function of a component that bypasses the engine stays, although nothing can take its place.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_clock_uncovered() {
    if is_installed() {
        shared().enter().counting.is_uncovered = true;
    }
}

fn depth(shared: &Shared, driver: &mut EngineGuard, change: i32) -> u32 {
    if shared.threads {
        DEPTH.with(|depth| depth.replace(depth.get().wrapping_add_signed(change)))
    } else {
        let before = driver.counting.depth;
        driver.counting.depth = before.wrapping_add_signed(change);
        before
    }
}

/// A call is about to go past the engine. 1: it is counted, and `rustbtl_clock_leave` follows; 0:
/// the functions below are to be used, now and ever.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_clock_enter(handle: u32, tag: i32) -> i32 {
    // What the library sends in its place after a restart is an action, too.
    rustbtl_collective_begins(tag);
    let shared = shared();
    let mut driver = shared.enter();
    if !driver.counting.counts {
        return 0;
    }
    let call = if depth(shared, &mut driver, 1) > 0 { Call::Nested } else { Call::Program };
    let Some(clock) = &mut driver.counting.clock else { return 0 };
    match clock.enter(CommHandle(handle), call) {
        Entry::Go => {
            if clock.is_draining() {
                driver.counting.flush();
            }
            1
        }
        Entry::Stop(stop) => stopped(shared, driver, stop),
    }
}

#[cold]
fn stopped(shared: &'static Shared, mut driver: EngineGuard, stop: u32) -> i32 {
    driver.counting.stopped += 1;
    driver.counting.flush();
    drop(driver);
    wait::wait_until(shared, |driver| {
        if !driver.counting.counts {
            depth(shared, driver, -1);
            return Some(0);
        }
        (driver.counting.gone >= stop).then(|| {
            driver.counting.stopped -= 1;
            1
        })
    })
}

/// It has returned.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_clock_leave() {
    let shared = shared();
    let mut driver = shared.enter();
    depth(shared, &mut driver, -1);
    let Some(clock) = &mut driver.counting.clock else { return };
    clock.leave();
    if clock.is_draining() {
        driver.counting.flush();
    }
}
