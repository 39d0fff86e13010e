//! A process that was restored alone reads again what it had read before it failed. Others go on,
//! and may write to the same files meanwhile: then all are rolled back.
//!
//! What is asked here, and when: at each file that is opened or read for the first time, and
//! after each call that has read, while this process may be repeating something (that it has
//! repeated all it knows of says nothing: who has received of it may not have reached it yet);
//! and of all files when the coordinator asks whether that is over, since the C library's streams
//! and mapped memory read unseen. No image of all is taken before that.

use crate::files::recorder::{self, Recorder};
use crate::files::shared_io;
use crate::files::system::{self, Path};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use libc::iovec;
use rustbtl_process::file_undo::{self, WatchedReads};

/// Bytes that are compared at a time.
const PIECE_BYTES: usize = 1 << 14;

/// What is watched, or why it cannot be. The recorder has it: whoever takes a snapshot has the
/// recorder, so that no thread is suspended with it.
pub(super) type Watched = Option<Result<WatchedReads, String>>;

/// This process may be repeating something, or a restored one will know soon.
static IS_REPEATING: AtomicBool = AtomicBool::new(false);

/// All processes of the set have been restored, and none runs yet. `alone`: others go on.
pub(super) fn restored(recorder: &mut Recorder, alone: bool) {
    let (folder, epoch) = (recorder.journal.folder(), recorder.journal.epoch());
    if !alone {
        // All are what they were at their checkpoints.
        file_undo::release(folder);
    }
    let begun = alone.then(|| WatchedReads::begin(folder, epoch));
    recorder.watched = begun.map(|begun| begun.map_err(|error| error.to_string()));
    IS_REPEATING.store(alone, Ordering::Relaxed);
}

/// A snapshot is taken, and who has the recorder takes it: threads of a process that is restored
/// from it run before that knows what it repeats. They wait for the recorder.
pub(super) fn suspended() {
    IS_REPEATING.store(true, Ordering::Relaxed);
}

/// The process itself goes on.
pub(super) fn continued(recorder: &Recorder) {
    IS_REPEATING.store(recorder.watched.is_some(), Ordering::Relaxed);
}

/// May this process be repeating something?
#[inline]
pub fn is_repeating() -> bool {
    IS_REPEATING.load(Ordering::Relaxed)
}

/// The program is going to read this file. Not while a lock of ours is held: does not return if
/// others have changed it.
pub fn reads(path: &[u8]) {
    let Some(mut recorder) = recorder::enter() else { return };
    let problem = match &mut recorder.watched {
        None => None,
        Some(Ok(watched)) => watched.check_one(path).err(),
        Some(Err(problem)) => Some(problem.clone()),
    };
    drop(recorder);
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
    let Some(recorder) = recorder::enter() else { return };
    let is_left = |path: &Path| match &recorder.watched {
        Some(Ok(watched)) => watched.is_left_as_it_is(path.bytes()),
        Some(Err(_)) => true,
        None => false,
    };
    let Some(path) = Path::of_descriptor(fd).filter(is_left) else { return };
    drop(recorder);
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
    IS_REPEATING.store(false, Ordering::Relaxed);
    // The program may be in MPI_Finalize.
    let Some(mut recorder) = recorder::enter_stopped() else { return Ok(()) };
    match recorder.watched.take() {
        None => return Ok(()),
        Some(Ok(watched)) => watched.check()?,
        Some(Err(problem)) => return Err(problem),
    }
    // Others may read what was written again.
    file_undo::release(recorder.journal.folder());
    Ok(())
}
