//! How one who has started a guardian knows that it ended as its rank did: it says so just before.
//! One that was killed says nothing, and its rank has not ended: it may be started again.
//!
//! A byte on a socket that is the guardian's standard input until it has taken it.

use crate::os;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};

/// For who starts a guardian: what it may still say.
#[derive(Debug)]
pub struct Awaited(UnixStream);

/// The two ends: one to keep, and the standard input of the guardian.
///
/// # Errors
/// No descriptors are left.
pub fn awaited() -> std::io::Result<(Awaited, Stdio)> {
    let (ours, theirs) = UnixStream::pair()?;
    // Others may hold the other end for a moment: nobody waits for its end.
    ours.set_nonblocking(true)?;
    Ok((Awaited(ours), OwnedFd::from(theirs).into()))
}

impl Awaited {
    /// Was it ended by a signal without a word? To be asked when it has ended.
    pub fn was_killed(&mut self, status: ExitStatus) -> bool {
        status.signal().is_some() && !self.0.read(&mut [0]).is_ok_and(|bytes| bytes == 1)
    }
}

/// The guardian's side.
#[derive(Debug)]
pub(super) struct LastWord(Option<File>);

impl LastWord {
    /// Of a guardian that orted has started, or of one that another one has.
    pub(super) fn new(adopted: bool) -> Self {
        Self(if adopted { os::take_stdin().ok().map(File::from) } else { None })
    }

    /// It ends as its rank has ended.
    pub(super) fn say(self) {
        if let Some(mut file) = self.0 {
            let _ = file.write_all(b".");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn killed(script: &str) -> bool {
        let (mut awaited, stdin) = awaited().unwrap();
        let mut child = Command::new("sh").args(["-c", script]).stdin(stdin).spawn().unwrap();
        awaited.was_killed(child.wait().unwrap())
    }

    #[test]
    fn only_who_is_ended_by_a_signal_without_a_word_was_killed() {
        assert!(killed("kill -9 $$"));
        assert!(killed("kill -15 $$"));
        assert!(!killed("printf . >&0; kill -9 $$"));
        assert!(!killed("exit 3"));
        assert!(!killed("printf . >&0"));
    }
}
