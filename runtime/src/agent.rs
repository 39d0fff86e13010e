//! `rustbtl agent`: the one process per node and job. Guardians connect to its Unix socket; it has
//! the node's one connection to the coordinator, and forwards messages.
//!
//! It ends when its last guardian has ended. If the coordinator fails, mpirun starts another one:
//! the agent reconnects, and its guardians register again.

pub(crate) mod guardians;
pub(crate) mod image_sender;
pub(crate) mod replica;
pub(crate) mod replica_server;
pub(crate) mod stream;

use crate::agent::guardians::{GuardianLink, GuardianWatch, is_for_own_rank, retain_youngest};
use crate::agent::image_sender::{ImageSender, Replication};
use crate::agent::replica::AgentReplica;
use crate::auth;
use crate::auth::{Host, NoConnection, Secret};
use crate::guardian::images;
use crate::link::{Link, LinkError};
use crate::listen::hosts_towards;
use crate::local;
use crate::local::Local;
use crate::node::NodeDirectory;
use crate::os;
use crate::os::Poll;
use crate::settings;
use crate::settings::FailureTimeout;
use rustbtl_coordination::control::{FromNode, ToNode};
use std::collections::BTreeMap;
use std::env;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// For one address of the coordinator.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How often all addresses are tried.
const CONNECT_ROUNDS: u32 = 4;
/// Before the second round; twice as long before each further one.
const CONNECT_PAUSE: Duration = Duration::from_millis(500);
/// How long a failover may take.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(15);
/// How long an agent without guardians stays.
const IDLE_TIMEOUT: Duration = Duration::from_millis(200);

struct Agent {
    directory: NodeDirectory,
    listener: UnixListener,
    guardians: BTreeMap<u64, GuardianLink>,
    next: u64,
    replica: AgentReplica,
    storage: Option<Storage>,
    /// Addresses of this node for others, with port 0.
    own_addresses: Vec<SocketAddr>,
    /// Since when there is no guardian.
    idle_since: Instant,
    /// Programs of this node are suspended: the coordinator's node is silent.
    suspended: bool,
}

/// Where this node keeps images, its own and replicas of others.
struct Storage {
    local: Local,
    sender: ImageSender,
    /// Of the replica server.
    port: u16,
}

impl Storage {
    /// None, if that is not possible: guardians report why when they have an image.
    fn open(path: &Path, secret: Secret, hosts: &[IpAddr]) -> Option<Self> {
        let local = Local::enter(path).ok()?;
        local.sweep();
        let sender = ImageSender::new(path.to_owned(), secret).ok()?;
        let port = crate::agent::replica_server::open(path, secret, hosts).ok()?;
        Some(Self { local, sender, port })
    }
}

/// How to reach the coordinator, from the environment.
struct CoordinatorAccess {
    secret: Secret,
    addresses: Vec<SocketAddr>,
    timeout: FailureTimeout,
}

fn coordinator_access() -> Option<CoordinatorAccess> {
    let secret = settings::unhex(&env::var(settings::SECRET).ok()?)?;
    let hosts = env::var(settings::COORDINATOR).ok()?;
    let addresses = hosts.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    let timeout = FailureTimeout::read(env::var(settings::FAILURE_TIMEOUT).ok().as_deref());
    Some(CoordinatorAccess { secret, addresses, timeout })
}

/// Runs the agent. Returns early in the process that was started: as soon as guardians can connect.
pub fn run(path: &Path, local: Option<&Path>) -> Result<(), String> {
    let access = coordinator_access().ok_or("an agent is only started by a guardian")?;
    let shown = path.display();
    os::private_directory(path).map_err(|error| format!("{shown}: {error}"))?;
    // The guardian that starts us holds the lock.
    let directory = NodeDirectory::open(path).map_err(|error| format!("{shown}: {error}"))?;
    let listener = directory.listen().map_err(|error| format!("listening in {shown}: {error}"))?;
    let ready = listener.set_nonblocking(true);
    ready.map_err(|error| format!("listening in {shown}: {error}"))?;
    // Guardians look at this process, not at the one that has made the listener: before that one
    // ends and they can connect.
    let in_background = || drop(os::listen_as_this_process(&listener));
    if os::go_to_background(in_background).map_err(|error| format!("forking: {error}"))? {
        return Ok(());
    }
    rustbtl_process::scheduling::be_prompt();
    crate::trace::start();
    tracing::info!("agent started in {shown}");
    let idle_since = Instant::now();
    let (guardians, replica) = (BTreeMap::new(), AgentReplica::default());
    let hosts = hosts_towards(&access.addresses);
    let storage = local.and_then(|local| Storage::open(local, access.secret, &hosts));
    let own_addresses = Vec::new();
    let mut agent = Agent {
        directory,
        listener,
        guardians,
        next: 0,
        replica,
        storage,
        own_addresses,
        idle_since,
        suspended: false,
    };
    match agent.first_connection(&access) {
        Ok(Some(coordinator)) => agent.serve_coordinators(coordinator, &access),
        Ok(None) => {}
        Err(reason) => agent.refuse_guardians(&reason),
    }
    agent.end();
    Ok(())
}

