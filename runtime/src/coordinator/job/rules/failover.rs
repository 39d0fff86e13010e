//! A coordinator that was started in place of a killed one. Part of [`Job`]: no I/O.
//!
//! Source: docs/adr/0011. What only the coordinator knew is in a [`PersistedState`]; the rest comes
//! from guardians, who say once more who they are. Until all have come, nothing is decided.
//!
//! 1. Nothing that follows from a change of the state is done before the state is kept.
//! 2. A loss is handled when every rank has come that is not lost itself: whoever is told to go
//!    back can be told, and where it goes to is known.
//! 3. A set that was on its way back, and had not met the others, begins anew in the next
//!    incarnation: who was told what is not known. So the others are asked anew what they have of
//!    it (`recovery`, 5), too.

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
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Version of the state.
const FORMAT: u32 = 3;
/// How long ranks may take to come back before a word is said about it. Agents try for less.
const PATIENCE_MS: u64 = 20_000;
/// Of so many lines before the next one what is left is removed.
const LEFTOVERS: u64 = 8;

impl Job {
    /// Is there something in the state that was not kept yet?
    pub fn must_remember(&mut self) -> bool {
        core::mem::take(&mut self.changed)
    }

    /// What a coordinator that comes after this one has to know.
    pub fn state(&self) -> PersistedState {
        let known = self.machine.as_ref().map(|machine| machine.state());
        let lines =
            known.map(|SchedulerState { next_checkpoint, globals, kept }| PersistedScheduler {
                next: next_checkpoint,
                globals,
                kept: kept.into_iter().map(|(set, lines)| (set.0, lines)).collect(),
            });
        // Killed again before all have come.
        let lines = lines.or_else(|| self.again.as_ref().map(|again| again.lines.clone()));
        let complete = self.lines.iter().filter(|(_, line)| line.complete);
        let complete = complete.map(|(line, state)| PersistedCheckpoint {
            line: line.0,
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
        let (mut going, falls) = self.recovery.state();
        let again = self.again.iter().flat_map(|again| again.going.iter());
        let with_all = self.again.as_ref().is_some_and(|again| again.with_all);
        going.extend(again.map(|set| PersistedRollback {
            set: set.0,
            with_all,
            ..PersistedRollback::default()
        }));
        let given = self.recovery.given.iter().map(|(set, given)| (set.0, given.0));
        PersistedState {
            format: FORMAT,
            life: self.life,
            size: self.setup.size,
            may_finish: self.may_finish,
            let_go: self.is_protection_disabled(),
            lines,
            complete: complete.collect(),
            ranks: self.ranks.iter().map(rank).collect(),
            going,
            falls,
            given: given.collect(),
            held: self.storage.state(),
            clocks: Vec::new(),
        }
    }

    /// Go on in the middle of a job of which this is known.
    ///
    /// # Errors
    /// The state is of another version.
    pub fn resume(&mut self, now: u64, state: PersistedState) -> Result<(), String> {
        if state.format != FORMAT {
            return Err(format!("the state has format {}, not {FORMAT}", state.format));
        }
        self.life = state.life + 1;
        self.setup.size = state.size.max(self.setup.size);
        self.may_finish = state.may_finish;
        self.out_of_reach.let_go = state.let_go;
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
                // Of one that does not come it has to be known whose set it was.
                set: of.set.map(SetId),
                ..Rank::default()
            };
            self.ranks.insert(PeerId(id), rank);
        }
        for of in state.complete {
            let images = of.images.into_iter().map(|image| (PeerId(image.rank), image));
            let line = CheckpointState::complete(
                of.kind,
                of.ranks.into_iter().map(PeerId).collect(),
                images.collect(),
            );
            self.lines.insert(CheckpointId(of.line), line);
        }
        self.storage.resume(state.held);
        let (behind, anew): (Vec<PersistedRollback>, Vec<PersistedRollback>) =
            state.going.into_iter().partition(|going| going.behind);
        self.recovery.resume(now, behind, &state.falls);
        let given = |(set, given)| (SetId(set), Incarnation(given));
        self.recovery.given = state.given.into_iter().map(given).collect();
        let coordinator = self.life;
        let Some(lines) = state.lines.filter(|_| !self.may_finish && !state.let_go) else {
            // As at the beginning, or at the end.
            self.log(json!({"event": "failover_started", "life": coordinator, "ready": false}));
            return Ok(());
        };
        self.cards_sent = true;
        let again = Failover {
            lines,
            with_all: anew.iter().any(|going| going.with_all),
            going: anew.into_iter().map(|going| SetId(going.set)).collect(),
            since_ms: now,
            ..Failover::default()
        };
        self.log(json!({
            "event": "failover_started", "life": coordinator, "ready": true,
            "going_back": again.going.iter().map(|set| set.0).collect::<Vec<_>>(),
        }));
        self.again = Some(again);
        Ok(())
    }

