//! Which files the program reads, noted once for each file and epoch, before it reads: whoever
//! restores the process does not pass over a file that is read and was not put back (invariant 6 of
//! `rustbtl_checkpoint::file_undo`).
//!
//! By descriptor that is seen when it happens. A stream of the C library reads inside of it, and
//! memory is read by anybody: those count as read when they are opened or mapped, and in each epoch
//! that begins while they are (`epoch`).

use crate::files::functions::{Function, stock};
use crate::files::held;
use crate::files::recorder::{self, InFlight, NUMBERS, Recorder, id_of};
use crate::files::shared_io;
use crate::files::system::{self, Path};
use crate::files::watched;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use libc::{aiocb, iovec, off_t, size_t, ssize_t, stat};

/// By number: twice the epoch in which it was noted; one more: it is no file.
static NOTED: [AtomicU32; NUMBERS] = [const { AtomicU32::new(0) }; NUMBERS];

/// A file that was changed so shortly before may be changed again without another time: clocks of
/// file systems go in steps.
const STEP_NS: u64 = 20_000_000;

static AIO_READ: Function = Function::of(&[c"aio_read64", c"aio_read"]);
static READ: Function = Function::of(&[c"read"]);
static READ_CHECKED: Function = Function::of(&[c"__read_chk"]);
static READV: Function = Function::of(&[c"readv"]);
static PREAD: Function = Function::of(&[c"pread64", c"pread"]);
static PREAD_CHECKED: Function = Function::of(&[c"__pread64_chk", c"__pread_chk"]);
static PREADV: Function = Function::of(&[c"preadv64", c"preadv"]);
static PREADV2: Function = Function::of(&[c"preadv64v2", c"preadv2"]);

/// All of them, and the addresses of ours.
pub fn functions() -> Vec<(&'static Function, usize)> {
    [
        (&AIO_READ, aio_read as *const ()),
        (&READ, read as *const ()),
        (&READ_CHECKED, read_checked as *const ()),
        (&READV, readv as *const ()),
        (&PREAD, pread as *const ()),
        (&PREAD_CHECKED, pread_checked as *const ()),
        (&PREADV, preadv as *const ()),
        (&PREADV2, preadv2 as *const ()),
    ]
    .map(|(function, own)| (function, own.expose_provenance()))
    .to_vec()
}

#[inline]
fn noted_of(fd: c_int) -> Option<&'static AtomicU32> {
    usize::try_from(fd).ok().and_then(|fd| NOTED.get(fd))
}

/// Was it noted in this epoch, or is nothing to be noted?
pub fn is_noted(fd: c_int) -> bool {
    let noted = noted_of(fd);
    !recorder::is_on()
        || noted.is_none_or(|noted| noted.load(Ordering::Relaxed) >> 1 == recorder::epoch())
}

/// The number was closed, or is another file's now.
pub fn forget(fd: c_int) {
    if let Some(noted) = noted_of(fd) {
        noted.store(0, Ordering::Relaxed);
    }
}

/// A call is going to read from this descriptor; it is made while the answer is held.
#[inline]
pub fn before(fd: c_int) -> InFlight {
    let noted = noted_of(fd);
    let noted = noted.map_or(0, |noted| noted.load(Ordering::Relaxed));
    let epoch = recorder::epoch();
    if noted == 2 * epoch + 1 {
        return InFlight::NONE;
    }
    if noted == 2 * epoch {
        let call = InFlight::begin();
        if recorder::epoch() == epoch {
            return call;
        }
    }
    if recorder::is_on() { note(fd) } else { InFlight::NONE }
}

/// The call is over. Does not return if the process repeats it, and others have changed the file,
/// perhaps before it was read: a program that finds something else might end itself before anybody
/// asks.
#[inline]
fn after(fd: c_int, call: InFlight) {
    drop(call);
    if watched::is_repeating() {
        system::keeping_errno(|| look_again(fd));
    }
}

#[cold]
fn look_again(fd: c_int) {
    let noted = noted_of(fd);
    let is_file = noted.is_some_and(|noted| noted.load(Ordering::Relaxed) & 1 == 0);
    if is_file && let Some(path) = Path::of_descriptor(fd) {
        watched::reads(path.bytes());
    }
}

#[cold]
fn note(fd: c_int) -> InFlight {
    let set = |is_file: bool| {
        let value = 2 * recorder::epoch() + u32::from(!is_file);
        if let Some(noted) = noted_of(fd) {
            noted.store(value, Ordering::Relaxed);
        }
    };
    let Some(stat) = system::fstat(fd) else { return InFlight::NONE };
    if !system::is_regular(&stat) || stat.st_nlink == 0 {
        shared_io::must_be_there(fd);
        set(false);
        return InFlight::NONE;
    }
    let path = Path::of_descriptor(fd);
    if let Some(path) = path.as_ref().filter(|_| watched::is_repeating()) {
        watched::reads(path.bytes());
    }
    loop {
        let Some(mut recorder) = recorder::enter() else { return InFlight::NONE };
        if recorder.is_recording() {
            let is_one = |path: &&Path| !recorder.is_left_out(path.bytes());
            let Some(path) = path.as_ref().filter(is_one) else {
                set(false);
                return InFlight::NONE;
            };
            recorder.note_read(path, &stat);
            // Behind that.
            if held::is_held(path.bytes()) {
                drop(recorder);
                held::wait(path.bytes());
                continue;
            }
        }
        set(true);
        return InFlight::begin();
    }
}

