//! Reading /proc without the allocator: whole files into an `MmapVec`, numbers out of text.

use crate::mmap_vec::MmapVec;
use crate::raw::{self, Errno};

/// A path on the stack, ended by 0.
pub struct Path {
    bytes: [u8; 96],
    count: usize,
}

impl Path {
    /// Pieces of text and numbers, one behind the other.
    pub fn of(pieces: &[Piece<'_>]) -> Self {
        let mut path = Self { bytes: [0; 96], count: 0 };
        for piece in pieces {
            match *piece {
                Piece::Text(text) => path.add(text.as_bytes()),
                Piece::Number(number) => path.add_number(number),
            }
        }
        path
    }

    fn add(&mut self, text: &[u8]) {
        let left = self.bytes.len() - 1 - self.count;
        let text = &text[..text.len().min(left)];
        self.bytes[self.count..self.count + text.len()].copy_from_slice(text);
        self.count += text.len();
    }

    fn add_number(&mut self, number: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut rest = number;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.add(&digits[at..]);
    }

    /// Without the 0 at its end.
    pub fn text(&self) -> &[u8] {
        &self.bytes[..self.count]
    }

    /// With the 0 at its end.
    pub fn with_nul(&self) -> &[u8] {
        &self.bytes[..=self.count]
    }
}

/// Part of a path.
#[derive(Clone, Copy)]
pub enum Piece<'a> {
    /// As it is.
    Text(&'a str),
    /// In decimal.
    Number(u64),
}

/// Replaces the contents of `into` by a file's.
pub fn read_file(path: &[u8], into: &mut MmapVec<u8>) -> Result<(), Errno> {
    into.clear();
    let fd = raw::open(path, libc::O_RDONLY | libc::O_CLOEXEC)?;
    let outcome = loop {
        match into.fill(1 << 14, |buffer| raw::read(fd, buffer)) {
            Ok(0) => break Ok(()),
            Ok(_) => {}
            Err(errno) => break Err(errno),
        }
    };
    raw::close(fd);
    outcome
}

/// Calls `found` with each number that is a name in the folder.
pub fn numbers_in(
    path: &[u8],
    buffer: &mut MmapVec<u8>,
    mut found: impl FnMut(u32),
) -> Result<(), Errno> {
    buffer.clear();
    let fd = raw::open(path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC)?;
    let outcome = loop {
        match buffer.fill(1 << 15, |buffer| raw::list(fd, buffer)) {
            Ok(0) => break Ok(()),
            Ok(_) => {}
            Err(errno) => break Err(errno),
        }
    };
    raw::close(fd);
    outcome?;
    let mut rest = buffer.items();
    // linux_dirent64: u64 inode, i64 offset, u16 length, u8 type, name, 0.
    while let Some((head, _)) = rest.split_first_chunk::<19>() {
        let length = usize::from(u16::from_le_bytes([head[16], head[17]]));
        let Some((entry, after)) = rest.split_at_checked(length.max(19)) else { break };
        let name = entry[19..].split(|byte| *byte == 0).next().unwrap_or_default();
        if let Some(number) = decimal(name) {
            // Not the descriptor by which the folder itself was read.
            if number as i32 != fd || !path.ends_with(b"/fd\0") {
                found(number as u32);
            }
        }
        rest = after;
    }
    Ok(())
}

/// All of the text as a decimal number.
pub fn decimal(text: &[u8]) -> Option<u64> {
    number(text, 10).filter(|_| text.iter().all(u8::is_ascii_digit))
}

/// The number that the text begins with, after blanks.
pub fn number(text: &[u8], base: u32) -> Option<u64> {
    let text = text.trim_ascii_start();
    let text = if base == 16 { text.strip_prefix(b"0x").unwrap_or(text) } else { text };
    let mut value: Option<u64> = None;
    for byte in text {
        let Some(digit) = char::from(*byte).to_digit(base) else { break };
        value = Some(value.unwrap_or(0).wrapping_mul(base.into()).wrapping_add(digit.into()));
    }
    value
}

/// What follows `key` at the beginning of a line.
pub fn after<'a>(text: &'a [u8], key: &str) -> Option<&'a [u8]> {
    text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key.as_bytes()))
}

/// Cuts off the first word.
pub fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    let end = text.iter().position(u8::is_ascii_whitespace).unwrap_or(text.len());
    text.split_at(end)
}

/// A line of /proc/PID/maps.
#[derive(Clone, Copy, Debug)]
pub struct MapLine<'a> {
    /// First byte.
    pub start: u64,
    /// One behind the last.
    pub end: u64,
    /// "rwxp".
    pub access: [u8; 4],
    /// In the file.
    pub offset: u64,
    /// As the system numbers devices (st_dev).
    pub device: u64,
    /// In that device.
    pub inode: u64,
    /// Path or name in brackets; may be empty.
    pub path: &'a [u8],
}

impl<'a> MapLine<'a> {
    /// Parses a line.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let (range, rest) = word(line);
        let (access, rest) = word(rest);
        let (offset, rest) = word(rest);
        let (device, rest) = word(rest);
        let (inode, rest) = word(rest);
        let dash = range.iter().position(|byte| *byte == b'-')?;
        let colon = device.iter().position(|byte| *byte == b':')?;
        let (major, minor) = (number(&device[..colon], 16)?, number(&device[colon + 1..], 16)?);
        Some(Self {
            start: number(&range[..dash], 16)?,
            end: number(&range[dash + 1..], 16)?,
            access: access.try_into().ok()?,
            offset: number(offset, 16)?,
            device: libc::makedev(major as u32, minor as u32),
            inode: decimal(inode)?,
            path: rest.trim_ascii_start(),
        })
    }

    /// Is it shared with others?
    pub fn is_shared(&self) -> bool {
        self.access[3] == b's'
    }

    /// Has what it maps no name any more?
    pub fn is_deleted(&self) -> bool {
        self.path.ends_with(b" (deleted)")
    }
}

/// This machine since it was started: devices and inodes are its own.
pub fn machine() -> std::io::Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.chars().filter(char::is_ascii_hexdigit).collect())
}

/// The lines of a text.
pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_is_parsed() {
        let text = b"7f00-7f10 r--s 00001000 00:1a 77   /dev/shm/a b (deleted)";
        let line = MapLine::parse(text).unwrap();
        assert_eq!((line.start, line.end, line.offset), (0x7f00, 0x7f10, 0x1000));
        assert_eq!((line.device, line.inode), (libc::makedev(0, 0x1a), 77));
        assert_eq!(line.path, b"/dev/shm/a b (deleted)");
        assert!(line.is_shared() && line.is_deleted());
        assert!(MapLine::parse(b"nonsense").is_none());
    }

    #[test]
    fn paths_and_numbers() {
        let path = Path::of(&[Piece::Text("/a/"), Piece::Number(120), Piece::Text("/b")]);
        assert_eq!(path.with_nul(), b"/a/120/b\0");
        assert_eq!(number(b"\t0x1f z", 16), Some(31));
        assert_eq!(number(b"02000", 8), Some(1024));
        assert_eq!(decimal(b"12a"), None);
        assert_eq!(after(b"pos:\t5\nflags:\t02\n", "flags:"), Some(&b"\t02"[..]));
    }
}
