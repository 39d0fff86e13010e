//! Frames: the header in front of every message, and pieces of a stream put together again.

use core::fmt;
use rustbtl_fragments::little_endian::LittleEndian;

/// Version of all messages of this module. Part 3 has 1.
pub const VERSION: u8 = 12;
/// Bytes in front of the fields.
pub const HEADER_BYTES: usize = 8;
/// Most bytes after the header.
pub const BODY_BYTES_MAX: usize = 64 << 20;

/// What is wrong with a frame. The connection that it came over is of no more use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlError {
    /// It has another version.
    Version(u8),
    /// It is not for whoever has got it.
    Class(u8),
    /// There is no such message.
    Kind(u8),
    /// It is longer than [`BODY_BYTES_MAX`].
    TooLong(u32),
    /// Its content makes no sense.
    Damaged,
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(theirs) => write!(
                f,
                "a control message of version {theirs}, here it is {VERSION}: install the same \
                 version of rustbtl on all nodes"
            ),
            Self::Class(class) => write!(f, "a control message of class {class} went astray"),
            Self::Kind(kind) => write!(f, "a control message of unknown kind {kind}"),
            Self::TooLong(bytes) => {
                write!(f, "a control message of {bytes} bytes; {BODY_BYTES_MAX} are allowed")
            }
            Self::Damaged => f.write_str("a control message that cannot be read"),
        }
    }
}

impl core::error::Error for ControlError {}

/// One of the six kinds of conversation.
pub trait Message: Sized {
    /// Its number in headers.
    const CLASS: u8;
    /// Number of this message in headers.
    fn kind(&self) -> u8;
    /// Append the fields.
    fn put_fields(&self, out: &mut Vec<u8>);
    /// Read the fields of the message of this kind.
    ///
    /// # Errors
    /// [`ControlError::Kind`] or [`ControlError::Damaged`].
    fn take_fields(kind: u8, from: &mut &[u8]) -> Result<Self, ControlError>;

    /// The whole frame.
    ///
    /// # Errors
    /// [`ControlError::TooLong`].
    fn encode(&self) -> Result<Vec<u8>, ControlError> {
        let mut out = vec![0, 0, 0, 0, VERSION, Self::CLASS, self.kind(), 0];
        self.put_fields(&mut out);
        let body = out.len() - HEADER_BYTES;
        if body > BODY_BYTES_MAX {
            return Err(ControlError::TooLong(u32::try_from(body).unwrap_or(u32::MAX)));
        }
        (body as u32).write_at(&mut out, 0);
        Ok(out)
    }

    /// Read a whole frame.
    ///
    /// # Errors
    /// What is wrong with it.
    fn decode(frame: &[u8]) -> Result<Self, ControlError> {
        let (header, mut body) = frame.split_first_chunk().ok_or(ControlError::Damaged)?;
        let length = check(header)?;
        if header[5] != Self::CLASS {
            return Err(ControlError::Class(header[5]));
        }
        if body.len() != length {
            return Err(ControlError::Damaged);
        }
        let message = Self::take_fields(header[6], &mut body)?;
        if body.is_empty() { Ok(message) } else { Err(ControlError::Damaged) }
    }
}

/// Bytes after a header that makes sense.
fn check(header: &[u8; HEADER_BYTES]) -> Result<usize, ControlError> {
    if header[4] != VERSION {
        return Err(ControlError::Version(header[4]));
    }
    let length = u32::read_at(header, 0);
    if length as usize > BODY_BYTES_MAX {
        return Err(ControlError::TooLong(length));
    }
    if header[7] == 0 { Ok(length as usize) } else { Err(ControlError::Damaged) }
}

/// Bytes of a stream, until they are whole frames. Holds no more than has arrived.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    /// Where the first frame that was not given out begins.
    at: usize,
}

impl FrameBuffer {
    /// An empty one.
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), at: 0 }
    }

    /// Room for so much without allocating.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// What has arrived.
    pub fn add(&mut self, bytes: &[u8]) {
        if self.at > 0 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, header included.
    ///
    /// # Errors
    /// What is wrong with its header; everything after it is lost.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, ControlError> {
        let rest = &self.bytes[self.at..];
        let Some(header) = rest.first_chunk() else { return Ok(None) };
        let whole = HEADER_BYTES + check(header)?;
        if rest.len() < whole {
            return Ok(None);
        }
        self.at += whole;
        Ok(Some(&self.bytes[self.at - whole..self.at]))
    }

    /// The next message.
    ///
    /// # Errors
    /// As for [`Self::next_frame`], and what is wrong with its content.
    pub fn next_message<M: Message>(&mut self) -> Result<Option<M>, ControlError> {
        self.next_frame()?.map(M::decode).transpose()
    }

    /// Bytes that are waiting.
    pub fn pending(&self) -> usize {
        self.bytes.len() - self.at
    }
}
