//! `rustbtl coordinator`: the one process per job, started by mpirun's component. It knows which
//! ranks are where, orders lines, writes their manifests, and answers the `rustbtl` command.
//!
//! ```text
//! mpirun ── stdin: setup, then "lost NODE", "checkpoint stay|exit" …; ends with the job ──> coord.
//!        <── stdout: "ok PORT JOB SECRET" or "error …"; then "end": the job is to end, and of
//!            lost nodes "recovered", or "fail TEXT": the job is to end with an error; "print …":
//!            output of a rank that has no daemon ──
//! agents ── TCP, after mutual proof of the secret ──>
//! rustbtl ── Unix socket in the user's private directory ──>
//! ```

use crate::agent::HEARTBEAT_INTERVAL;
use crate::auth::{Host, Progress, Secret, UnauthenticatedPeer};
use crate::coordinator::determinants::{Determinants, Out};
use crate::coordinator::driver::clock::unix_ms;
use crate::coordinator::driver::event_log::Events;
use crate::coordinator::driver::failover_store::Memory;
use crate::coordinator::driver::manifest_writer::{Done, ManifestWriter, Report};
use crate::coordinator::driver::mpirun_pipe::{self, tell_mpirun};
use crate::coordinator::driver::rank_links::Direct;
pub(crate) use crate::coordinator::job::state::{Effect, Job};
use crate::coordinator::job::tables::mpirun_orders::{MpirunOrder, to_mpirun};
use crate::link::Link;
use crate::os::Poll;
use rustbtl_coordination::control::{CheckpointId, FromNode, FromRank, ToNode, ToRank};
use rustbtl_fragments::ids::PeerId;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a stranger may take to prove that it belongs to the job.
const STRANGER_PATIENCE: Duration = Duration::from_secs(5);
/// Where a frame waits for its answers the coordinator does not sleep at once: to be
/// woken takes longer than all of the rest. Others get the processor when they want it.
const AWAKE: Duration = Duration::from_micros(60);
/// Strangers at a time; further ones wait in the kernel's queue.
const STRANGERS_MAX: usize = 64;
/// Quiescence of an agent after which a word is said about it.
const AGENT_SILENCE: Duration = Duration::from_secs(5);
/// How long a question about the ranks' logs may take.
pub(crate) const STATUS_PATIENCE: Duration = Duration::from_millis(300);
/// For the guardian of a life of a rank that is over.
const ELSEWHERE: &str = "this rank was started again on another node";

pub(crate) struct Agent {
    link: Link,
    /// Known from its first message.
    pub(crate) node: String,
    pub(crate) pid: u32,
    pub(crate) heard: Instant,
    silent: bool,
}

pub(crate) struct Coordinator {
    pub(crate) secret: Secret,
    pub(crate) started: Instant,
    pub(crate) job: Job,
    pub(crate) determinants: Determinants,
    /// For tests: a folder with what the ranks of an earlier life have recorded.
    pub(crate) journals: Option<PathBuf>,
    pub(crate) events: Events,
    /// For a coordinator that comes after this one.
    pub(crate) memory: Option<Memory>,
    pub(crate) storer: ManifestWriter,
    pub(crate) listener: TcpListener,
    pub(crate) commands: UnixListener,
    pub(crate) socket: PathBuf,
    pub(crate) strangers: Vec<UnauthenticatedPeer>,
    pub(crate) agents: BTreeMap<u64, Agent>,
    pub(crate) direct: Direct,
    /// The agent of each rank.
    pub(crate) home: BTreeMap<PeerId, u64>,
    /// From mpirun, and not yet a whole line.
    pub(crate) mpirun: crate::coordinator::driver::mpirun_pipe::Words,
    pub(crate) clients: BTreeMap<u64, Link>,
    /// Clients that wait for what the ranks say about their logs.
    pub(crate) curious: Vec<(u64, Instant)>,
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
            tell_mpirun(&format!("{} {}", to_mpirun::ERROR, problem.replace('\n', " ")));
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

