//! How far a rank's output has come, on the disk: what was handed on ([`Ledger`], which survives
//! SIGKILL of everybody), and where the output was when a picture was taken ([`Mark`]).
//!
//! Positions count the bytes of a stream from the first start of the program on, through all its
//! restarts.

use crate::os;
use crate::os::SharedNumbers;
use core::sync::atomic::{Ordering, compiler_fence};
use rustbtl_fragments::ids::PeerId;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Standard output and standard error.
pub const STREAMS: usize = 2;
/// Folder of the ledgers in a job's folder. A restarted job goes on with those of the first one.
pub const FOLDER: &str = "output";
const MAGIC: &[u8; 8] = b"RBTLOUT2";
const CHECKSUM_BYTES: usize = 32;

/// What was handed on of each stream.
#[derive(Debug)]
pub struct Ledger(SharedNumbers<STREAMS>);

impl Ledger {
    /// The one of this rank in the job's folder, made if it is not there; and what it says.
    pub fn open(job: &Path, rank: PeerId) -> io::Result<(Self, [u64; STREAMS])> {
        let folder = job.join(FOLDER);
        os::make_folders(&folder)?;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(folder.join(format!("rank-{rank}")))?;
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

    /// It has come so far. The kernel keeps it, whatever becomes of this process.
    pub fn set(&self, stream: usize, position: u64) {
        self.0.number(stream).store(position, Ordering::Relaxed);
        // Not before what follows is handed on, nor after it.
        compiler_fence(Ordering::SeqCst);
    }
}

/// A stream at a line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// Bytes that the program had written.
    pub written: u64,
    /// The last of them, which had not been handed on.
    pub waiting: Vec<u8>,
    /// What is before these, as much as is kept: it may be lost on its way to mpirun.
    pub before: Vec<u8>,
}

impl Place {
    /// Bytes that had been handed on.
    pub fn handed_on(&self) -> u64 {
        self.written - self.waiting.len() as u64
    }
}

/// The streams at a line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mark(pub [Place; STREAMS]);

impl Mark {
    /// File of a rank in the folder of a line.
    pub fn file(line: &Path, rank: PeerId) -> PathBuf {
        line.join(format!("rank-{rank}.out"))
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        for Place { written, waiting, before } in &self.0 {
            out.extend(written.to_le_bytes());
            for bytes in [waiting, before] {
                out.extend((bytes.len() as u64).to_le_bytes());
                out.extend(bytes);
            }
        }
        let sum = Sha256::digest(&out);
        out.extend(sum);
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM_BYTES)?)?;
        let mut rest = body.strip_prefix(MAGIC).filter(|_| Sha256::digest(body)[..] == *sum)?;
        let mut mark = Self::default();
        for place in &mut mark.0 {
            place.written = number(&mut rest)?;
            for bytes in [&mut place.waiting, &mut place.before] {
                let length = usize::try_from(number(&mut rest)?).ok()?;
                let these;
                (these, rest) = rest.split_at_checked(length)?;
                *bytes = these.to_vec();
            }
        }
        let sane = |of: &Place| (of.waiting.len() + of.before.len()) as u64 <= of.written;
        let sane = mark.0.iter().all(sane);
        (rest.is_empty() && sane).then_some(mark)
    }

    /// Make it durable in the folder of a line.
    pub fn store(&self, line: &Path, rank: PeerId) -> io::Result<()> {
        let name = Self::file(line, rank);
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&name)?;
        file.write_all(&self.encode())?;
        file.sync_all()
    }

    /// The one of this rank; `None`: the line has none.
    pub fn read(line: &Path, rank: PeerId) -> io::Result<Option<Self>> {
        match std::fs::read(Self::file(line, rank)) {
            Ok(bytes) => match Self::decode(&bytes) {
                Some(mark) => Ok(Some(mark)),
                None => Err(io::Error::new(io::ErrorKind::InvalidData, "it is damaged")),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Have a rank's output printed again from a line on: the ledger goes back to it.
pub fn rewind(line: &Path, rank: PeerId) -> io::Result<()> {
    let (Some(mark), Some(job)) = (Mark::read(line, rank)?, line.parent()) else { return Ok(()) };
    let (ledger, _) = Ledger::open(job, rank)?;
    for (stream, place) in mark.0.iter().enumerate() {
        ledger.set(stream, place.handed_on());
    }
    Ok(())
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let (bytes, more) = rest.split_first_chunk()?;
    *rest = more;
    Some(u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_stored_and_refused_when_damaged() {
        let folder = std::env::temp_dir().join(format!("rustbtl-mark-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let rank = PeerId(3);
        assert_eq!(Mark::read(&folder, rank).unwrap(), None);
        let place = |written, waiting: &[u8], before: &[u8]| Place {
            written,
            waiting: waiting.to_vec(),
            before: before.to_vec(),
        };
        let mark = Mark([place(7, b"abc", b"defg"), place(1 << 40, b"", b"h")]);
        mark.store(&folder, rank).unwrap();
        assert_eq!(Mark::read(&folder, rank).unwrap(), Some(mark.clone()));
        let good = mark.encode();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(Mark::decode(&bad), None, "{at}");
            assert_eq!(Mark::decode(&good[..at]), None, "{at}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_ledger_goes_back_to_a_line() {
        let job = std::env::temp_dir().join(format!("rustbtl-rewind-{}", std::process::id()));
        let line = job.join("checkpoint-1");
        std::fs::create_dir_all(&line).unwrap();
        let place = |written, waiting: &[u8]| Place {
            written,
            waiting: waiting.to_vec(),
            before: vec![0; 2],
        };
        let rank = PeerId(2);
        Mark([place(70, b"abc"), place(5, b"")]).store(&line, rank).unwrap();
        let (ledger, _) = Ledger::open(&job, rank).unwrap();
        ledger.set(0, 900);
        ledger.set(1, 901);
        rewind(&line, rank).unwrap();
        assert_eq!(Ledger::open(&job, rank).unwrap().1, [67, 5]);
        std::fs::remove_dir_all(&job).unwrap();
    }

    #[test]
    fn a_ledger_says_what_was_said_to_it() {
        let folder = std::env::temp_dir().join(format!("rustbtl-ledger-{}", std::process::id()));
        let rank = PeerId(0);
        let (ledger, first) = Ledger::open(&folder, rank).unwrap();
        assert_eq!(first, [0, 0]);
        ledger.set(1, 9);
        assert_eq!(Ledger::open(&folder, rank).unwrap().1, [0, 9]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
