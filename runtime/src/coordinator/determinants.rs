//! Determinants of all sets: put into the order of each set, replicated on agents of other nodes,
//! and sent back to a set that is rolled back alone. No I/O: the driver sends what is returned.
//!
//! Source: DESIGN §5, §7; docs/adr/0004. The coordinator is the only owner of the order
//! (coordination's `DeterminantLog`, one for each set). What it has is a prefix of that order
//! without gaps, hence closed under "happened before". A determinant is stable when it is here and
//! [`REPLICAS`] agents of other nodes have it (with fewer other nodes: when all of those have it).
//! Then the ranks are notified.
//!
//! 1. What a restarted set replays contains everything that was ever reported stable and that no
//!    checkpoint covers.
//! 2. A report of an incarnation that is not the set's last one changes nothing.
//! 3. What is reported stable was persisted before, for a coordinator after a failover.
//! 4. What messages of one set piggybacked to another one is in the order of the first, and
//!    persisted, before the place that holds it in the order of the second one counts
//!    (`piggybacked`). If it is lost with all that had it, the job is notified (`orphans`).
//! 5. A failed set learns what to replay when nobody else accepts anything more of the failed
//!    incarnation, and everything that the others have received of it is here (`fences`).
//! 6. An image counts as stored when everything is here that its set had recorded when it was taken
//!    (`images`).

mod awaited;
pub(crate) mod fences;
pub(crate) mod images;
mod orphans;
pub(crate) mod piggybacked;
mod recorded;
pub(crate) mod tables;
#[cfg(test)]
pub(crate) mod tests;

use crate::coordinator::determinants::tables::{DeferredImage, Fencing, SnapshotClock};
use crate::coordinator::job::tables::text::some_of;
use rustbtl_coordination::control::{CheckpointId, FromNode, FromRank, ToNode, ToRank};
use rustbtl_coordination::determinants::{
    BatchAck, Determinant, DeterminantBatch, DeterminantLog, Numbered, OF_ANOTHER, ReplicaId,
    SetOrder, rank_batch,
};
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Agents of other nodes that must have a determinant before it is stable.
///
/// The coordinator itself is outside of every set but those of mpirun's own node, without which the
/// job ends anyway. A replica elsewhere would serve a failover of the coordinator, and costs two
/// more hops for each outcome that a message has to wait for. With replicas, a place that holds
/// what was piggybacked to a set would also have to wait until that has its replicas (4).
pub const REPLICAS: usize = 0;
/// Most determinants in one batch to a replica.
const BATCH_RECORDS_MAX: usize = 4096;
/// What a rank replays is sent in pieces of about so many bytes: messages have a limit.
const REPLAY_BYTES: usize = 4 << 20;

/// To be done.
#[derive(Clone, PartialEq, Debug)]
pub enum Out {
    /// Send it to the agent of this rank.
    Rank(PeerId, ToRank),
    /// Send it to this agent.
    Agent(u64, ToNode),
    /// Write down an event.
    Log(Value),
    /// Persist these for a coordinator after a failover, all of them or none, before anything that
    /// follows is done: of each set a `DeterminantBatch`.
    Persist(Vec<(SetId, Vec<u8>)>),
    /// The same, in place of everything that is persisted of this set.
    PersistAll(SetId, Vec<u8>),
    /// Everything that others have received of earlier incarnations of this set is here (5).
    Fenced(SetId, Incarnation),
    /// The job handles this message of this agent now (6).
    Deliver(u64, FromNode),
    /// The first set depends on what the second one had recorded and nobody has any more.
    Orphan(SetId, SetId),
}

#[derive(Clone, Copy, Debug)]
struct RankProgress {
    set: SetId,
    incarnation: Incarnation,
    /// It has sent `Ready`.
    ready: bool,
}

/// One set.
#[derive(Debug)]
struct SetState {
    order: SetOrder,
    /// What was last reported stable to the ranks.
    stable_sent: u64,
    /// Ranks that wait until this place, their last one, is stable.
    waiting: BTreeMap<PeerId, u64>,
    /// Sets whose next place waits for more of this order (`piggybacked`, 3).
    waited_for_by: Vec<SetId>,
    /// Who waits was looked at when the order went so far.
    looked_at: u64,
}

