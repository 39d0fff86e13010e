//! A coordinator that was started in place of a killed one. Part of [`Job`]: no I/O.
//!
//! Source: docs/adr/0011. What only the coordinator knew is in a [`PersistedState`]; the rest comes
//! from guardians, which connect and identify themselves again. Until all have connected, nothing
//! is decided.
//!
//! 1. A change of the state is persisted before anything that follows from it is done.
//! 2. A loss is handled when every rank has connected that is not lost itself: so every rank can be
//!    ordered to roll back, and its node is known.
//! 3. A set whose rollback had begun, and that was not connected to the others, is rolled back
//!    again in the next incarnation: it is not known which orders it has received. So the others
//!    are asked again what they have received of it (`rollback`, 5).

#[cfg(test)]
pub(crate) mod tests;

use crate::coordinator::job::state::{Effect, Job, Rank};
use crate::coordinator::job::tables::checkpoints::CheckpointState;
use crate::coordinator::job::tables::failover::Failover;
use crate::coordinator::job::tables::hosts::same_host;
use crate::coordinator::job::tables::persisted::{
    PersistedCheckpoint, PersistedRank, PersistedRollback, PersistedScheduler, PersistedState,
};
use crate::coordinator::job::tables::text::some_of;
use crate::settings::Printed;
use rustbtl_coordination::checkpoints::{Input, SchedulerState};
use rustbtl_coordination::control::{CheckpointId, ToNode, ToRank};
use rustbtl_coordination::determinants::ReplaysEnd;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Version of the persisted state.
const FORMAT: u32 = 5;
/// How long ranks may take to connect before they are reported missing. Agents try for less.
const PATIENCE_MS: u64 = 20_000;
/// What is left of so many checkpoints before the next one is removed.
const LEFTOVERS: u64 = 8;

impl Job {
    /// Has the state changed since it was persisted?
    pub fn must_persist(&mut self) -> bool {
        core::mem::take(&mut self.changed)
    }

    /// The state that a coordinator after a failover reads.
    pub fn state(&self) -> PersistedState {
        let known = self.scheduler.as_ref().map(|scheduler| scheduler.state());
        let scheduler =
            known.map(|SchedulerState { next_checkpoint, globals, kept, alone_from }| {
                PersistedScheduler {
                    next: next_checkpoint,
                    globals,
                    kept: kept.into_iter().map(|(set, checkpoints)| (set.0, checkpoints)).collect(),
                    alone_from: alone_from.into_iter().map(|(set, from)| (set.0, from)).collect(),
                }
            });
        // For a second failover before all have connected.
        let scheduler =
            scheduler.or_else(|| self.failover.as_ref().map(|failover| failover.scheduler.clone()));
        let complete = self.checkpoints.iter().filter(|(_, checkpoint)| checkpoint.complete);
        let complete = complete.map(|(checkpoint, state)| PersistedCheckpoint {
            checkpoint: checkpoint.0,
            kind: state.kind,
            ranks: state.ranks.iter().map(|rank| rank.0).collect(),
            images: state.images.values().cloned().collect(),
        });
        let rank = |(id, rank): (&PeerId, &Rank)| {
            let of = PersistedRank {
                node: rank.node.clone(),
                set: rank.set.map(|set| set.0),
                incarnation: rank.incarnation.0,
                lost: rank.lost,
                adopted_in: rank.adopted_in.0,
                host: rank.host.map(|host| host.0),
                ended: rank.ended,
                printed: rank.printed.bytes,
                exact: rank.printed.exact,
                own_way: rank.own_way,
            };
            (id.0, of)
        };
        let (mut rollbacks, failures) = self.recovery.state();
        let failover = self.failover.iter().flat_map(|failover| failover.sets.iter());
        let global = self.failover.as_ref().is_some_and(|failover| failover.global);
        rollbacks.extend(failover.map(|set| PersistedRollback {
            set: set.0,
            global,
            ..PersistedRollback::default()
        }));
        let newest =
            self.recovery.newest_incarnations.iter().map(|(set, newest)| (set.0, newest.0));
        let diverged = self.recovery.diverged.iter();
        PersistedState {
            format: FORMAT,
            failovers: self.failovers,
            size: self.config.size,
            may_finish: self.may_finish,
            protection_disabled: self.is_protection_disabled(),
            scheduler,
            complete: complete.collect(),
            ranks: self.ranks.iter().map(rank).collect(),
            rollbacks,
            failures,
            newest_incarnations: newest.collect(),
            diverged: diverged.map(|(set, problem)| (set.0, problem.clone())).collect(),
            held: self.storage.state(),
            clocks: Vec::new(),
        }
    }

