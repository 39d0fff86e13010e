//! `rustbtl coordinator`: the one process per job, started by mpirun's component. It knows which
//! ranks are where, orders checkpoints, writes their manifests, and answers the `rustbtl` command.
//!
//! ```text
//! mpirun ── stdin: configuration, then "lost NODE", "checkpoint stay|exit" …; ends with it ──>
//!        <── stdout: "ok PORT JOB SECRET" or "error …"; then "end": the job is to end, and of
//!            lost nodes "recovered", or "fail TEXT": the job is to end with an error; "print …":
//!            output of a rank that has no daemon ──
//! agents ── TCP, after mutual proof of the secret ──>
//! rustbtl ── Unix socket in the user's private directory ──>
//! ```

use crate::auth::Secret;
use crate::coordinator::determinants::{Determinants, Out};
use crate::coordinator::driver::clock::unix_ms;
use crate::coordinator::driver::event_log::Events;
use crate::coordinator::driver::failover_store::FailoverStore;
use crate::coordinator::driver::manifest_writer::{Done, ManifestWriter, Report};
use crate::coordinator::driver::mpirun_pipe::{self, send_to_mpirun};
use crate::coordinator::driver::rank_links::Direct;
pub(crate) use crate::coordinator::job::state::{Effect, Job};
use crate::coordinator::job::tables::mpirun_orders::{MpirunOrder, to_mpirun};
use crate::half_open::{HalfOpenPeers, Outcome};
use crate::jobs;
use crate::link::Link;
use crate::listen::Listeners;
use crate::os::Poll;
use crate::settings::{self, FailureTimeout};
use rustbtl_coordination::control::{CheckpointId, FromNode, FromRank, ToNode, ToRank};
use rustbtl_coordination::notice_limit::NoticeLimit;
use rustbtl_fragments::ids::PeerId;
use rustbtl_process::private_files::Folder;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// While a frame waits for its answers the coordinator does not sleep at once: to be woken takes
/// longer than all of the rest. Others get the processor when they want it.
const AWAKE: Duration = Duration::from_micros(60);
/// Unauthenticated peers at a time.
pub(crate) const UNAUTHENTICATED_MAX: usize = 64;
/// How long ranks may take to report their logs.
pub(crate) const STATUS_PATIENCE: Duration = Duration::from_millis(300);
/// For the guardian of an earlier incarnation of a rank.
const ELSEWHERE: &str = "this rank was started again on another node";

pub(crate) struct Agent {
    link: Link,
    /// Known from its first message.
    pub(crate) node: String,
    pub(crate) pid: u32,
    pub(crate) last_heard: Instant,
    silent: bool,
}

pub(crate) struct Coordinator {
    pub(crate) secret: Secret,
    pub(crate) started: Instant,
    pub(crate) job: Job,
    pub(crate) determinants: Determinants,
    /// For tests: a folder with what the ranks of an earlier job have recorded.
    pub(crate) journals: Option<PathBuf>,
    pub(crate) events: Events,
    /// For a failover.
    pub(crate) failover_store: Option<FailoverStore>,
    pub(crate) manifest_writer: ManifestWriter,
    pub(crate) listeners: Listeners,
    pub(crate) commands: UnixListener,
    pub(crate) socket: PathBuf,
    pub(crate) unauthenticated: HalfOpenPeers,
    /// Of events about those that are refused.
    pub(crate) notices: NoticeLimit,
    pub(crate) agents: BTreeMap<u64, Agent>,
    pub(crate) direct: Direct,
    /// The agent of each rank.
    pub(crate) home: BTreeMap<PeerId, u64>,
    /// Bytes from mpirun that are not a whole text line yet.
    pub(crate) mpirun: crate::coordinator::driver::mpirun_pipe::MpirunInput,
    pub(crate) clients: BTreeMap<u64, Link>,
    /// Clients that wait until the ranks have reported their logs.
    pub(crate) status_waiters: Vec<(u64, Instant)>,
    pub(crate) next: u64,
    pub(crate) beat: u64,
}

/// Runs the coordinator until mpirun ends.
pub fn run() -> Result<(), String> {
    crate::trace::start();
    rustbtl_process::scheduling::be_prompt();
    let mut input = BufReader::new(io::stdin());
    let done = Coordinator::start(&mut input);
    match done {
        Ok(mut coordinator) => {
            let _ = coordinator.serve(&mut input);
            coordinator.end();
            Ok(())
        }
        Err(problem) => {
            send_to_mpirun(&format!("{} {}", to_mpirun::ERROR, problem.replace('\n', " ")));
            Err(problem)
        }
    }
}

