//! Positions of a rank's output on the disk: how much was forwarded ([`OutputLedger`], which
//! survives SIGKILL of all processes), and where it was at a snapshot ([`OutputMark`]).
//!
//! Positions count the bytes of a stream from the first start of the program on, through all its
//! restarts.

use crate::guardian::input::InputMark;
use crate::os::SharedNumbers;
use crate::store;
use core::sync::atomic::{Ordering, compiler_fence};
use rustbtl_fragments::ids::PeerId;
use rustbtl_fragments::little_endian::{LittleEndian, take_bytes};
use rustbtl_process::private_files::Folder;
use sha2::{Digest, Sha256};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Standard output and standard error.
pub const STREAMS: usize = 2;
/// Folder of the ledgers in a job's folder. A restarted job continues those of the first one.
pub const FOLDER: &str = "output";
const MAGIC: &[u8; 8] = b"RBTLOUT3";
/// Without the position of standard input.
const OLDER_MAGIC: &[u8; 8] = b"RBTLOUT2";
const CHECKSUM_BYTES: usize = 32;
/// Longest mark that is read: what waits and what is kept of both streams is less than 16 MiB.
const MARK_BYTES_MAX: u64 = 64 << 20;

/// How much of each stream was forwarded.
#[derive(Debug)]
pub struct OutputLedger(SharedNumbers<STREAMS>);

impl OutputLedger {
    /// Opens the one of this rank in the job's folder, or makes it; returns its counts, too.
    pub fn open(job: &Path, rank: PeerId) -> io::Result<(Self, [u64; STREAMS])> {
        let job = store::enter_job(job)?;
        // A restarted job has a link to the folder of the job that it continues.
        let folder = match job.link(FOLDER) {
            Some(continued) => Folder::open(&continued)?,
            None => job.folder_or_new(FOLDER)?,
        };
        let file = folder.file_or_new(format!("rank-{rank}"))?;
        // Written out: a full disk is noticed here, not when a number is set.
        let mut page = [0; SharedNumbers::<STREAMS>::BYTES];
        let found = file.read_at(&mut page, 0)?;
        if found < page.len() {
            page.fill(0);
            file.write_all_at(&page, 0)?;
            file.sync_all()?;
        }
        let numbers = SharedNumbers::map(&file)?;
        let known = [0, 1].map(|at| numbers.number(at).load(Ordering::Relaxed));
        Ok((Self(numbers), known))
    }

    /// Sets a count. It is in shared memory: it outlives this process however it ends.
    pub fn set(&self, stream: usize, position: u64) {
        self.0.number(stream).store(position, Ordering::Relaxed);
        // In program order with the write that forwards the bytes.
        compiler_fence(Ordering::SeqCst);
    }
}

/// Position of a stream at a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamMark {
    /// Bytes that the program had written.
    pub written: u64,
    /// The last of them, which had not been forwarded.
    pub waiting: Vec<u8>,
    /// The last of what had been forwarded: it may be lost on its way to mpirun.
    pub before: Vec<u8>,
}

impl StreamMark {
    /// Bytes that had been forwarded.
    pub fn forwarded(&self) -> u64 {
        self.written - self.waiting.len() as u64
    }

    /// Position of the oldest byte that is kept.
    pub fn oldest(&self) -> u64 {
        self.forwarded() - self.before.len() as u64
    }
}

/// Positions of both streams at a checkpoint, and of standard input.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OutputMark(pub [StreamMark; STREAMS], pub InputMark);

