//! What a process is told of its node: the node's name, how many processors and how much memory it
//! has. One that was restored on another node is told what it would have been told where it was
//! started (docs/adr/0028): programs group their ranks by it, and the others know the groups.
//!
//! The C library's functions are called by way of us (`os::library_function`). Until a process is
//! restored they only pass calls on. What they give afterwards was read in MPI_Init, and is in the
//! image as all memory is: it does not matter how often, and to where, the process is moved.
//!
//! Not reached: /proc and /sys, and programs that the process starts. Who wants the node where the
//! process is now makes the system call ([`crate::os::process::host_name`]).
//!
//! Signal handlers may call these functions: nothing is allocated and no lock is taken in here.
//!
//! Invariant: before a restore every call returns what the C library returns.

use crate::os::library_function::{self, Function, stock};
use core::ffi::{CStr, c_char, c_int, c_long};
use libc::{size_t, utsname};
use rustbtl_process::freeze;
use std::sync::OnceLock;

/// The node on which the process was started.
struct Node {
    names: utsname,
    /// In the order of [`NUMBERS`].
    numbers: [c_long; NUMBERS.len()],
}

/// Of sysconf(3): what a program finds in the node, and does not change while it runs.
const NUMBERS: [c_int; 3] =
    [libc::_SC_NPROCESSORS_ONLN, libc::_SC_NPROCESSORS_CONF, libc::_SC_PHYS_PAGES];

static NODE: OnceLock<Node> = OnceLock::new();

static UNAME: Function = Function::of(&[c"uname"]);
static GETHOSTNAME: Function = Function::of(&[c"gethostname"]);
static GETHOSTNAME_CHK: Function = Function::of(&[c"__gethostname_chk"]);
static GETDOMAINNAME: Function = Function::of(&[c"getdomainname"]);
static GETDOMAINNAME_CHK: Function = Function::of(&[c"__getdomainname_chk"]);
static SYSCONF: Function = Function::of(&[c"sysconf"]);
static NPROCS: Function = Function::of(&[c"get_nprocs"]);
static NPROCS_CONF: Function = Function::of(&[c"get_nprocs_conf"]);
static PHYS_PAGES: Function = Function::of(&[c"get_phys_pages"]);

/// All of them, and the addresses of ours.
pub(super) fn functions() -> [(&'static Function, usize); 9] {
    [
        (&UNAME, uname as *const ()),
        (&GETHOSTNAME, gethostname as *const ()),
        (&GETHOSTNAME_CHK, gethostname_chk as *const ()),
        (&GETDOMAINNAME, getdomainname as *const ()),
        (&GETDOMAINNAME_CHK, getdomainname_chk as *const ()),
        (&SYSCONF, sysconf as *const ()),
        (&NPROCS, nprocs as *const ()),
        (&NPROCS_CONF, nprocs_conf as *const ()),
        (&PHYS_PAGES, phys_pages as *const ()),
    ]
    .map(|(function, own)| (function, own.expose_provenance()))
}

/// In MPI_Init: what the node is.
pub fn install() {
    NODE.get_or_init(|| Node {
        names: crate::os::process::names(),
        // SAFETY: no memory is passed.
        numbers: NUMBERS.map(|name| unsafe { libc::sysconf(name) }),
    });
    library_function::install(&functions());
}

/// The node that the process had, if it was restored.
fn known() -> Option<&'static Node> {
    #[cfg(test)]
    if tests::IS_RESTORED.get() {
        return NODE.get();
    }
    freeze::is_restored().then(|| NODE.get()).flatten()
}

/// The number that it had.
fn known_number(name: c_int) -> Option<c_long> {
    let index = NUMBERS.iter().position(|known| *known == name)?;
    Some(known()?.numbers[index])
}

unsafe extern "C" fn uname(to: *mut utsname) -> c_int {
    match known() {
        Some(node) if !to.is_null() => {
            // SAFETY: the caller's promise.
            unsafe { to.write(node.names) };
            0
        }
        _ => stock!(UNAME(to => *mut utsname) -> c_int),
    }
}

/// Copies a name, its 0 included, as far as there is room. Is there room for all?
///
/// # Safety
/// `to` is writable for `bytes`; the name ends with 0.
unsafe fn copy(name: &[c_char], to: *mut c_char, bytes: size_t) -> bool {
    // SAFETY: the caller's promise.
    let all = unsafe { CStr::from_ptr(name.as_ptr()) }.count_bytes() + 1;
    // SAFETY: inside both; the program cannot have the address of ours.
    unsafe { core::ptr::copy_nonoverlapping(name.as_ptr(), to, all.min(bytes)) };
    all <= bytes
}

unsafe extern "C" fn gethostname(to: *mut c_char, bytes: size_t) -> c_int {
    let Some(node) = known() else {
        return stock!(GETHOSTNAME(to => *mut c_char, bytes => size_t) -> c_int);
    };
    // SAFETY: the caller's promise; the kernel ends names with 0.
    if unsafe { copy(&node.names.nodename, to, bytes) } {
        return 0;
    }
    // SAFETY: no arguments.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: this thread's own.
    unsafe { errno.write(libc::ENAMETOOLONG) };
    -1
}

