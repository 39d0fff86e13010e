//! Names of this crate. A window is named by the context id of its own communicator
//! ([`ContextId`]), a process by its rank there ([`CommRank`]): both are the same in a replay.

pub use rustbtl_fragments::ids::{CommRank, ContextId};

/// An operation of this process that gets data back (get, fetching accumulates, compare and swap);
/// counted over all windows from 1, hence the same in a replay.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OperationId(pub u64);

/// Number of MPI actions of the program so far, from 1 (DESIGN.md "The tick").
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Tick(pub u64);

impl Tick {
    /// In a record: the epoch says when, not the program's actions.
    pub const BY_EPOCH: Self = Self(0);
}
