//! Calls that open files, and that write by descriptor.

use crate::files::functions::{Function, stock};
use crate::files::held;
use crate::files::reads;
use crate::files::recorder::{self, Change, InFlight, Place, before, before_next, id_of};
use crate::files::shared_io;
use crate::files::system::{self, Path};
use crate::files::watched;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use libc::{aiocb, iovec, off_t, size_t, ssize_t};
use rustbtl_checkpoint::file_undo::Entry;

static OPENAT: Function = Function::of(&[c"openat64", c"openat"]);
static OPEN: Function = Function::of(&[c"open64", c"open"]);
static OPEN_2: Function = Function::of(&[c"__open64_2", c"__open_2"]);
static OPENAT_2: Function = Function::of(&[c"__openat64_2", c"__openat_2"]);
static CREAT: Function = Function::of(&[c"creat64", c"creat"]);
static CLOSE: Function = Function::of(&[c"close"]);
static DUP2: Function = Function::of(&[c"dup2"]);
static DUP3: Function = Function::of(&[c"dup3"]);
static WRITE: Function = Function::of(&[c"write"]);
static WRITEV: Function = Function::of(&[c"writev"]);
static LSEEK: Function = Function::of(&[c"lseek64", c"lseek"]);
static PWRITE: Function = Function::of(&[c"pwrite64", c"pwrite"]);
static PWRITEV: Function = Function::of(&[c"pwritev64", c"pwritev"]);
static PWRITEV2: Function = Function::of(&[c"pwritev64v2", c"pwritev2"]);
static FTRUNCATE: Function = Function::of(&[c"ftruncate64", c"ftruncate"]);
static FALLOCATE: Function = Function::of(&[c"fallocate64", c"fallocate"]);
static POSIX_FALLOCATE: Function = Function::of(&[c"posix_fallocate64", c"posix_fallocate"]);
static SENDFILE: Function = Function::of(&[c"sendfile64", c"sendfile"]);
static COPY_FILE_RANGE: Function = Function::of(&[c"copy_file_range"]);
static AIO_WRITE: Function = Function::of(&[c"aio_write64", c"aio_write"]);
static MMAP: Function = Function::of(&[c"mmap64", c"mmap"]);

/// All of them, and the addresses of ours.
pub fn functions() -> Vec<(&'static Function, usize)> {
    [
        (&OPENAT, openat as *const ()),
        (&OPEN, open as *const ()),
        (&OPEN_2, open_2 as *const ()),
        (&OPENAT_2, openat_2 as *const ()),
        (&CREAT, creat as *const ()),
        (&CLOSE, close as *const ()),
        (&DUP2, dup2 as *const ()),
        (&DUP3, dup3 as *const ()),
        (&WRITE, write as *const ()),
        (&WRITEV, writev as *const ()),
        (&LSEEK, lseek as *const ()),
        (&PWRITE, pwrite as *const ()),
        (&PWRITEV, pwritev as *const ()),
        (&PWRITEV2, pwritev2 as *const ()),
        (&FTRUNCATE, ftruncate as *const ()),
        (&FALLOCATE, fallocate as *const ()),
        (&POSIX_FALLOCATE, posix_fallocate as *const ()),
        (&SENDFILE, sendfile as *const ()),
        (&COPY_FILE_RANGE, copy_file_range as *const ()),
        (&AIO_WRITE, aio_write as *const ()),
        (&MMAP, mmap as *const ()),
    ]
    .map(|(function, own)| (function, own.expose_provenance()))
    .to_vec()
}

/// A number that was given out: what was noted of it is another file's.
fn fresh(fd: c_int) -> c_int {
    recorder::forget(fd);
    fd
}

/// Opens a file by one of the C library's functions, which gets the flags.
fn opened(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    call: impl Fn(c_int) -> c_int,
) -> c_int {
    let opened = || opened_now(folder, path, flags, &call);
    let reads = flags & (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) == libc::O_RDONLY;
    // SAFETY: the caller's promise to open(2).
    unsafe { held::open((folder, path), reads, |fd| *fd < 0, opened) }
}

