//! Streams of the C library (stdio): it writes by calls inside of it, which nobody sees.
//!
//! A stream that only writes moves forward from where it is: what the file had when the epoch began
//! is behind it, until the program moves the stream (fseek). Then, and if the stream may write
//! anywhere from its beginning (`r+`), all that the file had is recorded; for one that is open at a
//! checkpoint while all threads are suspended (`epoch`).

use crate::files::functions::{Function, stock};
use crate::files::held;
use crate::files::recorder::{
    self, ANYWHERE, Guard, NO_STREAM, READS, Recorder, SEQUENTIAL, id_of,
};
use crate::files::system::{self, Path};
use crate::files::watched;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use libc::{FILE, off_t};

static FOPEN: Function = Function::of(&[c"fopen64", c"fopen"]);
static FREOPEN: Function = Function::of(&[c"freopen64", c"freopen"]);
static FDOPEN: Function = Function::of(&[c"fdopen"]);
static FCLOSE: Function = Function::of(&[c"fclose"]);
static FSEEK: Function = Function::of(&[c"fseek"]);
static FSEEKO: Function = Function::of(&[c"fseeko64", c"fseeko"]);
static REWIND: Function = Function::of(&[c"rewind"]);
static FSETPOS: Function = Function::of(&[c"fsetpos64", c"fsetpos"]);

/// All of them, and the addresses of ours.
pub fn functions() -> Vec<(&'static Function, usize)> {
    [
        (&FOPEN, fopen as *const ()),
        (&FREOPEN, freopen as *const ()),
        (&FDOPEN, fdopen as *const ()),
        (&FCLOSE, fclose as *const ()),
        (&FSEEK, fseek as *const ()),
        (&FSEEKO, fseeko as *const ()),
        (&REWIND, rewind as *const ()),
        (&FSETPOS, fsetpos as *const ()),
    ]
    .map(|(function, own)| (function, own.expose_provenance()))
    .to_vec()
}

/// How a stream is opened: what the C library makes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Reads,
    /// `w`: the file is emptied.
    Empties,
    /// `a`: at the end.
    Appends,
    /// `r+`.
    Updates,
}

fn mode_of(text: &[u8]) -> Mode {
    match (text.first(), text.contains(&b'+')) {
        (Some(b'w'), _) => Mode::Empties,
        (Some(b'a'), _) => Mode::Appends,
        (Some(b'r'), true) => Mode::Updates,
        _ => Mode::Reads,
    }
}

/// Of an open stream.
fn number(stream: *mut FILE) -> c_int {
    // SAFETY: the program's own open stream.
    unsafe { libc::fileno(stream) }
}

impl Recorder {
    /// Anything may be done to the open file from now on.
    fn before_anything(&mut self, fd: c_int) {
        if let (Some(stat), Some(path)) = (system::fstat(fd), Path::of_descriptor(fd))
            && system::is_regular(&stat)
            && stat.st_nlink > 0
            && !self.is_left_out(path.bytes())
        {
            let need = self.tracker.whole(id_of(&stat), stat.st_size as u64);
            if !need.is_empty() {
                self.satisfy(&path, (fd, system::flags_of(fd)), &stat, need);
            }
        }
    }

    /// A stream is open there.
    fn stream_opened(&mut self, fd: c_int, mode: Mode) {
        let (Some(stat), Some(path)) = (system::fstat(fd), Path::of_descriptor(fd)) else { return };
        if !system::is_regular(&stat) || self.is_left_out(path.bytes()) {
            return recorder::set_stream(fd, NO_STREAM);
        }
        if system::flags_of(fd) & libc::O_ACCMODE != libc::O_WRONLY {
            self.note_read(&path, &stat);
        }
        if mode == Mode::Reads {
            return recorder::set_stream(fd, READS);
        }
        self.declare(&path, &stat);
        let size = stat.st_size as u64;
        let need = match mode {
            Mode::Updates => self.tracker.whole(id_of(&stat), size),
            // It grows by writes that nobody sees.
            _ => self.tracker.write(id_of(&stat), size, size..size + 1),
        };
        if !need.is_empty() {
            self.satisfy(&path, (fd, system::flags_of(fd)), &stat, need);
        }
        recorder::set_stream(fd, if mode == Mode::Updates { ANYWHERE } else { SEQUENTIAL });
    }
}

