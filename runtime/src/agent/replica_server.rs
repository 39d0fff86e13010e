//! Where agents of other nodes bring copies of images: a listener of its own, with threads of its
//! own, so that control messages wait for nothing here.
//!
//! 1. Nothing is parsed before the other end has proved that it knows the job's secret.
//! 2. What is not whole has a temporary name; a copy has its names when all its files are whole,
//!    checked and durable, the image last.

use crate::agent::stream::Patient;
use crate::auth::{Host, Progress, Secret, Stranger};
use crate::guardian::images;
use crate::local;
use crate::os;
use crate::os::Poll;
use rustbtl_coordination::control::{CheckpointId, FromReplicaServer, ToReplicaServer};
use rustbtl_coordination::image_transfer::{ImagePart, TransferReceiver, TransferStep};
use rustbtl_fragments::ids::PeerId;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a stranger may take to prove that it belongs to the job.
const STRANGER_PATIENCE: Duration = Duration::from_secs(5);
/// Strangers at a time; further ones wait in the kernel's queue.
const STRANGERS_MAX: usize = 16;
/// Copies that are taken in at a time; each has a few MiB on the way.
const RECEIVERS_MAX: usize = 16;

/// Listens from now on, for as long as this process lives: the port.
pub fn open(folder: &Path, secret: Secret) -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let folder: Arc<Path> = folder.into();
    thread::Builder::new().name("shelf".into()).spawn(move || {
        let _ = attend(&listener, &folder, &secret);
    })?;
    Ok(port)
}

fn attend(listener: &TcpListener, folder: &Arc<Path>, secret: &Secret) -> io::Result<()> {
    let mut strangers: Vec<Stranger> = Vec::new();
    let receivers = Arc::new(AtomicUsize::new(0));
    loop {
        let mut poll = Poll::default();
        let room = strangers.len() < STRANGERS_MAX;
        let come = room.then(|| poll.add(listener.as_raw_fd(), false));
        for stranger in &strangers {
            poll.add(stranger.stream().as_raw_fd(), false);
        }
        poll.wait(strangers.iter().map(|stranger| stranger.until).min())?;
        let now = Instant::now();
        for mut stranger in core::mem::take(&mut strangers) {
            match stranger.drive(secret) {
                Progress::Proved => serve(stranger.into_stream(), folder, &receivers),
                Progress::Waiting if stranger.until > now => strangers.push(stranger),
                Progress::Waiting | Progress::Refused(_) => {}
            }
        }
        if come.is_some_and(|place| poll.is_ready(place))
            && let Ok((stream, _)) = listener.accept()
        {
            strangers.extend(Stranger::new(Host::Shelf, stream, STRANGER_PATIENCE));
        }
    }
}

/// In a thread of its own.
fn serve(stream: TcpStream, folder: &Arc<Path>, receivers: &Arc<AtomicUsize>) {
    let Ok(mut stream) = Patient::new(stream) else { return };
    let (folder, receivers) = (Arc::clone(folder), Arc::clone(receivers));
    if receivers.fetch_add(1, Ordering::Relaxed) >= RECEIVERS_MAX {
        receivers.fetch_sub(1, Ordering::Relaxed);
        let reason = "too many copies come at the same time".into();
        let _ = stream.send(&FromReplicaServer::Refused { reason });
        return drop(thread::spawn(|| stream.drain()));
    }
    thread::spawn(move || {
        os::be_slow();
        let mut copy = Copy::new(&folder);
        let done = copy.take(|| stream.receive());
        // Before anybody hears of it.
        if done.is_err() {
            copy.discard();
        }
        let answer = match done {
            Ok(()) => FromReplicaServer::Stored {},
            Err(reason) => {
                FromReplicaServer::Refused { reason: format!("node {}: {reason}", os::hostname()) }
            }
        };
        receivers.fetch_sub(1, Ordering::Relaxed);
        let _ = stream.send(&answer);
        stream.drain();
    });
}

/// Name of a part in the folder of its line.
pub fn part_name(rank: PeerId, part: ImagePart) -> String {
    match part {
        ImagePart::Image => images::file_name(rank),
        ImagePart::Base(number) => format!("{}.base-{number}", images::file_name(rank)),
        ImagePart::Output => format!("rank-{rank}.out"),
    }
}

struct Open {
    file: File,
    digest: Sha256,
}

/// A copy that is being taken in.
struct Copy<'a> {
    number: usize,
    folder: &'a Path,
    receipt: TransferReceiver,
    of: Option<(PeerId, PathBuf)>,
    open: Option<Open>,
    /// Those that have begun.
    parts: Vec<ImagePart>,
}

impl<'a> Copy<'a> {
    fn new(folder: &'a Path) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let (number, receipt) = (NEXT.fetch_add(1, Ordering::Relaxed), TransferReceiver::default());
        Self { number, folder, receipt, of: None, open: None, parts: Vec::new() }
    }

    /// All of it, until it is safe.
    fn take(
        &mut self,
        mut next: impl FnMut() -> Result<ToReplicaServer, String>,
    ) -> Result<(), String> {
        loop {
            let step = self.receipt.handle(next()?).map_err(|error| error.to_string())?;
            match step {
                TransferStep::Begin { rank, checkpoint: line } => self.begin(rank, line)?,
                TransferStep::Open { part, bytes } => self.start(part, bytes)?,
                TransferStep::Write(bytes) => self.write(&bytes)?,
                TransferStep::Close(digest) => self.close(&digest)?,
                TransferStep::Commit => return self.commit(),
            }
        }
    }