/// `room`: bytes that the compiler knows of.
unsafe extern "C" fn gethostname_chk(to: *mut c_char, bytes: size_t, room: size_t) -> c_int {
    if known().is_some() && bytes <= room {
        // SAFETY: the caller's promise.
        return unsafe { gethostname(to, bytes) };
    }
    stock!(GETHOSTNAME_CHK(to => *mut c_char, bytes => size_t, room => size_t) -> c_int)
}

unsafe extern "C" fn getdomainname(to: *mut c_char, bytes: size_t) -> c_int {
    let Some(node) = known() else {
        return stock!(GETDOMAINNAME(to => *mut c_char, bytes => size_t) -> c_int);
    };
    // As the C library, which does not report one that was cut off.
    // SAFETY: the caller's promise; the kernel ends names with 0.
    unsafe { copy(&node.names.domainname, to, bytes) };
    0
}

unsafe extern "C" fn getdomainname_chk(to: *mut c_char, bytes: size_t, room: size_t) -> c_int {
    if known().is_some() && bytes <= room {
        // SAFETY: the caller's promise.
        return unsafe { getdomainname(to, bytes) };
    }
    stock!(GETDOMAINNAME_CHK(to => *mut c_char, bytes => size_t, room => size_t) -> c_int)
}

extern "C" fn sysconf(name: c_int) -> c_long {
    known_number(name).unwrap_or_else(|| stock!(SYSCONF(name => c_int) -> c_long))
}

extern "C" fn nprocs() -> c_int {
    let known = known_number(libc::_SC_NPROCESSORS_ONLN);
    known.map_or_else(|| stock!(NPROCS() -> c_int), |number| number as c_int)
}

extern "C" fn nprocs_conf() -> c_int {
    let known = known_number(libc::_SC_NPROCESSORS_CONF);
    known.map_or_else(|| stock!(NPROCS_CONF() -> c_int), |number| number as c_int)
}

extern "C" fn phys_pages() -> c_long {
    known_number(libc::_SC_PHYS_PAGES).unwrap_or_else(|| stock!(PHYS_PAGES() -> c_long))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use rustbtl_process::freeze::got::Objects;

    thread_local! {
        pub static IS_RESTORED: Cell<bool> = const { Cell::new(false) };
    }

    fn name(of: &[c_char]) -> &CStr {
        // SAFETY: the names here end with 0.
        unsafe { CStr::from_ptr(of.as_ptr()) }
    }

    /// A name as it is asked for with so many bytes of room.
    fn host_name(bytes: usize) -> (c_int, [c_char; 300]) {
        let mut text = [0x7f; 300];
        // SAFETY: writable.
        (unsafe { gethostname(text.as_mut_ptr(), bytes) }, text)
    }

    fn numbers() -> (c_int, c_int, c_long, c_long) {
        (nprocs(), nprocs_conf(), phys_pages(), sysconf(libc::_SC_NPROCESSORS_ONLN))
    }

    #[test]
    fn a_process_is_told_of_the_node_where_it_was_started_once_it_is_restored() {
        let here = crate::os::process::names();
        let mut names = here;
        let there = c"far-away.cluster";
        for (to, from) in names.nodename.iter_mut().zip(there.to_bytes_with_nul()) {
            *to = *from as c_char;
        }
        // No other test makes it: 77 processors, of which 66 are online.
        assert!(NODE.set(Node { names, numbers: [66, 77, 55] }).is_ok());
        install();
        library_function::redirect(&functions(), &[Objects::default()]);
        let mut all = here;
        let mut text = [0; 300];
        let (rc, before) = host_name(300);
        assert_eq!((rc, name(&before)), (0, name(&here.nodename)));
        // SAFETY: writable.
        assert_eq!(unsafe { uname(&raw mut all) }, 0);
        assert_eq!(name(&all.nodename), name(&here.nodename));
        assert!(numbers().0 >= 1 && numbers().2 > 55);

        IS_RESTORED.set(true);
        assert_eq!(name(&host_name(300).1), there);
        // SAFETY: writable.
        assert_eq!(unsafe { uname(&raw mut all) }, 0);
        assert_eq!((name(&all.nodename), name(&all.machine)), (there, name(&here.machine)));
        // SAFETY: writable.
        assert_eq!(unsafe { gethostname_chk(text.as_mut_ptr(), 17, 300) }, 0);
        assert_eq!(name(&text), there);
        // SAFETY: writable.
        assert_eq!(unsafe { getdomainname_chk(text.as_mut_ptr(), 300, 300) }, 0);
        assert_eq!(name(&text), name(&here.domainname));
        assert_eq!(numbers(), (66, 77, 55, 66));
        assert_eq!(sysconf(libc::_SC_PAGESIZE), 4096);
        // SAFETY: no memory is passed; by way of the entry that was changed.
        assert_eq!(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }, 77);
        assert_ne!(crate::os::process::host_name().as_bytes(), there.to_bytes());
        // As the C library: as far as there is room, and nothing behind it.
        let (rc, cut) = host_name(3);
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((rc, errno), (-1, Some(libc::ENAMETOOLONG)));
        assert_eq!(cut[..4], [b'f' as c_char, b'a' as c_char, b'r' as c_char, 0x7f]);
        assert_eq!(host_name(16).0, -1);
        assert_eq!(host_name(17).0, 0);
        IS_RESTORED.set(false);
    }
}
