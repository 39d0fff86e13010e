//! The node segment: made by one local rank, attached by the others, checked before it is used.

use crate::os::mapping::{Mapping, OpenError, free_bytes, remove_leftover, unlink};
use crate::os::{locks, process, random};
use crate::transports::set_memory::{SetCounters, Slots};
use crate::transports::shm::error::ShmError;
use crate::transports::shm::layout::*;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use rustbtl_fragments::wire::ANNOUNCE_BYTES;
use rustbtl_ring::{Raw, frame_bytes_max, valid_ring_bytes};
use rustbtl_rma::direct::{ENTRIES, SetGroup, TargetArea, TargetLine, WindowEntry};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};

/// Largest payload of an eager fragment unless told otherwise; see docs/performance.md.
pub const EAGER_BYTES_DEFAULT: u32 = 16 << 10;

/// How a segment is made and used.
#[derive(Clone, Debug)]
pub struct SegmentOptions {
    /// A memory file system.
    pub directory: PathBuf,
    /// Bytes of one ring, a power of two; 0: by the number of local ranks.
    pub ring_bytes: usize,
    /// Largest payload of an eager fragment; 0: a default. Clipped to what a ring takes.
    pub eager_bytes_max: u32,
    /// Try to fetch large payloads straight from the sender's memory.
    pub single_copy: bool,
}

impl Default for SegmentOptions {
    fn default() -> Self {
        Self {
            directory: PathBuf::from("/dev/shm"),
            ring_bytes: 0,
            eager_bytes_max: 0,
            single_copy: true,
        }
    }
}

/// A rank's view of the node segment.
#[derive(Debug)]
pub struct Segment {
    mapping: Mapping,
    layout: Layout,
    /// What ranks share of windows: offset of the first rank's, bytes of each. It is asked for in
    /// each access.
    windows: (usize, usize),
    me: usize,
    name: String,
    path: PathBuf,
    created: bool,
    eager_bytes_max: u32,
    single_copy: bool,
    /// The word that others read to learn whether they may read our memory.
    probe: Box<AtomicU64>,
}

const PREFIX: &str = "rustbtl-";

impl Segment {
    /// Make the segment of this node for `ranks` local ranks, of which this is number `me`.
    pub fn create(ranks: usize, me: usize, options: &SegmentOptions) -> Result<Self, ShmError> {
        Self::create_named(u128::from_le_bytes(random::bytes()?), ranks, me, options)
    }

    /// The name that goes with a number.
    pub fn name_of(number: u128) -> String {
        format!("{PREFIX}{}-{number:032x}", process::uid())
    }

    /// The same as [`Segment::create`] under a name that the other ranks know already.
    pub fn create_named(
        number: u128,
        ranks: usize,
        me: usize,
        options: &SegmentOptions,
    ) -> Result<Self, ShmError> {
        let layout = layout(ranks, me, options)?;
        let name = Self::name_of(number);
        let path = options.directory.join(&name);
        remove_leftovers(&options.directory);
        let bytes = layout.total_bytes();
        let mapping = Mapping::create(&path, bytes, me as u64).map_err(|error| {
            if error.code != libc::ENOSPC {
                return ShmError::Os(error);
            }
            ShmError::NoRoom {
                directory: options.directory.display().to_string(),
                needed: layout.total_bytes() as u64,
                free: free_bytes(&options.directory).unwrap_or(0),
                ranks,
            }
        })?;
        let segment = Self::with(mapping, layout, me, name, path, true, options)?;
        let header = segment.header();
        header.version.store(VERSION, Ordering::Relaxed);
        header.ranks.store(ranks as u32, Ordering::Relaxed);
        header.ring_bytes.store(layout.ring_bytes as u64, Ordering::Relaxed);
        header.total_bytes.store(layout.total_bytes() as u64, Ordering::Relaxed);
        header.uid.store(process::uid(), Ordering::Relaxed);
        // [segment] complete.
        header.magic.store(MAGIC, Ordering::Release);
        segment.enter()?;
        Ok(segment)
    }

