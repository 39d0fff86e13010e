//! What the machine of the lines orders, carried out. Part of [`Job`]: no I/O.

use crate::coordinator::job::state::{Effect, Job};
use crate::coordinator::job::tables::checkpoints::CheckpointState;
use crate::coordinator::job::tables::mpirun_orders::MpirunOrder;
use crate::store::{FORMAT, Kind, Manifest};
use rustbtl_coordination::checkpoints::Output;
use rustbtl_coordination::control::{CheckpointId, CheckpointKind, ToNode, ToRank};
use rustbtl_coordination::quiescence::CheckpointScope;
use rustbtl_fragments::ids::{PeerId, SetId};
use serde_json::json;
use std::collections::BTreeSet;

impl Job {
    fn open(&mut self, now: u64, line: CheckpointId, kind: Kind, ranks: Vec<PeerId>, exit: bool) {
        for wish in self.wishes.ordered(kind == Kind::Global) {
            self.answer(&wish, line, "");
        }
        let set = ranks.first().and_then(|rank| self.ranks.get(rank)?.set).unwrap_or_default().0;
        self.log(match kind {
            Kind::Global => json!({
                "event": "checkpoint_started", "checkpoint": line.0, "kind": "global"
            }),
            Kind::Set => json!({
                "event": "checkpoint_started", "checkpoint": line.0, "kind": "set", "set": set
            }),
        });
        let state = CheckpointState::new(kind, ranks.into_iter().collect(), exit, now);
        self.lines.insert(line, state);
        // No number is used twice.
        self.changed = true;
    }

    pub(crate) fn carry_out_one(&mut self, now: u64, output: Output) {
        let all: Vec<PeerId> = self.ranks.keys().copied().collect();
        match output {
            Output::StopOutgoing { checkpoint: line } => {
                let line = CheckpointId(line);
                let exit = core::mem::take(&mut self.wishes.exit);
                self.open(now, line, Kind::Global, all.clone(), exit);
                all.into_iter()
                    .for_each(|rank| self.send(rank, ToRank::StopOutgoing { checkpoint: line }));
            }
            Output::Begin { checkpoint: line, scope, sets } => {
                self.begin(now, CheckpointId(line), scope, &sets)
            }
            Output::Resume { checkpoint: line } => {
                let line = CheckpointId(line);
                all.into_iter()
                    .for_each(|rank| self.send(rank, ToRank::Resume { checkpoint: line }));
            }
            Output::Abort { checkpoint: line, sets, reason: why, retried, next_ms } => {
                self.aborted(CheckpointId(line), &sets, why, retried, next_ms);
            }
            Output::Commit { checkpoint: line, .. } if self.setup.is_local() => {
                self.committed(now, CheckpointId(line), Ok(()));
            }
            Output::Commit { checkpoint: line, .. } => self.commit(CheckpointId(line)),
            Output::Complete { checkpoint: line, pause_ms } => {
                self.complete(CheckpointId(line), pause_ms)
            }
            Output::Trim { set, checkpoint: line } => {
                for rank in self.members(&[set]) {
                    self.send(rank, ToRank::Trim { checkpoint: CheckpointId(line) });
                }
            }
            Output::Delete { checkpoint: line } => {
                let line = CheckpointId(line);
                if self.setup.is_local() {
                    self.clear(line, |_| true);
                } else {
                    self.effects.push_back(Effect::Forget(line));
                }
                let Some(state) = self.lines.remove(&line) else { return };
                for rank in state.ranks {
                    let discard = ToNode::Discard { rank, checkpoint: line };
                    self.effects.push_back(Effect::Send(rank, discard));
                }
            }
            Output::Exit { checkpoint: line } => {
                self.log(json!({"event": "exit", "checkpoint": line}));
                self.effects.push_back(Effect::Mpirun(MpirunOrder::End));
            }
        }
    }

    fn begin(&mut self, now: u64, line: CheckpointId, scope: CheckpointScope, sets: &[SetId]) {
        if scope == CheckpointScope::Set {
            self.open(now, line, Kind::Set, self.members(sets), false);
        }
        let exit = self.lines.get(&line).is_some_and(|state| state.exit);
        let kind = if scope == CheckpointScope::Set {
            CheckpointKind::Set
        } else {
            CheckpointKind::Global
        };
        let directory = self.folder(line).display().to_string();
        for set in sets {
            let members = self.members(&[*set]);
            for &rank in &members {
                let prepare =
                    ToNode::Prepare { rank, checkpoint: line, directory: directory.clone() };
                self.effects.push_back(Effect::Send(rank, prepare));
                let members = members.clone();
                self.send(rank, ToRank::Begin { checkpoint: line, kind, members, then_exit: exit });
            }
        }
    }

    fn commit(&mut self, line: CheckpointId) {
        let Some(state) = self.lines.get(&line) else { return };
        let manifest = Manifest {
            format: FORMAT,
            job: self.name.clone(),
            checkpoint: line.0,
            kind: state.kind,
            unix_ms: 0,
            size: self.setup.size,
            command: self.setup.command.clone(),
            images: state.images.values().cloned().collect(),
        };
        self.effects.push_back(Effect::Commit(manifest));
    }

    fn complete(&mut self, line: CheckpointId, pause_ms: u64) {
        let Some(state) = self.lines.get_mut(&line) else { return };
        (state.complete, self.changed) = (true, true);
        self.failed_lines = 0;
        let (global, ranks) = (state.kind == Kind::Global, state.ranks.clone());
        let bytes: u64 = state.images.values().map(|image| image.bytes).sum();
        let event = json!({
            "event": "checkpoint_completed", "checkpoint": line.0, "bytes": bytes,
            "from_order_ms": pause_ms,
            "coordination_ns": state.coordination_ns, "pause_ns": state.pause_ns,
            "store_ns": state.store_ns,
        });
        self.log(event);
        let mut sets = BTreeSet::new();
        for rank in ranks {
            let Some(set) = self.ranks.get(&rank).and_then(|state| state.set) else { continue };
            sets.insert(set);
            self.send(rank, ToRank::CheckpointComplete { checkpoint: line, set });
        }
        let sets: Vec<SetId> = sets.into_iter().collect();
        self.prune();
        self.see_whether_covered();
        for wish in self.wishes.ended(global, &sets, false) {
            self.answer(&wish, line, "");
        }
    }
}
