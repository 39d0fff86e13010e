//! What is recorded of the program's files, and who may write now.
//!
//! Most writes need nothing: the file is new in this epoch, or all of it is recorded, or it is no
//! file. That is noted for each descriptor number (`QUIET`) and costs a look. Others take the
//! lock, record, and make their call after it is released.
//!
//! Invariants:
//! 1. A call that changes a file is made while it is counted (`IN_FLIGHT`), or under the lock.
//!    Who begins an epoch takes the lock, gives the epoch another number and waits until nobody is
//!    counted: so no change falls between an epoch and its snapshot.
//! 2. A number that is quiet is so for this epoch, and until it is closed.
//! 3. A copy of the process that fork(2) has made records nothing.

use crate::files::reads::hash_of;
use crate::files::system::{self, Path};
use crate::files::watched::Watched;
use crate::sync::checkpoint_signals;
use crate::sync::lock::Lock;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ops::{Deref, DerefMut, Range};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use libc::stat;
use rustbtl_checkpoint::file_undo::{Entry, FileId, Need, Tracker};
use rustbtl_process::file_undo::Journal;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

/// Descriptor numbers for which something is noted; others are looked at each time.
pub const NUMBERS: usize = 1 << 16;

/// By number: twice the epoch in which no write through it needs anything; one more: it is no file.
static QUIET: [AtomicU32; NUMBERS] = [const { AtomicU32::new(0) }; NUMBERS];
/// By number: where [`position`] was when the offset was behind what is to be recorded.
static AHEAD: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];
/// How often any offset was moved.
static MOVES: AtomicU32 = AtomicU32::new(0);
/// By number: is a stream of the C library open on it, which writes without our seeing it?
pub static STREAMS: [AtomicU8; NUMBERS] = [const { AtomicU8::new(NO_STREAM) }; NUMBERS];
/// The number of the epoch in this process; never 0.
static EPOCH: AtomicU32 = AtomicU32::new(1);
/// Calls that are being made.
static IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);
/// Is anything recorded?
static IS_ON: AtomicBool = AtomicBool::new(false);

/// No stream.
pub const NO_STREAM: u8 = 0;
/// One that only ever writes at the end.
pub const SEQUENTIAL: u8 = 1;
/// One that may write anywhere.
pub const ANYWHERE: u8 = 2;
/// One that reads only.
pub const READS: u8 = 3;

/// What the lock protects.
pub struct Recorder {
    pub(super) tracker: Tracker,
    pub(super) journal: Journal,
    /// Content in journals of earlier epochs that are kept.
    pub(super) contents: BTreeMap<u64, u64>,
    /// Epochs that begin with a checkpoint.
    pub(super) checkpoints: BTreeMap<u64, u64>,
    /// Files of Open MPI's own.
    pub(super) session: Vec<u8>,
    /// Where files are that lost their name in this epoch or an earlier one, and may be open.
    pub(super) saved_as: BTreeMap<FileId, Vec<u8>>,
    /// Noted as read in this epoch, with a hash of the path.
    pub(super) reads: BTreeSet<(FileId, u64)>,
    /// Hashes of paths that were noted in this epoch by [`Recorder::not_again`].
    pub(super) not_again: BTreeSet<u64>,
    /// What it had read before it failed; see `watched`.
    pub(super) watched: Watched,
    saved: u64,
    is_named: bool,
}

struct Shared {
    lock: Lock,
    /// The thread that has it: a handler of a signal may call while it does.
    owner: AtomicUsize,
    recorder: UnsafeCell<Recorder>,
}

// SAFETY: the recorder is reached with the lock only.
unsafe impl Sync for Shared {}

static SHARED: OnceLock<Shared> = OnceLock::new();
/// A file that is not put back, for the checkpoint thread to name.
pub static NOTICE: OnceLock<String> = OnceLock::new();

/// The recorder, locked.
pub struct Guard(&'static Shared);

impl Deref for Guard {
    type Target = Recorder;

    fn deref(&self) -> &Recorder {
        // SAFETY: the lock is held.
        unsafe { &*self.0.recorder.get() }
    }
}

impl DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut Recorder {
        // SAFETY: the lock is held.
        unsafe { &mut *self.0.recorder.get() }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.owner.store(0, Ordering::Relaxed);
        self.0.lock.unlock();
    }
}

/// A number for it.
fn this_thread() -> usize {
    // SAFETY: no arguments.
    unsafe { libc::pthread_self() as usize }
}