/// Opens a stream by a call; `old`: the number that it had before.
///
/// # Safety
/// As for fopen(3).
unsafe fn opened(
    path: *const c_char,
    mode: *const c_char,
    old: Option<c_int>,
    call: impl Fn() -> *mut FILE,
) -> *mut FILE {
    let opened = || {
        // SAFETY: the caller's promise.
        unsafe { opened_now(path, mode, old, &call) }
    };
    // SAFETY: the caller's promise.
    let reads = !mode.is_null() && unsafe { *mode } as u8 == b'r';
    let stream = if old.is_some() {
        // It may be closed by the first attempt.
        // SAFETY: the caller's promise.
        unsafe { held::wait_for(libc::AT_FDCWD, path) };
        opened()
    } else {
        // SAFETY: the caller's promise.
        unsafe { held::open((libc::AT_FDCWD, path), reads, |stream| stream.is_null(), opened) }
    };
    // It counts as read since it was opened.
    if let Some(place) = (!stream.is_null()).then(|| Path::of_descriptor(number(stream))).flatten()
    {
        held::wait(place.bytes());
    }
    stream
}

/// The same where nobody holds it.
///
/// # Safety
/// As for fopen(3).
unsafe fn opened_now(
    path: *const c_char,
    mode: *const c_char,
    old: Option<c_int>,
    call: &impl Fn() -> *mut FILE,
) -> *mut FILE {
    let without = || {
        let stream = call();
        if !stream.is_null() {
            recorder::forget(number(stream));
        }
        stream
    };
    if path.is_null() || mode.is_null() || !recorder::is_on() {
        return without();
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    // SAFETY: the caller's promise.
    let mode = unsafe { CStr::from_ptr(mode) };
    let mode = mode_of(mode.to_bytes());
    let Some(place) = Path::given(libc::AT_FDCWD, path) else { return without() };
    if watched::is_repeating() && matches!(mode, Mode::Reads | Mode::Updates) {
        let real = Path::given(libc::AT_FDCWD, path).map(Path::in_real_folder);
        watched::reads(real.as_ref().unwrap_or(&place).bytes());
    }
    let before = place.stat(true);
    let is_file = match before {
        Ok(stat) => system::is_regular(&stat),
        Err(error) => error == libc::ENOENT,
    };
    if !is_file {
        return without();
    }
    let Some(mut recorder) = recorder::enter() else { return without() };
    if recorder.is_left_out(place.bytes()) {
        drop(recorder);
        return without();
    }
    if let Some(old) = old {
        recorder::set_stream(old, NO_STREAM);
    }
    let creates = before.is_err() && matches!(mode, Mode::Empties | Mode::Appends);
    if creates {
        recorder.before_creation(&place);
    } else if before.is_ok() && mode == Mode::Empties {
        recorder.before_resize(&place, 0);
    }
    let stream = call();
    let fd = if stream.is_null() { -1 } else { number(stream) };
    recorder::forget(fd);
    if creates {
        recorder.after_creation(&place, fd);
    }
    if fd >= 0 {
        recorder.stream_opened(fd, mode);
    }
    if matches!(mode, Mode::Empties | Mode::Appends) {
        recorder.not_again_of(fd);
    }
    stream
}

unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    let call = || stock!(FOPEN(path => *const c_char, mode => *const c_char) -> *mut FILE);
    // SAFETY: the caller's promise.
    unsafe { opened(path, mode, None, call) }
}

