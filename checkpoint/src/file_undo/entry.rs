//! Entries of a journal.
//!
//! A head of 16 bytes (length of the rest, CRC-32 of the rest with the time in it, time), then kind
//! and fields, little endian. Paths are absolute. A journal is read from its beginning, and ends
//! where an entry is not whole (invariant 5).

use super::PIECE_BYTES_MAX;
use crate::image::checksum;
use crate::image::codec::{Field, ImageError, Reader, Sink};
use core::ops::Range;

/// Longest path of the system.
const PATH_BYTES_MAX: usize = 4096;
/// Kind of [`Entry::Content`].
const CONTENT: u8 = 5;
/// As many bytes of an entry say of which file it is ([`Entry::content_place`]).
pub const CONTENT_PLACE_BYTES: usize = PATH_BYTES_MAX + 64;
/// Bytes in front of an entry.
pub const HEAD_BYTES: usize = 16;
/// Longest entry, head included.
pub const ENTRY_BYTES_MAX: usize = PIECE_BYTES_MAX as usize + 2 * PATH_BYTES_MAX + 64;

/// What is in front of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Bytes that follow.
    pub bytes: usize,
    checksum: u32,
    /// When what it undoes was about to be changed, by the clock of the node, in nanoseconds
    /// (CLOCK_REALTIME): it orders what several processes have done (invariant 7).
    pub at_ns: u64,
}

/// Of the bytes that follow, and of the time.
fn checksum_at(body: &[u8], at_ns: u64) -> u32 {
    checksum(body) ^ at_ns as u32 ^ (at_ns >> 32) as u32
}

impl Head {
    /// `None`: the journal ends here.
    pub fn decode(bytes: [u8; HEAD_BYTES]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let length = word(0) as usize;
        let fits = (1..=ENTRY_BYTES_MAX - HEAD_BYTES).contains(&length);
        let at_ns = u64::from(word(8)) | u64::from(word(12)) << 32;
        fits.then(|| Self { bytes: length, checksum: word(4), at_ns })
    }

    /// Are these the bytes that follow?
    pub fn is_of(&self, body: &[u8]) -> bool {
        body.len() == self.bytes && checksum_at(body, self.at_ns) == self.checksum
    }
}