/// The same where nobody holds it.
fn opened_now(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    call: impl Fn(c_int) -> c_int,
) -> c_int {
    let is_readable = flags & libc::O_ACCMODE != libc::O_WRONLY;
    if watched::is_repeating() && is_readable && !path.is_null() {
        // SAFETY: the caller's promise to open(2).
        let place = Path::given(folder, unsafe { CStr::from_ptr(path) });
        if let Some(place) = place.map(Path::in_real_folder) {
            watched::reads(place.bytes());
        }
    }
    if shared_io::is_opening() {
        // SAFETY: the caller's promise to open(2).
        let text = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) });
        let place = text.and_then(|text| Path::given(folder, text)).map(Path::in_real_folder);
        let plain = |flags| opened_plainly(folder, path, flags, &call);
        return shared_io::open(place.as_ref(), flags, plain);
    }
    opened_plainly(folder, path, flags, call)
}

/// The same for a file that nobody repeats.
fn opened_plainly(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    call: impl Fn(c_int) -> c_int,
) -> c_int {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
    let without_name = flags & (libc::O_PATH | (libc::O_TMPFILE & !libc::O_DIRECTORY)) != 0;
    if !writes || without_name || path.is_null() || !recorder::is_on() {
        return fresh(call(flags));
    }
    // SAFETY: the caller's promise to open(2).
    let text = unsafe { CStr::from_ptr(path) };
    let Some(place) = Path::given(folder, text) else { return fresh(call(flags)) };
    let Some(mut recorder) = recorder::enter() else { return fresh(call(flags)) };
    let is_whole = flags & (libc::O_TRUNC | libc::O_APPEND) != 0;
    // Else it is repeated.
    let is_plain = !shared_io::is_opening();
    match place.stat(flags & libc::O_NOFOLLOW == 0) {
        Ok(stat) if system::is_regular(&stat) && !recorder.is_left_out(place.bytes()) => {
            let exclusive = libc::O_CREAT | libc::O_EXCL;
            if flags & exclusive == exclusive {
                return fresh(call(flags));
            }
            if flags & libc::O_TRUNC == 0 || flags & libc::O_ACCMODE == libc::O_RDONLY {
                if flags & libc::O_TRUNC != 0 {
                    recorder.before_resize(&place, 0);
                }
                let fd = fresh(call(flags));
                recorder.declare_open(fd);
                if is_whole && is_plain {
                    recorder.not_again_of(fd);
                }
                return fd;
            }
            // It is emptied when its content is recorded.
            let fd = fresh(call(flags & !libc::O_TRUNC));
            recorder.declare_open(fd);
            if is_plain {
                recorder.not_again_of(fd);
            }
            if fd >= 0
                && let Some(stat) = system::fstat(fd)
            {
                let id = id_of(&stat);
                let need = recorder.tracker.resize(id, stat.st_size as u64, 0);
                if !need.is_empty()
                    && let Some(path) = Path::of_descriptor(fd)
                {
                    recorder.satisfy(&path, (fd, system::flags_of(fd)), &stat, need);
                }
                system::set_size(fd, 0);
            }
            fd
        }
        Err(libc::ENOENT) if flags & libc::O_CREAT != 0 && !recorder.is_left_out(place.bytes()) => {
            recorder.before_creation(&place);
            let fd = fresh(call(flags));
            recorder.after_creation(&place, fd);
            if is_plain {
                recorder.not_again_of(fd);
            }
            fd
        }
        _ => {
            // What it is may have its peer wait for it.
            drop(recorder);
            fresh(call(flags))
        }
    }
}

impl recorder::Recorder {
    /// There will be a file with this name.
    pub fn before_creation(&mut self, place: &Path) {
        self.append(place, &Entry::Created { path: place.bytes(), inode: 0 });
        self.journal.sync();
    }

    /// There is, if it could be opened.
    pub fn after_creation(&mut self, place: &Path, fd: c_int) {
        let Some(stat) = (fd >= 0).then(|| system::fstat(fd)).flatten() else {
            return self.journal.take_back();
        };
        self.tracker.created(id_of(&stat));
        let found = Path::of_descriptor(fd);
        let path = found.as_ref().unwrap_or(place);
        let entry = Entry::Created { path: path.bytes(), inode: stat.st_ino };
        if self.is_recording() && self.journal.amend(&entry).is_err() {
            self.append(path, &entry);
        }
    }