    /// Attach the segment that another local rank made, by its name.
    pub fn attach(
        name: &str,
        ranks: usize,
        me: usize,
        options: &SegmentOptions,
    ) -> Result<Self, ShmError> {
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !name.starts_with(PREFIX) || !plain {
            return Err(ShmError::Name(name.to_owned()));
        }
        let path = options.directory.join(name);
        let mapping = Mapping::open(&path).map_err(|error| match error {
            OpenError::Os(error) => ShmError::Os(error),
            OpenError::Owner(uid) => foreign(&path, format!("it belongs to user {uid}")),
            OpenError::Mode(mode) => foreign(&path, format!("its mode is {mode:o}")),
            OpenError::Size(bytes) => foreign(&path, format!("it has {bytes} bytes")),
        })?;
        let ring_bytes = check(&mapping, &path, ranks)?;
        let layout = layout(ranks, me, &SegmentOptions { ring_bytes, ..options.clone() })?;
        let found = mapping.bytes() as u64;
        let expected = layout.total_bytes() as u64;
        if found != expected {
            return Err(mismatch(&path, "its size", found, expected));
        }
        let segment = Self::with(mapping, layout, me, name.to_owned(), path, false, options)?;
        segment.enter()?;
        Ok(segment)
    }

    fn with(
        mapping: Mapping,
        layout: Layout,
        me: usize,
        name: String,
        path: PathBuf,
        created: bool,
        options: &SegmentOptions,
    ) -> Result<Self, ShmError> {
        let wanted = match options.eager_bytes_max {
            0 => EAGER_BYTES_DEFAULT,
            bytes => bytes,
        };
        let possible = frame_bytes_max(layout.ring_bytes) - ANNOUNCE_BYTES;
        let probe = Box::new(AtomicU64::new(u64::from_ne_bytes(random::bytes()?) | 1));
        let single_copy = options.single_copy;
        let eager_bytes_max = wanted.min(possible as u32);
        let windows = (layout.window_group_at(0), layout.window_bytes());
        // All that is shared of windows is inside.
        assert!(windows.0 + layout.ranks * windows.1 <= mapping.bytes());
        Ok(Self {
            mapping,
            layout,
            windows,
            me,
            name,
            path,
            created,
            eager_bytes_max,
            single_copy,
            probe,
        })
    }

    /// Tell the others that this rank is here; the last one removes the file's name.
    fn enter(&self) -> Result<(), ShmError> {
        locks::hold(self.mapping.file(), self.me as u64)?;
        let rank_line = self.rank(self.me);
        rank_line.pid.store(std::process::id(), Ordering::Relaxed);
        let address = core::ptr::from_ref::<AtomicU64>(&self.probe) as u64;
        rank_line.probe_address.store(address, Ordering::Relaxed);
        rank_line.probe_value.store(self.probe.load(Ordering::Relaxed), Ordering::Relaxed);
        // [state] pid and probe are readable.
        rank_line.state.store(STATE_ATTACHED, Ordering::Release);
        let before = self.header().attached.fetch_add(1, Ordering::AcqRel);
        if before as usize + 1 == self.layout.ranks {
            unlink(&self.path)?;
        }
        Ok(())
    }

    /// Name to publish to the other local ranks.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sizes.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The descriptor of its file.
    pub(super) fn descriptor(&self) -> RawFd {
        self.mapping.file().as_raw_fd()
    }

    /// Where it is mapped.
    pub(super) fn range(&self) -> core::ops::Range<usize> {
        let start = self.mapping.start().as_ptr() as usize;
        start..start + self.mapping.bytes()
    }

    /// My local index.
    pub fn me(&self) -> usize {
        self.me
    }

    pub(super) fn eager_bytes_max(&self) -> u32 {
        self.eager_bytes_max
    }

    pub(super) fn single_copy(&self) -> bool {
        self.single_copy
    }

    /// Does the process of this rank live? (Only sensible once it has attached.)
    pub(super) fn is_alive(&self, rank: usize) -> bool {
        locks::held_by_another(self.mapping.file(), rank as u64)
    }