impl OutputMark {
    /// Name of a rank's file in the folder of a checkpoint.
    pub fn file(rank: PeerId) -> String {
        format!("rank-{rank}.out")
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        for StreamMark { written, waiting, before } in &self.0 {
            written.append(&mut out);
            for bytes in [waiting, before] {
                (bytes.len() as u64).append(&mut out);
                out.extend(bytes);
            }
        }
        self.1.append(&mut out);
        let sum = Sha256::digest(&out);
        out.extend(sum);
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM_BYTES)?)?;
        let knows_input = body.starts_with(MAGIC);
        let magic = if knows_input { MAGIC } else { OLDER_MAGIC };
        let mut rest = body.strip_prefix(magic).filter(|_| Sha256::digest(body)[..] == *sum)?;
        let mut mark = Self::default();
        for stream in &mut mark.0 {
            stream.written = u64::take_from(&mut rest)?;
            for bytes in [&mut stream.waiting, &mut stream.before] {
                let length = usize::try_from(u64::take_from(&mut rest)?).ok()?;
                *bytes = take_bytes(&mut rest, length)?.to_vec();
            }
        }
        if knows_input {
            mark.1 = InputMark::take(&mut rest)?;
        }
        let sane = |of: &StreamMark| (of.waiting.len() + of.before.len()) as u64 <= of.written;
        let sane = mark.0.iter().all(sane);
        (rest.is_empty() && sane).then_some(mark)
    }

    /// Make it durable in the folder of a checkpoint.
    pub fn store(&self, checkpoint: &Path, rank: PeerId) -> io::Result<()> {
        let mut file = Folder::open(checkpoint)?.create_file_anew(Self::file(rank))?;
        file.write_all(&self.encode())?;
        file.sync_all()
    }

    /// The one of this rank; `None`: the checkpoint has none.
    pub fn read(checkpoint: &Path, rank: PeerId) -> io::Result<Option<Self>> {
        let folder = Folder::open(checkpoint);
        match folder.and_then(|folder| folder.read(Self::file(rank), MARK_BYTES_MAX)) {
            Ok(bytes) => match Self::decode(&bytes) {
                Some(mark) => Ok(Some(mark)),
                None => Err(io::Error::new(io::ErrorKind::InvalidData, "it is damaged")),
            },
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Sets a rank's ledger back to a checkpoint, so that output after it is printed again.
pub fn rewind(checkpoint: &Path, rank: PeerId) -> io::Result<()> {
    let (Some(mark), Some(job)) = (OutputMark::read(checkpoint, rank)?, checkpoint.parent()) else {
        return Ok(());
    };
    let (ledger, _) = OutputLedger::open(job, rank)?;
    for (stream, at) in mark.0.iter().enumerate() {
        ledger.set(stream, at.forwarded());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_stored_and_refused_when_damaged() {
        let folder = std::env::temp_dir().join(format!("rustbtl-mark-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let rank = PeerId(3);
        assert_eq!(OutputMark::read(&folder, rank).unwrap(), None);
        let stream = |written, waiting: &[u8], before: &[u8]| StreamMark {
            written,
            waiting: waiting.to_vec(),
            before: before.to_vec(),
        };
        let input = InputMark { read: 5, waiting: b"xy".into(), ended: true };
        let streams = [stream(7, b"abc", b"defg"), stream(1 << 40, b"", b"h")];
        let mark = OutputMark(streams, input);
        mark.store(&folder, rank).unwrap();
        assert_eq!(OutputMark::read(&folder, rank).unwrap(), Some(mark.clone()));
        let good = mark.encode();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(OutputMark::decode(&bad), None, "{at}");
            assert_eq!(OutputMark::decode(&good[..at]), None, "{at}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_ledger_is_set_back_to_a_checkpoint() {
        let job = std::env::temp_dir().join(format!("rustbtl-rewind-{}", std::process::id()));
        let checkpoint = job.join("checkpoint-1");
        std::fs::create_dir_all(&checkpoint).unwrap();
        let stream = |written, waiting: &[u8]| StreamMark {
            written,
            waiting: waiting.to_vec(),
            before: vec![0; 2],
        };
        let rank = PeerId(2);
        OutputMark([stream(70, b"abc"), stream(5, b"")], InputMark::default())
            .store(&checkpoint, rank)
            .unwrap();
        let (ledger, _) = OutputLedger::open(&job, rank).unwrap();
        ledger.set(0, 900);
        ledger.set(1, 901);
        rewind(&checkpoint, rank).unwrap();
        assert_eq!(OutputLedger::open(&job, rank).unwrap().1, [67, 5]);
        std::fs::remove_dir_all(&job).unwrap();
    }

    #[test]
    fn a_ledger_keeps_its_counts() {
        let folder = std::env::temp_dir().join(format!("rustbtl-ledger-{}", std::process::id()));
        let rank = PeerId(0);
        let (ledger, first) = OutputLedger::open(&folder, rank).unwrap();
        assert_eq!(first, [0, 0]);
        ledger.set(1, 9);
        assert_eq!(OutputLedger::open(&folder, rank).unwrap().1, [0, 9]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_others_could_have_changed_is_not_used() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let job = std::env::temp_dir().join(format!("rustbtl-marks-{}", std::process::id()));
        let checkpoint = job.join("checkpoint-1");
        std::fs::create_dir_all(&checkpoint).unwrap();
        let rank = PeerId(2);
        OutputMark::default().store(&checkpoint, rank).unwrap();
        drop(OutputLedger::open(&job, rank).unwrap());
        let allow = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let (mark, ledger) = (checkpoint.join("rank-2.out"), job.join("output/rank-2"));
        [&mark, &ledger].iter().for_each(|path| allow(path, 0o620));
        let why = OutputMark::read(&checkpoint, rank).unwrap_err().to_string();
        assert!(why.contains("chmod g-w"), "{why}");
        let why = OutputLedger::open(&job, rank).unwrap_err().to_string();
        assert!(why.contains("chmod g-w"), "{why}");
        // A restarted job has a link to the folder of the one before; that is checked, too.
        let next = job.join("next");
        std::fs::create_dir(&next).unwrap();
        symlink(job.join("output"), next.join(FOLDER)).unwrap();
        allow(&ledger, 0o600);
        assert!(OutputLedger::open(&next, rank).is_ok());
        allow(&job.join("output"), 0o770);
        assert!(OutputLedger::open(&next, rank).is_err());
        std::fs::remove_dir_all(&job).unwrap();
    }
}