    /// It may be written to from now on.
    pub fn declare_open(&mut self, fd: c_int) {
        if fd >= 0
            && let (Some(stat), Some(path)) = (system::fstat(fd), Path::of_descriptor(fd))
        {
            self.declare(&path, &stat);
        }
    }

    /// The file with this name is going to have another size.
    pub fn before_resize(&mut self, place: &Path, to: u64) {
        let Some(fd) = place.open(libc::O_RDWR | libc::O_NONBLOCK) else { return };
        if let (Some(stat), Some(path)) = (system::fstat(fd), Path::of_descriptor(fd)) {
            let need = self.tracker.resize(id_of(&stat), stat.st_size as u64, to);
            if !need.is_empty() {
                self.satisfy(&path, (fd, libc::O_RDWR), &stat, need);
            }
        }
        system::close(fd);
    }
}

unsafe extern "C" fn openat(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    opened(folder, path, flags, |flags| {
        stock!(OPENAT(
            folder => c_int, path => *const c_char, flags => c_int, mode => c_uint
        ) -> c_int)
    })
}

unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    opened(
        libc::AT_FDCWD,
        path,
        flags,
        |flags| stock!(OPEN(path => *const c_char, flags => c_int, mode => c_uint) -> c_int),
    )
}

unsafe extern "C" fn open_2(path: *const c_char, flags: c_int) -> c_int {
    opened(
        libc::AT_FDCWD,
        path,
        flags,
        |flags| stock!(OPEN_2(path => *const c_char, flags => c_int) -> c_int),
    )
}

unsafe extern "C" fn openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    opened(
        folder,
        path,
        flags,
        |flags| stock!(OPENAT_2(folder => c_int, path => *const c_char, flags => c_int) -> c_int),
    )
}

unsafe extern "C" fn creat(path: *const c_char, mode: c_uint) -> c_int {
    let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
    opened(libc::AT_FDCWD, path, flags, |flags| {
        if flags & libc::O_TRUNC != 0 {
            return stock!(CREAT(path => *const c_char, mode => c_uint) -> c_int);
        }
        // SAFETY: the caller's promise to creat(2).
        unsafe { libc::open(path, flags, mode) }
    })
}

extern "C" fn close(fd: c_int) -> c_int {
    recorder::forget(fd);
    if recorder::stream(fd) != recorder::NO_STREAM {
        recorder::set_stream(fd, recorder::NO_STREAM);
    }
    stock!(CLOSE(fd => c_int) -> c_int)
}

/// The standard streams write to what has their number now.
fn duplicated(from: c_int, to: c_int) {
    if (0..=2).contains(&to) && recorder::is_on() && system::fstat(from).is_some() {
        let is_file = system::fstat(from).is_some_and(|stat| system::is_regular(&stat));
        let kind = if is_file { recorder::SEQUENTIAL } else { recorder::NO_STREAM };
        recorder::set_stream(to, kind);
    }
}

extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    duplicated(from, to);
    recorder::forget(to);
    stock!(DUP2(from => c_int, to => c_int) -> c_int)
}

extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    duplicated(from, to);
    recorder::forget(to);
    stock!(DUP3(from => c_int, to => c_int, flags => c_int) -> c_int)
}

/// A write where the descriptor is.
fn written(fd: c_int, bytes: impl Fn() -> u64, call: impl Fn() -> ssize_t) -> ssize_t {
    let write = || {
        let _call = before_next(fd, &bytes);
        call()
    };
    if shared_io::is_shared(fd) { shared_io::write(fd, bytes(), write) } else { write() }
}

