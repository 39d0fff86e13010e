//! Is a file still the one that was mapped? By its GNU build id where it has one, else by size
//! and time of change.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// What distinguishes one version of a file from another.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileIdentity {
    /// Size.
    pub bytes: u64,
    /// Nanoseconds since 1970.
    pub changed_ns: i64,
    /// Empty for files that are not ELF, or have none.
    pub build_id: Vec<u8>,
}

impl FileIdentity {
    /// Of a file, if it can be read.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let stat = file.metadata()?;
        let changed_ns = stat.mtime() * 1_000_000_000 + stat.mtime_nsec();
        let build_id = build_id(&file).unwrap_or_default();
        Ok(Self { bytes: stat.len(), changed_ns, build_id })
    }

    /// Will the same pages come from it?
    pub fn is_same(&self, other: &Self) -> bool {
        if self.build_id.is_empty() && other.build_id.is_empty() {
            return (self.bytes, self.changed_ns) == (other.bytes, other.changed_ns);
        }
        self.build_id == other.build_id && self.bytes == other.bytes
    }
}

/// The note `NT_GNU_BUILD_ID` of a 64-bit little-endian ELF file.
fn build_id(file: &File) -> Option<Vec<u8>> {
    const PT_NOTE: u64 = 4;
    const NT_GNU_BUILD_ID: u64 = 3;
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    if head[..6] != *b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size, count) =
        (number(&head, 32, 8)?, number(&head, 54, 2)?, number(&head, 56, 2)?);
    for index in 0..count.min(64) {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, table.checked_add(index * size)?).ok()?;
        let (offset, bytes) = (number(&entry, 8, 8)?, number(&entry, 32, 8)?);
        if number(&entry, 0, 4)? != PT_NOTE || bytes > 4096 {
            continue;
        }
        let mut notes = vec![0; bytes as usize];
        file.read_exact_at(&mut notes, offset).ok()?;
        let mut rest = &notes[..];
        while rest.len() >= 12 {
            let padded = |at| Some(number(rest, at, 4)?.next_multiple_of(4) as usize);
            let (name_bytes, id_bytes) = (padded(0)?, padded(4)?);
            let id = rest.get(12 + name_bytes..12 + name_bytes + id_bytes)?;
            if number(rest, 8, 4)? == NT_GNU_BUILD_ID && rest[12..].starts_with(b"GNU\0") {
                return Some(id.to_vec());
            }
            rest = rest.get(12 + name_bytes + id_bytes..)?;
        }
    }
    None
}

fn number(bytes: &[u8], at: usize, count: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + count)?;
    Some(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_has_a_build_id_and_text_has_none() {
        assert_eq!(FileIdentity::of(Path::new("/bin/sh")).unwrap().build_id.len(), 20);
        let text = FileIdentity::of(Path::new("/etc/passwd")).unwrap();
        assert!(text.build_id.is_empty() && text.is_same(&text.clone()));
        assert!(!text.is_same(&FileIdentity { changed_ns: 0, ..text.clone() }));
    }
}
