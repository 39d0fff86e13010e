//! The frame that is sent while the threads of a process are suspended.

use super::codec::Field;
use super::fields::{CheckpointId, SnapshotMemory};
use super::frame::{BODY_BYTES_MAX, HEADER_BYTES, Message, VERSION};
use super::rank_messages::FromRank;

/// The frame of [`FromRank::Frozen`] for [`SnapshotMemory::InPause`], into memory that is there
/// already: while threads are suspended nothing may be allocated. False: there is too little of it.
pub fn frozen_in_pause(
    checkpoint: CheckpointId,
    description: &[u8],
    coordination_ns: u64,
    out: &mut Vec<u8>,
) -> bool {
    let body = 8 + 1 + 4 + description.len() + 8 + 8;
    if body > BODY_BYTES_MAX || out.capacity() < HEADER_BYTES + body {
        return false;
    }
    out.clear();
    (body as u32).put(out);
    out.extend_from_slice(&[VERSION, FromRank::CLASS, 4, 0]);
    checkpoint.put(out);
    SnapshotMemory::InPause.put(out);
    (description.len() as u32).put(out);
    out.extend_from_slice(description);
    coordination_ns.put(out);
    0u64.put(out);
    true
}
