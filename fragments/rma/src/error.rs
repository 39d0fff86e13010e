//! What a call of MPI returns when it cannot be done (MPI-3.1 §11.6). State is as it was before.

use core::fmt;

/// Why an operation or a synchronization is refused. The name says MPI's error class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RmaError {
    /// MPI_ERR_WIN: there is no such window.
    Window,
    /// MPI_ERR_RANK: the window's group has no such rank.
    Rank,
    /// MPI_ERR_RMA_SYNC: outside of an epoch, or epochs that may not follow each other.
    Sync,
    /// MPI_ERR_RMA_CONFLICT: a window that is exposed by MPI_Win_post is locked by its own process.
    Conflict,
    /// MPI_ERR_RMA_RANGE: memory outside of the window, or outside of what is attached.
    Range,
    /// MPI_ERR_RMA_ATTACH: memory cannot be attached, or was not.
    Attach,
    /// MPI_ERR_RMA_FLAVOR: not for windows of this flavour.
    Flavor,
    /// MPI_ERR_OP: the operation is not defined for the type.
    Op,
    /// MPI_ERR_TYPE: a type that does not go with the payload, or is too large to be described.
    Type,
}

impl RmaError {
    /// As a byte on the wire; 0 stands for no error.
    pub const fn code(self) -> u8 {
        match self {
            Self::Window => 1,
            Self::Rank => 2,
            Self::Sync => 3,
            Self::Conflict => 4,
            Self::Range => 5,
            Self::Attach => 6,
            Self::Flavor => 7,
            Self::Op => 8,
            Self::Type => 9,
        }
    }

    /// The error of a byte; `None`: there is none with this number.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Window,
            2 => Self::Rank,
            3 => Self::Sync,
            4 => Self::Conflict,
            5 => Self::Range,
            6 => Self::Attach,
            7 => Self::Flavor,
            8 => Self::Op,
            9 => Self::Type,
            _ => return None,
        })
    }
}

impl fmt::Display for RmaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Window => "no such window",
            Self::Rank => "the window's group has no such rank",
            Self::Sync => "wrong synchronization of one-sided calls: check which epoch is open",
            Self::Conflict => "the window is exposed by MPI_Win_post: wait for it before locking",
            Self::Range => "memory outside of the target's window",
            Self::Attach => "memory overlaps what is attached, or was not attached",
            Self::Flavor => "not possible with a window of this flavour",
            Self::Op => "the operation is not defined for the type",
            Self::Type => "the target's type does not go with the data",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_code() {
        let known: Vec<_> = (0..=255).filter_map(RmaError::from_code).collect();
        assert_eq!(known.len(), 9);
        for (error, code) in known.into_iter().zip(1..) {
            assert_eq!(error.code(), code);
            assert!(!error.to_string().is_empty());
        }
    }
}
