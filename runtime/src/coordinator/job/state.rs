//! What the coordinator knows of the job, and what follows from what it hears. No I/O: effects
//! are handed to the driver (`mod.rs`), time is an argument.
//!
//! 1. Orders concern ranks that have said who they are; lines are ordered when all are ready.
//! 2. What a rank says counts for that rank only; nonsense is noted and changes nothing.
//! 3. Whoever waits for a line hears of its end, once.

use crate::coordinator::job::config::JobConfig;
use crate::coordinator::job::tables::checkpoint_requests::{CheckpointRequests, Requester};
use crate::coordinator::job::tables::checkpoints::CheckpointState;
use crate::coordinator::job::tables::failover::Failover;
use crate::coordinator::job::tables::mpirun_orders::MpirunOrder;
use crate::coordinator::job::tables::output::RelayedOutput;
use crate::coordinator::job::tables::replicas::Replicas;
use crate::coordinator::job::tables::rollback::Recovery;
use crate::coordinator::job::tables::spares::Spares;
use crate::coordinator::job::tables::unreachable::UnreachableAgents;
use crate::settings::Printed;
use crate::store;
use crate::store::{Image, Manifest};
use rustbtl_coordination::checkpoints::{CheckpointScheduler, Config, Input, SchedulerState};
use rustbtl_coordination::control::{
    CheckpointId, FromNode, FromRank, RankEndpoint, Reply, ToNode, ToRank,
};
use rustbtl_coordination::interval::Interval;
use rustbtl_coordination::quiescence::{CheckpointAnswer, CheckpointRefusal};
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

/// From the order until all have their picture.
const QUIESCENCE_TIMEOUT_MS: u64 = 120_000;
/// From there until all images are stored.
const STORE_TIMEOUT_MS: u64 = 3_600_000;
/// Until a line that was asked for and failed is tried once more.
const RETRY_MS: u64 = 1000;

/// What is to be done.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Send it to the agent of this rank.
    Send(PeerId, ToNode),
    /// Send it to the agent of this node.
    SendNode(String, ToNode),
    /// Write this manifest, then call [`Job::committed`].
    Commit(Manifest),
    /// Remove the manifest of this line.
    Forget(CheckpointId),
    /// Answer this client of the command's socket.
    Reply(u64, Reply),
    /// Send the ranks of a set that goes back what it has to do again.
    Replay {
        /// Which.
        set: SetId,
        /// The incarnation that begins.
        incarnation: Incarnation,
        /// Its ranks.
        members: Vec<PeerId>,
        /// Nothing: all go back together.
        anew: bool,
    },
    /// Ask others what they have of a set that has fallen, then call [`Job::fenced`].
    Fence {
        /// Which.
        set: SetId,
        /// The life in which it has fallen.
        ran_in: Incarnation,
        /// The incarnation that begins.
        before: Incarnation,
        /// Who may have something: rank, its set, and the life that it runs in.
        asked: Vec<(PeerId, SetId, Incarnation)>,
    },
    /// An order to mpirun.
    Mpirun(MpirunOrder),
    /// Write down an event.
    Log(Value),
    /// Tell the user, on the standard error of mpirun.
    Tell(String),
    /// All agents and their ranks go on without a coordinator.
    DisableProtection,
}

/// A rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rank {
    /// Its guardian is connected.
    pub(crate) here: bool,
    /// Its node or its guardian is lost, and it was not started by another one yet.
    pub(crate) lost: bool,
    /// The incarnation in which another guardian has started it, 0: never.
    pub(crate) adopted_in: Incarnation,
    /// Whose guardian has started its guardian, if it was started by one.
    pub(crate) host: Option<PeerId>,
    pub(crate) node: String,
    /// Of the program, as it sees it itself.
    pub(crate) pid: u32,
    pub(crate) set: Option<SetId>,
    pub(crate) incarnation: Incarnation,
    pub(crate) version: String,
    pub(crate) ready: bool,
    pub(crate) finishing: bool,
    pub(crate) ended: Option<i32>,
    /// Its guardian was told that it is not started again.
    pub(crate) given_up: bool,
    /// What was printed of its output, as far as that is only known here.
    pub(crate) printed: Printed,
    /// Its output goes to mpirun by a way that is its own since it was there.
    pub(crate) own_way: Option<[u64; 2]>,
    /// Where mpirun is in the streams of its output that come by way of the coordinator.
    pub(crate) reached: [Option<u64>; 2],
    /// To this coordinator.
    pub(crate) said_hello: bool,
    pub(crate) log: Option<[u64; 3]>,
    pub(crate) log_for: SetId,
    pub(crate) card: Vec<u8>,
}