/// `None`: nothing is recorded, or this thread has it already.
pub fn enter() -> Option<Guard> {
    if is_on() { enter_stopped() } else { None }
}

/// The same where nothing is recorded any more.
pub(super) fn enter_stopped() -> Option<Guard> {
    let shared = SHARED.get()?;
    let own = this_thread();
    if shared.owner.load(Ordering::Relaxed) == own {
        return None;
    }
    shared.lock.lock();
    shared.owner.store(own, Ordering::Relaxed);
    Some(Guard(shared))
}

/// From now on changes are recorded.
pub fn start(journal: Journal, budget: u64, session: Vec<u8>) {
    extern "C" fn in_copy() {
        IS_ON.store(false, Ordering::Relaxed);
    }
    let recorder = Recorder {
        tracker: Tracker::new(budget),
        journal,
        contents: BTreeMap::new(),
        checkpoints: BTreeMap::new(),
        session,
        saved_as: BTreeMap::new(),
        reads: BTreeSet::new(),
        not_again: BTreeSet::new(),
        watched: None,
        saved: 0,
        is_named: false,
    };
    let recorder = UnsafeCell::new(recorder);
    let shared = Shared { lock: Lock::new(), owner: AtomicUsize::new(0), recorder };
    if SHARED.set(shared).is_ok() {
        // SAFETY: the function lives as long as the process.
        unsafe { libc::pthread_atfork(None, None, Some(in_copy)) };
        IS_ON.store(true, Ordering::Relaxed);
    }
}

/// The program calls MPI_Finalize: there are no checkpoints any more.
pub fn stop() {
    if let Some(mut guard) = enter() {
        IS_ON.store(false, Ordering::Relaxed);
        guard.journal.remove_if_temporary();
    }
}

/// The number of the epoch.
pub fn epoch() -> u32 {
    EPOCH.load(Ordering::SeqCst)
}

/// Is anything recorded?
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// A call is being made (invariant 1).
pub struct InFlight(bool);

impl InFlight {
    /// It changes nothing that is recorded.
    pub const NONE: Self = Self(false);

