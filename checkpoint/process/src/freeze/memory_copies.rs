//! Memory that a copy-on-write child does not snapshot: shared mappings, and what is marked not to
//! be inherited. It is copied while all threads are parked.
//!
//! Source: FACTS-image §3 (pitfalls of the forked child). Which pages of a shared object exist is
//! asked by mincore(2), since the page tables of one process know only what it has touched itself.
//! (Pages of shared objects that are in swap are not seen by it.)

use super::FreezeOptions;
use super::descriptors::Known;
use super::failure::{Name, Stop};
use crate::mmap_vec::{Sheet, Table};
use crate::proc_files::{self, MapLine};
use crate::raw::{self, Errno};
use core::ops::Range;
use rustbtl_checkpoint::image::record::{DESCRIPTOR_UNNAMED, NotForked, SharedRun};

const PAGE: u64 = 4096;
/// A file that is mapped read-only is stored with the image up to this size; a larger one is
/// mapped again by its path.
pub const READ_ONLY_BYTES_MAX: u64 = 16 << 20;

/// Copies that live until the child has its own.
pub struct Copies {
    ranges: Table<(usize, usize)>,
    /// Objects that are complete already.
    done: Table<(u64, u64)>,
    resident: Table<u8>,
    /// Ranges that are not inherited: start, end, wiped. Found before parking.
    pub not_forked: Table<(u64, u64, bool)>,
}

