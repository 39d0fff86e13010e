//! Images of a memory that changes, one after the other: each gives the memory as it was, with
//! any of the others removed. Names of tests name the invariants of `history.rs`.

use super::*;
use crate::dump::{Compression, is_base_of};
use crate::restore::image_file::{ImageFile, ReadBuffers};
use proptest::prelude::*;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;

const PAGE: usize = 4096;
/// More than a block.
const PAGES: usize = 300;

/// Memory of this process, which plays the part of a frozen one.
struct Subject {
    at: *mut u8,
}

impl Subject {
    fn layout() -> Layout {
        Layout::from_size_align(PAGES * PAGE, PAGE).unwrap()
    }

    fn new() -> Self {
        // SAFETY: the layout is not empty.
        Self { at: unsafe { alloc_zeroed(Self::layout()) } }
    }

    fn memory(&mut self) -> &mut [u8] {
        // SAFETY: allocated with that size, and only used through this.
        unsafe { std::slice::from_raw_parts_mut(self.at, PAGES * PAGE) }
    }

    /// Writes an image: the lower half as memory, the upper as a shared object.
    fn write(&self, path: &Path, compression: Compression, history: &mut History) -> ImageStats {
        let options = WriteOptions { compression, ..WriteOptions::default() };
        self.write_told(path, (0, 0, &[]), options, history).unwrap()
    }

    /// The same; the process says of which snapshot this is, and which of its pages were not
    /// written since which other.
    fn write_told(
        &self,
        path: &Path,
        (since, snapshot, pages): (u64, u64, &[Range<u64>]),
        options: WriteOptions,
        history: &mut History,
    ) -> Result<ImageStats, ProcessImageError> {
        let (from, half) = (self.at.addr() as u64, (PAGES / 2 * PAGE) as u64);
        let pieces = vec![
            Piece { space: 0, address: from, from, bytes: half },
            Piece { space: 1, address: 0, from: from + half, bytes: half },
        ];
        let first = from / PAGE as u64;
        let runs = pages.iter().map(|run| (first + run.start, first + run.end)).collect();
        let unchanged = Unchanged { since, snapshot, runs };
        let objects = vec![(0, 0), (9, 77)];
        let gathered = Gathered { pieces, objects, unchanged, ..Gathered::default() };
        let memory = Memory::of(std::process::id()).unwrap();
        let options = WriteOptions { threads: 2, sync: false, ..options };
        let draft = path.with_extension("new");
        let stats = write_gathered(&memory, gathered, || Ok(()), (&draft, path), &options, history);
        if stats.is_ok() {
            fs::rename(&draft, path).unwrap();
        }
        stats
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.at, Self::layout()) };
    }
}

/// The memory that an image has, if it can be read.
fn read(path: &Path, from: u64) -> Result<Vec<u8>, ProcessImageError> {
    let image = ImageFile::open(path)?;
    let mut memory = vec![0; PAGES * PAGE];
    let mut buffers = ReadBuffers::default();
    for block in &image.blocks {
        let base = if block.space == 0 { from } else { 0 };
        let half = if block.space == 0 { 0 } else { PAGES / 2 * PAGE };
        let at = (block.address - base) as usize + half;
        let data = image.block(block, &mut buffers)?;
        memory[at..at + data.len()].copy_from_slice(data);
    }
    Ok(memory)
}

