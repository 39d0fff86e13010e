//! What the coordinator knows of the job, and which rule handles which message. No I/O: effects are
//! returned to the driver (`driver/`), time is an argument.
//!
//! 1. Orders concern ranks that have connected; checkpoints are ordered when all are ready.
//! 2. A report of a rank counts for that rank only; protocol errors are logged and change nothing.
//! 3. Whoever waits for a checkpoint is notified of its end, once.

use crate::coordinator::job::config::JobConfig;
use crate::coordinator::job::tables::checkpoint_requests::{CheckpointRequests, Requester};
use crate::coordinator::job::tables::checkpoints::CheckpointState;
use crate::coordinator::job::tables::collective_drain::Drain;
use crate::coordinator::job::tables::failover::Failover;
use crate::coordinator::job::tables::mpirun_orders::MpirunOrder;
use crate::coordinator::job::tables::output::RelayedOutput;
use crate::coordinator::job::tables::replicas::Replicas;
use crate::coordinator::job::tables::rollback::Recovery;
use crate::coordinator::job::tables::silence::NodeSilence;
use crate::coordinator::job::tables::spares::Spares;
use crate::coordinator::job::tables::standstill::Standstill;
use crate::coordinator::job::tables::suspensions::Suspensions;
use crate::coordinator::job::tables::unreachable::UnreachableAgents;
use crate::coordinator::job::tables::verbs::Verbs;
use crate::coordinator::job::tables::waiting::Waiting;
use crate::settings::Printed;
use crate::store;
use crate::store::{Image, Manifest};
use rustbtl_coordination::checkpoints::{CheckpointScheduler, Config, Input, SchedulerState};
use rustbtl_coordination::collective_clock::DrainInput;
use rustbtl_coordination::control::{
    CheckpointId, FromNode, FromRank, RankEndpoint, Reply, ToNode, ToRank,
};
use rustbtl_coordination::determinants::ReplaysEnd;
use rustbtl_coordination::interval::Interval;
use rustbtl_coordination::quiescence::{CheckpointAnswer, CheckpointRefusal};
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

/// From the order until all have their snapshot.
const QUIESCENCE_TIMEOUT_MS: u64 = 120_000;
/// From there until all images are stored.
const STORE_TIMEOUT_MS: u64 = 3_600_000;
/// Until a checkpoint that was requested and failed is tried once more.
const RETRY_MS: u64 = 1000;

/// What is to be done.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Send it to the agent of this rank.
    Send(PeerId, ToNode),
    /// Send it to the agent of this node.
    SendNode(String, ToNode),
    /// To the agents of all nodes.
    SendAll(ToNode),
    /// Write this manifest, then call [`Job::committed`].
    Commit(Manifest),
    /// Remove the manifest of this checkpoint.
    RemoveManifest(CheckpointId),
    /// Answer this client of the command's socket.
    Reply(u64, Reply),
    /// Send the ranks of a set in rollback what they replay.
    Replay {
        /// Which.
        set: SetId,
        /// The incarnation that begins.
        incarnation: Incarnation,
        /// Its ranks.
        members: Vec<PeerId>,
        /// Nobody has received anything of it: they replay nothing.
        freely: bool,
    },
    /// Ask others what they have received of a failed set, then call [`Job::fenced`].
    Fence {
        /// Which.
        set: SetId,
        /// The incarnation in which it has failed.
        ran_in: Incarnation,
        /// The incarnation that begins.
        before: Incarnation,
        /// Who may have received something: rank, its set, and the incarnation that it runs in.
        asked: Vec<(PeerId, SetId, Incarnation)>,
    },
    /// An order to mpirun.
    Mpirun(MpirunOrder),
    /// Write down an event.
    Log(Value),
    /// A message to the user, on the standard error of mpirun.
    NotifyUser(String),
    /// All agents and their ranks continue without a coordinator.
    DisableProtection,
}