/// Everything about one job.
pub struct Job {
    pub(crate) name: String,
    pub(crate) setup: JobConfig,
    pub(crate) ranks: BTreeMap<PeerId, Rank>,
    /// Once all ranks are ready.
    pub(crate) machine: Option<CheckpointScheduler>,
    pub(crate) recovery: Recovery,
    pub(crate) storage: Replicas,
    pub(crate) places: Spares,
    pub(crate) out_of_reach: UnreachableAgents,
    pub(crate) prints: RelayedOutput,
    /// All ranks may leave MPI_Finalize.
    pub(crate) may_finish: bool,
    pub(crate) lines: BTreeMap<CheckpointId, CheckpointState>,
    pub(crate) wishes: CheckpointRequests,
    /// Asked for while the job was starting, by who would rather wait than be refused.
    pub(crate) early: Vec<(Requester, Vec<Input>)>,
    pub(crate) cards_sent: bool,
    /// Coordinators before this one.
    pub(crate) life: u32,
    /// This one has taken over, and not everybody has come to it yet.
    pub(crate) again: Option<Failover>,
    /// Another one would have to know what has changed.
    pub(crate) changed: bool,
    /// Lines in a row that were given up.
    pub(crate) failed_lines: u32,
    pub(crate) effects: VecDeque<Effect>,
}

fn ms(interval: u64) -> Interval {
    if interval == 0 { Interval::Off } else { Interval::Fixed { interval_ms: interval } }
}

impl Job {
    /// A job of which nothing runs yet.
    pub fn new(name: String, setup: JobConfig) -> Self {
        Self {
            name,
            setup,
            ranks: BTreeMap::new(),
            machine: None,
            recovery: Recovery::default(),
            storage: Replicas::default(),
            places: Spares::default(),
            out_of_reach: UnreachableAgents::default(),
            prints: RelayedOutput::default(),
            may_finish: false,
            lines: BTreeMap::new(),
            wishes: CheckpointRequests::default(),
            early: Vec::new(),
            cards_sent: false,
            life: 0,
            again: None,
            changed: true,
            failed_lines: 0,
            effects: VecDeque::new(),
        }
    }

    /// The next thing to do.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When [`Self::tick`] is due.
    pub fn next_deadline(&self) -> Option<u64> {
        self.machine.as_ref().and_then(CheckpointScheduler::next_deadline)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: u64) {
        self.expire_failover(now);
        self.look_for_missing(now);
        self.input(now, Input::Tick);
    }

    pub(crate) fn log(&mut self, event: Value) {
        self.effects.push_back(Effect::Log(event));
    }

    pub(crate) fn send(&mut self, rank: PeerId, message: ToRank) {
        self.effects.push_back(Effect::Send(rank, ToNode::Rank { rank, message }));
    }

    pub(crate) fn members(&self, sets: &[SetId]) -> Vec<PeerId> {
        let of = |rank: &Rank| rank.set.is_some_and(|set| sets.contains(&set));
        self.ranks.iter().filter(|(_, rank)| of(rank)).map(|(&id, _)| id).collect()
    }

    /// From the agent of `node`.
    pub fn hear(&mut self, now: u64, node: &str, message: FromNode) {
        self.dispatch(now, node, message);
        self.see_who_has_come(now);
    }

