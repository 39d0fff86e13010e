//! Sets that go back: from the news that a rank has fallen or its node is lost to the moment when
//! it has caught up. Part of [`Job`]: no I/O.
//!
//! ```text
//!  fallen ──Restore / Adopt──> restoring ──all say Hello──> meeting ──Cards, all Ready──> behind
//!         ──Fence to others─>           ──all Fenced────>
//!         ──all ReplayComplete──> over
//! ```
//! 1. A set goes back as a whole, to its youngest complete line, in an incarnation that no set
//!    ever ran in: what its processes leave for each other on the way nobody else finds.
//! 2. Cards are sent when every rank of every set that is restoring has said who it is: nobody
//!    waits for an address of an earlier life.
//! 3. A rank is restored by its own guardian if that lives, else by one that a guardian of another
//!    node starts; never by both: who was thought to be lost and comes back is ended.
//! 4. A set that falls again while it goes back begins anew; one that falls `FAILURES_MAX` times
//!    without a new line is given up.
//! 5. Nor are cards, and what they have to repeat, sent to sets that are restoring before all that
//!    others have of their earlier lives is here (docs/adr/0019). Everybody with channels is asked
//!    (`Fence`) while the images are read; who does not answer is waited for until he does or has
//!    fallen.
//! 6. If a set cannot go back alone, all go back together (`rollback_all`), or the job ends.

#[cfg(test)]
pub(crate) mod tests;

use crate::coordinator::job::state::{Effect, Job, Rank};
use crate::coordinator::job::tables::hosts::same_host;
use crate::coordinator::job::tables::mpirun_orders::MpirunOrder;
use crate::coordinator::job::tables::rollback::{Phase, Rollback, RollbackRefusal};
use crate::store;
use rustbtl_coordination::checkpoints::{CheckpointScheduler, Input};
use rustbtl_coordination::control::{CheckpointId, RankEndpoint, ReplayBlocker, ToNode, ToRank};
use rustbtl_coordination::quiescence::{CheckpointAnswer, CheckpointRefusal};
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use serde_json::json;
use std::collections::BTreeSet;

/// How often a set is started again from the same line.
pub(crate) const FAILURES_MAX: u32 = 5;

impl Job {
    /// The youngest line that a set can go back to alone.
    fn line_for(&self, set: SetId) -> Option<CheckpointId> {
        let machine = self.machine.as_ref()?;
        machine.checkpoints_of(set).last().map(CheckpointId)
    }

