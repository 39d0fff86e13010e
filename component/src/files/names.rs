//! Calls that give files other names, or none.

use crate::files::functions::{Function, stock};
use crate::files::held;
use crate::files::recorder::{self, Recorder, id_of};
use crate::files::shared_io;
use crate::files::system::{self, Path};
use core::ffi::{CStr, c_char, c_int, c_uint};
use libc::{off_t, stat};
use rustbtl_checkpoint::file_undo::Entry;

static RENAME: Function = Function::of(&[c"rename"]);
static RENAMEAT: Function = Function::of(&[c"renameat"]);
static RENAMEAT2: Function = Function::of(&[c"renameat2"]);
static UNLINK: Function = Function::of(&[c"unlink"]);
static UNLINKAT: Function = Function::of(&[c"unlinkat"]);
static REMOVE: Function = Function::of(&[c"remove"]);
static MKDIR: Function = Function::of(&[c"mkdir"]);
static MKDIRAT: Function = Function::of(&[c"mkdirat"]);
static RMDIR: Function = Function::of(&[c"rmdir"]);
static LINK: Function = Function::of(&[c"link"]);
static LINKAT: Function = Function::of(&[c"linkat"]);
static SYMLINK: Function = Function::of(&[c"symlink"]);
static SYMLINKAT: Function = Function::of(&[c"symlinkat"]);
static TRUNCATE: Function = Function::of(&[c"truncate64", c"truncate"]);

const HERE: c_int = libc::AT_FDCWD;

/// All of them, and the addresses of ours.
pub fn functions() -> Vec<(&'static Function, usize)> {
    [
        (&RENAME, rename as *const ()),
        (&RENAMEAT, renameat as *const ()),
        (&RENAMEAT2, renameat2 as *const ()),
        (&UNLINK, unlink as *const ()),
        (&UNLINKAT, unlinkat as *const ()),
        (&REMOVE, remove as *const ()),
        (&MKDIR, mkdir as *const ()),
        (&MKDIRAT, mkdirat as *const ()),
        (&RMDIR, rmdir as *const ()),
        (&LINK, link as *const ()),
        (&LINKAT, linkat as *const ()),
        (&SYMLINK, symlink as *const ()),
        (&SYMLINKAT, symlinkat as *const ()),
        (&TRUNCATE, truncate as *const ()),
    ]
    .map(|(function, own)| (function, own.expose_provenance()))
    .to_vec()
}

impl Recorder {
    /// The name is going to be removed, or to be another file's.
    fn before_removal(&mut self, place: &Path, stat: &stat) {
        let id = id_of(stat);
        if !self.is_recording() {
            return;
        }
        if system::is_regular(stat) && stat.st_nlink == 1 && self.tracker.is_fresh(id) {
            self.tracker.forget(id);
            return;
        }
        let (saved, name_bytes) = self.next_saved();
        if place.link(&saved) {
            self.saved_as.insert(id, saved.bytes().to_vec());
        } else if !self.copied(place, &saved, stat) {
            return self.give_up(place, id, stat.st_size as u64);
        }
        let name = &saved.bytes()[saved.bytes().len() - name_bytes..];
        self.append(place, &Entry::Removed { path: place.bytes(), saved: name });
        self.journal.sync();
    }

    /// Where the folder of the journal is on another file system.
    fn copied(&mut self, place: &Path, saved: &Path, stat: &stat) -> bool {
        let bytes = stat.st_size as u64;
        if !system::is_regular(stat) || !self.tracker.spend(bytes) {
            return false;
        }
        let Some(from) = place.open(libc::O_RDONLY | libc::O_NONBLOCK) else { return false };
        let to = saved.open(libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL);
        let copied = to.is_some_and(|to| system::copy(from, to, bytes));
        [Some(from), to].into_iter().flatten().for_each(system::close);
        copied
    }
}

/// Both, absolute.
///
/// # Safety
/// Null or C strings.
unsafe fn place(folder: c_int, path: *const c_char) -> Option<Path> {
    if path.is_null() || !recorder::is_on() {
        return None;
    }
    // SAFETY: the caller's promise.
    let place = Path::given(folder, unsafe { CStr::from_ptr(path) }).map(Path::in_real_folder)?;
    held::wait(place.bytes());
    Some(place)
}

