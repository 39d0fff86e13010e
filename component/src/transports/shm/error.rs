//! What can go wrong when the node segment is made or attached.

use crate::os::OsError;
use core::fmt;

/// Why there is no node segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ShmError {
    /// The memory file system has no room.
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
    Os(OsError),
    /// The name is not one that [`crate::transports::shm::Segment::create`] makes.
    Name(String),
    /// The file is not a segment, or not yet complete.
    NotASegment(String),
    /// Made by another version of this component.
    Version {
        /// The file.
        path: String,
        /// Its version.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// Made for another job: other sizes.
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
    Foreign {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// Arguments that make no sense.
    Arguments(String),
}

impl From<OsError> for ShmError {
    fn from(error: OsError) -> Self {
        Self::Os(error)
    }
}

impl fmt::Display for ShmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoom { directory, needed, free, ranks } => write!(
                f,
                "the shared-memory segment of this node needs {needed} bytes for {ranks} ranks, \
                 but only {free} bytes are free in {directory}; make it larger or choose smaller \
                 rings"
            ),
            Self::Os(error) => error.fmt(f),
            Self::Name(name) => write!(f, "{name:?} is not the name of a node segment"),
            Self::NotASegment(path) => write!(f, "{path} is not a node segment of this component"),
            Self::Version { path, found, expected } => write!(
                f,
                "{path} was made by another version of the component (segment format {found}, \
                 this one is {expected}); install the same version everywhere"
            ),
            Self::Mismatch { path, field, found, expected } => {
                write!(f, "{path} does not fit this job: {field} is {found}, expected {expected}")
            }
            Self::Foreign { path, why } => write!(f, "{path} is not trusted: {why}"),
            Self::Arguments(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for ShmError {}