    /// When there is something to do even if nobody says anything.
    fn deadline(&self, beat_at: Instant) -> Instant {
        let lines = self.job.next_deadline();
        let lines = lines.map(|ms| self.started + Duration::from_millis(ms));
        let strangers = self.strangers.iter().map(|stranger| stranger.until);
        let curious = self.curious.iter().map(|(_, until)| *until);
        lines.into_iter().chain(strangers).chain(curious).chain([beat_at]).min().unwrap_or(beat_at)
    }

    fn serve(&mut self, input: &mut BufReader<io::Stdin>) -> io::Result<()> {
        let mut beat_at = Instant::now();
        let mut awake_until = beat_at;
        // What came with the setup is not to be seen on the pipe.
        if !input.buffer().is_empty() {
            self.hear_mpirun(input)?;
        }
        loop {
            let mut poll = Poll::default();
            let mpirun = poll.add(input.get_ref().as_raw_fd(), false);
            let listener = (self.strangers.len() < STRANGERS_MAX)
                .then(|| poll.add(self.listener.as_raw_fd(), false));
            let commands = poll.add(self.commands.as_raw_fd(), false);
            let storer = poll.add(self.storer.fd(), false);
            let strangers: Vec<usize> =
                self.strangers.iter().map(|s| poll.add(s.stream().as_raw_fd(), false)).collect();
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

            if poll.is_ready(mpirun) && !self.hear_mpirun(input)? {
                return Ok(());
            }
            let ready = direct.into_iter().filter(|&(_, place)| poll.is_ready(place));
            if self.hear_direct(ready.map(|(id, _)| id)) {
                awake_until = Instant::now() + AWAKE;
            }
            for (id, place) in agents {
                if poll.is_ready(place) {
                    self.hear_agent(id);
                }
            }
            for (id, place) in clients {
                if poll.is_ready(place) {
                    self.hear_client(id);
                }
            }
            self.drive_strangers(|at| strangers.get(at).is_some_and(|&place| poll.is_ready(place)));
            if listener.is_some_and(|place| poll.is_ready(place)) {
                self.accept_strangers();
            }
            if poll.is_ready(commands) {
                self.accept_commands();
            }
            if poll.is_ready(storer) {
                let done = self.storer.look();
                self.stored(done);
            }
            if Instant::now() >= beat_at {
                beat_at = Instant::now() + HEARTBEAT_INTERVAL;
                self.beat();
            }
            let now = self.now();
            self.job.tick(now);
            self.carry_out();
            self.satisfy();
        }
    }

    /// False: it has ended.
    fn hear_mpirun(&mut self, input: &mut BufReader<io::Stdin>) -> io::Result<bool> {
        let bytes = input.fill_buf()?;
        let count = bytes.len();
        self.mpirun.add(bytes);
        input.consume(count);
        while let Some(line) = self.mpirun.next_line() {
            let now = self.now();
            self.job.hear_mpirun(now, &line);
            self.carry_out();
        }
        Ok(count > 0)
    }

    fn accept_strangers(&mut self) {
        while self.strangers.len() < STRANGERS_MAX {
            let Ok((stream, _)) = self.listener.accept() else { return };
            self.strangers.extend(UnauthenticatedPeer::new(
                Host::Coordinator,
                stream,
                STRANGER_PATIENCE,
            ));
        }
    }

    fn drive_strangers(&mut self, is_ready: impl Fn(usize) -> bool) {
        let now = Instant::now();
        for (at, mut stranger) in core::mem::take(&mut self.strangers).into_iter().enumerate() {
            let progress =
                if is_ready(at) { stranger.advance(&self.secret) } else { Progress::Waiting };
            match progress {
                Progress::Authenticated => {
                    if let Ok(link) = Link::new(stranger.into_stream()) {
                        let (node, heard) = (String::new(), Instant::now());
                        let id = self.number();
                        let agent = Agent { link, node, pid: 0, heard, silent: false };
                        self.agents.insert(id, agent);
                    }
                }
                Progress::Waiting if stranger.until > now => self.strangers.push(stranger),
                Progress::Waiting => {}
                Progress::Refused(reason) => {
                    self.events.write(json!({"event": "refused", "reason": reason}));
                }
            }
        }
    }

    /// Everything that has come is taken in before anybody is answered. True: frames wait for that.
    fn hear_direct(&mut self, ready: impl Iterator<Item = u64>) -> bool {
        let mut heard = false;
        for id in ready {
            for message in self.direct.hear(id) {
                self.determinants.hear(id, &message);
            }
            heard = true;
        }
        if heard {
            self.carry_out_determinants();
        }
        self.direct.waits()
    }

