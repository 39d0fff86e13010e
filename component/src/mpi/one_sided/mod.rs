//! One-sided communication as C calls it (`glue.h`): windows, accesses, synchronization. The
//! machine is `fragments/rma`; `engine/windows` connects it to the engine.
//!
//! Each call counts as an action of the program before it is done, and `progress_windows` follows
//! each call of the machine (its driver's contract, rules 2 and 3).

pub mod accesses;
pub mod layouts;
pub mod memory;
pub mod synchronize;
pub mod windows;

use crate::engine::driver_state::Driver;
use crate::engine::host::EngineHost;
use crate::engine::shared::shared;
use crate::ffi::table::ANY;
use crate::progress::wait::wait_while_held;
use rustbtl_fragments::ids::CommRank;
use rustbtl_rma::error::RmaError;

/// For C: 0, or the error's number on the wire (`enum rustbtl_rma`).
pub(crate) fn code(result: Result<(), RmaError>) -> i32 {
    result.map_or_else(|error| error.code().into(), |()| 0)
}

/// Call the machine: an action of the program, then what follows from it.
pub(crate) fn call<T>(call: impl FnOnce(&mut Driver) -> T) -> T {
    call_after(|driver| driver.act(ANY), call)
}

/// The same for an access to a window: it may share a message with others.
pub(crate) fn access<T>(call: impl FnOnce(&mut Driver) -> T) -> T {
    call_after(Driver::act_on_window, call)
}

/// The same for a synchronization that the program waits for: it shares a message with the accesses
/// before it.
pub(crate) fn synchronize<T>(call: impl FnOnce(&mut Driver) -> T) -> T {
    access(|driver| {
        let result = call(driver);
        driver.host.windows.rma.send_batches();
        result
    })
}

/// The short way of the machine, where nothing has to be heeded (`fragments/rma`'s
/// `machine::quick`). False: it was not gone, and nothing was counted.
#[inline(always)]
pub(crate) fn quickly(call: impl FnOnce(&mut EngineHost) -> bool) -> bool {
    let shared = shared();
    let mut driver = shared.enter();
    let done = driver.is_plain() && call(&mut driver.host);
    shared.deliver(driver);
    done
}

fn call_after<T>(act: impl FnOnce(&mut Driver), call: impl FnOnce(&mut Driver) -> T) -> T {
    let shared = shared();
    let mut driver = shared.enter();
    driver.post_late();
    act(&mut driver);
    let result = call(&mut driver);
    driver.progress_windows();
    let held = driver.host.windows.holds && !driver.host.windows.in_collective;
    shared.deliver(driver);
    if held {
        wait_while_held(shared);
    }
    result
}

/// Ranks that C gives.
///
/// # Safety
/// `ranks` is readable for `count`.
pub(crate) unsafe fn ranks_of(ranks: *const u32, count: u32) -> Vec<CommRank> {
    if count == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    let ranks = unsafe { core::slice::from_raw_parts(ranks, count as usize) };
    ranks.iter().copied().map(CommRank).collect()
}
