//! Carries out the orders of the checkpoint scheduler. Part of [`Job`]: no I/O.

#[cfg(test)]
mod tests;

use crate::coordinator::job::state::{Effect, Job};
use crate::coordinator::job::tables::checkpoints::CheckpointState;
use crate::coordinator::job::tables::mpirun_orders::MpirunOrder;
use crate::store::{FORMAT, Kind, Manifest};
use rustbtl_coordination::checkpoints::Output;
use rustbtl_coordination::collective_clock::DrainInput;
use rustbtl_coordination::control::{CheckpointId, CheckpointKind, ToNode, ToRank};
use rustbtl_coordination::quiescence::CheckpointScope;
use rustbtl_fragments::ids::{PeerId, SetId};
use serde_json::json;
use std::collections::BTreeSet;

/// A checkpoint that takes so long is reported, and again whenever that has doubled.
const SLOW_MS: u64 = 30_000;

impl Job {
    /// What checkpoints that take long wait for: whoever looks for the reason begins here.
    pub(crate) fn report_slow_checkpoints(&mut self, now: u64) {
        let mut events = Vec::new();
        for (&number, state) in self.checkpoints.iter_mut().filter(|(_, state)| !state.complete) {
            let ms = now.saturating_sub(state.started_ms);
            if ms < SLOW_MS.max(2 * state.reported_slow_ms) {
                continue;
            }
            state.reported_slow_ms = ms;
            let not_stored = state.ranks.iter().filter(|rank| !state.images.contains_key(rank));
            let not_stored: Vec<u32> = not_stored.map(|rank| rank.0).collect();
            let all = (number, PeerId(0))..=(number, PeerId(u32::MAX));
            let held = self.storage.held.range(all);
            let on_the_way = held.filter(|(_, held)| !held.requested.is_empty());
            let on_the_way: Vec<_> = on_the_way
                .map(|((_, rank), held)| json!({"rank": rank.0, "to": held.requested}))
                .collect();
            events.push(json!({
                "event": "checkpoint_slow", "checkpoint": number.0, "ms": ms,
                "not_stored": not_stored, "on_the_way": on_the_way,
            }));
        }
        events.into_iter().for_each(|event| self.log(event));
    }

    fn open(
        &mut self,
        now: u64,
        checkpoint: CheckpointId,
        kind: Kind,
        ranks: Vec<PeerId>,
        exit: bool,
    ) {
        for request in self.requests.ordered(kind == Kind::Global) {
            self.answer(&request, checkpoint, "");
        }
        let set = ranks.first().and_then(|rank| self.ranks.get(rank)?.set).unwrap_or_default().0;
        self.log(match kind {
            Kind::Global => json!({
                "event": "checkpoint_started", "checkpoint": checkpoint.0, "kind": "global"
            }),
            Kind::Set => json!({
                "event": "checkpoint_started", "checkpoint": checkpoint.0, "kind": "set", "set": set
            }),
        });
        let state = CheckpointState::new(kind, ranks.into_iter().collect(), exit, now);
        self.checkpoints.insert(checkpoint, state);
        // No number is used twice.
        self.changed = true;
    }

    pub(crate) fn carry_out_one(&mut self, now: u64, output: Output) {
        let all: Vec<PeerId> = self.ranks.keys().copied().collect();
        match output {
            Output::StopOutgoing { checkpoint } => {
                let checkpoint = CheckpointId(checkpoint);
                let exit = core::mem::take(&mut self.requests.exit);
                self.open(now, checkpoint, Kind::Global, all, exit);
                self.drain_or_stop(now, checkpoint);
            }
            Output::Begin { checkpoint, scope, sets } => {
                self.begin(now, CheckpointId(checkpoint), scope, &sets)
            }
            Output::Resume { checkpoint } => {
                self.drain_input(now, DrainInput::End { checkpoint });
                self.verbs_drain_over(checkpoint);
                let checkpoint = CheckpointId(checkpoint);
                all.into_iter().for_each(|rank| self.send(rank, ToRank::Resume { checkpoint }));
            }
            Output::Abort { checkpoint, sets, reason: why, retried, next_ms } => {
                self.drain_input(now, DrainInput::End { checkpoint });
                self.verbs_drain_over(checkpoint);
                self.aborted(CheckpointId(checkpoint), &sets, why, retried, next_ms);
            }
            Output::Commit { checkpoint, .. } if self.config.is_local() => {
                self.committed(now, CheckpointId(checkpoint), Ok(()));
            }
            Output::Commit { checkpoint, .. } => self.commit(CheckpointId(checkpoint)),
            Output::Complete { checkpoint, pause_ms } => {
                self.complete(CheckpointId(checkpoint), pause_ms)
            }
            Output::Trim { set, checkpoint } => {
                for rank in self.members(&[set]) {
                    self.send(rank, ToRank::Trim { checkpoint: CheckpointId(checkpoint) });
                }
            }
            Output::SuspendLogging { set, before } => {
                self.logging_suspended(now, set, CheckpointId(before));
            }
            Output::LoggingResumed { set, checkpoint } => {
                self.logging_resumed(now, set, Some(CheckpointId(checkpoint)));
            }
            Output::Delete { checkpoint } => {
                let checkpoint = CheckpointId(checkpoint);
                if self.config.is_local() {
                    self.clear(checkpoint, |_| true);
                } else {
                    self.effects.push_back(Effect::RemoveManifest(checkpoint));
                }
                let Some(state) = self.checkpoints.remove(&checkpoint) else { return };
                for rank in state.ranks {
                    let discard = ToNode::Discard { rank, checkpoint };
                    self.effects.push_back(Effect::Send(rank, discard));
                }
            }
            Output::Exit { checkpoint } => {
                self.log(json!({"event": "exit", "checkpoint": checkpoint}));
                self.effects.push_back(Effect::Mpirun(MpirunOrder::End));
            }
        }
    }