/// FNV-1a.
pub(super) fn hash_of(path: &[u8]) -> u64 {
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    path.iter().fold(0xcbf2_9ce4_8422_2325, add)
}

/// In nanoseconds; 0: nobody can say.
fn last_change(stat: &stat) -> u64 {
    let nanoseconds = |seconds: i64, rest: i64| {
        u64::try_from(seconds).unwrap_or(0) * 1_000_000_000 + u64::try_from(rest).unwrap_or(0)
    };
    let changed = nanoseconds(stat.st_ctime, stat.st_ctime_nsec);
    if system::now_ns().abs_diff(changed) < STEP_NS { 0 } else { changed }
}

impl Recorder {
    /// It is read from now on.
    pub fn note_read(&mut self, path: &Path, stat: &stat) {
        /// What root has put there is not made by programs that run.
        const INSTALLED: [&[u8]; 4] = [b"/usr/", b"/lib/", b"/lib64/", b"/etc/"];
        let is_installed =
            stat.st_uid == 0 && INSTALLED.iter().any(|folder| path.bytes().starts_with(folder));
        if !self.is_recording() || is_installed || self.is_left_out(path.bytes()) {
            return;
        }
        // The number of a file that is removed may be another file's.
        let key = (id_of(stat), hash_of(path.bytes()));
        if self.reads.insert(key)
            && self.journal.note_read(path.bytes(), last_change(stat)).is_err()
        {
            self.reads.remove(&key);
            self.name(path);
        }
    }

    /// An open file is read by others than this program's own calls.
    pub fn note_read_of(&mut self, fd: c_int) {
        if let (Some(stat), Some(path)) = (system::fstat(fd), Path::of_descriptor(fd))
            && system::is_regular(&stat)
            && stat.st_nlink > 0
        {
            self.note_read(&path, &stat);
        }
    }
}

/// Makes a call that reads from this descriptor.
#[inline]
fn reading(fd: c_int, read: impl FnOnce() -> ssize_t) -> ssize_t {
    let call = before(fd);
    let bytes = read();
    after(fd, call);
    bytes
}

unsafe extern "C" fn read(fd: c_int, to: *mut c_void, bytes: size_t) -> ssize_t {
    let read = || stock!(READ(fd => c_int, to => *mut c_void, bytes => size_t) -> ssize_t);
    if shared_io::is_shared(fd) && shared_io::is_short(bytes) {
        // SAFETY: the caller's promise.
        return unsafe { shared_io::read(fd, to, bytes, true, read) };
    }
    reading(fd, read)
}

unsafe extern "C" fn aio_read(what: *mut aiocb) -> c_int {
    // SAFETY: the caller's promise to aio_read(3).
    if let Some(what) = unsafe { what.as_ref() } {
        if shared_io::is_shared(what.aio_fildes) {
            shared_io::asynchronous();
        }
        drop(before(what.aio_fildes));
    }
    stock!(AIO_READ(what => *mut aiocb) -> c_int)
}

unsafe extern "C" fn read_checked(
    fd: c_int,
    to: *mut c_void,
    bytes: size_t,
    room: size_t,
) -> ssize_t {
    let read = || {
        stock!(READ_CHECKED(
            fd => c_int, to => *mut c_void, bytes => size_t, room => size_t
        ) -> ssize_t)
    };
    if shared_io::is_shared(fd) && shared_io::is_short(bytes) {
        // SAFETY: the caller's promise.
        return unsafe { shared_io::read(fd, to, bytes, true, read) };
    }
    reading(fd, read)
}

unsafe extern "C" fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    reading(fd, || stock!(READV(fd => c_int, vector => *const iovec, count => c_int) -> ssize_t))
}

unsafe extern "C" fn pread(fd: c_int, to: *mut c_void, bytes: size_t, offset: off_t) -> ssize_t {
    let read = || {
        stock!(PREAD(
            fd => c_int, to => *mut c_void, bytes => size_t, offset => off_t
        ) -> ssize_t)
    };
    if shared_io::is_shared(fd) && shared_io::is_short(bytes) {
        // SAFETY: the caller's promise.
        return unsafe { shared_io::read(fd, to, bytes, false, read) };
    }
    reading(fd, read)
}

unsafe extern "C" fn pread_checked(
    fd: c_int,
    to: *mut c_void,
    bytes: size_t,
    offset: off_t,
    room: size_t,
) -> ssize_t {
    reading(fd, || {
        stock!(PREAD_CHECKED(
            fd => c_int, to => *mut c_void, bytes => size_t, offset => off_t, room => size_t
        ) -> ssize_t)
    })
}

unsafe extern "C" fn preadv(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
) -> ssize_t {
    reading(fd, || {
        stock!(PREADV(
            fd => c_int, vector => *const iovec, count => c_int, offset => off_t
        ) -> ssize_t)
    })
}

unsafe extern "C" fn preadv2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    reading(fd, || {
        stock!(PREADV2(
            fd => c_int, vector => *const iovec, count => c_int, offset => off_t, flags => c_int
        ) -> ssize_t)
    })
}
