//! Memory of the payload log: anonymous mappings within the budget, then a file.

use crate::os::random;
use crate::payload_log::prefault::Prefault;
use crate::payload_log::segment::Segment;
use core::ops::Range;
use rustbtl_checkpoint::{PayloadLog, SegmentMemory, SegmentSource};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// From this size on, ask for huge pages.
const HUGE: usize = 2 << 20;

/// Where the log's memory comes from.
#[derive(Debug)]
pub struct LogMemory {
    /// `None`: never spill.
    directory: Option<PathBuf>,
    rank: u32,
    spill: Option<File>,
    spilled: u64,
    /// Why the last spill failed, for the message to the user.
    pub spill_error: Option<String>,
    /// Makes pages ahead of need.
    prefault: Option<Prefault>,
    /// There is a processor for that.
    ahead: bool,
    /// Where segments were, since somebody has asked ([`Self::take_freed`]).
    freed: Vec<Range<usize>>,
    notes_freed: bool,
}

impl LogMemory {
    /// Spill to an unnamed file in `directory`.
    pub fn new(directory: Option<PathBuf>, rank: u32) -> Self {
        let (spill, prefault) = (None, None);
        Self {
            directory,
            rank,
            spill,
            spilled: 0,
            spill_error: None,
            prefault,
            ahead: false,
            freed: Vec::new(),
            notes_freed: false,
        }
    }

    /// Let a thread prepare large segments from now on; only where a processor is free for it.
    pub fn prepare_ahead(&mut self) {
        self.ahead = true;
    }

    /// Where segments were that were given back since the last call; the first one begins that.
    pub fn take_freed(&mut self) -> Vec<Range<usize>> {
        self.notes_freed = true;
        core::mem::take(&mut self.freed)
    }

    /// A large segment whose pages are there already, if one is ready. The thread starts when
    /// the log first grows to large segments.
    fn prepared(&mut self, bytes: usize) -> Option<Segment> {
        if !self.ahead || bytes < HUGE {
            return None;
        }
        if self.prefault.is_none() {
            self.prefault = Prefault::start();
            self.ahead = self.prefault.is_some();
        }
        self.prefault.as_mut()?.take(bytes)
    }

    /// Make the file now, to find out early that it cannot be made.
    pub fn open_spill(&mut self) -> io::Result<()> {
        let Some(directory) = &self.directory else {
            return Err(io::Error::other("spilling is switched off"));
        };
        if self.spill.is_some() {
            return Ok(());
        }
        // Who guessed the name could have it first, and stop the job.
        let random = u64::from_ne_bytes(random::bytes().map_err(io::Error::other)?);
        let path = directory.join(format!("rustbtl-log-{}-{random:016x}", self.rank));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&path)?;
        // Unnamed from now on: it goes with the process, however that ends.
        std::fs::remove_file(&path)?;
        self.spill = Some(file);
        Ok(())
    }

    fn spill(&mut self, bytes: usize) -> io::Result<Segment> {
        self.open_spill()?;
        let Some(file) = &self.spill else { return Err(io::Error::other("no file")) };
        let (offset, length) = (self.spilled as libc::off_t, bytes as libc::off_t);
        // SAFETY: a call on our own descriptor. Reserves the blocks: a full disk must be an error
        // here, not a signal later.
        let code = unsafe { libc::posix_fallocate(file.as_raw_fd(), offset, length) };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        let segment = Segment::map(bytes, libc::MAP_SHARED, file.as_raw_fd(), self.spilled)?;
        self.spilled += bytes as u64;
        Ok(segment)
    }
}

/// Memory of a log whose contents nobody needs, for a snapshot to leave out; neighbours are one
/// range. What of the spill file is free has no blocks where there is memory (`PayloadLog`'s W2).
pub fn unused_ranges(log: &PayloadLog<LogMemory>) -> Vec<Range<usize>> {
    let free = log.free_segments().filter_map(Segment::anonymous_range);
    let prepared = log.memory().prefault.iter().flat_map(Prefault::ready_ranges);
    let mut ranges: Vec<Range<usize>> = free.chain(prepared).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, before| {
        let joins = before.end == next.start;
        if joins {
            before.end = next.end;
        }
        joins
    });
    ranges
}

impl SegmentMemory for LogMemory {
    type Segment = Segment;
    type Error = io::Error;

