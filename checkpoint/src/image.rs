//! The image of a process: a versioned file format; nothing here reads or writes files.
//!
//! Sources: DESIGN §6 (freeze), FACTS-image §1 to §3 (what a process consists of). All integers
//! are little endian. A file is
//!
//! ```text
//!    0  header, 64 bytes: magic, version, where the metadata and the table lie, checksums
//!   64  blocks: contents of memory, raw or compressed, each with a checksum in the table
//!    …  metadata: records (`record.rs`), as the process wrote them and as its reader added
//!    …  table: one entry of 32 bytes per block
//! ```
//!
//! Blocks come first so that an image is written in one pass, whatever its size; the header is
//! written last.
//!
//! Invariants (the tests name them):
//! 1. Nothing is decoded before its checksum is right: header, then metadata and table,
//!    then blocks.
//! 2. No length that a file states is used before it is compared with the file's real length
//!    and with a limit; nothing is allocated from it before that.
//! 3. Arbitrary bytes give an error with a reason, never a panic.
//! 4. What is decoded encodes to the same bytes.
//! 5. Entries of the table are in the order of (space, address) and do not overlap, in memory or
//!    in the file.
//! 6. What is in another image is there itself, and the image is the one that was meant: its size
//!    and checksums are in the metadata.

pub mod block;
pub mod codec;
pub mod header;
mod page_checksum;
pub mod record;

#[cfg(test)]
mod tests;

pub use block::{BLOCK_BYTES_MAX, Block, Compression, Elsewhere};
pub use codec::{ImageError, Reader, Sink};
pub use header::{HEADER_BYTES, Header, VERSION};
pub use page_checksum::append_page;
pub use record::{Record, records};

/// Checksum of headers, metadata, tables and blocks (CRC-32, as in IEEE 802.3).
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}
