//! Random numbers of the system that a protected program draws on its first thread: getrandom,
//! getentropy, arc4random, /dev/urandom and /dev/random, C++'s std::random_device (docs/adr/0029).
//! Fortran's random_seed and Python's random, secrets and uuid are built on these.
//!
//! They come from a generator in the process' memory (coordination's `RandomStream`), which the
//! kernel has seeded: a process that is restored draws the same again, and nothing is recorded.
//!
//! Calls come here by `interpose`, as the clocks' do. Descriptors of the two devices are noted when
//! they are opened; of a noted one the kernel is asked at each read whether it still is one. A
//! stdio stream of them is a stream of ours, so that its buffer is filled from the generator, too.
//!
//! As for clocks nothing is allocated, and a signal handler that finds its thread in the engine
//! gets the kernel's random numbers, as other threads do.
//!
//! Invariant: where the first thread is recorded and not in the engine, no byte that it gets is
//! the kernel's.

use crate::determinants::set_order::rustbtl_recording;
use crate::engine::shared::{is_installed, shared};
use crate::mpi::interpose::{Callers, Source};
use crate::os::random;
use crate::sync::engine_lock;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use libc::{FILE, mode_t, size_t, ssize_t};

/// So much is drawn at once: meanwhile no checkpoint can begin.
const PART_BYTES: usize = 64 << 10;
/// What getentropy(3) gives at most.
const ENTROPY_MAX: usize = 256;
/// Options of getrandom(2): which device, and what if it has not begun.
const OPTIONS: c_uint = 7;

const DEVICES: [&CStr; 2] = [c"/dev/urandom", c"/dev/random"];
const DEVICE_MAJOR: c_uint = 1;
const DEVICE_MINORS: [c_uint; 2] = [8, 9];

/// Descriptors that were opened on one of the devices, a bit each.
static NOTED: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// Fills `out`, if this call is one that is recorded.
fn draw(out: &mut [u8]) -> bool {
    let is_on = || rustbtl_recording.load(Ordering::Acquire) != 0;
    if !is_on() || !engine_lock::is_first() || !is_installed() {
        return false;
    }
    for (part, bytes) in out.chunks_mut(PART_BYTES).enumerate() {
        let drawn = match shared().enter_unless_inside() {
            Some(mut driver) => is_on() && driver.host.record.random.draw(bytes),
            None => false,
        };
        // It was switched off amid a long draw: the rest is the kernel's.
        if !drawn && (part == 0 || random::fill(bytes).is_err()) {
            return false;
        }
    }
    true
}

/// The same for the program's memory.
///
/// # Safety
/// It is writable.
unsafe fn draw_to(out: *mut c_void, bytes: size_t) -> bool {
    if out.is_null() || bytes == 0 {
        return false;
    }
    // SAFETY: the caller's promise.
    draw(unsafe { core::slice::from_raw_parts_mut(out.cast(), bytes) })
}

/// What the library gave to a call that was not recorded: a snapshot may have been taken in
/// between, and then it is drawn.
///
/// # Safety
/// `given` bytes of it are writable.
unsafe fn or_drawn(out: *mut c_void, given: ssize_t) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { draw_to(out, usize::try_from(given).unwrap_or(0)) };
    given
}

unsafe extern "C-unwind" fn getrandom(out: *mut c_void, bytes: size_t, how: c_uint) -> ssize_t {
    // SAFETY: the caller's promise.
    if how & !OPTIONS == 0 && bytes < 1 << 25 && unsafe { draw_to(out, bytes) } {
        return bytes as ssize_t;
    }
    // SAFETY: the caller's promise.
    let given = unsafe { libc::getrandom(out, bytes, how) };
    // SAFETY: so much was written.
    unsafe { or_drawn(out, given) }
}

