//! Names of tests name the invariants of `changes.rs`. Where the kernel cannot do it, they show
//! that nothing is called unchanged.

use super::*;
use proptest::prelude::*;
use rustbtl_checkpoint::image::{Record, records};
use std::collections::BTreeSet;

const PAGES: usize = 64;

/// Pages of this process, and what the kernel notes of them.
struct Subject {
    changes: Changes,
    memory: *mut u8,
    works: bool,
}

impl Subject {
    fn new() -> Self {
        let mut changes = Changes::new().unwrap();
        changes.prepare(true);
        let works = changes.watch.is_some();
        let memory = raw::map(PAGES * PAGE).unwrap();
        let subject = Self { changes, memory, works };
        subject.write(&(0..PAGES).collect());
        subject
    }

    fn write(&self, pages: &BTreeSet<usize>) {
        for page in pages {
            let at = self.memory.wrapping_add(page * PAGE);
            // SAFETY: our own mapping.
            let next = unsafe { at.read_volatile() }.wrapping_add(1);
            // SAFETY: as above.
            unsafe { at.write_volatile(next) };
        }
    }

    /// As `watch_all`, for this memory only.
    fn protect(&mut self) {
        let start = self.memory.addr() as u64;
        let end = start + (PAGES * PAGE) as u64;
        self.changes.watched.clear();
        if let Some(fd) = self.changes.descriptor() {
            register(fd, start, end).unwrap();
            self.changes.watched.push((start, end));
        }
        self.changes.protect();
    }

    /// Numbers of the snapshots, and the pages that were not written.
    fn finish(&mut self) -> Option<(u64, u64, BTreeSet<usize>)> {
        let mut sink = MmapVec::new(1 << 16).unwrap();
        self.changes.finish(&mut sink);
        let Record::Unchanged(found) = records(sink.items()).next()?.unwrap() else { panic!() };
        let words: Vec<u64> =
            found.runs.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let page = |at: u64| (at as usize - self.memory.addr()) / PAGE;
        let pages = words.chunks(2).flat_map(|run| page(run[0])..page(run[1])).collect();
        Some((found.since, found.snapshot, pages))
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.changes.end();
        let a = [self.memory.addr(), PAGES * PAGE, 0, 0, 0, 0];
        // SAFETY: our own mapping.
        let _ = unsafe { raw::call(libc::SYS_munmap, a) };
    }
}

fn pages() -> impl Strategy<Value = BTreeSet<usize>> {
    prop::collection::btree_set(0..PAGES, 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn invariants_1_and_3_whatever_was_written_whenever_is_not_called_unchanged(
        rounds in prop::collection::vec((pages(), pages(), pages()), 1..6)
    ) {
        let mut subject = Subject::new();
        let (mut last, mut pending) = (0, (0..PAGES).collect::<BTreeSet<_>>());
        for (before, at_clone, behind) in &rounds {
            subject.write(before);
            subject.protect();
            subject.write(at_clone);
            let found = subject.finish();
            subject.write(behind);
            if !subject.works {
                prop_assert!(found.is_none());
                continue;
            }
            let (since, snapshot, unchanged) = found.unwrap();
            prop_assert_eq!(since, last);
            let written: BTreeSet<usize> =
                pending.iter().chain(before).chain(at_clone).copied().collect();
            let expected: BTreeSet<usize> =
                (0..PAGES).filter(|page| since != 0 && !written.contains(page)).collect();
            prop_assert_eq!(unchanged, expected);
            (last, pending) = (snapshot, at_clone.union(behind).copied().collect());
        }
    }

    #[test]
    fn what_is_written_is_taken_out_of_what_is_not(
        unwritten in pages(), written in prop::collection::vec((0..PAGES, 1..9usize), 0..9)
    ) {
        let mut without: Vec<(u64, u64)> =
            written.iter().map(|(at, count)| (*at as u64, (at + count) as u64)).collect();
        without.sort_unstable();
        let mut found = BTreeSet::new();
        let add = |start: u64, end: u64| found.extend(start..end.max(start));
        let mut rest = Without { without: &without, add };
        unwritten.iter().for_each(|page| rest.add((*page as u64, *page as u64 + 1)));
        let inside = |page: &u64| without.iter().any(|(start, end)| (start..end).contains(&page));
        let expected: BTreeSet<u64> =
            unwritten.iter().map(|page| *page as u64).filter(|page| !inside(page)).collect();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn invariant_2_after_a_snapshot_that_failed_two_must_succeed() {
    let mut subject = Subject::new();
    let mut round = |finish: bool| {
        subject.changes.prepare(true);
        subject.protect();
        if finish { subject.finish().map(|(since, ..)| since != 0) } else { None }
    };
    let found = [true, true, false, true, true].map(&mut round);
    let none = found.iter().all(Option::is_none);
    let right = [Some(false), Some(true), None, Some(false), Some(true)];
    assert!(found == right || none && !subject.works, "{found:?}");
}

#[test]
fn invariant_2_a_descriptor_that_somebody_closed_is_not_used() {
    let mut subject = Subject::new();
    subject.protect();
    subject.finish();
    let Some(Watch { fd, .. }) = subject.changes.watch else { return };
    raw::close(fd);
    // Another file has the number.
    let other = raw::open(b"/dev/null\0", libc::O_RDONLY).unwrap();
    assert_eq!(subject.changes.descriptor(), None);
    subject.protect();
    assert!(subject.finish().is_none());
    subject.changes.prepare(true);
    subject.protect();
    assert_eq!(subject.finish().map(|(since, ..)| since), Some(0));
    raw::close(other);
}