unsafe extern "C" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    let call = || {
        stock!(FREOPEN(
            path => *const c_char, mode => *const c_char, stream => *mut FILE
        ) -> *mut FILE)
    };
    // SAFETY: the caller's promise.
    unsafe { opened(path, mode, Some(number(stream)), call) }
}

unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's promise.
    let text = if mode.is_null() { &[][..] } else { unsafe { CStr::from_ptr(mode) }.to_bytes() };
    let reads = mode_of(text) == Mode::Reads;
    if system::fstat(fd).is_some_and(|stat| system::is_regular(&stat))
        && let Some(mut recorder) = recorder::enter()
    {
        let size = system::fstat(fd).map_or(0, |stat| stat.st_size as u64);
        let appends = system::flags_of(fd) & libc::O_APPEND != 0;
        let at_end = appends || system::offset_of(fd) >= size;
        let mode = if at_end { Mode::Appends } else { Mode::Updates };
        recorder.stream_opened(fd, if reads { Mode::Reads } else { mode });
    }
    stock!(FDOPEN(fd => c_int, mode => *const c_char) -> *mut FILE)
}

/// What the buffer has is written before: no snapshot comes between.
unsafe extern "C" fn fclose(stream: *mut FILE) -> c_int {
    let fd = if stream.is_null() || !recorder::is_on() { -1 } else { number(stream) };
    let guard: Option<Guard> =
        if recorder::stream(fd) == NO_STREAM { None } else { recorder::enter() };
    recorder::forget(fd);
    if guard.is_some() {
        recorder::set_stream(fd, NO_STREAM);
    }
    stock!(FCLOSE(stream => *mut FILE) -> c_int)
}

/// The stream is moved.
fn moves(stream: *mut FILE) {
    recorder::moved();
    if stream.is_null() || !recorder::is_on() {
        return;
    }
    let fd = number(stream);
    if recorder::stream(fd) != SEQUENTIAL {
        return;
    }
    let Some(mut recorder) = recorder::enter() else { return };
    if system::flags_of(fd) & libc::O_APPEND == 0 {
        recorder.before_anything(fd);
        recorder::set_stream(fd, ANYWHERE);
    }
}

unsafe extern "C" fn fseek(stream: *mut FILE, offset: c_long, whence: c_int) -> c_int {
    moves(stream);
    stock!(FSEEK(stream => *mut FILE, offset => c_long, whence => c_int) -> c_int)
}

unsafe extern "C" fn fseeko(stream: *mut FILE, offset: off_t, whence: c_int) -> c_int {
    moves(stream);
    stock!(FSEEKO(stream => *mut FILE, offset => off_t, whence => c_int) -> c_int)
}

unsafe extern "C" fn rewind(stream: *mut FILE) {
    moves(stream);
    stock!(REWIND(stream => *mut FILE) -> ());
}

unsafe extern "C" fn fsetpos(stream: *mut FILE, position: *const c_void) -> c_int {
    moves(stream);
    stock!(FSETPOS(stream => *mut FILE, position => *const c_void) -> c_int)
}

/// Files that were opened before anybody looked: there may be streams on them.
pub fn assume(fd: c_int) {
    let flags = system::flags_of(fd);
    let kind = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => READS,
        libc::O_WRONLY => SEQUENTIAL,
        _ if flags & libc::O_APPEND != 0 => SEQUENTIAL,
        _ => ANYWHERE,
    };
    if system::fstat(fd).is_some_and(|stat| system::is_regular(&stat)) {
        recorder::set_stream(fd, kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_what_the_c_library_makes_of_them() {
        for (text, mode) in [
            ("r", Mode::Reads),
            ("rb", Mode::Reads),
            ("r+", Mode::Updates),
            ("rb+", Mode::Updates),
            ("r+b", Mode::Updates),
            ("w", Mode::Empties),
            ("w+", Mode::Empties),
            ("a", Mode::Appends),
            ("a+e", Mode::Appends),
        ] {
            assert_eq!(mode_of(text.as_bytes()), mode, "{text}");
        }
    }
}
