//! Why an image could not be written, read or restored.

use rustbtl_checkpoint::image::ImageError;

/// Why something outside went wrong.
#[derive(Debug)]
pub enum OutsideError {
    /// The image (or a description) cannot be used.
    Image(ImageError),
    /// A file or system call, with what was tried.
    System {
        /// What was tried, on what.
        what: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// The process that was being made was ended by a signal.
    Killed {
        /// Where it was, and the signal.
        what: String,
    },
    /// Something of the process that cannot be put back.
    Refused {
        /// What is in the way.
        what: String,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// An image cannot be used without another one.
    Base {
        /// The image.
        image: String,
        /// What it refers to.
        base: String,
        /// What is wrong with that.
        problem: String,
    },
    /// This machine is not like the one where the image was made.
    Machine {
        /// What differs.
        what: String,
        /// Why it matters.
        reason: &'static str,
    },
}

impl OutsideError {
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

impl core::fmt::Display for OutsideError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Image(error) => write!(f, "{error}"),
            Self::System { what, error } => write!(f, "{what}: {error}"),
            Self::Killed { what } => f.write_str(what),
            Self::Refused { what, reason } => write!(f, "{what}: {reason}"),
            Self::Base { image, base, problem } => {
                write!(f, "{image} needs {base}, which cannot be used: {problem}")
            }
            Self::Machine { what, reason } => {
                write!(f, "this machine differs in {what}: {reason}")
            }
        }
    }
}

impl std::error::Error for OutsideError {}

impl From<ImageError> for OutsideError {
    fn from(error: ImageError) -> Self {
        Self::Image(error)
    }
}