impl SetState {
    fn new(order: SetOrder) -> Self {
        let (waiting, waited_for_by) = (BTreeMap::new(), Vec::new());
        Self { order, stable_sent: 0, waiting, waited_for_by, looked_at: 0 }
    }

    /// What it has of places from `from` on, for a coordinator after a failover. Places without a
    /// record hold nothing that is replayed, or a checkpoint covers them.
    fn batch_from(&self, set: SetId, from: u64) -> Vec<u8> {
        let (incarnation, upto) = (self.order.incarnation(), self.order.next());
        let records = self.order.log().records_from(from).cloned().collect();
        DeterminantBatch { set, incarnation, from, upto, inherits: 0, records }.encode()
    }

    /// This rank has recorded something; `last` is the last place of it, not always of all that it
    /// has sent: it does not send all in the order of places.
    fn waits(&mut self, rank: PeerId, last: Option<u64>) {
        let Some(last) = last else { return };
        let waits_for = self.waiting.entry(rank).or_insert(last);
        *waits_for = last.max(*waits_for);
        // What was sent again may have been stable for long.
        self.stable_sent = self.stable_sent.min(last);
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Determinants {
    /// Agents of other nodes that must have what is stable.
    replicas: usize,
    ranks: BTreeMap<PeerId, RankProgress>,
    homes: BTreeMap<PeerId, u64>,
    agents: BTreeSet<u64>,
    sets: BTreeMap<SetId, SetState>,
    clocks: BTreeMap<CheckpointId, BTreeMap<PeerId, SnapshotClock>>,
    /// Stored images that the job is not notified of yet (6).
    deferred_images: BTreeMap<(CheckpointId, PeerId), DeferredImage>,
    /// Of failed sets that have not been sent yet what to replay (5).
    fences: BTreeMap<SetId, Fencing>,
    /// Sets of which a frame waits (`awaited`).
    gated: BTreeSet<SetId>,
    /// Up to which place sets were asked for what is not here.
    asked: BTreeMap<SetId, (Incarnation, u64)>,
    /// The job was notified of an orphan.
    has_orphan: bool,
    /// Everything is persisted for a failover.
    does_persist: bool,
    /// This coordinator has been started by a failover.
    resumed: bool,
    /// Of several messages that are handled together: sets in whose orders there is something new.
    unsettled: Option<BTreeSet<SetId>>,
    /// Sets to be looked at with the next ones: what they waited for is another incarnation's.
    released: Vec<SetId>,
    /// What the orders of these sets have from these places on is to be persisted.
    unpersisted: BTreeMap<SetId, u64>,
    /// `Persist` and `PersistAll`: done before everything else (3).
    persists: Vec<Out>,
    out: Vec<Out>,
}

fn replica(agent: u64) -> ReplicaId {
    ReplicaId { set: SetId(0), start: agent }
}

impl Determinants {
    /// See [`REPLICAS`].
    pub fn new(replicas: usize) -> Self {
        Self { replicas, ..Self::default() }
    }

    /// What is to be done, in this order. Only the last `Stable` of each rank is left: each costs a
    /// system call here, and wakes a process there. For the same reason what is persisted is
    /// gathered until here.
    pub fn take_out(&mut self) -> Vec<Out> {
        self.persist_gathered();
        let mut seen = BTreeSet::new();
        let mut is_last = |out: &Out| match out {
            Out::Rank(rank, ToRank::Stable { incarnation, .. }) => {
                seen.insert((*rank, *incarnation))
            }
            _ => true,
        };
        let mut out = core::mem::take(&mut self.out);
        out.reverse();
        out.retain(&mut is_last);
        out.reverse();
        let mut all = core::mem::take(&mut self.persists);
        all.append(&mut out);
        all
    }

    /// Every message of an agent is handled here first. True: nobody else needs it.
    pub fn handle(&mut self, agent: u64, message: &FromNode) -> bool {
        match message {
            FromNode::Guardian { rank, .. } => {
                self.homes.insert(*rank, agent);
                // A set that has moved to the node of its replica gets another replica.
                if let Some(RankProgress { set, .. }) = self.ranks.get(rank).copied() {
                    self.choose_replicas(set);
                    self.flush(set);
                }
            }
            FromNode::Rank { rank, message } => return self.handle_rank(*rank, message),
            FromNode::DeterminantsReplicated { set, incarnation, upto } => {
                let (set, incarnation, upto) = (*set, *incarnation, *upto);
                let ack = BatchAck { replica: replica(agent), set, incarnation, upto };
                if let Some(of) = self.sets.get_mut(&set) {
                    of.order.log_mut().on_ack(&ack);
                }
                self.flush(set);
                return true;
            }
            FromNode::Stored { rank, checkpoint, .. } => {
                return self.defer_image(agent, *checkpoint, *rank, message);
            }
            FromNode::DeterminantsNotReplicated { set, reason } => {
                let (set, reason) = (set.0, reason.as_str());
                self.log(json!({"event": "not_kept", "set": set, "reason": reason}));
                // It is of no use any more.
                self.agents.remove(&agent);
                self.choose_all_replicas();
                return true;
            }
            _ => {}
        }
        false
    }

    /// An agent is here.
    pub fn agent_here(&mut self, agent: u64) {
        self.agents.insert(agent);
        self.choose_all_replicas();
    }

    fn handle_rank(&mut self, rank: PeerId, message: &FromRank) -> bool {
        match message {
            FromRank::Hello { set, incarnation, .. } => {
                let (set, incarnation) = (*set, *incarnation);
                let ready = self.ranks.get(&rank).is_some_and(|known| known.ready);
                self.ranks.insert(rank, RankProgress { set, incarnation, ready });
                self.repeat_fences(rank);
                false
            }
            FromRank::Ready {} => {
                // Guardians send it again to another agent or coordinator.
                let Some(known) = self.ranks.get_mut(&rank) else { return false };
                let was_ready = core::mem::replace(&mut known.ready, true);
                if was_ready || self.resumed || self.sets.contains_key(&known.set) {
                    self.out.push(Out::Rank(rank, ToRank::ResendDeterminants {}));
                }
                false
            }
            FromRank::Determinants { incarnation, bytes, from } => {
                self.recorded(rank, *incarnation, *from, bytes);
                true
            }
            FromRank::Piggybacked { incarnation, at, bytes } => {
                self.piggybacked(rank, *incarnation, *at, bytes);
                true
            }
            FromRank::FrameGated {} => {
                let set = self.ranks.get(&rank).map(|known| known.set);
                self.gated.extend(set);
                true
            }
            FromRank::Fenced { set, before, incarnation, recorded } => {
                self.fenced(rank, *set, *before, *incarnation, *recorded);
                true
            }
            FromRank::EventClock { checkpoint, clock, incarnation, recorded } => {
                let (clock, incarnation, recorded) = (*clock, *incarnation, *recorded);
                let snapshot = SnapshotClock { clock, incarnation, recorded };
                self.clocks.entry(*checkpoint).or_default().insert(rank, snapshot);
                true
            }
            _ => false,
        }
    }

    /// For the user of a job that ends: which recorded outcomes there are.
    pub fn account(&self) -> String {
        let of_set = |(set, of): (&SetId, &SetState)| {
            let mut ranks: BTreeMap<PeerId, (u64, u64)> = BTreeMap::new();
            for record in of.order.history() {
                let number = record.numbered.number;
                let (first, last) = ranks.entry(record.rank).or_insert((number, number));
                (*first, *last) = ((*first).min(number), (*last).max(number));
            }
            let text = |(rank, (first, last))| format!("rank {rank} {first} to {last}");
            let ranks: Vec<String> = ranks.into_iter().map(text).collect();
            (!ranks.is_empty()).then(|| format!("set {set}: {}", some_of(ranks, ", ")))
        };
        let sets: Vec<String> = self.sets.iter().filter_map(of_set).collect();
        let recorded = if sets.is_empty() {
            "none since the last checkpoints".into()
        } else {
            some_of(sets, "; ")
        };
        format!(
            "Of recorded outcomes (determinants) nothing is lost; the coordinator has {recorded}"
        )
    }

    fn log(&mut self, event: Value) {
        self.out.push(Out::Log(event));
    }

    /// Several messages at once: what they bring is put where it belongs when all are here.
    pub fn handle_all<'a>(&mut self, agent: u64, messages: impl IntoIterator<Item = &'a FromNode>) {
        self.unsettled = Some(BTreeSet::new());
        for message in messages {
            self.handle(agent, message);
        }
        let unsettled = self.unsettled.take();
        self.settle_all(unsettled.into_iter().flatten().collect());
    }

    fn protocol_error(&mut self, rank: PeerId, what: &str) {
        self.log(json!({"event": "protocol_error", "rank": rank.0, "what": what}));
    }

    /// Persists what the order of a set has from place `before` on.
    fn persist_new(&mut self, set: SetId, before: u64) {
        if self.does_persist && self.sets.get(&set).is_some_and(|of| of.order.next() > before) {
            self.unpersisted.entry(set).or_insert(before);
        }
    }

    /// Everything that is new is persisted in one piece: what one set has of another one never
    /// counts without what the other has (4).
    fn persist_gathered(&mut self) {
        let gathered = core::mem::take(&mut self.unpersisted);
        let of_set = |(set, from)| Some((set, self.sets.get(&set)?.batch_from(set, from)));
        let batches: Vec<(SetId, Vec<u8>)> = gathered.into_iter().filter_map(of_set).collect();
        if !batches.is_empty() {
            self.persists.push(Out::Persist(batches));
        }
    }

    /// Persists the order of this set in place of everything that was persisted of it.
    fn persist_all(&mut self, set: SetId) {
        self.persist_gathered();
        if let Some(of) = self.sets.get(&set) {
            self.persists.push(Out::PersistAll(set, of.batch_from(set, 0)));
        }
    }

    /// All places before this one of the order of a set in this incarnation are here. None: the
    /// order is that of another incarnation, or there is none.
    fn next(&self, set: SetId, incarnation: Incarnation) -> Option<u64> {
        let of = self.sets.get(&set).filter(|of| of.order.incarnation() == incarnation);
        of.map(|of| of.order.next())
    }

    /// Opens the order of a set in its last incarnation. The order of a failed set stays until its
    /// next incarnation is sent what is in it.
    fn open(&mut self, set: SetId, incarnation: Incarnation) {
        let is_new = self.sets.get(&set).is_none_or(|of| of.order.incarnation() < incarnation);
        if is_new && !self.fences.contains_key(&set) {
            self.start(set, incarnation, Vec::new());
        }
    }

    fn start(&mut self, set: SetId, incarnation: Incarnation, past: Vec<(PeerId, Numbered)>) {
        let log = DeterminantLog::new(set, incarnation, past, self.replicas, BATCH_RECORDS_MAX);
        // Of what the order was before.
        self.persist_gathered();
        let order = match self.sets.get(&set) {
            Some(before) => before.order.succeed(incarnation, log),
            None => SetOrder::new(incarnation, log),
        };
        let before = self.sets.insert(set, SetState::new(order));
        if self.does_persist {
            self.persist_all(set);
        }
        self.choose_replicas(set);
        // They may have all of the incarnation that is over, which was here.
        self.released.extend(before.into_iter().flat_map(|before| before.waited_for_by));
    }

    /// From now on everything is persisted for a failover.
    pub fn enable_persistence(&mut self) {
        self.does_persist = true;
    }

    /// Continues after a failover with everything that the coordinator before this one has
    /// persisted: of each set its batches, in that order. What ranks had sent it may be nowhere
    /// else, also where it had persisted nothing yet: all are asked for it.
    pub fn resume(&mut self, sets: impl IntoIterator<Item = Vec<DeterminantBatch>>) {
        self.resumed = true;
        sets.into_iter().for_each(|batches| self.resume_set(batches));
    }

    fn resume_set(&mut self, batches: Vec<DeterminantBatch>) {
        let Some(last) = batches.last() else { return };
        let (set, incarnation, recorded) = (last.set, last.incarnation, last.upto);
        let records = batches.into_iter().flat_map(|batch| batch.records);
        let (replicas, most) = (self.replicas, BATCH_RECORDS_MAX);
        let log = DeterminantLog::resumed(set, incarnation, records, recorded, replicas, most);
        self.sets.insert(set, SetState::new(SetOrder::new(incarnation, log)));
        // In one piece, without an end that was cut off.
        self.persist_all(set);
    }

    fn choose_all_replicas(&mut self) {
        for set in self.sets.keys().copied().collect::<Vec<_>>() {
            self.choose_replicas(set);
            self.flush(set);
        }
    }

    /// A set keeps its replicas while their agents are connected, and takes the next agents for
    /// others.
    fn choose_replicas(&mut self, set: SetId) {
        let of_set = |rank: &PeerId| self.ranks.get(rank).is_some_and(|known| known.set == set);
        let own: BTreeSet<u64> =
            self.homes.iter().filter(|(rank, _)| of_set(rank)).map(|(_, &home)| home).collect();
        let others: Vec<u64> = self.agents.difference(&own).copied().collect();
        let Some(of) = self.sets.get_mut(&set) else { return };
        let replicas = self.replicas.min(others.len());
        let before: Vec<u64> = of.order.log().replicas().map(|id| id.start).collect();
        let mut chosen: Vec<u64> =
            before.iter().copied().filter(|agent| others.contains(agent)).take(replicas).collect();
        // Sets begin at different agents, so that none has to keep all.
        let first = others.iter().position(|agent| own.iter().all(|own| agent > own)).unwrap_or(0);
        for turn in 0..others.len() {
            let agent = others[(first + turn) % others.len()];
            if chosen.len() < replicas && !chosen.contains(&agent) {
                chosen.push(agent);
            }
        }
        of.order.log_mut().set_required_replicas(replicas);
        let ids: Vec<ReplicaId> = chosen.iter().copied().map(replica).collect();
        of.order.log_mut().set_replicas(&ids);
        for agent in before.iter().filter(|agent| !chosen.contains(agent)) {
            self.out.push(Out::Agent(*agent, ToNode::DropDeterminants { set }));
        }
        if before != chosen {
            let by = if chosen.is_empty() { "the coordinator alone" } else { "agents" };
            self.log(json!({
                "event": "determinant_replicas", "set": set.0, "kept_by": by, "agents": chosen
            }));
        }
    }

    /// Sends what replicas do not have, and reports what is stable.
    fn flush(&mut self, set: SetId) {
        let Some(of) = self.sets.get_mut(&set) else { return };
        while let Some((replica, batch)) = of.order.log_mut().poll_output() {
            self.out.push(Out::Agent(
                replica.start,
                ToNode::StoreDeterminants { batch: batch.encode() },
            ));
        }
        let (incarnation, upto) = (of.order.incarnation(), of.order.log().marks().stable);
        if upto <= of.stable_sent {
            return;
        }
        of.stable_sent = upto;
        for &rank in of.waiting.keys() {
            self.out.push(Out::Rank(rank, ToRank::Stable { incarnation, upto }));
        }
        of.waiting.retain(|_, last| *last >= upto);
    }

    /// The connection of an agent is lost.
    pub fn agent_gone(&mut self, agent: u64) {
        // No checkpoint waits for its ranks any more.
        self.deferred_images.retain(|_, deferred| deferred.agent != agent);
        if self.agents.remove(&agent) {
            self.homes.retain(|_, home| *home != agent);
            self.choose_all_replicas();
        }
    }

    /// The set is rolled back alone to its youngest checkpoint, and begins `incarnation` there.
    /// Returns what each of its `members` is sent before `Endpoints`. Reports of the failed
    /// incarnation do not count from now on.
    pub fn replay(
        &mut self,
        set: SetId,
        incarnation: Incarnation,
        members: &[PeerId],
    ) -> Vec<(PeerId, ToRank)> {
        let past: Vec<(PeerId, Numbered)> = self.sets.get(&set).map_or(Vec::new(), |of| {
            of.order.history().map(|record| (record.rank, record.numbered.clone())).collect()
        });
        self.begin(set, incarnation, members, past)
    }

    /// The same where nobody has received anything of it, and nothing is replayed: in a global
    /// rollback, or of a set that is the whole job and cannot replay. That executes freely: only a
    /// part of its events is recorded, and that would not fit.
    pub fn begin_without_replay(
        &mut self,
        set: SetId,
        incarnation: Incarnation,
        members: &[PeerId],
    ) -> Vec<(PeerId, ToRank)> {
        self.has_orphan = false;
        self.begin(set, incarnation, members, Vec::new())
    }

    fn begin(
        &mut self,
        set: SetId,
        incarnation: Incarnation,
        members: &[PeerId],
        past: Vec<(PeerId, Numbered)>,
    ) -> Vec<(PeerId, ToRank)> {
        let at = past.len() as u64;
        let mut messages = Vec::new();
        for &rank in members {
            let mut bytes = Vec::new();
            for (of, numbered) in &past {
                match (&numbered.determinant, *of == rank) {
                    (determinant, true) => {
                        rank_batch::append(&mut bytes, numbered.number, determinant);
                    }
                    // What others have recorded of direct accesses to it, in its place.
                    (Determinant::AppliedGroup(runs), false) => {
                        let runs: Vec<_> =
                            runs.iter().filter(|run| run.target == rank).copied().collect();
                        if !runs.is_empty() {
                            let of_rank = Determinant::AppliedGroup(runs);
                            rank_batch::append(&mut bytes, OF_ANOTHER, &of_rank);
                        }
                    }
                    _ => {}
                }
                if bytes.len() >= REPLAY_BYTES {
                    let bytes = core::mem::take(&mut bytes);
                    messages.push((rank, ToRank::Replay { incarnation, at, bytes }));
                }
            }
            messages.push((rank, ToRank::Replay { incarnation, at, bytes }));
            self.ranks.insert(rank, RankProgress { set, incarnation, ready: false });
        }
        self.fences.remove(&set);
        self.start(set, incarnation, past);
        if let Some(of) = self.sets.get_mut(&set)
            && at > 0
        {
            // They are notified when what they inherit is stable.
            of.waiting = members.iter().map(|&rank| (rank, at - 1)).collect();
        }
        messages
    }

    /// For tests: a restarted job continues as if what `journal` returns of each rank had been
    /// sent. Returns what the ranks are sent before `Endpoints`.
    pub fn resume_from_journals(
        &mut self,
        journal: impl Fn(PeerId) -> Vec<u8>,
    ) -> Vec<(PeerId, ToRank)> {
        let mut sets: BTreeMap<SetId, (Incarnation, Vec<PeerId>)> = BTreeMap::new();
        for (&rank, known) in &self.ranks {
            let (_, members) = sets.entry(known.set).or_insert((known.incarnation, Vec::new()));
            members.push(rank);
        }
        let mut messages = Vec::new();
        for (set, (incarnation, members)) in sets {
            let of = |rank| rank_batch::read_numbered(&journal(rank)).unwrap_or_default();
            let past =
                members.iter().flat_map(|&rank| of(rank).into_iter().map(move |n| (rank, n)));
            let past = past.collect();
            self.start(set, incarnation, past);
            messages.extend(self.replay(set, incarnation, &members));
            self.replayed(set);
        }
        messages
    }

    /// After the messages of [`Self::replay`] are sent: replicate what is inherited.
    pub fn replayed(&mut self, set: SetId) {
        self.flush(set);
        self.settle_all(Vec::new());
    }
}
