//! Sends replicas of this node's images to other agents. Each agent has a thread of its own: one
//! that is slow or has failed delays no other.

use crate::agent::replica_server::part_name;
use crate::agent::stream::BlockingStream;
use crate::auth;
use crate::auth::{Host, Secret};
use crate::os;
use rustbtl_coordination::control::{CheckpointId, FromNode, FromReplicaServer, ToReplicaServer};
use rustbtl_coordination::image_transfer::{BASES_MAX, ImagePart};
use rustbtl_fragments::ids::PeerId;
use rustbtl_process::private_files::Folder;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// For one address of the other agent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that are sent at a time.
const PIECE_BYTES: usize = 256 << 10;

/// Which image goes where.
#[derive(Clone, Debug)]
pub struct Replication {
    /// Whose image.
    pub rank: PeerId,
    /// Of this checkpoint.
    pub checkpoint: CheckpointId,
    /// To this node.
    pub node: String,
    /// Where it takes replicas.
    pub addresses: String,
}

/// See the module's documentation.
pub struct ImageSender {
    folder: PathBuf,
    secret: Secret,
    threads: BTreeMap<String, mpsc::Sender<Replication>>,
    results: mpsc::Receiver<FromNode>,
    report: mpsc::Sender<FromNode>,
    wake: UnixStream,
    waker: Arc<UnixStream>,
}

impl ImageSender {
    /// For what is in `folder`.
    pub fn new(folder: PathBuf, secret: Secret) -> io::Result<Self> {
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        let (report, results) = mpsc::channel();
        let waker = Arc::new(waker);
        Ok(Self { folder, secret, threads: BTreeMap::new(), results, report, wake, waker })
    }

    /// To poll.
    pub fn fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    /// How replications have ended.
    pub fn results(&self) -> Vec<FromNode> {
        let mut bytes = [0; 64];
        while (&self.wake).read(&mut bytes).is_ok_and(|n| n > 0) {}
        self.results.try_iter().collect()
    }

    /// In the thread of its node.
    pub fn start(&mut self, replication: Replication) {
        let sender = self.threads.entry(replication.node.clone()).or_insert_with(|| {
            let (sender, replications) = mpsc::channel::<Replication>();
            let (folder, secret) = (self.folder.clone(), self.secret);
            let (report, waker) = (self.report.clone(), Arc::clone(&self.waker));
            thread::spawn(move || {
                os::lower_priority();
                for replication in replications {
                    let _ = report.send(replicate(&folder, &secret, replication));
                    // If it is full the agent wakes up anyway.
                    let _ = (&*waker).write(&[1]);
                }
            });
            sender
        });
        // The thread lives as long as its channel.
        let _ = sender.send(replication);
    }
}

fn replicate(folder: &Path, secret: &Secret, replication: Replication) -> FromNode {
    let done = send_replica(folder, secret, &replication);
    let Replication { rank, checkpoint, node, .. } = replication;
    match done {
        Ok(()) => FromNode::ImageReplicated { rank, checkpoint, node },
        Err(reason) => FromNode::ImageNotReplicated { rank, checkpoint, node, reason },
    }
}

fn send_replica(folder: &Path, secret: &Secret, replication: &Replication) -> Result<(), String> {
    let Replication { rank, checkpoint, .. } = *replication;
    let words = replication.addresses.split_whitespace();
    let addresses = words.map(str::parse).collect::<Result<Vec<SocketAddr>, _>>();
    let addresses = addresses.map_err(|_| "its address makes no sense".to_owned())?;
    let stream = auth::connect(Host::ReplicaServer, &addresses, secret, CONNECT_TIMEOUT)?;
    let mut to = BlockingStream::new(stream).map_err(|error| error.to_string())?;
    let sent =
        send_parts(&mut to, &folder.join(format!("checkpoint-{checkpoint}")), rank, checkpoint);
    let broken = match sent {
        // The server learns it from the end of the connection: it would wait for the rest, and its
        // answer for us, and the next image for both.
        Err(Unsent::Here(problem)) => return Err(problem),
        Err(Unsent::Connection(problem)) => Some(problem),
        Ok(()) => None,
    };
    // A server that refuses answers why, and does not read to the end.
    match (to.receive(), broken) {
        (Ok(FromReplicaServer::Stored {}), None) => Ok(()),
        (Ok(FromReplicaServer::Refused { reason }), _) => Err(reason),
        (_, Some(problem)) | (Err(problem), None) => Err(problem),
    }
}

