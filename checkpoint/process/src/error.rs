//! Why an image could not be written, read or restored.

use crate::private_files::FileError;
use rustbtl_checkpoint::image::ImageError;

/// Why an image could not be written, read or restored.
#[derive(Debug, thiserror::Error)]
pub enum ProcessImageError {
    /// The image (or a description) cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A file or system call, with what was tried.
    #[error("{what}: {error}")]
    System {
        /// What was tried, on what.
        what: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// Others may have written it.
    #[error("{0}")]
    Distrusted(FileError),
    /// The process that was being restored was ended by a signal.
    #[error("{what}")]
    Killed {
        /// Where it was, and the signal.
        what: String,
    },
    /// Something of the process that cannot be restored.
    #[error("{what}: {reason}")]
    Refused {
        /// What is in the way.
        what: String,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// An image cannot be used without another one.
    #[error("{image} needs {base}, which cannot be used: {problem}")]
    Base {
        /// The image.
        image: String,
        /// What it refers to.
        base: String,
        /// What is wrong with that.
        problem: String,
    },
    /// This machine is not like the one where the image was made.
    #[error("this machine differs in {what}: {reason}")]
    Machine {
        /// What differs.
        what: String,
        /// Why it matters.
        reason: &'static str,
    },
}

impl From<FileError> for ProcessImageError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::System { path, error } => {
                Self::System { what: path.display().to_string(), error }
            }
            distrusted @ FileError::Distrusted { .. } => Self::Distrusted(distrusted),
        }
    }
}

impl ProcessImageError {
    /// The last system call's error.
    pub(crate) fn last(what: impl Into<String>) -> Self {
        Self::System { what: what.into(), error: std::io::Error::last_os_error() }
    }

    /// For `map_err`.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| Self::System { what, error }
    }
}
