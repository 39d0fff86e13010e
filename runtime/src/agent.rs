//! `rustbtl agent`: the one process per node and job. Guardians come to its Unix socket; it has
//! the one connection of the node to the coordinator, and passes messages on.
//!
//! It ends when its last guardian has gone. If the coordinator has gone mpirun starts another one:
//! the agent connects again, and has its guardians say again who they are.

pub(crate) mod copier;
pub(crate) mod guarded;
pub(crate) mod keeper;
pub(crate) mod replica_server;
pub(crate) mod stream;

use crate::agent::copier::{Copier, Order};
use crate::agent::guarded::{Guarded, belongs, one_of_each};
use crate::auth;
use crate::auth::{Host, Secret};
use crate::guardian::images;
use crate::link::{Link, LinkError};
use crate::local;
use crate::local::Local;
use crate::node::NodeDirectory;
use crate::os;
use crate::os::Poll;
use crate::settings;
use rustbtl_coordination::control::{FromNode, ToNode};
use std::collections::BTreeMap;
use std::env;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Between signs of life.
pub const BEAT: Duration = Duration::from_millis(500);
/// Quiescence of the coordinator that is taken for its end (its host is gone without a word).
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// For one address of the coordinator.
const CONNECT_PATIENCE: Duration = Duration::from_secs(3);
/// How often all addresses are tried.
const CONNECT_ROUNDS: u32 = 4;
/// How long another coordinator may take to be there.
const AGAIN: Duration = Duration::from_secs(15);
/// How long an agent without guardians stays.
const LONELY: Duration = Duration::from_millis(200);

struct Agent {
    directory: NodeDirectory,
    listener: UnixListener,
    guardians: BTreeMap<u64, Guarded>,
    next: u64,
    kept: crate::agent::keeper::Kept,
    storage: Option<Storage>,
    /// How others reach this node, with port 0.
    reached: Vec<SocketAddr>,
    /// When the last guardian went, or when none had come.
    lonely: Instant,
}

/// Where this node keeps images, its own and copies of others.
struct Storage {
    local: Local,
    copier: Copier,
    /// Where others bring copies.
    port: u16,
}

impl Storage {
    /// None, if that is not possible: guardians say why, when they have an image.
    fn open(path: &Path, secret: Secret) -> Option<Self> {
        let local = Local::enter(path).ok()?;
        local.sweep();
        let copier = Copier::new(path.to_owned(), secret).ok()?;
        let port = crate::agent::replica_server::open(path, secret).ok()?;
        Some(Self { local, copier, port })
    }
}

/// What the environment says.
struct Way {
    secret: Secret,
    coordinator: Vec<SocketAddr>,
}

fn way() -> Option<Way> {
    let secret = settings::unhex(&env::var(settings::SECRET).ok()?)?;
    let hosts = env::var(settings::COORDINATOR).ok()?;
    let coordinator = hosts.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    Some(Way { secret, coordinator })
}

/// Runs the agent; comes back at once in the process that was started, as soon as there is
/// something to connect to.
pub fn run(path: &Path, local: Option<&Path>) -> Result<(), String> {
    let way = way().ok_or("an agent is only started by a guardian")?;
    let shown = path.display();
    os::private_directory(path).map_err(|error| format!("{shown}: {error}"))?;
    // The guardian that starts us holds the lock.
    let directory = NodeDirectory::open(path).map_err(|error| format!("{shown}: {error}"))?;
    let listener = directory.listen().map_err(|error| format!("listening in {shown}: {error}"))?;
    let ready = listener.set_nonblocking(true);
    ready.map_err(|error| format!("listening in {shown}: {error}"))?;
    if os::go_to_background().map_err(|error| format!("forking: {error}"))? {
        return Ok(());
    }
    rustbtl_process::scheduling::be_prompt();
    crate::trace::start();
    tracing::info!("agent started in {shown}");
    let lonely = Instant::now();
    let (guardians, kept) = (BTreeMap::new(), crate::agent::keeper::Kept::default());
    let storage = local.and_then(|local| Storage::open(local, way.secret));
    let reached = Vec::new();
    let mut agent =
        Agent { directory, listener, guardians, next: 0, kept, storage, reached, lonely };
    match first_connection(&way) {
        Ok(coordinator) => agent.attend(coordinator, &way),
        Err(reason) => agent.stay_alone(&reason),
    }
    agent.end();
    Ok(())
}

/// To the coordinator, and what this end of it is called.
type Connection = (Link, Option<SocketAddr>);

