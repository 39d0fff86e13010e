//! Which memory was not written between two snapshots, as the kernel notes it: so that the writer
//! of the next image neither reads nor compares it.
//!
//! Source: docs/adr/0036. A userfaultfd write-protects private memory without a file; the kernel
//! lifts the protection of a page at its first write by itself (UFFD_FEATURE_WP_ASYNC), also where
//! it writes there for the program, and the ioctl PAGEMAP_SCAN tells which pages were written and
//! protects these again. Nobody reads the descriptor, and no fault waits for anybody.
//!
//! Invariants (the tests name them):
//! 1. A page is only called unchanged if it was protected before the clone of the snapshot `since`
//!    and has been ever since, until the clone of this one.
//! 2. After anything that fails, or that is not known, nothing is called unchanged until two
//!    snapshots have succeeded.
//! 3. What the checkpoint thread writes between the protection and the clone counts as written for
//!    this snapshot and for the next one.
//!
//! For that, `protect` notes before the clone what was written, and `finish` behind it what is
//! still protected: unchanged is what is in the second list and not in the first.

use super::failure::FreezeFailure;
use crate::mmap_vec::MmapVec;
use crate::proc_files::{self, MapLine};
use crate::raw::{self, Errno};
use rustbtl_checkpoint::image::record;

const PAGE: usize = 4096;
/// More runs than these are put together: their gaps count as written.
const RUNS_MAX: usize = 1 << 16;
/// Runs that one call returns.
const RUNS_AT_ONCE: usize = 1 << 10;

/// The ioctl of /proc/PID/pagemap, since Linux 6.7.
const PAGEMAP_SCAN: usize = 0xC060_6610;

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct ScanRequest {
    bytes: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    runs: u64,
    runs_max: u64,
    pages_max: u64,
    category_inverted: u64,
    category_mask: u64,
    category_any: u64,
    return_mask: u64,
}

/// `struct page_region` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Run {
    start: u64,
    end: u64,
    categories: u64,
}

// Categories of pages, as in linux/fs.h.
const PROTECTABLE: u64 = 1 << 0;
const WRITTEN: u64 = 1 << 1;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scan {
    /// Pages that are not protected; they are from now on.
    ProtectWritten,
    /// Pages that are protected.
    Unchanged,
    /// Pages that are watched, whatever was written.
    Watched,
}

/// A userfaultfd of this process.
#[derive(Clone, Copy, Debug)]
struct Watch {
    fd: i32,
    /// The program may close it, and open something else under its number.
    inode: u64,
}

/// Between `protect` and `finish`.
#[derive(Clone, Copy, Debug)]
struct Snapshot {
    since: u64,
    number: u64,
}

/// What the kernel notes for this process.
#[derive(Debug)]
pub struct Changes {
    watch: Option<Watch>,
    /// The kernel cannot do it, or does it differently.
    unusable: bool,
    /// Number of the last snapshot, where the kernel has noted all since; 0: there is none.
    last: u64,
    current: Option<Snapshot>,
    /// Watched memory: first byte, one behind the last.
    watched: MmapVec<(u64, u64)>,
    /// What was written before the clone.
    written: MmapVec<(u64, u64)>,
    scratch: MmapVec<Run>,
}

