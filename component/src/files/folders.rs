//! What folders list: names of files that are held (`held`) are there again when these have been
//! written again. A folder is read, or gone through, by these functions when nothing in it is held;
//! what is read of it later (`readdir`) is not looked at again.

use crate::files::functions::{Function, stock};
use crate::files::held;
use crate::files::system::{self, Path};
use core::ffi::{CStr, c_char, c_int, c_void};
use libc::DIR;

static OPENDIR: Function = Function::of(&[c"opendir"]);
static FDOPENDIR: Function = Function::of(&[c"fdopendir"]);
static SCANDIR: Function = Function::of(&[c"scandir", c"scandir64"]);
static SCANDIRAT: Function = Function::of(&[c"scandirat", c"scandirat64"]);
static GLOB: Function = Function::of(&[c"glob", c"glob64"]);
static FTW: Function = Function::of(&[c"ftw", c"ftw64"]);
static NFTW: Function = Function::of(&[c"nftw", c"nftw64"]);

const HERE: c_int = libc::AT_FDCWD;

/// A function of the program's, or memory of its, of any kind: passed on.
type Passed = *const c_void;

/// All of them, and the addresses of ours.
pub fn functions() -> Vec<(&'static Function, usize)> {
    [
        (&OPENDIR, open as *const ()),
        (&FDOPENDIR, open_by_descriptor as *const ()),
        (&SCANDIR, scan as *const ()),
        (&SCANDIRAT, scan_at as *const ()),
        (&GLOB, find as *const ()),
        (&FTW, walk as *const ()),
        (&NFTW, walk_with_flags as *const ()),
    ]
    .map(|(function, own)| (function, own.expose_provenance()))
    .to_vec()
}

/// Waits until nothing in this folder is held, nor itself.
///
/// # Safety
/// Null or a C string.
unsafe fn wait_in(folder: c_int, path: *const c_char) {
    let wait = |path: &[u8]| held::wait(path) | held::wait_in(path);
    // SAFETY: the caller's promise.
    unsafe { held::waited_for(folder, path, |path| wait(real(path).bytes())) };
}

/// The same of all that is below it.
///
/// # Safety
/// Null or a C string.
unsafe fn wait_below(path: *const c_char) {
    let wait = |path: &[u8]| held::wait(path) | held::wait_below(path);
    // SAFETY: the caller's promise.
    unsafe { held::waited_for(HERE, path, |path| wait(real(path).bytes())) };
}

/// Where a folder is, whatever links lead to it; what was given, if it is not there.
fn real(path: &[u8]) -> Path {
    let given = Path::of(&[path]);
    let Some(fd) = given.open(libc::O_PATH | libc::O_DIRECTORY) else { return given };
    let real = Path::of_descriptor(fd);
    system::close(fd);
    real.unwrap_or(given)
}

unsafe extern "C" fn open(path: *const c_char) -> *mut DIR {
    // SAFETY: the caller's promise.
    unsafe { wait_in(HERE, path) };
    stock!(OPENDIR(path => *const c_char) -> *mut DIR)
}

unsafe extern "C" fn open_by_descriptor(fd: c_int) -> *mut DIR {
    // SAFETY: a C string.
    unsafe { wait_in(fd, c".".as_ptr()) };
    stock!(FDOPENDIR(fd => c_int) -> *mut DIR)
}

unsafe extern "C" fn scan(
    path: *const c_char,
    found: Passed,
    chooses: Passed,
    compares: Passed,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait_in(HERE, path) };
    stock!(SCANDIR(
        path => *const c_char, found => Passed, chooses => Passed, compares => Passed
    ) -> c_int)
}

unsafe extern "C" fn scan_at(
    folder: c_int,
    path: *const c_char,
    found: Passed,
    chooses: Passed,
    compares: Passed,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait_in(folder, path) };
    stock!(SCANDIRAT(
        folder => c_int, path => *const c_char, found => Passed, chooses => Passed,
        compares => Passed
    ) -> c_int)
}

/// The folder below which all is that a pattern finds; with its end.
fn beginning_of(pattern: &[u8]) -> Option<Path> {
    let special = pattern.iter().position(|byte| b"*?[{~\\".contains(byte));
    let plain = &pattern[..special.unwrap_or(pattern.len())];
    // Homes of users are others' matter.
    let is_home = pattern.first() == Some(&b'~');
    let end = plain.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    (!is_home).then(|| Path::of(&[&plain[..end], b"."]))
}

unsafe extern "C" fn find(
    pattern: *const c_char,
    flags: c_int,
    fails: Passed,
    found: Passed,
) -> c_int {
    if !pattern.is_null()
        // SAFETY: the caller's promise.
        && let Some(folder) = beginning_of(unsafe { CStr::from_ptr(pattern) }.to_bytes())
        && let Ok(folder) = CStr::from_bytes_until_nul(&[folder.bytes(), b"\0"].concat())
    {
        // SAFETY: a C string.
        unsafe { wait_below(folder.as_ptr()) };
    }
    stock!(GLOB(
        pattern => *const c_char, flags => c_int, fails => Passed, found => Passed
    ) -> c_int)
}

unsafe extern "C" fn walk(path: *const c_char, sees: Passed, descriptors: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait_below(path) };
    stock!(FTW(path => *const c_char, sees => Passed, descriptors => c_int) -> c_int)
}

unsafe extern "C" fn walk_with_flags(
    path: *const c_char,
    sees: Passed,
    descriptors: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait_below(path) };
    stock!(NFTW(
        path => *const c_char, sees => Passed, descriptors => c_int, flags => c_int
    ) -> c_int)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pattern_finds_is_below_its_beginning() {
        for (pattern, folder) in [
            ("/scratch/run/*.dat", Some("/scratch/run/.")),
            ("/scratch/*/a", Some("/scratch/.")),
            ("*.dat", Some(".")),
            ("out/run.?", Some("out/.")),
            ("out/table", Some("out/.")),
            ("{a,b}/*", Some(".")),
            ("/[ab]", Some("/.")),
            ("~/x*", None),
        ] {
            let found = beginning_of(pattern.as_bytes());
            assert_eq!(found.as_ref().map(Path::bytes), folder.map(str::as_bytes), "{pattern}");
        }
    }
}
