//! Receives replicas of images from agents of other nodes. It has a listener and threads of its
//! own, so that control messages never wait for it.
//!
//! 1. Nothing is parsed before the peer is authenticated with the job's secret.
//! 2. An incomplete file has a temporary name. A replica gets its names when all its files are
//!    complete, checked and durable; the image is last.

use crate::agent::stream::BlockingStream;
use crate::auth::{AuthenticatedStream, Host, Secret};
use crate::guardian::images;
use crate::half_open::{HalfOpenPeers, Outcome};
use crate::listen::Listeners;
use crate::local;
use crate::os;
use crate::os::Poll;
use rustbtl_coordination::control::{CheckpointId, FromReplicaServer, ToReplicaServer};
use rustbtl_coordination::image_transfer::{ImagePart, TransferReceiver, TransferStep};
use rustbtl_fragments::ids::PeerId;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Unauthenticated peers at a time.
const UNAUTHENTICATED_MAX: usize = 16;
/// Replicas that are received at a time; each has a few MiB in flight.
const RECEIVERS_MAX: usize = 16;

/// Listens as long as this process lives, at the port that is returned.
pub fn open(folder: &Path, secret: Secret, hosts: &[IpAddr]) -> io::Result<u16> {
    let listeners = Listeners::open(hosts, 0)?;
    let port = listeners.port();
    let folder: Arc<Path> = folder.into();
    thread::Builder::new().name("replica-server".into()).spawn(move || {
        let _ = accept_peers(&listeners, &folder, &secret);
    })?;
    Ok(port)
}

fn accept_peers(listeners: &Listeners, folder: &Arc<Path>, secret: &Secret) -> io::Result<()> {
    let mut peers = HalfOpenPeers::new(Host::ReplicaServer, UNAUTHENTICATED_MAX);
    let receivers = Arc::new(AtomicUsize::new(0));
    loop {
        let mut poll = Poll::default();
        let come = listeners.poll(&mut poll);
        peers.poll(&mut poll);
        poll.wait(peers.deadline())?;
        if come.iter().any(|&slot| poll.is_ready(slot)) {
            peers.accept(listeners);
        }
        for outcome in peers.advance(secret) {
            if let Outcome::Authenticated(stream) = outcome {
                serve(stream, folder, &receivers);
            }
        }
    }
}