    #[inline]
    fn at<T>(&self, offset: usize) -> NonNull<T> {
        assert!(offset + size_of::<T>() <= self.mapping.bytes());
        // SAFETY: inside the mapping, as asserted.
        unsafe { self.mapping.start().add(offset).cast() }
    }

    fn header(&self) -> &Header {
        // SAFETY: page aligned, inside the mapping; all fields are atomics, any bytes are valid.
        unsafe { self.at::<Header>(0).as_ref() }
    }

    pub(super) fn rank(&self, rank: usize) -> &RankLine {
        // SAFETY: inside the mapping, aligned by the layout; all fields are atomics.
        unsafe { self.at::<RankLine>(self.layout.rank_at(rank)).as_ref() }
    }

    pub(super) fn bell(&self, rank: usize) -> &Bell {
        // SAFETY: inside the mapping, aligned by the layout; the field is an atomic.
        unsafe { self.at::<Bell>(self.layout.bell_at(rank)).as_ref() }
    }

    pub(super) fn set_counters(&self, rank: usize) -> &SetCounters {
        // SAFETY: inside the mapping, aligned by the layout; all fields are atomics.
        unsafe { self.at::<SetCounters>(self.layout.set_counters_at(rank)).as_ref() }
    }

    pub(super) fn slots(&self, rank: usize) -> &Slots {
        // SAFETY: inside the mapping, aligned by the layout; all fields are atomics.
        unsafe { self.at::<Slots>(self.layout.slots_at(rank)).as_ref() }
    }

    /// What a rank shares of windows begins here: its `SetGroup`.
    #[inline(always)]
    fn windows_of(&self, rank: usize) -> NonNull<u8> {
        assert!(rank < self.layout.ranks);
        let (first, each) = self.windows;
        // SAFETY: inside the mapping, for all ranks, as asserted when it was made.
        unsafe { self.mapping.start().add(first + rank * each) }
    }

    #[inline(always)]
    pub(super) fn window_group(&self, rank: usize) -> &SetGroup {
        // SAFETY: inside the mapping, aligned by the layout; all fields are atomics.
        unsafe { self.windows_of(rank).cast::<SetGroup>().as_ref() }
    }

    #[inline(always)]
    pub(super) fn window_area(&self, rank: usize) -> TargetArea<'_> {
        let start = self.windows_of(rank).as_ptr();
        let line = start.wrapping_add(Layout::WINDOW_LINE).cast::<TargetLine>();
        let entries = start.wrapping_add(Layout::WINDOW_ENTRIES).cast::<[WindowEntry; ENTRIES]>();
        let cells = start.wrapping_add(Layout::WINDOW_CELLS).cast::<AtomicU64>();
        // SAFETY: inside the mapping, aligned by the layout; all fields are atomics.
        let line = unsafe { &*line };
        // SAFETY: the same; the layout has so many of them there.
        let entries = unsafe { &*entries };
        let count = self.layout.window_cells();
        // SAFETY: the same.
        let cells = unsafe { core::slice::from_raw_parts(cells, count) };
        TargetArea::new(line, entries, cells)
    }

    pub(super) fn bitmap(&self, rank: usize) -> &[AtomicU64] {
        let words = self.layout.bitmap_words();
        let start = self.at::<AtomicU64>(self.layout.bitmap_at(rank));
        // SAFETY: the layout has this many words there, before the export table; atomics.
        unsafe { core::slice::from_raw_parts(start.as_ptr(), words) }
    }

    pub(super) fn exports(&self, rank: usize) -> &[Export] {
        let start = self.at::<Export>(self.layout.exports_at(rank));
        // SAFETY: the layout has EXPORTS of them there; all fields are atomics.
        unsafe { core::slice::from_raw_parts(start.as_ptr(), EXPORTS) }
    }

    /// Memory of the ring from one rank to another, for one of its ends.
    ///
    /// # Safety
    /// The segment outlives the result, and the caller takes each end of each ring at most once.
    pub(super) unsafe fn ring(&self, from: usize, to: usize) -> Raw {
        let base = self.at::<u8>(self.layout.ring_at(from, to));
        let control = self.at(self.layout.control_at(from, to));
        // SAFETY: the ring lies inside the mapping (total size was checked against the layout),
        // is page aligned and of a valid size; the rest is the caller's promise.
        unsafe { Raw::new(base, self.layout.ring_bytes, control) }
    }

    /// Write a word anywhere, as a stray pointer of some process would.
    #[doc(hidden)]
    pub fn overwrite_for_tests(&self, offset: usize, word: u64) {
        // SAFETY: inside the mapping (`at` checks); rings expect damage.
        unsafe { self.at::<AtomicU64>(offset).as_ref() }.store(word, Ordering::Release);
    }

    /// Map the pages of a ring that is about to be used.
    pub(super) fn warm(&self, from: usize, to: usize) {
        self.mapping.populate(self.layout.ring_at(from, to), self.layout.ring_bytes);
    }
}

