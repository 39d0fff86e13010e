//! Memory that a copy-on-write child does not snapshot: shared mappings, and what is marked not to
//! be inherited. It is copied while all threads are suspended.
//!
//! Source: FACTS-image §3 (pitfalls of the forked child). Which pages of a shared object exist is
//! what mincore(2) returns, since the page tables of one process know only what it has touched
//! itself. (Pages of shared objects that are in swap are not seen by it.)

use super::FreezeOptions;
use super::descriptors::KnownDescriptor;
use super::failure::{FreezeFailure, Name};
use super::file_reader::FileReader;
use crate::mmap_vec::{Description, MmapVec};
use crate::proc_files::{self, MapLine};
use crate::raw::{self, Errno};
use core::ops::Range;
use rustbtl_checkpoint::image::record::{
    DESCRIPTOR_FILE, DESCRIPTOR_UNNAMED, NotForked, SharedRun,
};

const PAGE: u64 = 4096;
/// A file that is mapped read-only is stored with the image up to this size; a larger one is
/// mapped again by its path.
pub const READ_ONLY_BYTES_MAX: u64 = 16 << 20;

/// Copies that live until the child has its own.
pub struct MemoryCopies {
    ranges: MmapVec<(usize, usize)>,
    /// Objects that are complete already.
    done: MmapVec<(u64, u64)>,
    resident: MmapVec<u8>,
    /// Ranges that are not inherited: start, end, wiped. Found before threads are suspended.
    pub not_forked: MmapVec<(u64, u64, bool)>,
}