/// Receives one replica, in a thread of its own.
fn serve(stream: AuthenticatedStream, folder: &Arc<Path>, receivers: &Arc<AtomicUsize>) {
    let Ok(mut stream) = BlockingStream::new(stream) else { return };
    let (folder, receivers) = (Arc::clone(folder), Arc::clone(receivers));
    if receivers.fetch_add(1, Ordering::Relaxed) >= RECEIVERS_MAX {
        receivers.fetch_sub(1, Ordering::Relaxed);
        let reason = "too many replicas are sent at the same time".into();
        let _ = stream.send(&FromReplicaServer::Refused { reason });
        return drop(thread::spawn(|| stream.drain()));
    }
    thread::spawn(move || {
        os::lower_priority();
        let mut replica = IncomingReplica::new(&folder);
        let done = replica.receive(|| stream.receive());
        // Before the answer.
        if done.is_err() {
            replica.discard();
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

/// Name of a part in the folder of its checkpoint.
pub fn part_name(rank: PeerId, part: ImagePart) -> String {
    match part {
        ImagePart::Image => images::file_name(rank),
        ImagePart::Base(number) => format!("{}.base-{number}", images::file_name(rank)),
        ImagePart::Output => format!("rank-{rank}.out"),
    }
}

/// The file that is being written.
struct OpenFile {
    file: File,
    /// Of what was written. The connection proves already who has sent it and that nobody has
    /// changed it on its way; this finds what went wrong at either end.
    checksum: crc32fast::Hasher,
}

/// A replica that is being received.
struct IncomingReplica<'a> {
    number: usize,
    folder: &'a Path,
    receiver: TransferReceiver,
    /// Its rank, and the folder of its checkpoint.
    target: Option<(PeerId, PathBuf)>,
    open: Option<OpenFile>,
    /// Parts of which the transfer has begun.
    parts: Vec<ImagePart>,
}

impl<'a> IncomingReplica<'a> {
    fn new(folder: &'a Path) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let (number, receiver) =
            (NEXT.fetch_add(1, Ordering::Relaxed), TransferReceiver::default());
        Self { number, folder, receiver, target: None, open: None, parts: Vec::new() }
    }

    /// Receives all of it, until it is durable.
    fn receive(
        &mut self,
        mut next: impl FnMut() -> Result<ToReplicaServer, String>,
    ) -> Result<(), String> {
        loop {
            let step = self.receiver.handle(next()?).map_err(|error| error.to_string())?;
            match step {
                TransferStep::Begin { rank, checkpoint } => self.begin(rank, checkpoint)?,
                TransferStep::Open { part, bytes } => self.start(part, bytes)?,
                TransferStep::Write(bytes) => self.write(&bytes)?,
                TransferStep::Close(crc32) => self.close(crc32)?,
                TransferStep::Commit => return self.commit(),
            }
        }
    }

    fn target(&self) -> Result<(PeerId, &Path), String> {
        let (rank, checkpoint) = self.target.as_ref().ok_or("nothing has begun")?;
        Ok((*rank, checkpoint))
    }

    /// Temporary name, used by no other replica, not even of this image.
    fn temporary(&self, checkpoint: &Path, rank: PeerId, part: ImagePart) -> PathBuf {
        checkpoint.join(format!("{}.copy-{}", part_name(rank, part), self.number))
    }

    fn begin(&mut self, rank: PeerId, checkpoint: CheckpointId) -> Result<(), String> {
        let folder = self.folder.join(format!("checkpoint-{checkpoint}"));
        // The job's folder is not made here: its last guardian removes it.
        os::private_directory(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        self.target = Some((rank, folder));
        Ok(())
    }

    fn start(&mut self, part: ImagePart, bytes: u64) -> Result<(), String> {
        let (rank, checkpoint) = self.target()?;
        local::check_room(checkpoint, bytes)?;
        let path = self.temporary(checkpoint, rank, part);
        self.parts.push(part);
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        self.open = Some(OpenFile { file, checksum: crc32fast::Hasher::new() });
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        let open = self.open.as_mut().ok_or("no file is open")?;
        open.checksum.update(bytes);
        open.file.write_all(bytes).map_err(|error| format!("writing a replica: {error}"))
    }

    fn close(&mut self, crc32: u32) -> Result<(), String> {
        let OpenFile { file, checksum } = self.open.take().ok_or("no file is open")?;
        if checksum.finalize() != crc32 {
            return Err("what arrived has another checksum than what was sent".into());
        }
        file.sync_all().map_err(|error| format!("flushing a replica: {error}"))
    }

    fn commit(&mut self) -> Result<(), String> {
        let (rank, checkpoint) = self.target()?;
        let mut parts = self.parts.clone();
        // The image last (2).
        parts.sort_unstable_by_key(|part| (*part == ImagePart::Image, *part));
        for part in parts {
            let name = checkpoint.join(part_name(rank, part));
            fs::rename(self.temporary(checkpoint, rank, part), &name)
                .map_err(|error| format!("{}: {error}", name.display()))?;
        }
        os::sync_directory(checkpoint).map_err(|error| format!("{}: {error}", checkpoint.display()))
    }

    /// Removes incomplete files.
    fn discard(&mut self) {
        let Some((rank, checkpoint)) = &self.target else { return };
        for part in &self.parts {
            let _ = fs::remove_file(self.temporary(checkpoint, *rank, *part));
        }
        let _ = fs::remove_dir(checkpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn scratch(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("rustbtl-replica-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    fn messages(image: &[u8], checksum_of: &[u8]) -> VecDeque<ToReplicaServer> {
        let file = |part: ImagePart, bytes: &[u8], checksum_of: &[u8]| {
            [
                ToReplicaServer::File { part: part.number(), bytes: bytes.len() as u64 },
                ToReplicaServer::Piece { bytes: bytes.to_vec() },
                ToReplicaServer::Checksum { crc32: crc32fast::hash(checksum_of) },
            ]
        };
        [ToReplicaServer::Begin { rank: PeerId(3), checkpoint: CheckpointId(2) }]
            .into_iter()
            .chain(file(ImagePart::Base(1), b"older", b"older"))
            .chain(file(ImagePart::Image, image, checksum_of))
            .chain([ToReplicaServer::Commit {}])
            .collect()
    }

    fn receive(folder: &Path, mut messages: VecDeque<ToReplicaServer>) -> Result<(), String> {
        let mut replica = IncomingReplica::new(folder);
        let done = replica.receive(|| messages.pop_front().ok_or_else(|| "the end".to_owned()));
        if done.is_err() {
            replica.discard();
        }
        done
    }

    #[test]
    fn a_replica_has_its_names_when_it_is_complete_and_not_before() {
        let folder = scratch("complete");
        let complete = messages(b"image", b"image");
        for cut in 0..complete.len() {
            assert!(receive(&folder, complete.iter().take(cut).cloned().collect()).is_err());
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "cut after {cut}");
        }
        receive(&folder, complete).unwrap();
        let checkpoint = folder.join("checkpoint-2");
        assert_eq!(fs::read(checkpoint.join("rank-3.img")).unwrap(), b"image");
        assert_eq!(fs::read(checkpoint.join("rank-3.img.base-1")).unwrap(), b"older");
        assert_eq!(fs::read_dir(&checkpoint).unwrap().count(), 2);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_changed_byte_is_noticed_and_an_older_replica_stays() {
        let folder = scratch("changed");
        receive(&folder, messages(b"image", b"image")).unwrap();
        let why = receive(&folder, messages(b"imagE", b"image")).unwrap_err();
        assert!(why.contains("checksum"), "{why}");
        assert_eq!(fs::read(folder.join("checkpoint-2/rank-3.img")).unwrap(), b"image");
        assert_eq!(fs::read_dir(folder.join("checkpoint-2")).unwrap().count(), 2);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_does_not_fit_is_refused_before_it_is_sent() {
        let folder = scratch("room");
        let begin = ToReplicaServer::Begin { rank: PeerId(3), checkpoint: CheckpointId(2) };
        let why =
            receive(&folder, [begin, ToReplicaServer::File { part: 0, bytes: u64::MAX }].into());
        assert!(why.unwrap_err().contains("has no room"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::remove_dir_all(&folder).unwrap();
    }
}