unsafe extern "C-unwind" fn getentropy(out: *mut c_void, bytes: size_t) -> c_int {
    // SAFETY: the caller's promise.
    if bytes <= ENTROPY_MAX && unsafe { draw_to(out, bytes) } {
        return 0;
    }
    // SAFETY: the caller's promise.
    let code = unsafe { libc::getentropy(out, bytes) };
    if code == 0 {
        // SAFETY: all of it was written.
        unsafe { or_drawn(out, bytes as ssize_t) };
    }
    code
}

extern "C" fn arc4random() -> u32 {
    let mut word = [0; 4];
    if !draw(&mut word) {
        // As the C library: nothing else can be done.
        if random::fill(&mut word).is_err() {
            std::process::abort();
        }
        draw(&mut word);
    }
    u32::from_ne_bytes(word)
}

unsafe extern "C" fn arc4random_buf(out: *mut c_void, bytes: size_t) {
    // SAFETY: the caller's promise.
    if bytes == 0 || unsafe { draw_to(out, bytes) } {
        return;
    }
    // SAFETY: the caller's promise.
    let all = unsafe { core::slice::from_raw_parts_mut(out.cast(), bytes) };
    if random::fill(all).is_err() {
        std::process::abort();
    }
    draw(all);
}

extern "C" fn arc4random_uniform(bound: u32) -> u32 {
    if bound < 2 {
        return 0;
    }
    // Those below are left out, so that all remainders are equally frequent.
    let least = bound.wrapping_neg() % bound;
    loop {
        let word = arc4random();
        if word >= least {
            return word % bound;
        }
    }
}

/// std::random_device's operator(), which may be an instruction of the processor.
unsafe extern "C-unwind" fn random_device(this: *mut c_void) -> c_uint {
    static STOCK: AtomicUsize = AtomicUsize::new(0);
    let mut word = [0; 4];
    if draw(&mut word) {
        return c_uint::from_ne_bytes(word);
    }
    if STOCK.load(Ordering::Relaxed) == 0 {
        // SAFETY: looks up a name.
        let stock = unsafe { libc::dlsym(libc::RTLD_DEFAULT, RANDOM_DEVICE.as_ptr()) };
        STOCK.store(stock.expose_provenance(), Ordering::Relaxed);
    }
    let stock: *const () = core::ptr::with_exposed_provenance(STOCK.load(Ordering::Relaxed));
    if stock.is_null() {
        return arc4random();
    }
    // SAFETY: the address of the function of that name, which takes the object alone.
    let stock: unsafe extern "C-unwind" fn(*mut c_void) -> c_uint =
        unsafe { core::mem::transmute(stock) };
    // SAFETY: the caller's promise.
    let given = unsafe { stock(this) };
    if draw(&mut word) { c_uint::from_ne_bytes(word) } else { given }
}

/// `std::random_device::_M_getval()`.
const RANDOM_DEVICE: &CStr = c"_ZNSt13random_device9_M_getvalEv";

/// Is this the path of one of the devices?
///
/// # Safety
/// A string, or null.
unsafe fn is_device(path: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    !path.is_null() && DEVICES.contains(&unsafe { CStr::from_ptr(path) })
}

fn note(fd: c_int) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

#[inline]
fn place(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    NOTED.get(fd / 64).map(|word| (word, 1 << (fd % 64)))
}

