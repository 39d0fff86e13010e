//! What can go wrong when the node segment is made or attached.

use crate::os::OsError;

/// Why there is no node segment.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ShmError {
    /// The memory file system has no room.
    #[error(
        "the shared-memory segment of this node needs {needed} bytes for {ranks} ranks, but only \
         {free} bytes are free in {directory}; make it larger or choose smaller rings"
    )]
    NoRoom {
        /// Where.
        directory: String,
        /// Bytes the segment takes.
        needed: u64,
        /// Bytes that were free.
        free: u64,
        /// Local ranks.
        ranks: usize,
    },
    /// A system call failed.
    #[error(transparent)]
    Os(#[from] OsError),
    /// The name is not one that [`crate::transports::shm::Segment::create`] makes.
    #[error("{0:?} is not the name of a node segment")]
    Name(String),
    /// The file is not a segment, or not yet complete.
    #[error("{0} is not a node segment of this component")]
    NotASegment(String),
    /// Made by another version of this component.
    #[error(
        "{path} was made by another version of the component (segment format {found}, this one \
         is {expected}); install the same version everywhere"
    )]
    Version {
        /// The file.
        path: String,
        /// Its version.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// Made for another job: other sizes.
    #[error("{path} does not fit this job: {field} is {found}, expected {expected}")]
    Mismatch {
        /// The file.
        path: String,
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// What it should be.
        expected: u64,
    },
    /// It belongs to another user, or others may write to it.
    #[error("{path} is not trusted: {why}")]
    Foreign {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// Arguments that make no sense.
    #[error("{0}")]
    Arguments(String),
}
