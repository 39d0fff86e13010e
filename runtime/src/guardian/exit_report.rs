//! How a process that has started a guardian knows that it ended as its rank did: the guardian
//! reports that just before. One that was killed reports nothing, and its rank has not ended: it
//! may be restarted.
//!
//! The report is a byte on a socket that is the guardian's standard input at its start; or another
//! byte, and the reason why the rank could not be restored from its image.

use crate::os;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};

/// The first byte.
const ENDED: u8 = b'.';
const NOT_RESTORED: u8 = b'!';
/// Longest reason that is read.
const REASON_BYTES_MAX: u64 = 4000;

/// The end of the process that starts a guardian.
#[derive(Debug)]
pub struct ExitReportReader(UnixStream);

/// Both ends: the reader, and the standard input of the guardian.
///
/// # Errors
/// No descriptors are left.
pub fn channel() -> std::io::Result<(ExitReportReader, Stdio)> {
    let (ours, theirs) = UnixStream::pair()?;
    // Other processes may hold the other end for a moment: reading must not wait for them.
    ours.set_nonblocking(true)?;
    Ok((ExitReportReader(ours), OwnedFd::from(theirs).into()))
}

/// How a guardian has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExitReport {
    /// As its rank has ended.
    Ended,
    /// By a signal, without a report.
    Killed,
    /// The rank could not be restored, for this reason.
    NotRestored(String),
}

impl ExitReportReader {
    /// Reads the report, once, when the guardian has ended.
    pub fn read(&mut self, status: ExitStatus) -> ExitReport {
        let mut bytes = Vec::new();
        // Another process may still hold the other end: there may be no end of file.
        let _ = (&self.0).take(REASON_BYTES_MAX).read_to_end(&mut bytes);
        match bytes.split_first() {
            Some((&ENDED, _)) => ExitReport::Ended,
            Some((_, reason)) => {
                ExitReport::NotRestored(String::from_utf8_lossy(reason).into_owned())
            }
            None if status.signal().is_some() => ExitReport::Killed,
            None => ExitReport::Ended,
        }
    }
}

/// The guardian's end.
#[derive(Debug)]
pub(crate) struct ExitReporter(Option<File>);

impl ExitReporter {
    /// Of a guardian that another one has started (`adopted`), or orted, which reads no report.
    pub(crate) fn new(adopted: bool) -> Self {
        Self(if adopted { os::take_stdin().ok().map(File::from) } else { None })
    }

    /// Reports that it ends as its rank has ended.
    pub(crate) fn report_end(self) {
        if let Some(mut file) = self.0 {
            let _ = file.write_all(&[ENDED]);
        }
    }

    /// Reports that the rank could not be restored. Returns the reason if nobody reads it.
    pub(crate) fn report_not_restored(self, reason: String) -> Result<(), String> {
        let Some(mut file) = self.0 else { return Err(reason) };
        let report = [&[NOT_RESTORED], reason.as_bytes()].concat();
        file.write_all(&report).map_err(|_| reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn report(script: &str) -> ExitReport {
        let (mut reader, stdin) = channel().unwrap();
        let mut child = Command::new("sh").args(["-c", script]).stdin(stdin).spawn().unwrap();
        reader.read(child.wait().unwrap())
    }

    fn killed(script: &str) -> bool {
        report(script) == ExitReport::Killed
    }

    #[test]
    fn only_a_guardian_that_ends_by_a_signal_without_a_report_was_killed() {
        assert!(killed("kill -9 $$"));
        assert!(killed("kill -15 $$"));
        assert!(!killed("printf . >&0; kill -9 $$"));
        assert!(!killed("exit 3"));
        assert!(!killed("printf . >&0"));
    }

    #[test]
    fn why_a_rank_could_not_be_restored_is_read() {
        let reason = ExitReport::NotRestored("it is cut off".into());
        assert_eq!(report("printf '!it is cut off' >&0; exit 1"), reason);
        assert_eq!(report("exit 1"), ExitReport::Ended);
    }
}