/// A file gets another name by a call.
///
/// # Safety
/// As for renameat2(2).
unsafe fn renamed(
    (from_folder, from): (c_int, *const c_char),
    (to_folder, to): (c_int, *const c_char),
    flags: c_uint,
    call: impl Fn() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let from = unsafe { place(from_folder, from) };
    // SAFETY: the caller's promise.
    let to = unsafe { place(to_folder, to) };
    let (Some(from), Some(to)) = (from, to) else { return call() };
    if shared_io::is_known(from.bytes()) || shared_io::is_known(to.bytes()) {
        shared_io::renamed();
    }
    let Some(mut recorder) = recorder::enter() else { return call() };
    for path in [&from, &to] {
        recorder.not_again(path);
    }
    let Ok(moved) = from.stat(false) else { return call() };
    if recorder.is_left_out(from.bytes()) || recorder.is_left_out(to.bytes()) {
        return call();
    }
    let there = to.stat(false);
    if flags & libc::RENAME_EXCHANGE != 0 {
        for path in [&from, &to] {
            recorder.give_up(path, id_of(&moved), moved.st_size as u64);
        }
        return call();
    }
    if let Ok(there) = there {
        if id_of(&there) == id_of(&moved) || flags & libc::RENAME_NOREPLACE != 0 {
            return call();
        }
        if there.st_mode & libc::S_IFMT == libc::S_IFDIR {
            let (path, mode) = (to.bytes(), there.st_mode & 0o7777);
            recorder.append(&to, &Entry::RemovedFolder { path, mode });
        } else {
            recorder.before_removal(&to, &there);
        }
    }
    recorder.append(&to, &Entry::Moved { from: from.bytes(), to: to.bytes() });
    recorder.journal.sync();
    let result = call();
    if result != 0 {
        recorder.journal.take_back();
    }
    result
}

unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    let call = || stock!(RENAME(from => *const c_char, to => *const c_char) -> c_int);
    // SAFETY: the caller's promise.
    unsafe { renamed((HERE, from), (HERE, to), 0, call) }
}

unsafe extern "C" fn renameat(
    from_folder: c_int,
    from: *const c_char,
    to_folder: c_int,
    to: *const c_char,
) -> c_int {
    let call = || {
        stock!(RENAMEAT(
            from_folder => c_int, from => *const c_char, to_folder => c_int, to => *const c_char
        ) -> c_int)
    };
    // SAFETY: the caller's promise.
    unsafe { renamed((from_folder, from), (to_folder, to), 0, call) }
}

unsafe extern "C" fn renameat2(
    from_folder: c_int,
    from: *const c_char,
    to_folder: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    let call = || {
        stock!(RENAMEAT2(
            from_folder => c_int, from => *const c_char, to_folder => c_int,
            to => *const c_char, flags => c_uint
        ) -> c_int)
    };
    // SAFETY: the caller's promise.
    unsafe { renamed((from_folder, from), (to_folder, to), flags, call) }
}

/// A name is removed by a call.
///
/// # Safety
/// Null or a C string.
unsafe fn removed(folder: c_int, path: *const c_char, call: impl Fn() -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    let Some(place) = (unsafe { place(folder, path) }) else { return call() };
    if shared_io::is_known(place.bytes()) {
        return shared_io::remove(&place, || removed_plainly(&place, false, &call));
    }
    if shared_io::is_deleting() {
        return shared_io::delete(|| removed_plainly(&place, false, &call));
    }
    removed_plainly(&place, true, &call)
}

/// The same for one that nobody repeats.
fn removed_plainly(place: &Path, is_plain: bool, call: &impl Fn() -> c_int) -> c_int {
    let Some(mut recorder) = recorder::enter() else { return call() };
    if is_plain {
        recorder.not_again(place);
    }
    let Ok(stat) = place.stat(false) else { return call() };
    if recorder.is_left_out(place.bytes()) {
        return call();
    }
    if stat.st_mode & libc::S_IFMT != libc::S_IFDIR {
        recorder.before_removal(place, &stat);
        return call();
    }
    let (path, mode) = (place.bytes(), stat.st_mode & 0o7777);
    recorder.append(place, &Entry::RemovedFolder { path, mode });
    let result = call();
    if result != 0 {
        recorder.journal.take_back();
    }
    result
}

unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    let call = || stock!(UNLINK(path => *const c_char) -> c_int);
    // SAFETY: the caller's promise.
    unsafe { removed(HERE, path, call) }
}

unsafe extern "C" fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    let call = || stock!(UNLINKAT(folder => c_int, path => *const c_char, flags => c_int) -> c_int);
    // SAFETY: the caller's promise.
    unsafe { removed(folder, path, call) }
}

unsafe extern "C" fn remove(path: *const c_char) -> c_int {
    let call = || stock!(REMOVE(path => *const c_char) -> c_int);
    // SAFETY: the caller's promise.
    unsafe { removed(HERE, path, call) }
}

unsafe extern "C" fn rmdir(path: *const c_char) -> c_int {
    let call = || stock!(RMDIR(path => *const c_char) -> c_int);
    // SAFETY: the caller's promise.
    unsafe { removed(HERE, path, call) }
}

/// A folder, or another name of something, is made by a call.
///
/// # Safety
/// Null or a C string.
unsafe fn made(
    folder: c_int,
    path: *const c_char,
    is_folder: bool,
    call: impl Fn() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(place) = (unsafe { place(folder, path) }) else { return call() };
    if place.stat(false).is_ok() {
        return call();
    }
    let Some(mut recorder) = recorder::enter() else { return call() };
    if recorder.is_left_out(place.bytes()) {
        return call();
    }
    let path = place.bytes();
    let inode = 0;
    let entry = if is_folder { Entry::MadeFolder { path } } else { Entry::Created { path, inode } };
    recorder.append(&place, &entry);
    let result = call();
    if result != 0 {
        recorder.journal.take_back();
    }
    result
}

unsafe extern "C" fn mkdir(path: *const c_char, mode: c_uint) -> c_int {
    let call = || stock!(MKDIR(path => *const c_char, mode => c_uint) -> c_int);
    // SAFETY: the caller's promise.
    unsafe { made(HERE, path, true, call) }
}

unsafe extern "C" fn mkdirat(folder: c_int, path: *const c_char, mode: c_uint) -> c_int {
    let call = || stock!(MKDIRAT(folder => c_int, path => *const c_char, mode => c_uint) -> c_int);
    // SAFETY: the caller's promise.
    unsafe { made(folder, path, true, call) }
}

unsafe extern "C" fn link(from: *const c_char, to: *const c_char) -> c_int {
    let call = || stock!(LINK(from => *const c_char, to => *const c_char) -> c_int);
    // SAFETY: the caller's promise.
    unsafe { made(HERE, to, false, call) }
}

unsafe extern "C" fn linkat(
    from_folder: c_int,
    from: *const c_char,
    to_folder: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    let call = || {
        stock!(LINKAT(
            from_folder => c_int, from => *const c_char, to_folder => c_int,
            to => *const c_char, flags => c_int
        ) -> c_int)
    };
    // SAFETY: the caller's promise.
    unsafe { made(to_folder, to, false, call) }
}

unsafe extern "C" fn symlinkat(from: *const c_char, folder: c_int, to: *const c_char) -> c_int {
    let call =
        || stock!(SYMLINKAT(from => *const c_char, folder => c_int, to => *const c_char) -> c_int);
    // SAFETY: the caller's promise.
    unsafe { made(folder, to, false, call) }
}

unsafe extern "C" fn symlink(from: *const c_char, to: *const c_char) -> c_int {
    let call = || stock!(SYMLINK(from => *const c_char, to => *const c_char) -> c_int);
    // SAFETY: the caller's promise.
    unsafe { made(HERE, to, false, call) }
}

unsafe extern "C" fn truncate(path: *const c_char, size: off_t) -> c_int {
    // SAFETY: the caller's promise.
    let place = unsafe { place(HERE, path) };
    let is_file = |place: &Path| place.stat(true).is_ok_and(|stat| system::is_regular(&stat));
    let mut recorder =
        place.as_ref().filter(|place| is_file(place)).and_then(|_| recorder::enter());
    if let (Some(recorder), Some(place)) = (&mut recorder, &place)
        && !recorder.is_left_out(place.bytes())
    {
        recorder.not_again(place);
        recorder.before_resize(place, u64::try_from(size).unwrap_or(u64::MAX));
    }
    stock!(TRUNCATE(path => *const c_char, size => off_t) -> c_int)
}
