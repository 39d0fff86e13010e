//! The first 64 bytes of an image, golden in `tests.rs`.

use super::block::{BLOCK_ENTRY_BYTES, Block};
use super::checksum;
use super::codec::{Field, ImageError, Reader};

/// First bytes of every image.
pub const MAGIC: [u8; 8] = *b"RBTLIMG\n";
/// Version of the format.
pub const VERSION: u32 = 3;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Most bytes of metadata.
pub const METADATA_BYTES_MAX: u64 = 1 << 30;
/// Most blocks.
pub const BLOCKS_MAX: u64 = 1 << 26;

/// ```text
///  0 [u8; 8] magic          8 u32 version       12 u32 bytes of the header
/// 16 u64 where the metadata begins              24 u64 its bytes
/// 32 u64 where the table begins                 40 u64 blocks in it
/// 48 u32 checksum of metadata                   52 u32 checksum of the table
/// 56 u32 flags, 0                               60 u32 checksum of the 60 bytes before
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Where the metadata begins.
    pub metadata_offset: u64,
    /// Its bytes.
    pub metadata_bytes: u64,
    /// Where the table of blocks begins.
    pub table_offset: u64,
    /// Entries in it.
    pub blocks: u64,
    /// Checksum of the metadata.
    pub metadata_checksum: u32,
    /// Checksum of the table.
    pub table_checksum: u32,
}

impl Header {
    /// As bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        MAGIC.put(&mut out);
        VERSION.put(&mut out);
        (HEADER_BYTES as u32).put(&mut out);
        self.metadata_offset.put(&mut out);
        self.metadata_bytes.put(&mut out);
        self.table_offset.put(&mut out);
        self.blocks.put(&mut out);
        self.metadata_checksum.put(&mut out);
        self.table_checksum.put(&mut out);
        0u32.put(&mut out);
        checksum(&out).put(&mut out);
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(&out);
        bytes
    }

    /// From the first bytes of a file that has `file_bytes`.
    pub fn decode(bytes: &[u8], file_bytes: u64) -> Result<Self, ImageError> {
        let mut reader = Reader::new(bytes);
        if reader.take::<[u8; 8]>()? != MAGIC {
            return Err(ImageError::Magic);
        }
        let version: u32 = reader.take()?;
        if version != VERSION {
            return Err(ImageError::Version(version));
        }
        let summed = bytes.get(..HEADER_BYTES - 4).ok_or(ImageError::Short)?;
        let sum = bytes.get(HEADER_BYTES - 4..HEADER_BYTES).ok_or(ImageError::Short)?;
        if checksum(summed).to_le_bytes() != sum {
            return Err(ImageError::Checksum("the header"));
        }
        if reader.take::<u32>()? != HEADER_BYTES as u32 {
            return Err(ImageError::Value("length of the header"));
        }
        let header = Self {
            metadata_offset: reader.take()?,
            metadata_bytes: reader.take()?,
            table_offset: reader.take()?,
            blocks: reader.take()?,
            metadata_checksum: reader.take()?,
            table_checksum: reader.take()?,
        };
        if reader.take::<u32>()? != 0 {
            return Err(ImageError::Value("flags"));
        }
        header.check(file_bytes)?;
        Ok(header)
    }

    /// Invariant 2.
    fn check(&self, file_bytes: u64) -> Result<(), ImageError> {
        if self.metadata_bytes > METADATA_BYTES_MAX {
            return Err(ImageError::Limit("length of the metadata"));
        }
        if self.blocks > BLOCKS_MAX {
            return Err(ImageError::Limit("number of blocks"));
        }
        let table_bytes = self.blocks * BLOCK_ENTRY_BYTES as u64;
        let inside = |offset: u64, bytes: u64| {
            let end = offset.checked_add(bytes);
            offset >= HEADER_BYTES as u64 && end.is_some_and(|end| end <= file_bytes)
        };
        if !inside(self.metadata_offset, self.metadata_bytes) {
            return Err(ImageError::Short);
        }
        if !inside(self.table_offset, table_bytes) {
            return Err(ImageError::Short);
        }
        Ok(())
    }

    /// Bytes of the table.
    pub const fn table_bytes(&self) -> usize {
        self.blocks as usize * BLOCK_ENTRY_BYTES
    }

    /// Is this the metadata that the header speaks of?
    pub fn check_metadata(&self, bytes: &[u8]) -> Result<(), ImageError> {
        if bytes.len() as u64 != self.metadata_bytes {
            return Err(ImageError::Short);
        }
        if checksum(bytes) != self.metadata_checksum {
            return Err(ImageError::Checksum("the metadata"));
        }
        Ok(())
    }

    /// The table, once its checksum is right.
    pub fn table(&self, bytes: &[u8]) -> Result<Vec<Block>, ImageError> {
        if bytes.len() != self.table_bytes() {
            return Err(ImageError::Short);
        }
        if checksum(bytes) != self.table_checksum {
            return Err(ImageError::Checksum("the table of blocks"));
        }
        Block::decode_table(bytes, self.metadata_offset.min(self.table_offset))
    }
}
