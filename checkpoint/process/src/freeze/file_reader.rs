//! The content of a file that the program has open, without its holes.

use crate::proc_files::{Path, Piece};
use crate::raw::{self, Errno};
use core::ops::Range;

/// So much is read at once.
const READ_BYTES: usize = 8 << 20;

/// Reads a file by an open file of its own: the position of the program's stays where it is, also
/// for others who share it.
pub struct FileReader {
    fd: i32,
    own: bool,
}

impl FileReader {
    /// Of the file that the program has open with this number.
    pub fn new(program: i32) -> Self {
        let path = Path::of(&[Piece::Text("/proc/self/fd/"), Piece::Number(program as u64)]);
        match raw::open(path.with_nul(), libc::O_RDONLY | libc::O_CLOEXEC) {
            Ok(fd) => Self { fd, own: true },
            // No number is left, or its mode forbids it: it is read by the program's, with holes.
            Err(_) => Self { fd: program, own: false },
        }
    }

    /// The next bytes from `begin` on that are no hole, up to `size`.
    pub fn next_data(&self, begin: u64, size: u64) -> Result<Option<Range<u64>>, Errno> {
        if begin >= size {
            return Ok(None);
        }
        let seek = |from: u64, whence: i32| {
            raw::plain(libc::SYS_lseek, [self.fd as usize, from as usize, whence as usize, 0])
        };
        if !self.own {
            return Ok(Some(begin..size));
        }
        let start = match seek(begin, libc::SEEK_DATA) {
            Ok(start) => start as u64,
            Err(Errno(libc::ENXIO)) => return Ok(None),
            Err(_) => return Ok(Some(begin..size)), // its file system does not know
        };
        let end = seek(start, libc::SEEK_HOLE).map_or(size, |end| end as u64);
        Ok((start < size).then(|| start..end.min(size)))
    }

    /// Fills `into` from `offset` on; what lies behind the file's end stays as it was. In pieces: a
    /// killed process ends only between two calls, and one of 2 GiB takes seconds.
    pub fn read(&self, into: &mut [u8], offset: u64) -> Result<(), Errno> {
        let mut done = 0;
        while done < into.len() {
            let piece = done..into.len().min(done + READ_BYTES);
            match raw::read_at(self.fd, &mut into[piece], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno(libc::EINTR)) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

impl Drop for FileReader {
    fn drop(&mut self) {
        if self.own {
            raw::close(self.fd);
        }
    }
}
