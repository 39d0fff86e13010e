//! How the bytes of blocks are compressed and decompressed, with the library that cores may not
//! have.

use crate::error::ProcessImageError;
use rustbtl_checkpoint::image::{BLOCK_BYTES_MAX, Block, Compression, ImageError};
use zstd::bulk::{Compressor, Decompressor};

/// The level at which Zstandard is fast: memory goes through it at some 100 MB/s or more.
const ZSTD_LEVEL: i32 = 1;

/// Stores.
pub struct Packer {
    compression: Compression,
    zstd: Option<Compressor<'static>>,
    buffer: Vec<u8>,
}

impl Packer {
    /// With this compression.
    pub fn new(compression: Compression) -> Result<Self, ProcessImageError> {
        let zstd = match compression {
            Compression::Zstd => {
                let made = Compressor::new(ZSTD_LEVEL);
                Some(made.map_err(ProcessImageError::system("preparing Zstandard"))?)
            }
            _ => None,
        };
        Ok(Self { compression, zstd, buffer: Vec::new() })
    }

    /// The entry of the memory, and the bytes to be stored.
    pub fn pack<'a>(&'a mut self, place: (u16, u64), memory: &'a [u8]) -> (Block, &'a [u8]) {
        let Some(zstd) = &mut self.zstd else {
            return Block::pack(place, memory, self.compression, &mut self.buffer);
        };
        self.buffer.resize(zstd::zstd_safe::compress_bound(memory.len()), 0);
        // Without an answer it is stored as it is.
        let size = zstd.compress_to_buffer(memory, &mut self.buffer[..]).unwrap_or(usize::MAX);
        if Compression::is_gain(size, memory.len()) {
            let stored = &self.buffer[..size];
            return (Block::of(place, memory.len(), stored, Compression::Zstd), stored);
        }
        (Block::of(place, memory.len(), memory, Compression::None), memory)
    }
}

/// Reads.
#[derive(Default)]
pub struct Unpacker {
    zstd: Option<Decompressor<'static>>,
    buffer: Vec<u8>,
}

impl Unpacker {
    /// The memory again; it is `stored` itself where nothing was compressed.
    pub fn unpack<'a>(
        &'a mut self,
        block: &Block,
        stored: &'a [u8],
    ) -> Result<&'a [u8], ProcessImageError> {
        if block.compression != Compression::Zstd {
            return Ok(block.unpack(stored, &mut self.buffer)?);
        }
        block.check(stored)?;
        let zstd = match &mut self.zstd {
            Some(zstd) => zstd,
            none => {
                let made = Decompressor::new();
                none.insert(made.map_err(ProcessImageError::system("preparing Zstandard"))?)
            }
        };
        debug_assert!(block.bytes as usize <= BLOCK_BYTES_MAX, "checked with the table");
        self.buffer.resize(block.bytes as usize, 0);
        match zstd.decompress_to_buffer(stored, &mut self.buffer[..]) {
            Ok(size) if size == block.bytes as usize => Ok(&self.buffer),
            _ => Err(ImageError::Compression.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all() -> impl Strategy<Value = Compression> {
        prop::sample::select(vec![Compression::None, Compression::Lz4, Compression::Zstd])
    }

    proptest! {
        #[test]
        fn memory_comes_back_as_it_was(
            compression in all(), pages in 1..5usize, seed in any::<u64>(), runs in 1..3000usize
        ) {
            let mut state = seed;
            let memory: Vec<u8> = (0..pages * 4096).map(|at| {
                if at % runs == 0 {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                }
                (state >> 56) as u8
            }).collect();
            let mut packer = Packer::new(compression).unwrap();
            let (block, stored) = packer.pack((0, 4096), &memory);
            prop_assert!(stored.len() <= memory.len());
            prop_assert_eq!(block.compression == Compression::None, stored.len() == memory.len());
            let mut unpacker = Unpacker::default();
            prop_assert_eq!(unpacker.unpack(&block, stored).unwrap(), &memory[..]);
        }

        #[test]
        fn damage_that_the_checksum_does_not_know_of_gives_an_error_or_the_size(
            compression in all(), at in 0..100usize, bit in 0..8
        ) {
            let memory = [7; 8192];
            let mut packer = Packer::new(compression).unwrap();
            let (block, stored) = packer.pack((0, 4096), &memory);
            let mut bad = stored.to_vec();
            let at = at % bad.len();
            bad[at] ^= 1u8 << bit;
            let mut unpacker = Unpacker::default();
            prop_assert!(unpacker.unpack(&block, &bad).is_err());
            let block = Block { checksum: rustbtl_checkpoint::image::checksum(&bad), ..block };
            if let Ok(memory) = unpacker.unpack(&block, &bad) {
                prop_assert_eq!(memory.len(), 8192);
            }
        }
    }
}
