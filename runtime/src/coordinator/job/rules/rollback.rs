//! Sets in rollback: from the report that a rank has failed or its node is lost until its replay is
//! complete. Part of [`Job`]: no I/O.
//!
//! ```text
//!  failed ──Restore / Adopt──> restoring ──all: Hello──> connecting ──Endpoints──> replaying
//!         ──Fence to others──>           ──all: Fenced─>            ──all: Ready─>
//!         ──all: ReplayComplete──> over
//! ```
//! 1. A set is rolled back as a whole, to its youngest complete checkpoint, in an incarnation that
//!    no set ever ran in: nobody else finds what its processes leave for each other meanwhile.
//! 2. Endpoints are sent when every rank of every set that is restoring has connected: nobody waits
//!    for an address of an earlier incarnation.
//! 3. A rank is restored by its own guardian if that is connected, else by one that a guardian of
//!    another node starts; never by both: a guardian that was thought to be lost and connects again
//!    is ended.
//! 4. A set that fails again during its rollback is rolled back again; after `FAILURES_MAX`
//!    failures without a new checkpoint it is given up.
//! 5. Endpoints, and what is replayed, are not sent to sets that are restoring before all that
//!    others have received of their earlier incarnations is here (docs/adr/0019). Everybody with
//!    channels is asked (`Fence`) while the images are read. The coordinator waits for each answer
//!    until it comes or the rank has failed.
//! 6. If a set cannot be rolled back alone there is a global rollback (`rollback_all`), or the job
//!    ends.

#[cfg(test)]
pub(crate) mod tests;

use crate::coordinator::job::state::{Effect, Job, Rank};
use crate::coordinator::job::tables::hosts::same_host;
use crate::coordinator::job::tables::mpirun_orders::MpirunOrder;
use crate::coordinator::job::tables::rollback::{Phase, Rollback, RollbackRefusal};
use crate::store;
use rustbtl_coordination::checkpoints::{CheckpointScheduler, Input};
use rustbtl_coordination::control::{CheckpointId, RankEndpoint, ToNode, ToRank};
use rustbtl_coordination::quiescence::{CheckpointAnswer, CheckpointRefusal};
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use serde_json::json;
use std::collections::BTreeSet;

/// How often a set is restarted from the same checkpoint.
pub(crate) const FAILURES_MAX: u32 = 5;

impl Job {
    /// The youngest checkpoint that a set can be rolled back to alone.
    fn checkpoint_for(&self, set: SetId) -> Option<CheckpointId> {
        let scheduler = self.scheduler.as_ref()?;
        scheduler.checkpoints_of(set).last().map(CheckpointId)
    }

    /// The program of a rank was ended by a signal; its guardian waits. `incarnation`: of the
    /// program that has failed.
    pub(crate) fn rank_failed(
        &mut self,
        now: u64,
        id: PeerId,
        status: i32,
        incarnation: Incarnation,
    ) {
        if self.defer_failure(now, id, status, incarnation) {
            return;
        }
        let Some(rank) = self.ranks.get(&id) else { return };
        let (set, node) = (rank.set, rank.node.clone());
        self.log(json!({
            "event": "rank_failed", "rank": id.0, "node": node, "signal": libc::WTERMSIG(status),
            "incarnation": incarnation.0
        }));
        let Some(set) = set else { return self.give_up(id) };
        if self
            .recovery
            .rollbacks
            .get(&set)
            .is_some_and(|rollback| incarnation < rollback.incarnation)
        {
            // It is about to receive the order to roll back.
            return;
        }
        if let Err(reason) = self.roll_back(now, &BTreeSet::from([set])) {
            self.leave_to_mpirun(set, &reason);
            let members = self.members(&[set]);
            members.into_iter().for_each(|rank| self.give_up(rank));
        }
    }

    fn give_up(&mut self, rank: PeerId) {
        if let Some(state) = self.ranks.get_mut(&rank) {
            state.given_up = true;
        }
        self.effects.push_back(Effect::Send(rank, ToNode::NoRestart { rank }));
    }