/// To the coordinator, and the address of this end of it.
type Connection = (Link, Option<SocketAddr>);

/// Why the agent no longer serves a coordinator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServeEnd {
    /// Nobody needs this agent.
    Idle,
    /// The coordinator ends because mpirun does.
    CoordinatorExits,
    /// The connection is lost.
    ConnectionLost,
}

fn connect(access: &CoordinatorAccess) -> Result<Connection, NoConnection> {
    let to = &access.addresses;
    let stream = auth::connect(Host::Coordinator, to, &access.secret, CONNECT_TIMEOUT)?;
    let own = stream.socket().local_addr().ok();
    let link = Link::over_network(stream).map_err(|error| NoConnection::of(error.to_string()))?;
    Ok((link, own))
}

impl Agent {
    /// None: nobody needs it any more. The job may be over before it is reached.
    fn first_connection(
        &mut self,
        access: &CoordinatorAccess,
    ) -> Result<Option<Connection>, String> {
        let mut problem = String::new();
        for round in 0..CONNECT_ROUNDS {
            if round > 0 {
                let until = Instant::now() + CONNECT_PAUSE * (1 << (round - 1));
                while Instant::now() < until {
                    self.accept();
                    self.guardians.retain(|_, guardian| guardian.link.read().is_ok());
                    if self.is_done() {
                        return Ok(None);
                    }
                    thread::sleep(IDLE_TIMEOUT / 4);
                }
            }
            match connect(access) {
                Ok(connection) => return Ok(Some(connection)),
                Err(why) => problem = why.reason,
            }
        }
        Err(format!(
            "node {}: the job's coordinator cannot be reached, so no checkpoint can be taken \
             ({problem}). Is a firewall between this node and that of mpirun?",
            os::hostname()
        ))
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            // The directory keeps others out; this is a second check.
            let ours = os::peer_uid(&stream).is_ok_and(|uid| uid == os::euid());
            if let (true, Ok(link)) = (ours, Link::new(stream)) {
                self.guardians.insert(self.next, GuardianLink::new(link));
                self.next += 1;
            }
        }
    }

    /// No guardian is connected, and none is about to connect?
    fn is_done(&mut self) -> bool {
        if !self.guardians.is_empty() {
            self.idle_since = Instant::now();
            return false;
        }
        self.idle_since.elapsed() >= IDLE_TIMEOUT && self.directory.leave().unwrap_or(true)
    }

    /// Registers this agent and its replica server.
    fn register(&self, coordinator: &mut Link) -> Result<(), LinkError> {
        coordinator.send(&FromNode::Agent {
            node: os::hostname(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
        })?;
        match &self.storage {
            Some(Storage { port, .. }) => {
                let addresses = at_port(&self.own_addresses, *port);
                coordinator.send(&FromNode::ReplicaServer { addresses })
            }
            None => Ok(()),
        }
    }

    /// Serves one coordinator after the other, until there is none or nobody needs one.
    fn serve_coordinators(&mut self, mut coordinator: Connection, access: &CoordinatorAccess) {
        let mut failover = false;
        loop {
            let (link, own) = &mut coordinator;
            self.own_addresses = own_addresses(own, &access.addresses);
            let mut good = self.register(link).is_ok();
            if core::mem::replace(&mut failover, true) {
                good &= self.reregister_guardians(link);
            }
            // What they have sent meanwhile: it is read.
            good &= self.handle_guardians(link);
            match if good { self.serve(link, access.timeout) } else { ServeEnd::ConnectionLost } {
                ServeEnd::Idle => return,
                ServeEnd::CoordinatorExits => return self.refuse_guardians(""),
                ServeEnd::ConnectionLost => match self.reconnect(access) {
                    Ok(Some(another)) => coordinator = another,
                    Ok(None) => return,
                    Err(reason) => return self.refuse_guardians(&reason),
                },
            }
        }
    }

    /// With a failed-over coordinator. False: its connection is lost.
    fn reregister_guardians(&mut self, coordinator: &mut Link) -> bool {
        for guardian in self.guardians.values_mut() {
            let Some(port) = guardian.spare else {
                let _ = guardian.link.send(&ToNode::Reregister {});
                continue;
            };
            let addresses = at_port(&self.own_addresses, port);
            if coordinator.send(&FromNode::SpareNode { port, addresses }).is_err() {
                return false;
            }
        }
        true
    }

    /// False: the connection to the coordinator is lost. What was meant for the coordinator before,
    /// this one recognises.
    fn handle_guardians(&mut self, coordinator: &mut Link) -> bool {
        let all: Vec<u64> = self.guardians.keys().copied().collect();
        all.into_iter().all(|id| self.handle_guardian(id, coordinator))
    }

    /// To the coordinator that takes over, or to the same one after a cut of the network. None:
    /// nobody needs it any more. While its host does not answer at all nobody knows what became of
    /// it: that time does not count. The guardians end with their daemon, which does not wait for
    /// ever, and the agent with them.
    fn reconnect(&mut self, access: &CoordinatorAccess) -> Result<Option<Connection>, String> {
        let mut until = Instant::now() + FAILOVER_TIMEOUT;
        self.idle_since = Instant::now();
        loop {
            let problem = match connect(access) {
                Ok(connection) => return Ok(Some(connection)),
                Err(problem) => problem,
            };
            if problem.is_silence {
                until = Instant::now() + FAILOVER_TIMEOUT;
            }
            let problem = problem.reason;
            self.accept();
            self.guardians.retain(|_, guardian| guardian.link.read().is_ok());
            if self.is_done() {
                return Ok(None);
            }
            if Instant::now() >= until {
                return Err(format!(
                    "node {}: the job's coordinator has ended, and there is no other: the job \
                     keeps running without protection ({problem})",
                    os::hostname()
                ));
            }
            thread::sleep(IDLE_TIMEOUT / 4);
        }
    }

    /// A node that does not hear the coordinator's may be taken for failed. Its programs are
    /// suspended before that: what they do afterwards would be done twice, and others could see it
    /// in files. A heartbeat is on its way at any time: the other kernel has something to
    /// acknowledge.
    fn suspend_in_silence(&mut self, coordinator: &Link, timeout: FailureTimeout) {
        let silence = os::silence(coordinator.fd()).unwrap_or_default();
        if silence >= timeout.suspension() {
            self.suspend(true);
        } else if silence < timeout.suspension() / 2 {
            self.suspend(false);
        }
    }

    fn suspend(&mut self, suspended: bool) {
        if core::mem::replace(&mut self.suspended, suspended) != suspended {
            tracing::warn!("programs of this node are suspended: {suspended}");
            self.forward(&ToNode::Suspend { suspended });
        }
    }

    fn serve(&mut self, coordinator: &mut Link, timeout: FailureTimeout) -> ServeEnd {
        let (mut beat_at, mut received_at, mut count) = (Instant::now(), Instant::now(), 0);
        let mut look_at = Instant::now() + timeout.silence();
        let mut watch = GuardianWatch::default();
        // From here on: guardians that came while this agent connected are accepted at once.
        self.idle_since = Instant::now();
        while !self.is_done() {
            let mut poll = Poll::default();
            let listener = poll.add(self.listener.as_raw_fd(), false);
            let up = poll.add(coordinator.fd(), coordinator.wants_to_write());
            let copied = self.storage.as_ref().map(|storage| poll.add(storage.sender.fd(), false));
            let slots: Vec<(u64, usize)> = self
                .guardians
                .iter()
                .map(|(&id, guardian)| {
                    (id, poll.add(guardian.link.fd(), guardian.link.wants_to_write()))
                })
                .collect();
            let until = if slots.is_empty() { Instant::now() + IDLE_TIMEOUT / 4 } else { beat_at };
            if poll.wait(Some(until)).is_err() {
                return ServeEnd::Idle;
            }
            if Instant::now() >= beat_at {
                self.suspend_in_silence(coordinator, timeout);
                count += 1;
                beat_at = Instant::now() + timeout.heartbeat_interval();
                if coordinator.send(&FromNode::Heartbeat { count }).is_err() {
                    return ServeEnd::ConnectionLost;
                }
            }
            if Instant::now() >= look_at {
                look_at = Instant::now() + timeout.silence();
                watch.look(&self.guardians);
            }
            if poll.is_ready(listener) {
                self.accept();
            }
            for (id, slot) in slots {
                if poll.is_ready(slot) && !self.handle_guardian(id, coordinator) {
                    return ServeEnd::ConnectionLost;
                }
            }
            if copied.is_some_and(|slot| poll.is_ready(slot)) && !self.report_replicas(coordinator)
            {
                return ServeEnd::ConnectionLost;
            }
            if poll.is_ready(up) {
                received_at = Instant::now();
                if let Err(end) = self.handle_coordinator(coordinator) {
                    return end;
                }
            }
            if received_at.elapsed() > timeout.coordinator_silence() {
                return ServeEnd::ConnectionLost;
            }
        }
        ServeEnd::Idle
    }

    /// False: the connection to the coordinator is lost.
    fn handle_guardian(&mut self, id: u64, coordinator: &mut Link) -> bool {
        let Some(guardian) = self.guardians.get_mut(&id) else { return true };
        let mut open = guardian.link.flush().is_ok() & guardian.link.read().is_ok();
        loop {
            let Some(guardian) = self.guardians.get_mut(&id) else { return true };
            match guardian.link.next_message::<FromNode>() {
                Ok(Some(FromNode::SpareNode { port, .. })) if guardian.rank.is_none() => {
                    guardian.spare = Some(port);
                    let addresses = at_port(&self.own_addresses, port);
                    if coordinator.send(&FromNode::SpareNode { port, addresses }).is_err() {
                        return false;
                    }
                }
                Ok(Some(message)) => {
                    if guardian.spare.is_some() || !is_for_own_rank(&message, &mut guardian.rank) {
                        open = false;
                        break;
                    }
                    if guardian.obsolete {
                        continue;
                    }
                    if let FromNode::Guardian { rank, incarnation, .. } = &message {
                        guardian.incarnation = *incarnation;
                        if retain_youngest(&mut self.guardians, *rank) != Some(id) {
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
        let Some(lost) = self.guardians.remove(&id).filter(|lost| !lost.obsolete) else {
            return true;
        };
        if lost.spare.is_some() {
            let no_more = FromNode::SpareNode { port: 0, addresses: String::new() };
            return coordinator.send(&no_more).is_ok();
        }
        lost.rank
            .is_none_or(|rank| coordinator.send(&FromNode::GuardianDisconnected { rank }).is_ok())
    }

    /// False: the connection to the coordinator is lost.
    fn report_replicas(&mut self, coordinator: &mut Link) -> bool {
        let results = self.storage.as_ref().map_or(Vec::new(), |storage| storage.sender.results());
        results.iter().all(|message| coordinator.send(message).is_ok())
    }

    /// Handles orders about images; true: it was one.
    fn store(&mut self, message: &ToNode, coordinator: &mut Link) -> bool {
        match message {
            ToNode::ReplicateImage { rank, checkpoint, node, addresses } => {
                let (rank, checkpoint, node) = (*rank, *checkpoint, node.clone());
                match &mut self.storage {
                    Some(storage) => {
                        let addresses = addresses.clone();
                        storage.sender.start(Replication { rank, checkpoint, node, addresses });
                    }
                    None => {
                        let reason = "this node keeps no images".into();
                        let _ = coordinator.send(&FromNode::ImageNotReplicated {
                            rank,
                            checkpoint,
                            node,
                            reason,
                        });
                    }
                }
            }
            ToNode::DeleteCheckpoint { checkpoint, ranks } => {
                if let Some(storage) = &self.storage {
                    let folder = storage.local.path().join(format!("checkpoint-{checkpoint}"));
                    ranks.iter().for_each(|&rank| images::discard(&folder, rank));
                }
            }
            _ => return false,
        }
        true
    }

    fn handle_coordinator(&mut self, coordinator: &mut Link) -> Result<(), ServeEnd> {
        let open = coordinator.flush().is_ok() & coordinator.read().is_ok();
        loop {
            match coordinator.next_message::<ToNode>() {
                Ok(Some(ToNode::Heartbeat { .. })) => {}
                Ok(Some(ToNode::CoordinatorExits {})) => return Err(ServeEnd::CoordinatorExits),
                Ok(Some(message)) if self.store(&message, coordinator) => {}
                Ok(Some(message)) => match self.replica.handle(&message) {
                    None => self.forward(&message),
                    Some(answer) => {
                        if answer.is_some_and(|answer| coordinator.send(&answer).is_err()) {
                            return Err(ServeEnd::ConnectionLost);
                        }
                    }
                },
                Ok(None) => return if open { Ok(()) } else { Err(ServeEnd::ConnectionLost) },
                Err(_) => return Err(ServeEnd::ConnectionLost),
            }
        }
    }

    fn forward(&mut self, message: &ToNode) {
        let to = match message {
            ToNode::Rank { rank, .. }
            | ToNode::Prepare { rank, .. }
            | ToNode::Discard { rank, .. }
            | ToNode::Restore { rank, .. }
            | ToNode::Adopt { host: rank, .. }
            | ToNode::AdoptOnSpare { host: rank, .. }
            | ToNode::Abandon { host: rank, .. }
            | ToNode::End { rank, .. }
            | ToNode::AllRestored { rank, .. }
            | ToNode::OutputAccepted { rank, .. }
            | ToNode::NoRestart { rank } => Some(*rank),
            _ => None,
        };
        for guardian in self.guardians.values_mut().filter(|guardian| !guardian.obsolete) {
            if to.is_none() || guardian.rank == to {
                // If its connection is lost, the next round of polling finds out.
                let _ = guardian.link.send(message);
                if let ToNode::Restore { incarnation, .. } = message {
                    guardian.incarnation = *incarnation;
                }
            }
        }
    }

    /// Without a coordinator: reports that to each guardian, until none connects any more.
    fn refuse_guardians(&mut self, reason: &str) {
        let mut reason = reason.to_owned();
        self.idle_since = Instant::now();
        loop {
            self.accept();
            if self.is_done() {
                return;
            }
            for guardian in self.guardians.values_mut() {
                // The reason goes to one guardian only: it prints it.
                let _ = guardian
                    .link
                    .send(&ToNode::CoordinatorUnreachable { reason: core::mem::take(&mut reason) });
            }
            self.guardians.clear();
            thread::sleep(IDLE_TIMEOUT / 4);
        }
    }

    /// For a moment: if the whole job ends, its guardians end at once.
    fn wait_for_guardians(&mut self) {
        for _ in 0..20 {
            self.guardians.retain(|_, guardian| guardian.link.read().is_ok());
            if self.guardians.is_empty() {
                return;
            }
            thread::sleep(IDLE_TIMEOUT / 4);
        }
    }

    /// Leaves nothing behind, whatever the reason. Guardians see the end of their connection only
    /// after that. If some are left they start another agent, which needs the images.
    fn end(&mut self) {
        if self.storage.is_some() {
            self.wait_for_guardians();
        }
        for _ in 0..20 {
            if self.directory.leave().unwrap_or(true) {
                if let Some(storage) = self.storage.take().filter(|_| self.guardians.is_empty()) {
                    let path = storage.local.path().to_owned();
                    drop(storage);
                    local::remove_when_unlocked(&path);
                }
                return;
            }
            self.guardians.clear();
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Where agents of other nodes reach this one: at the address that the coordinator sees. From
/// mpirun's own host that may be the loopback; then at the addresses of the coordinator.
fn own_addresses(own: &Option<SocketAddr>, coordinator: &[SocketAddr]) -> Vec<SocketAddr> {
    let known = own.map(|own| own.ip()).filter(|ip| !ip.is_loopback());
    let hosts = coordinator.iter().map(SocketAddr::ip).filter(|ip| !ip.is_loopback());
    let all: Vec<_> = known.map_or_else(|| hosts.collect(), |ip| vec![ip]);
    // A cluster of one host has the loopback only.
    let all = if all.is_empty() { own.iter().map(SocketAddr::ip).collect() } else { all };
    all.into_iter().map(|ip| SocketAddr::new(ip, 0)).collect()
}

fn at_port(hosts: &[SocketAddr], port: u16) -> String {
    let text: Vec<String> =
        hosts.iter().map(|host| SocketAddr::new(host.ip(), port).to_string()).collect();
    text.join(" ")
}
