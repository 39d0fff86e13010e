//! Storing memory: read from the process, without pages that are zero or are in an older image,
//! packed, written; by several threads.

use super::draft::Draft;
use super::history::{LinkedBases, PageHash};
use super::{ImageStats, WriteOptions};
use crate::compression::Packer;
use crate::error::ProcessImageError;
use crate::pages::{self, Memory, PAGE};
use rustbtl_checkpoint::image::{BLOCK_BYTES_MAX, Block, Elsewhere};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Memory that is to be stored: its address in the image, in the process, its length.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// See `record::SharedObject`.
    pub space: u16,
    /// Its address there.
    pub address: u64,
    /// Its address in the process.
    pub from: u64,
    /// Whole pages.
    pub bytes: u64,
}

/// What was stored.
#[derive(Debug)]
pub struct Stored {
    /// In no order.
    pub blocks: Vec<Block>,
    /// Hashes of pages that are not zero, in no order; none if images are not incremental.
    pub noted: Vec<PageHash>,
    /// Where the file ends.
    pub end: u64,
    /// As far as it is known.
    pub stats: ImageStats,
}

/// Stores all pieces.
pub fn store(
    memory: &Memory,
    pieces: &[Piece],
    draft: &Draft,
    options: &WriteOptions,
    older: Option<&LinkedBases<'_>>,
) -> Result<Stored, ProcessImageError> {
    let units: Vec<Piece> = pieces.iter().flat_map(split).collect();
    let (next, end) = (AtomicUsize::new(0), AtomicU64::new(4096));
    let zero = AtomicU64::new(0);
    let all = Mutex::new((Vec::new(), Vec::new()));
    let worker = || -> Result<(), ProcessImageError> {
        let mut packer = Packer::new(options.compression)?;
        let (mut buffer, mut own, mut noted) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
            buffer.resize(unit.bytes as usize, 0);
            let reading = ProcessImageError::system("reading the memory of the process");
            memory.read(unit.from, &mut buffer).map_err(reading)?;
            let mut kept = 0;
            for run in runs(&buffer, |at, page| note(older, unit, at, page, &mut noted)) {
                kept += (run.end - run.start) as u64;
                let place = (unit.space, unit.address + run.start as u64);
                let data = &buffer[run.start..run.end];
                if let Some(elsewhere) = run.elsewhere {
                    own.push(Block::refer(place, data, elsewhere));
                    continue;
                }
                let (mut block, stored) = packer.pack(place, data);
                block.offset = end.fetch_add(stored.len() as u64, Ordering::Relaxed);
                draft.write(stored, block.offset)?;
                own.push(block);
            }
            zero.fetch_add(unit.bytes - kept, Ordering::Relaxed);
        }
        if let Ok(mut all) = all.lock() {
            all.0.append(&mut own);
            all.1.append(&mut noted);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..options.threads).map(|_| scope.spawn(worker)).collect();
        let mut outcome = worker();
        for other in others {
            outcome = outcome.and(other.join().unwrap_or(Ok(())));
        }
        outcome
    })?;
    let (blocks, noted) = all.into_inner().unwrap_or_default();
    let elsewhere = blocks.iter().filter(|block| block.elsewhere.is_some());
    let stats = ImageStats {
        touched_bytes: units.iter().map(|unit| unit.bytes).sum(),
        zero_bytes: zero.into_inner(),
        elsewhere_bytes: elsewhere.map(|block| u64::from(block.bytes)).sum(),
        stored_bytes: blocks.iter().map(|block| u64::from(block.stored)).sum(),
        ..ImageStats::default()
    };
    Ok(Stored { blocks, noted, end: end.into_inner(), stats })
}

/// Where a page is already; its hash is noted for the image after this one.
fn note(
    older: Option<&LinkedBases<'_>>,
    unit: &Piece,
    at: usize,
    page: &[u8],
    noted: &mut Vec<PageHash>,
) -> Option<Elsewhere> {
    let note = older?.note(unit.space, unit.address + at as u64, page);
    noted.push(note);
    note.elsewhere
}

fn split(piece: &Piece) -> impl Iterator<Item = Piece> {
    let piece = *piece;
    (0..piece.bytes).step_by(BLOCK_BYTES_MAX).map(move |at| Piece {
        address: piece.address + at,
        from: piece.from + at,
        bytes: (piece.bytes - at).min(BLOCK_BYTES_MAX as u64),
        ..piece
    })
}

/// Pages that lie together, here or in an older image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PageRun {
    start: usize,
    end: usize,
    elsewhere: Option<Elsewhere>,
}

impl PageRun {
    /// Does a page that comes next belong to it?
    fn continues_with(&self, elsewhere: Option<Elsewhere>) -> bool {
        let bytes = (self.end - self.start) as u32;
        self.elsewhere.map(|e| Elsewhere { skip: e.skip + bytes, ..e }) == elsewhere
    }
}

/// Runs of pages that are not zero; `place` gives of each where it is already.
fn runs(buffer: &[u8], mut place: impl FnMut(usize, &[u8]) -> Option<Elsewhere>) -> Vec<PageRun> {
    let mut all: Vec<PageRun> = Vec::new();
    for (index, page) in buffer.chunks(PAGE as usize).enumerate() {
        if pages::is_zero(page) {
            continue;
        }
        let at = index * PAGE as usize;
        let elsewhere = place(at, page);
        match all.last_mut() {
            Some(last) if last.end == at && last.continues_with(elsewhere) => {
                last.end += page.len()
            }
            _ => all.push(PageRun { start: at, end: at + page.len(), elsewhere }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_where_pages_are_zero_or_lie_somewhere_else() {
        let mut buffer = vec![1; 7 * PAGE as usize];
        buffer[PAGE as usize..2 * PAGE as usize].fill(0);
        let at = |image, skip| {
            let (block, skip) = (7, skip * PAGE as u32);
            Some(Elsewhere { image, block, skip })
        };
        let places = [None, None, None, at(1, 3), at(1, 4), at(1, 6), at(2, 7)];
        let found = runs(&buffer, |at, _| places[at / PAGE as usize]);
        let short: Vec<_> = found
            .iter()
            .map(|run| (run.start / PAGE as usize, run.end / PAGE as usize, run.elsewhere))
            .collect();
        let expected =
            [(0, 1, None), (2, 3, None), (3, 5, at(1, 3)), (5, 6, at(1, 6)), (6, 7, at(2, 7))];
        assert_eq!(short, expected);
    }
}
