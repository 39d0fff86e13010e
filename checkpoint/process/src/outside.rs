//! In another process of the same user: write the image of a frozen process, look into images,
//! make processes from them.
//!
//! Source: FACTS-image §1, §3, §6. Needs the right to read and write the other process's memory
//! (same user; Yama's ptrace_scope 0, or 1 for descendants): everything else is ordinary.
//!
//! Invariants (the tests name them):
//! 1. A file under its final name is complete and was synced; before, it has another name.
//! 2. Nothing is put into a process from an image whose checksums are wrong.
//! 3. What a restore needs of the machine (kernel code, processor, files) is checked before a
//!    process is made; afterwards an error leaves no process behind.

mod build_id;
mod codec;
mod descriptors;
mod hands;
mod history;
mod image_file;
mod inspect;
mod maps;
mod meeting;
mod object;
mod pages;
mod plan;
mod restore;
mod store;
mod threads;
mod write;

pub use history::{History, is_base_of};
pub use inspect::{Summary, inspect, verify};
pub use restore::restore;
pub use write::{write_image, write_next_image};

pub use rustbtl_checkpoint::image::Compression;

use rustbtl_checkpoint::image::ImageError;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;

/// How to write an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteOptions {
    /// Of blocks of memory.
    pub compression: Compression,
    /// Threads that read, compress and sum.
    pub threads: usize,
    /// fsync file and folder.
    pub sync: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { compression: Compression::None, threads: 1, sync: true }
    }
}

/// What was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ImageStats {
    /// Pages of memory that the process had touched (and of shared objects), in bytes.
    pub touched_bytes: u64,
    /// Of these, all zero, and so not stored.
    pub zero_bytes: u64,
    /// Of these, in older images, and so not stored.
    pub elsewhere_bytes: u64,
    /// Blocks as stored.
    pub stored_bytes: u64,
    /// The whole file.
    pub file_bytes: u64,
    /// Blocks.
    pub blocks: u64,
    /// Time until all is in the file.
    pub write_us: u64,
    /// Time of fsync and rename.
    pub sync_us: u64,
}

/// Which ids threads get.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ids {
    /// Those that they had, where the system permits it and they are free; else new ones.
    #[default]
    SameIfPermitted,
    /// New ones. Locks that were held stay held by their owners; `pthread_kill` of an old thread
    /// answers ESRCH.
    New,
}

/// Where objects that several processes map are put together again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedPlace {
    /// A private folder, the same for all processes of the node: the memory is not in it, only who
    /// has it. Whoever owns it removes it when all have been restored.
    pub folder: PathBuf,
    /// Names this restart, so that what an earlier one left is not taken for its own.
    pub key: String,
}

/// How to restore.
#[derive(Debug)]
pub struct RestoreOptions {
    /// Descriptors for the numbers that were `supplied` when the process was frozen.
    pub supplied: Vec<(RawFd, OwnedFd)>,
    /// Which ids threads get.
    pub ids: Ids,
    /// For `Restored::payload`; at most 64 KiB.
    pub payload: Vec<u8>,
    /// Where shared objects are put together; `None`: no other process shares them.
    pub shared: Option<SharedPlace>,
    /// Folders of files that were mapped shared and are not written to again: the mapping gets
    /// the content in memory instead. Session folders of Open MPI and PMIx always are.
    pub detached: Vec<PathBuf>,
    /// Other processes that write to the same files go on: these are not cut to the size that they
    /// had, but for those that are only appended to.
    pub alone: bool,
    /// Threads that fill the memory.
    pub threads: usize,
    /// It is killed when the thread that restores it ends.
    pub dies_with_parent: bool,
}

impl Default for RestoreOptions {
    fn default() -> Self {
        Self {
            supplied: Vec::new(),
            ids: Ids::default(),
            payload: Vec::new(),
            shared: None,
            detached: vec![PathBuf::from("/dev/shm")],
            alone: false,
            threads: 2,
            dies_with_parent: false,
        }
    }
}

/// A process that was restored: a child of the caller, who waits for it.
#[derive(Debug)]
pub struct RestoredChild {
    /// Its id.
    pub pid: u32,
    /// All threads have the ids that they had.
    pub same_ids: bool,
    /// Bytes of memory that were put back.
    pub filled_bytes: u64,
    /// Time from the call to the start of the threads.
    pub restore_us: u64,
    /// Memory that it shares with others: to be kept until they are restored, too.
    pub shared: Vec<OwnedFd>,
}

/// Why something outside went wrong.
#[derive(Debug)]
pub enum OutsideError {
    /// The image (or a description) cannot be used.
    Image(ImageError),
    /// A file or system call, with what was tried.
    System {
        /// What was tried, on what.
        what: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// The process that was being made was ended by a signal.
    Killed {
        /// Where it was, and the signal.
        what: String,
    },
    /// Something of the process that cannot be put back.
    Refused {
        /// What is in the way.
        what: String,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// An image cannot be used without another one.
    Base {
        /// The image.
        image: String,
        /// What it refers to.
        base: String,
        /// What is wrong with that.
        problem: String,
    },
    /// This machine is not like the one where the image was made.
    Machine {
        /// What differs.
        what: String,
        /// Why it matters.
        reason: &'static str,
    },
}

impl OutsideError {
    /// The last system call's error.
    fn last(what: impl Into<String>) -> Self {
        Self::System { what: what.into(), error: std::io::Error::last_os_error() }
    }

    /// For `map_err`.
    fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| Self::System { what, error }
    }
}

impl core::fmt::Display for OutsideError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Image(error) => write!(f, "{error}"),
            Self::System { what, error } => write!(f, "{what}: {error}"),
            Self::Killed { what } => f.write_str(what),
            Self::Refused { what, reason } => write!(f, "{what}: {reason}"),
            Self::Base { image, base, problem } => {
                write!(f, "{image} needs {base}, which cannot be used: {problem}")
            }
            Self::Machine { what, reason } => {
                write!(f, "this machine differs in {what}: {reason}")
            }
        }
    }
}

impl std::error::Error for OutsideError {}

impl From<ImageError> for OutsideError {
    fn from(error: ImageError) -> Self {
        Self::Image(error)
    }
}