/// A rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rank {
    /// Its guardian is connected.
    pub(crate) here: bool,
    /// Its node or its guardian is lost, and no other guardian has started it yet.
    pub(crate) lost: bool,
    /// The incarnation in which another guardian has started it, 0: never.
    pub(crate) adopted_in: Incarnation,
    /// The rank whose guardian has started its guardian, if any.
    pub(crate) host: Option<PeerId>,
    pub(crate) node: String,
    /// The lost node that it was on before this one.
    pub(crate) came_from: Option<String>,
    /// Of the program, in its own name space.
    pub(crate) pid: u32,
    pub(crate) set: Option<SetId>,
    pub(crate) incarnation: Incarnation,
    pub(crate) version: String,
    pub(crate) ready: bool,
    pub(crate) finishing: bool,
    pub(crate) ended: Option<i32>,
    /// Its program was ended, and did not end by itself: what that means is mpirun's to say
    /// (`rules/rank_ends.rs`).
    pub(crate) killed: bool,
    /// Its guardian has been notified that it is not restarted.
    pub(crate) given_up: bool,
    /// What was printed of its output, as far as only the coordinator knows it.
    pub(crate) printed: Printed,
    /// Its output goes to mpirun through a daemon of its own since this offset.
    pub(crate) own_way: Option<[u64; 2]>,
    /// How far mpirun is in the streams of its output that the coordinator relays.
    pub(crate) reached: [Option<u64>; 2],
    /// It has sent `Hello` to this coordinator.
    pub(crate) hello_received: bool,
    pub(crate) log: Option<[u64; 4]>,
    pub(crate) log_for: SetId,
    pub(crate) endpoint: Vec<u8>,
}

/// Everything about one job.
pub struct Job {
    pub(crate) name: String,
    pub(crate) config: JobConfig,
    pub(crate) ranks: BTreeMap<PeerId, Rank>,
    /// Set once all ranks are ready.
    pub(crate) scheduler: Option<CheckpointScheduler>,
    pub(crate) recovery: Recovery,
    pub(crate) suspensions: Suspensions,
    pub(crate) drain: Drain,
    pub(crate) verbs: Verbs,
    pub(crate) waiting: Waiting,
    pub(crate) standstill: Standstill,
    /// Whether all replays are over, after the last report that one is complete.
    pub(crate) replays_end: ReplaysEnd,
    pub(crate) storage: Replicas,
    pub(crate) spares: Spares,
    pub(crate) unreachable: UnreachableAgents,
    pub(crate) silence: NodeSilence,
    pub(crate) relayed_output: RelayedOutput,
    /// All ranks may leave MPI_Finalize.
    pub(crate) may_finish: bool,
    pub(crate) checkpoints: BTreeMap<CheckpointId, CheckpointState>,
    pub(crate) requests: CheckpointRequests,
    /// Requested while the job was starting, by who rather waits than is refused.
    pub(crate) early_requests: Vec<(Requester, Vec<Input>)>,
    pub(crate) endpoints_sent: bool,
    /// Coordinators of the job before this one.
    pub(crate) failovers: u32,
    /// A failover is in progress: not everybody has connected yet.
    pub(crate) failover: Option<Failover>,
    /// The persisted state is out of date.
    pub(crate) changed: bool,
    /// Checkpoints in a row that were aborted.
    pub(crate) failed_checkpoints: u32,
    pub(crate) effects: VecDeque<Effect>,
}

fn ms(interval: u64) -> Interval {
    if interval == 0 { Interval::Off } else { Interval::Fixed { interval_ms: interval } }
}

impl Job {
    /// A job of which nothing runs yet.
    pub fn new(name: String, config: JobConfig) -> Self {
        Self {
            name,
            config,
            ranks: BTreeMap::new(),
            scheduler: None,
            recovery: Recovery::default(),
            suspensions: Suspensions::default(),
            drain: Drain::default(),
            verbs: Verbs::default(),
            waiting: Waiting::default(),
            standstill: Standstill::default(),
            replays_end: ReplaysEnd::new(0),
            storage: Replicas::default(),
            spares: Spares::default(),
            unreachable: UnreachableAgents::default(),
            silence: NodeSilence::default(),
            relayed_output: RelayedOutput::default(),
            may_finish: false,
            checkpoints: BTreeMap::new(),
            requests: CheckpointRequests::default(),
            early_requests: Vec::new(),
            endpoints_sent: false,
            failovers: 0,
            failover: None,
            changed: true,
            failed_checkpoints: 0,
            effects: VecDeque::new(),
        }
    }