/// Why an image was not sent to its end.
enum Unsent {
    /// It cannot be read here: of a checkpoint that was given up, for example.
    Here(String),
    /// The other end does not take it any more.
    Connection(String),
}

fn send_parts(
    to: &mut BlockingStream,
    folder: &Path,
    rank: PeerId,
    checkpoint: CheckpointId,
) -> Result<(), Unsent> {
    send(to, &ToReplicaServer::Begin { rank, checkpoint })?;
    let bases = (1..=BASES_MAX).filter_map(ImagePart::of);
    let folder = Folder::open(folder).map_err(|error| Unsent::Here(error.to_string()))?;
    for part in bases.chain([ImagePart::Output, ImagePart::Image]) {
        let name = part_name(rank, part);
        match folder.file(&name) {
            Ok(file) => send_file(to, part, file, &folder.path().join(name))?,
            Err(error) if error.is_missing() && part != ImagePart::Image => {}
            Err(error) => return Err(Unsent::Here(error.to_string())),
        }
    }
    send(to, &ToReplicaServer::Commit {})
}

fn send(to: &mut BlockingStream, message: &ToReplicaServer) -> Result<(), Unsent> {
    to.send(message).map_err(Unsent::Connection)
}

fn send_file(
    to: &mut BlockingStream,
    part: ImagePart,
    file: File,
    path: &Path,
) -> Result<(), Unsent> {
    let what = |error: io::Error| Unsent::Here(format!("{}: {error}", path.display()));
    let bytes = file.metadata().map_err(what)?.len();
    send(to, &ToReplicaServer::File { part: part.number(), bytes })?;
    let mut checksum = crc32fast::Hasher::new();
    let mut file = file.take(bytes);
    loop {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        file.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece).map_err(what)?;
        if piece.is_empty() {
            break;
        }
        checksum.update(&piece);
        send(to, &ToReplicaServer::Piece { bytes: piece })?;
        if to.has_input() {
            return Err(Unsent::Connection("it has ended".into()));
        }
    }
    send(to, &ToReplicaServer::Checksum { crc32: checksum.finalize() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::replica_server;
    use std::fs;
    use std::net::{IpAddr, Ipv4Addr};

    fn scratch(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("rustbtl-sender-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        os::private_directory(&path).unwrap();
        path
    }

    /// The checkpoint was given up, and its folder is gone, when its turn comes; or the image is
    /// shorter than it was.
    #[test]
    fn an_image_that_is_gone_is_reported_by_its_sender_and_the_server_keeps_nothing() {
        let (from, to) = (scratch("from"), scratch("to"));
        let secret: Secret = [7; 32];
        let port = replica_server::open(&to, secret, &[IpAddr::V4(Ipv4Addr::LOCALHOST)]).unwrap();
        let (rank, checkpoint) = (PeerId(1), CheckpointId(3));
        let addresses = format!("127.0.0.1:{port}");
        let replication = Replication { rank, checkpoint, node: "n1".into(), addresses };
        let problem = send_replica(&from, &secret, &replication).unwrap_err();
        assert!(problem.contains("checkpoint-3"), "not what the server says: {problem}");
        let folder = from.join("checkpoint-3");
        os::private_directory(&folder).unwrap();
        let problem = send_replica(&from, &secret, &replication).unwrap_err();
        assert!(problem.contains("rank-1"), "{problem}");
        [from, to].iter().for_each(|path| fs::remove_dir_all(path).unwrap());
    }
}
