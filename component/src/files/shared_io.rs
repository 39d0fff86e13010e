//! Files that ranks of several sets open together by MPI-IO (docs/adr/0023). What the system gives
//! to calls on them is recorded, and while the process repeats what it did before it failed, its
//! calls get the same again and change nothing: what they wrote is in the file, perhaps below what
//! others have written since. Who rolls it back alone leaves the file as it is
//! (`rustbtl_process::file_undo`).
//!
//! A call is recorded when it has been made. Whatever of it others may know comes later in the
//! order of recorded events, so a call that is not known has been seen by nobody, and is made
//! again.
//!
//! Long reads are not recorded, but noted: who has made one is not rolled back alone.

use crate::files::recorder::{self, NUMBERS};
use crate::files::system::{self, Path};
use crate::sync::engine_lock;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use libc::{off_t, size_t, ssize_t};
use rustbtl_checkpoint::file_undo::Entry;
use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Content of reads up to this length is recorded.
const READ_MAX: usize = 8;
/// So many paths are known at most; who opens more is not rolled back alone.
const PATHS_MAX: usize = 1 << 16;

const TOO_MANY: &str = "a rank has opened more than 65,536 different files together with ranks \
                        of other sets (MPI-IO)";
const ASYNCHRONOUS: &str = "a rank reads or writes a file without waiting (MPI-IO) that ranks of \
                            several sets have opened together";
const RENAMED: &str = "a rank has given another name to a file that ranks of several sets have \
                       opened together (MPI-IO)";

const GONE: &str = "a file that ranks of several sets have opened together (MPI-IO) is used, but \
                    others have removed it since the checkpoint";

/// Which call is repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Call {
    /// open(2).
    Open = 1,
    /// write(2), pwrite(2) and the like.
    Write = 2,
    /// ftruncate(2), fallocate(2).
    Resize = 3,
    /// lseek(2) from the end.
    End = 4,
    /// read(2), pread(2).
    Read = 5,
    /// What that has read.
    Content = 6,
    /// unlink(2).
    Remove = 7,
    /// The same of a name that no such file has had until then: what was there before is put back.
    Delete = 8,
}

/// What a call gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Given {
    /// It was made.
    Now(i64),
    /// Before the process failed; nothing was done now.
    Before(i64),
}

/// Who records, and repeats.
#[derive(Clone, Copy, Debug)]
pub struct Repeater {
    /// A call, so many bytes, and how it is made.
    pub repeat: fn(Call, u64, &mut dyn FnMut() -> i64) -> Given,
    /// What was to be repeated goes another way; does not return.
    pub diverged: fn(&str) -> !,
    /// No set is rolled back alone any more, and why.
    pub refuse: fn(&'static str),
}

static REPEATER: OnceLock<Repeater> = OnceLock::new();
/// Descriptors of such files, a bit each.
static SHARED: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];
/// Those of them that stand for a file that was removed: while the process repeats what it did
/// before it failed, nothing is done to them.
static REMOVED: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];
/// How many were opened.
static OPENED: AtomicUsize = AtomicUsize::new(0);
/// The program's first thread opens one.
static OPENING: AtomicBool = AtomicBool::new(false);
/// The program's first thread is in MPI_File_delete.
static DELETING: AtomicBool = AtomicBool::new(false);
/// Their paths, of those that are closed, too.
static PATHS: Mutex<BTreeSet<Vec<u8>>> = Mutex::new(BTreeSet::new());

/// In MPI_Init.
pub fn install(repeater: Repeater) {
    let _ = REPEATER.set(repeater);
}

/// The program's first thread is in MPI_File_open for such a file, or no longer. How many
/// descriptors such files had until now.
pub fn opening(is: bool) -> usize {
    OPENING.store(is && REPEATER.get().is_some() && recorder::is_on(), Ordering::Relaxed);
    OPENED.load(Ordering::Relaxed)
}

/// Is one being opened, by this thread?
#[inline]
pub fn is_opening() -> bool {
    OPENING.load(Ordering::Relaxed) && engine_lock::is_first()
}

/// The program's first thread is in MPI_File_delete, or no longer.
pub fn deleting(is: bool) {
    DELETING.store(is && REPEATER.get().is_some() && recorder::is_on(), Ordering::Relaxed);
}

/// Is a file being deleted, by this thread?
pub fn is_deleting() -> bool {
    DELETING.load(Ordering::Relaxed) && engine_lock::is_first()
}

fn bit(of: &'static [AtomicU64], fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((of.get(fd / 64)?, 1 << (fd % 64)))
}

