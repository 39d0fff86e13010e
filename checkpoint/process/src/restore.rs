//! In another process of the same user: inspect images, restore processes from them.
//!
//! Source: FACTS-image §1, §3, §6. Needs the right to write the other process's memory (same user;
//! Yama's ptrace_scope 0, or 1 for descendants): everything else is ordinary.
//!
//! Invariants (the tests name them):
//! 1. Nothing is put into a process from an image whose checksums are wrong.
//! 2. What a restore needs of the machine (kernel code, processor, files) is checked before a
//!    process is made; afterwards an error leaves no process behind.

mod descriptors;
mod folders;
pub(crate) mod image_file;
mod inspect;
mod plan;
mod remote_syscalls;
mod restorer;
mod shared_name;
mod shared_object;
mod shared_registry;
mod steps;
mod threads;

pub use inspect::{Summary, inspect, verify};
pub use shared_name::NotNamed;
pub use steps::restore;

use crate::file_undo::NotPutBack;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;

/// Which thread ids a restored process gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ids {
    /// Those that they had, where the system permits it and they are free; else new ones.
    #[default]
    SameIfPermitted,
    /// New ones. Locks that were held stay held by their owners; `pthread_kill` of an old thread
    /// returns ESRCH.
    New,
}

/// Where processes that map the same objects find them when they are restored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedRegistry {
    /// A private folder, the same for all processes of the node: the memory is not in it, only
    /// which process has it. Its owner removes it when all processes have been restored.
    pub folder: PathBuf,
    /// Names this restart, so that files of an earlier one are not mistaken for its own.
    pub key: String,
}

/// How to restore.
#[derive(Debug)]
pub struct RestoreOptions {
    /// Descriptors for the numbers that were `supplied` when the process was frozen.
    pub supplied: Vec<(RawFd, OwnedFd)>,
    /// Which thread ids a restored process gets.
    pub ids: Ids,
    /// For `Restored::payload`; at most 64 KiB.
    pub payload: Vec<u8>,
    /// Where shared objects are registered; `None`: no other process shares them.
    pub shared: Option<SharedRegistry>,
    /// Folders of files that are memory with a name: what maps one that is shared and writable gets
    /// new memory under this name. Session folders of Open MPI always are.
    pub detached: Vec<PathBuf>,
    /// A variable that those have in their environment that are restored together, and no others:
    /// what another process still maps keeps its name.
    pub together: Option<&'static str>,
    /// Other processes that write to the same files continue: such files are not truncated to the
    /// size that they had, except those that are only appended to.
    pub alone: bool,
    /// Threads that fill the memory.
    pub threads: usize,
    /// The process is killed when the thread that restores it ends.
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
            together: None,
            alone: false,
            threads: 2,
            dies_with_parent: false,
        }
    }
}

/// A process that was restored: a child of the caller, which waits for it.
#[derive(Debug)]
pub struct RestoredChild {
    /// Its id.
    pub pid: u32,
    /// All threads have the ids that they had.
    pub same_ids: bool,
    /// Bytes of memory that were filled.
    pub filled_bytes: u64,
    /// Time from the call to the start of the threads.
    pub restore_us: u64,
    /// Memory that it shares with others: to be held until they are restored, too.
    pub shared: Vec<OwnedFd>,
    /// Memory that it shares under a name, and that has not got that.
    pub not_named: Vec<NotNamed>,
    /// Files that are not what they were at the checkpoint.
    pub not_put_back: Vec<NotPutBack>,
}
