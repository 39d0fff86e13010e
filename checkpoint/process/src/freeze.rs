//! In the process that is checkpointed: suspend its threads, describe it, clone a frozen child,
//! continue.
//!
//! Source: FACTS-image §1 to §3, §6. Everything between suspension and release allocates nothing
//! and takes no lock, because a suspended thread may hold any lock of the C library.
//!
//! Invariants (the tests name them):
//! 1. After `freeze` every thread runs again, whatever it returns; on `Err` nothing has changed.
//! 2. No system call of the program ends with EINTR because of a freeze.
//! 3. The frozen child runs no code of the program, holds no descriptor, and ends with its parent.
//! 4. What cannot be restored is refused with its name; it is never silently left out.
//! 5. A restored process continues exactly where `freeze` was called, once.

mod changes;
mod describe;
mod descriptors;
mod failure;
mod file_reader;
mod freezer;
pub mod got;
mod huge_pages;
mod kernel_state;
pub mod loaded_code;
pub(crate) mod memory_copies;
mod save_point;
mod sockets;
mod suspend;
mod tid_remap;

pub use freezer::{Freezer, is_restored};

use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};

/// Where the memory is read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Copying {
    /// From a copy-on-write child; refused if there can be none.
    Fork,
    /// From a child, or from the process itself while it waits, if there can be none.
    #[default]
    ForkOrPause,
    /// From the process itself while it waits.
    Pause,
}

/// The snapshot, while all threads are still suspended (`while_paused`).
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// Whose memory is to be read: this process.
    pub pid: u32,
    /// For `dump::write_image`.
    pub description: &'a [u8],
}

/// Runs when all other threads are suspended. May not allocate, nor take a lock that they may hold.
pub type AfterSuspended<'a> = &'a mut dyn FnMut() -> Result<(), &'static str>;
/// Has the image written and returns when it is; the same restrictions. Must do nothing but wait
/// while the memory is read. In the restored process it has not returned, and never does.
pub type WhilePaused<'a> = &'a mut dyn FnMut(&Snapshot<'_>);

/// Runs when everything is copied, before the threads are released; the same restrictions.
pub type BeforeRelease<'a> = &'a mut dyn FnMut();

/// Runs in the restored process when it is complete, before its threads are released; the same
/// restrictions. An error ends the process.
pub type AfterRestored<'a> = &'a mut dyn FnMut() -> Result<(), &'static str>;

/// How to freeze. See `DESIGN.md`.
pub struct FreezeOptions<'a> {
    /// Descriptors that the caller of `restore` supplies (stdio, the guardian's socket).
    pub supplied: &'a [RawFd],
    /// Connected sockets that become one end of a socket pair.
    pub muted: &'a [RawFd],
    /// Descriptors that are not there after a restore.
    pub dropped: &'a [RawFd],
    /// Memory that is neither stored nor mapped again; whole mappings.
    pub exclude: &'a [Range<usize>],
    /// Shared mappings whose content is in the image of another process, which is restored on the
    /// same machine: they are mapped again. Whole mappings.
    pub elsewhere: &'a [Range<usize>],
    /// Memory whose contents nobody needs: it is mapped again, and empty. Whole pages of private
    /// memory without a file. The frozen child does not share it, so that this process can write to
    /// it at once, and the pause does not grow with it.
    pub dead: &'a [Range<usize>],
    /// Where the memory is read from.
    pub copying: Copying,
    /// Called when all threads are suspended, for instance for a barrier; an error ends the freeze.
    pub after_suspended: Option<AfterSuspended<'a>>,
    /// Called when memory that is shared is copied, for instance for a second barrier: a
    /// process that continues earlier changes what others still copy.
    pub before_release: Option<BeforeRelease<'a>>,
    /// Called in each restored process, for instance to wait for others that are restored with it.
    pub after_restored: Option<AfterRestored<'a>>,
    /// Needed for [`Copying::Pause`] and for falling back to it.
    pub while_paused: Option<WhilePaused<'a>>,
    /// Where the process records what it changes in files, and the epoch that begins now
    /// (`crate::file_undo`); its descriptor is `dropped`.
    pub file_undo: Option<(&'a [u8], u64)>,
    /// Have the kernel note what is written between snapshots, where it can, so that the writer of
    /// an incremental image reads only that (`changes.rs`). Not for [`Copying::Pause`]. Memory that
    /// it notes cannot be made huge pages of again: see `DESIGN.md`.
    pub track_changes: bool,
    /// How long to wait until all threads are suspended.
    pub suspend_timeout_ms: u32,
}

impl Default for FreezeOptions<'_> {
    fn default() -> Self {
        Self {
            supplied: &[0, 1, 2],
            muted: &[],
            dropped: &[],
            exclude: &[],
            elsewhere: &[],
            dead: &[],
            copying: Copying::default(),
            after_suspended: None,
            before_release: None,
            after_restored: None,
            while_paused: None,
            file_undo: None,
            track_changes: false,
            suspend_timeout_ms: 10_000,
        }
    }
}