    fn hear_agent(&mut self, id: u64) {
        let now = self.now();
        let Some(agent) = self.agents.get_mut(&id) else { return };
        (agent.heard, agent.silent) = (Instant::now(), false);
        let mut problem = agent.link.flush().and_then(|()| agent.link.read()).err();
        loop {
            let Some(agent) = self.agents.get_mut(&id) else { return };
            match agent.link.next_message::<FromNode>() {
                Ok(Some(FromNode::Agent { node, pid, version })) => {
                    let event = json!({
                        "event": "agent", "node": node, "pid": pid, "version": version
                    });
                    (agent.node, agent.pid) = (node, pid);
                    if self.job.is_protection_disabled() {
                        let _ = agent.link.send(&ToNode::CoordinatorExits {});
                    }
                    self.events.write(event);
                    self.determinants.agent_here(id);
                    self.carry_out();
                }
                Ok(Some(FromNode::DirectConnection { rank })) => {
                    if let Some(Agent { link, .. }) = self.agents.remove(&id) {
                        self.direct.add(id, rank, link);
                        self.hear_direct([id].into_iter());
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
                        if let FromNode::Rank { rank, message } = &message
                            && let FromRank::NotReplayable { reason, blocker: hinders } = message
                        {
                            self.job.does_not_record(now, *rank, reason, *hinders);
                        }
                        if !self.determinants.hear(id, &message) {
                            self.job.hear(now, &node, message);
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

    /// An agent speaks for the ranks that came to it last.
    fn speaks_for(&self, id: u64, message: &FromNode) -> bool {
        match message {
            FromNode::Guardian { rank, .. }
            | FromNode::Rank { rank, .. }
            | FromNode::Frozen { rank, .. }
            | FromNode::Stored { rank, .. }
            | FromNode::StoreFailed { rank, .. }
            | FromNode::Ended { rank, .. }
            | FromNode::RankFailed { rank, .. }
            | FromNode::OutputViaDaemon { rank, .. }
            | FromNode::OutputOffsets { rank, .. }
            | FromNode::Output { rank, .. }
            | FromNode::RestoreFailed { rank, .. }
            | FromNode::ProxyFailed { host: rank, .. }
            | FromNode::GuardianDisconnected { rank } => self.home.get(rank) == Some(&id),
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

    fn stored(&mut self, (reports, told): Done) {
        for (rank, message) in told {
            self.send_to(rank, &message);
        }
        for report in reports {
            if let Report::Written(line, written) = report {
                let now = self.now();
                self.job.committed(now, line, written);
            }
        }
        self.carry_out();
    }

    fn beat(&mut self) {
        self.beat += 1;
        let beat = ToNode::Heartbeat { count: self.beat };
        let mut lost = Vec::new();
        for (&id, agent) in &mut self.agents {
            if agent.link.send(&beat).is_err() {
                lost.push(id);
            }
            if !agent.silent && agent.heard.elapsed() > AGENT_SILENCE {
                agent.silent = true;
                self.events.write(json!({"event": "agent_silent", "node": agent.node}));
            }
        }
        lost.into_iter().for_each(|id| self.lose_agent(id, "it does not read"));
    }

    pub(crate) fn carry_out(&mut self) {
        loop {
            // Ranks are told to record before a line of them is ordered; and of what follows from
            // determinants for the job nothing stays undone.
            self.carry_out_determinants();
            let Some(effect) = self.job.next_effect() else { return };
            if self.job.must_remember() {
                self.remember();
            }
            match effect {
                Effect::Replay { set, incarnation, members, anew } => {
                    let told = if anew {
                        self.determinants.begin_anew(set, incarnation, &members)
                    } else {
                        self.determinants.replay(set, incarnation, &members)
                    };
                    for (rank, message) in told {
                        self.send_to(rank, &ToNode::Rank { rank, message });
                    }
                    self.determinants.replayed(set);
                }
                Effect::Fence { set, ran_in, before, asked } => {
                    self.determinants.fence(set, ran_in, before, asked);
                }
                Effect::Send(rank, message) => {
                    if let ToNode::Rank { message: ToRank::Trim { checkpoint: line }, .. } =
                        &message
                    {
                        self.determinants.trim(rank, *line);
                    }
                    if let ToNode::Rank {
                        message: ToRank::Abort { checkpoint: line, .. }, ..
                    } = &message
                    {
                        self.determinants.aborted(*line);
                    }
                    if let ToNode::Rank { message: ToRank::Endpoints { .. }, .. } = &message {
                        self.hand_back_journals();
                    }
                    if let Some((rank, message)) = self.storer.pass(rank, message) {
                        self.send_to(rank, &message);
                    }
                }
                Effect::SendNode(node, message) => {
                    let mut agents = self.agents.values_mut().rev();
                    if let Some(agent) = agents.find(|agent| agent.node == node) {
                        let _ = agent.link.send(&message);
                    }
                }
                Effect::Commit(mut manifest) => {
                    manifest.unix_ms = unix_ms();
                    self.storer.write(self.job.folder(CheckpointId(manifest.checkpoint)), manifest);
                }
                Effect::Forget(line) => self.storer.remove(line, self.job.folder(line)),
                Effect::Reply(client, reply) => self.reply(client, &reply),
                Effect::Mpirun(MpirunOrder::Fail(reason)) => {
                    let whole = format!("{reason}\n{}", self.determinants.account());
                    mpirun_pipe::order(&MpirunOrder::Fail(whole));
                }
                Effect::Mpirun(order) => mpirun_pipe::order(&order),
                Effect::Log(event) => self.events.write(event),
                Effect::Tell(text) => report!("{text}"),
                Effect::DisableProtection => self.let_go(),
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
                Out::Note(set, batch) => self.keep(|memory| memory.note(set, &batch)),
                Out::NoteAnew(set, batch) => self.keep(|memory| memory.note_anew(set, &batch)),
                Out::Fenced(set, incarnation) => self.job.fenced(self.now(), set, incarnation),
                Out::Hear(id, message) => {
                    // Without its agent there is no line of this rank any more.
                    if let Some(node) = self.agents.get(&id).map(|agent| agent.node.clone()) {
                        self.job.hear(self.now(), &node, message);
                    }
                }
            }
        }
    }

    fn remember(&mut self) {
        let mut state = self.job.state();
        let clocks = self.determinants.clocks();
        state.clocks = clocks.map(|(line, rank, clock)| (line.0, rank.0, clock)).collect();
        self.keep(|memory| memory.remember(&state));
    }

    /// Half of it would be worse than nothing.
    fn keep(&mut self, what: impl FnOnce(&mut Memory) -> io::Result<()>) {
        let Some(memory) = &mut self.memory else { return };
        if let Err(error) = what(memory) {
            let reason = error.to_string();
            self.events.write(json!({"event": "state_persist_failed", "reason": reason}));
            if let Some(memory) = self.memory.take() {
                memory.forget();
            }
        }
    }

    /// Once, before the first card.
    fn hand_back_journals(&mut self) {
        let Some(folder) = self.journals.take() else { return };
        let read = |rank: PeerId| fs::read(folder.join(rank.to_string())).unwrap_or_default();
        for (rank, message) in self.determinants.hand_back(read) {
            self.send_to(rank, &ToNode::Rank { rank, message });
        }
    }

    /// To the agent of a rank. A broken connection is noticed when it is polled.
    fn send_to(&mut self, rank: PeerId, message: &ToNode) {
        let home = self.home.get(&rank).and_then(|home| self.agents.get_mut(home));
        if let Some(agent) = home {
            let _ = agent.link.send(message);
        }
    }

    fn let_go(&mut self) {
        for agent in self.agents.values_mut() {
            let _ = agent.link.send(&ToNode::CoordinatorExits {});
        }
    }

    /// mpirun has ended: leave nothing behind but lines and the list of events.
    fn end(&mut self) {
        // A line that is complete now makes older ones go.
        while let Some(done) = self.storer.wait() {
            self.stored(done);
        }
        self.let_go();
        self.events.write(json!({"event": "end"}));
        if let Some(memory) = self.memory.take() {
            memory.forget();
        }
        let _ = fs::remove_file(&self.socket);
    }
}
