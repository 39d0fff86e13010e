//! Windows are made and freed; memory is attached to dynamic ones.

use crate::determinants::set_order::{SLOW_PATH, WINDOWS};
use crate::engine::detached_sends;
use crate::engine::shared::shared;
use crate::ffi::table::{FAILED, WindowSetup};
use crate::mpi::one_sided::{call, code};
use core::sync::atomic::Ordering;
use rustbtl_fragments::ids::{CommId, CommRank, ContextId};
use rustbtl_rma::window::{Extent, Flavor, Setup};

const CREATE: u32 = 1;
const ALLOCATE: u32 = 2;
const DYNAMIC: u32 = 3;

/// A window is made. `window`: its name.
///
/// # Safety
/// `setup` is null or as glue.h says; `window` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_window_make(setup: *const WindowSetup, window: *mut u32) -> i32 {
    // SAFETY: the caller's promise.
    let Some(setup) = (unsafe { setup.as_ref() }) else { return FAILED };
    let size = setup.size as usize;
    // SAFETY: of as many as the communicator has ranks.
    let bytes = unsafe { core::slice::from_raw_parts(setup.bytes, size) };
    // SAFETY: the same.
    let units = unsafe { core::slice::from_raw_parts(setup.units, size) };
    let extents = bytes.iter().zip(units).map(|(&bytes, &unit)| Extent { bytes, unit }).collect();
    let flavor = match setup.flavor {
        CREATE => Flavor::Create,
        ALLOCATE => Flavor::Allocate,
        DYNAMIC => Flavor::Dynamic,
        _ => Flavor::Shared,
    };
    let (me, no_locks) = (CommRank(setup.rank), setup.no_locks != 0);
    let made = Setup { flavor, me, base: setup.base as u64, extents, no_locks };
    let shared = shared();
    let mut driver = shared.enter();
    let comm = CommId(setup.comm);
    let name = driver.engine.name_of(comm);
    let result = driver.host.windows.rma.create(name, made);
    if result.is_ok() {
        driver.host.windows.comms.insert(name, comm);
        if setup.size > 1 && !no_locks {
            driver.host.windows.served.insert(name);
            detached_sends::update(&driver);
        }
        driver.publish_window(name, setup.size);
        SLOW_PATH.store(SLOW_PATH.load(Ordering::Relaxed) | WINDOWS, Ordering::Relaxed);
    }
    driver.progress_windows();
    driver.update_slow_path();
    shared.deliver(driver);
    // SAFETY: null or writable.
    if let Some(window) = unsafe { window.as_mut() } {
        *window = name.0;
    }
    code(result)
}

/// All ranks have made the window: memory of neighbours is mapped. `shared`: null, or where the
/// program has mapped each rank's memory.
///
/// # Safety
/// `shared` is null or has an address for each of `size` ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_window_map(window: u32, shared: *const *mut u8, size: u32) {
    let shared = match shared.is_null() {
        true => None,
        // SAFETY: the caller's promise.
        false => Some(unsafe { core::slice::from_raw_parts(shared, size as usize) }),
    };
    map(ContextId(window), shared);
}

fn map(window: ContextId, addresses: Option<&[*mut u8]>) {
    shared().enter().map_window(window, addresses);
}

/// Memory for a window, which neighbours may map if `is_for_all` and there are any; null: there is
/// none. Its address is the same in a replay (`os::places`).
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_window_memory_own(bytes: u64, is_for_all: i32) -> *mut u8 {
    let mut driver = shared().enter();
    let is_for_all = is_for_all != 0 && driver.has_neighbours();
    let mapped = &mut driver.host.windows.mapped;
    let shared = if is_for_all { mapped.make(bytes as usize).ok() } else { None };
    let made = shared.or_else(|| mapped.make_private(bytes as usize).ok());
    made.unwrap_or(core::ptr::null_mut())
}

/// It is not used any more.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_window_memory_disown(memory: *mut u8) {
    shared().enter().host.windows.mapped.drop_own(memory);
}

/// May it be freed? To be asked before the barrier of MPI_Win_free.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_window_may_free(window: u32) -> i32 {
    call(|driver| code(driver.host.windows.rma.may_free(ContextId(window))))
}

/// It is freed: all have passed that barrier.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_window_free(window: u32) -> i32 {
    let window = ContextId(window);
    call(|driver| {
        driver.progress_windows();
        driver.withdraw_window(window);
        let result = driver.host.windows.rma.free(window);
        if result.is_ok() {
            driver.host.windows.comms.remove(&window);
            driver.host.windows.served.remove(&window);
            driver.host.windows.mapped.unmap(window);
        }
        driver.update_slow_path();
        code(result)
    })
}

/// MPI_Win_attach.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_window_attach(window: u32, base: *mut u8, bytes: u64) -> i32 {
    call(|driver| {
        code(driver.host.windows.rma.attach(ContextId(window), base as u64, bytes).map(|_| ()))
    })
}

/// MPI_Win_detach.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_window_detach(window: u32, base: *const u8) -> i32 {
    call(|driver| code(driver.host.windows.rma.detach(ContextId(window), base as u64).map(|_| ())))
}