    /// Continues a job with this state.
    pub fn resume(&mut self, now: u64, state: PersistedState) -> Result<(), String> {
        if state.format != FORMAT {
            return Err(format!("the state has format {}, not {FORMAT}", state.format));
        }
        self.failovers = state.failovers + 1;
        // Answers to the coordinators before are none to this one.
        self.replays_end = ReplaysEnd::new(u64::from(self.failovers) << 32);
        self.config.size = state.size.max(self.config.size);
        self.may_finish = state.may_finish;
        self.unreachable.protection_disabled = state.protection_disabled;
        for (id, of) in state.ranks {
            let rank = Rank {
                node: of.node,
                lost: of.lost,
                incarnation: Incarnation(of.incarnation),
                adopted_in: Incarnation(of.adopted_in),
                host: of.host.map(PeerId),
                ended: of.ended,
                printed: Printed { bytes: of.printed, exact: of.exact },
                own_way: of.own_way,
                // The set of a rank that does not connect is needed, too.
                set: of.set.map(SetId),
                ..Rank::default()
            };
            self.ranks.insert(PeerId(id), rank);
        }
        for of in state.complete {
            let images = of.images.into_iter().map(|image| (PeerId(image.rank), image));
            let checkpoint = CheckpointState::complete(
                of.kind,
                of.ranks.into_iter().map(PeerId).collect(),
                images.collect(),
            );
            self.checkpoints.insert(CheckpointId(of.checkpoint), checkpoint);
        }
        self.storage.resume(state.held);
        let (replaying, restarting): (Vec<PersistedRollback>, Vec<PersistedRollback>) =
            state.rollbacks.into_iter().partition(|rollback| rollback.replaying);
        self.recovery.resume(now, replaying, &state.failures);
        let diverged = state.diverged.into_iter();
        self.recovery.diverged = diverged.map(|(set, problem)| (SetId(set), problem)).collect();
        let newest = |(set, newest)| (SetId(set), Incarnation(newest));
        self.recovery.newest_incarnations =
            state.newest_incarnations.into_iter().map(newest).collect();
        let coordinator = self.failovers;
        let Some(scheduler) =
            state.scheduler.filter(|_| !self.may_finish && !state.protection_disabled)
        else {
            // As at the start of a job, or at its end.
            self.log(json!({"event": "failover_started", "failover": coordinator, "ready": false}));
            return Ok(());
        };
        self.endpoints_sent = true;
        let failover = Failover {
            scheduler,
            global: restarting.iter().any(|rollback| rollback.global),
            sets: restarting.into_iter().map(|rollback| SetId(rollback.set)).collect(),
            since_ms: now,
            ..Failover::default()
        };
        self.log(json!({
            "event": "failover_started", "failover": coordinator, "ready": true,
            "rolled_back": failover.sets.iter().map(|set| set.0).collect::<Vec<_>>(),
        }));
        self.failover = Some(failover);
        Ok(())
    }

    /// Ranks that a failover waits for; None: there is no failover.
    pub(crate) fn awaited(&self) -> Option<Vec<PeerId>> {
        let failover = self.failover.as_ref()?;
        let lost = |id: PeerId, rank: &Rank| {
            failover.deferred.iter().any(|message| match message.split_once(' ') {
                Some(("lost", node)) => same_host(&rank.node, node),
                Some(("guardian", of)) => of.parse() == Ok(id.0),
                _ => false,
            })
        };
        let has_connected = |id: PeerId, rank: &Rank| {
            let restarts = rank.set.is_some_and(|set| failover.sets.contains(&set));
            let runs = rank.hello_received && rank.ready;
            rank.ended.is_some()
                || rank.lost
                || lost(id, rank)
                || rank.here && (restarts || runs || failover.failed_ranks.contains_key(&id))
        };
        let missing = self.ranks.iter().filter(|(id, rank)| !has_connected(**id, rank));
        Some(missing.map(|(&id, _)| id).collect())
    }