    /// Whom it waits for, if it is not known yet who is there.
    pub(crate) fn awaited(&self) -> Option<Vec<PeerId>> {
        let again = self.again.as_ref()?;
        let lost = |id: PeerId, rank: &Rank| {
            again.words.iter().any(|word| match word.split_once(' ') {
                Some(("lost", node)) => same_host(&rank.node, node),
                Some(("guardian", of)) => of.parse() == Ok(id.0),
                _ => false,
            })
        };
        let has_come = |id: PeerId, rank: &Rank| {
            let restarts = rank.set.is_some_and(|set| again.going.contains(&set));
            let runs = rank.said_hello && rank.ready;
            rank.ended.is_some()
                || rank.lost
                || lost(id, rank)
                || rank.here && (restarts || runs || again.fallen.contains_key(&id))
        };
        let missing = self.ranks.iter().filter(|(id, rank)| !has_come(**id, rank));
        Some(missing.map(|(&id, _)| id).collect())
    }

    /// A word from mpirun that has to wait. True: it does.
    pub(crate) fn waits_with_word(&mut self, now: u64, word: &str) -> bool {
        let Some(again) = &mut self.again else { return false };
        again.words.push(word.to_owned());
        self.see_who_has_come(now);
        true
    }

    /// News that a program has fallen. True: it waits.
    pub(crate) fn waits_with_fallen(
        &mut self,
        now: u64,
        rank: PeerId,
        status: i32,
        incarnation: Incarnation,
    ) -> bool {
        let Some(again) = &mut self.again else { return false };
        again.fallen.insert(rank, (status, incarnation));
        self.see_who_has_come(now);
        true
    }

    /// Who is missing after a while is told, and losses beside it end the job.
    pub(crate) fn expire_failover(&mut self, now: u64) {
        let Some(missing) = self.awaited() else { return };
        let Some(again) = &mut self.again else { return };
        if again.told || now < again.since_ms.saturating_add(PATIENCE_MS) {
            return;
        }
        again.told = true;
        let loss = again.words.iter().find(|word| !word.starts_with("checkpoint")).cloned();
        let names: Vec<String> = missing.iter().map(|id| self.name_of(*id)).collect();
        let names = names.join(", ");
        let numbers: Vec<u32> = missing.iter().map(|rank| rank.0).collect();
        self.log(json!({"event": "failover_incomplete", "life": self.life, "missing": numbers}));
        if let Some(loss) = loss {
            let reason = format!(
                "the job's coordinator was killed and started again, and before {names} had come \
                 back to it, there was a loss ({loss})"
            );
            return self.fail(reason);
        }
        self.effects.push_back(Effect::Tell(format!(
            "job {}: its coordinator was started again, but {names} did not come back to it: the \
             job is not protected until then",
            self.name
        )));
    }

    pub(crate) fn name_of(&self, id: PeerId) -> String {
        format!("rank {id} on {}", self.ranks.get(&id).map_or("?", |rank| rank.node.as_str()))
    }

