//! Blocks: contents of memory, in runs of pages of at most [`BLOCK_BYTES_MAX`].
//!
//! Invariants 1, 2 and 5 of `image.rs`: a block is checked before it is decompressed, and
//! decompresses into exactly the room that its entry promises.

use super::checksum;
use super::codec::{Field, ImageError, Reader, Sink};
use super::header::HEADER_BYTES;

/// Most bytes of memory in one block.
pub const BLOCK_BYTES_MAX: usize = 1 << 20;
/// Bytes of an entry in the table.
pub const BLOCK_ENTRY_BYTES: usize = 32;
/// Smallest page of any machine: lengths and addresses are multiples of it.
pub const PAGE_BYTES_MIN: u64 = 4096;
/// Spaces that a table may name: the process and its shared objects.
pub const SPACES_MAX: u16 = 4096;

/// How the bytes of blocks are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// LZ4 where it saves an eighth, as they are elsewhere.
    Lz4,
}

/// ```text
///  0 u64 address     8 u64 offset in the file    16 u32 bytes of memory   20 u32 bytes stored
/// 24 u32 checksum of what is stored   28 u16 space (0: memory, else a shared object)
/// 30 u8 compression (0 none, 1 LZ4)   31 u8 0
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Address in the process, or offset in the shared object.
    pub address: u64,
    /// Where it lies in the file.
    pub offset: u64,
    /// Bytes of memory.
    pub bytes: u32,
    /// Bytes in the file.
    pub stored: u32,
    /// Checksum of these.
    pub checksum: u32,
    /// 0: the process's memory; else a shared object.
    pub space: u16,
    /// How they are stored.
    pub compression: Compression,
}

impl Block {
    /// Puts memory into the form in which it is stored: the entry, and the bytes, which are
    /// `memory` itself or are in `room`.
    pub fn pack<'a>(
        (space, address): (u16, u64),
        memory: &'a [u8],
        compression: Compression,
        room: &'a mut Vec<u8>,
    ) -> (Self, &'a [u8]) {
        let mut block = Self {
            address,
            offset: 0,
            bytes: memory.len() as u32,
            stored: memory.len() as u32,
            checksum: 0,
            space,
            compression: Compression::None,
        };
        let mut stored = memory;
        if compression == Compression::Lz4 {
            room.resize(lz4_flex::block::get_maximum_output_size(memory.len()), 0);
            let size = lz4_flex::block::compress_into(memory, room).unwrap_or(usize::MAX);
            if size < memory.len() - memory.len() / 8 {
                stored = &room[..size];
                block.stored = size as u32;
                block.compression = Compression::Lz4;
            }
        }
        block.checksum = checksum(stored);
        (block, stored)
    }

    /// Is this what was stored?
    pub fn check(&self, stored: &[u8]) -> Result<(), ImageError> {
        if stored.len() != self.stored as usize {
            return Err(ImageError::Short);
        }
        if checksum(stored) != self.checksum {
            return Err(ImageError::Checksum("a block of memory"));
        }
        Ok(())
    }

    /// The memory again, in `room` where it has to be decompressed.
    pub fn unpack<'a>(
        &self,
        stored: &'a [u8],
        room: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], ImageError> {
        self.check(stored)?;
        if self.compression == Compression::None {
            return Ok(stored);
        }
        room.resize(self.bytes as usize, 0);
        let size = lz4_flex::block::decompress_into(stored, room);
        match size {
            Ok(size) if size == self.bytes as usize => Ok(room),
            _ => Err(ImageError::Compression),
        }
    }

    /// Appends the entry of the table.
    pub fn encode(&self, sink: &mut impl Sink) {
        self.address.put(sink);
        self.offset.put(sink);
        self.bytes.put(sink);
        self.stored.put(sink);
        self.checksum.put(sink);
        self.space.put(sink);
        u8::from(self.compression == Compression::Lz4).put(sink);
        0u8.put(sink);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, ImageError> {
        let block = Self {
            address: reader.take()?,
            offset: reader.take()?,
            bytes: reader.take()?,
            stored: reader.take()?,
            checksum: reader.take()?,
            space: reader.take()?,
            compression: match reader.take::<u8>()? {
                0 => Compression::None,
                1 => Compression::Lz4,
                _ => return Err(ImageError::Value("compression")),
            },
        };
        if reader.take::<u8>()? != 0 {
            return Err(ImageError::Value("entry of a block"));
        }
        let whole_pages = |n: u64| n.is_multiple_of(PAGE_BYTES_MIN);
        let raw = block.compression == Compression::None;
        if block.bytes == 0 || block.bytes as usize > BLOCK_BYTES_MAX {
            return Err(ImageError::Limit("length of a block"));
        }
        if block.stored > block.bytes || (raw && block.stored != block.bytes) {
            return Err(ImageError::Value("stored length of a block"));
        }
        if !whole_pages(block.address) || !whole_pages(block.bytes.into()) {
            return Err(ImageError::Value("address of a block"));
        }
        if block.space > SPACES_MAX {
            return Err(ImageError::Limit("space of a block"));
        }
        Ok(block)
    }

    /// One behind its last address.
    pub const fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes as u64)
    }

    /// All entries; blocks lie in the file before `blocks_end` (invariant 5).
    pub(super) fn decode_table(bytes: &[u8], blocks_end: u64) -> Result<Vec<Self>, ImageError> {
        let mut table: Vec<Self> = Vec::with_capacity(bytes.len() / BLOCK_ENTRY_BYTES);
        let mut reader = Reader::new(bytes);
        while !reader.rest().is_empty() {
            let block = Self::decode(&mut reader)?;
            let after_last = table.last().is_none_or(|last| {
                let same = last.space == block.space;
                last.space < block.space || same && last.end() <= block.address
            });
            if !after_last {
                return Err(ImageError::Order);
            }
            table.push(block);
        }
        // Several writers share a file: there, the order is another one.
        let mut places: Vec<_> = table.iter().map(|b| (b.offset, u64::from(b.stored))).collect();
        places.sort_unstable();
        let mut free = HEADER_BYTES as u64;
        for (offset, bytes) in places {
            let end = offset.checked_add(bytes).filter(|end| *end <= blocks_end);
            if offset < free {
                return Err(ImageError::Order);
            }
            free = end.ok_or(ImageError::Short)?;
        }
        Ok(table)
    }
}