    fn dispatch(&mut self, now: u64, node: &str, message: FromNode) {
        match message {
            FromNode::Guardian { rank, size, incarnation, .. } => {
                self.guardian(rank, size, incarnation, node);
            }
            FromNode::Rank { rank, message } => self.handle_rank(now, rank, message),
            FromNode::Frozen { rank, checkpoint: line, coordination_ns, pause_ns } => {
                if let Some(state) = self.lines.get_mut(&line) {
                    state.coordination_ns = state.coordination_ns.max(coordination_ns);
                    state.pause_ns = state.pause_ns.max(pause_ns);
                }
                self.input(
                    now,
                    Input::Answered {
                        rank,
                        answer: CheckpointAnswer::Frozen { checkpoint: line.0 },
                    },
                );
            }
            FromNode::Stored { rank, checkpoint: line, bytes, raw_bytes, ns, checksum } => {
                let set = self.ranks.get(&rank).and_then(|r| r.set).unwrap_or_default().0;
                let node = node.to_owned();
                if let Some(state) = self.lines.get_mut(&line) {
                    state.store_ns = state.store_ns.max(ns);
                    let image = Image { rank: rank.0, set, node, bytes, raw_bytes, checksum };
                    state.images.insert(rank, image);
                }
                self.stored(now, rank, line);
            }
            FromNode::StoreFailed { rank, checkpoint: line, reason } => {
                self.problem(line, format!("rank {rank} on {node}: {reason}"));
                self.input(now, Input::NotStored { rank, checkpoint: line.0 });
            }
            FromNode::Ended { rank, status } => self.ended(now, rank, status),
            FromNode::GuardianDisconnected { rank } => self.gone(now, rank),
            FromNode::RankFailed { rank, status, incarnation } => {
                self.fallen(now, rank, status, incarnation);
            }
            FromNode::OutputOffsets { rank, out, err } => {
                if let Some(Rank { printed, .. }) = self.ranks.get_mut(&rank) {
                    let [before_out, before_err] = printed.bytes;
                    printed.bytes = [before_out.max(out), before_err.max(err)];
                }
            }
            FromNode::OutputViaDaemon { rank, out, err } => {
                if let Some(state) = self.ranks.get_mut(&rank) {
                    state.own_way = Some([out, err]);
                    self.changed = true;
                }
            }
            FromNode::Output { rank, incarnation, stream, position, bytes } => {
                self.output(rank, incarnation, stream, position, &bytes);
            }
            FromNode::RestoreFailed { rank, incarnation, reason } => {
                self.not_restored(now, rank, incarnation, &reason);
            }
            FromNode::ProxyFailed { host, rank, incarnation, reachable, reason } => {
                self.proxy_failed(now, host, rank, incarnation, reachable, &reason);
            }
            FromNode::SpareNode { addresses, .. } => self.spare(now, node, addresses),
            FromNode::ReplicaServer { addresses } => self.shelf(now, node, addresses),
            FromNode::ImageReplicated { rank, checkpoint: line, node } => {
                self.copied(now, rank, line, &node)
            }
            FromNode::ImageNotReplicated { rank, checkpoint: line, node, reason } => {
                self.not_copied(now, rank, line, &node, &reason);
            }
            _ => {}
        }
    }

    fn guardian(&mut self, id: PeerId, size: u32, incarnation: Incarnation, node: &str) {
        if id.0 >= size || (self.setup.size != 0 && size != self.setup.size) {
            self.log(json!({"event": "protocol_error", "rank": id.0, "size": size, "node": node}));
            return;
        }
        self.setup.size = size;
        let rank = self.ranks.entry(id).or_default();
        (rank.here, rank.lost, rank.node) = (true, false, node.to_owned());
        rank.incarnation = incarnation;
        if incarnation.0 > 0 && incarnation == rank.adopted_in {
            // This guardian was told, and counts from there on.
            rank.printed.exact = false;
        }
        self.log(json!({"event": "guardian", "rank": id.0, "node": node}));
        self.guardian_of_rollback(id, incarnation);
        self.come_back(id);
        self.notify_again(id);
    }

    /// A set that had lost a guardian, and no rank, is whole again.
    fn come_back(&mut self, id: PeerId) {
        let Some(set) = self.ranks.get(&id).and_then(|rank| rank.set) else { return };
        let whole = |id: &PeerId| self.ranks[id].here && self.ranks[id].ended.is_none();
        if self.is_rolling_back(id) {
            return;
        }
        if self.machine.is_some() && self.members(&[set]).iter().all(whole) {
            // Nobody has gone back: it has nothing to repeat.
            self.input(0, Input::SetRestarted { set, checkpoint: u64::MAX });
            self.input(0, Input::ReplayComplete { set });
        }
    }

