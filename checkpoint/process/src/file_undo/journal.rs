//! The journal of the epoch that runs, as the process itself writes it.
//!
//! System calls without libc, and after [`Journal::begin`] no allocation as long as paths have
//! their usual length: it is written to while other threads are suspended, too.

use super::{epoch_of, journal_name, reads_name};
use crate::private_files::Folder;
use crate::raw::{self, Errno};
use core::ops::Range;
use rustbtl_checkpoint::file_undo::{ENTRY_BYTES_MAX, Entry, PIECE_BYTES_MAX};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Descriptors from here on: the program gets the same numbers as without us.
const FD_LEAST: usize = 200;

/// See the head of this file.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    /// Path of the journal, ended by 0.
    path: Vec<u8>,
    /// That of the file beside it in which reads are noted.
    reads: Vec<u8>,
    epoch: u64,
    fd: RawFd,
    /// Bytes in it; what was in it before the last entry.
    bytes: [u64; 2],
    saved: u64,
    /// Each change is to be made on a disk that outlives this machine.
    durable: bool,
    entry: Vec<u8>,
    piece: Vec<u8>,
}

/// Opens a file of the folder to be written, and makes it. `path` ends with a 0.
fn open(path: &[u8], how: i32) -> Result<usize, Errno> {
    let flags = libc::O_WRONLY
        | libc::O_CREAT
        | libc::O_CLOEXEC
        | libc::O_NOFOLLOW
        | libc::O_NONBLOCK
        | how;
    let a = [libc::AT_FDCWD as usize, path.as_ptr().addr(), flags as usize, 0o600, 0, 0];
    // SAFETY: the kernel reads the path up to its 0.
    unsafe { raw::call(libc::SYS_openat, a) }
}

impl Journal {
    /// In this folder, which is made with the one above it.
    pub fn open(folder: &Path, durable: bool) -> io::Result<Self> {
        if let Some(above) = folder.parent() {
            Folder::open_or_create(above)?;
        }
        super::held::prepare(&Folder::open_or_create(folder)?)?;
        Ok(Self {
            folder: folder.to_owned(),
            path: Vec::with_capacity(4200),
            reads: Vec::with_capacity(4200),
            epoch: 0,
            fd: -1,
            bytes: [0; 2],
            saved: 0,
            durable,
            entry: Vec::with_capacity(ENTRY_BYTES_MAX),
            piece: Vec::with_capacity(PIECE_BYTES_MAX as usize),
        })
    }