impl Coordinator {
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// When there is something to do even without a message.
    fn deadline(&self, beat_at: Instant) -> Instant {
        let scheduled = self.job.next_deadline();
        let scheduled = scheduled.map(|ms| self.started + Duration::from_millis(ms));
        let unauthenticated = self.unauthenticated.deadline();
        let status_waiters = self.status_waiters.iter().map(|(_, until)| *until);
        scheduled
            .into_iter()
            .chain(unauthenticated)
            .chain(status_waiters)
            .chain([beat_at])
            .min()
            .unwrap_or(beat_at)
    }

    fn serve(&mut self, input: &mut BufReader<io::Stdin>) -> io::Result<()> {
        let mut beat_at = Instant::now();
        let mut awake_until = beat_at;
        // What came with the configuration is buffered already: poll does not report it.
        if !input.buffer().is_empty() {
            self.read_mpirun(input)?;
        }
        loop {
            let mut poll = Poll::default();
            let mpirun = poll.add(input.get_ref().as_raw_fd(), false);
            let listeners = self.listeners.poll(&mut poll);
            let commands = poll.add(self.commands.as_raw_fd(), false);
            let manifest_writer = poll.add(self.manifest_writer.fd(), false);
            self.unauthenticated.poll(&mut poll);
            let mut add = |link: &Link| poll.add(link.fd(), link.wants_to_write());
            let agents: Vec<(u64, usize)> =
                self.agents.iter().map(|(&id, agent)| (id, add(&agent.link))).collect();
            let clients: Vec<(u64, usize)> =
                self.clients.iter().map(|(&id, link)| (id, add(link))).collect();
            let direct = self.direct.polled();
            let direct: Vec<(u64, usize)> =
                direct.map(|(id, fd, write)| (id, poll.add(fd, write))).collect();
            let now = Instant::now();
            let awake = awake_until > now;
            poll.wait(Some(if awake { now } else { self.deadline(beat_at) }))?;
            if awake {
                std::thread::yield_now();
            }

            if poll.is_ready(mpirun) && !self.read_mpirun(input)? {
                return Ok(());
            }
            let ready = direct.into_iter().filter(|&(_, place)| poll.is_ready(place));
            if self.read_rank_links(ready.map(|(id, _)| id)) {
                awake_until = Instant::now() + AWAKE;
            }
            for (id, place) in agents {
                if poll.is_ready(place) {
                    self.read_agent(id);
                }
            }
            for (id, place) in clients {
                if poll.is_ready(place) {
                    self.handle_client(id);
                }
            }
            if listeners.iter().any(|&slot| poll.is_ready(slot)) {
                self.unauthenticated.accept(&self.listeners);
            }
            self.drive_authentication();
            if poll.is_ready(commands) {
                self.accept_commands();
            }
            if poll.is_ready(manifest_writer) {
                let done = self.manifest_writer.poll();
                self.stored(done);
            }
            if Instant::now() >= beat_at {
                beat_at = Instant::now() + self.failure_timeout().heartbeat_interval();
                self.beat();
            }
            let now = self.now();
            self.job.tick(now);
            self.carry_out();
            self.answer_status();
        }
    }

    /// False: it has ended.
    fn read_mpirun(&mut self, input: &mut BufReader<io::Stdin>) -> io::Result<bool> {
        let bytes = input.fill_buf()?;
        let count = bytes.len();
        self.mpirun.add(bytes);
        input.consume(count);
        while let Some(text) = self.mpirun.next_line() {
            let now = self.now();
            self.job.handle_mpirun(now, &text);
            self.carry_out();
        }
        Ok(count > 0)
    }

    fn drive_authentication(&mut self) {
        for outcome in self.unauthenticated.advance(&self.secret) {
            match outcome {
                Outcome::Authenticated(stream) => {
                    if let Ok(link) = Link::over_network(stream) {
                        let (node, last_heard) = (String::new(), Instant::now());
                        let id = self.number();
                        let agent = Agent { link, node, pid: 0, last_heard, silent: false };
                        self.agents.insert(id, agent);
                    }
                }
                Outcome::Refused { address, reason } => {
                    let now = self.now();
                    if let Some(left_out) = self.notices.admit(now) {
                        self.events.write(json!({
                            "event": "refused",
                            "address": address.to_string(),
                            "reason": reason,
                            "left_out": left_out,
                        }));
                    }
                }
            }
        }
    }