    /// Under the lock, which is released before the call is made.
    pub fn begin() -> Self {
        IN_FLIGHT.fetch_add(1, Ordering::SeqCst);
        Self(true)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.0 {
            IN_FLIGHT.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Where a call writes.
#[derive(Clone, Copy)]
pub enum Place {
    /// At the offset of the descriptor.
    Offset,
    /// There.
    At(u64),
}

/// What a call is going to do.
#[derive(Clone, Copy)]
pub enum Change {
    /// Write so many bytes.
    Write(Place, u64),
    /// Give the file this size.
    Resize(u64),
    /// Anything.
    Whole,
}

/// A call is going to change this descriptor's file; it is made while the answer is held.
#[inline]
pub fn before(fd: c_int, change: impl FnOnce() -> Change) -> InFlight {
    let quiet = usize::try_from(fd).ok().and_then(|fd| QUIET.get(fd));
    let quiet = quiet.map_or(0, |quiet| quiet.load(Ordering::Relaxed));
    let epoch = EPOCH.load(Ordering::Relaxed);
    if quiet == 2 * epoch + 1 {
        return InFlight::NONE;
    }
    if quiet == 2 * epoch {
        let call = InFlight::begin();
        if EPOCH.load(Ordering::SeqCst) == epoch {
            return call;
        }
    }
    if !is_on() {
        return InFlight::NONE;
    }
    record(fd, change())
}

/// The same for one that writes at the descriptor's offset. Behind what is to be recorded it stays
/// there until it is moved.
#[inline]
pub fn before_next(fd: c_int, bytes: impl FnOnce() -> u64) -> InFlight {
    let ahead = usize::try_from(fd).ok().and_then(|fd| AHEAD.get(fd));
    let ahead = ahead.map_or(0, |ahead| ahead.load(Ordering::Relaxed));
    if ahead != 0 && ahead == position() {
        let call = InFlight::begin();
        if position() == ahead {
            return call;
        }
    }
    before(fd, || Change::Write(Place::Offset, bytes()))
}

/// The epoch, and how often any offset was moved.
fn position() -> u64 {
    let moves = MOVES.load(Ordering::SeqCst);
    u64::from(EPOCH.load(Ordering::SeqCst)) << 32 | u64::from(moves)
}

/// An offset was moved: those of other numbers may be the same.
pub fn moved() {
    MOVES.fetch_add(1, Ordering::SeqCst);
}

/// The number was closed, or is another file's now.
pub fn forget(fd: c_int) {
    crate::files::reads::forget(fd);
    crate::files::shared_io::forget(fd);
    if let Some(quiet) = usize::try_from(fd).ok().and_then(|fd| QUIET.get(fd)) {
        quiet.store(0, Ordering::Relaxed);
    }
    if let Some(ahead) = usize::try_from(fd).ok().and_then(|fd| AHEAD.get(fd)) {
        ahead.store(0, Ordering::Relaxed);
    }
}

/// Of a stream on this number.
pub fn stream(fd: c_int) -> u8 {
    let stream = usize::try_from(fd).ok().and_then(|fd| STREAMS.get(fd));
    stream.map_or(NO_STREAM, |stream| stream.load(Ordering::Relaxed))
}

/// Under the lock.
pub fn set_stream(fd: c_int, kind: u8) {
    if let Some(stream) = usize::try_from(fd).ok().and_then(|fd| STREAMS.get(fd)) {
        stream.store(kind, Ordering::Relaxed);
    }
}

fn set_quiet(fd: c_int, is_file: bool) {
    let value = 2 * EPOCH.load(Ordering::Relaxed) + u32::from(!is_file);
    if let Some(quiet) = usize::try_from(fd).ok().and_then(|fd| QUIET.get(fd)) {
        quiet.store(value, Ordering::Relaxed);
    }
}

/// Another epoch begins, under the lock: false: a call takes too long.
pub(super) fn close_epoch(mut is_over: impl FnMut() -> bool) -> bool {
    let next = EPOCH.load(Ordering::Relaxed).wrapping_add(1) & (u32::MAX >> 2);
    EPOCH.store(next.max(1), Ordering::SeqCst);
    // Both sides change theirs before they look at the other's.
    core::sync::atomic::fence(Ordering::SeqCst);
    while IN_FLIGHT.load(Ordering::SeqCst) != 0 {
        if is_over() {
            return false;
        }
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
    true
}

/// What is known of a file by its status.
pub fn id_of(stat: &stat) -> FileId {
    FileId { device: stat.st_dev, inode: stat.st_ino }
}

#[cold]
fn record(fd: c_int, change: Change) -> InFlight {
    let Some(stat) = system::fstat(fd) else { return InFlight::NONE };
    // What has no name is in the image.
    if !system::is_regular(&stat) || stat.st_nlink == 0 {
        set_quiet(fd, false);
        return InFlight::NONE;
    }
    let Some(mut recorder) = enter() else { return InFlight::NONE };
    if !recorder.is_recording() {
        set_quiet(fd, true);
        return InFlight::begin();
    }
    let id = id_of(&stat);
    let mut path = None;
    if !recorder.tracker.knows(id) {
        path = Path::of_descriptor(fd);
        if path.as_ref().is_none_or(|path| recorder.is_left_out(path.bytes())) {
            set_quiet(fd, false);
            return InFlight::NONE;
        }
    }
    let (size, flags) = (stat.st_size as u64, system::flags_of(fd));
    let appends = flags & libc::O_APPEND != 0;
    let position = position();
    let mut is_ahead = false;
    let tracker = &mut recorder.tracker;
    let need = match change {
        Change::Write(_, 0) => Need::default(),
        Change::Write(place, bytes) => {
            let at = match place {
                _ if appends => size,
                Place::At(at) => at,
                Place::Offset => system::offset_of(fd),
            };
            let need = tracker.write(id, size, at..at.saturating_add(bytes));
            is_ahead = matches!(place, Place::Offset) && tracker.is_settled_from(id, at);
            need
        }
        Change::Resize(to) => tracker.resize(id, size, to),
        Change::Whole => tracker.whole(id, size),
    };
    if !need.is_empty()
        && let Some(path) = path.or_else(|| Path::of_descriptor(fd))
    {
        let path = recorder.present(path, id);
        recorder.satisfy(&path, (fd, flags), &stat, need);
    }
    if recorder.tracker.is_settled(id, appends) {
        set_quiet(fd, true);
    }
    if let Some(ahead) = usize::try_from(fd).ok().and_then(|fd| AHEAD.get(fd)).filter(|_| is_ahead)
    {
        ahead.store(position, Ordering::Relaxed);
    }
    InFlight::begin()
}

impl Recorder {
    /// Files that are none of the program's.
    pub fn is_left_out(&self, path: &[u8]) -> bool {
        const OTHERS: [&[u8]; 6] = [
            b"/proc/",
            b"/sys/",
            b"/dev/shm/vader_segment.",
            b"/dev/shm/open_mpi.",
            b"/dev/shm/rustbtl",
            b"/memfd:",
        ];
        let begins = |with: &[u8]| !with.is_empty() && path.starts_with(with);
        let device = path.starts_with(b"/dev/") && !path.starts_with(b"/dev/shm/");
        let folder = self.journal.folder().parent().unwrap_or(self.journal.folder());
        device
            || OTHERS.into_iter().any(begins)
            || begins(&self.session)
            || begins(folder.as_os_str().as_encoded_bytes())
    }

    /// Where a file is whose name may have been removed while it is open.
    fn present(&self, path: Path, id: FileId) -> Path {
        let saved = self.saved_as.get(&id).filter(|_| path.bytes().ends_with(b" (deleted)"));
        saved.map_or(path, |saved| Path::of(&[saved]))
    }

    /// Records what is needed before a change (1 of the core). `file`: open, and its flags.
    pub fn satisfy(&mut self, path: &Path, file: (c_int, c_int), stat: &stat, need: Need) {
        let (fd, flags) = file;
        if !self.is_recording() {
            return;
        }
        let mut is_missing = need.missing;
        if !need.content.is_empty() {
            let is_readable =
                flags & libc::O_ACCMODE == libc::O_RDWR && flags & libc::O_DIRECT == 0;
            let reader =
                if is_readable { Some(fd) } else { Path::of_link(fd).open(libc::O_RDONLY) };
            is_missing |= !reader.is_some_and(|reader| self.save(path, reader, &need.content));
            if let Some(reader) = reader.filter(|reader| *reader != fd) {
                system::close(reader);
            }
        }
        if is_missing {
            self.give_up(path, id_of(stat), stat.st_size as u64);
        }
        if let Some((size, extend)) = need.size {
            let entry = Entry::Size { path: path.bytes(), size, extend };
            self.append(path, &entry);
        }
        self.journal.sync();
    }

    fn save(&mut self, path: &Path, reader: c_int, content: &[Range<u64>]) -> bool {
        let mut all = content.iter();
        all.all(|range| self.journal.save(path.bytes(), reader, range.clone()).is_ok())
    }

    /// Before the first snapshot there is nothing to roll back to.
    pub fn is_recording(&self) -> bool {
        self.journal.epoch() > 0
    }

    /// Appends an entry; without room the file is not put back.
    pub fn append(&mut self, path: &Path, entry: &Entry<'_>) {
        if self.is_recording() && self.journal.append(entry).is_err() {
            self.name(path);
        }
    }

    /// What is done to it must not be done again where others write to it.
    pub fn not_again(&mut self, path: &Path) {
        let is_noted = !self.is_recording() || self.is_left_out(path.bytes());
        if !is_noted && self.not_again.insert(hash_of(path.bytes())) {
            self.append(path, &Entry::NotAgain { path: path.bytes() });
        }
    }

    /// The same, of an open file.
    pub fn not_again_of(&mut self, fd: c_int) {
        if fd >= 0
            && let Some(path) = Path::of_descriptor(fd)
        {
            self.not_again(&path);
        }
    }

    /// Its content is not recorded any more in this epoch.
    pub fn give_up(&mut self, path: &Path, id: FileId, size: u64) {
        self.tracker.give_up(id, size);
        self.append(path, &Entry::Missing { path: path.bytes() });
        self.name(path);
    }

    pub(super) fn name(&mut self, path: &Path) {
        if !core::mem::replace(&mut self.is_named, true) {
            let _ = NOTICE.set(String::from_utf8_lossy(path.bytes()).into_owned());
            checkpoint_signals::wake();
        }
    }

    /// It is open for writing from now on.
    pub fn declare(&mut self, path: &Path, stat: &stat) {
        let id = id_of(stat);
        if !self.tracker.knows(id) {
            self.tracker.opened(id, stat.st_size as u64);
            self.append(path, &Entry::Writes { path: path.bytes() });
        }
    }

    /// A new name in the folder of the journal. An earlier incarnation may have used some.
    pub fn next_saved(&mut self) -> (Path, usize) {
        loop {
            self.saved += 1;
            let folder = self.journal.folder().as_os_str().as_encoded_bytes();
            let name = format!("saved-{}-{}", self.journal.epoch(), self.saved);
            let path = Path::of(&[folder, b"/", name.as_bytes()]);
            if path.stat(false).is_err() {
                return (path, name.len());
            }
        }
    }
}