/// Why the coordinator is not listened to any more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Nobody needs this agent.
    Done,
    /// The coordinator has ended because mpirun has.
    Over,
    /// The connection is lost.
    Lost,
}

fn connect(way: &Way) -> Result<Connection, String> {
    let to = &way.coordinator;
    let stream = auth::connect(Host::Coordinator, to, &way.secret, CONNECT_PATIENCE)?;
    let own = stream.local_addr().ok();
    Ok((Link::new(stream).map_err(|error| error.to_string())?, own))
}

fn first_connection(way: &Way) -> Result<Connection, String> {
    let mut problem = String::new();
    for round in 0..CONNECT_ROUNDS {
        if round > 0 {
            thread::sleep(Duration::from_millis(250 << round));
        }
        match connect(way) {
            Ok(connection) => return Ok(connection),
            Err(why) => problem = why,
        }
    }
    Err(format!(
        "node {}: the job's coordinator cannot be reached, so no checkpoint can be taken \
         ({problem}). Is a firewall between this node and that of mpirun?",
        os::hostname()
    ))
}

impl Agent {
    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            // The directory lets nobody else in; this is for the case that it does.
            let ours = os::peer_uid(&stream).is_ok_and(|uid| uid == os::euid());
            if let (true, Ok(link)) = (ours, Link::new(stream)) {
                self.guardians.insert(self.next, Guarded::new(link));
                self.next += 1;
            }
        }
    }

    /// Nobody is left, and nobody is coming?
    fn is_done(&mut self) -> bool {
        if !self.guardians.is_empty() {
            self.lonely = Instant::now();
            return false;
        }
        self.lonely.elapsed() >= LONELY && self.directory.leave().unwrap_or(true)
    }

    /// Who we are, and where others can bring copies of images.
    fn introduce(&self, coordinator: &mut Link) -> Result<(), LinkError> {
        coordinator.send(&FromNode::Agent {
            node: os::hostname(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
        })?;
        match &self.storage {
            Some(Storage { port, .. }) => {
                let addresses = at_port(&self.reached, *port);
                coordinator.send(&FromNode::ReplicaServer { addresses })
            }
            None => Ok(()),
        }
    }

    /// Serve one coordinator after the other, until there is none or nobody needs one.
    fn attend(&mut self, mut coordinator: Connection, way: &Way) {
        let mut again = false;
        loop {
            let (link, own) = &mut coordinator;
            self.reached = reached_at(own, &way.coordinator);
            let mut good = self.introduce(link).is_ok();
            if core::mem::replace(&mut again, true) {
                good &= self.introduce_guardians(link);
            }
            match if good { self.serve(link) } else { Left::Lost } {
                Left::Done => return,
                Left::Over => return self.stay_alone(""),
                Left::Lost => match self.connect_again(way) {
                    Ok(Some(another)) => coordinator = another,
                    Ok(None) => return,
                    Err(reason) => return self.stay_alone(&reason),
                },
            }
        }
    }

    /// To a coordinator that is not the first one. False: it has gone.
    fn introduce_guardians(&mut self, coordinator: &mut Link) -> bool {
        for guarded in self.guardians.values_mut() {
            let Some(port) = guarded.spare else {
                let _ = guarded.link.send(&ToNode::Reregister {});
                continue;
            };
            let addresses = at_port(&self.reached, port);
            if coordinator.send(&FromNode::SpareNode { port, addresses }).is_err() {
                return false;
            }
        }
        // What they have said meanwhile was for the coordinator before, which this one notices.
        let all: Vec<u64> = self.guardians.keys().copied().collect();
        all.into_iter().all(|id| self.hear_guardian(id, coordinator))
    }

    /// To the coordinator that comes after the one that has gone. None: nobody needs it any more.
    fn connect_again(&mut self, way: &Way) -> Result<Option<Connection>, String> {
        let until = Instant::now() + AGAIN;
        self.lonely = Instant::now();
        loop {
            let problem = match connect(way) {
                Ok(connection) => return Ok(Some(connection)),
                Err(problem) => problem,
            };
            self.accept();
            self.guardians.retain(|_, guarded| guarded.link.read().is_ok());
            if self.is_done() {
                return Ok(None);
            }
            if Instant::now() >= until {
                return Err(format!(
                    "node {}: the job's coordinator has ended, and there is no other: the job goes \
                     on without protection ({problem})",
                    os::hostname()
                ));
            }
            thread::sleep(LONELY / 4);
        }
    }

    fn serve(&mut self, coordinator: &mut Link) -> Left {
        let (mut beat_at, mut heard, mut count) = (Instant::now(), Instant::now(), 0);
        // From here on: whoever came while we connected is accepted at once.
        self.lonely = Instant::now();
        while !self.is_done() {
            let mut poll = Poll::default();
            let listener = poll.add(self.listener.as_raw_fd(), false);
            let up = poll.add(coordinator.fd(), coordinator.wants_to_write());
            let copied = self.storage.as_ref().map(|storage| poll.add(storage.copier.fd(), false));
            let places: Vec<(u64, usize)> = self
                .guardians
                .iter()
                .map(|(&id, guarded)| {
                    (id, poll.add(guarded.link.fd(), guarded.link.wants_to_write()))
                })
                .collect();
            let until = if places.is_empty() { Instant::now() + LONELY / 4 } else { beat_at };
            if poll.wait(Some(until)).is_err() {
                return Left::Done;
            }
            if Instant::now() >= beat_at {
                count += 1;
                beat_at = Instant::now() + BEAT;
                if coordinator.send(&FromNode::Heartbeat { count }).is_err() {
                    return Left::Lost;
                }
            }
            if poll.is_ready(listener) {
                self.accept();
            }
            for (id, place) in places {
                if poll.is_ready(place) && !self.hear_guardian(id, coordinator) {
                    return Left::Lost;
                }
            }
            if copied.is_some_and(|place| poll.is_ready(place)) && !self.tell_copies(coordinator) {
                return Left::Lost;
            }
            if poll.is_ready(up) {
                heard = Instant::now();
                if let Err(left) = self.hear_coordinator(coordinator) {
                    return left;
                }
            }
            if heard.elapsed() > SILENCE_MAX {
                return Left::Lost;
            }
        }
        Left::Done
    }

    /// False: the coordinator has gone.
    fn hear_guardian(&mut self, id: u64, coordinator: &mut Link) -> bool {
        let Some(guarded) = self.guardians.get_mut(&id) else { return true };
        let mut open = guarded.link.flush().is_ok() & guarded.link.read().is_ok();
        loop {
            let Some(guarded) = self.guardians.get_mut(&id) else { return true };
            match guarded.link.next_message::<FromNode>() {
                Ok(Some(FromNode::SpareNode { port, .. })) if guarded.rank.is_none() => {
                    guarded.spare = Some(port);
                    let addresses = at_port(&self.reached, port);
                    if coordinator.send(&FromNode::SpareNode { port, addresses }).is_err() {
                        return false;
                    }
                }
                Ok(Some(message)) => {
                    if guarded.spare.is_some() || !belongs(&message, &mut guarded.rank) {
                        open = false;
                        break;
                    }
                    if guarded.obsolete {
                        continue;
                    }
                    if let FromNode::Guardian { rank, incarnation, .. } = &message {
                        guarded.incarnation = *incarnation;
                        if one_of_each(&mut self.guardians, *rank) != Some(id) {
                            return true;
                        }
                    }
                    if coordinator.send(&message).is_err() {
                        return false;
                    }
                }
                Ok(None) => break,
                Err(_) => {
                    open = false;
                    break;
                }
            }
        }
        if open {
            return true;
        }
        let Some(gone) = self.guardians.remove(&id).filter(|gone| !gone.obsolete) else {
            return true;
        };
        if gone.spare.is_some() {
            let no_more = FromNode::SpareNode { port: 0, addresses: String::new() };
            return coordinator.send(&no_more).is_ok();
        }
        gone.rank
            .is_none_or(|rank| coordinator.send(&FromNode::GuardianDisconnected { rank }).is_ok())
    }

    /// False: the coordinator has gone.
    fn tell_copies(&mut self, coordinator: &mut Link) -> bool {
        let news = self.storage.as_ref().map_or(Vec::new(), |storage| storage.copier.news());
        news.iter().all(|message| coordinator.send(message).is_ok())
    }

    /// Orders about images; true: it was one.
    fn store(&mut self, message: &ToNode, coordinator: &mut Link) -> bool {
        match message {
            ToNode::ReplicateImage { rank, checkpoint: line, node, addresses } => {
                let (rank, line, node) = (*rank, *line, node.clone());
                match &mut self.storage {
                    Some(storage) => {
                        let addresses = addresses.clone();
                        storage.copier.order(Order { rank, line, node, addresses });
                    }
                    None => {
                        let reason = "this node keeps no images".into();
                        let _ = coordinator.send(&FromNode::ImageNotReplicated {
                            rank,
                            checkpoint: line,
                            node,
                            reason,
                        });
                    }
                }
            }
            ToNode::DeleteCheckpoint { checkpoint: line, ranks } => {
                if let Some(storage) = &self.storage {
                    let folder = storage.local.path().join(format!("checkpoint-{line}"));
                    ranks.iter().for_each(|&rank| images::discard(&folder, rank));
                }
            }
            _ => return false,
        }
        true
    }

    fn hear_coordinator(&mut self, coordinator: &mut Link) -> Result<(), Left> {
        let open = coordinator.flush().is_ok() & coordinator.read().is_ok();
        loop {
            match coordinator.next_message::<ToNode>() {
                Ok(Some(ToNode::Heartbeat { .. })) => {}
                Ok(Some(ToNode::CoordinatorExits {})) => return Err(Left::Over),
                Ok(Some(message)) if self.store(&message, coordinator) => {}
                Ok(Some(message)) => match self.kept.hear(&message) {
                    None => self.pass_on(&message),
                    Some(answer) => {
                        if answer.is_some_and(|answer| coordinator.send(&answer).is_err()) {
                            return Err(Left::Lost);
                        }
                    }
                },
                Ok(None) => return if open { Ok(()) } else { Err(Left::Lost) },
                Err(_) => return Err(Left::Lost),
            }
        }
    }

    fn pass_on(&mut self, message: &ToNode) {
        let to = match message {
            ToNode::Rank { rank, .. }
            | ToNode::Prepare { rank, .. }
            | ToNode::Discard { rank, .. }
            | ToNode::Restore { rank, .. }
            | ToNode::Adopt { host: rank, .. }
            | ToNode::AdoptOnSpare { host: rank, .. }
            | ToNode::Abandon { host: rank, .. }
            | ToNode::End { rank, .. }
            | ToNode::OutputAccepted { rank, .. }
            | ToNode::NoRestart { rank } => Some(*rank),
            _ => None,
        };
        for guarded in self.guardians.values_mut().filter(|guarded| !guarded.obsolete) {
            if to.is_none() || guarded.rank == to {
                // If it has gone, the next round of polling finds out.
                let _ = guarded.link.send(message);
                if let ToNode::Restore { incarnation, .. } = message {
                    guarded.incarnation = *incarnation;
                }
            }
        }
    }

    /// Without a coordinator: say so to whoever comes, until nobody comes any more.
    fn stay_alone(&mut self, reason: &str) {
        let mut reason = reason.to_owned();
        self.lonely = Instant::now();
        loop {
            self.accept();
            if self.is_done() {
                return;
            }
            for guarded in self.guardians.values_mut() {
                // The reason goes to one of them: it is printed.
                let _ = guarded
                    .link
                    .send(&ToNode::CoordinatorUnreachable { reason: core::mem::take(&mut reason) });
            }
            self.guardians.clear();
            thread::sleep(LONELY / 4);
        }
    }

    /// If the whole job ends they do, at once.
    fn let_guardians_go(&mut self) {
        for _ in 0..20 {
            self.guardians.retain(|_, guarded| guarded.link.read().is_ok());
            if self.guardians.is_empty() {
                return;
            }
            thread::sleep(LONELY / 4);
        }
    }

    /// Whatever the reason: leave nothing behind. Guardians notice only after that. Those that are
    /// there will have another agent, which needs the images.
    fn end(&mut self) {
        if self.storage.is_some() {
            self.let_guardians_go();
        }
        for _ in 0..20 {
            if self.directory.leave().unwrap_or(true) {
                if let Some(storage) = self.storage.take().filter(|_| self.guardians.is_empty()) {
                    local::remove(storage.local.path());
                }
                return;
            }
            self.guardians.clear();
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Where agents of other nodes reach this one: as the coordinator does; from mpirun's own host that
/// may be by the loopback, and then as the other agents reach the coordinator.
fn reached_at(own: &Option<SocketAddr>, coordinator: &[SocketAddr]) -> Vec<SocketAddr> {
    let known = own.map(|own| own.ip()).filter(|ip| !ip.is_loopback());
    let hosts = coordinator.iter().map(SocketAddr::ip).filter(|ip| !ip.is_loopback());
    let all: Vec<_> = known.map_or_else(|| hosts.collect(), |ip| vec![ip]);
    // A cluster of one host; the loopback is all there is.
    let all = if all.is_empty() { own.iter().map(SocketAddr::ip).collect() } else { all };
    all.into_iter().map(|ip| SocketAddr::new(ip, 0)).collect()
}

fn at_port(hosts: &[SocketAddr], port: u16) -> String {
    let text: Vec<String> =
        hosts.iter().map(|host| SocketAddr::new(host.ip(), port).to_string()).collect();
    text.join(" ")
}
