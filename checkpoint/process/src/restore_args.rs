//! Arguments that `restore` passes to the restored process, in memory that the image reserves.
//!
//! `restore` writes them with `encode` after it has filled the memory; the process reads them when
//! it resumes. Both are of the same build or at least of the same image format version.

use core::ops::Range;
use rustbtl_checkpoint::image::codec::Field;
use rustbtl_checkpoint::image::{ImageError, Reader};

/// Memory for the arguments.
pub const RESTORE_ARGS_BYTES: usize = 128 << 10;
/// Longest payload.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// Most muted descriptors.
pub const MUTED_MAX: usize = 64;

/// See the head of this file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RestoreArgs<'a> {
    /// The restorer, to be unmapped.
    pub restorer: Range<u64>,
    /// All threads have the ids that they had.
    pub same_ids: bool,
    /// How often the process has been restored, this time included.
    pub generation: u32,
    /// Pairs of a muted descriptor and its far end.
    pub muted: [(i32, i32); MUTED_MAX],
    /// How many of these there are.
    pub muted_count: usize,
    /// From the caller of `restore`.
    pub payload: &'a [u8],
}

impl<'a> RestoreArgs<'a> {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.restorer.start.put(&mut out);
        self.restorer.end.put(&mut out);
        self.same_ids.put(&mut out);
        self.generation.put(&mut out);
        (self.muted_count as u32).put(&mut out);
        for (fd, far) in &self.muted[..self.muted_count] {
            fd.put(&mut out);
            far.put(&mut out);
        }
        self.payload.put(&mut out);
        out
    }

    /// From bytes, without the allocator.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, ImageError> {
        let mut reader = Reader::new(bytes);
        let restorer = reader.take()?..reader.take()?;
        let same_ids = reader.take()?;
        let generation = reader.take()?;
        let muted_count = reader.take::<u32>()? as usize;
        let mut muted = [(-1, -1); MUTED_MAX];
        let pairs = muted.get_mut(..muted_count).ok_or(ImageError::Limit("muted descriptors"))?;
        for pair in pairs {
            *pair = (reader.take()?, reader.take()?);
        }
        Ok(Self { restorer, same_ids, generation, muted, muted_count, payload: reader.take()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_arrive_as_they_were_written() {
        let mut muted = [(-1, -1); MUTED_MAX];
        muted[0] = (14, 99);
        let restore_args = RestoreArgs {
            restorer: 5..6,
            same_ids: true,
            generation: 3,
            muted,
            muted_count: 1,
            payload: b"hello",
        };
        assert_eq!(RestoreArgs::decode(&restore_args.encode()), Ok(restore_args));
    }
}