/// Is a noted descriptor still one of a device?
#[cold]
fn is_still_noted((word, bit): (&AtomicU64, u64), fd: c_int) -> bool {
    // SAFETY: a structure of integers.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: writable.
    let known = unsafe { libc::fstat(fd, &raw mut status) } == 0;
    let device = status.st_rdev;
    let is = known
        && status.st_mode & libc::S_IFMT == libc::S_IFCHR
        && libc::major(device) == DEVICE_MAJOR
        && DEVICE_MINORS.contains(&libc::minor(device));
    if !is {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
    is
}

/// Is it a descriptor of one of the devices, as far as is known?
#[inline]
fn is_noted(fd: c_int) -> bool {
    place(fd)
        .filter(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
        .is_some_and(|place| is_still_noted(place, fd))
}

unsafe extern "C-unwind" fn read(fd: c_int, out: *mut c_void, bytes: size_t) -> ssize_t {
    let is_noted = is_noted(fd);
    // SAFETY: the caller's promise.
    if is_noted && bytes < 1 << 25 && unsafe { draw_to(out, bytes) } {
        return bytes as ssize_t;
    }
    let _call = crate::files::reads::before(fd);
    // SAFETY: the caller's promise.
    let given = unsafe { libc::read(fd, out, bytes) };
    if is_noted {
        // SAFETY: so much was written.
        return unsafe { or_drawn(out, given) };
    }
    given
}

/// `room`: bytes that the compiler knows of.
unsafe extern "C-unwind" fn read_chk(
    fd: c_int,
    out: *mut c_void,
    bytes: size_t,
    room: size_t,
) -> ssize_t {
    if bytes > room {
        // As the C library.
        std::process::abort();
    }
    // SAFETY: the caller's promise.
    unsafe { read(fd, out, bytes) }
}

/// What the program would call without us, by name: the C library's, or those by which what it
/// changes in files is recorded (`crate::files`), which are put in place before.
struct Next {
    name: &'static CStr,
    /// 0: not looked up.
    address: AtomicUsize,
}

static OPEN: Next = Next { name: c"open64", address: AtomicUsize::new(0) };
static OPENAT: Next = Next { name: c"openat64", address: AtomicUsize::new(0) };
static FOPEN: Next = Next { name: c"fopen64", address: AtomicUsize::new(0) };

impl Next {
    fn function(&self) -> *const () {
        if self.address.load(Ordering::Relaxed) == 0 {
            // SAFETY: looks up a name, which the C library has.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, self.name.as_ptr()) };
            self.address.store(found.expose_provenance(), Ordering::Relaxed);
        }
        core::ptr::with_exposed_provenance(self.address.load(Ordering::Relaxed))
    }
}

/// Notes what was opened.
///
/// # Safety
/// `path` is a string, or null.
unsafe fn opened(path: *const c_char, fd: c_int) -> c_int {
    // SAFETY: the caller's promise.
    if fd >= 0 && unsafe { is_device(path) } {
        note(fd);
    }
    fd
}

// The mode comes in a register, whether the caller passes it or not.
unsafe extern "C-unwind" fn open(path: *const c_char, how: c_int, mode: mode_t) -> c_int {
    type Open = unsafe extern "C-unwind" fn(*const c_char, c_int, mode_t) -> c_int;
    // SAFETY: the function of that name.
    let next: Open = unsafe { core::mem::transmute(OPEN.function()) };
    // SAFETY: the caller's promise.
    let fd = unsafe { next(path, how, mode) };
    // SAFETY: the caller's promise.
    unsafe { opened(path, fd) }
}

unsafe extern "C-unwind" fn openat(
    folder: c_int,
    path: *const c_char,
    how: c_int,
    mode: mode_t,
) -> c_int {
    type Openat = unsafe extern "C-unwind" fn(c_int, *const c_char, c_int, mode_t) -> c_int;
    // SAFETY: the function of that name.
    let next: Openat = unsafe { core::mem::transmute(OPENAT.function()) };
    // SAFETY: the caller's promise.
    let fd = unsafe { next(folder, path, how, mode) };
    // SAFETY: the caller's promise.
    unsafe { opened(path, fd) }
}

unsafe extern "C-unwind" fn open_2(path: *const c_char, how: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { open(path, how, 0) }
}

unsafe extern "C-unwind" fn openat_2(folder: c_int, path: *const c_char, how: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { openat(folder, path, how, 0) }
}

/// Functions of a stream that is not a file's.
#[repr(C)]
struct StreamFunctions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    others: [usize; 3],
}

unsafe extern "C" {
    fn fopencookie(
        cookie: *mut c_void,
        mode: *const c_char,
        functions: StreamFunctions,
    ) -> *mut FILE;
}

unsafe extern "C" fn read_stream(_: *mut c_void, out: *mut c_char, bytes: size_t) -> ssize_t {
    // SAFETY: the C library's own buffer, or the program's.
    unsafe { arc4random_buf(out.cast(), bytes) };
    bytes as ssize_t
}

unsafe extern "C-unwind" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's promise.
    if unsafe { is_device(path) } && !mode.is_null() {
        // SAFETY: the caller's promise.
        let how = unsafe { CStr::from_ptr(mode) }.to_bytes();
        if how.starts_with(b"r") && !how.contains(&b'+') {
            let functions = StreamFunctions { read: read_stream, others: [0; 3] };
            // SAFETY: functions that need no cookie.
            return unsafe { fopencookie(core::ptr::null_mut(), c"r".as_ptr(), functions) };
        }
    }
    // SAFETY: the caller's promise.
    unsafe { next_fopen(path, mode) }
}