    /// A node is lost, with everything on it.
    pub fn node_lost(&mut self, now: u64, node: &str) {
        self.spares.lose(node);
        let is_on = |rank: &Rank| same_host(&rank.node, node);
        // On a spare node a rank ends with the guardian that waits for it.
        let host_is = |rank: &Rank| rank.host.is_some_and(|host| is_on(&self.ranks[&host]));
        // One that has exited although the job goes on: its daemon could not report that.
        let may_run = |rank: &Rank| rank.ended.is_none() || !self.may_finish && rank.set.is_some();
        let on_it = |rank: &Rank| may_run(rank) && (is_on(rank) || host_is(rank));
        let lost: Vec<PeerId> =
            self.ranks.iter().filter(|(_, rank)| on_it(rank)).map(|(&id, _)| id).collect();
        let numbers: Vec<u32> = lost.iter().map(|rank| rank.0).collect();
        self.log(json!({"event": "node_lost", "node": node, "ranks": numbers}));
        self.images_lost(node);
        let mut sets = BTreeSet::new();
        for id in lost {
            self.detach(id);
            match self.ranks.get(&id).and_then(|rank| rank.set) {
                Some(set) => sets.extend([set]),
                None => return self.fail(format!("node {node} was lost while the job started")),
            }
        }
        if sets.is_empty() {
            self.effects.push_back(Effect::Mpirun(MpirunOrder::Recovered));
        }
        if let Err(reason) = self.roll_back(now, &sets) {
            return self.fail(format!("node {node} was lost, and {reason}"));
        }
        self.reconsider();
        self.replenish(now);
    }

    /// A rank could not be restored from its image, in this incarnation.
    pub(crate) fn not_restored(
        &mut self,
        now: u64,
        id: PeerId,
        incarnation: Incarnation,
        reason: &str,
    ) {
        let set = self.ranks.get(&id).and_then(|rank| rank.set);
        let newest = set.and_then(|set| self.recovery.newest_incarnations.get(&set));
        if newest.is_some_and(|newest| incarnation < *newest) {
            // Its set was rolled back again meanwhile.
            return;
        }
        // Together with all others it may be possible, from the same checkpoint (docs/adr/0031).
        let alone = set.is_some_and(|set| self.rolls_back_alone(set));
        let before = set
            .filter(|_| !alone)
            .and_then(|set| self.recovery.rollbacks.get(&set))
            .map(|rollback| rollback.checkpoint);
        let reason = format!("rank {id} is not restarted: {reason}");
        if let Err(reason) = self.roll_back_all(now, &reason, before) {
            self.fail(reason);
        }
    }

