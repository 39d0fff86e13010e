//! What messages consist of besides ids: checkpoints, snapshots, what belongs to a rank.

use super::codec::Field;
use super::frame::ControlError;
use core::fmt;
use rustbtl_fragments::ids::{Incarnation, PeerId};

/// Number of a checkpoint of a job, from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CheckpointId(pub u64);

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Field for CheckpointId {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
        u64::take(from).map(Self)
    }
}

/// Which processes a checkpoint is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckpointKind {
    /// One set.
    Set,
    /// All sets.
    Global,
}

impl Field for CheckpointKind {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::Set => 1,
            Self::Global => 2,
        });
    }

    fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
        match u8::take(from)? {
            1 => Ok(Self::Set),
            2 => Ok(Self::Global),
            _ => Err(ControlError::Damaged),
        }
    }
}

/// Which rollback is impossible, where something is not recorded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ReplayBlocker {
    /// This set, alone.
    Set,
    /// Any set, alone: others may have a part in it and do not see it.
    Others,
    /// Nor a global one: it is not in images.
    Everybody,
    /// This set, alone, until its next checkpoint: what is not recorded is over by then.
    SetUntilCheckpoint,
}

impl Field for ReplayBlocker {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::Set => 1,
            Self::Others => 2,
            Self::Everybody => 3,
            Self::SetUntilCheckpoint => 4,
        });
    }

    fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
        match u8::take(from)? {
            1 => Ok(Self::Set),
            2 => Ok(Self::Others),
            3 => Ok(Self::Everybody),
            4 => Ok(Self::SetUntilCheckpoint),
            _ => Err(ControlError::Damaged),
        }
    }
}

/// What the guardian reads the image from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SnapshotMemory {
    /// A frozen copy of the process, a child of it with this process id.
    Child(i32),
    /// The process itself, which waits for [`Release`](super::ToRank::Release).
    InPause,
}

impl Field for SnapshotMemory {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Child(pid) => {
                out.push(1);
                pid.put(out);
            }
            Self::InPause => out.push(2),
        }
    }

    fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
        match u8::take(from)? {
            1 => i32::take(from).map(Self::Child),
            2 => Ok(Self::InPause),
            _ => Err(ControlError::Damaged),
        }
    }
}

/// How to reach a rank.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RankEndpoint {
    /// Whose.
    pub rank: PeerId,
    /// In which incarnation.
    pub incarnation: Incarnation,
    /// The component's own encoding.
    pub endpoint: Vec<u8>,
}

impl Field for RankEndpoint {
    fn put(&self, out: &mut Vec<u8>) {
        self.rank.put(out);
        self.incarnation.put(out);
        self.endpoint.put(out);
    }

    fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
        Ok(Self {
            rank: Field::take(from)?,
            incarnation: Field::take(from)?,
            endpoint: Field::take(from)?,
        })
    }
}

/// What a rank has given to something that all have a part in.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RankPart {
    /// Whose.
    pub rank: PeerId,
    /// Opaque.
    pub part: Vec<u8>,
}

impl Field for RankPart {
    fn put(&self, out: &mut Vec<u8>) {
        self.rank.put(out);
        self.part.put(out);
    }

    fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
        Ok(Self { rank: Field::take(from)?, part: Field::take(from)? })
    }
}

/// How far a rank has got.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RankClock {
    /// Which rank.
    pub rank: PeerId,
    /// Number of its next determinant.
    pub clock: u64,
}

impl Field for RankClock {
    fn put(&self, out: &mut Vec<u8>) {
        self.rank.put(out);
        self.clock.put(out);
    }

    fn take(from: &mut &[u8]) -> Result<Self, ControlError> {
        Ok(Self { rank: Field::take(from)?, clock: Field::take(from)? })
    }
}