    fn allocate(&mut self, bytes: usize, source: SegmentSource) -> io::Result<Segment> {
        match source {
            SegmentSource::Memory => {
                self.prepared(bytes).map_or_else(|| Segment::anonymous(bytes), Ok)
            }
            SegmentSource::Spill => self.spill(bytes).inspect_err(|error| {
                self.spill_error = Some(error.to_string());
            }),
        }
    }

    fn free(&mut self, segment: Segment) {
        if self.notes_freed {
            self.freed.extend(segment.anonymous_range());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spilled_segments_are_memory_like_any_other() {
        let mut memory = LogMemory::new(Some(std::env::temp_dir()), 0);
        let mut one = memory.allocate(1 << 16, SegmentSource::Spill).unwrap();
        let mut two = memory.allocate(1 << 16, SegmentSource::Spill).unwrap();
        one.as_mut().fill(1);
        two.as_mut().fill(2);
        assert!(one.as_ref().iter().all(|&b| b == 1) && two.as_ref().iter().all(|&b| b == 2));
        let mut three = memory.allocate(4 << 20, SegmentSource::Memory).unwrap();
        three.touch();
        assert_eq!(three.as_ref().len(), 4 << 20);
        assert_eq!(three.as_ref().as_ptr() as usize % HUGE, 0, "on a huge page's boundary");
    }

    #[test]
    fn dropped_segments_give_their_blocks_back() {
        use std::os::unix::fs::MetadataExt;
        let mut memory = LogMemory::new(Some(std::env::temp_dir()), 1);
        let mut one = memory.allocate(4 << 20, SegmentSource::Spill).unwrap();
        one.as_mut().fill(1);
        let blocks = |memory: &LogMemory| {
            memory.spill.as_ref().map_or(0, |file| file.metadata().map_or(0, |data| data.blocks()))
        };
        let before = blocks(&memory);
        assert!(before >= (4 << 20) / 512);
        drop(one);
        assert!(blocks(&memory) < before / 2, "{} of {before} blocks stay", blocks(&memory));
    }

    #[test]
    fn free_memory_is_known_and_memory_in_use_is_not_in_it() {
        use rustbtl_checkpoint::LogLimits;
        use rustbtl_fragments::host::LogEntry;
        use rustbtl_fragments::ids::*;
        use rustbtl_fragments::payload_digest::PayloadDigest;
        use rustbtl_fragments::wire::StreamKey;
        let limits = LogLimits { budget_bytes: 8 << 20, ..LogLimits::default() };
        let mut log = PayloadLog::new(LogMemory::new(Some(std::env::temp_dir()), 2), limits);
        assert_eq!(unused_ranges(&log), []);
        let append = |log: &mut PayloadLog<LogMemory>, set, number| {
            let entry = LogEntry {
                to: PeerId(set),
                set: SetId(set),
                stream: StreamKey::of(ContextId(0), 0),
                sequence: MessageSeq(number),
                source: CommRank(0),
                tag: 0,
                bytes: 100_000,
                digest: PayloadDigest::NONE,
            };
            log.append(&entry, |into| into.fill(7)).unwrap()
        };
        let kept = append(&mut log, 1, 0);
        // More than the budget: some of it is spilled.
        (0..100).for_each(|number| {
            append(&mut log, 2, number);
        });
        assert_eq!(unused_ranges(&log), []);
        assert!(log.counters().spilled_bytes > 0);
        log.trim(SetId(2), |_| true);
        let ranges = unused_ranges(&log);
        let bytes: usize = ranges.iter().map(|range| range.end - range.start).sum();
        let in_memory = log.counters().free_bytes - log.counters().spilled_bytes;
        assert_eq!(bytes as u64, in_memory);
        assert!(ranges.windows(2).all(|two| two[0].end < two[1].start), "{ranges:?}");
        let used = log.payload(kept).as_ptr() as usize;
        assert!(!ranges.iter().any(|range| range.contains(&used)));
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_an_error() {
        let mut memory = LogMemory::new(Some(PathBuf::from("/proc/self/nowhere")), 0);
        assert!(memory.allocate(1 << 16, SegmentSource::Spill).is_err());
        assert!(memory.spill_error.is_some());
        assert!(LogMemory::new(None, 0).allocate(1 << 16, SegmentSource::Spill).is_err());
    }
}