    /// A message of mpirun during a failover. True: it is handled later.
    pub(crate) fn defer_message(&mut self, now: u64, message: &str) -> bool {
        let Some(failover) = &mut self.failover else { return false };
        failover.deferred.push(message.to_owned());
        self.check_failover(now);
        true
    }

    /// A failed program during a failover. True: it is handled later.
    pub(crate) fn defer_failure(
        &mut self,
        now: u64,
        rank: PeerId,
        status: i32,
        incarnation: Incarnation,
    ) -> bool {
        let Some(failover) = &mut self.failover else { return false };
        failover.failed_ranks.insert(rank, (status, incarnation));
        self.check_failover(now);
        true
    }

    /// Reports who is missing after a while. With a loss beside it the job ends.
    pub(crate) fn expire_failover(&mut self, now: u64) {
        let Some(missing) = self.awaited() else { return };
        let is_cut = self.is_cut_off();
        let Some(failover) = &mut self.failover else { return };
        if failover.reported || is_cut || now < failover.since_ms.saturating_add(PATIENCE_MS) {
            return;
        }
        failover.reported = true;
        let loss =
            failover.deferred.iter().find(|message| !message.starts_with("checkpoint")).cloned();
        let names: Vec<String> = missing.iter().map(|id| self.name_of(*id)).collect();
        let names = names.join(", ");
        let numbers: Vec<u32> = missing.iter().map(|rank| rank.0).collect();
        self.log(
            json!({"event": "failover_incomplete", "failover": self.failovers, "missing": numbers}),
        );
        if let Some(loss) = loss {
            let reason = format!(
                "the job's coordinator was killed and started again, and before {names} had \
                 connected to it, there was a loss ({loss})"
            );
            return self.fail(reason);
        }
        self.effects.push_back(Effect::NotifyUser(format!(
            "job {}: its coordinator was started again, but {names} did not connect to it: the \
             job is not protected until then",
            self.name
        )));
    }

    pub(crate) fn name_of(&self, id: PeerId) -> String {
        format!("rank {id} on {}", self.ranks.get(&id).map_or("?", |rank| rank.node.as_str()))
    }

    /// Ends the failover when all have connected.
    pub(crate) fn check_failover(&mut self, now: u64) {
        if self.awaited().is_none_or(|missing| !missing.is_empty()) {
            return;
        }
        let Some(failover) = self.failover.take() else { return };
        let PersistedScheduler { next, globals, kept, alone_from } = failover.scheduler;
        let alone_from = alone_from.into_iter().map(|(set, from)| (SetId(set), from)).collect();
        let kept: BTreeMap<SetId, Vec<u64>> =
            kept.into_iter().map(|(set, checkpoints)| (SetId(set), checkpoints)).collect();
        let known = SchedulerState { next_checkpoint: next, globals, kept, alone_from };
        self.resume_scheduler(now, &known);
        self.suspensions_after_failover(now);
        self.remove_leftovers(next);
        let replaying = self.recovery.replaying();
        for &(set, checkpoint) in &replaying {
            self.input(now, Input::SetRestarted { set, checkpoint: checkpoint.0 });
        }
        // The coordinator before this one may have been killed before it had sent their endpoints
        // to all. (A rank that is not ready may be a new process that waits for endpoints of its
        // own.)
        let replaying: Vec<SetId> = replaying.into_iter().map(|(set, _)| set).collect();
        let mut replaying = self.members(&replaying);
        replaying.retain(|rank| self.ranks[rank].ready && self.ranks[rank].hello_received);
        if !replaying.is_empty() {
            self.announce(&replaying, |rank| rank.ready);
        }
        let end = |rank: &Rank| rank.killed || rank.ended.is_some();
        for (id, finishing, ended) in
            self.ranks.iter().map(|(&id, r)| (id, r.finishing, end(r))).collect::<Vec<_>>()
        {
            if ended {
                self.input(now, Input::RankFailed { rank: id });
            } else if finishing {
                self.input(now, Input::Finishing { rank: id });
            }
        }
        let ms = now.saturating_sub(failover.since_ms);
        self.log(json!({"event": "failover_state_loaded", "failover": self.failovers, "ms": ms}));
        self.changed = true;
        let deferred: Vec<&String> =
            failover.deferred.iter().filter(|message| !message.starts_with("checkpoint")).collect();
        // The nodes that mpirun has lost decide who can receive orders.
        let mut sets = failover.sets;
        for message in &deferred {
            if let Some(("lost", node)) = message.split_once(' ') {
                sets.retain(|set| !self.has_rank_on(*set, node));
            }
        }
        let ordered = match sets.first() {
            Some(_) if failover.global => self.roll_back_all(
                now,
                "a global rollback was in progress when the coordinator ended",
                None,
            ),
            _ => self.roll_back(now, &sets),
        };
        if let Err(reason) = ordered {
            let sets = some_of(sets.iter().map(ToString::to_string).collect(), ", ");
            self.fail(format!("the rollback of sets {sets} cannot be continued: {reason}"));
        }
        for message in failover.deferred {
            self.handle_mpirun(now, &message);
        }
        for (rank, (status, incarnation)) in failover.failed_ranks {
            self.rank_failed(now, rank, status, incarnation);
        }
        for (by, of, problem) in failover.diverged {
            self.rank_diverged(now, by, of, problem);
        }
        if let Some((set, lost)) = failover.orphan {
            self.set_orphaned(now, set, lost);
        }
        self.replenish(now);
        self.request_first_checkpoint(now);
        self.complete_failover(now, failover.since_ms);
        self.handle_early_requests(now);
    }