fn is_set(of: &'static [AtomicU64], fd: c_int) -> bool {
    bit(of, fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

fn set(of: &'static [AtomicU64], fd: c_int) {
    if let Some((word, bit)) = bit(of, fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Is it the descriptor of one?
#[inline]
pub fn is_shared(fd: c_int) -> bool {
    is_set(&SHARED, fd)
}

/// The number was closed, or is another file's.
pub fn forget(fd: c_int) {
    for of in [&SHARED, &REMOVED] {
        if let Some((word, bit)) = bit(of, fd).filter(|(word, _)| word.load(Ordering::Relaxed) != 0)
        {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

/// This is a restored process. Some were removed since its snapshot: the restorer has put memory in
/// their place.
pub fn restored() {
    for fd in (0..NUMBERS as c_int).filter(|fd| is_shared(*fd)) {
        if system::fstat(fd).is_some_and(|stat| stat.st_nlink == 0) {
            set(&REMOVED, fd);
        }
    }
}

/// It is read or written for the first time, by no call that is repeated.
pub fn must_be_there(fd: c_int) {
    if is_set(&REMOVED, fd) {
        diverged(GONE);
    }
}

/// What is repeated goes another way: all are rolled back. Returns where nothing is repeated.
pub fn diverged(problem: &str) {
    if let Some(repeater) = REPEATER.get() {
        (repeater.diverged)(problem);
    }
}

fn paths() -> std::sync::MutexGuard<'static, BTreeSet<Vec<u8>>> {
    PATHS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Is it the path of one that was opened?
pub fn is_known(path: &[u8]) -> bool {
    OPENED.load(Ordering::Relaxed) > 0 && paths().contains(path)
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// As it is recorded.
fn code(result: isize) -> i64 {
    if result < 0 { -i64::from(errno()) } else { result as i64 }
}

/// The same again.
fn result(code: i64) -> isize {
    if code >= 0 {
        return code as isize;
    }
    // SAFETY: no arguments.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: this thread's.
    unsafe { errno.write(i32::try_from(-code).unwrap_or(libc::EIO)) };
    -1
}

/// Makes the call, or gives what it gave.
fn repeat(call: Call, bytes: u64, make: &mut dyn FnMut() -> i64) -> Given {
    match REPEATER.get() {
        Some(repeater) => (repeater.repeat)(call, bytes, make),
        None => Given::Now(make()),
    }
}

fn refuse(why: &'static str) {
    if let Some(repeater) = REPEATER.get() {
        (repeater.refuse)(why);
    }
}

/// Opens one with these flags. `place`: its path as it was given.
pub fn open(place: Option<&Path>, flags: c_int, plain: impl Fn(c_int) -> c_int) -> c_int {
    // Open MPI's own files are none of the program's.
    let is_left_out =
        |path: &Path| recorder::enter().is_some_and(|recorder| recorder.is_left_out(path.bytes()));
    if flags & libc::O_ACCMODE == libc::O_RDONLY || place.is_some_and(is_left_out) {
        return plain(flags);
    }
    let (mut fd, mut is_removed) = (-1, false);
    let given = repeat(Call::Open, 0, &mut || {
        fd = plain(flags);
        code(fd.min(0) as isize)
    });
    match given {
        Given::Now(_) => {}
        Given::Before(error) if error < 0 => return result(error) as c_int,
        Given::Before(_) => {
            fd = plain(flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC));
            if fd < 0 && errno() == libc::ENOENT {
                // It was removed since: nothing is done to it any more.
                // SAFETY: a name.
                fd = unsafe { libc::memfd_create(c"removed".as_ptr(), libc::MFD_CLOEXEC) };
                is_removed = true;
            }
        }
    }
    // Its name, too, if it is not there any more: it is removed again.
    if register(fd)
        && let Some(place) = place
    {
        note(place);
    }
    if is_removed {
        set(&REMOVED, fd);
    }
    fd
}

fn note(path: &Path) {
    let mut paths = paths();
    if paths.len() < PATHS_MAX {
        paths.insert(path.bytes().to_vec());
    } else {
        refuse(TOO_MANY);
    }
}

/// False: it is none of the program's.
fn register(fd: c_int) -> bool {
    let Some(stat) = system::fstat(fd).filter(system::is_regular) else { return false };
    let Some(path) = Path::of_descriptor(fd) else { return false };
    if stat.st_nlink > 0 {
        let Some(mut recorder) = recorder::enter() else { return false };
        // Open MPI's own.
        if recorder.is_left_out(path.bytes()) {
            return false;
        }
        recorder.append(&path, &Entry::Shared { path: path.bytes() });
        drop(recorder);
        note(&path);
    }
    OPENED.fetch_add(1, Ordering::Relaxed);
    set(&SHARED, fd);
    true
}

/// A call on one.
fn change(fd: c_int, call: Call, bytes: u64, mut make: impl FnMut() -> isize) -> Given {
    repeat(call, bytes, &mut || {
        must_be_there(fd);
        code(make())
    })
}

fn given(given: Given) -> isize {
    match given {
        Given::Now(code) | Given::Before(code) => result(code),
    }
}

/// Writes somewhere.
pub fn write_at(fd: c_int, bytes: u64, make: impl FnMut() -> ssize_t) -> ssize_t {
    given(change(fd, Call::Write, bytes, make))
}

/// Writes where the descriptor is, which moves it.
pub fn write(fd: c_int, bytes: u64, make: impl FnMut() -> ssize_t) -> ssize_t {
    let what = change(fd, Call::Write, bytes, make);
    if let Given::Before(moved) = what
        && moved > 0
    {
        // SAFETY: no memory is touched.
        unsafe { libc::lseek(fd, moved as off_t, libc::SEEK_CUR) };
    }
    given(what)
}

/// Changes its size.
pub fn resize(fd: c_int, size: u64, mut make: impl FnMut() -> c_int) -> c_int {
    given(change(fd, Call::Resize, size, || make() as isize)) as c_int
}

/// Moves the descriptor to its end, and `make` does.
pub fn seek_end(fd: c_int, mut make: impl FnMut() -> off_t) -> off_t {
    let what = change(fd, Call::End, 0, || make() as isize);
    if let Given::Before(at) = what
        && at >= 0
    {
        // SAFETY: no memory is touched.
        unsafe { libc::lseek(fd, at, libc::SEEK_SET) };
    }
    given(what) as off_t
}

/// Is a read of so many bytes recorded?
pub fn is_short(bytes: size_t) -> bool {
    bytes <= READ_MAX
}

/// Reads [a few](is_short) bytes; `moves`: where the descriptor is.
///
/// # Safety
/// `to` is writable for `bytes`, and `make` writes no more there.
pub unsafe fn read(
    fd: c_int,
    to: *mut c_void,
    bytes: size_t,
    moves: bool,
    make: impl FnMut() -> ssize_t,
) -> ssize_t {
    let what = change(fd, Call::Read, bytes as u64, make);
    let count = given(what);
    let Some(read) = usize::try_from(count).ok().filter(|read| *read > 0) else { return count };
    let mut word = [0; READ_MAX];
    let read = read.min(bytes).min(READ_MAX);
    if let Given::Now(_) = what {
        // SAFETY: so much was written there.
        unsafe { core::ptr::copy_nonoverlapping(to.cast(), word.as_mut_ptr(), read) };
    } else if moves {
        // SAFETY: no memory is touched.
        unsafe { libc::lseek(fd, read as off_t, libc::SEEK_CUR) };
    }
    let content = repeat(Call::Content, read as u64, &mut || i64::from_ne_bytes(word));
    let (Given::Now(word) | Given::Before(word)) = content;
    let word = word.to_ne_bytes();
    // SAFETY: the caller's promise.
    unsafe { core::ptr::copy_nonoverlapping(word.as_ptr(), to.cast(), read) };
    count
}

/// Removes one by its name.
pub fn remove(place: &Path, mut make: impl FnMut() -> c_int) -> c_int {
    let mut make = || {
        // Who undoes it must know before the removal that it is repeated.
        if let Some(mut recorder) =
            recorder::enter().filter(|known| !known.is_left_out(place.bytes()))
        {
            recorder.append(place, &Entry::Shared { path: place.bytes() });
        }
        code(make() as isize)
    };
    given(repeat(Call::Remove, 0, &mut make)) as c_int
}

/// Removes a name by MPI_File_delete, often of a file that ranks open together next: where there
/// was none, there may be one by the time that this is repeated.
pub fn delete(mut make: impl FnMut() -> c_int) -> c_int {
    match repeat(Call::Delete, 0, &mut || code(make() as isize)) {
        Given::Before(0..) => make(),
        none => given(none) as c_int,
    }
}

/// It is read or written while the program goes on.
pub fn asynchronous() {
    refuse(ASYNCHRONOUS);
}

/// It gets another name.
pub fn renamed() {
    refuse(RENAMED);
}