impl MemoryCopies {
    /// None.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            ranges: MmapVec::new(1)?,
            done: MmapVec::new(1)?,
            resident: MmapVec::new(1)?,
            not_forked: MmapVec::new(1)?,
        })
    }

    /// Finds what a child would not inherit. Walks the page tables: before threads are suspended.
    pub fn find_not_forked(&mut self, buffer: &mut MmapVec<u8>) -> Result<(), FreezeFailure> {
        self.not_forked.clear();
        proc_files::read_file(b"/proc/self/smaps\0", buffer)
            .map_err(FreezeFailure::system("reading /proc/self/smaps"))?;
        let mut range = (0, 0);
        for line in proc_files::lines(buffer.items()) {
            if let Some(flags) = line.strip_prefix(b"VmFlags:") {
                let has = |flag: &[u8]| flags.split(|b| *b == b' ').any(|word| word == flag);
                // The kernel's own and devices are "dc", too; they are dealt with elsewhere.
                if (has(b"dc") || has(b"wf")) && !has(b"io") && !has(b"pf") && has(b"mr") {
                    self.not_forked.push((range.0, range.1, has(b"wf")));
                }
            } else if let Some(map) = MapLine::parse(line) {
                range = (map.start, map.end);
                if map.path.starts_with(b"[v") {
                    range = (0, 0);
                }
            }
        }
        self.not_forked.finish().map_err(FreezeFailure::system("room for ranges"))
    }

    /// Copies everything that has to be copied and records where. `fork`: without it the memory is
    /// read in place, and only contents of files are copied.
    pub fn copy_all(
        &mut self,
        maps: &[u8],
        known: &[KnownDescriptor],
        options: &FreezeOptions<'_>,
        description: &mut Description,
        fork: bool,
    ) -> Result<(), FreezeFailure> {
        self.ranges.clear();
        self.done.clear();
        let unnamed = known.iter().filter(|known| known.kind == DESCRIPTOR_UNNAMED && known.first);
        for file in unnamed {
            if self.done.items().contains(&(file.device, file.inode)) {
                continue;
            }
            self.file(file, description)
                .map_err(FreezeFailure::system("copying a file without a name"))?;
            self.done.push((file.device, file.inode));
        }
        for index in 0..self.not_forked.items().len() {
            let (start, end, wiped) = self.not_forked.items()[index];
            if start == end || is_excluded(options, start) {
                continue;
            }
            NotForked { start, end, wiped }.encode(description);
            let copy = if fork { self.allocate(start..end)? } else { start };
            let run = SharedRun { device: 0, inode: 0, offset: start, bytes: end - start, copy };
            if fork {
                self.copy(run, start)?;
            }
            run.encode(description);
        }
        for map in proc_files::lines(maps).filter_map(MapLine::parse) {
            let is_elsewhere =
                options.elsewhere.iter().any(|range| range.start as u64 == map.start);
            let stored = map.is_shared()
                && !is_elsewhere
                && !is_excluded(options, map.start)
                && must_store(&map)?;
            if stored && !self.done.items().contains(&(map.device, map.inode)) {
                // All of it, if it is open: by the descriptor the program may read the rest.
                let is_of = |open: &&KnownDescriptor| {
                    open.first
                        && open.kind == DESCRIPTOR_FILE
                        && (open.device, open.inode) == (map.device, map.inode)
                };
                let open = known.iter().find(is_of).filter(|_| is_memory(&map));
                match open.map(|file| self.file(file, description)) {
                    Some(Ok(())) => self.done.push((map.device, map.inode)),
                    // It cannot be read by this descriptor.
                    Some(Err(Errno(libc::EBADF))) | None => {
                        self.mapping(&map, description, fork)?
                    }
                    Some(Err(error)) => {
                        return Err(FreezeFailure::system("copying a file of memory")(error));
                    }
                }
            }
        }
        Ok(())
    }

    /// The content of an open file, without its holes.
    fn file(&mut self, file: &KnownDescriptor, description: &mut Description) -> Result<(), Errno> {
        // SAFETY: all of its fields are numbers.
        let mut stat: libc::stat = unsafe { core::mem::zeroed() };
        raw::fill(libc::SYS_fstat, [file.fd as usize, 0, 0, 0, 0], 1, &mut stat)?;
        let size = stat.st_size as u64;
        let mut describe = |offset, bytes, copy| {
            let (device, inode) = (file.device, file.inode);
            SharedRun { device, inode, offset, bytes, copy }.encode(description);
        };
        // How large it is.
        describe(size.next_multiple_of(PAGE), 0, 0);
        let reader = FileReader::new(file.fd);
        let mut begin = 0;
        while let Some(data) = reader.next_data(begin, size)? {
            let pages = data.start / PAGE * PAGE..data.end.next_multiple_of(PAGE);
            let bytes = (pages.end - pages.start) as usize;
            let at = raw::map(bytes)?;
            self.ranges.push((at.addr(), at.addr() + bytes));
            // SAFETY: fresh memory of that size, which nothing else refers to yet.
            let buffer = unsafe { core::slice::from_raw_parts_mut(at, bytes) };
            let count = (data.end - pages.start) as usize;
            reader.read(&mut buffer[..count], pages.start)?;
            describe(pages.start, bytes as u64, at.addr() as u64);
            begin = pages.end;
        }
        Ok(())
    }

    /// The pages of a shared mapping that exist.
    fn mapping(
        &mut self,
        map: &MapLine<'_>,
        description: &mut Description,
        fork: bool,
    ) -> Result<(), FreezeFailure> {
        let pages = ((map.end - map.start) / PAGE) as usize;
        self.resident.clear();
        let range = [map.start as usize, (map.end - map.start) as usize];
        self.resident
            .fill(pages, |buffer| {
                let a = [range[0], range[1], buffer.as_mut_ptr().addr(), 0, 0, 0];
                // SAFETY: the kernel writes one byte per page into `buffer`.
                unsafe { raw::call(libc::SYS_mincore, a) }.map(|_| pages)
            })
            .map_err(FreezeFailure::system("asking for the pages of shared memory"))?;
        let copies_at = if fork { self.allocate(map.start..map.end)? } else { map.start };
        let exists = |page: usize| self.resident.items()[page] & 1 != 0;
        let mut page = 0;
        while page < pages {
            let first = page;
            while page < pages && exists(page) {
                page += 1;
            }
            if page > first {
                let at = first as u64 * PAGE;
                let run = SharedRun {
                    device: map.device,
                    inode: map.inode,
                    offset: map.offset + at,
                    bytes: (page - first) as u64 * PAGE,
                    copy: copies_at + at,
                };
                if fork {
                    self.copy(run, map.start + at)?;
                }
                run.encode(description);
            }
            page += usize::from(page == first);
        }
        Ok(())
    }

    fn allocate(&mut self, like: Range<u64>) -> Result<u64, FreezeFailure> {
        let bytes = (like.end - like.start) as usize;
        let at = raw::map(bytes).map_err(FreezeFailure::system("memory for copies"))?.addr();
        self.ranges.push((at, at + bytes));
        Ok(at as u64)
    }

    /// Copies through the kernel, which returns an error instead of faulting where a file has
    /// ended.
    fn copy(&self, run: SharedRun, from: u64) -> Result<(), FreezeFailure> {
        let pid = raw::plain(libc::SYS_getpid, [0; 4]).map_err(FreezeFailure::system("getpid"))?;
        let to = [run.copy as usize, run.bytes as usize];
        let from = [from as usize, run.bytes as usize];
        let a = [pid, to.as_ptr().addr(), 1, from.as_ptr().addr(), 1, 0];
        // SAFETY: the destination is our own fresh mapping of at least that size.
        let done = unsafe { raw::call(libc::SYS_process_vm_readv, a) };
        // Short: the file ends there. What lies behind cannot be read, and so need not be stored.
        done.map(|_| ()).map_err(FreezeFailure::system("copying shared memory"))
    }

    /// Where copies lie: not part of the image.
    pub fn ranges(&self) -> &[(usize, usize)] {
        self.ranges.items()
    }

    /// Unmaps the copies.
    pub fn free(&mut self) {
        for &(start, end) in self.ranges.items() {
            let a = [start, end - start, 0, 0, 0, 0];
            // SAFETY: our own mapping, which only the child's image refers to.
            let _ = unsafe { raw::call(libc::SYS_munmap, a) };
        }
        self.ranges.clear();
    }

    /// Forgets the copies: in a restored process they are not there.
    pub fn forget(&mut self) {
        self.ranges.clear();
    }
}

