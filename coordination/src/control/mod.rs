//! Messages between ranks, guardians, agents, the coordinator and the `rustbtl` command. Pure:
//! messages to bytes and back; how they are sent is no business of this module.
//!
//! Source: ADR 0002 (checkpoints and processes). Invariants:
//! 1. What encodes decodes to the same message, and each message has one encoding.
//! 2. Bytes from nowhere give an error: never a panic, never more memory than they have bytes.
//! 3. The first 8 bytes of a frame have the same meaning in all versions, so that a frame of
//!    another version can be named.
//!
//! ```text
//! u32 bytes after this header | u8 version | u8 class | u8 kind | u8 zero | fields …
//! ```
//! Integers are little endian. Texts, blobs and lists: u32 length, then their content.

#[macro_use]
mod table;

mod codec;
mod collective_fields;
mod collective_messages;
mod command;
mod fields;
mod frame;
mod frozen_frame;
mod node_messages;
mod rank_messages;
mod replica_server;
mod spare;

pub use codec::Field;
pub use collective_fields::{ClockCounter, ClockTarget, Hindrance, MemberRun, MemberRuns};
pub use collective_messages::{FromClock, ToClock};
pub use command::{Reply, Request};
pub use fields::{
    CheckpointId, CheckpointKind, RankClock, RankEndpoint, RankPart, ReplayBlocker, SnapshotMemory,
};
pub use frame::{BODY_BYTES_MAX, ControlError, FrameBuffer, HEADER_BYTES, Message, VERSION};
pub use frozen_frame::frozen_in_pause;
pub use node_messages::{FromNode, ToNode};
pub use rank_messages::{FromRank, ToRank};
pub use replica_server::{FromReplicaServer, ToReplicaServer};
pub use spare::{FromSpare, ToSpare};

#[cfg(test)]
mod tests;