impl core::fmt::Debug for FreezeOptions<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("FreezeOptions")
            .field("supplied", &self.supplied)
            .field("muted", &self.muted)
            .field("dropped", &self.dropped)
            .field("exclude", &self.exclude)
            .field("elsewhere", &self.elsewhere)
            .field("dead", &self.dead)
            .field("copying", &self.copying)
            .field("suspend_timeout_ms", &self.suspend_timeout_ms)
            .finish_non_exhaustive()
    }
}

/// In which process `freeze` has returned.
#[derive(Debug)]
pub enum Outcome {
    /// The one that was checkpointed.
    Continued(Continued),
    /// One that was restored from the image.
    Restored(Restored),
}

/// The program continues; its image is to be written.
#[derive(Debug)]
pub struct Continued {
    /// Whose memory is to be read; `None`: it was read in the pause.
    pub child: Option<FrozenChild>,
    /// For `dump::write_image`.
    pub description: Vec<u8>,
    /// How long the parts of the pause took.
    pub timings: Timings,
}

/// The program continues in a new process.
#[derive(Debug)]
pub struct Restored {
    /// The far end of each muted descriptor: dropping it is the loss of that connection.
    pub muted: Vec<(RawFd, OwnedFd)>,
    /// Threads have the ids that they had.
    pub same_ids: bool,
    /// How often the process has been restored.
    pub generation: u32,
    /// From the caller of `restore`.
    pub payload: Vec<u8>,
}

/// Parts of the pause, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timings {
    /// Finding and suspending all threads.
    pub suspend_us: u64,
    /// `after_suspended`.
    pub hook_us: u64,
    /// Describing threads, descriptors, signals.
    pub describe_us: u64,
    /// Copying shared memory.
    pub copy_us: u64,
    /// Cloning the child (or `while_paused`).
    pub clone_us: u64,
    /// From the first thread suspended to all released.
    pub pause_us: u64,
    /// Threads that were suspended.
    pub threads: u32,
}

/// A frozen copy of this process, which only waits to be read. Dropping it ends it.
#[derive(Debug)]
pub struct FrozenChild {
    pid: u32,
}

impl FrozenChild {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

impl Drop for FrozenChild {
    fn drop(&mut self) {
        // It is our child and not yet waited for, so the id is still its own. It sends no signal
        // and only a wait for clones sees it: the program notices nothing.
        let _ =
            crate::raw::plain(libc::SYS_kill, [self.pid as usize, libc::SIGKILL as usize, 0, 0]);
        let options = libc::__WCLONE as usize;
        let _ = crate::raw::plain(libc::SYS_wait4, [self.pid as usize, 0, options, 0]);
    }
}

/// Why there is no snapshot. The program continues unharmed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FreezeError {
    /// A thread could not be suspended in time.
    #[error("thread {tid} {reason}")]
    Thread {
        /// Which.
        tid: u32,
        /// Why.
        reason: &'static str,
    },
    /// Something that could not be restored, with its name and what to do.
    #[error("{what}: {reason}")]
    Refused {
        /// What is in the way.
        what: String,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// A system call failed.
    #[error("{what}: {}", std::io::Error::from_raw_os_error(*errno))]
    System {
        /// Which.
        what: &'static str,
        /// With which error number.
        errno: i32,
    },
    /// `after_suspended` answered with an error.
    #[error("{0}")]
    Hook(&'static str),
}
