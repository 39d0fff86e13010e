//! Whether files are there: of files that are held (`held`) that is known again when they have been
//! written again. Asked behind the call, which is made again then.

use crate::files::functions::{Function, stock};
use crate::files::held;
use core::ffi::{c_char, c_int, c_uint};
use libc::{stat, statx};

static STAT: Function = Function::of(&[c"stat", c"stat64"]);
static LSTAT: Function = Function::of(&[c"lstat", c"lstat64"]);
static FSTATAT: Function = Function::of(&[c"fstatat", c"fstatat64"]);
static STATX: Function = Function::of(&[c"statx"]);
/// Before glibc 2.33.
static XSTAT: Function = Function::of(&[c"__xstat", c"__xstat64"]);
static LXSTAT: Function = Function::of(&[c"__lxstat", c"__lxstat64"]);
static FXSTATAT: Function = Function::of(&[c"__fxstatat", c"__fxstatat64"]);
static ACCESS: Function = Function::of(&[c"access"]);
static FACCESSAT: Function = Function::of(&[c"faccessat"]);
static EACCESS: Function = Function::of(&[c"eaccess", c"euidaccess"]);
static REALPATH: Function = Function::of(&[c"realpath"]);
static REAL_PATH_CHECKED: Function = Function::of(&[c"__realpath_chk"]);

const HERE: c_int = libc::AT_FDCWD;

/// All of them, and the addresses of ours.
pub fn functions() -> Vec<(&'static Function, usize)> {
    [
        (&STAT, status as *const ()),
        (&LSTAT, status_of_link as *const ()),
        (&FSTATAT, status_at as *const ()),
        (&STATX, extended_status as *const ()),
        (&XSTAT, old_status as *const ()),
        (&LXSTAT, old_status_of_link as *const ()),
        (&FXSTATAT, old_status_at as *const ()),
        (&ACCESS, access as *const ()),
        (&FACCESSAT, access_at as *const ()),
        (&EACCESS, access_as_user as *const ()),
        (&REALPATH, real_path as *const ()),
        (&REAL_PATH_CHECKED, real_path_checked as *const ()),
    ]
    .map(|(function, own)| (function, own.expose_provenance()))
    .to_vec()
}

/// Asks until what it names is not held.
///
/// # Safety
/// Null or a C string.
unsafe fn asked<T>(folder: c_int, path: *const c_char, ask: impl Fn() -> T) -> T {
    loop {
        let answer = ask();
        // SAFETY: the caller's promise.
        if !unsafe { held::waited_for(folder, path, held::wait) } {
            return answer;
        }
    }
}

unsafe extern "C" fn status(path: *const c_char, found: *mut stat) -> c_int {
    let ask = || stock!(STAT(path => *const c_char, found => *mut stat) -> c_int);
    // SAFETY: the caller's promise.
    unsafe { asked(HERE, path, ask) }
}

unsafe extern "C" fn status_of_link(path: *const c_char, found: *mut stat) -> c_int {
    let ask = || stock!(LSTAT(path => *const c_char, found => *mut stat) -> c_int);
    // SAFETY: the caller's promise.
    unsafe { asked(HERE, path, ask) }
}

unsafe extern "C" fn status_at(
    folder: c_int,
    path: *const c_char,
    found: *mut stat,
    flags: c_int,
) -> c_int {
    let ask = || {
        stock!(FSTATAT(
            folder => c_int, path => *const c_char, found => *mut stat, flags => c_int
        ) -> c_int)
    };
    // SAFETY: the caller's promise.
    unsafe { asked(folder, path, ask) }
}

unsafe extern "C" fn extended_status(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    found: *mut statx,
) -> c_int {
    let ask = || {
        stock!(STATX(
            folder => c_int, path => *const c_char, flags => c_int, mask => c_uint,
            found => *mut statx
        ) -> c_int)
    };
    // SAFETY: the caller's promise.
    unsafe { asked(folder, path, ask) }
}

unsafe extern "C" fn old_status(version: c_int, path: *const c_char, found: *mut stat) -> c_int {
    let ask =
        || stock!(XSTAT(version => c_int, path => *const c_char, found => *mut stat) -> c_int);
    // SAFETY: the caller's promise.
    unsafe { asked(HERE, path, ask) }
}

unsafe extern "C" fn old_status_of_link(
    version: c_int,
    path: *const c_char,
    found: *mut stat,
) -> c_int {
    let ask =
        || stock!(LXSTAT(version => c_int, path => *const c_char, found => *mut stat) -> c_int);
    // SAFETY: the caller's promise.
    unsafe { asked(HERE, path, ask) }
}

unsafe extern "C" fn old_status_at(
    version: c_int,
    folder: c_int,
    path: *const c_char,
    found: *mut stat,
    flags: c_int,
) -> c_int {
    let ask = || {
        stock!(FXSTATAT(
            version => c_int, folder => c_int, path => *const c_char, found => *mut stat,
            flags => c_int
        ) -> c_int)
    };
    // SAFETY: the caller's promise.
    unsafe { asked(folder, path, ask) }
}

unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    let ask = || stock!(ACCESS(path => *const c_char, mode => c_int) -> c_int);
    // SAFETY: the caller's promise.
    unsafe { asked(HERE, path, ask) }
}

unsafe extern "C" fn access_at(
    folder: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    let ask = || {
        stock!(FACCESSAT(
            folder => c_int, path => *const c_char, mode => c_int, flags => c_int
        ) -> c_int)
    };
    // SAFETY: the caller's promise.
    unsafe { asked(folder, path, ask) }
}

unsafe extern "C" fn access_as_user(path: *const c_char, mode: c_int) -> c_int {
    let ask = || stock!(EACCESS(path => *const c_char, mode => c_int) -> c_int);
    // SAFETY: the caller's promise.
    unsafe { asked(HERE, path, ask) }
}

/// It has no path if it is not there. What was allocated for an answer that does not count is lost:
/// a path, and only where something was waited for.
unsafe extern "C" fn real_path(path: *const c_char, to: *mut c_char) -> *mut c_char {
    let ask = || stock!(REALPATH(path => *const c_char, to => *mut c_char) -> *mut c_char);
    // SAFETY: the caller's promise.
    unsafe { asked(HERE, path, ask) }
}

unsafe extern "C" fn real_path_checked(
    path: *const c_char,
    to: *mut c_char,
    bytes: usize,
) -> *mut c_char {
    let ask = || {
        stock!(REAL_PATH_CHECKED(
            path => *const c_char, to => *mut c_char, bytes => usize
        ) -> *mut c_char)
    };
    // SAFETY: the caller's promise.
    unsafe { asked(HERE, path, ask) }
}