    /// The next thing to do.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When [`Self::tick`] is due.
    pub fn next_deadline(&self) -> Option<u64> {
        let checkpoints = self.scheduler.as_ref().and_then(CheckpointScheduler::next_deadline);
        checkpoints.into_iter().chain(self.drain.next_deadline()).min()
    }

    /// Time has passed.
    pub fn tick(&mut self, now: u64) {
        self.expire_failover(now);
        self.check_reachability(now);
        self.decide_losses(now);
        self.check_standstill(now);
        self.report_slow_checkpoints(now);
        self.drain_input(now, DrainInput::Tick);
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
    pub fn handle(&mut self, now: u64, node: &str, message: FromNode) {
        self.dispatch(now, node, message);
        self.check_failover(now);
    }

    fn dispatch(&mut self, now: u64, node: &str, message: FromNode) {
        match message {
            FromNode::Guardian { rank, size, incarnation, .. } => {
                self.guardian(rank, size, incarnation, node);
            }
            FromNode::Rank { rank, message } => self.handle_rank(now, rank, message),
            FromNode::Frozen { rank, checkpoint, coordination_ns, pause_ns } => {
                if let Some(state) = self.checkpoints.get_mut(&checkpoint) {
                    state.coordination_ns = state.coordination_ns.max(coordination_ns);
                    state.pause_ns = state.pause_ns.max(pause_ns);
                }
                self.input(
                    now,
                    Input::Answered {
                        rank,
                        answer: CheckpointAnswer::Frozen { checkpoint: checkpoint.0 },
                    },
                );
            }
            FromNode::Stored { rank, checkpoint, bytes, raw_bytes, ns, lost_ns, checksum } => {
                let set = self.ranks.get(&rank).and_then(|r| r.set).unwrap_or_default().0;
                let node = node.to_owned();
                if let Some(state) = self.checkpoints.get_mut(&checkpoint) {
                    state.store_ns = state.store_ns.max(ns);
                    state.lost_ns = state.lost_ns.max(lost_ns);
                    let image = Image { rank: rank.0, set, node, bytes, raw_bytes, checksum };
                    state.images.insert(rank, image);
                }
                let [lost_ms, of_ms] = [lost_ns, ns].map(|ns| ns.div_ceil(1_000_000));
                let checkpoint_number = checkpoint.0;
                self.input(
                    now,
                    Input::StoringCost { checkpoint: checkpoint_number, lost_ms, of_ms },
                );
                self.stored(now, rank, checkpoint);
            }
            FromNode::LostBeside { rank, checkpoint, lost_ns } => {
                if let Some(state) = self.checkpoints.get_mut(&checkpoint) {
                    state.lost_ns = state.lost_ns.max(lost_ns);
                }
                let (checkpoint, lost_ms) = (checkpoint.0, lost_ns.div_ceil(1_000_000));
                self.input(now, Input::LostBeside { rank, checkpoint, lost_ms });
            }
            FromNode::StoreFailed { rank, checkpoint, reason } => {
                self.problem(checkpoint, format!("rank {rank} on {node}: {reason}"));
                self.input(now, Input::NotStored { rank, checkpoint: checkpoint.0 });
            }
            FromNode::Ended { rank, status, ordered } => {
                self.ended(now, rank, status, ordered);
            }
            FromNode::GuardianDisconnected { rank } => self.guardian_disconnected(now, rank),
            FromNode::RankFailed { rank, status, incarnation } => {
                self.rank_failed(now, rank, status, incarnation);
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
            FromNode::Restored { rank, incarnation } => self.rank_made(rank, incarnation),
            FromNode::RestoreFailed { rank, incarnation, reason } => {
                self.not_restored(now, rank, incarnation, &reason);
            }
            FromNode::ProxyFailed { host, rank, incarnation, reachable, reason } => {
                self.proxy_failed(now, host, rank, incarnation, reachable, &reason);
            }
            FromNode::SpareNode { addresses, .. } => self.spare(now, node, addresses),
            FromNode::ReplicaServer { addresses } => self.replica_server(now, node, addresses),
            FromNode::ImageReplicated { rank, checkpoint, node } => {
                self.image_replicated(now, rank, checkpoint, &node)
            }
            FromNode::ImageNotReplicated { rank, checkpoint, node, reason } => {
                self.image_not_replicated(now, rank, checkpoint, &node, &reason);
            }
            _ => {}
        }
    }

    fn guardian(&mut self, id: PeerId, size: u32, incarnation: Incarnation, node: &str) {
        if id.0 >= size || (self.config.size != 0 && size != self.config.size) {
            self.log(json!({"event": "protocol_error", "rank": id.0, "size": size, "node": node}));
            return;
        }
        self.config.size = size;
        let rank = self.ranks.entry(id).or_default();
        (rank.here, rank.lost, rank.node) = (true, false, node.to_owned());
        (rank.incarnation, rank.killed) = (incarnation, false);
        if incarnation.0 > 0 && incarnation == rank.adopted_in {
            // This guardian has been sent the offset, and counts from there.
            rank.printed.exact = false;
        }
        self.log(json!({"event": "guardian", "rank": id.0, "node": node}));
        self.guardian_of_rollback(id, incarnation);
        self.guardian_reconnected(id);
        self.reconsider();
        self.repeat_may_finish(id);
    }

    /// A set that had lost a guardian, and no rank, is intact again.
    fn guardian_reconnected(&mut self, id: PeerId) {
        let Some(set) = self.ranks.get(&id).and_then(|rank| rank.set) else { return };
        let is_intact = |id: &PeerId| self.ranks[id].here && self.ranks[id].ended.is_none();
        if self.is_rolling_back(id) {
            return;
        }
        if self.scheduler.is_some() && self.members(&[set]).iter().all(is_intact) {
            // Nobody was rolled back: nothing is replayed.
            self.input(0, Input::SetRestarted { set, checkpoint: u64::MAX });
            self.input(0, Input::ReplayComplete { set });
        }
    }

    fn handle_rank(&mut self, now: u64, id: PeerId, message: FromRank) {
        let is_current = match &message {
            FromRank::Hello { incarnation, .. } => self.is_of_this_incarnation(id, *incarnation),
            _ => true,
        };
        let Some(rank) = self.ranks.get_mut(&id).filter(|_| is_current) else { return };
        match message {
            FromRank::Hello { pid, incarnation, version, set, endpoint, .. } => {
                (rank.pid, rank.set, rank.incarnation) = (pid, Some(set), incarnation);
                (rank.endpoint, rank.version, rank.hello_received) = (endpoint, version, true);
                // After a restart they do not bypass any more.
                self.drain.bypassing.remove(&id);
                self.log(json!({"event": "rank", "rank": id.0, "pid": pid, "set": set.0}));
                self.guardian_reconnected(id);
                self.send_endpoints();
                self.rank_restored(id);
            }
            FromRank::Ready {} => {
                rank.ready = true;
                self.start_scheduler(now);
                self.rank_ready(now, id);
                self.repeat_replay_question(id);
            }
            FromRank::NotReplayable { reason, blocker } => {
                self.mark_not_replayable(now, id, &reason, blocker);
            }
            FromRank::CollectivesBypass {} => drop(self.drain.bypassing.insert(id)),
            FromRank::Clock { message } => {
                self.drain_input(now, DrainInput::Message { rank: id, message });
            }
            FromRank::VerbsPart { checkpoint, step, part } => {
                self.verbs_part(now, id, (checkpoint, step), part);
            }
            FromRank::VerbsName { name, generation, value } => {
                self.verbs_name(id, name, generation, value);
            }
            FromRank::FindVerbsName { number, name, generation } => {
                self.find_verbs_name(id, number, &name, generation);
            }
            FromRank::ReplayComplete {} => self.rank_replay_complete(now, id),
            FromRank::ReplayReported { number } => self.replay_reported(id, number),
            FromRank::ReplayPending { checkpoint } => self.replay_pending(now, id, checkpoint),
            FromRank::OutgoingStopped { checkpoint } => {
                let answer = CheckpointAnswer::Stopped { checkpoint: checkpoint.0 };
                self.input(now, Input::Answered { rank: id, answer });
            }
            FromRank::CheckpointFailed { checkpoint, reason } => {
                let node = rank.node.clone();
                self.problem(checkpoint, format!("rank {id} on {node}: {reason}"));
                let answer = CheckpointAnswer::Failed {
                    checkpoint: checkpoint.0,
                    refusal: CheckpointRefusal::Snapshot,
                };
                self.input(now, Input::Answered { rank: id, answer });
            }
            FromRank::Status { log_bytes, log_bytes_peak, messages, largest, log_budget } => {
                rank.log = Some([log_bytes, log_bytes_peak, messages, log_budget]);
                rank.log_for = largest;
            }
            FromRank::Waited { sample, waited_ns, messages } => {
                self.rank_waited(now, id, sample, (waited_ns, messages));
            }
            FromRank::ReceivedVector { checkpoint, to, bytes } => {
                // What an earlier incarnation sends may be of a checkpoint that no longer exists.
                let known = self.ranks.contains_key(&to) && !self.is_being_restored(id);
                if known {
                    self.send(to, ToRank::ReceivedVector { checkpoint, from: id, bytes });
                }
            }
            FromRank::Diverged { rank, problem } => self.rank_diverged(now, id, rank, problem),
            FromRank::Finishing {} => {
                rank.finishing = true;
                self.log(json!({"event": "finishing", "rank": id.0}));
                self.input(now, Input::Finishing { rank: id });
                self.finish(id);
            }
            FromRank::LogNearlyFull { set, bytes } => self.log_nearly_full(now, id, set, bytes),
            FromRank::LoggingOverBudget { set, spent_ns, elapsed_ns } => {
                self.logging_over_budget(now, id, set, [spent_ns, elapsed_ns]);
            }
            FromRank::RequestCheckpoint { number, all, then_exit, wait } => {
                let all = all || !self.drain.bypassing.is_empty();
                let sets = rank.set.filter(|_| !all);
                let requester = Requester::Rank(id, number);
                self.request(now, requester, sets, then_exit, wait);
            }
            _ => {} // for guardians, or for `determinants`
        }
    }

    /// After a restart everybody needs the new endpoints of all others.
    fn send_endpoints(&mut self) {
        let restarted = self.config.restore.is_some();
        if !restarted || self.endpoints_sent || !self.all(|rank| rank.set.is_some()) {
            return;
        }
        self.endpoints_sent = true;
        let endpoint = |(&rank, state): (&PeerId, &Rank)| RankEndpoint {
            rank,
            incarnation: state.incarnation,
            endpoint: state.endpoint.clone(),
        };
        let endpoints: Vec<RankEndpoint> = self.ranks.iter().map(endpoint).collect();
        let restarted: Vec<PeerId> = self.ranks.keys().copied().collect();
        for &rank in &restarted {
            let (endpoints, restarted) = (endpoints.clone(), restarted.clone());
            self.send(rank, ToRank::Endpoints { endpoints, restarted });
        }
    }

    /// Are all ranks of the job known, and is it true of each?
    pub(crate) fn all(&self, of: impl Fn(&Rank) -> bool) -> bool {
        let size = self.config.size as usize;
        size > 0 && self.ranks.len() == size && self.ranks.values().all(of)
    }

    fn start_scheduler(&mut self, now: u64) {
        let waits = self.scheduler.is_some() || self.failover.is_some();
        if waits || !self.all(|rank| rank.ready && rank.set.is_some()) {
            return;
        }
        let first = self.config.first_checkpoint();
        let known = SchedulerState { next_checkpoint: first, ..SchedulerState::default() };
        self.resume_scheduler(now, &known);
        let secret = self.config.secret_travels.name();
        self.log(json!({"event": "ready", "ranks": self.ranks.len(), "secret": secret}));
        if self.failovers > 0 {
            self.complete_failover(now, 0);
        }
        self.changed = true;
        self.request_first_checkpoint(now);
        self.handle_early_requests(now);
    }

    /// Handles the requests that came while the job was starting.
    pub(crate) fn handle_early_requests(&mut self, now: u64) {
        for (who, inputs) in core::mem::take(&mut self.early_requests) {
            self.try_request(now, who, inputs);
        }
    }

    /// Checkpoints can be ordered from now on.
    pub(crate) fn resume_scheduler(&mut self, now: u64, known: &SchedulerState) {
        let possible = self.config.has_storage();
        let if_possible = |interval| if possible { interval } else { Interval::Off };
        let config = Config {
            set_interval: if_possible(ms(self.config.set_interval_ms)),
            global_interval: if_possible(self.config.interval()),
            sets_at_once: 1,
            // Where checkpoints end with the job only the youngest is of use.
            checkpoints_kept: if self.config.is_local() { 1 } else { self.config.keep },
            quiescence_timeout_ms: QUIESCENCE_TIMEOUT_MS,
            store_timeout_ms: STORE_TIMEOUT_MS,
            retry_ms: RETRY_MS,
        };
        let sets: Vec<(PeerId, SetId)> =
            self.ranks.iter().filter_map(|(&id, rank)| Some((id, rank.set?))).collect();
        let restored = self.config.restore.as_deref().and_then(store::checkpoint_number);
        let next = known.next_checkpoint;
        self.scheduler = Some(match restored.filter(|_| known.kept.is_empty()) {
            Some(checkpoint) => {
                CheckpointScheduler::restored(config, &sets, checkpoint.0, next, now)
            }
            None => CheckpointScheduler::resumed(config, &sets, known, now),
        });
        self.count_room();
    }

    fn guardian_disconnected(&mut self, now: u64, id: PeerId) {
        let Some(rank) = self.ranks.get_mut(&id) else { return };
        rank.here = false;
        if rank.ended.is_none() {
            self.log(json!({"event": "guardian_disconnected", "rank": id.0}));
            self.input(now, Input::RankFailed { rank: id });
        }
    }

    /// The connection to the agent of these ranks is lost.
    pub fn agent_gone(&mut self, now: u64, node: &str, ranks: &[PeerId]) {
        ranks.iter().for_each(|&rank| self.guardian_disconnected(now, rank));
        self.replica_server_gone(now, node);
    }

    /// Stored until the checkpoint is aborted.
    pub(crate) fn problem(&mut self, checkpoint: CheckpointId, problem: String) {
        if let Some(state) = self.checkpoints.get_mut(&checkpoint)
            && state.problem.is_empty()
        {
            state.problem = problem;
        }
    }

    /// The manifest is written, or not.
    pub fn committed(&mut self, now: u64, checkpoint: CheckpointId, result: Result<(), String>) {
        let input = match result {
            Ok(()) => Input::Committed { checkpoint: checkpoint.0 },
            Err(problem) => {
                self.problem(checkpoint, problem);
                Input::NotCommitted { checkpoint: checkpoint.0 }
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
        let Some(scheduler) = &mut self.scheduler else { return Ok(()) };
        scheduler.handle(now, input).map_err(|error| error.to_string())
    }

    pub(crate) fn carry_out(&mut self, now: u64) {
        while let Some(output) = self.scheduler.as_mut().and_then(CheckpointScheduler::poll_output)
        {
            self.carry_out_one(now, output);
        }
    }
}