    fn has_rank_on(&self, set: SetId, node: &str) -> bool {
        let is_on = |rank: &Rank| same_host(&rank.node, node);
        // On a spare node a rank ends with the guardian that waits for it.
        let host_is = |rank: &Rank| rank.host.is_some_and(|host| is_on(&self.ranks[&host]));
        let on_it = |id: &PeerId| is_on(&self.ranks[id]) || host_is(&self.ranks[id]);
        self.members(&[set]).iter().any(on_it)
    }

    /// Removes what is left of checkpoints that were in progress, or not needed any more.
    fn remove_leftovers(&mut self, next: u64) {
        let numbers = next.saturating_sub(LEFTOVERS)..next;
        let restored = self.config.first_checkpoint();
        let ranks: Vec<PeerId> = self.ranks.keys().copied().collect();
        let nodes: BTreeSet<String> = self.ranks.values().map(|rank| rank.node.clone()).collect();
        for checkpoint in numbers.filter(|&checkpoint| checkpoint >= restored).map(CheckpointId) {
            if self.checkpoints.contains_key(&checkpoint) {
                continue;
            }
            if self.config.is_local() {
                for node in &nodes {
                    let clear = ToNode::DeleteCheckpoint { checkpoint, ranks: ranks.clone() };
                    self.effects.push_back(Effect::SendNode(node.clone(), clear));
                }
                continue;
            }
            self.effects.push_back(Effect::RemoveManifest(checkpoint));
            for &rank in &ranks {
                self.effects.push_back(Effect::Send(rank, ToNode::Discard { rank, checkpoint }));
            }
        }
    }

    /// Reports the end of the failover.
    pub(crate) fn complete_failover(&mut self, now: u64, since_ms: u64) {
        let protected = self.config.recover && self.config.has_storage();
        self.check_replication();
        self.log(json!({
            "event": "failover_completed", "failover": self.failovers,
            "ms": now.saturating_sub(since_ms),
            "recovers": protected && !self.may_finish,
            "replicated": !self.config.is_local() || self.storage.replicated,
            "rolled_back": self.recovery.rollbacks.keys().map(|set| set.0).collect::<Vec<_>>(),
        }));
        self.ask_whether_replays_are_over();
    }

    /// The coordinator before this one may not have notified this guardian.
    pub(crate) fn repeat_may_finish(&mut self, id: PeerId) {
        if self.may_finish && self.failovers > 0 {
            self.send(id, ToRank::MayFinish {});
        }
    }

    /// For the status.
    pub(crate) fn protection(&self) -> Value {
        let waits: Option<Vec<u32>> =
            self.awaited().map(|missing| missing.iter().map(|rank| rank.0).collect());
        json!({
            "coordinators_before": self.failovers, "waits_for": waits,
            "disabled": self.is_protection_disabled()
        })
    }
}
