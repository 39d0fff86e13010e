//! A set that is rolled back alone puts files back to its checkpoint, and writes them again later:
//! what others open or read of them meanwhile is not what was there. So they wait for that
//! (invariant 9 of `rustbtl_checkpoint::file_undo`); where nobody was rolled back, a look at an
//! empty file says so.
//!
//! That is asked before a file is opened to be changed, renamed, removed or made; when one was not
//! there, which is tried again then; and when it is read for the first time since the snapshot,
//! behind the note that says so.

use crate::files::shared_io;
use crate::files::system;
use crate::files::system::Path;
use crate::files::watched;
use core::ffi::{CStr, c_char, c_int};
use rustbtl_process::file_undo;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(2);
/// Longer does no replay last.
const REPLAY_MAX: Duration = Duration::from_secs(3600);
/// Who repeats something itself may be waited for by the one that it waits for.
const BOTH_MAX: Duration = Duration::from_secs(5);

struct Own {
    folder: PathBuf,
    /// Where it is written whose lists there are.
    holders: Path,
}

static OWN: OnceLock<Own> = OnceLock::new();

/// In MPI_Init. `folder`: of this process' journal.
pub(super) fn install(folder: &std::path::Path) {
    let holders = Path::of(&[file_undo::holders(folder).as_os_str().as_bytes()]);
    let _ = OWN.set(Own { folder: folder.to_owned(), holders });
}

/// What no program makes.
fn is_installed(path: &[u8]) -> bool {
    const INSTALLED: [&[u8]; 6] = [b"/usr/", b"/lib/", b"/lib64/", b"/etc/", b"/proc/", b"/sys/"];
    INSTALLED.iter().any(|folder| path.starts_with(folder))
}

/// The folder of this process, if anything is held.
fn own() -> Option<&'static std::path::Path> {
    let Own { folder, holders } = OWN.get()?;
    holders.size_now().is_some_and(|bytes| bytes > 0).then_some(folder)
}

/// Is this file held by another set?
pub(super) fn is_held(path: &[u8]) -> bool {
    !is_installed(path) && own().is_some_and(|own| file_undo::is_held(own, path))
}

/// Waits until it is not. Not while a lock of ours is held. Did it have to?
pub(super) fn wait(path: &[u8]) -> bool {
    wait_while(path, || is_held(path))
}

/// The same of all that is in this folder.
pub(super) fn wait_in(folder: &[u8]) -> bool {
    wait_while(folder, || own().is_some_and(|own| file_undo::is_any_held_in(own, folder)))
}

/// The same of all that is below it.
pub(super) fn wait_below(folder: &[u8]) -> bool {
    wait_while(folder, || own().is_some_and(|own| file_undo::is_any_held_below(own, folder)))
}

fn wait_while(path: &[u8], is_held: impl Fn() -> bool) -> bool {
    let (begin, mut waited) = (Instant::now(), false);
    while is_held() {
        waited = true;
        let longest = if watched::is_repeating() { BOTH_MAX } else { REPLAY_MAX };
        if begin.elapsed() > longest {
            let shown = String::from_utf8_lossy(path);
            shared_io::diverged(&format!("{shown} is used, but its writer repeats something, too"));
            break;
        }
        std::thread::sleep(PAUSE);
    }
    waited
}

/// The same for a file as it was given with a folder's descriptor.
///
/// # Safety
/// Null or a C string.
pub(super) unsafe fn wait_for(folder: c_int, path: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    unsafe { waited_for(folder, path, wait) }
}

/// The same, by this way to wait; errno stays what it was.
///
/// # Safety
/// Null or a C string.
pub(super) unsafe fn waited_for(
    folder: c_int,
    path: *const c_char,
    wait: impl Fn(&[u8]) -> bool,
) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    if is_installed(path.to_bytes()) || own().is_none() {
        return false;
    }
    system::keeping_errno(|| {
        let place = Path::given(folder, path).map(Path::in_real_folder);
        place.is_some_and(|place| wait(place.bytes()))
    })
}

/// Opens a file by a call, which may be made again. `reads`: it does no more than read it, and is
/// asked again before that. `failed`: it has not opened it.
///
/// # Safety
/// Null or a C string.
pub(super) unsafe fn open<T>(
    (folder, path): (c_int, *const c_char),
    reads: bool,
    failed: impl Fn(&T) -> bool,
    call: impl Fn() -> T,
) -> T {
    if !reads {
        // SAFETY: the caller's promise.
        unsafe { wait_for(folder, path) };
    }
    loop {
        let opened = call();
        if !failed(&opened) || !is_missing() {
            return opened;
        }
        // SAFETY: the caller's promise.
        let again = unsafe { wait_for(folder, path) };
        if !again {
            return opened;
        }
    }
}

fn is_missing() -> bool {
    std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT)
}
