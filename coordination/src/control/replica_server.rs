//! Messages between an agent that brings an image to another one, and that one.

use super::codec::Field;
use super::fields::CheckpointId;
use super::frame::{ControlError, Message};
use rustbtl_fragments::ids::PeerId;

messages! {
/// From the agent that has an image to the one that shall store a replica; after mutual proof of
/// the job's secret. What may follow what: `crate::image_transfer`.
class 7 ToReplicaServer {
    /// First.
    1 Begin {
        /// Whose image.
        rank: PeerId,
        /// Of this checkpoint.
        checkpoint: CheckpointId,
    },
    /// One of its files begins.
    2 File {
        /// Which one, see `crate::image_transfer::Part`.
        part: u16,
        /// Its size.
        bytes: u64,
    },
    /// More of the file.
    3 Piece {
        /// So much.
        bytes: Vec<u8>,
    },
    /// The file is over.
    4 Checksum {
        /// CRC-32 of it.
        crc32: u32,
    },
    /// All files are over: make them durable, and give them their names.
    5 Commit {},
}

/// Its answer: one, when all has arrived or when something is wrong.
class 8 FromReplicaServer {
    /// It is safe here.
    1 Stored {},
    /// It is not.
    2 Refused {
        /// What is wrong and what to do.
        reason: String,
    },
}
}