    fn place(&self) -> Result<(PeerId, &Path), String> {
        let (rank, line) = self.of.as_ref().ok_or("nothing has begun")?;
        Ok((*rank, line))
    }

    /// Of no other copy, of this image, either.
    fn draft(&self, line: &Path, rank: PeerId, part: ImagePart) -> PathBuf {
        line.join(format!("{}.copy-{}", part_name(rank, part), self.number))
    }

    fn begin(&mut self, rank: PeerId, line: CheckpointId) -> Result<(), String> {
        let folder = self.folder.join(format!("checkpoint-{line}"));
        // Only below what is there: with the job's last guardian that goes.
        os::private_directory(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        self.of = Some((rank, folder));
        Ok(())
    }

    fn start(&mut self, part: ImagePart, bytes: u64) -> Result<(), String> {
        let (rank, line) = self.place()?;
        local::check_room(line, bytes)?;
        let path = self.draft(line, rank, part);
        self.parts.push(part);
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        self.open = Some(Open { file, digest: Sha256::new() });
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        let open = self.open.as_mut().ok_or("no file is open")?;
        open.digest.update(bytes);
        open.file.write_all(bytes).map_err(|error| format!("writing a copy: {error}"))
    }

    fn close(&mut self, digest: &[u8]) -> Result<(), String> {
        let Open { file, digest: found } = self.open.take().ok_or("no file is open")?;
        if found.finalize()[..] != *digest {
            return Err("what arrived has another checksum than what was sent".into());
        }
        file.sync_all().map_err(|error| format!("flushing a copy: {error}"))
    }

    fn commit(&mut self) -> Result<(), String> {
        let (rank, line) = self.place()?;
        let mut parts = self.parts.clone();
        // The image last (2).
        parts.sort_unstable_by_key(|part| (*part == ImagePart::Image, *part));
        for part in parts {
            let name = line.join(part_name(rank, part));
            fs::rename(self.draft(line, rank, part), &name)
                .map_err(|error| format!("{}: {error}", name.display()))?;
        }
        os::sync_directory(line).map_err(|error| format!("{}: {error}", line.display()))
    }

    /// What is not whole goes.
    fn discard(&mut self) {
        let Some((rank, line)) = &self.of else { return };
        for part in &self.parts {
            let _ = fs::remove_file(self.draft(line, *rank, *part));
        }
        let _ = fs::remove_dir(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn scratch(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("rustbtl-shelf-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    fn messages(image: &[u8], digest_of: &[u8]) -> VecDeque<ToReplicaServer> {
        let file = |part: ImagePart, bytes: &[u8], digest_of: &[u8]| {
            [
                ToReplicaServer::File { part: part.number(), bytes: bytes.len() as u64 },
                ToReplicaServer::Piece { bytes: bytes.to_vec() },
                ToReplicaServer::Digest { sha256: Sha256::digest(digest_of).to_vec() },
            ]
        };
        [ToReplicaServer::Begin { rank: PeerId(3), checkpoint: CheckpointId(2) }]
            .into_iter()
            .chain(file(ImagePart::Base(1), b"older", b"older"))
            .chain(file(ImagePart::Image, image, digest_of))
            .chain([ToReplicaServer::Commit {}])
            .collect()
    }

    fn take(folder: &Path, mut messages: VecDeque<ToReplicaServer>) -> Result<(), String> {
        let mut copy = Copy::new(folder);
        let done = copy.take(|| messages.pop_front().ok_or_else(|| "the end".to_owned()));
        if done.is_err() {
            copy.discard();
        }
        done
    }

    #[test]
    fn a_copy_has_its_names_when_it_is_whole_and_not_before() {
        let folder = scratch("whole");
        let whole = messages(b"image", b"image");
        for cut in 0..whole.len() {
            assert!(take(&folder, whole.iter().take(cut).cloned().collect()).is_err());
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "cut after {cut}");
        }
        take(&folder, whole).unwrap();
        let line = folder.join("checkpoint-2");
        assert_eq!(fs::read(line.join("rank-3.img")).unwrap(), b"image");
        assert_eq!(fs::read(line.join("rank-3.img.base-1")).unwrap(), b"older");
        assert_eq!(fs::read_dir(&line).unwrap().count(), 2);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_changed_byte_is_noticed_and_an_older_copy_stays() {
        let folder = scratch("changed");
        take(&folder, messages(b"image", b"image")).unwrap();
        let why = take(&folder, messages(b"imagE", b"image")).unwrap_err();
        assert!(why.contains("checksum"), "{why}");
        assert_eq!(fs::read(folder.join("checkpoint-2/rank-3.img")).unwrap(), b"image");
        assert_eq!(fs::read_dir(folder.join("checkpoint-2")).unwrap().count(), 2);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_does_not_fit_is_refused_before_it_comes() {
        let folder = scratch("room");
        let begin = ToReplicaServer::Begin { rank: PeerId(3), checkpoint: CheckpointId(2) };
        let why = take(&folder, [begin, ToReplicaServer::File { part: 0, bytes: u64::MAX }].into());
        assert!(why.unwrap_err().contains("has no room"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::remove_dir_all(&folder).unwrap();
    }
}