    fn handle_rank(&mut self, now: u64, id: PeerId, message: FromRank) {
        let of_this_life = match &message {
            FromRank::Hello { incarnation, .. } => self.is_of_this_incarnation(id, *incarnation),
            _ => true,
        };
        let Some(rank) = self.ranks.get_mut(&id).filter(|_| of_this_life) else { return };
        match message {
            FromRank::Hello { pid, incarnation, version, set, endpoint: card, .. } => {
                (rank.pid, rank.set, rank.incarnation) = (pid, Some(set), incarnation);
                (rank.card, rank.version, rank.said_hello) = (card, version, true);
                self.log(json!({"event": "rank", "rank": id.0, "pid": pid, "set": set.0}));
                self.come_back(id);
                self.send_cards();
                self.is_back(id);
            }
            FromRank::Ready {} => {
                rank.ready = true;
                self.start_lines(now);
                self.is_ready(now, id);
            }
            FromRank::ReplayComplete {} => self.rank_replay_complete(now, id),
            FromRank::ReplayPending { checkpoint: line } => self.is_replaying(now, id, line),
            FromRank::OutgoingStopped { checkpoint: line } => {
                let answer = CheckpointAnswer::Stopped { checkpoint: line.0 };
                self.input(now, Input::Answered { rank: id, answer });
            }
            FromRank::CheckpointFailed { checkpoint: line, reason } => {
                let node = rank.node.clone();
                self.problem(line, format!("rank {id} on {node}: {reason}"));
                let answer = CheckpointAnswer::Failed {
                    checkpoint: line.0,
                    refusal: CheckpointRefusal::Snapshot,
                };
                self.input(now, Input::Answered { rank: id, answer });
            }
            FromRank::Status { log_bytes, log_bytes_peak, messages, largest } => {
                rank.log = Some([log_bytes, log_bytes_peak, messages]);
                rank.log_for = largest;
            }
            FromRank::ReceivedVector { checkpoint: line, to, bytes } => {
                // What an earlier life says may be of a line that there is no more.
                let known = self.ranks.contains_key(&to) && !self.is_being_restored(id);
                if known {
                    self.send(to, ToRank::ReceivedVector { checkpoint: line, from: id, bytes });
                }
            }
            FromRank::Finishing {} => {
                rank.finishing = true;
                self.log(json!({"event": "finishing", "rank": id.0}));
                self.input(now, Input::Finishing { rank: id });
                self.finish(id);
            }
            FromRank::LogNearlyFull { set, bytes } => self.log_nearly_full(now, id, set, bytes),
            FromRank::RequestCheckpoint { number, all, then_exit, wait } => {
                let sets = rank.set.filter(|_| !all);
                let wisher = Requester::Rank(id, number);
                self.wish(now, wisher, sets, then_exit, wait);
            }
            _ => {} // kept by guardians, or by `determinants`
        }
    }

    /// After a restart everybody has to learn the others' new addresses.
    fn send_cards(&mut self) {
        let restarted = self.setup.restore.is_some();
        if !restarted || self.cards_sent || !self.all(|rank| rank.set.is_some()) {
            return;
        }
        self.cards_sent = true;
        let card = |(&rank, state): (&PeerId, &Rank)| RankEndpoint {
            rank,
            incarnation: state.incarnation,
            endpoint: state.card.clone(),
        };
        let cards: Vec<RankEndpoint> = self.ranks.iter().map(card).collect();
        let restarted: Vec<PeerId> = self.ranks.keys().copied().collect();
        for &rank in &restarted {
            let (cards, restarted) = (cards.clone(), restarted.clone());
            self.send(rank, ToRank::Endpoints { endpoints: cards, restarted });
        }
    }

    /// Are all ranks of the job known, and is it true of each?
    pub(crate) fn all(&self, of: impl Fn(&Rank) -> bool) -> bool {
        let size = self.setup.size as usize;
        size > 0 && self.ranks.len() == size && self.ranks.values().all(of)
    }

    fn start_lines(&mut self, now: u64) {
        let waits = self.machine.is_some() || self.again.is_some();
        if waits || !self.all(|rank| rank.ready && rank.set.is_some()) {
            return;
        }
        let first = self.setup.first_line();
        let known = SchedulerState { next_checkpoint: first, ..SchedulerState::default() };
        self.resume_lines(now, &known);
        self.log(json!({"event": "ready", "ranks": self.ranks.len()}));
        if self.life > 0 {
            self.is_whole(now, 0);
        }
        self.changed = true;
        self.first_line(now);
        self.take_early(now);
    }

    /// Who has asked while the job was starting.
    pub(crate) fn take_early(&mut self, now: u64) {
        for (who, inputs) in core::mem::take(&mut self.early) {
            self.try_request(now, who, inputs);
        }
    }

