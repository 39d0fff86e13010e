//! Plain data of determinants: snapshots of ranks, and fences of failed sets. No rules.

use rustbtl_coordination::control::FromNode;
use rustbtl_coordination::determinants::Fence;
use rustbtl_fragments::ids::Incarnation;

/// What a rank reports of its snapshot.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct SnapshotClock {
    /// Number of its next determinant.
    pub(super) clock: u64,
    /// The incarnation of its set.
    pub(super) incarnation: Incarnation,
    /// What its set had recorded lies before this place of the order.
    pub(super) recorded: u64,
}

/// A stored image that depends on what is not here yet.
#[derive(Debug)]
pub(super) struct DeferredImage {
    /// The agent that has reported it.
    pub(super) agent: u64,
    /// Its report.
    pub(super) message: FromNode,
    /// When it was first seen to wait.
    pub(super) since_ms: Option<u64>,
    /// When the ranks were last asked for what is missing.
    pub(super) asked_ms: Option<u64>,
}

/// The fence of a failed set.
#[derive(Debug)]
pub(super) struct Fencing {
    pub(super) fence: Fence,
    /// The job has been notified that it is complete.
    pub(super) reported: bool,
}