/// Segments of this user whose processes have all been killed before the last one had attached.
/// Who was killed removes nothing, and after a restart Open MPI does not know the segment.
fn remove_leftovers(directory: &Path) {
    let prefix = format!("{PREFIX}{}-", process::uid());
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(&prefix));
        let is_segment = |number: &str| {
            number.len() == 32 && number.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        if number.is_some_and(is_segment) {
            remove_leftover(&entry.path());
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let here = self.header().attached.load(Ordering::Acquire) as usize;
        if self.created && here < self.layout.ranks {
            let _ = unlink(&self.path);
        }
    }
}

fn foreign(path: &Path, why: String) -> ShmError {
    ShmError::Foreign { path: path.display().to_string(), why }
}

fn mismatch(path: &Path, field: &'static str, found: u64, expected: u64) -> ShmError {
    ShmError::Mismatch { path: path.display().to_string(), field, found, expected }
}

fn layout(ranks: usize, me: usize, options: &SegmentOptions) -> Result<Layout, ShmError> {
    if ranks == 0 || ranks > RANKS_MAX || me >= ranks {
        return Err(ShmError::Arguments(format!(
            "local rank {me} of {ranks} makes no sense (at most {RANKS_MAX} ranks on a node)"
        )));
    }
    let ring_bytes = match options.ring_bytes {
        0 => Layout::default_ring_bytes(ranks),
        bytes => bytes,
    };
    if !valid_ring_bytes(ring_bytes) {
        return Err(ShmError::Arguments(format!(
            "a ring of {ring_bytes} bytes is not possible: powers of two from 512 bytes to 1 GiB"
        )));
    }
    Ok(Layout { ranks, ring_bytes })
}