impl Changes {
    /// Maps what it needs, untouched.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            watch: None,
            unusable: false,
            last: 0,
            current: None,
            watched: MmapVec::new(1 << 16)?,
            written: MmapVec::new(RUNS_MAX * size_of::<(u64, u64)>())?,
            scratch: MmapVec::new(RUNS_AT_ONCE * size_of::<Run>())?,
        })
    }

    /// Before threads are suspended: has it begin or end.
    pub fn prepare(&mut self, wanted: bool) {
        self.current = None;
        if !wanted {
            self.end();
        } else if self.watch.is_none() && !self.unusable {
            self.last = 0;
            self.watch = open_watch().ok();
            if !self.watch.is_some_and(|watch| self.works(watch) == Ok(true)) {
                self.unusable = true;
                self.end();
            }
        }
    }

    /// Does the kernel note what is written?
    pub fn is_on(&self) -> bool {
        self.watch.is_some()
    }

    /// While threads are suspended: the descriptor, which no image has. If the program has closed
    /// it, the kernel has forgotten all.
    pub fn descriptor(&mut self) -> Option<i32> {
        let Watch { fd, inode } = self.watch?;
        if inode_of(fd) != Ok(inode) {
            self.forget();
            return None;
        }
        Some(fd)
    }

    /// Nothing is watched any more: the kernel unprotects all.
    pub fn end(&mut self) {
        if let Some(fd) = self.descriptor() {
            raw::close(fd);
        }
        self.forget();
    }

    /// In the restored process, which has neither descriptor nor protection.
    pub fn forget(&mut self) {
        (self.watch, self.last, self.current) = (None, 0, None);
    }

    /// While threads are suspended, and before the list of mappings is read that is described:
    /// mappings that are watched may become one.
    pub fn watch_all(&mut self, maps: &mut MmapVec<u8>) -> Result<(), FreezeFailure> {
        let Some(fd) = self.descriptor() else { return Ok(()) };
        proc_files::read_file(b"/proc/self/maps\0", maps)
            .map_err(FreezeFailure::system("reading /proc/self/maps"))?;
        self.watched.clear();
        for map in proc_files::lines(maps.items()).filter_map(MapLine::parse) {
            let plain = !map.is_shared() && map.inode == 0 && !map.path.starts_with(b"[v");
            // Mappings are watched as a whole or not at all.
            let first = [(map.start, map.start + PAGE as u64)];
            let mut before = false;
            if plain {
                let seen = scan(&first, Scan::Watched, &mut self.scratch, |_| before = true);
                seen.map_err(FreezeFailure::system("PAGEMAP_SCAN"))?;
            }
            // Refused where the program itself has it watched.
            if !plain || register(fd, map.start, map.end).is_err() {
                continue;
            }
            if !before {
                // Invariant 1. mremap takes the watch from mappings that the moved one becomes one
                // with, and leaves the protection in their page tables (seen with 6.18): writes
                // behind that are not noted there. So all of it counts as written.
                unprotect(fd, map.start, map.end)
                    .map_err(FreezeFailure::system("UFFDIO_WRITEPROTECT"))?;
            }
            self.watched.push((map.start, map.end));
        }
        self.watched.finish().map_err(FreezeFailure::system("room for watched memory"))
    }

    /// Immediately before the clone, while threads are suspended: notes what was written since the
    /// last snapshot, and protects all.
    pub fn protect(&mut self) {
        let since = core::mem::take(&mut self.last);
        if self.watch.is_none() {
            return;
        }
        self.written.clear();
        let written = &mut self.written;
        let noted = scan(self.watched.items(), Scan::ProtectWritten, &mut self.scratch, |run| {
            let full = written.items().len() >= RUNS_MAX;
            match written.items_mut().last_mut() {
                Some(last) if full || last.1 == run.0 => {
                    *last = (last.0.min(run.0), last.1.max(run.1));
                }
                _ => written.push(run),
            }
        });
        // A part may have been looked at twice.
        self.written.items_mut().sort_unstable();
        let (mut number, bytes) = (0u64, size_of::<u64>());
        let drawn = raw::fill(libc::SYS_getrandom, [0, bytes, 0, 0, 0], 0, &mut number);
        if noted.is_ok() && self.written.finish().is_ok() && drawn == Ok(bytes) {
            self.current = Some(Snapshot { since, number: number.max(1) });
        }
    }

    /// Behind the clone, where threads run again: the record of what was not written.
    pub fn finish(&mut self, sink: &mut MmapVec<u8>) {
        let Some(Snapshot { since, number }) = self.current.take() else { return };
        let mut runs: Vec<u8> = Vec::new();
        if since != 0 {
            let add = |start: u64, end: u64| {
                if start < end && runs.len() < RUNS_MAX * 16 {
                    runs.extend(start.to_le_bytes());
                    runs.extend(end.to_le_bytes());
                }
            };
            let mut rest = Without { without: self.written.items(), add };
            let found = scan(self.watched.items(), Scan::Unchanged, &mut self.scratch, |run| {
                rest.add(run);
            });
            if found.is_err() {
                return;
            }
        }
        record::Unchanged { since, snapshot: number, runs: &runs }.encode(sink);
        self.last = number;
    }

    /// Has the kernel show on a few pages that it notes what it must, and does not leave the
    /// protection at pages that mremap moves to memory that is not watched.
    fn works(&mut self, Watch { fd, .. }: Watch) -> Result<bool, Errno> {
        const PAGES: usize = 8;
        let memory = raw::map(PAGES * PAGE)?;
        let at = |page: usize| (memory.addr() + page * PAGE) as u64;
        let all = [(at(0), at(PAGES))];
        let address = |page: usize| memory.wrapping_add(page * PAGE);
        // SAFETY: pages of `memory` that are mapped, and that nobody else uses.
        let write = |page: usize| unsafe { address(page).write_volatile(1) };
        // SAFETY: as above.
        let read = |page: usize| unsafe { address(page).read_volatile() };
        let scratch = &mut self.scratch;
        let mut pages_of = |what| {
            let mut pages = 0u32;
            let found = scan(&all, what, scratch, |(start, end)| {
                let inside = (0..PAGES).filter(|page| (start..end).contains(&at(*page)));
                pages |= inside.map(|page| 1 << page).sum::<u32>();
            });
            found.map(|()| pages)
        };
        let mut show = || {
            (0..5).for_each(write);
            register(fd, at(0), at(PAGES))?;
            let before = pages_of(Scan::Unchanged)?;
            let written = pages_of(Scan::ProtectWritten)?;
            let protected = pages_of(Scan::Unchanged)?;
            // Written by the program; by the kernel for it; dropped and read again; moved.
            write(1);
            // SAFETY: the kernel writes to a page of ours.
            unsafe { raw::call(libc::SYS_getrandom, [at(2) as usize, 8, 0, 0, 0, 0]) }?;
            let drop = [at(3) as usize, PAGE, libc::MADV_DONTNEED as usize, 0];
            raw::plain(libc::SYS_madvise, drop)?;
            let dropped = read(3);
            let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
            let moved = [at(4) as usize, PAGE, PAGE, flags, at(6) as usize, 0];
            // SAFETY: pages of ours.
            unsafe { raw::call(libc::SYS_mremap, moved) }?;
            register(fd, at(6), at(7))?;
            let after = pages_of(Scan::Unchanged)?;
            let found = (before, written, protected, dropped, after);
            Ok(found == (0, 0b1_1111, 0b1_1111, 0, 0b1))
        };
        let outcome = show();
        // SAFETY: mapped above; nobody uses it any more.
        let _ = unsafe { raw::call(libc::SYS_munmap, [memory.addr(), PAGES * PAGE, 0, 0, 0, 0]) };
        outcome
    }
}

