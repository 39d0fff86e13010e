//! Storing memory: read from the process, without pages that are zero or are in an older image,
//! packed, written; by several threads.

use super::draft::Draft;
use super::history::{LinkedBases, PageHash};
use super::{ImageStats, WriteOptions};
use crate::compression::Packer;
use crate::error::ProcessImageError;
use crate::pages::{self, Memory, PAGE};
use rustbtl_checkpoint::image::{BLOCK_BYTES_MAX, Block, Elsewhere, append_page};
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
    let (zero, skipped) = (AtomicU64::new(0), AtomicU64::new(0));
    let all = Mutex::new((Vec::new(), Vec::new()));
    let worker = || -> Result<(), ProcessImageError> {
        let mut packer = Packer::new(options.compression)?;
        let (mut buffer, mut own, mut noted) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
            let known = older.map_or_else(Vec::new, |older| unchanged(older, unit));
            buffer.resize(unit.bytes as usize, 0);
            let read = read_unknown(memory, unit, &known, options, &mut buffer)?;
            skipped.fetch_add(unit.bytes - read, Ordering::Relaxed);
            let mut kept = 0;
            let note = |at, page: &[u8]| {
                let known = known.get(at / PAGE as usize).copied().flatten();
                let found = match known {
                    None if pages::is_zero(page) => return Content::Zero,
                    None => older.map(|of| of.note(unit.space, unit.address + at as u64, page)),
                    known => known,
                };
                noted.extend(found);
                let place = |found: PageHash| Some((found.elsewhere?, found.checksum));
                found.and_then(place).map_or(Content::New, |(place, sum)| Content::Old(place, sum))
            };
            for run in runs(&buffer, note) {
                kept += (run.end - run.start) as u64;
                let place = (unit.space, unit.address + run.start as u64);
                let data = &buffer[run.start..run.end];
                if let Some((elsewhere, checksum)) = run.elsewhere {
                    own.push(Block::refer(place, (data.len() as u32, checksum), elsewhere));
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
        unread_bytes: skipped.into_inner(),
        elsewhere_bytes: elsewhere.map(|block| u64::from(block.bytes)).sum(),
        stored_bytes: blocks.iter().map(|block| u64::from(block.stored)).sum(),
        ..ImageStats::default()
    };
    Ok(Stored { blocks, noted, end: end.into_inner(), stats })
}

/// What of a unit need not be read.
fn unchanged(older: &LinkedBases<'_>, unit: &Piece) -> Vec<Option<PageHash>> {
    // The kernel has noted it for the process's memory, not for copies of it.
    if unit.space != 0 || unit.from != unit.address {
        return Vec::new();
    }
    older.unchanged(unit.address, (unit.bytes / PAGE) as usize)
}

/// Reads the pages of a unit that are not known, and returns how many bytes these are; the others,
/// too, if it is to be verified that they are what they are taken for.
fn read_unknown(
    memory: &Memory,
    unit: &Piece,
    known: &[Option<PageHash>],
    options: &WriteOptions,
    buffer: &mut [u8],
) -> Result<u64, ProcessImageError> {
    let reading = || ProcessImageError::system("reading the memory of the process");
    if known.is_empty() {
        memory.read(unit.from, buffer).map_err(reading())?;
        return Ok(unit.bytes);
    }
    if options.verify_unchanged {
        memory.read(unit.from, buffer).map_err(reading())?;
        let changed = buffer.chunks(PAGE as usize).zip(known);
        let mut changed = changed.filter_map(|(page, known)| known.filter(|at| !at.is_of(page)));
        if let Some(page) = changed.next() {
            let what = format!("the page at {:#x}", page.at.1 * PAGE);
            let reason = "the kernel says that it was not written, and it has changed";
            return Err(ProcessImageError::Refused { what, reason });
        }
    }
    let (mut at, mut bytes) = (0, 0);
    for run in known.chunk_by(|a, b| a.is_some() == b.is_some()) {
        let end = at + run.len() * PAGE as usize;
        if run[0].is_none() {
            bytes += (end - at) as u64;
            if !options.verify_unchanged {
                memory.read(unit.from + at as u64, &mut buffer[at..end]).map_err(reading())?;
            }
        }
        at = end;
    }
    Ok(bytes)
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

/// What is known of a page.
enum Content {
    Zero,
    New,
    /// In an older image, there, with this checksum.
    Old(Elsewhere, u32),
}

/// Pages that lie together, here or in an older image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PageRun {
    start: usize,
    end: usize,
    /// Where, and the checksum of all.
    elsewhere: Option<(Elsewhere, u32)>,
}

impl PageRun {
    /// Does a page that comes next belong to it? Then the place with the checksum of both.
    fn with(&self, page: Option<(Elsewhere, u32)>) -> Option<Option<(Elsewhere, u32)>> {
        let bytes = (self.end - self.start) as u32;
        match (self.elsewhere, page) {
            (None, None) => Some(None),
            (Some((of, sum)), Some((at, page))) => {
                let next = Elsewhere { skip: of.skip + bytes, ..of } == at;
                next.then(|| Some((of, append_page(sum, page))))
            }
            _ => None,
        }
    }
}

/// Runs of pages that are not zero; `content` says what is known of each.
fn runs(buffer: &[u8], mut content: impl FnMut(usize, &[u8]) -> Content) -> Vec<PageRun> {
    let mut all: Vec<PageRun> = Vec::new();
    for (index, page) in buffer.chunks(PAGE as usize).enumerate() {
        let at = index * PAGE as usize;
        let elsewhere = match content(at, page) {
            Content::Zero => continue,
            Content::New => None,
            Content::Old(place, checksum) => Some((place, checksum)),
        };
        let last = all.last_mut().filter(|last| last.end == at);
        match last.and_then(|last| Some((last.with(elsewhere)?, last))) {
            Some((both, last)) => (last.end, last.elsewhere) = (at + page.len(), both),
            None => all.push(PageRun { start: at, end: at + page.len(), elsewhere }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustbtl_checkpoint::image::checksum;

    #[test]
    fn runs_end_where_pages_are_zero_or_lie_somewhere_else() {
        let mut buffer = vec![1; 7 * PAGE as usize];
        buffer[PAGE as usize..2 * PAGE as usize].fill(0);
        let at = |image, skip| {
            let (block, skip) = (7, skip * PAGE as u32);
            Some(Elsewhere { image, block, skip })
        };
        let places = [None, None, None, at(1, 3), at(1, 4), at(1, 6), at(2, 7)];
        let found = runs(&buffer, |at, page| match places[at / PAGE as usize] {
            _ if pages::is_zero(page) => Content::Zero,
            None => Content::New,
            Some(place) => Content::Old(place, checksum(page)),
        });
        let place = |run: &PageRun| {
            let (place, sum) = run.elsewhere?;
            assert_eq!(sum, checksum(&buffer[run.start..run.end]));
            Some(place)
        };
        let short: Vec<_> = found
            .iter()
            .map(|run| (run.start / PAGE as usize, run.end / PAGE as usize, place(run)))
            .collect();
        let expected =
            [(0, 1, None), (2, 3, None), (3, 5, at(1, 3)), (5, 6, at(1, 6)), (6, 7, at(2, 7))];
        assert_eq!(short, expected);
    }
}