    /// Content in it.
    pub fn saved(&self) -> u64 {
        self.saved
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The number of the epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Its descriptor, if it is open; not part of an image.
    pub fn descriptor(&self) -> Option<RawFd> {
        (self.fd >= 0).then_some(self.fd)
    }

    /// Another epoch begins; its journal is made with its first entry.
    pub fn begin(&mut self, epoch: u64) {
        self.close();
        (self.epoch, self.saved) = (epoch, 0);
        let names = [(&mut self.path, journal_name(epoch)), (&mut self.reads, reads_name(epoch))];
        for (path, name) in names {
            path.clear();
            path.extend_from_slice(self.folder.as_os_str().as_bytes());
            path.push(b'/');
            path.extend_from_slice(name.as_bytes());
            path.push(0);
        }
    }

    /// This is a restored process, in which the descriptor does not exist.
    pub fn forget_descriptor(&mut self) {
        self.fd = -1;
    }

    fn close(&mut self) {
        if self.fd >= 0 {
            raw::close(self.fd);
        }
        self.fd = -1;
    }

    fn opened(&mut self) -> Result<RawFd, Errno> {
        if self.fd < 0 {
            let fd = open(&self.path, 0)?;
            let high = [fd, libc::F_DUPFD_CLOEXEC as usize, FD_LEAST, 0];
            self.fd = match raw::plain(libc::SYS_fcntl, high) {
                Ok(high) => {
                    raw::close(fd as RawFd);
                    high as RawFd
                }
                // A low limit of descriptors.
                Err(_) => fd as RawFd,
            };
            let end = [self.fd as usize, 0, libc::SEEK_END as usize, 0];
            self.bytes = [raw::plain(libc::SYS_lseek, end)? as u64; 2];
        }
        Ok(self.fd)
    }

    /// Appends an entry (invariant 1 of `rustbtl_checkpoint::file_undo`).
    pub fn append(&mut self, entry: &Entry<'_>) -> Result<(), Errno> {
        self.opened()?;
        entry.encode_at(&mut self.entry, raw::now_ns());
        let end = self.bytes[0];
        if let Err(errno) = self.write(end) {
            self.cut(end);
            self.bytes[1] = end;
            return Err(errno);
        }
        self.bytes = [end + self.entry.len() as u64, end];
        Ok(())
    }

    /// Notes that the process reads a file (invariant 6 of `rustbtl_checkpoint::file_undo`).
    pub fn note_read(&mut self, path: &[u8], changed_ns: u64) -> Result<(), Errno> {
        Entry::Reads { path, changed_ns }.encode_at(&mut self.entry, raw::now_ns());
        let fd = open(&self.reads, libc::O_APPEND)?;
        let end = raw::plain(libc::SYS_lseek, [fd, 0, libc::SEEK_END as usize, 0]);
        let a = [fd, self.entry.as_ptr().addr(), self.entry.len(), 0, 0, 0];
        // SAFETY: the kernel reads the entry.
        let written = unsafe { raw::call(libc::SYS_write, a) };
        let written = match written {
            Ok(count) if count < self.entry.len() => Err(Errno(libc::ENOSPC)),
            written => written,
        };
        if let (Err(_), Ok(end)) = (&written, end) {
            // What comes behind half an entry would not be read.
            let _ = raw::plain(libc::SYS_ftruncate, [fd, end, 0, 0]);
        }
        if self.durable {
            let _ = raw::plain(libc::SYS_fdatasync, [fd, 0, 0, 0]);
        }
        raw::close(fd as RawFd);
        written.map(drop)
    }

    /// Writes what is encoded.
    fn write(&self, at: u64) -> Result<(), Errno> {
        let mut done = 0;
        while done < self.entry.len() {
            let rest = &self.entry[done..];
            let to = at as usize + done;
            let a = [self.fd as usize, rest.as_ptr().addr(), rest.len(), to, 0, 0];
            // SAFETY: the kernel reads `rest`.
            match unsafe { raw::call(libc::SYS_pwrite64, a) } {
                Ok(count) => done += count,
                Err(Errno(libc::EINTR)) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Another entry in place of the last one, which knew less.
    pub fn amend(&mut self, entry: &Entry<'_>) -> Result<(), Errno> {
        let [end, last] = self.bytes;
        entry.encode_at(&mut self.entry, raw::now_ns());
        if end - last == self.entry.len() as u64 { self.write(last) } else { self.append(entry) }
    }

    /// Before the change is made: what was appended outlives this machine, if it has to.
    pub fn sync(&self) {
        if self.durable && self.fd >= 0 {
            let _ = raw::plain(libc::SYS_fdatasync, [self.fd as usize, 0, 0, 0]);
        }
    }

    /// Takes the last entry back: nothing was changed.
    pub fn take_back(&mut self) {
        if self.fd >= 0 && self.bytes[1] < self.bytes[0] {
            self.cut(self.bytes[1]);
            self.bytes[0] = self.bytes[1];
        }
    }

    fn cut(&self, to: u64) {
        let _ = raw::plain(libc::SYS_ftruncate, [self.fd as usize, to as usize, 0, 0]);
    }

    /// Appends what an open file has there.
    pub fn save(&mut self, path: &[u8], file: RawFd, range: Range<u64>) -> Result<(), Errno> {
        let mut at = range.start;
        while at < range.end {
            let mut piece = core::mem::take(&mut self.piece);
            piece.clear();
            // Within its capacity.
            piece.resize((range.end - at).min(PIECE_BYTES_MAX) as usize, 0);
            let read = raw::read_at(file, &mut piece, at);
            let appended = match read {
                Err(Errno(libc::EINTR)) => Ok(0),
                // It has become shorter: by another process.
                Ok(0) => Ok(range.end - at),
                Ok(count) => {
                    let bytes = &piece[..count];
                    // Its time is behind the change of another process that was read.
                    self.append(&Entry::Content { path, offset: at, bytes }).map(|()| count as u64)
                }
                Err(errno) => Err(errno),
            };
            self.piece = piece;
            at += appended?;
        }
        self.saved += range.end - range.start;
        Ok(())
    }

    /// Removes journals of earlier epochs than this, and what was saved in them.
    pub fn remove_before(&self, epoch: u64) {
        let Ok(folder) = Folder::open(&self.folder) else { return };
        for name in folder.names().unwrap_or_default() {
            let text = name.to_str().unwrap_or_default();
            let of = ["epoch-", "saved-", "reads-", "kept-"].into_iter();
            let of = of.filter_map(|kind| epoch_of(text, kind)).next();
            if of.is_some_and(|of| of < epoch) {
                let _ = folder.remove(&name);
            }
        }
    }

    /// Removes all, if the folder is one that nobody needs when the job has ended.
    pub fn remove_if_temporary(&mut self) {
        let above = self.folder.parent().and_then(Path::file_name).unwrap_or_default();
        if above.as_bytes().starts_with(super::TEMPORARY.as_bytes()) {
            self.remove();
        }
    }

    /// Removes all, and the folder. The one above it, too, if no other process has one there.
    pub fn remove(&mut self) {
        self.close();
        self.remove_before(u64::MAX);
        super::common::forget(&self.folder);
        super::held::remove(&self.folder);
    }
}
