//! What may follow what when an agent brings an image to another: the receiver's side. No I/O; the
//! driver does what [`TransferStep`] says, in this order.
//!
//! Source: docs/adr/0007.
//!
//! ```text
//! Begin, then for each file: File Piece… Checksum; then Commit
//! ```
//! 1. What is stored where follows from the numbers of rank, checkpoint and part alone; no name
//!    comes from the network.
//! 2. A file is as long as it was said to be, each comes once, and none is left out unfinished.
//! 3. `Commit` only when the image itself is there.
//! 4. After an error, and after `Commit`, nothing is accepted any more.

use crate::control::{CheckpointId, ToReplicaServer};
use core::fmt;
use rustbtl_fragments::ids::PeerId;
use std::collections::BTreeSet;

/// Most bytes of a piece.
pub const PIECE_BYTES_MAX: usize = 1 << 20;
/// Most older images that one builds on.
pub const BASES_MAX: u16 = 255;

/// A file of an image.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ImagePart {
    /// The image itself.
    Image,
    /// An older one that it builds on, by its number in there, from 1.
    Base(u8),
    /// The output offsets of the rank.
    Output,
}

impl ImagePart {
    /// On the wire.
    pub const fn number(self) -> u16 {
        match self {
            Self::Image => 0,
            Self::Base(number) => number as u16,
            Self::Output => BASES_MAX + 1,
        }
    }

    /// The reverse.
    pub const fn of(number: u16) -> Option<Self> {
        match number {
            0 => Some(Self::Image),
            1..=BASES_MAX => Some(Self::Base(number as u8)),
            256 => Some(Self::Output),
            _ => None,
        }
    }
}

/// What the receiver does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TransferStep {
    /// Of this image.
    Begin {
        /// Whose.
        rank: PeerId,
        /// Of this checkpoint.
        checkpoint: CheckpointId,
    },
    /// Make room for a file.
    Open {
        /// Which one.
        part: ImagePart,
        /// Its size.
        bytes: u64,
    },
    /// Append to it.
    Write(Vec<u8>),
    /// It is over: this must be its CRC-32.
    Close(u32),
    /// Make all durable and give them their names.
    Commit,
}

/// The other end does not keep to the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransferError {
    /// This message does not belong here.
    Order,
    /// There is no such part, or it was there already.
    Part(u16),
    /// More or less bytes than announced, or too many at a time.
    Bytes,
    /// The image itself is missing.
    Incomplete,
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Order => f.write_str("a message that does not belong there"),
            Self::Part(part) => write!(f, "part {part} does not exist or came twice"),
            Self::Bytes => f.write_str("another number of bytes than was announced"),
            Self::Incomplete => f.write_str("the image itself is missing"),
        }
    }
}

impl core::error::Error for TransferError {}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TransferState {
    New,
    Between,
    In { left: u64 },
    Over,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct TransferReceiver {
    state: TransferState,
    parts: BTreeSet<ImagePart>,
}

impl Default for TransferReceiver {
    fn default() -> Self {
        Self { state: TransferState::New, parts: BTreeSet::new() }
    }
}

impl TransferReceiver {
    /// What a message of the sender means.
    ///
    /// # Errors
    /// See [`TransferError`]: the connection is of no more use.
    pub fn handle(&mut self, message: ToReplicaServer) -> Result<TransferStep, TransferError> {
        let done = self.step(message);
        if done.is_err() {
            self.state = TransferState::Over;
        }
        done
    }