    /// The program of a rank was ended by a signal; its guardian waits. `incarnation`: of the
    /// program that has fallen.
    pub(crate) fn fallen(&mut self, now: u64, id: PeerId, status: i32, incarnation: Incarnation) {
        if self.waits_with_fallen(now, id, status, incarnation) {
            return;
        }
        let Some(rank) = self.ranks.get(&id) else { return };
        let (set, node) = (rank.set, rank.node.clone());
        self.log(json!({
            "event": "rank_failed", "rank": id.0, "node": node, "signal": libc::WTERMSIG(status),
            "incarnation": incarnation.0
        }));
        let Some(set) = set else { return self.give_up(id) };
        if self.recovery.going.get(&set).is_some_and(|going| incarnation < going.incarnation) {
            // It is about to hear that its set goes back.
            return;
        }
        if let Err(reason) = self.go_back(now, &BTreeSet::from([set])) {
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

    /// A node is gone, with everything on it.
    pub fn node_lost(&mut self, now: u64, node: &str) {
        self.places.lose(node);
        let is_on = |rank: &Rank| same_host(&rank.node, node);
        // On a spare node a rank ends with the guardian that waits for it.
        let host_is = |rank: &Rank| rank.host.is_some_and(|host| is_on(&self.ranks[&host]));
        let on_it = |rank: &Rank| rank.ended.is_none() && (is_on(rank) || host_is(rank));
        let lost: Vec<PeerId> =
            self.ranks.iter().filter(|(_, rank)| on_it(rank)).map(|(&id, _)| id).collect();
        let numbers: Vec<u32> = lost.iter().map(|rank| rank.0).collect();
        self.log(json!({"event": "node_lost", "node": node, "ranks": numbers}));
        self.storage_lost(node);
        let mut sets = BTreeSet::new();
        for id in lost {
            self.take_away(id);
            match self.ranks.get(&id).and_then(|rank| rank.set) {
                Some(set) => sets.extend([set]),
                None => return self.fail(format!("node {node} was lost while the job started")),
            }
        }
        if sets.is_empty() {
            self.effects.push_back(Effect::Mpirun(MpirunOrder::Recovered));
        }
        if let Err(reason) = self.go_back(now, &sets) {
            return self.fail(format!("node {node} was lost, and {reason}"));
        }
        self.reconsider();
        self.replenish(now);
    }

    /// A rank could not be made from its image, in this incarnation.
    pub(crate) fn not_restored(
        &mut self,
        now: u64,
        id: PeerId,
        incarnation: Incarnation,
        reason: &str,
    ) {
        let set = self.ranks.get(&id).and_then(|rank| rank.set);
        let given = set.and_then(|set| self.recovery.given.get(&set));
        if given.is_some_and(|given| incarnation < *given) {
            // It was told to begin anew meanwhile.
            return;
        }
        let before = set.and_then(|set| self.recovery.going.get(&set)).map(|going| going.line);
        let reason = format!("rank {id} is not started again: {reason}");
        if let Err(reason) = self.roll_back_all(now, &reason, before) {
            self.fail(reason);
        }
    }

    /// Why nobody can go back.
    pub(crate) fn obstacle(&self) -> Option<&'static str> {
        if !self.setup.recover {
            Some("recovery is switched off (vprotocol_correlated_recover)")
        } else if !self.setup.has_storage() {
            Some("no checkpoints are taken, so there is nothing to go back to")
        } else if self.may_finish {
            Some("all ranks were past MPI_Finalize: nobody can repeat what it received")
        } else if self.is_protection_disabled() {
            Some("the job went on without protection since some ranks could not be reached")
        } else if self.machine.is_none() {
            Some("the job was still starting")
        } else {
            None
        }
    }

    /// These sets go back, each alone, or all that there are do together (6).
    pub(crate) fn go_back(&mut self, now: u64, sets: &BTreeSet<SetId>) -> Result<(), String> {
        let unrecorded = sets.iter().find_map(|&set| self.cannot_repeat(set));
        let with_all = |going: &Rollback| going.with_all;
        let all_are_going = !sets.is_empty() && self.recovery.going.values().any(with_all);
        let fell = || all_are_going.then(|| "one more was lost while all went back".to_owned());
        if let Some(reason) = unrecorded.or_else(fell) {
            return self.roll_back_all(now, &reason, None);
        }
        for &set in sets {
            match self.roll_back_alone(now, set) {
                Ok(()) => {}
                Err(RollbackRefusal::Here(reason)) => return Err(reason),
                Err(RollbackRefusal::Alone(reason)) => {
                    return self.roll_back_all(now, &reason, None);
                }
            }
        }
        Ok(())
    }

    /// Why this set cannot go back alone. One that is the whole job has nobody whom it could
    /// contradict.
    fn cannot_repeat(&self, set: SetId) -> Option<String> {
        if self.is_whole_job(set) {
            return None;
        }
        let own = self.recovery.unrecorded.get(&set).map(|reason| (set, reason));
        let (of, reason) =
            own.or_else(|| self.recovery.nobody_alone.as_ref().map(|(of, reason)| (*of, reason)))?;
        let whose = if of == set { String::new() } else { format!("as in set {of} ") };
        Some(format!("set {set} cannot go back alone: {whose}{reason}"))
    }

    /// Order everything that takes a set back to its youngest line.
    fn roll_back_alone(&mut self, now: u64, set: SetId) -> Result<(), RollbackRefusal> {
        if let Some(obstacle) = self.obstacle() {
            return Err(RollbackRefusal::Here(obstacle.into()));
        }
        let members = self.members(&[set]);
        for &rank in &members {
            self.input(now, Input::RankFailed { rank });
        }
        let line = self.line_for(set).ok_or_else(|| {
            let none = "is complete yet, so there is nothing to go back to";
            RollbackRefusal::Here(format!("no line of set {set} {none}"))
        })?;
        let falls = self.recovery.falls.entry(set).or_insert((line, 0));
        if falls.0 != line {
            *falls = (line, 0);
        }
        falls.1 += 1;
        if falls.1 > FAILURES_MAX {
            return Err(RollbackRefusal::Here(format!(
                "set {set} was started again from line {line} {FAILURES_MAX} times and fell each \
                 time"
            )));
        }
        let going = Rollback::new(now, line, self.next_incarnation(), false);
        self.must_have_images(line, &members).map_err(RollbackRefusal::Alone)?;
        self.begin_rollback(set, going).map_err(RollbackRefusal::Here)
    }

    /// One that no set ever ran in (1).
    pub(crate) fn next_incarnation(&self) -> Incarnation {
        let ran = self.ranks.values().map(|rank| rank.incarnation);
        let last = ran.chain(self.recovery.given.values().copied()).max();
        Incarnation(last.unwrap_or_default().0 + 1)
    }

    /// Everything about one set that follows from the decision that it goes back.
    pub(crate) fn begin_rollback(&mut self, set: SetId, going: Rollback) -> Result<(), String> {
        let members = self.members(&[set]);
        let ran_in = members.iter().map(|rank| self.ranks[rank].incarnation).max();
        let (line, incarnation) = (going.line, going.incarnation);
        self.recovery.given.insert(set, incarnation);
        self.recovery.going.insert(set, going);
        self.changed = true;
        self.log(json!({
            "event": "set_rollback", "set": set.0, "checkpoint": line.0,
            "incarnation": incarnation.0,
            "ranks": members.iter().map(|rank| rank.0).collect::<Vec<_>>()
        }));
        for &rank in &members {
            if let Some(state) = self.ranks.get_mut(&rank) {
                (state.ready, state.finishing) = (false, false);
            }
        }
        self.ask_others(set, ran_in.unwrap_or_default(), incarnation);
        self.place(set, &members)
    }

    /// What have others of the lives of a set that are over (5)? A set that is being restored has
    /// no channels yet, and will meet the next life only; what it had itself is gone with it.
    fn ask_others(&mut self, set: SetId, ran_in: Incarnation, before: Incarnation) {
        let is_restoring = |set: &SetId| {
            self.recovery.going.get(set).is_some_and(|going| going.phase == Phase::Restoring)
        };
        let asked = |(&id, rank): (&PeerId, &Rank)| {
            let lives = rank.said_hello && !rank.lost && rank.ended.is_none();
            let of = rank.set.filter(|of| lives && !is_restoring(of))?;
            Some((id, of, rank.incarnation))
        };
        let asked: Vec<_> = self.ranks.iter().filter_map(asked).collect();
        self.log(json!({"event": "fence", "set": set.0, "asked": asked.len()}));
        self.effects.push_back(Effect::Fence { set, ran_in, before, asked });
    }

    /// All that others have of the lives of a set before this one is here.
    pub fn fenced(&mut self, now: u64, set: SetId, incarnation: Incarnation) {
        let going = self.recovery.going.get_mut(&set);
        let Some(going) = going.filter(|going| going.incarnation == incarnation) else { return };
        going.fenced = true;
        let ms = now.saturating_sub(going.since_ms);
        self.log(json!({"event": "fenced", "set": set.0, "ms": ms}));
        self.introduce();
    }

    /// Do others go on meanwhile, which may have written to its files?
    pub(crate) fn goes_alone(&self, set: SetId) -> bool {
        let with_all = self.recovery.going.get(&set).is_some_and(|going| going.with_all);
        !with_all && !self.is_whole_job(set)
    }

    /// Folder and incarnation of a set that goes back.
    pub(crate) fn where_from(&self, set: SetId) -> Option<(String, Incarnation)> {
        let going = self.recovery.going.get(&set)?;
        Some((self.folder_of(going.line).display().to_string(), going.incarnation))
    }

    /// Where a line is: of this job, or of the one that it goes on with.
    pub(crate) fn folder_of(&self, line: CheckpointId) -> std::path::PathBuf {
        match &self.setup.restore {
            Some(folder) if store::checkpoint_number(folder) == Some(line) => folder.clone(),
            _ => self.folder(line),
        }
    }

    pub(crate) fn order_restore(&mut self, set: SetId, rank: PeerId) {
        let Some((directory, incarnation)) = self.where_from(set) else { return };
        let alone = self.goes_alone(set);
        let order = ToNode::Restore { rank, directory, incarnation, alone };
        self.effects.push_back(Effect::Send(rank, order));
    }

    /// The set of this rank records nothing, or not all.
    pub fn does_not_record(&mut self, now: u64, id: PeerId, reason: &str, hinders: ReplayBlocker) {
        let Some(set) = self.ranks.get(&id).and_then(|rank| rank.set) else { return };
        match hinders {
            ReplayBlocker::Set => {}
            ReplayBlocker::Others => {
                self.recovery.nobody_alone.get_or_insert_with(|| (set, reason.to_owned()));
            }
            ReplayBlocker::Everybody => {
                self.recovery.nobody.get_or_insert_with(|| reason.to_owned());
            }
        }
        let before = self.recovery.unrecorded.insert(set, reason.to_owned());
        // Its earlier life came to this, too, and fell before anybody heard of it.
        let alone = self.recovery.going.get(&set).is_some_and(|going| !going.with_all);
        if before.is_none() && alone && !self.is_whole_job(set) {
            let reason = format!("set {set} went back alone, and could not: {reason}");
            if let Err(reason) = self.roll_back_all(now, &reason, None) {
                self.fail(reason);
            }
        }
    }

    /// Are there no ranks but those of this set?
    fn is_whole_job(&self, set: SetId) -> bool {
        self.members(&[set]).len() == self.ranks.len()
    }

    /// Is this guardian that of the rank's present life?
    pub fn accepts(&self, id: PeerId, incarnation: Incarnation) -> bool {
        let Some(rank) = self.ranks.get(&id) else { return true };
        !rank.lost && incarnation >= rank.adopted_in
            || rank.lost && rank.adopted_in > Incarnation(0) && incarnation == rank.adopted_in
    }

    /// A guardian has come (again), whose program runs in this incarnation.
    pub(crate) fn guardian_of_rollback(&mut self, id: PeerId, incarnation: Incarnation) {
        let Some(set) = self.ranks.get(&id).and_then(|rank| rank.set) else { return };
        let going = self.recovery.going.get(&set);
        if going.is_some_and(|g| g.phase == Phase::Restoring && g.incarnation != incarnation) {
            self.order_restore(set, id);
        }
    }

    /// Is this rank's set on its way back?
    pub(crate) fn is_rolling_back(&self, id: PeerId) -> bool {
        let set = self.ranks.get(&id).and_then(|rank| rank.set);
        set.is_some_and(|set| self.recovery.going.contains_key(&set))
    }

    /// Are the images of this rank's set being read?
    pub(crate) fn is_being_restored(&self, id: PeerId) -> bool {
        let set = self.ranks.get(&id).and_then(|rank| rank.set);
        let going = set.and_then(|set| self.recovery.going.get(&set));
        going.is_some_and(|going| going.phase == Phase::Restoring)
    }

    /// A rank of a set in this phase has done what the phase waits for. True: it was the last.
    fn done(&mut self, id: PeerId, phase: Phase) -> Option<SetId> {
        let set = self.ranks.get(&id)?.set?;
        let all = self.members(&[set]).len();
        let going = self.recovery.going.get_mut(&set).filter(|going| going.phase == phase)?;
        going.done.insert(id);
        if going.done.len() < all {
            return None;
        }
        going.done.clear();
        Some(set)
    }

    /// May this `Hello` be believed? A program that is about to be ended may still say it.
    pub(crate) fn is_of_this_incarnation(&self, id: PeerId, incarnation: Incarnation) -> bool {
        let set = self.ranks.get(&id).and_then(|rank| rank.set);
        let going = set.and_then(|set| self.recovery.going.get(&set));
        going.is_none_or(|going| going.incarnation == incarnation)
    }

    /// A rank that was started again has said who it is.
    pub(crate) fn is_back(&mut self, id: PeerId) {
        if let Some(set) = self.done(id, Phase::Restoring)
            && let Some(going) = self.recovery.going.get_mut(&set)
        {
            // The phase goes on until all sets have come so far (2).
            going.done = self.ranks.keys().copied().collect();
        }
        self.introduce();
    }

    /// All that are being restored have said who they are, and what others have of them is known:
    /// make them known to each other and to everybody else.
    fn introduce(&mut self) {
        let restoring: Vec<SetId> = self
            .recovery
            .going
            .iter()
            .filter(|(_, going)| going.phase == Phase::Restoring)
            .map(|(&set, _)| set)
            .collect();
        let all = self.ranks.len();
        let waits = |going: &Rollback| !going.fenced || going.done.len() < all;
        if restoring.is_empty() || restoring.iter().any(|set| waits(&self.recovery.going[set])) {
            return;
        }
        let restarted = self.members(&restoring);
        for &set in &restoring {
            let members = self.members(&[set]);
            if let Some(going) = self.recovery.going.get_mut(&set) {
                (going.phase, going.done) = (Phase::Meeting, BTreeSet::new());
                let (incarnation, anew) = (going.incarnation, going.with_all);
                self.effects.push_back(Effect::Replay { set, incarnation, members, anew });
            }
        }
        self.make_known(&restarted, |_| true);
    }

    /// These were started again: how to reach them goes to everybody, and to them how to reach
    /// everybody, if `to` is true of them. Whoever has heard it before takes no notice.
    pub(crate) fn make_known(&mut self, restarted: &[PeerId], to: impl Fn(&Rank) -> bool) {
        let card = |(&rank, state): (&PeerId, &Rank)| RankEndpoint {
            rank,
            incarnation: state.incarnation,
            endpoint: state.card.clone(),
        };
        let cards: Vec<RankEndpoint> = self.ranks.iter().map(card).collect();
        let theirs: Vec<RankEndpoint> =
            cards.iter().filter(|card| restarted.contains(&card.rank)).cloned().collect();
        let to = self.ranks.iter().filter(|(_, rank)| to(rank));
        for rank in to.map(|(&id, _)| id).collect::<Vec<_>>() {
            let cards = if restarted.contains(&rank) { cards.clone() } else { theirs.clone() };
            self.send(rank, ToRank::Endpoints { endpoints: cards, restarted: restarted.to_vec() });
        }
    }

    /// A rank that was started again takes part in the job.
    pub(crate) fn is_ready(&mut self, now: u64, id: PeerId) {
        let Some(set) = self.done(id, Phase::Meeting) else { return };
        let Some(going) = self.recovery.going.get_mut(&set) else { return };
        (going.phase, going.done) = (Phase::Behind, core::mem::take(&mut going.early));
        self.changed = true;
        let all_are = going.done.len() == self.members(&[set]).len();
        let Some(going) = self.recovery.going.get(&set) else { return };
        let (line, ms) = (going.line, now.saturating_sub(going.since_ms));
        let with_all = going.with_all;
        self.log(json!({"event": "set_restarted", "set": set.0, "checkpoint": line.0, "ms": ms}));
        self.input(now, Input::SetRestarted { set, checkpoint: line.0 });
        self.replenish(now);
        if self.recovery.going.values().all(|going| going.phase == Phase::Behind) {
            self.effects.push_back(Effect::Mpirun(MpirunOrder::Recovered));
        }
        // Or there is nobody who has something of its future.
        if all_are || with_all || self.is_whole_job(set) {
            self.set_replay_complete(now, set);
        }
    }

    /// A rank cannot be in a global line: it was believed too early that a set had caught up, or a
    /// channel is not repaired (docs/adr/0016). `ReplayComplete` follows, in this life or the next.
    pub(crate) fn is_replaying(&mut self, now: u64, id: PeerId, line: CheckpointId) {
        self.log(json!({"event": "replay_pending", "rank": id.0, "checkpoint": line.0}));
        let answer = CheckpointAnswer::Failed {
            checkpoint: line.0,
            refusal: CheckpointRefusal::ReplayPending,
        };
        self.input(now, Input::Answered { rank: id, answer });
    }

    /// A rank has repeated all that others have of its lost future, as far as it knows. What it
    /// does not know shows at the next global line.
    pub(crate) fn rank_replay_complete(&mut self, now: u64, id: PeerId) {
        self.input(now, Input::RankReplayComplete { rank: id });
        let set = self.ranks.get(&id).and_then(|rank| rank.set);
        let going = set.and_then(|set| self.recovery.going.get_mut(&set));
        // All of it are in this life by now, and so is who says it.
        if let Some(going) = going.filter(|going| going.phase == Phase::Meeting) {
            going.early.insert(id);
        }
        if let Some(set) = self.done(id, Phase::Behind) {
            self.set_replay_complete(now, set);
        }
    }

    fn set_replay_complete(&mut self, now: u64, set: SetId) {
        let since = self.recovery.going.remove(&set).map_or(now, |going| going.since_ms);
        self.changed = true;
        let ms = now.saturating_sub(since);
        self.log(json!({"event": "replay_completed", "set": set.0, "ms": ms}));
        self.input(now, Input::ReplayComplete { set });
    }

    /// Nothing is unprotected: a line of all sets as soon as the job runs.
    pub(crate) fn first_line(&mut self, now: u64) {
        if self.obstacle().is_some()
            || self.machine.as_ref().and_then(CheckpointScheduler::last_global).is_some()
        {
            return;
        }
        self.input(now, Input::RequestGlobalCheckpoint { exit: false });
    }
}