/// Check the header of a mapped file; the ring size it names (not yet checked for sense).
fn check(mapping: &Mapping, path: &Path, ranks: usize) -> Result<usize, ShmError> {
    let not_a_segment = || ShmError::NotASegment(path.display().to_string());
    if mapping.bytes() < size_of::<Header>() {
        return Err(not_a_segment());
    }
    // SAFETY: page aligned and long enough; all fields are atomics, any bytes are valid.
    let header = unsafe { mapping.start().cast::<Header>().as_ref() };
    // [segment] the other fields are complete.
    if header.magic.load(Ordering::Acquire) != MAGIC {
        return Err(not_a_segment());
    }
    let version = header.version.load(Ordering::Relaxed);
    if version != VERSION {
        let path = path.display().to_string();
        return Err(ShmError::Version { path, found: version, expected: VERSION });
    }
    let uid = header.uid.load(Ordering::Relaxed);
    if uid != process::uid() {
        return Err(foreign(path, format!("it was made by user {uid}")));
    }
    let found = u64::from(header.ranks.load(Ordering::Relaxed));
    if found != ranks as u64 {
        return Err(mismatch(path, "the number of local ranks", found, ranks as u64));
    }
    Ok(header.ring_bytes.load(Ordering::Relaxed) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> SegmentOptions {
        SegmentOptions { ring_bytes: 4096, ..SegmentOptions::default() }
    }

    #[test]
    fn the_file_goes_when_the_last_rank_has_attached() {
        let one = Segment::create(2, 0, &small()).unwrap();
        let path = Path::new("/dev/shm").join(one.name());
        assert!(path.exists());
        let two = Segment::attach(one.name(), 2, 1, &small()).unwrap();
        assert!(!path.exists());
        assert_eq!(two.layout(), one.layout());
        assert!(one.is_alive(1) && two.is_alive(0));
        drop(two);
        assert!(!one.is_alive(1));
    }

    #[test]
    fn the_creator_removes_a_file_that_nobody_attached() {
        let one = Segment::create(2, 0, &small()).unwrap();
        let path = Path::new("/dev/shm").join(one.name());
        drop(one);
        assert!(!path.exists());
    }

    #[test]
    fn the_next_segment_of_this_user_removes_what_killed_processes_have_left() {
        // Apart from /dev/shm: other tests have segments there.
        let name = format!("rustbtl-left-{:016x}", u64::from_ne_bytes(random::bytes().unwrap()));
        let directory = Path::new("/dev/shm").join(name);
        std::fs::create_dir(&directory).unwrap();
        let options = SegmentOptions { directory: directory.clone(), ..small() };
        let killed = std::mem::ManuallyDrop::new(Segment::create(2, 0, &options).unwrap());
        let left = directory.join(killed.name());
        let used = Segment::create(2, 0, &options).unwrap();
        assert!(left.exists(), "its process is alive");
        // As the kernel does it when its process is killed; memory holds the file, too.
        let (range, fd) = (killed.range(), killed.descriptor());
        // SAFETY: nothing of the segment is used any more.
        unsafe { libc::munmap(range.start as *mut libc::c_void, range.len()) };
        // SAFETY: as above.
        unsafe { libc::close(fd) };
        let next = Segment::create(2, 0, &options).unwrap();
        assert!(!left.exists());
        assert!([&used, &next].iter().all(|one| directory.join(one.name()).exists()));
        drop((used, next));
        std::fs::remove_dir(&directory).unwrap();
    }

    #[test]
    fn too_small_a_file_system_is_named_with_both_sizes() {
        let huge = SegmentOptions { ring_bytes: 1 << 30, ..SegmentOptions::default() };
        let error = Segment::create(RANKS_MAX, 0, &huge).unwrap_err();
        match &error {
            ShmError::NoRoom { needed, free, .. } => assert!(needed > free),
            ShmError::Os(error) => assert_eq!(error.code, libc::EFBIG),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn another_number_of_ranks_a_bad_name_and_garbage_are_refused() {
        let one = Segment::create(2, 0, &small()).unwrap();
        let error = Segment::attach(one.name(), 3, 1, &small()).unwrap_err();
        assert!(matches!(error, ShmError::Mismatch { .. }), "{error}");
        for name in ["../etc/passwd", "rustbtl-../x", "other"] {
            let error = Segment::attach(name, 2, 1, &small()).unwrap_err();
            assert!(matches!(error, ShmError::Name(_)), "{error}");
        }
        one.header().version.store(99, Ordering::Relaxed);
        let error = Segment::attach(one.name(), 2, 1, &small()).unwrap_err();
        assert!(matches!(error, ShmError::Version { found: 99, .. }), "{error}");
        one.header().magic.store(1, Ordering::Relaxed);
        let error = Segment::attach(one.name(), 2, 1, &small()).unwrap_err();
        assert!(matches!(error, ShmError::NotASegment(_)), "{error}");
    }

    #[test]
    fn a_rank_cannot_attach_twice() {
        let one = Segment::create(3, 0, &small()).unwrap();
        let _two = Segment::attach(one.name(), 3, 1, &small()).unwrap();
        let error = Segment::attach(one.name(), 3, 1, &small()).unwrap_err();
        assert!(matches!(error, ShmError::Os(_)), "{error}");
    }
}
