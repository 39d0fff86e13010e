//! How fields are encoded and decoded: little endian, no padding, lengths before contents.
//!
//! Source: the same rules as `fragments/src/wire.rs`. Encoding allocates nothing by itself: it
//! writes to a [`Sink`], because a process describes itself while its allocator may be locked by
//! a thread that is suspended. Decoding borrows from the bytes and allocates nothing.

/// Where encoded bytes go.
pub trait Sink {
    /// Appends.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Counts what would be written.
#[derive(Clone, Copy, Default, Debug)]
pub struct Count(pub usize);

impl Sink for Count {
    fn put(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

use rustbtl_fragments::little_endian::{LittleEndian, take_bytes};

/// Why bytes are not an image, or not one that can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImageError {
    /// It does not begin like an image.
    Magic,
    /// Another version of the format.
    Version(u32),
    /// Shorter than the sum of its parts (or than a header).
    Short,
    /// A checksum is wrong; the name is that of what it covers.
    Checksum(&'static str),
    /// A length or number is beyond its limit; with its name.
    Limit(&'static str),
    /// A value that no writer produces; with its name.
    Value(&'static str),
    /// A record of a kind that this version does not know.
    Kind(u16),
    /// Blocks out of order or overlapping.
    Order,
    /// A compressed block does not decompress to its size.
    Compression,
}

impl core::fmt::Display for ImageError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Magic => write!(f, "this is not a process image"),
            Self::Version(v) => {
                write!(f, "image format version {v}; this program reads {}", super::VERSION)
            }
            Self::Short => write!(f, "the image is cut off"),
            Self::Checksum(of) => write!(f, "the image is damaged: checksum of {of}"),
            Self::Limit(what) => write!(f, "the image is damaged: {what} beyond its limit"),
            Self::Value(what) => write!(f, "the image is damaged: impossible {what}"),
            Self::Kind(kind) => write!(f, "the image has a record of unknown kind {kind}"),
            Self::Order => write!(f, "the image is damaged: blocks out of order"),
            Self::Compression => write!(f, "the image is damaged: a block does not decompress"),
        }
    }
}

impl core::error::Error for ImageError {}

/// Takes fields from bytes.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// From the first byte on.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes that are left.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], ImageError> {
        take_bytes(&mut self.rest, count).ok_or(ImageError::Short)
    }

    /// A field.
    pub fn take<F: Field<'a>>(&mut self) -> Result<F, ImageError> {
        F::take(self)
    }
}

/// What can be a field.
pub trait Field<'a>: Sized {
    /// Encodes.
    fn put(&self, sink: &mut impl Sink);
    /// Decodes.
    fn take(reader: &mut Reader<'a>) -> Result<Self, ImageError>;
}

macro_rules! integers {
    ($($kind:ty),*) => {$(
        impl<'a> Field<'a> for $kind {
            fn put(&self, sink: &mut impl Sink) {
                sink.put(&self.to_le_bytes());
            }

            fn take(reader: &mut Reader<'a>) -> Result<Self, ImageError> {
                LittleEndian::take_from(&mut reader.rest).ok_or(ImageError::Short)
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, i32, i64);

impl<'a, const N: usize> Field<'a> for [u8; N] {
    fn put(&self, sink: &mut impl Sink) {
        sink.put(self);
    }

    fn take(reader: &mut Reader<'a>) -> Result<Self, ImageError> {
        let bytes = reader.bytes(N)?;
        bytes.try_into().map_err(|_| ImageError::Short)
    }
}

impl<'a> Field<'a> for &'a [u8] {
    fn put(&self, sink: &mut impl Sink) {
        // No writer has a field of 4 GiB: contents of memory are blocks.
        let bytes = self.get(..u32::MAX as usize).unwrap_or(self);
        (bytes.len() as u32).put(sink);
        sink.put(bytes);
    }

    fn take(reader: &mut Reader<'a>) -> Result<Self, ImageError> {
        let count = u32::take(reader)?;
        reader.bytes(count as usize)
    }
}

impl<'a> Field<'a> for bool {
    fn put(&self, sink: &mut impl Sink) {
        u8::from(*self).put(sink);
    }

    fn take(reader: &mut Reader<'a>) -> Result<Self, ImageError> {
        match u8::take(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(ImageError::Value("truth value")),
        }
    }
}
