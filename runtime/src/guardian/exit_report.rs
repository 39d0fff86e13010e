//! How one who has started a guardian knows that it ended as its rank did: it says so just before.
//! One that was killed says nothing, and its rank has not ended: it may be started again.
//!
//! A byte on a socket that is the guardian's standard input until it has taken it; in place of it,
//! why the rank could not be made from its image.

use crate::os;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};

/// What the first byte says.
const ENDED: u8 = b'.';
const NOT_RESTORED: u8 = b'!';
/// Longest reason that is heard.
const REASON_BYTES_MAX: u64 = 4000;

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

/// The last word of a guardian that has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Word {
    /// It has ended as its rank has.
    Ended,
    /// None: it was ended by a signal.
    Killed,
    /// The rank could not be made, for this reason.
    NotRestored(String),
}

impl Awaited {
    /// To be asked once, when it has ended.
    pub fn word(&mut self, status: ExitStatus) -> Word {
        let mut bytes = Vec::new();
        // Whoever still holds the other end says nothing: there may be no end of it.
        let _ = (&self.0).take(REASON_BYTES_MAX).read_to_end(&mut bytes);
        match bytes.split_first() {
            Some((&ENDED, _)) => Word::Ended,
            Some((_, reason)) => Word::NotRestored(String::from_utf8_lossy(reason).into_owned()),
            None if status.signal().is_some() => Word::Killed,
            None => Word::Ended,
        }
    }
}

/// The guardian's side.
#[derive(Debug)]
pub(crate) struct LastWord(Option<File>);

impl LastWord {
    /// Of a guardian that orted has started, or of one that another one has.
    pub(crate) fn new(adopted: bool) -> Self {
        Self(if adopted { os::take_stdin().ok().map(File::from) } else { None })
    }

    /// It ends as its rank has ended.
    pub(crate) fn say(self) {
        if let Some(mut file) = self.0 {
            let _ = file.write_all(&[ENDED]);
        }
    }

    /// The rank could not be made. The reason comes back if nobody hears it.
    pub(crate) fn not_restored(self, reason: String) -> Result<(), String> {
        let Some(mut file) = self.0 else { return Err(reason) };
        let word = [&[NOT_RESTORED], reason.as_bytes()].concat();
        file.write_all(&word).map_err(|_| reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn word(script: &str) -> Word {
        let (mut awaited, stdin) = awaited().unwrap();
        let mut child = Command::new("sh").args(["-c", script]).stdin(stdin).spawn().unwrap();
        awaited.word(child.wait().unwrap())
    }

    fn killed(script: &str) -> bool {
        word(script) == Word::Killed
    }

    #[test]
    fn only_who_is_ended_by_a_signal_without_a_word_was_killed() {
        assert!(killed("kill -9 $$"));
        assert!(killed("kill -15 $$"));
        assert!(!killed("printf . >&0; kill -9 $$"));
        assert!(!killed("exit 3"));
        assert!(!killed("printf . >&0"));
    }

    #[test]
    fn why_a_rank_could_not_be_made_is_heard() {
        let reason = Word::NotRestored("it is cut off".into());
        assert_eq!(word("printf '!it is cut off' >&0; exit 1"), reason);
        assert_eq!(word("exit 1"), Word::Ended);
    }
}
