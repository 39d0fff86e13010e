//! Why a freeze fails, in a form that needs no allocator (the threads are still suspended).

use super::FreezeError;
use crate::raw::Errno;

/// A short text.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    bytes: [u8; 95],
    count: u8,
}

impl Name {
    /// The beginning of the text.
    pub fn of(pieces: &[&[u8]]) -> Self {
        let mut name = Self { bytes: [0; 95], count: 0 };
        for piece in pieces {
            let at = usize::from(name.count);
            let piece = &piece[..piece.len().min(name.bytes.len() - at)];
            name.bytes[at..at + piece.len()].copy_from_slice(piece);
            name.count += piece.len() as u8;
        }
        name
    }
}

/// See [`FreezeError`].
#[derive(Clone, Copy, Debug)]
pub enum FreezeFailure {
    /// A thread was not suspended in time.
    Thread(u32, &'static str),
    /// Something cannot be restored.
    Refused(Name, &'static str),
    /// A system call failed.
    System(&'static str, Errno),
    /// `after_suspended` returned an error.
    Hook(&'static str),
}

impl FreezeFailure {
    /// For `map_err`.
    pub fn system(what: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::System(what, errno)
    }
}

impl From<FreezeFailure> for FreezeError {
    fn from(failure: FreezeFailure) -> Self {
        match failure {
            FreezeFailure::Thread(tid, reason) => Self::Thread { tid, reason },
            FreezeFailure::Refused(name, reason) => {
                let what = &name.bytes[..usize::from(name.count)];
                Self::Refused { what: String::from_utf8_lossy(what).into_owned(), reason }
            }
            FreezeFailure::System(what, errno) => Self::System { what, errno: errno.0 },
            FreezeFailure::Hook(reason) => Self::Hook(reason),
        }
    }
}