/// One elsewhere.
fn written_at(
    fd: c_int,
    (place, bytes): (Place, impl Fn() -> u64),
    call: impl Fn() -> ssize_t,
) -> ssize_t {
    let write = || {
        let _call = before(fd, || Change::Write(place, bytes()));
        call()
    };
    match place {
        _ if !shared_io::is_shared(fd) => write(),
        Place::Offset => shared_io::write(fd, bytes(), write),
        Place::At(_) => shared_io::write_at(fd, bytes(), write),
    }
}

/// Another size.
fn resized(fd: c_int, size: off_t, call: impl Fn() -> c_int) -> c_int {
    if shared_io::is_shared(fd) { shared_io::resize(fd, size.unsigned_abs(), call) } else { call() }
}

/// While it is repeated.
///
/// # Safety
/// As for writev(2).
unsafe fn again(fd: c_int, at: Option<off_t>, vector: *const iovec, count: c_int) {
    let Some(count) = usize::try_from(count).ok().filter(|_| !vector.is_null()) else { return };
    if watched::is_repeating() && !shared_io::is_shared(fd) {
        let at = at.map(|offset| u64::try_from(offset).unwrap_or(u64::MAX));
        // SAFETY: the caller's promise.
        let vector = unsafe { core::slice::from_raw_parts(vector, count) };
        // SAFETY: the caller's promise.
        unsafe { watched::writes(fd, at, vector) };
    }
}

unsafe extern "C" fn write(fd: c_int, from: *const c_void, bytes: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { again(fd, None, &iovec { iov_base: from.cast_mut(), iov_len: bytes }, 1) };
    written(
        fd,
        || bytes as u64,
        || stock!(WRITE(fd => c_int, from => *const c_void, bytes => size_t) -> ssize_t),
    )
}

extern "C" fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    let seek = || stock!(LSEEK(fd => c_int, offset => off_t, whence => c_int) -> off_t);
    let result = if whence == libc::SEEK_END && shared_io::is_shared(fd) {
        shared_io::seek_end(fd, seek)
    } else {
        seek()
    };
    if whence != libc::SEEK_CUR || offset != 0 {
        recorder::moved();
    }
    result
}

/// Bytes of a vector.
///
/// # Safety
/// As for writev(2).
unsafe fn bytes_of(vector: *const iovec, count: c_int) -> u64 {
    let Some(count) = usize::try_from(count).ok().filter(|_| !vector.is_null()) else { return 0 };
    // SAFETY: the caller's promise.
    let parts = unsafe { core::slice::from_raw_parts(vector, count) };
    parts.iter().fold(0, |sum, part| sum.saturating_add(part.iov_len as u64))
}

unsafe extern "C" fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { again(fd, None, vector, count) };
    written(
        fd,
        // SAFETY: the caller's promise.
        || unsafe { bytes_of(vector, count) },
        || stock!(WRITEV(fd => c_int, vector => *const iovec, count => c_int) -> ssize_t),
    )
}

/// An offset that the kernel refuses changes nothing.
fn at(offset: off_t) -> Place {
    Place::At(u64::try_from(offset).unwrap_or(u64::MAX))
}

unsafe extern "C" fn pwrite(
    fd: c_int,
    from: *const c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { again(fd, Some(offset), &iovec { iov_base: from.cast_mut(), iov_len: bytes }, 1) };
    written_at(fd, (at(offset), || bytes as u64), || {
        stock!(PWRITE(
            fd => c_int, from => *const c_void, bytes => size_t, offset => off_t
        ) -> ssize_t)
    })
}

unsafe extern "C" fn pwritev(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { again(fd, Some(offset), vector, count) };
    // SAFETY: the caller's promise.
    written_at(fd, (at(offset), || unsafe { bytes_of(vector, count) }), || {
        stock!(PWRITEV(
            fd => c_int, vector => *const iovec, count => c_int, offset => off_t
        ) -> ssize_t)
    })
}

unsafe extern "C" fn pwritev2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    let place = if offset == -1 { Place::Offset } else { at(offset) };
    // SAFETY: the caller's promise.
    unsafe { again(fd, Some(offset).filter(|offset| *offset != -1), vector, count) };
    // SAFETY: the caller's promise.
    written_at(fd, (place, || unsafe { bytes_of(vector, count) }), || {
        stock!(PWRITEV2(
            fd => c_int, vector => *const iovec, count => c_int, offset => off_t,
            flags => c_int
        ) -> ssize_t)
    })
}