    /// Lines can be ordered from now on.
    pub(crate) fn resume_lines(&mut self, now: u64, known: &SchedulerState) {
        let possible = self.setup.has_storage();
        let if_possible = |interval| if possible { interval } else { Interval::Off };
        let config = Config {
            set_interval: if_possible(ms(self.setup.set_interval_ms)),
            global_interval: if_possible(self.setup.interval()),
            sets_at_once: 1,
            // Where lines end with the job only the youngest is of use.
            checkpoints_kept: if self.setup.is_local() { 1 } else { self.setup.keep },
            quiescence_timeout_ms: QUIESCENCE_TIMEOUT_MS,
            store_timeout_ms: STORE_TIMEOUT_MS,
            retry_ms: RETRY_MS,
        };
        let sets: Vec<(PeerId, SetId)> =
            self.ranks.iter().filter_map(|(&id, rank)| Some((id, rank.set?))).collect();
        let restored = self.setup.restore.as_deref().and_then(store::checkpoint_number);
        let next = known.next_checkpoint;
        self.machine = Some(match restored.filter(|_| known.kept.is_empty()) {
            Some(line) => CheckpointScheduler::restored(config, &sets, line.0, next, now),
            None => CheckpointScheduler::resumed(config, &sets, known, now),
        });
        self.count_room();
    }

    /// All have said that they are done, or have ended anyway.
    fn finish(&mut self, id: PeerId) {
        if self.all(|rank| rank.finishing || rank.ended.is_some()) {
            let known = self.ranks.iter().filter(|(_, rank)| rank.finishing);
            for rank in known.map(|(&id, _)| id).collect::<Vec<_>>() {
                self.send(rank, ToRank::MayFinish {});
            }
            (self.may_finish, self.changed) = (true, true);
            self.log(json!({"event": "job_finished", "last": id.0}));
        }
    }

    fn ended(&mut self, now: u64, id: PeerId, status: i32) {
        let Some(rank) = self.ranks.get_mut(&id) else { return };
        rank.ended = Some(status);
        let finishing = rank.finishing;
        // At the end of a job it is of no use any more.
        self.changed |= !self.may_finish;
        // The job ends with it: that is no death.
        let end = if status == 0 { "the job ended during the line" } else { "" };
        self.log(json!({"event": "ended", "rank": id.0, "status": status}));
        if !end.is_empty() {
            let of_it = |s: &CheckpointState| !s.complete && s.ranks.contains(&id);
            let open: Vec<CheckpointId> =
                self.lines.iter().filter(|(_, s)| of_it(s)).map(|(&line, _)| line).collect();
            open.into_iter().for_each(|line| self.problem(line, end.to_owned()));
        }
        self.input(now, Input::RankFailed { rank: id });
        if !finishing {
            self.finish(id);
        }
        if self.all(|rank| rank.ended.is_some()) {
            self.dismiss_spares();
        }
    }

    fn gone(&mut self, now: u64, id: PeerId) {
        let Some(rank) = self.ranks.get_mut(&id) else { return };
        rank.here = false;
        if rank.ended.is_none() {
            self.log(json!({"event": "guardian_disconnected", "rank": id.0}));
            self.input(now, Input::RankFailed { rank: id });
        }
    }

    /// The connection to the agent of these ranks is lost.
    pub fn agent_gone(&mut self, now: u64, node: &str, ranks: &[PeerId]) {
        ranks.iter().for_each(|&rank| self.gone(now, rank));
        self.shelf_gone(now, node);
    }

    /// Remembered until the line is given up.
    pub(crate) fn problem(&mut self, line: CheckpointId, problem: String) {
        if let Some(state) = self.lines.get_mut(&line)
            && state.problem.is_empty()
        {
            state.problem = problem;
        }
    }

    /// The manifest is written, or not.
    pub fn committed(&mut self, now: u64, line: CheckpointId, result: Result<(), String>) {
        let input = match result {
            Ok(()) => Input::Committed { checkpoint: line.0 },
            Err(problem) => {
                self.problem(line, problem);
                Input::NotCommitted { checkpoint: line.0 }
            }
        };
        self.input(now, input);
    }

    pub(crate) fn input(&mut self, now: u64, input: Input) {
        if let Err(problem) = self.try_input(now, input) {
            self.log(json!({"event": "protocol_error", "what": problem}));
        }
        self.carry_out(now);
    }

    pub(crate) fn try_input(&mut self, now: u64, input: Input) -> Result<(), String> {
        let Some(machine) = &mut self.machine else { return Ok(()) };
        machine.handle(now, input).map_err(|error| error.to_string())
    }

    pub(crate) fn carry_out(&mut self, now: u64) {
        while let Some(output) = self.machine.as_mut().and_then(CheckpointScheduler::poll_output) {
            self.carry_out_one(now, output);
        }
    }
}