    fn step(&mut self, message: ToReplicaServer) -> Result<TransferStep, TransferError> {
        match (self.state, message) {
            (TransferState::New, ToReplicaServer::Begin { rank, checkpoint }) => {
                self.state = TransferState::Between;
                Ok(TransferStep::Begin { rank, checkpoint })
            }
            (TransferState::Between, ToReplicaServer::File { part: number, bytes }) => {
                let part = ImagePart::of(number).ok_or(TransferError::Part(number))?;
                if !self.parts.insert(part) {
                    return Err(TransferError::Part(number));
                }
                self.state = TransferState::In { left: bytes };
                Ok(TransferStep::Open { part, bytes })
            }
            (TransferState::In { left }, ToReplicaServer::Piece { bytes }) => {
                let fits = !bytes.is_empty() && bytes.len() <= PIECE_BYTES_MAX;
                let left = left.checked_sub(bytes.len() as u64).filter(|_| fits);
                self.state = TransferState::In { left: left.ok_or(TransferError::Bytes)? };
                Ok(TransferStep::Write(bytes))
            }
            (TransferState::In { left }, ToReplicaServer::Checksum { crc32 }) => {
                self.state = TransferState::Between;
                if left == 0 { Ok(TransferStep::Close(crc32)) } else { Err(TransferError::Bytes) }
            }
            (TransferState::Between, ToReplicaServer::Commit {}) => {
                self.state = TransferState::Over;
                let whole = self.parts.contains(&ImagePart::Image);
                if whole { Ok(TransferStep::Commit) } else { Err(TransferError::Incomplete) }
            }
            _ => Err(TransferError::Order),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin() -> ToReplicaServer {
        ToReplicaServer::Begin { rank: PeerId(3), checkpoint: CheckpointId(2) }
    }

    fn file(part: ImagePart, bytes: u64) -> ToReplicaServer {
        ToReplicaServer::File { part: part.number(), bytes }
    }

    fn piece(bytes: usize) -> ToReplicaServer {
        ToReplicaServer::Piece { bytes: vec![7; bytes] }
    }

    fn checksum() -> ToReplicaServer {
        ToReplicaServer::Checksum { crc32: 0 }
    }

    #[test]
    fn an_image_with_all_it_needs_comes_through() {
        let mut receiver = TransferReceiver::default();
        for message in [
            begin(),
            file(ImagePart::Base(2), 3),
            piece(1),
            piece(2),
            checksum(),
            file(ImagePart::Output, 0),
            checksum(),
            file(ImagePart::Image, 5),
            piece(5),
            checksum(),
            ToReplicaServer::Commit {},
        ] {
            receiver.handle(message.clone()).unwrap_or_else(|error| panic!("{message:?}: {error}"));
        }
        assert_eq!(receiver.handle(begin()), Err(TransferError::Order), "4");
    }

    #[test]
    fn what_breaks_a_rule_is_refused_and_nothing_follows_it() {
        let image = || file(ImagePart::Image, 2);
        let refused: [(&[ToReplicaServer], TransferError); 11] = [
            (&[image()], TransferError::Order),
            (&[begin(), begin()], TransferError::Order),
            (&[begin(), piece(1)], TransferError::Order),
            (&[begin(), ToReplicaServer::Commit {}], TransferError::Incomplete),
            (&[begin(), image(), piece(3)], TransferError::Bytes),
            (&[begin(), image(), piece(0)], TransferError::Bytes),
            (&[begin(), image(), piece(1), checksum()], TransferError::Bytes),
            (&[begin(), image(), ToReplicaServer::Commit {}], TransferError::Order),
            (&[begin(), image(), piece(2), checksum(), image()], TransferError::Part(0)),
            (&[begin(), ToReplicaServer::File { part: 257, bytes: 1 }], TransferError::Part(257)),
            (
                &[begin(), file(ImagePart::Image, 1 << 40), piece((1 << 20) + 1)],
                TransferError::Bytes,
            ),
        ];
        for (messages, error) in refused {
            let mut receiver = TransferReceiver::default();
            let (last, before) = messages.split_last().unwrap();
            before.iter().for_each(|message| drop(receiver.handle(message.clone()).unwrap()));
            assert_eq!(receiver.handle(last.clone()), Err(error), "{messages:?}");
            assert_eq!(receiver.handle(checksum()), Err(TransferError::Order), "4: {messages:?}");
        }
    }

    #[test]
    fn parts_have_one_number_each() {
        for number in 0..=u16::MAX {
            let part = ImagePart::of(number);
            assert_eq!(part.map(ImagePart::number), part.map(|_| number));
        }
        assert!(ImagePart::of(257).is_none());
    }
}