/// Ranges that come in order, without those of a list in order.
struct Without<'a, F> {
    without: &'a [(u64, u64)],
    add: F,
}

impl<F: FnMut(u64, u64)> Without<'_, F> {
    fn add(&mut self, (mut start, end): (u64, u64)) {
        while let Some((first, rest)) = self.without.split_first() {
            if first.0 >= end {
                break;
            }
            (self.add)(start, first.0);
            start = start.max(first.1);
            if first.1 > end {
                break;
            }
            self.without = rest;
        }
        (self.add)(start, end);
    }
}

/// A new userfaultfd whose protection the kernel lifts by itself; no right is needed for it.
fn open_watch() -> Result<Watch, Errno> {
    const USER_MODE_ONLY: i32 = 1;
    const API: usize = 0xC018_AA3F;
    const WRITE_PROTECT_ASYNC: u64 = 1 << 15;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    let fd = raw::plain(libc::SYS_userfaultfd, [flags as usize, 0, 0, 0])? as i32;
    let mut api = [0xAAu64, WRITE_PROTECT_ASYNC, 0];
    let agreed = raw::fill(libc::SYS_ioctl, [fd as usize, API, 0, 0, 0], 2, &mut api);
    match agreed.and_then(|_| inode_of(fd)) {
        Ok(inode) => Ok(Watch { fd, inode }),
        Err(errno) => {
            raw::close(fd);
            Err(errno)
        }
    }
}

