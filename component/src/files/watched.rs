//! A process that was restored alone reads again what it had read before it failed. Others go on,
//! and may write to the same files meanwhile: then all are rolled back.
//!
//! What is asked here, and when: at each file that is opened or read for the first time, while
//! this process knows that it repeats something; and of all files when the coordinator asks whether
//! that is over, since the C library's streams and mapped memory read unseen. No image of all is
//! taken before that.

use crate::files::recorder;
use crate::files::shared_io;
use crate::files::system::{self, Path};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use libc::iovec;
use rustbtl_process::file_undo::WatchedReads;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that are compared at a time.
const PIECE_BYTES: usize = 1 << 14;

/// What is watched, or why it cannot be.
type Watched = Option<Result<WatchedReads, String>>;

static WATCHED: Mutex<Watched> = Mutex::new(None);
/// The program's thread that has it.
static OWNER: AtomicUsize = AtomicUsize::new(0);
/// This process knows that it repeats something.
static IS_REPEATING: AtomicBool = AtomicBool::new(false);

fn watched() -> MutexGuard<'static, Watched> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same for the program's own threads; `None`: this one has it already, below a handler of a
/// signal.
fn enter() -> Option<Entered> {
    let own = recorder::this_thread();
    if OWNER.load(Ordering::Relaxed) == own {
        return None;
    }
    let guard = watched();
    OWNER.store(own, Ordering::Relaxed);
    Some(Entered(guard))
}

struct Entered(MutexGuard<'static, Watched>);

impl Drop for Entered {
    fn drop(&mut self) {
        OWNER.store(0, Ordering::Relaxed);
    }
}

/// All processes of the set have been restored, and none runs yet. `folder`, `epoch`: of the
/// journal.
pub fn restored(folder: &std::path::Path, epoch: u64) {
    let begun = WatchedReads::begin(folder, epoch);
    *watched() = Some(begun.map_err(|error| error.to_string()));
}

/// Others continue, or nobody does.
pub fn restored_alone(is_alone: bool) {
    let mut watched = watched();
    *watched = watched.take().filter(|_| is_alone).map(|begun| {
        let mut all = begun?;
        all.others_continue().map_err(|error| error.to_string())?;
        Ok(all)
    });
    IS_REPEATING.store(watched.is_some(), Ordering::Relaxed);
}

/// As far as this process knows, it has repeated everything.
pub fn has_repeated() {
    IS_REPEATING.store(false, Ordering::Relaxed);
}

/// Is this process repeating something?
#[inline]
pub fn is_repeating() -> bool {
    IS_REPEATING.load(Ordering::Relaxed)
}

/// The program is going to read this file. Not while a lock of ours is held: does not return if
/// others have changed it.
pub fn reads(path: &[u8]) {
    let Some(mut entered) = enter() else { return };
    let problem = match &mut *entered.0 {
        None => None,
        Some(Ok(watched)) => watched.check_one(path).err(),
        Some(Err(problem)) => Some(problem.clone()),
    };
    drop(entered);
    if let Some(problem) = problem {
        shared_io::diverged(&problem);
    }
}

/// The program is going to write this to an open file, again: what is there already must be the
/// same where others have written to the file, too. Not while a lock of ours is held: does not
/// return if it is not. `at`: `None` for where the descriptor is.
///
/// # Safety
/// The memory may be read.
pub unsafe fn writes(fd: c_int, at: Option<u64>, vector: &[iovec]) {
    let Some(entered) = enter() else { return };
    let is_left = |path: &Path| match &*entered.0 {
        Some(Ok(watched)) => watched.is_left_as_it_is(path.bytes()),
        Some(Err(_)) => true,
        None => false,
    };
    let Some(path) = Path::of_descriptor(fd).filter(is_left) else { return };
    drop(entered);
    let Some(reader) = Path::of_link(fd).open(libc::O_RDONLY) else { return };
    let mut at = at.unwrap_or_else(|| system::offset_of(fd));
    let mut is_same = true;
    for part in vector.iter().filter(|part| part.iov_len > 0) {
        // SAFETY: the caller's promise.
        let wanted =
            unsafe { core::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
        is_same &= is_there(reader, at, wanted);
        at = at.saturating_add(wanted.len() as u64);
    }
    system::close(reader);
    if !is_same {
        let shown = String::from_utf8_lossy(path.bytes());
        shared_io::diverged(&format!(
            "{shown} holds something else than what this process writes there again, and others \
             have written to it, too"
        ));
    }
}

/// Does the file hold these bytes there, as far as it goes?
fn is_there(fd: c_int, at: u64, wanted: &[u8]) -> bool {
    let mut found = [0; PIECE_BYTES];
    wanted.chunks(PIECE_BYTES).enumerate().all(|(piece, wanted)| {
        let at = at.saturating_add((piece * PIECE_BYTES) as u64);
        let read = system::read_at(fd, &mut found[..wanted.len()], at);
        found[..read] == wanted[..read]
    })
}

/// Nothing is repeated any more. Was everything what it had been?
///
/// # Errors
/// Others have changed a file, or may have: all have to be rolled back.
pub fn end() -> Result<(), String> {
    has_repeated();
    match watched().take() {
        None => Ok(()),
        Some(Ok(watched)) => watched.check(),
        Some(Err(problem)) => Err(problem),
    }
}