/// # Safety
/// As for fopen(3).
unsafe fn next_fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    type Fopen = unsafe extern "C-unwind" fn(*const c_char, *const c_char) -> *mut FILE;
    // SAFETY: the function of that name.
    let next: Fopen = unsafe { core::mem::transmute(FOPEN.function()) };
    // SAFETY: the caller's promise.
    unsafe { next(path, mode) }
}

/// For C++'s library, which reads by the stream's descriptor.
unsafe extern "C-unwind" fn fopen_noted(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's promise.
    let stream = unsafe { next_fopen(path, mode) };
    // SAFETY: the caller's promise.
    if !stream.is_null() && unsafe { is_device(path) } {
        // SAFETY: an open stream.
        note(unsafe { libc::fileno(stream) });
    }
    stream
}

/// The program may have opened the devices before MPI_Init.
pub fn note_open_descriptors() {
    let Ok(folder) = std::fs::read_dir("/proc/self/fd") else { return };
    for entry in folder.flatten() {
        let Ok(path) = std::fs::read_link(entry.path()) else { continue };
        let is =
            DEVICES.iter().any(|device| device.to_bytes() == path.as_os_str().as_encoded_bytes());
        if let Some(fd) = entry.file_name().to_str().and_then(|fd| fd.parse().ok()).filter(|_| is) {
            note(fd);
        }
    }
}

