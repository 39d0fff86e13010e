//! Blocks: contents of memory, in runs of pages of at most [`BLOCK_BYTES_MAX`].
//!
//! Invariants 1, 2 and 5 of `image.rs`: a block is checked before it is decompressed, and
//! decompresses to exactly the size that its entry promises.
//!
//! Memory that has not changed since an older image may be an entry without bytes of its own, which
//! names the block of the other image that has them: never one that itself refers to another.

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
    /// Zstandard where it saves an eighth. The crate that reads and writes files does it: the
    /// library is not for cores.
    Zstd,
}

impl Compression {
    /// Is it worth it?
    pub const fn is_gain(stored: usize, memory: usize) -> bool {
        stored < memory - memory / 8
    }

    const fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }
}

impl core::str::FromStr for Compression {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self::None),
            "lz4" => Ok(Self::Lz4),
            "zstd" => Ok(Self::Zstd),
            _ => Err("choose none, lz4 or zstd"),
        }
    }
}

/// Where the bytes of an entry are, if not in the same file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Elsewhere {
    /// Which of the images that this one names (`record::Base`), from 1 on.
    pub image: u8,
    /// Which block of its table.
    pub block: u32,
    /// Bytes of that block's memory before them.
    pub skip: u32,
}

/// ```text
///  0 u64 address     8 u64 offset in the file    16 u32 bytes of memory   20 u32 bytes stored
/// 24 u32 checksum of what is stored   28 u16 space (0: memory, else a shared object)
/// 30 u8 compression (0 none, 1 LZ4, 2 Zstandard)   31 u8 0
/// ```
/// With another number in the last byte, that of an image, the bytes are elsewhere: then the offset
/// is `u32` block, `u32` bytes before them; nothing is stored, and the checksum is of the memory.
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
    /// They are not stored here; then offset and stored bytes are 0.
    pub elsewhere: Option<Elsewhere>,
}

impl Block {
    /// The entry of memory that is stored as these bytes.
    pub fn of(
        (space, address): (u16, u64),
        memory_bytes: usize,
        stored: &[u8],
        compression: Compression,
    ) -> Self {
        Self {
            address,
            offset: 0,
            bytes: memory_bytes as u32,
            stored: stored.len() as u32,
            checksum: checksum(stored),
            space,
            compression,
            elsewhere: None,
        }
    }

    /// The entry of memory that is in another image, from its size and checksum.
    pub const fn refer(
        (space, address): (u16, u64),
        (bytes, checksum): (u32, u32),
        elsewhere: Elsewhere,
    ) -> Self {
        let (offset, stored, compression) = (0, 0, Compression::None);
        let elsewhere = Some(elsewhere);
        Self { address, offset, bytes, stored, checksum, space, compression, elsewhere }
    }

    /// Puts memory into the form in which it is stored, where that needs no library: the entry, and
    /// the bytes, which are `memory` itself or are in `buffer`.
    pub fn pack<'a>(
        place: (u16, u64),
        memory: &'a [u8],
        compression: Compression,
        buffer: &'a mut Vec<u8>,
    ) -> (Self, &'a [u8]) {
        if compression == Compression::Lz4 {
            buffer.resize(lz4_flex::block::get_maximum_output_size(memory.len()), 0);
            let size = lz4_flex::block::compress_into(memory, buffer).unwrap_or(usize::MAX);
            if Compression::is_gain(size, memory.len()) {
                let stored = &buffer[..size];
                return (Self::of(place, memory.len(), stored, compression), stored);
            }
        }
        (Self::of(place, memory.len(), memory, Compression::None), memory)
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

    /// Is this the memory that is elsewhere?
    pub fn check_memory(&self, memory: &[u8]) -> Result<(), ImageError> {
        if memory.len() != self.bytes as usize || checksum(memory) != self.checksum {
            return Err(ImageError::Checksum("memory that is in another image"));
        }
        Ok(())
    }

    /// The memory, in `buffer` where it has to be decompressed, and that needs no library.
    pub fn unpack<'a>(
        &self,
        stored: &'a [u8],
        buffer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], ImageError> {
        self.check(stored)?;
        match self.compression {
            Compression::None => return Ok(stored),
            Compression::Zstd => return Err(ImageError::Compression),
            Compression::Lz4 => {}
        }
        buffer.resize(self.bytes as usize, 0);
        let size = lz4_flex::block::decompress_into(stored, buffer);
        match size {
            Ok(size) if size == self.bytes as usize => Ok(buffer),
            _ => Err(ImageError::Compression),
        }
    }

    /// Appends the entry of the table.
    pub fn encode(&self, sink: &mut impl Sink) {
        let place = |e: Elsewhere| u64::from(e.block) | u64::from(e.skip) << 32;
        self.address.put(sink);
        self.elsewhere.map_or(self.offset, place).put(sink);
        self.bytes.put(sink);
        self.stored.put(sink);
        self.checksum.put(sink);
        self.space.put(sink);
        self.compression.code().put(sink);
        self.elsewhere.map_or(0, |elsewhere| elsewhere.image).put(sink);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, ImageError> {
        let mut block = Self {
            address: reader.take()?,
            offset: reader.take()?,
            bytes: reader.take()?,
            stored: reader.take()?,
            checksum: reader.take()?,
            space: reader.take()?,
            compression: match reader.take::<u8>()? {
                0 => Compression::None,
                1 => Compression::Lz4,
                2 => Compression::Zstd,
                _ => return Err(ImageError::Value("compression")),
            },
            elsewhere: None,
        };
        let image: u8 = reader.take()?;
        if image != 0 {
            let elsewhere = block.take_elsewhere(image)?;
            (block.elsewhere, block.offset) = (Some(elsewhere), 0);
        }
        let whole_pages = |n: u64| n.is_multiple_of(PAGE_BYTES_MIN);
        let raw = block.compression == Compression::None && image == 0;
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

    /// What an entry without bytes of its own has in the place of its offset.
    fn take_elsewhere(&self, image: u8) -> Result<Elsewhere, ImageError> {
        let (block, skip) = (self.offset as u32, (self.offset >> 32) as u32);
        let inside = u64::from(skip) + u64::from(self.bytes) <= BLOCK_BYTES_MAX as u64;
        let pages = u64::from(skip).is_multiple_of(PAGE_BYTES_MIN);
        if !inside || !pages || self.stored != 0 || self.compression != Compression::None {
            return Err(ImageError::Value("reference to another image"));
        }
        Ok(Elsewhere { image, block, skip })
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
        let own = table.iter().filter(|block| block.elsewhere.is_none());
        let mut places: Vec<_> = own.map(|b| (b.offset, u64::from(b.stored))).collect();
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