/// A folder that is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rustbtl-next-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// The image of this checkpoint, in a folder of its own.
    fn image(&self, checkpoint: usize) -> PathBuf {
        let folder = self.0.join(format!("checkpoint-{checkpoint}"));
        fs::create_dir_all(&folder).unwrap();
        folder.join("rank-0.img")
    }

    fn bases(&self, checkpoint: usize) -> Vec<PathBuf> {
        let folder = self.0.join(format!("checkpoint-{checkpoint}"));
        let all = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
        let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        all.filter(|path| is_base_of(&name(path), "rank-0.img")).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the program does between two checkpoints.
#[derive(Clone, Debug)]
enum Change {
    Write { page: usize, pages: usize, seed: u8 },
    Clear { page: usize, pages: usize },
    Move { from: usize, to: usize },
}

fn change() -> impl Strategy<Value = Change> {
    let page = || 0..PAGES;
    prop_oneof![
        4 => (page(), 1..40usize, any::<u8>())
            .prop_map(|(page, pages, seed)| Change::Write { page, pages, seed }),
        1 => (page(), 1..40usize).prop_map(|(page, pages)| Change::Clear { page, pages }),
        1 => (page(), page()).prop_map(|(from, to)| Change::Move { from, to }),
    ]
}

fn apply(memory: &mut [u8], change: &Change) {
    let range = |page: usize, pages: usize| page * PAGE..(page + pages).min(PAGES) * PAGE;
    match *change {
        Change::Write { page, pages, seed } => {
            for (at, byte) in memory[range(page, pages)].iter_mut().enumerate() {
                // Some of it compresses well.
                *byte = if at % 4096 < 2048 { seed } else { ((at * at) >> 5) as u8 ^ seed };
            }
        }
        Change::Clear { page, pages } => memory[range(page, pages)].fill(0),
        Change::Move { from, to } => memory.copy_within(range(from, 1), to * PAGE),
    }
}

fn compression() -> impl Strategy<Value = Compression> {
    prop::sample::select(vec![Compression::None, Compression::Lz4, Compression::Zstd])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn invariants_1_and_2_every_image_gives_its_memory_whatever_became_of_older_ones(
        compression in compression(),
        full_every in 0..5u32,
        checkpoints in prop::collection::vec(
            (prop::collection::vec(change(), 0..4), prop::option::of(0..8usize)), 1..9
        ),
    ) {
        let (folder, mut subject) = (Folder::new(), Subject::new());
        let mut history = History::new(full_every);
        apply(subject.memory(), &Change::Write { page: 0, pages: PAGES / 2, seed: 1 });
        let mut stored: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        let mut without = 0;
        for (checkpoint, (changes, dropped)) in checkpoints.iter().enumerate() {
            changes.iter().for_each(|change| apply(subject.memory(), change));
            let stats = subject.write(&folder.image(checkpoint), compression, &mut history);
            stored.insert(checkpoint, subject.memory().to_vec());
            prop_assert_eq!(stats.elsewhere_bytes > 0, !folder.bases(checkpoint).is_empty());
            without = if stats.elsewhere_bytes > 0 { without + 1 } else { 0 };
            prop_assert!(without < full_every.max(1), "a full one was due");
            if let Some(old) = dropped.filter(|old| stored.remove(old).is_some()) {
                fs::remove_dir_all(folder.image(old).parent().unwrap()).unwrap();
            }
            for (checkpoint, memory) in &stored {
                let found = read(&folder.image(*checkpoint), subject.at.addr() as u64).unwrap();
                prop_assert!(&found == memory, "checkpoint {}", checkpoint);
            }
        }
    }

    #[test]
    fn a_base_that_is_damaged_gives_the_right_memory_or_an_error(
        compression in compression(), place in any::<prop::sample::Index>(), bit in 0..8
    ) {
        let (folder, mut subject, mut history) = (Folder::new(), Subject::new(), History::new(8));
        apply(subject.memory(), &Change::Write { page: 3, pages: 200, seed: 5 });
        subject.write(&folder.image(0), compression, &mut history);
        apply(subject.memory(), &Change::Write { page: 20, pages: 7, seed: 6 });
        subject.write(&folder.image(1), compression, &mut history);
        let base = folder.bases(1).pop().unwrap();
        let mut bytes = fs::read(&base).unwrap();
        let at = place.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        fs::write(&base, &bytes).unwrap();
        match read(&folder.image(1), subject.at.addr() as u64) {
            Ok(found) => prop_assert!(found == subject.memory()),
            Err(error) => prop_assert!(error.to_string().contains("base-1"), "{}", error),
        }
    }
}

/// Two images: the second refers to the first.
fn two() -> (Folder, Subject, History) {
    let (folder, mut subject, mut history) = (Folder::new(), Subject::new(), History::new(8));
    apply(subject.memory(), &Change::Write { page: 0, pages: PAGES, seed: 5 });
    let full = subject.write(&folder.image(0), Compression::None, &mut history);
    apply(subject.memory(), &Change::Write { page: 20, pages: 30, seed: 6 });
    let next = subject.write(&folder.image(1), Compression::None, &mut history);
    assert_eq!((full.elsewhere_bytes, full.stored_bytes), (0, (PAGES * PAGE) as u64));
    assert_eq!(next.stored_bytes, 30 * PAGE as u64);
    assert_eq!(next.elsewhere_bytes, (PAGES - 30) as u64 * PAGE as u64);
    (folder, subject, history)
}

#[test]
fn only_what_has_changed_is_stored_and_the_rest_is_one_step_away() {
    let (folder, mut subject, mut history) = two();
    apply(subject.memory(), &Change::Write { page: 200, pages: 10, seed: 7 });
    let third = subject.write(&folder.image(2), Compression::None, &mut history);
    assert_eq!(third.stored_bytes, 10 * PAGE as u64);
    assert_eq!(folder.bases(2).len(), 2, "both older ones, directly");
    for checkpoint in [0, 1] {
        fs::remove_dir_all(folder.image(checkpoint).parent().unwrap()).unwrap();
    }
    assert!(read(&folder.image(2), subject.at.addr() as u64).unwrap() == subject.memory());
}

#[test]
fn a_base_that_is_missing_or_another_one_is_refused_with_both_names() {
    let (folder, subject, _) = two();
    let base = folder.bases(1).pop().unwrap();
    let whole = fs::read(&base).unwrap();
    let refused = |why: &str| {
        let error = read(&folder.image(1), subject.at.addr() as u64).unwrap_err().to_string();
        let names = ["checkpoint-1/rank-0.img needs", "checkpoint-1/rank-0.img.base-1", why];
        names.iter().for_each(|name| assert!(error.contains(name), "{name}: {error}"));
    };
    fs::remove_file(&base).unwrap();
    refused("No such file");
    fs::write(&base, &whole[..whole.len() - 1]).unwrap();
    refused("cut off");
    fs::copy(folder.image(1), &base).unwrap();
    refused("not the image that was meant");
    fs::write(&base, &whole).unwrap();
    assert!(read(&folder.image(1), subject.at.addr() as u64).is_ok());
}

#[test]
fn invariant_3_where_older_images_are_gone_the_next_one_is_full() {
    let (folder, mut subject, mut history) = two();
    for checkpoint in [0, 1] {
        fs::remove_dir_all(folder.image(checkpoint).parent().unwrap()).unwrap();
    }
    let third = subject.write(&folder.image(2), Compression::None, &mut history);
    assert_eq!((third.elsewhere_bytes, third.stored_bytes), (0, (PAGES * PAGE) as u64));
    assert!(folder.bases(2).is_empty());
    assert!(read(&folder.image(2), subject.at.addr() as u64).unwrap() == subject.memory());
}

#[test]
fn invariant_4_only_what_was_not_written_since_the_last_image_is_not_read() {
    let none = WriteOptions::default();
    let verified = WriteOptions { verify_unchanged: true, ..none };
    let begin = || {
        let (folder, mut subject, mut history) = (Folder::new(), Subject::new(), History::new(8));
        apply(subject.memory(), &Change::Write { page: 0, pages: PAGES, seed: 5 });
        subject.write_told(&folder.image(0), (0, 7, &[]), none, &mut history).unwrap();
        let old = subject.memory().to_vec();
        apply(subject.memory(), &Change::Write { page: 20, pages: 3, seed: 6 });
        (folder, subject, history, old)
    };
    let right = [0..20, 23..PAGES as u64];
    let wrong = [0..21, 23..PAGES as u64];
    let page = PAGE as u64;
    let lower = (PAGES / 2) as u64;
    // What is told, and verified or not; bytes that are not read.
    let table = [
        ((7, 8, &right[..]), none, (lower - 3) * page),
        ((7, 8, &right[..]), verified, (lower - 3) * page),
        ((6, 8, &right[..]), none, 0),
        ((0, 8, &right[..]), none, 0),
        ((6, 8, &wrong[..]), verified, 0),
    ];
    for (told, options, unread) in table {
        let (folder, mut subject, mut history, _) = begin();
        let stats = subject.write_told(&folder.image(1), told, options, &mut history).unwrap();
        assert_eq!((stats.unread_bytes, stats.stored_bytes), (unread, 3 * page), "{told:?}");
        let at = subject.at.addr() as u64;
        assert!(read(&folder.image(1), at).unwrap() == subject.memory(), "{told:?}");
    }
    // A bit that is lost costs a page, and is found if that is looked for.
    let (folder, subject, mut history, _) = begin();
    let lost = subject.write_told(&folder.image(1), (7, 8, &wrong), verified, &mut history);
    let error = lost.unwrap_err().to_string();
    assert!(error.contains("it has changed"), "{error}");
    let (folder, mut subject, mut history, old) = begin();
    subject.write_told(&folder.image(1), (7, 8, &wrong), none, &mut history).unwrap();
    let found = read(&folder.image(1), subject.at.addr() as u64).unwrap();
    assert!(found[20 * PAGE..21 * PAGE] == old[20 * PAGE..21 * PAGE] && found != subject.memory());
    // The older image is gone: all is read.
    let (folder, subject, mut history, _) = begin();
    fs::remove_dir_all(folder.image(0).parent().unwrap()).unwrap();
    let stats = subject.write_told(&folder.image(1), (7, 8, &right), none, &mut history).unwrap();
    assert_eq!((stats.unread_bytes, stats.stored_bytes), (0, (PAGES * PAGE) as u64));
}

#[test]
fn names_of_bases_are_distinguished_from_others() {
    assert!(is_base_of("rank-1.img.base-12", "rank-1.img"));
    for other in ["rank-1.img", "rank-1.img.base-", "rank-1.img.base-x", "rank-11.img.base-1"] {
        assert!(!is_base_of(other, "rank-1.img"), "{other}");
    }
}