fn is_excluded(options: &FreezeOptions<'_>, address: u64) -> bool {
    options.exclude.iter().any(|range| range.contains(&(address as usize)))
}

/// Is it a file whose content is only in memory?
fn is_memory(map: &MapLine<'_>) -> bool {
    map.path.starts_with(b"/dev/shm/")
}

/// Is the content of a shared mapping part of the image? Refuses what cannot be mapped again.
fn must_store(map: &MapLine<'_>) -> Result<bool, FreezeFailure> {
    let refuse =
        |reason| Err(FreezeFailure::Refused(Name::of(&[b"shared memory of ", map.path]), reason));
    let named = map.path.strip_suffix(b" (deleted)").unwrap_or(map.path);
    if named.starts_with(b"/SYSV") {
        return refuse("System V shared memory cannot be restored; use POSIX shared memory");
    }
    if named.starts_with(b"anon_inode:") || named.starts_with(b"/[") {
        return refuse("it belongs to the kernel (io_uring, aio, perf); close it");
    }
    let is_device = named.starts_with(b"/dev/")
        && !named.starts_with(b"/dev/shm/")
        && !named.starts_with(b"/dev/zero");
    if is_device {
        return refuse("memory of a device; close the device for the checkpoint");
    }
    let read_only = map.access[1] != b'w' && !map.is_deleted();
    Ok(!read_only || map.end - map.start <= READ_ONLY_BYTES_MAX)
}
