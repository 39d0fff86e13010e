//! In another process of the same user: read the memory of a frozen process and write its image.
//!
//! Source: FACTS-image §3, §6. Needs the right to read the other process's memory (same user;
//! Yama's ptrace_scope 0, or 1 for descendants): everything else is ordinary.
//!
//! Invariant: a file under its final name is complete and was synced; before, it has another name.

pub(crate) mod draft;
mod history;
mod maps;
mod store;
mod write;

pub use history::{History, is_base_of};
pub use write::{write_image, write_next_image};

pub use rustbtl_checkpoint::image::Compression;

/// How to write an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteOptions {
    /// Of blocks of memory.
    pub compression: Compression,
    /// Threads that read, compress and sum.
    pub threads: usize,
    /// fsync file and folder.
    pub sync: bool,
    /// Read pages, too, of which the kernel says that they were not written, and refuse the image
    /// if they have changed: for tests. Pages that the program has given back (MADV_FREE) may.
    pub verify_unchanged: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { compression: Compression::None, threads: 1, sync: true, verify_unchanged: false }
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
    /// Of these, not even read: the kernel says that they were not written since.
    pub unread_bytes: u64,
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