/// The functions that are called by way of us. What they call next is in place.
pub fn sources() -> Vec<Source> {
    for next in [&OPEN, &OPENAT, &FOPEN] {
        next.function();
    }
    let for_later = [
        Source::of(c"getrandom", getrandom as *const ()),
        Source::of(c"getentropy", getentropy as *const ()),
        Source::of(c"arc4random", arc4random as *const ()),
        Source::of(c"arc4random_buf", arc4random_buf as *const ()),
        Source::of(c"arc4random_uniform", arc4random_uniform as *const ()),
    ]
    .map(Source::and_later);
    let stream = |name, own, callers| Source::of(name, own).called_by(callers);
    let (fopen, noted) = (fopen as *const (), fopen_noted as *const ());
    let others = [
        Source::of(RANDOM_DEVICE, random_device as *const ()),
        Source::of(c"read", read as *const ()),
        Source::of(c"__read_chk", read_chk as *const ()),
        Source::of(c"open", open as *const ()),
        Source::of(c"open64", open as *const ()),
        Source::of(c"__open_2", open_2 as *const ()),
        Source::of(c"__open64_2", open_2 as *const ()),
        Source::of(c"openat", openat as *const ()),
        Source::of(c"openat64", openat as *const ()),
        Source::of(c"__openat_2", openat_2 as *const ()),
        Source::of(c"__openat64_2", openat_2 as *const ()),
        stream(c"fopen", fopen, Callers::ProgramsButCxx),
        stream(c"fopen64", fopen, Callers::ProgramsButCxx),
        stream(c"fopen", noted, Callers::CxxLibrary),
        stream(c"fopen64", noted, Callers::CxxLibrary),
    ];
    for_later.into_iter().chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_mixed(bytes: &[u8]) -> bool {
        bytes.iter().any(|byte| *byte != bytes[0])
    }

    #[test]
    fn who_is_not_recorded_draws_the_kernels() {
        let mut out = [0u8; 64];
        let to = |out: &mut [u8]| out.as_mut_ptr().cast::<c_void>();
        // SAFETY: writable.
        assert_eq!(unsafe { getrandom(to(&mut out), 64, 0) }, 64);
        assert!(is_mixed(&out));
        out.fill(0);
        // SAFETY: writable.
        assert_eq!(unsafe { getentropy(to(&mut out), 64) }, 0);
        assert!(is_mixed(&out));
        out.fill(0);
        // SAFETY: writable.
        unsafe { arc4random_buf(to(&mut out), 64) };
        assert!(is_mixed(&out) && arc4random() != arc4random());
        assert_eq!([arc4random_uniform(0), arc4random_uniform(1)], [0, 0]);
        assert!((0..1000).all(|_| arc4random_uniform(3) < 3));
        assert!(!draw(&mut out));
        // SAFETY: no memory.
        assert_eq!(unsafe { getentropy(core::ptr::null_mut(), 300) }, -1);
    }

    #[test]
    fn descriptors_of_the_devices_are_noted_as_long_as_they_are_that() {
        // SAFETY: a string.
        let fd = unsafe { open(DEVICES[0].as_ptr(), libc::O_RDONLY, 0) };
        let mut out = [0u8; 64];
        // SAFETY: writable.
        assert_eq!(unsafe { read(fd, out.as_mut_ptr().cast(), 64) }, 64);
        assert!(is_mixed(&out) && is_noted(fd));
        // SAFETY: strings.
        let file = unsafe { openat(libc::AT_FDCWD, c"/dev/null".as_ptr(), libc::O_RDONLY, 0) };
        assert!(!is_noted(file) && !is_noted(-1) && !is_noted(1 << 20));
        // SAFETY: our own descriptors.
        unsafe { libc::dup2(file, fd) };
        assert!(!is_noted(fd));
        // SAFETY: writable.
        assert_eq!(unsafe { read_chk(fd, out.as_mut_ptr().cast(), 64, 64) }, 0);
        // SAFETY: our own.
        unsafe { libc::close(fd) };
        // SAFETY: a string.
        let other = unsafe { openat_2(libc::AT_FDCWD, DEVICES[1].as_ptr(), libc::O_RDONLY) };
        assert!(is_noted(other));
        note_open_descriptors();
        // SAFETY: our own.
        unsafe { libc::close(other) };
        // SAFETY: our own.
        unsafe { libc::close(file) };
    }

    #[test]
    fn streams_of_the_devices_are_filled_by_us() {
        let mut out = [0u8; 64];
        // SAFETY: strings.
        let stream = unsafe { fopen(DEVICES[0].as_ptr(), c"rb".as_ptr()) };
        // SAFETY: writable, an open stream.
        assert_eq!(unsafe { libc::fread(out.as_mut_ptr().cast(), 1, 64, stream) }, 64);
        // SAFETY: an open stream.
        let fd = unsafe { libc::fileno(stream) };
        assert!(is_mixed(&out) && fd == -1);
        // SAFETY: an open stream.
        unsafe { libc::fclose(stream) };
        // SAFETY: strings.
        let stream = unsafe { fopen_noted(DEVICES[1].as_ptr(), c"r".as_ptr()) };
        // SAFETY: an open stream.
        assert!(is_noted(unsafe { libc::fileno(stream) }));
        // SAFETY: an open stream.
        unsafe { libc::fclose(stream) };
    }
}