impl Copies {
    /// None.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            ranges: Table::new(1)?,
            done: Table::new(1)?,
            resident: Table::new(1)?,
            not_forked: Table::new(1)?,
        })
    }

    /// Finds what a child would not get. Walks the page tables: before parking.
    pub fn look_for_not_forked(&mut self, room: &mut Table<u8>) -> Result<(), Stop> {
        self.not_forked.clear();
        proc_files::read_file(b"/proc/self/smaps\0", room)
            .map_err(Stop::system("reading /proc/self/smaps"))?;
        let mut range = (0, 0);
        for line in proc_files::lines(room.items()) {
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
        self.not_forked.finish().map_err(Stop::system("room for ranges"))
    }

    /// Copies everything that has to be copied and says where. `fork`: without it the memory is
    /// read in place, and only contents of files are copied.
    pub fn take(
        &mut self,
        maps: &[u8],
        known: &[Known],
        options: &FreezeOptions<'_>,
        sheet: &mut Sheet,
        fork: bool,
    ) -> Result<(), Stop> {
        self.ranges.clear();
        self.done.clear();
        let unnamed = known.iter().filter(|known| known.kind == DESCRIPTOR_UNNAMED && known.first);
        for file in unnamed {
            if self.done.items().contains(&(file.device, file.inode)) {
                continue;
            }
            self.file(file, sheet).map_err(Stop::system("copying a file without a name"))?;
            self.done.push((file.device, file.inode));
        }
        for index in 0..self.not_forked.items().len() {
            let (start, end, wiped) = self.not_forked.items()[index];
            if start == end || is_excluded(options, start) {
                continue;
            }
            NotForked { start, end, wiped }.encode(sheet);
            let copy = if fork { self.room(start..end)? } else { start };
            let run = SharedRun { device: 0, inode: 0, offset: start, bytes: end - start, copy };
            if fork {
                self.copy(run, start)?;
            }
            run.encode(sheet);
        }
        for map in proc_files::lines(maps).filter_map(MapLine::parse) {
            let stored = map.is_shared() && !is_excluded(options, map.start) && must_store(&map)?;
            if stored && !self.done.items().contains(&(map.device, map.inode)) {
                self.mapping(&map, sheet, fork)?;
            }
        }
        Ok(())
    }

    /// The whole content of an open file.
    fn file(&mut self, file: &Known, sheet: &mut Sheet) -> Result<(), Errno> {
        // SAFETY: all of its fields are numbers.
        let mut stat: libc::stat = unsafe { core::mem::zeroed() };
        raw::fill(libc::SYS_fstat, [file.fd as usize, 0, 0, 0, 0], 1, &mut stat)?;
        let size = stat.st_size as u64;
        let bytes = size.next_multiple_of(PAGE);
        let mut copy = 0;
        if size > 0 {
            let at = raw::map(bytes as usize)?;
            self.ranges.push((at.addr(), at.addr() + bytes as usize));
            // SAFETY: fresh memory of that size, which nothing else refers to yet.
            let room = unsafe { core::slice::from_raw_parts_mut(at, bytes as usize) };
            let mut done = 0;
            while done < size as usize {
                match raw::read_at(file.fd, &mut room[done..], done as u64) {
                    Ok(0) => break,
                    Ok(count) => done += count,
                    Err(Errno(libc::EINTR)) => {}
                    Err(errno) => return Err(errno),
                }
            }
            copy = at.addr() as u64;
        }
        let (device, inode) = (file.device, file.inode);
        SharedRun { device, inode, offset: 0, bytes, copy }.encode(sheet);
        Ok(())
    }

    /// The pages of a shared mapping that exist.
    fn mapping(&mut self, map: &MapLine<'_>, sheet: &mut Sheet, fork: bool) -> Result<(), Stop> {
        let pages = ((map.end - map.start) / PAGE) as usize;
        self.resident.clear();
        let range = [map.start as usize, (map.end - map.start) as usize];
        self.resident
            .fill(pages, |room| {
                let a = [range[0], range[1], room.as_mut_ptr().addr(), 0, 0, 0];
                // SAFETY: the kernel writes one byte per page into `room`.
                unsafe { raw::call(libc::SYS_mincore, a) }.map(|_| pages)
            })
            .map_err(Stop::system("asking for the pages of shared memory"))?;
        let room = if fork { self.room(map.start..map.end)? } else { map.start };
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
                    copy: room + at,
                };
                if fork {
                    self.copy(run, map.start + at)?;
                }
                run.encode(sheet);
            }
            page += usize::from(page == first);
        }
        Ok(())
    }

    fn room(&mut self, like: Range<u64>) -> Result<u64, Stop> {
        let bytes = (like.end - like.start) as usize;
        let at = raw::map(bytes).map_err(Stop::system("memory for copies"))?.addr();
        self.ranges.push((at, at + bytes));
        Ok(at as u64)
    }

    /// Copies through the kernel, which answers instead of faulting where a file has ended.
    fn copy(&self, run: SharedRun, from: u64) -> Result<(), Stop> {
        let pid = raw::plain(libc::SYS_getpid, [0; 4]).map_err(Stop::system("getpid"))?;
        let to = [run.copy as usize, run.bytes as usize];
        let from = [from as usize, run.bytes as usize];
        let a = [pid, to.as_ptr().addr(), 1, from.as_ptr().addr(), 1, 0];
        // SAFETY: the destination is our own fresh mapping of at least that size.
        let done = unsafe { raw::call(libc::SYS_process_vm_readv, a) };
        // Short: the file ends there. What lies behind cannot be read, and so need not be kept.
        done.map(|_| ()).map_err(Stop::system("copying shared memory"))
    }

    /// Where copies lie: not part of the image.
    pub fn ranges(&self) -> &[(usize, usize)] {
        self.ranges.items()
    }

    /// Gives the copies back.
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

/// Is the content of a shared mapping part of the image? Refuses what cannot be mapped again.
fn must_store(map: &MapLine<'_>) -> Result<bool, Stop> {
    let refuse = |reason| Err(Stop::Refused(Name::of(&[b"shared memory of ", map.path]), reason));
    let named = map.path.strip_suffix(b" (deleted)").unwrap_or(map.path);
    if named.starts_with(b"/SYSV") {
        return refuse("System V shared memory cannot be put back; use POSIX shared memory");
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