    /// Have all come?
    pub(crate) fn see_who_has_come(&mut self, now: u64) {
        if self.awaited().is_none_or(|missing| !missing.is_empty()) {
            return;
        }
        let Some(again) = self.again.take() else { return };
        let PersistedScheduler { next, globals, kept } = again.lines;
        let kept: BTreeMap<SetId, Vec<u64>> =
            kept.into_iter().map(|(set, lines)| (SetId(set), lines)).collect();
        let known = SchedulerState { next_checkpoint: next, globals, kept };
        self.resume_lines(now, &known);
        self.tidy_up(next);
        let behind = self.recovery.behind();
        for &(set, line) in &behind {
            self.input(now, Input::SetRestarted { set, checkpoint: line.0 });
        }
        // The coordinator before this one may have been killed before all had heard of them. (Who
        // is not ready may be a new process that waits for cards of its own.)
        let behind: Vec<SetId> = behind.into_iter().map(|(set, _)| set).collect();
        let mut behind = self.members(&behind);
        behind.retain(|rank| self.ranks[rank].ready && self.ranks[rank].said_hello);
        if !behind.is_empty() {
            self.make_known(&behind, |rank| rank.ready);
        }
        for (id, finishing, ended) in
            self.ranks.iter().map(|(&id, r)| (id, r.finishing, r.ended)).collect::<Vec<_>>()
        {
            if ended.is_some() {
                self.input(now, Input::RankFailed { rank: id });
            } else if finishing {
                self.input(now, Input::Finishing { rank: id });
            }
        }
        let ms = now.saturating_sub(again.since_ms);
        self.log(json!({"event": "failover_state_loaded", "life": self.life, "ms": ms}));
        self.changed = true;
        let words: Vec<&String> =
            again.words.iter().filter(|word| !word.starts_with("checkpoint")).collect();
        // What mpirun has lost decides who is there to be told anything.
        let mut sets = again.going;
        for word in &words {
            if let Some(("lost", node)) = word.split_once(' ') {
                sets.retain(|set| !self.has_rank_on(*set, node));
            }
        }
        let ordered = match sets.first() {
            Some(_) if again.with_all => self.roll_back_all(
                now,
                "all were on their way back when the coordinator ended",
                None,
            ),
            _ => self.go_back(now, &sets),
        };
        if let Err(reason) = ordered {
            let sets = some_of(sets.iter().map(ToString::to_string).collect(), ", ");
            self.fail(format!("sets that were on their way back ({sets}) cannot: {reason}"));
        }
        for word in again.words {
            self.hear_mpirun(now, &word);
        }
        for (rank, (status, incarnation)) in again.fallen {
            self.fallen(now, rank, status, incarnation);
        }
        self.replenish(now);
        self.first_line(now);
        self.is_whole(now, again.since_ms);
        self.take_early(now);
    }

    fn has_rank_on(&self, set: SetId, node: &str) -> bool {
        let is_on = |rank: &Rank| same_host(&rank.node, node);
        // On a spare node a rank ends with the guardian that waits for it.
        let host_is = |rank: &Rank| rank.host.is_some_and(|host| is_on(&self.ranks[&host]));
        let on_it = |id: &PeerId| is_on(&self.ranks[id]) || host_is(&self.ranks[id]);
        self.members(&[set]).iter().any(on_it)
    }

    /// What is left of lines that were under way, or not wanted any more.
    fn tidy_up(&mut self, next: u64) {
        let numbers = next.saturating_sub(LEFTOVERS)..next;
        let restored = self.setup.first_line();
        let ranks: Vec<PeerId> = self.ranks.keys().copied().collect();
        let nodes: BTreeSet<String> = self.ranks.values().map(|rank| rank.node.clone()).collect();
        for line in numbers.filter(|&line| line >= restored).map(CheckpointId) {
            if self.lines.contains_key(&line) {
                continue;
            }
            if self.setup.is_local() {
                for node in &nodes {
                    let clear = ToNode::DeleteCheckpoint { checkpoint: line, ranks: ranks.clone() };
                    self.effects.push_back(Effect::SendNode(node.clone(), clear));
                }
                continue;
            }
            self.effects.push_back(Effect::Forget(line));
            for &rank in &ranks {
                self.effects
                    .push_back(Effect::Send(rank, ToNode::Discard { rank, checkpoint: line }));
            }
        }
    }

    /// Say so, if sets are not on their way back.
    pub(crate) fn is_whole(&mut self, now: u64, since_ms: u64) {
        let protected = self.setup.recover && self.setup.has_storage();
        self.see_whether_covered();
        self.log(json!({
            "event": "failover_completed", "life": self.life, "ms": now.saturating_sub(since_ms),
            "recovers": protected && !self.may_finish,
            "covered": !self.setup.is_local() || self.storage.covered,
            "going_back": self.recovery.going.keys().map(|set| set.0).collect::<Vec<_>>(),
        }));
    }

    /// A guardian that the coordinator before this one may not have told.
    pub(crate) fn notify_again(&mut self, id: PeerId) {
        if self.may_finish && self.life > 0 {
            self.send(id, ToRank::MayFinish {});
        }
    }

    /// For the status.
    pub(crate) fn protection(&self) -> Value {
        let waits: Option<Vec<u32>> =
            self.awaited().map(|missing| missing.iter().map(|rank| rank.0).collect());
        json!({
            "coordinators_before": self.life, "waits_for": waits,
            "let_go": self.is_protection_disabled()
        })
    }
}
