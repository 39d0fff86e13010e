//! Huge pages before a snapshot: the page tables that a clone copies are then 512 times smaller.

use crate::mmap_vec::MmapVec;
use crate::proc_files::{self, MapLine};
use crate::raw::{self, Errno};

const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;
/// Smaller ranges are cloned in no time.
const RANGE_MIN: u64 = 4 * HUGE;
/// Huge pages of one call: between two calls the program can use its address space.
const AT_ONCE: u64 = 64;

/// Requests huge pages where large private memory without a file was touched as a whole; the
/// program gets no page that it has not touched. While one is made, the program may wait for it.
pub fn collapse(maps: &mut MmapVec<u8>) -> Result<(), Errno> {
    proc_files::read_file(b"/proc/self/maps\0", maps)?;
    let pagemap = raw::open(b"/proc/self/pagemap\0", libc::O_RDONLY | libc::O_CLOEXEC)?;
    for map in proc_files::lines(maps.items()).filter_map(MapLine::parse) {
        let (start, end) = (map.start.next_multiple_of(HUGE), map.end / HUGE * HUGE);
        let plain = map.inode == 0 && !map.path.starts_with(b"[s") && !map.path.starts_with(b"[v");
        if &map.access != b"rw-p" || !plain || end < start + RANGE_MIN {
            continue;
        }
        let mut at = start;
        while at < end {
            let first = at;
            while at < end && at < first + AT_ONCE * HUGE && is_whole(pagemap, at) {
                at += HUGE;
            }
            if at == first {
                at += HUGE;
            } else {
                request(first, at - first);
            }
        }
    }
    raw::close(pagemap);
    Ok(())
}

fn request(start: u64, bytes: u64) {
    const MADV_COLLAPSE: usize = 25;
    // Fails where the kernel is older than 6.1 or has no memory: no harm done.
    let _ = raw::plain(libc::SYS_madvise, [start as usize, bytes as usize, MADV_COLLAPSE, 0]);
}

/// Are all pages there that one huge page would replace?
fn is_whole(pagemap: i32, at: u64) -> bool {
    const PRESENT: u64 = 1 << 63;
    let mut buffer = [0; (HUGE / PAGE * 8) as usize];
    raw::read_at(pagemap, &mut buffer, at / PAGE * 8) == Ok(buffer.len())
        && buffer.as_chunks::<8>().0.iter().all(|entry| u64::from_le_bytes(*entry) & PRESENT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    // MADV_COLLAPSE itself is not called: on a busy machine it was seen to take four minutes.
    #[test]
    fn memory_that_was_not_touched_as_a_whole_is_left_alone() {
        let bytes = 4 * HUGE as usize;
        let (rights, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, kind, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let small = libc::MADV_NOHUGEPAGE;
        // SAFETY: advice about it.
        unsafe { libc::madvise(at, bytes, small) };
        let first = (at.addr() as u64).next_multiple_of(HUGE);
        let start = first as usize - at.addr();
        // One huge page's worth as a whole, of the next one all but its last page.
        // SAFETY: inside the mapping.
        let touched = unsafe { at.cast::<u8>().add(start) };
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(touched, 1, 2 * HUGE as usize - 4096) };
        let pagemap = raw::open(b"/proc/self/pagemap\0", libc::O_RDONLY).unwrap();
        let whole = [0, 1, 2].map(|number| is_whole(pagemap, first + number * HUGE));
        assert_eq!(whole, [true, false, false]);
        raw::close(pagemap);
        // SAFETY: nobody uses it.
        unsafe { libc::munmap(at, bytes) };
    }
}