    fn begin(
        &mut self,
        now: u64,
        checkpoint: CheckpointId,
        scope: CheckpointScope,
        sets: &[SetId],
    ) {
        if scope == CheckpointScope::Set {
            self.open(now, checkpoint, Kind::Set, self.members(sets), false);
        }
        let exit = self.checkpoints.get(&checkpoint).is_some_and(|state| state.exit);
        let kind = if scope == CheckpointScope::Set {
            CheckpointKind::Set
        } else {
            CheckpointKind::Global
        };
        let directory = self.folder(checkpoint).display().to_string();
        for set in sets {
            let members = self.members(&[*set]);
            for &rank in &members {
                let prepare = ToNode::Prepare { rank, checkpoint, directory: directory.clone() };
                self.effects.push_back(Effect::Send(rank, prepare));
                let members = members.clone();
                self.send(rank, ToRank::Begin { checkpoint, kind, members, then_exit: exit });
            }
        }
    }

    fn commit(&mut self, checkpoint: CheckpointId) {
        let Some(state) = self.checkpoints.get(&checkpoint) else { return };
        let manifest = Manifest {
            format: FORMAT,
            job: self.name.clone(),
            checkpoint: checkpoint.0,
            kind: state.kind,
            unix_ms: 0,
            size: self.config.size,
            command: self.config.command.clone(),
            images: state.images.values().cloned().collect(),
        };
        self.effects.push_back(Effect::Commit(manifest));
    }

    /// The oldest complete checkpoint that is kept of a rank, this one included.
    fn oldest_of(&self, rank: PeerId, complete: CheckpointId) -> CheckpointId {
        let kept = self
            .checkpoints
            .iter()
            .find(|(_, state)| state.complete && state.ranks.contains(&rank));
        kept.map_or(complete, |(checkpoint, _)| (*checkpoint).min(complete))
    }

    fn complete(&mut self, checkpoint: CheckpointId, pause_ms: u64) {
        let Some(state) = self.checkpoints.get_mut(&checkpoint) else { return };
        (state.complete, self.changed) = (true, true);
        self.failed_checkpoints = 0;
        let (global, ranks) = (state.kind == Kind::Global, state.ranks.clone());
        let bytes: u64 = state.images.values().map(|image| image.bytes).sum();
        let event = json!({
            "event": "checkpoint_completed", "checkpoint": checkpoint.0, "bytes": bytes,
            "from_order_ms": pause_ms,
            "coordination_ns": state.coordination_ns, "pause_ns": state.pause_ns,
            "store_ns": state.store_ns, "lost_ns": state.lost_ns,
        });
        self.log(event);
        let mut sets = BTreeSet::new();
        for rank in ranks {
            let Some(set) = self.ranks.get(&rank).and_then(|state| state.set) else { continue };
            sets.insert(set);
            let oldest = self.oldest_of(rank, checkpoint);
            self.send(rank, ToRank::CheckpointComplete { checkpoint, set, oldest });
        }
        let sets: Vec<SetId> = sets.into_iter().collect();
        for &set in &sets {
            self.end_marks(set, checkpoint);
        }
        self.prune();
        self.check_replication();
        for request in self.requests.ended(global, &sets, false) {
            self.answer(&request, checkpoint, "");
        }
    }
}
