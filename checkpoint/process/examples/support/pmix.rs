//! Keeps an MPI process alive when its PMIx server is lost, as the component does: FACTS-image §4.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

const LOST_CONNECTION: c_int = -61;
const ACTION_COMPLETE: c_int = -334;

type Done =
    extern "C" fn(c_int, *mut c_void, usize, *mut c_void, *mut c_void, notification: *mut c_void);
type Register = extern "C" fn(
    *const c_int,
    usize,
    *mut c_void,
    usize,
    *const c_void,
    *const c_void,
    *mut c_void,
) -> c_int;

/// A handler of one code runs before the default ones, and ends the chain.
extern "C" fn on_loss(
    _: usize,
    _: c_int,
    _: *const c_void,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: usize,
    done: Option<Done>,
    data: *mut c_void,
) {
    if let Some(done) = done {
        done(ACTION_COMPLETE, null_mut(), 0, null_mut(), null_mut(), data);
    }
}

extern "C" fn registered(_: c_int, _: usize, _: *mut c_void) {}

/// Does nothing in a program without PMIx.
pub fn survive_loss() {
    let flags = libc::RTLD_NOLOAD | libc::RTLD_NOW;
    // SAFETY: only looks for a library that is there.
    let library = unsafe { libc::dlopen(c"libpmix.so.2".as_ptr(), flags) };
    if library.is_null() {
        return;
    }
    // SAFETY: looks up a name.
    let found = unsafe { libc::dlsym(library, c"PMIx_Register_event_handler".as_ptr()) };
    if found.is_null() {
        return;
    }
    // SAFETY: that is its type.
    let register = unsafe { std::mem::transmute::<*mut c_void, Register>(found) };
    let (handler, done) = (on_loss as *const c_void, registered as *const c_void);
    register(&LOST_CONNECTION, 1, null_mut(), 0, handler, done, null_mut());
    std::thread::sleep(std::time::Duration::from_millis(100));
}