    /// Everything that has arrived is handled before anybody is answered. True: frames wait for the
    /// answer.
    fn read_rank_links(&mut self, ready: impl Iterator<Item = u64>) -> bool {
        let mut received = false;
        for id in ready {
            self.determinants.handle_all(id, &self.direct.read(id));
            received = true;
        }
        if received {
            self.carry_out_determinants();
        }
        self.direct.waits()
    }

    fn read_agent(&mut self, id: u64) {
        let now = self.now();
        let Some(agent) = self.agents.get_mut(&id) else { return };
        (agent.last_heard, agent.silent) = (Instant::now(), false);
        let mut problem = agent.link.flush().and_then(|()| agent.link.read()).err();
        loop {
            let Some(agent) = self.agents.get_mut(&id) else { return };
            match agent.link.next_message::<FromNode>() {
                Ok(Some(FromNode::Agent { node, pid, version })) => {
                    let event = json!({
                        "event": "agent", "node": node, "pid": pid, "version": version
                    });
                    (agent.node, agent.pid) = (node.clone(), pid);
                    if self.job.is_protection_disabled() {
                        let _ = agent.link.send(&ToNode::CoordinatorExits {});
                    }
                    self.events.write(event);
                    self.replace_silent_agents(id, &node);
                    self.determinants.agent_here(id);
                    self.carry_out();
                }
                Ok(Some(FromNode::DirectConnection { rank })) => {
                    if let Some(Agent { link, .. }) = self.agents.remove(&id) {
                        self.direct.add(id, rank, link);
                        self.read_rank_links([id].into_iter());
                    }
                    return;
                }
                Ok(Some(message)) => {
                    if let FromNode::Guardian { rank, incarnation, .. } = &message {
                        if !self.job.accepts(*rank, *incarnation) {
                            let (rank, incarnation) = (*rank, *incarnation);
                            let end = ToNode::End { rank, incarnation, reason: ELSEWHERE.into() };
                            let _ = agent.link.send(&end);
                            continue;
                        }
                        self.home.insert(*rank, id);
                    }
                    let node = agent.node.clone();
                    if self.speaks_for(id, &message) {
                        if let FromNode::Rank { rank, message: FromRank::Hello { .. } } = &message {
                            self.direct.forget(*rank);
                        }
                        if !self.determinants.handle(id, &message) {
                            self.job.handle(now, &node, message);
                        }
                        self.carry_out();
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    problem = Some(error);
                    break;
                }
            }
        }
        if let Some(problem) = problem {
            self.lose_agent(id, &problem.to_string());
        }
    }

    /// An agent may send for the ranks that connected through it last.
    fn speaks_for(&self, id: u64, message: &FromNode) -> bool {
        match message {
            FromNode::Guardian { rank, .. }
            | FromNode::Rank { rank, .. }
            | FromNode::Frozen { rank, .. }
            | FromNode::Stored { rank, .. }
            | FromNode::StoreFailed { rank, .. }
            | FromNode::LostBeside { rank, .. }
            | FromNode::Ended { rank, .. }
            | FromNode::RankFailed { rank, .. }
            | FromNode::Restored { rank, .. }
            | FromNode::OutputViaDaemon { rank, .. }
            | FromNode::OutputOffsets { rank, .. }
            | FromNode::Output { rank, .. }
            | FromNode::ProxyFailed { host: rank, .. }
            | FromNode::GuardianDisconnected { rank } => self.home.get(rank) == Some(&id),
            // The rank of a lost node has no guardian yet that has connected: who was to start one
            // says so.
            FromNode::RestoreFailed { rank, .. } => {
                let of = [Some(*rank), self.job.host_of(*rank)];
                of.iter().flatten().any(|rank| self.home.get(rank) == Some(&id))
            }
            FromNode::Agent { .. }
            | FromNode::Heartbeat { .. }
            | FromNode::DirectConnection { .. }
            | FromNode::DeterminantsReplicated { .. }
            | FromNode::DeterminantsNotReplicated { .. }
            | FromNode::ReplicaServer { .. }
            | FromNode::SpareNode { .. }
            | FromNode::ImageReplicated { .. }
            | FromNode::ImageNotReplicated { .. } => true,
        }
    }

    /// After a cut of the network an agent connects again before its broken connection is noticed.
    fn replace_silent_agents(&mut self, by: u64, node: &str) {
        let before = self
            .agents
            .iter()
            .filter(|(id, agent)| **id != by && agent.silent && agent.node == node);
        let before: Vec<u64> = before.map(|(&id, _)| id).collect();
        before.into_iter().for_each(|id| self.lose_agent(id, "it has connected again"));
    }

    fn lose_agent(&mut self, id: u64, problem: &str) {
        let Some(agent) = self.agents.remove(&id) else { return };
        let node = agent.node;
        self.events.write(json!({"event": "agent_gone", "node": &node, "reason": problem}));
        let lost: Vec<PeerId> =
            self.home.iter().filter(|(_, home)| **home == id).map(|(&rank, _)| rank).collect();
        self.home.retain(|_, home| *home != id);
        self.determinants.agent_gone(id);
        self.job.agent_gone(self.now(), &node, &lost);
        self.carry_out();
    }

    fn stored(&mut self, (reports, messages): Done) {
        for (rank, message) in messages {
            self.send_to(rank, &message);
        }
        for report in reports {
            if let Report::Written(checkpoint, written) = report {
                let now = self.now();
                self.job.committed(now, checkpoint, written);
            }
        }
        self.carry_out();
    }

    fn failure_timeout(&self) -> FailureTimeout {
        FailureTimeout::from_ms(self.job.config.failure_timeout_ms)
    }

    fn beat(&mut self) {
        self.beat += 1;
        self.job.beat();
        let now = self.now();
        self.determinants.ask_for_missing(now);
        let silence = self.failure_timeout().silence();
        let beat = ToNode::Heartbeat { count: self.beat };
        self.send_to_all(&beat);
        for agent in self.agents.values_mut() {
            if !agent.silent && agent.last_heard.elapsed() > silence {
                agent.silent = true;
                self.events.write(json!({"event": "agent_silent", "node": agent.node}));
            }
        }
    }

    pub(crate) fn carry_out(&mut self) {
        loop {
            // Ranks are ordered to record before a checkpoint of them is ordered; and all effects
            // of determinants on the job are carried out.
            self.carry_out_determinants();
            let Some(effect) = self.job.next_effect() else { return };
            if self.job.must_persist() {
                self.persist();
            }
            match effect {
                Effect::Replay { set, incarnation, members, freely } => {
                    let messages = if freely {
                        self.determinants.begin_without_replay(set, incarnation, &members)
                    } else {
                        self.determinants.replay(set, incarnation, &members)
                    };
                    for (rank, message) in messages {
                        self.send_to(rank, &ToNode::Rank { rank, message });
                    }
                    self.determinants.replayed(set);
                }
                Effect::Fence { set, ran_in, before, asked } => {
                    self.determinants.fence(set, ran_in, before, asked);
                }
                Effect::Send(rank, message) => {
                    if let ToNode::Rank { message: ToRank::Trim { checkpoint }, .. } = &message {
                        self.determinants.trim(rank, *checkpoint);
                    }
                    if let ToNode::Rank { message: ToRank::Abort { checkpoint, .. }, .. } = &message
                    {
                        self.determinants.aborted(*checkpoint);
                    }
                    if let ToNode::Rank { message: ToRank::Endpoints { .. }, .. } = &message {
                        self.resume_from_journals();
                    }
                    if let Some((rank, message)) = self.manifest_writer.pass(rank, message) {
                        self.send_to(rank, &message);
                    }
                }
                Effect::SendNode(node, message) => {
                    let mut agents = self.agents.values_mut().rev();
                    if let Some(agent) = agents.find(|agent| agent.node == node) {
                        let _ = agent.link.send(&message);
                    }
                }
                Effect::SendAll(message) => self.send_to_all(&message),
                Effect::Commit(mut manifest) => {
                    manifest.unix_ms = unix_ms();
                    self.manifest_writer
                        .write(self.job.folder(CheckpointId(manifest.checkpoint)), manifest);
                }
                Effect::RemoveManifest(checkpoint) => {
                    self.manifest_writer.remove(checkpoint, self.job.folder(checkpoint))
                }
                Effect::Reply(client, reply) => self.reply(client, &reply),
                Effect::Mpirun(MpirunOrder::Fail(reason)) => {
                    let whole = format!("{reason}\n{}", self.determinants.account());
                    mpirun_pipe::order(&MpirunOrder::Fail(whole));
                }
                Effect::Mpirun(order) => mpirun_pipe::order(&order),
                Effect::Log(event) => self.events.write(event),
                Effect::NotifyUser(text) => report!("{text}"),
                Effect::DisableProtection => self.disable_protection(),
            }
        }
    }

    fn carry_out_determinants(&mut self) {
        for out in self.determinants.take_out() {
            match out {
                Out::Rank(rank, message) => {
                    if !self.direct.send(rank, &message) {
                        self.send_to(rank, &ToNode::Rank { rank, message });
                    }
                }
                Out::Agent(id, message) => {
                    if let Some(agent) = self.agents.get_mut(&id) {
                        let _ = agent.link.send(&message);
                    }
                }
                Out::Log(event) => self.events.write(event),
                Out::Persist(batches) => {
                    self.write_failover_store(|store| store.append_determinants(&batches))
                }
                Out::PersistAll(set, batch) => {
                    self.write_failover_store(|store| store.replace_determinants(set, &batch))
                }
                Out::Fenced(set, incarnation) => self.job.fenced(self.now(), set, incarnation),
                Out::Orphan(set, lost) => self.job.set_orphaned(self.now(), set, lost),
                Out::Deliver(id, message) => {
                    // Without its agent there is no checkpoint of this rank any more.
                    if let Some(node) = self.agents.get(&id).map(|agent| agent.node.clone()) {
                        self.job.handle(self.now(), &node, message);
                    }
                }
            }
        }
    }

    fn persist(&mut self) {
        let mut state = self.job.state();
        let clocks = self.determinants.clocks();
        state.clocks =
            clocks.map(|(checkpoint, rank, clock)| (checkpoint.0, rank.0, clock)).collect();
        self.write_failover_store(|store| store.write_state(&state));
    }

    /// Writes to the failover store. If that fails the store is removed: half of it would be worse
    /// than nothing.
    fn write_failover_store(&mut self, what: impl FnOnce(&mut FailoverStore) -> io::Result<()>) {
        let Some(failover_store) = &mut self.failover_store else { return };
        if let Err(error) = what(failover_store) {
            let reason = error.to_string();
            self.events.write(json!({"event": "state_persist_failed", "reason": reason}));
            if let Some(failover_store) = self.failover_store.take() {
                failover_store.remove();
            }
        }
    }

    /// Once, before the first endpoint is sent.
    fn resume_from_journals(&mut self) {
        let Some(folder) = self.journals.take() else { return };
        let read = |rank: PeerId| fs::read(folder.join(rank.to_string())).unwrap_or_default();
        for (rank, message) in self.determinants.resume_from_journals(read) {
            self.send_to(rank, &ToNode::Rank { rank, message });
        }
    }

    /// To the agents of all nodes. One that does not read is lost: a message to its ranks would be.
    fn send_to_all(&mut self, message: &ToNode) {
        let mut lost = Vec::new();
        for (&id, agent) in &mut self.agents {
            if agent.link.send(message).is_err() {
                lost.push(id);
            }
        }
        lost.into_iter().for_each(|id| self.lose_agent(id, "it does not read"));
    }

    /// To the agent of a rank. A broken connection is noticed when it is polled.
    fn send_to(&mut self, rank: PeerId, message: &ToNode) {
        let home = self.home.get(&rank).and_then(|home| self.agents.get_mut(home));
        if let Some(agent) = home {
            let _ = agent.link.send(message);
        }
    }

    fn disable_protection(&mut self) {
        for agent in self.agents.values_mut() {
            let _ = agent.link.send(&ToNode::CoordinatorExits {});
        }
    }

    /// mpirun has ended: only checkpoints and the list of events are left.
    fn end(&mut self) {
        // A checkpoint that is complete now makes older ones obsolete.
        while let Some(done) = self.manifest_writer.wait() {
            self.stored(done);
        }
        self.disable_protection();
        self.events.write(json!({"event": "end"}));
        if let Some(failover_store) = self.failover_store.take() {
            failover_store.remove();
        }
        // Of ranks that were ended in the middle.
        if self.job.config.directory.is_none()
            && let Ok(here) = std::env::current_dir()
            && let Ok(folder) = Folder::open(&settings::temporary_undo(&here, &self.job.name))
        {
            let _ = std::fs::remove_dir_all(folder.path());
        }
        jobs::remove(&self.socket);
    }
}
