//! The answer to `rustbtl status`: a document that the user guide describes.

use crate::coordinator::job::state::{Job, Rank};
use crate::coordinator::job::tables::rollback::Rollback;
use crate::store;
use crate::store::Kind;
use rustbtl_coordination::control::{CheckpointId, ToNode, ToRank};
use rustbtl_coordination::interval::Interval;
use rustbtl_fragments::ids::SetId;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

/// Version of the document.
const FORMAT: u32 = 2;

fn state(rank: &Rank) -> &'static str {
    if rank.ended.is_some() {
        "ended"
    } else if !rank.here {
        "unreachable"
    } else if rank.finishing {
        "finishing"
    } else if rank.ready {
        "ready"
    } else if rank.set.is_some() {
        "starting"
    } else {
        "no MPI yet"
    }
}

impl Job {
    /// Folder of a checkpoint; where nodes store images themselves, its name in the node's own.
    pub fn folder(&self, checkpoint: CheckpointId) -> PathBuf {
        match &self.config.directory {
            Some(base) => store::folder(base, &self.name, checkpoint),
            None => format!("checkpoint-{checkpoint}").into(),
        }
    }

    /// Asks all ranks for the state of their logs.
    pub fn ask_for_logs(&mut self) {
        for (&id, rank) in &mut self.ranks {
            rank.log = None;
            if rank.here && rank.set.is_some() && rank.ended.is_none() {
                let message = ToRank::ReportStatus {};
                self.effects.push_back(crate::coordinator::job::state::Effect::Send(
                    id,
                    ToNode::Rank { rank: id, message },
                ));
            }
        }
    }

    /// Have all answered that can?
    pub fn all_logs_known(&self) -> bool {
        let answers = |rank: &Rank| rank.here && rank.set.is_some() && rank.ended.is_none();
        self.ranks.values().all(|rank| rank.log.is_some() || !answers(rank))
    }

    /// The document. `nodes`: name, process id of the agent, time since its last message.
    pub fn status(&self, now: u64, nodes: &[(String, u32, Duration)]) -> Value {
        let node = |(name, pid, silent): &(String, u32, Duration)| {
            let ranks = self.ranks.iter().filter(|(_, rank)| rank.here && rank.node == *name);
            let ranks: Vec<u32> = ranks.map(|(id, _)| id.0).collect();
            let silent_ms = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
            json!({"node": name, "agent_pid": pid, "silent_ms": silent_ms, "ranks": ranks})
        };
        let mut sets: BTreeMap<SetId, BTreeSet<u32>> = BTreeMap::new();
        for (id, rank) in &self.ranks {
            if let Some(set) = rank.set {
                sets.entry(set).or_default().insert(id.0);
            }
        }
        let set = |(set, ranks): (&SetId, &BTreeSet<u32>)| {
            let last_checkpoint = self.last_checkpoint(*set).map(|checkpoint| checkpoint.0);
            let recovery = self.recovery.rollbacks.get(set).map(Rollback::name);
            json!({
                "set": set.0, "ranks": ranks, "last_checkpoint": last_checkpoint,
                "recovery": recovery, "logging_suspended": self.is_suspended(*set),
                "logging_suspended_ms": self.suspensions.total_ms(now, *set),
            })
        };
        let checkpoints = self.checkpoints.keys().map(|number| self.checkpoint_status(*number));
        json!({
            "format": FORMAT,
            "job": self.name,
            "size": self.config.size,
            "directory": self.config.directory,
            "copies": self.config.replicas.filter(|_| self.config.is_local()),
            "interval_ms": self.config.fixed_interval_ms(),
            "interval_auto": self.config.interval_auto,
            "interval_governed_ms": self.governed_interval_ms(),
            "set_interval_ms": self.config.set_interval_ms,
            "restarted_from": self.config.restore,
            "protection": self.protection(),
            "secret": self.config.secret_travels.name(),
            "replica_servers": self.replica_servers(),
            "nodes": nodes.iter().map(node).collect::<Vec<_>>(),
            "sets": sets.iter().map(set).collect::<Vec<_>>(),
            "ranks": self.ranks.iter().map(|(id, rank)| self.rank(id.0, rank)).collect::<Vec<_>>(),
            "checkpoints": checkpoints.collect::<Vec<_>>(),
        })
    }

    /// The present interval where it follows from what checkpoints cost.
    fn governed_interval_ms(&self) -> Option<u64> {
        let governed = matches!(self.config.interval(), Interval::Governed { .. });
        self.scheduler.as_ref().filter(|_| governed)?.next_global_ms()
    }

    fn last_checkpoint(&self, set: SetId) -> Option<CheckpointId> {
        let of = |image: &store::Image| image.set == set.0;
        let complete = self.checkpoints.iter().filter(|(_, checkpoint)| checkpoint.complete);
        complete.rev().find(|(_, checkpoint)| checkpoint.images.values().any(of)).map(|(&id, _)| id)
    }

    fn rank(&self, id: u32, rank: &Rank) -> Value {
        let log = rank.log.map(|[now, peak, messages, budget]| {
            json!({"bytes": now, "bytes_peak": peak, "messages": messages,
                   "largest_set": rank.log_for.0, "budget": budget})
        });
        json!({
            "rank": id, "node": rank.node, "pid": rank.pid, "state": state(rank),
            "set": rank.set.map(|set| set.0), "incarnation": rank.incarnation.0,
            "version": rank.version, "log": log,
        })
    }

    fn checkpoint_status(&self, id: CheckpointId) -> Value {
        let Some(checkpoint) = self.checkpoints.get(&id) else { return Value::Null };
        let sum = |of: fn(&store::Image) -> u64| checkpoint.images.values().map(of).sum::<u64>();
        json!({
            "checkpoint": id.0,
            "kind": if checkpoint.kind == Kind::Global { "global" } else { "set" },
            "state": if checkpoint.complete { "complete" } else { "under way" },
            "started_ms": checkpoint.started_ms,
            "images": checkpoint.images.len(),
            "bytes": sum(|image| image.bytes),
            "raw_bytes": sum(|image| image.raw_bytes),
            "coordination_ns": checkpoint.coordination_ns,
            "pause_ns": checkpoint.pause_ns,
            "store_ns": checkpoint.store_ns,
            "lost_ns": checkpoint.lost_ns,
            "held": self.held(id),
        })
    }
}