macro_rules! entries {
    ($($(#[$about:meta])* $number:literal $name:ident {
        $($(#[$field_about:meta])* $field:ident: $kind:ty,)*
    })*) => {
        /// What a process is going to change, or what is to be known of a file.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Entry<'a> {
            $($(#[$about])* $name { $($(#[$field_about])* $field: $kind,)* },)*
        }

        impl<'a> Entry<'a> {
            fn put(&self, sink: &mut impl Sink) {
                match self {
                    $(Self::$name { $($field,)* } => {
                        let kind: u8 = $number;
                        kind.put(sink);
                        $($field.put(sink);)*
                    })*
                }
            }

            /// From what follows a head.
            pub fn decode(body: &'a [u8]) -> Result<Self, ImageError> {
                let mut reader = Reader::new(body);
                let kind: u8 = reader.take()?;
                let entry = match kind {
                    $($number => Self::$name { $($field: reader.take()?,)* },)*
                    _ => return Err(ImageError::Kind(kind.into())),
                };
                if reader.rest().is_empty() { Ok(entry) } else { Err(ImageError::Short) }
            }
        }
    };
}

entries! {
    /// This process writes to the file.
    1 Writes {
        /// Where it is.
        path: &'a [u8],
    }
    /// The process was suspended until here: what is in front belongs to the snapshot.
    2 Begun {}
    /// There was nothing.
    3 Created {
        /// Where.
        path: &'a [u8],
        /// Of what was made; 0: not known.
        inode: u64,
    }
    /// The file had this size.
    4 Size {
        /// Where it is.
        path: &'a [u8],
        /// In bytes.
        size: u64,
        /// It is made shorter: it has to be made longer again.
        extend: bool,
    }
    /// The file held this.
    5 Content {
        /// Where it is.
        path: &'a [u8],
        /// From here on.
        offset: u64,
        /// At most [`PIECE_BYTES_MAX`].
        bytes: &'a [u8],
    }
    /// It had another name.
    6 Moved {
        /// Before.
        from: &'a [u8],
        /// Afterwards.
        to: &'a [u8],
    }
    /// It was there, and has another name in the folder of the journal.
    7 Removed {
        /// Before.
        path: &'a [u8],
        /// Name in the folder of the journal.
        saved: &'a [u8],
    }
    /// There was no folder.
    8 MadeFolder {
        /// Where.
        path: &'a [u8],
    }
    /// There was an empty folder.
    9 RemovedFolder {
        /// Where.
        path: &'a [u8],
        /// Its permissions.
        mode: u32,
    }
    /// The file is not put back (invariant 4).
    10 Missing {
        /// Where it is.
        path: &'a [u8],
    }
    /// This process reads the file (invariant 6). Not in a journal, but beside it.
    11 Reads {
        /// Where it is.
        path: &'a [u8],
        /// When it was changed last at that moment, as the file system says, in nanoseconds; 0: it
        /// was being changed.
        changed_ns: u64,
    }
    /// Ranks of several sets have opened the file together by MPI-IO: who is rolled back alone
    /// leaves it as it is, and repeats nothing that it has done to it (docs/adr/0023).
    12 Shared {
        /// Where it is.
        path: &'a [u8],
    }
    /// The process emptied, resized or made the file, opened it to append, or removed or renamed
    /// it, or wanted to: done again, that changes what others have written to it since.
    13 NotAgain {
        /// Where it is.
        path: &'a [u8],
    }
}

impl Entry<'_> {
    /// Replaces the content of `buffer` with the entry, head included.
    pub fn encode(&self, buffer: &mut Vec<u8>) {
        self.encode_at(buffer, 0);
    }

    /// The same with a time, in nanoseconds.
    pub fn encode_at(&self, buffer: &mut Vec<u8>, at_ns: u64) {
        buffer.clear();
        buffer.extend_from_slice(&[0; HEAD_BYTES]);
        self.put(buffer);
        let (head, body) = buffer.split_at_mut(HEAD_BYTES);
        head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[4..8].copy_from_slice(&checksum_at(body, at_ns).to_le_bytes());
        head[8..].copy_from_slice(&at_ns.to_le_bytes());
    }

    /// File, place and length of content, from the beginning of what follows a head. `None`: it is
    /// another entry, or it is cut off before that.
    pub fn content_place(beginning: &[u8]) -> Option<(&[u8], Range<u64>)> {
        let (&kind, rest) = beginning.split_first()?;
        let (length, rest) = rest.split_first_chunk::<4>().filter(|_| kind == CONTENT)?;
        let (path, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let (offset, rest) = rest.split_first_chunk::<8>()?;
        let (bytes, _) = rest.split_first_chunk::<4>()?;
        let offset = u64::from_le_bytes(*offset);
        Some((path, offset..offset.saturating_add(u32::from_le_bytes(*bytes).into())))
    }

    /// The files whose change it undoes: where they are before and after it.
    pub fn paths(&self) -> [Option<&[u8]>; 2] {
        match *self {
            Self::Begun {} | Self::NotAgain { .. } => [None, None],
            Self::Moved { from, to } => [Some(from), Some(to)],
            Self::Writes { path }
            | Self::Created { path, .. }
            | Self::Size { path, .. }
            | Self::Content { path, .. }
            | Self::Removed { path, .. }
            | Self::MadeFolder { path }
            | Self::RemovedFolder { path, .. }
            | Self::Missing { path }
            | Self::Reads { path, .. }
            | Self::Shared { path } => [Some(path), None],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_what_they_were_and_damage_is_seen() {
        let path = &b"/a/b"[..];
        let all = [
            Entry::Writes { path },
            Entry::Begun {},
            Entry::Created { path, inode: 7 },
            Entry::Size { path, size: 1 << 40, extend: true },
            Entry::Content { path, offset: 9, bytes: b"old" },
            Entry::Moved { from: path, to: b"/c" },
            Entry::Removed { path, saved: b"saved-1" },
            Entry::MadeFolder { path },
            Entry::RemovedFolder { path, mode: 0o700 },
            Entry::Missing { path },
            Entry::Reads { path, changed_ns: 1 << 60 },
        ];
        let mut bytes = Vec::new();
        for entry in all {
            entry.encode(&mut bytes);
            let (head, body) = bytes.split_first_chunk().unwrap();
            let head = Head::decode(*head).unwrap();
            assert!(head.is_of(body));
            assert_eq!(Entry::decode(body), Ok(entry));
            assert!(!head.is_of(&body[1..]), "5");
            let mut damaged = body.to_vec();
            damaged[0] ^= 64;
            assert!(!head.is_of(&damaged), "5");
            assert!(Entry::decode(&damaged).is_err());
        }
        Entry::Content { path, offset: 9, bytes: b"old" }.encode(&mut bytes);
        let body = &bytes[HEAD_BYTES..];
        assert_eq!(Entry::content_place(body), Some((path, 9..12)));
        assert_eq!(Entry::content_place(&body[..body.len() - 4]), None);
        Entry::Size { path, size: 9, extend: true }.encode(&mut bytes);
        assert_eq!(Entry::content_place(&bytes[HEAD_BYTES..]), None);
        assert_eq!(Head::decode([0; HEAD_BYTES]), None);
        assert_eq!(Head::decode([255; HEAD_BYTES]), None);
        // Golden: of version 3 of the format of images, which journals belong to.
        Entry::Size { path: b"/f", size: 258, extend: false }.encode_at(&mut bytes, 1);
        assert_eq!(bytes[..4], [16, 0, 0, 0]);
        assert_eq!(bytes[8..HEAD_BYTES], [1, 0, 0, 0, 0, 0, 0, 0]);
        let body = [4, 2, 0, 0, 0, b'/', b'f', 2, 1, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(bytes[HEAD_BYTES..], body);
    }
}