extern "C" fn ftruncate(fd: c_int, size: off_t) -> c_int {
    if !shared_io::is_shared(fd)
        && let Some(mut recorder) = recorder::enter()
    {
        recorder.not_again_of(fd);
    }
    resized(fd, size, || {
        let _call = before(fd, || Change::Resize(u64::try_from(size).unwrap_or(u64::MAX)));
        stock!(FTRUNCATE(fd => c_int, size => off_t) -> c_int)
    })
}

extern "C" fn fallocate(fd: c_int, mode: c_int, offset: off_t, bytes: off_t) -> c_int {
    const MOVES: c_int = libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE;
    let range = || Change::Write(at(offset), bytes.unsigned_abs());
    resized(fd, bytes, || {
        let (_all, _call) = if mode & MOVES != 0 {
            (before(fd, || Change::Whole), before(fd, || Change::Resize(0)))
        } else {
            (InFlight::NONE, before(fd, range))
        };
        stock!(FALLOCATE(
            fd => c_int, mode => c_int, offset => off_t, bytes => off_t
        ) -> c_int)
    })
}

extern "C" fn posix_fallocate(fd: c_int, offset: off_t, bytes: off_t) -> c_int {
    resized(fd, bytes, || {
        let _call = before(fd, || Change::Write(at(offset), bytes.unsigned_abs()));
        stock!(POSIX_FALLOCATE(fd => c_int, offset => off_t, bytes => off_t) -> c_int)
    })
}

/// A call that reads from one descriptor and changes another one's file: who is counted must not
/// wait for the lock.
fn both(from: c_int, change: impl Fn() -> InFlight) -> InFlight {
    loop {
        drop(reads::before(from));
        let call = change();
        if reads::is_noted(from) {
            return call;
        }
    }
}

unsafe extern "C" fn aio_write(what: *mut aiocb) -> c_int {
    // SAFETY: the caller's promise to aio_write(3).
    if let Some(what) = unsafe { what.as_ref() } {
        if shared_io::is_shared(what.aio_fildes) {
            shared_io::asynchronous();
        }
        let place = at(what.aio_offset);
        drop(before(what.aio_fildes, || Change::Write(place, what.aio_nbytes as u64)));
    }
    stock!(AIO_WRITE(what => *mut aiocb) -> c_int)
}

unsafe extern "C" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    bytes: size_t,
) -> ssize_t {
    let _call = both(from, || before(to, || Change::Write(Place::Offset, bytes as u64)));
    stock!(SENDFILE(
        to => c_int, from => c_int, offset => *mut off_t, bytes => size_t
    ) -> ssize_t)
}

unsafe extern "C" fn copy_file_range(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    bytes: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the caller's promise to copy_file_range(2).
    let place = unsafe { to_offset.as_ref() }.map_or(Place::Offset, |offset| at(*offset));
    let _call = both(from, || before(to, || Change::Write(place, bytes as u64)));
    stock!(COPY_FILE_RANGE(
        from => c_int, from_offset => *mut off_t, to => c_int, to_offset => *mut off_t,
        bytes => size_t, flags => c_uint
    ) -> ssize_t)
}

/// What is written to shared memory of a file is not seen: all that is mapped is recorded. What is
/// mapped at a checkpoint is in the image.
unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let is_file = fd >= 0 && flags & libc::MAP_ANONYMOUS == 0;
    let is_shared = flags & libc::MAP_SHARED != 0 && is_file;
    let changes = || {
        if is_shared && protection & libc::PROT_WRITE != 0 {
            before(fd, || Change::Write(at(offset), bytes as u64))
        } else {
            InFlight::NONE
        }
    };
    let reads = is_file && protection & libc::PROT_READ != 0;
    let _call = if reads { both(fd, changes) } else { changes() };
    stock!(MMAP(
        address => *mut c_void, bytes => size_t, protection => c_int, flags => c_int,
        fd => c_int, offset => off_t
    ) -> *mut c_void)
}
