//! Brings images of this node to other agents, each of them in a thread of its own: who is slow or
//! dead holds up nobody else.

use crate::agent::replica_server::part_name;
use crate::agent::stream::Patient;
use crate::auth;
use crate::auth::{Host, Secret};
use crate::os;
use rustbtl_coordination::control::{CheckpointId, FromNode, FromReplicaServer, ToReplicaServer};
use rustbtl_coordination::image_transfer::{BASES_MAX, DIGEST_BYTES, ImagePart};
use rustbtl_fragments::ids::PeerId;
use sha2::{Digest, Sha256};
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
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes that are sent at a time.
const PIECE_BYTES: usize = 256 << 10;

/// What is to be brought where.
#[derive(Clone, Debug)]
pub struct Order {
    /// Whose image.
    pub rank: PeerId,
    /// Of this line.
    pub line: CheckpointId,
    /// To this node.
    pub node: String,
    /// Where it takes copies.
    pub addresses: String,
}

/// See the module's documentation.
pub struct Copier {
    folder: PathBuf,
    secret: Secret,
    threads: BTreeMap<String, mpsc::Sender<Order>>,
    news: mpsc::Receiver<FromNode>,
    report: mpsc::Sender<FromNode>,
    wake: UnixStream,
    waker: Arc<UnixStream>,
}

impl Copier {
    /// For what is in `folder`.
    pub fn new(folder: PathBuf, secret: Secret) -> io::Result<Self> {
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        let (report, news) = mpsc::channel();
        let waker = Arc::new(waker);
        Ok(Self { folder, secret, threads: BTreeMap::new(), news, report, wake, waker })
    }

    /// To poll.
    pub fn fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    /// What has become of orders.
    pub fn news(&self) -> Vec<FromNode> {
        let mut bytes = [0; 64];
        while (&self.wake).read(&mut bytes).is_ok_and(|n| n > 0) {}
        self.news.try_iter().collect()
    }

    /// Does it, soon.
    pub fn order(&mut self, order: Order) {
        let sender = self.threads.entry(order.node.clone()).or_insert_with(|| {
            let (sender, orders) = mpsc::channel::<Order>();
            let (folder, secret) = (self.folder.clone(), self.secret);
            let (report, waker) = (self.report.clone(), Arc::clone(&self.waker));
            thread::spawn(move || {
                os::be_slow();
                for order in orders {
                    let _ = report.send(carry_out(&folder, &secret, order));
                    // Full means that somebody is going to look anyway.
                    let _ = (&*waker).write(&[1]);
                }
            });
            sender
        });
        // The thread lives as long as its channel.
        let _ = sender.send(order);
    }
}

fn carry_out(folder: &Path, secret: &Secret, order: Order) -> FromNode {
    let done = bring(folder, secret, &order);
    let Order { rank, line, node, .. } = order;
    match done {
        Ok(()) => FromNode::ImageReplicated { rank, checkpoint: line, node },
        Err(reason) => FromNode::ImageNotReplicated { rank, checkpoint: line, node, reason },
    }
}

fn bring(folder: &Path, secret: &Secret, order: &Order) -> Result<(), String> {
    let Order { rank, line, .. } = *order;
    let words = order.addresses.split_whitespace();
    let addresses = words.map(str::parse).collect::<Result<Vec<SocketAddr>, _>>();
    let addresses = addresses.map_err(|_| "its address makes no sense".to_owned())?;
    let stream = auth::connect(Host::Shelf, &addresses, secret, CONNECT_PATIENCE)?;
    let mut to = Patient::new(stream).map_err(|error| error.to_string())?;
    let sent = send(&mut to, &folder.join(format!("checkpoint-{line}")), rank, line);
    // Who refuses says why, and then does not read to the end.
    match to.receive() {
        Ok(FromReplicaServer::Stored {}) => sent,
        Ok(FromReplicaServer::Refused { reason }) => Err(reason),
        Err(problem) => Err(sent.err().unwrap_or(problem)),
    }
}

fn send(to: &mut Patient, folder: &Path, rank: PeerId, line: CheckpointId) -> Result<(), String> {
    to.send(&ToReplicaServer::Begin { rank, checkpoint: line })?;
    let bases = (1..=BASES_MAX).filter_map(ImagePart::of);
    for part in bases.chain([ImagePart::Output, ImagePart::Image]) {
        let path = folder.join(part_name(rank, part));
        match File::open(&path) {
            Ok(file) => send_file(to, part, file, &path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound && part != ImagePart::Image => {}
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
    to.send(&ToReplicaServer::Commit {})
}

fn send_file(to: &mut Patient, part: ImagePart, file: File, path: &Path) -> Result<(), String> {
    let what = |error: io::Error| format!("{}: {error}", path.display());
    let bytes = file.metadata().map_err(what)?.len();
    to.send(&ToReplicaServer::File { part: part.number(), bytes })?;
    let mut digest = Sha256::new();
    let mut file = file.take(bytes);
    loop {
        let mut piece = vec![0; PIECE_BYTES];
        let got = file.read(&mut piece).map_err(what)?;
        if got == 0 {
            break;
        }
        piece.truncate(got);
        digest.update(&piece);
        to.send(&ToReplicaServer::Piece { bytes: piece })?;
        if to.has_news() {
            return Err("it has ended".into());
        }
    }
    let sha256: [u8; DIGEST_BYTES] = digest.finalize().into();
    to.send(&ToReplicaServer::Digest { sha256: sha256.to_vec() })
}
