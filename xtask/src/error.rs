//! One error type: a message that says what failed, on what, and what to do.

use std::fmt;
use std::process::ExitCode;

/// Why a command of xtask ended early, in words for the person who typed it.
#[derive(Debug)]
pub struct Failure(pub String);

/// What every step of xtask returns.
pub type Result<T> = std::result::Result<T, Failure>;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Makes a [`Failure`] with `format!`'s arguments.
macro_rules! failure {
    ($($arg:tt)*) => { $crate::error::Failure(format!($($arg)*)) };
}
pub(crate) use failure;

/// Leaves the function with a [`Failure`].
macro_rules! fail {
    ($($arg:tt)*) => { return Err($crate::error::failure!($($arg)*)) };
}
pub(crate) use fail;

/// Puts what was attempted, and on what, in front of the cause.
pub trait Context<T> {
    /// The message becomes "`what`: cause".
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|cause| failure!("{}: {cause}", what()))
    }
}

/// A line on standard error, in one piece: jobs write to the same place at the same time, and
/// `eprintln!` writes each of its arguments by itself.
macro_rules! say {
    ($($arg:tt)*) => {{
        let text = format!("xtask: {}\n", format_args!($($arg)*));
        let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
    }};
}
pub(crate) use say;

/// Prints a failure the way all of xtask does and gives the exit code for it.
pub fn report(failure: &Failure, code: u8) -> ExitCode {
    say!("{failure}");
    ExitCode::from(code)
}