/// It has an inode of its own.
fn inode_of(fd: i32) -> Result<u64, Errno> {
    // SAFETY: all of its fields are numbers.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    raw::fill(libc::SYS_fstat, [fd as usize, 0, 0, 0, 0], 1, &mut stat)?;
    Ok(stat.st_ino)
}

/// UFFDIO_REGISTER for write protection; once more is no harm.
fn register(fd: i32, start: u64, end: u64) -> Result<(), Errno> {
    const REGISTER: usize = 0xC020_AA00;
    const WRITE_PROTECT: u64 = 1 << 1;
    let mut request = [start, end - start, WRITE_PROTECT, 0];
    raw::fill(libc::SYS_ioctl, [fd as usize, REGISTER, 0, 0, 0], 2, &mut request).map(drop)
}

/// UFFDIO_WRITEPROTECT without the protection.
fn unprotect(fd: i32, start: u64, end: u64) -> Result<(), Errno> {
    const WRITE_PROTECT: usize = 0xC018_AA06;
    let mut request = [start, end - start, 0];
    raw::fill(libc::SYS_ioctl, [fd as usize, WRITE_PROTECT, 0, 0, 0], 2, &mut request).map(drop)
}

/// Calls `found` with runs of such pages in these ranges; in order if it is [`Scan::Unchanged`].
fn scan(
    ranges: &[(u64, u64)],
    what: Scan,
    scratch: &mut MmapVec<Run>,
    mut found: impl FnMut((u64, u64)),
) -> Result<(), Errno> {
    let pagemap = raw::open(b"/proc/self/pagemap\0", libc::O_RDONLY | libc::O_CLOEXEC)?;
    let outcome = ranges.iter().try_for_each(|&(start, end)| {
        let (mut at, mut known) = (start, start);
        while at < end {
            scratch.clear();
            let mut request = ScanRequest::of(what, (at, end));
            scratch.fill(RUNS_AT_ONCE, |buffer| {
                request.runs = buffer.as_mut_ptr().addr() as u64;
                let a = [pagemap as usize, PAGEMAP_SCAN, (&raw mut request).addr(), 0, 0, 0];
                // SAFETY: the kernel writes to the request, and at most `runs_max` runs into the
                // buffer, which has that many.
                unsafe { raw::call(libc::SYS_ioctl, a) }
            })?;
            for run in scratch.items() {
                // The kernel (6.18) may say that it stopped earlier than it did: then a part comes
                // twice. What was protected twice is reported twice, since it may have been written
                // in between.
                let start = if what == Scan::Unchanged { run.start.max(known) } else { run.start };
                if start < run.end {
                    found((start, run.end));
                }
                known = known.max(run.end);
            }
            if request.walk_end <= at {
                return Err(Errno(libc::EIO));
            }
            at = request.walk_end;
        }
        Ok(())
    });
    raw::close(pagemap);
    outcome
}

impl ScanRequest {
    fn of(what: Scan, (start, end): (u64, u64)) -> Self {
        const PROTECT_MATCHING: u64 = 1 << 0;
        let (flags, category_mask, category_inverted) = match what {
            Scan::ProtectWritten => (PROTECT_MATCHING, WRITTEN, 0),
            Scan::Unchanged => (0, PROTECTABLE | WRITTEN, WRITTEN),
            Scan::Watched => (0, PROTECTABLE, 0),
        };
        let category_any = if what == Scan::Watched { 0 } else { PRESENT | SWAPPED };
        Self {
            bytes: size_of::<Self>() as u64,
            flags,
            start,
            end,
            walk_end: 0,
            runs: 0,
            runs_max: RUNS_AT_ONCE as u64,
            pages_max: 0,
            category_inverted,
            category_mask,
            category_any,
            return_mask: PROTECTABLE,
        }
    }
}

#[cfg(test)]
mod tests;