    /// Why nothing can be rolled back.
    pub(crate) fn obstacle(&self) -> Option<&'static str> {
        if !self.config.recover {
            Some("recovery is switched off (vprotocol_correlated_recover)")
        } else if !self.config.has_storage() {
            Some("no checkpoints are taken, so there is nothing to roll back to")
        } else if self.may_finish {
            Some("all ranks were past MPI_Finalize: nobody can repeat what it received")
        } else if self.is_protection_disabled() {
            Some("the job continues without protection since some ranks could not be reached")
        } else if self.scheduler.is_none() {
            Some("the job was still starting")
        } else {
            None
        }
    }

    /// These sets are rolled back, each alone, or all sets together (6).
    pub(crate) fn roll_back(&mut self, now: u64, sets: &BTreeSet<SetId>) -> Result<(), String> {
        let not_replayable = sets.iter().find_map(|&set| self.cannot_replay(set));
        let global = |rollback: &Rollback| rollback.global;
        let global_rollback = !sets.is_empty() && self.recovery.rollbacks.values().any(global);
        let failed_again =
            || global_rollback.then(|| "one more was lost during a global rollback".to_owned());
        if let Some(reason) = not_replayable.or_else(failed_again) {
            return self.roll_back_all(now, &reason, None);
        }
        for &set in sets {
            match self.roll_back_alone(now, set) {
                Ok(()) => {}
                Err(RollbackRefusal::Never(reason)) => return Err(reason),
                Err(RollbackRefusal::NotAlone(reason)) => {
                    return self.roll_back_all(now, &reason, None);
                }
            }
        }
        if !sets.is_empty() {
            self.sample_waiting(now);
        }
        Ok(())
    }

    /// Why this set cannot be rolled back alone. If it is the whole job nobody else has received
    /// anything that it could contradict.
    fn cannot_replay(&self, set: SetId) -> Option<String> {
        if let Some(problem) = self.recovery.diverged.get(&set) {
            return Some(format!("set {set} is not rolled back alone: {problem}"));
        }
        if self.is_whole_job(set) {
            return None;
        }
        if self.is_suspended(set) {
            return Some(format!(
                "set {set} cannot be rolled back alone: logging towards it was suspended, since it \
                 would have cost more than vprotocol_correlated_overhead_max or log_budget allow"
            ));
        }
        let own = self.recovery.not_replayable.get(&set).map(|mark| (set, &mark.reason));
        let (of, reason) = own.or_else(|| {
            self.recovery.set_rollback_blocked.as_ref().map(|(of, reason)| (*of, reason))
        })?;
        let whose = if of == set { String::new() } else { format!("as in set {of} ") };
        Some(format!("set {set} cannot be rolled back alone: {whose}{reason}"))
    }

    /// Begins the rollback of a set to its youngest checkpoint.
    fn roll_back_alone(&mut self, now: u64, set: SetId) -> Result<(), RollbackRefusal> {
        if let Some(obstacle) = self.obstacle() {
            return Err(RollbackRefusal::Never(obstacle.into()));
        }
        let members = self.members(&[set]);
        for &rank in &members {
            self.input(now, Input::RankFailed { rank });
        }
        let checkpoint = self.checkpoint_for(set).ok_or_else(|| {
            let none = "is complete yet, so there is nothing to roll back to";
            RollbackRefusal::Never(format!("no checkpoint of set {set} {none}"))
        })?;
        let failures = self.recovery.failures.entry(set).or_insert((checkpoint, 0));
        if failures.0 != checkpoint {
            *failures = (checkpoint, 0);
        }
        failures.1 += 1;
        if failures.1 > FAILURES_MAX {
            return Err(RollbackRefusal::Never(format!(
                "set {set} was restarted from checkpoint {checkpoint} {FAILURES_MAX} times and \
                 failed each time"
            )));
        }
        let rollback = Rollback::new(now, checkpoint, self.next_incarnation(), false);
        self.must_have_images(checkpoint, &members).map_err(RollbackRefusal::NotAlone)?;
        if self.is_whole_job(set) {
            // What the ranks will give is of another time.
            self.forget_verbs();
        }
        self.withdraw_placements(&BTreeSet::from([set]));
        self.begin_rollback(set, rollback).map_err(RollbackRefusal::Never)
    }

    /// An incarnation that no set ever ran in (1).
    pub(crate) fn next_incarnation(&self) -> Incarnation {
        let ran = self.ranks.values().map(|rank| rank.incarnation);
        let last = ran.chain(self.recovery.newest_incarnations.values().copied()).max();
        Incarnation(last.unwrap_or_default().0 + 1)
    }

    /// Everything that follows for one set from the decision to roll it back.
    pub(crate) fn begin_rollback(&mut self, set: SetId, rollback: Rollback) -> Result<(), String> {
        let members = self.members(&[set]);
        let ran_in = members.iter().map(|rank| self.ranks[rank].incarnation).max();
        let (checkpoint, incarnation) = (rollback.checkpoint, rollback.incarnation);
        self.recovery.newest_incarnations.insert(set, incarnation);
        self.recovery.rollbacks.insert(set, rollback);
        self.replays_end.void();
        self.changed = true;
        self.log(json!({
            "event": "set_rollback", "set": set.0, "checkpoint": checkpoint.0,
            "incarnation": incarnation.0,
            "ranks": members.iter().map(|rank| rank.0).collect::<Vec<_>>()
        }));
        for &rank in &members {
            if let Some(state) = self.ranks.get_mut(&rank) {
                (state.ready, state.finishing) = (false, false);
            }
        }
        self.fence_others(set, ran_in.unwrap_or_default(), incarnation);
        self.place(set, &members)
    }

    /// Asks others what they have received of the earlier incarnations of a set (5). A set that is
    /// being restored has no channels yet, and will connect to the next incarnation only; what it
    /// had received itself is lost with it.
    fn fence_others(&mut self, set: SetId, ran_in: Incarnation, before: Incarnation) {
        let is_restoring = |set: &SetId| {
            self.recovery
                .rollbacks
                .get(set)
                .is_some_and(|rollback| rollback.phase == Phase::Restoring)
        };
        let asked = |(&id, rank): (&PeerId, &Rank)| {
            let runs = !rank.lost && !rank.killed && rank.ended.is_none();
            let is_alive = rank.hello_received && runs;
            let of = rank.set.filter(|of| is_alive && !is_restoring(of))?;
            Some((id, of, rank.incarnation))
        };
        let asked: Vec<_> = self.ranks.iter().filter_map(asked).collect();
        self.log(json!({"event": "fence", "set": set.0, "asked": asked.len()}));
        self.effects.push_back(Effect::Fence { set, ran_in, before, asked });
    }

    /// All that others have received of the earlier incarnations of a set is here.
    pub fn fenced(&mut self, now: u64, set: SetId, incarnation: Incarnation) {
        let rollback = self.recovery.rollbacks.get_mut(&set);
        let Some(rollback) = rollback.filter(|rollback| rollback.incarnation == incarnation) else {
            return;
        };
        rollback.fenced = true;
        let ms = now.saturating_sub(rollback.since_ms);
        self.log(json!({"event": "fenced", "set": set.0, "ms": ms}));
        self.connect_restored();
    }

    /// Do others run meanwhile, which may have written to its files?
    pub(crate) fn rolls_back_alone(&self, set: SetId) -> bool {
        let global = self.recovery.rollbacks.get(&set).is_some_and(|rollback| rollback.global);
        !global && !self.is_whole_job(set)
    }

    /// Folder and incarnation of a set in rollback.
    pub(crate) fn where_from(&self, set: SetId) -> Option<(String, Incarnation)> {
        let rollback = self.recovery.rollbacks.get(&set)?;
        Some((self.folder_of(rollback.checkpoint).display().to_string(), rollback.incarnation))
    }

    /// Where a checkpoint is: one of this job, or that from which it was restarted.
    pub(crate) fn folder_of(&self, checkpoint: CheckpointId) -> std::path::PathBuf {
        match &self.config.restore {
            Some(folder) if store::checkpoint_number(folder) == Some(checkpoint) => folder.clone(),
            _ => self.folder(checkpoint),
        }
    }

    pub(crate) fn order_restore(&mut self, set: SetId, rank: PeerId) {
        let Some((directory, incarnation)) = self.where_from(set) else { return };
        let alone = self.rolls_back_alone(set);
        let order = ToNode::Restore { rank, directory, incarnation, alone };
        self.effects.push_back(Effect::Send(rank, order));
    }

    /// Are there no ranks but those of this set?
    pub(crate) fn is_whole_job(&self, set: SetId) -> bool {
        self.members(&[set]).len() == self.ranks.len()
    }

    /// Does this guardian run the present incarnation of the rank?
    pub fn accepts(&self, id: PeerId, incarnation: Incarnation) -> bool {
        let Some(rank) = self.ranks.get(&id) else { return true };
        !rank.lost && incarnation >= rank.adopted_in
            || rank.lost && rank.adopted_in > Incarnation(0) && incarnation == rank.adopted_in
    }

    /// A guardian has connected (again), whose program runs in this incarnation.
    pub(crate) fn guardian_of_rollback(&mut self, id: PeerId, incarnation: Incarnation) {
        let Some(set) = self.ranks.get(&id).and_then(|rank| rank.set) else { return };
        let rollback = self.recovery.rollbacks.get(&set);
        if rollback.is_some_and(|g| g.phase == Phase::Restoring && g.incarnation != incarnation) {
            self.order_restore(set, id);
        }
    }

    /// Is this rank's set in rollback?
    pub(crate) fn is_rolling_back(&self, id: PeerId) -> bool {
        let set = self.ranks.get(&id).and_then(|rank| rank.set);
        set.is_some_and(|set| self.recovery.rollbacks.contains_key(&set))
    }

    /// Are the images of this rank's set being read?
    pub(crate) fn is_being_restored(&self, id: PeerId) -> bool {
        let set = self.ranks.get(&id).and_then(|rank| rank.set);
        let rollback = set.and_then(|set| self.recovery.rollbacks.get(&set));
        rollback.is_some_and(|rollback| rollback.phase == Phase::Restoring)
    }

    /// A rank of a set in this phase has done what the phase waits for. Some: it was the last of
    /// the set.
    fn done(&mut self, id: PeerId, phase: Phase) -> Option<SetId> {
        let set = self.ranks.get(&id)?.set?;
        let all = self.members(&[set]).len();
        let rollback =
            self.recovery.rollbacks.get_mut(&set).filter(|rollback| rollback.phase == phase)?;
        rollback.done.insert(id);
        if rollback.done.len() < all {
            return None;
        }
        rollback.done.clear();
        Some(set)
    }

    /// Is this `Hello` of the incarnation that runs? A program that is about to be ended may still
    /// send it.
    pub(crate) fn is_of_this_incarnation(&self, id: PeerId, incarnation: Incarnation) -> bool {
        let set = self.ranks.get(&id).and_then(|rank| rank.set);
        let rollback = set.and_then(|set| self.recovery.rollbacks.get(&set));
        rollback.is_none_or(|rollback| rollback.incarnation == incarnation)
    }

    /// A restarted rank has connected.
    pub(crate) fn rank_restored(&mut self, id: PeerId) {
        if let Some(set) = self.done(id, Phase::Restoring)
            && let Some(rollback) = self.recovery.rollbacks.get_mut(&set)
        {
            // The phase lasts until all sets are as far (2).
            rollback.done = self.ranks.keys().copied().collect();
        }
        self.connect_restored();
    }

    /// When all restored ranks have connected, and what others have received of them is known:
    /// sends their endpoints to all, and all endpoints to them.
    fn connect_restored(&mut self) {
        let restoring: Vec<SetId> = self
            .recovery
            .rollbacks
            .iter()
            .filter(|(_, rollback)| rollback.phase == Phase::Restoring)
            .map(|(&set, _)| set)
            .collect();
        let all = self.ranks.len();
        let waits = |rollback: &Rollback| !rollback.fenced || rollback.done.len() < all;
        if restoring.is_empty() || restoring.iter().any(|set| waits(&self.recovery.rollbacks[set]))
        {
            return;
        }
        let restarted = self.members(&restoring);
        for &set in &restoring {
            let members = self.members(&[set]);
            if let Some(rollback) = self.recovery.rollbacks.get_mut(&set) {
                (rollback.phase, rollback.done) = (Phase::Connecting, BTreeSet::new());
                let incarnation = rollback.incarnation;
                let freely = rollback.global || self.recovery.not_replayable.contains_key(&set);
                self.effects.push_back(Effect::Replay { set, incarnation, members, freely });
            }
        }
        self.announce(&restarted, |_| true);
    }

    /// Sends the endpoints of these restarted ranks to all, and all endpoints to them, if `to` is
    /// true of the receiver. Whoever has received them before ignores them.
    pub(crate) fn announce(&mut self, restarted: &[PeerId], to: impl Fn(&Rank) -> bool) {
        let endpoint = |(&rank, state): (&PeerId, &Rank)| RankEndpoint {
            rank,
            incarnation: state.incarnation,
            endpoint: state.endpoint.clone(),
        };
        let endpoints: Vec<RankEndpoint> = self.ranks.iter().map(endpoint).collect();
        let theirs: Vec<RankEndpoint> = endpoints
            .iter()
            .filter(|endpoint| restarted.contains(&endpoint.rank))
            .cloned()
            .collect();
        let to = self.ranks.iter().filter(|(_, rank)| to(rank));
        for rank in to.map(|(&id, _)| id).collect::<Vec<_>>() {
            let endpoints =
                if restarted.contains(&rank) { endpoints.clone() } else { theirs.clone() };
            self.send(rank, ToRank::Endpoints { endpoints, restarted: restarted.to_vec() });
        }
    }

    /// A restarted rank is ready.
    pub(crate) fn rank_ready(&mut self, now: u64, id: PeerId) {
        let Some(set) = self.done(id, Phase::Connecting) else { return };
        let Some(rollback) = self.recovery.rollbacks.get_mut(&set) else { return };
        (rollback.phase, rollback.done) =
            (Phase::Replaying, core::mem::take(&mut rollback.replayed_early));
        self.changed = true;
        let all_are = rollback.done.len() == self.members(&[set]).len();
        let Some(rollback) = self.recovery.rollbacks.get(&set) else { return };
        let (checkpoint, ms) = (rollback.checkpoint, now.saturating_sub(rollback.since_ms));
        let global = rollback.global;
        self.log(
            json!({"event": "set_restarted", "set": set.0, "checkpoint": checkpoint.0, "ms": ms}),
        );
        self.input(now, Input::SetRestarted { set, checkpoint: checkpoint.0 });
        self.replenish(now);
        if self.recovery.rollbacks.values().all(|rollback| rollback.phase == Phase::Replaying) {
            self.effects.push_back(Effect::Mpirun(MpirunOrder::Recovered));
            self.sample_waiting_again(now);
        }
        // Or nobody else has received anything that must be replayed.
        if all_are || global || self.is_whole_job(set) {
            self.set_replay_complete(now, set);
        }
    }

    /// A rank cannot take part in a global checkpoint: its set's replay was believed to be complete
    /// too early, or a channel is not repaired (docs/adr/0016). `ReplayComplete` follows, in this
    /// incarnation or the next.
    pub(crate) fn replay_pending(&mut self, now: u64, id: PeerId, checkpoint: CheckpointId) {
        self.log(json!({"event": "replay_pending", "rank": id.0, "checkpoint": checkpoint.0}));
        let answer = CheckpointAnswer::Failed {
            checkpoint: checkpoint.0,
            refusal: CheckpointRefusal::ReplayPending,
        };
        self.input(now, Input::Answered { rank: id, answer });
    }

    /// A rank has replayed all that others have received of its lost execution, as far as it knows.
    /// What it does not know shows when all are asked (`replays_end`), and at the next global
    /// checkpoint.
    pub(crate) fn rank_replay_complete(&mut self, now: u64, id: PeerId) {
        self.input(now, Input::RankReplayComplete { rank: id });
        let set = self.ranks.get(&id).and_then(|rank| rank.set);
        let rollback = set.and_then(|set| self.recovery.rollbacks.get_mut(&set));
        // All ranks of the set are in this incarnation by now, and so is this one.
        if let Some(rollback) = rollback.filter(|rollback| rollback.phase == Phase::Connecting) {
            rollback.replayed_early.insert(id);
        }
        if let Some(set) = self.done(id, Phase::Replaying) {
            self.set_replay_complete(now, set);
        } else if self.recovery.rollbacks.is_empty() {
            self.believes_to_be_through(id);
        }
    }

    fn set_replay_complete(&mut self, now: u64, set: SetId) {
        let rollback = self.recovery.rollbacks.remove(&set);
        self.changed = true;
        let ms = now.saturating_sub(rollback.as_ref().map_or(now, |rollback| rollback.since_ms));
        self.log(json!({"event": "replay_completed", "set": set.0, "ms": ms}));
        if let Some(rollback) = &rollback {
            self.notify_recovered(set, rollback, ms);
        }
        self.input(now, Input::ReplayComplete { set });
        if self.recovery.rollbacks.is_empty() {
            self.ask_whether_replays_are_over();
            self.sample_waiting_again(now);
        }
    }

    /// Nothing is unprotected: a checkpoint of all sets as soon as the job runs.
    pub(crate) fn request_first_checkpoint(&mut self, now: u64) {
        if self.obstacle().is_some()
            || self.scheduler.as_ref().and_then(CheckpointScheduler::last_global).is_some()
        {
            return;
        }
        self.input(now, Input::RequestGlobalCheckpoint { exit: false });
    }
}
