//! Where images are if there is no directory that all nodes share: on the node of each rank, and
//! replicas on others. Part of [`Job`]: no I/O.
//!
//! Source: docs/adr/0007.
//!
//! 1. The images of a node's ranks count as stored when the node has all of them, and as many other
//!    nodes as configured, or as there are.
//! 2. The replicas of all ranks of a node go to the same other nodes: a set that is restarted
//!    elsewhere stays together.
//! 3. If a node refuses a replica, another one is chosen; if there is none, the checkpoint fails.
//! 4. After a loss, what is left of the youngest checkpoints is replicated again: until then
//!    (`replicated`) a further loss may be one too many.
//! 5. Beside the youngest checkpoint of each set the youngest of all ranks is kept, and replicated
//!    again: a global rollback (docs/adr/0013) may be needed at any moment.

#[cfg(test)]
pub(crate) mod tests;

use crate::coordinator::job::state::{Effect, Job};
use crate::coordinator::job::tables::hosts::same_host;
use crate::coordinator::job::tables::replicas::ImageReplicas;
use crate::coordinator::job::tables::text::some_of;
use crate::store;
use rustbtl_coordination::checkpoints::Input;
use rustbtl_coordination::control::{CheckpointId, ToNode};
use rustbtl_fragments::ids::{PeerId, SetId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

impl Job {
    /// The agent of a node stores replicas.
    pub(crate) fn replica_server(&mut self, now: u64, node: &str, addresses: String) {
        self.storage.replica_servers.insert(node.to_owned(), addresses);
        self.replenish(now);
    }

    /// A connection is lost. What the node has may still be there.
    pub(crate) fn replica_server_gone(&mut self, now: u64, node: &str) {
        self.storage.replica_servers.remove(node);
        let home = |job: &Self, rank: PeerId| job.ranks.get(&rank).map(|rank| rank.node.clone());
        let all: Vec<(CheckpointId, PeerId)> = self.storage.held.keys().copied().collect();
        for (checkpoint, rank) in all {
            // Orders to the agent are lost with it.
            let is_its = home(self, rank).is_some_and(|home| home == node);
            let Some(held) = self.storage.held.get_mut(&(checkpoint, rank)) else { continue };
            if is_its || held.sender.as_deref() == Some(node) {
                held.requested.clear();
                held.sender = None;
            } else if held.requested.remove(node) {
                self.replicate(now, checkpoint, rank);
            }
        }
        self.reconsider();
    }

    /// A node is lost, with all images on it.
    pub(crate) fn images_lost(&mut self, node: &str) {
        self.storage.replica_servers.retain(|name, _| !same_host(name, node));
        for held in self.storage.held.values_mut() {
            if held.sender.take_if(|sender| same_host(sender, node)).is_some() {
                held.requested.clear();
            }
            let nodes = core::mem::take(&mut held.nodes);
            let (gone, left) = nodes.into_iter().partition(|name| same_host(name, node));
            held.nodes = left;
            let gone: BTreeSet<String> = gone;
            held.lost.extend(gone);
            held.requested.retain(|name| !same_host(name, node));
        }
        self.storage.replicated = false;
    }

    /// A node has written the image of a rank.
    pub(crate) fn stored(&mut self, now: u64, rank: PeerId, checkpoint: CheckpointId) {
        if !self.config.is_local() {
            return self.input(now, Input::Stored { rank, checkpoint: checkpoint.0 });
        }
        let Some(node) = self.ranks.get(&rank).map(|rank| rank.node.clone()) else { return };
        if !self.checkpoints.contains_key(&checkpoint) {
            // The checkpoint was aborted, and its other images are removed already.
            return self.clear_at(&node, checkpoint, vec![rank]);
        }
        self.storage.held.entry((checkpoint, rank)).or_default().nodes.insert(node);
        self.replicate(now, checkpoint, rank);
    }

    /// How many other nodes are to have replicas of this node's images.
    fn wanted(&self, home: &str) -> usize {
        let others = self.ranks.values().filter(|rank| rank.here && rank.node != home);
        let others = others.map(|rank| rank.node.as_str());
        let replica_servers = &self.storage.replica_servers;
        let spares = self.spares.nodes().filter(|node| replica_servers.contains_key(*node));
        let others: BTreeSet<&str> = others.chain(spares.map(String::as_str)).collect();
        self.config.replicas.unwrap_or(0).min(others.len())
    }

    /// The images of this node's ranks in this checkpoint: they go together (2).
    fn siblings(&self, checkpoint: CheckpointId, home: &str) -> Vec<PeerId> {
        let of_checkpoint =
            self.storage.held.range((checkpoint, PeerId(0))..=(checkpoint, PeerId(u32::MAX)));
        let is_here = |rank: &PeerId| self.ranks.get(rank).is_some_and(|state| state.node == home);
        of_checkpoint.map(|((_, rank), _)| *rank).filter(is_here).collect()
    }

    /// Other nodes for the images of this one: first those that have or get some of them already,
    /// then the others, in a ring.
    fn partners(&self, checkpoint: CheckpointId, home: &str) -> Vec<String> {
        let siblings = self.siblings(checkpoint, home);
        let held =
            || siblings.iter().filter_map(|rank| self.storage.held.get(&(checkpoint, *rank)));
        let has = |node: &String| {
            held().any(|held| held.nodes.contains(node) || held.requested.contains(node))
        };
        let refused = |node: &String| held().any(|held| held.refused.contains_key(node));
        let all = || self.storage.replica_servers.keys().filter(|node| *node != home);
        let (after, before): (Vec<&String>, Vec<&String>) =
            all().partition(|node| node.as_str() > home);
        let ring = after.into_iter().chain(before).filter(|node| !refused(node));
        let (first, rest): (Vec<&String>, Vec<&String>) = ring.partition(|node| has(node));
        first.into_iter().chain(rest).cloned().collect()
    }

    /// Orders what is missing of the replicas of an image.
    fn replicate(&mut self, now: u64, checkpoint: CheckpointId, rank: PeerId) {
        let Some(home) = self.ranks.get(&rank).map(|rank| rank.node.clone()) else { return };
        let wanted = self.wanted(&home);
        let partners = self.partners(checkpoint, &home);
        let Some(held) = self.storage.held.get_mut(&(checkpoint, rank)) else { return };
        if !held.nodes.contains(&home) {
            return;
        }
        let mut missing = wanted.saturating_sub(held.replicas(&home) + held.requested.len());
        for node in partners {
            if missing == 0 || held.nodes.contains(&node) || held.requested.contains(&node) {
                continue;
            }
            let addresses = self.storage.replica_servers.get(&node).cloned().unwrap_or_default();
            held.requested.insert(node.clone());
            missing -= 1;
            let order = ToNode::ReplicateImage { rank, checkpoint, node, addresses };
            self.effects.push_back(Effect::SendNode(home.clone(), order));
        }
        if missing > 0 {
            let why = no_partner(&home, held);
            if held.counted {
                self.log(json!({
                    "event": "replication_degraded", "checkpoint": checkpoint.0, "rank": rank.0,
                    "why": why
                }));
            } else {
                self.problem(checkpoint, format!("rank {rank}: {why}"));
                self.input(now, Input::NotStored { rank, checkpoint: checkpoint.0 });
            }
            return;
        }
        self.count(now, checkpoint, &home, wanted);
    }

    /// Is there enough of all images of this node (1)?
    fn count(&mut self, now: u64, checkpoint: CheckpointId, home: &str, wanted: usize) {
        let Some(state) = self.checkpoints.get(&checkpoint) else { return };
        let ranks = state.ranks.iter().copied();
        let ranks: Vec<PeerId> = ranks.filter(|rank| self.ranks[rank].node == home).collect();
        let held = |rank: &PeerId| self.storage.held.get(&(checkpoint, *rank));
        let is_enough =
            |held: &ImageReplicas| held.nodes.contains(home) && held.replicas(home) >= wanted;
        if !ranks.iter().all(|rank| held(rank).is_some_and(is_enough)) {
            return;
        }
        for rank in ranks {
            let held = self.storage.held.get_mut(&(checkpoint, rank));
            if held.is_some_and(|held| !core::mem::replace(&mut held.counted, true)) {
                self.input(now, Input::Stored { rank, checkpoint: checkpoint.0 });
            }
        }
    }

    /// A replica is stored.
    pub(crate) fn image_replicated(
        &mut self,
        now: u64,
        rank: PeerId,
        checkpoint: CheckpointId,
        node: &str,
    ) {
        let Some(held) = self.storage.held.get_mut(&(checkpoint, rank)) else {
            // It is not needed any more.
            return self.clear_at(node, checkpoint, vec![rank]);
        };
        if held.requested.remove(node) {
            held.nodes.insert(node.to_owned());
            self.replicate(now, checkpoint, rank);
            self.check_replication();
            self.reconsider();
        } else if !held.nodes.contains(node) {
            self.clear_at(node, checkpoint, vec![rank]);
        }
    }

    /// It was refused there: then all images of this node go elsewhere (2, 3).
    pub(crate) fn image_not_replicated(
        &mut self,
        now: u64,
        rank: PeerId,
        checkpoint: CheckpointId,
        node: &str,
        reason: &str,
    ) {
        let requested = |held: &ImageReplicas| held.requested.contains(node);
        if !self.storage.held.get(&(checkpoint, rank)).is_some_and(requested) {
            return;
        }
        self.log(json!({
            "event": "not_copied", "checkpoint": checkpoint.0, "rank": rank.0, "node": node,
            "reason": reason
        }));
        let home = self.ranks.get(&rank).map(|rank| rank.node.clone()).unwrap_or_default();
        let siblings = self.siblings(checkpoint, &home);
        let mut cleared = Vec::new();
        for rank in &siblings {
            let Some(held) = self.storage.held.get_mut(&(checkpoint, *rank)) else { continue };
            held.requested.remove(node);
            // In a complete checkpoint it is better than none, and stays.
            if !held.counted && held.nodes.remove(node) {
                cleared.push(*rank);
            }
            held.refused.insert(node.to_owned(), reason.to_owned());
        }
        if !cleared.is_empty() {
            self.clear_at(node, checkpoint, cleared);
        }
        for rank in siblings {
            self.replicate(now, checkpoint, rank);
        }
        self.reconsider();
    }

    fn clear_at(&mut self, node: &str, checkpoint: CheckpointId, ranks: Vec<PeerId>) {
        let clear = ToNode::DeleteCheckpoint { checkpoint, ranks };
        self.effects.push_back(Effect::SendNode(node.to_owned(), clear));
    }

    /// Removes the images of each set that are older than its youngest checkpoint; but for those
    /// of the youngest checkpoint of all (5).
    pub(crate) fn prune(&mut self) {
        let wanted = self.youngest_of_all();
        let mut old: BTreeMap<CheckpointId, Vec<PeerId>> = BTreeMap::new();
        for (set, youngest) in self.youngest() {
            let members = self.members(&[set]);
            let keys = self.storage.held.keys();
            for &(checkpoint, rank) in keys
                .filter(|(checkpoint, of)| *checkpoint < youngest && members.contains(of))
                .filter(|(checkpoint, _)| wanted != Some(*checkpoint))
            {
                old.entry(checkpoint).or_default().push(rank);
            }
        }
        for (checkpoint, ranks) in old {
            self.clear(checkpoint, |rank| ranks.contains(&rank));
        }
    }

    /// Nothing is rolled back to these images any more.
    pub(crate) fn clear(&mut self, checkpoint: CheckpointId, whose: impl Fn(PeerId) -> bool) {
        let of_checkpoint =
            self.storage.held.range((checkpoint, PeerId(0))..=(checkpoint, PeerId(u32::MAX)));
        let keys: Vec<(CheckpointId, PeerId)> =
            of_checkpoint.map(|(key, _)| *key).filter(|(_, rank)| whose(*rank)).collect();
        let mut at: BTreeMap<String, Vec<PeerId>> = BTreeMap::new();
        for key in keys {
            let Some(held) = self.storage.held.remove(&key) else { continue };
            for node in held.nodes.into_iter().chain(held.requested) {
                at.entry(node).or_default().push(key.1);
            }
        }
        for (node, ranks) in at {
            self.clear_at(&node, checkpoint, ranks);
        }
    }

    /// The youngest checkpoint of each set.
    fn youngest(&self) -> BTreeMap<SetId, CheckpointId> {
        let Some(scheduler) = &self.scheduler else { return BTreeMap::new() };
        let sets: BTreeSet<SetId> = self.ranks.values().filter_map(|rank| rank.set).collect();
        let youngest = |set| Some((set, CheckpointId(scheduler.youngest_of(set)?)));
        sets.into_iter().filter_map(youngest).collect()
    }

    /// The youngest checkpoint of all ranks.
    pub(crate) fn youngest_of_all(&self) -> Option<CheckpointId> {
        let scheduler = self.scheduler.as_ref()?;
        scheduler.last_global().map(CheckpointId)
    }

    /// Replicates what is kept where replicas are missing (4, 5).
    pub(crate) fn replenish(&mut self, now: u64) {
        if !self.config.is_local() {
            return;
        }
        let of_all = self.youngest_of_all();
        for (set, youngest) in self.youngest() {
            let older = of_all.filter(|checkpoint| *checkpoint < youngest);
            for rank in self.members(&[set]) {
                if !self.ranks[&rank].here {
                    continue;
                }
                self.replicate(now, youngest, rank);
                let is_held = |checkpoint: &CheckpointId| {
                    self.storage.held.contains_key(&(*checkpoint, rank))
                };
                if let Some(older) = older.filter(is_held) {
                    self.replicate(now, older, rank);
                }
            }
        }
        self.check_replication();
    }

    /// Reports when all replicas exist.
    pub(crate) fn check_replication(&mut self) {
        if self.storage.replicated || !self.config.is_local() {
            return;
        }
        let youngest = self.youngest();
        let has_replicas = |(id, rank): (&PeerId, &crate::coordinator::job::state::Rank)| {
            let checkpoint =
                rank.set.and_then(|set| youngest.get(&set)).copied().unwrap_or_default();
            let held = self.storage.held.get(&(checkpoint, *id));
            rank.ended.is_some()
                || held.is_some_and(|held| {
                    let replicas = held.replicas(&rank.node);
                    rank.here
                        && held.nodes.contains(&rank.node)
                        && replicas >= self.wanted(&rank.node)
                })
        };
        if !youngest.is_empty() && self.ranks.iter().all(has_replicas) {
            (self.storage.replicated, self.changed) = (true, true);
            let checkpoints: BTreeSet<u64> =
                youngest.values().map(|checkpoint| checkpoint.0).collect();
            self.log(json!({"event": "replication_ok", "checkpoints": checkpoints}));
        }
    }

    /// Has this node the images of all these ranks?
    pub(crate) fn has_images(
        &self,
        node: &str,
        checkpoint: CheckpointId,
        ranks: &[PeerId],
    ) -> bool {
        let has = |rank: &PeerId| {
            self.storage
                .held
                .get(&(checkpoint, *rank))
                .is_some_and(|held| held.nodes.contains(node))
        };
        !self.is_local(checkpoint) || ranks.iter().all(has)
    }

    /// Can others send there what is missing of these ranks' images?
    pub(crate) fn can_be_transferred(
        &self,
        node: &str,
        checkpoint: CheckpointId,
        ranks: &[PeerId],
    ) -> bool {
        let held = |rank: &PeerId| self.storage.held.get(&(checkpoint, *rank));
        let refused = |held: &ImageReplicas| held.refused.contains_key(node);
        self.storage.replica_servers.contains_key(node)
            && ranks.iter().all(|rank| {
                held(rank).is_some_and(|held| !refused(held) && self.source_of(held).is_some())
            })
    }

    /// A node that can send it to others.
    fn source_of(&self, held: &ImageReplicas) -> Option<String> {
        held.nodes.iter().find(|node| self.storage.replica_servers.contains_key(*node)).cloned()
    }

    /// Has others send there what is missing; true: something that was not on its way.
    pub(crate) fn transfer_images(
        &mut self,
        checkpoint: CheckpointId,
        ranks: &[PeerId],
        node: &str,
    ) -> bool {
        let addresses = self.storage.replica_servers.get(node).cloned().unwrap_or_default();
        let mut new = false;
        for &rank in ranks {
            let held = self.storage.held.get(&(checkpoint, rank));
            let Some(from) = held.and_then(|held| self.source_of(held)) else { continue };
            let Some(held) = self.storage.held.get_mut(&(checkpoint, rank)) else { continue };
            if held.nodes.contains(node) || !held.requested.insert(node.to_owned()) {
                continue;
            }
            held.sender = Some(from.clone());
            let (node, addresses) = (node.to_owned(), addresses.clone());
            let order = ToNode::ReplicateImage { rank, checkpoint, node, addresses };
            self.effects.push_back(Effect::SendNode(from, order));
            new = true;
        }
        new
    }

    /// Is this checkpoint stored on the nodes? That from which the job was restarted may not be.
    pub(crate) fn is_local(&self, checkpoint: CheckpointId) -> bool {
        let restored = self.config.restore.as_deref().and_then(store::checkpoint_number);
        self.config.is_local() && restored != Some(checkpoint)
    }

    /// Is there an image of each of these ranks where it is needed? The error names what was lost.
    pub(crate) fn must_have_images(
        &self,
        checkpoint: CheckpointId,
        ranks: &[PeerId],
    ) -> Result<(), String> {
        let is_gone = |id: &&PeerId| {
            let rank = &self.ranks[id];
            let held = self.storage.held.get(&(checkpoint, **id));
            !held.is_some_and(|held| {
                if rank.here { held.nodes.contains(&rank.node) } else { !held.nodes.is_empty() }
            })
        };
        let gone: Vec<PeerId> = ranks.iter().filter(is_gone).copied().collect();
        if gone.is_empty() || !self.is_local(checkpoint) {
            return Ok(());
        }
        let lost = gone.iter().filter_map(|rank| self.storage.held.get(&(checkpoint, *rank)));
        let lost: BTreeSet<&str> = lost.flat_map(|h| h.lost.iter().map(String::as_str)).collect();
        Err(format!(
            "all images of rank {} in checkpoint {checkpoint} are lost: they were on {}. More \
             nodes were lost at a time than there were replicas \
             (vprotocol_correlated_image_replicas {})\n{}",
            some_of(gone.iter().map(ToString::to_string).collect(), ", "),
            some_of(lost.iter().map(|node| format!("node {node}")).collect(), ", "),
            self.config.replicas.unwrap_or(0),
            self.who_had_them(checkpoint, ranks)
        ))
    }

    /// For each rank of a set that cannot be rolled back: where its image was written, and
    /// replicated to.
    fn who_had_them(&self, checkpoint: CheckpointId, ranks: &[PeerId]) -> String {
        let none = ImageReplicas::default();
        let of_rank = |id: &PeerId| {
            let held = self.storage.held.get(&(checkpoint, *id)).unwrap_or(&none);
            let images = self.checkpoints.get(&checkpoint).map(|state| &state.images);
            let origin = images.and_then(|images| images.get(id)).map(|image| image.node.as_str());
            let is_own = |node: &String| Some(node.as_str()) == origin;
            let at = |node: &String, state: &str| {
                let what = if is_own(node) { "written on" } else { "replicated to" };
                format!("{what} {node} ({state})")
            };
            let lost = held.lost.iter().map(|node| (!is_own(node), at(node, "lost")));
            let left = held.nodes.iter().map(|node| (!is_own(node), at(node, "still there")));
            let mut places: Vec<(bool, String)> = lost.chain(left).collect();
            places.sort();
            let places: Vec<String> = places.into_iter().map(|(_, text)| text).collect();
            let set = self.ranks.get(id).and_then(|rank| rank.set).unwrap_or_default();
            format!("Set {set}, rank {id}, image of checkpoint {checkpoint}: {}", places.join(", "))
        };
        some_of(ranks.iter().map(of_rank).collect(), "\n")
    }

    /// For the status: the replica servers.
    pub(crate) fn replica_servers(&self) -> Value {
        json!(self.storage.replica_servers)
    }

    /// For the status: who has which images of a checkpoint.
    pub(crate) fn held(&self, checkpoint: CheckpointId) -> Value {
        let of_checkpoint =
            self.storage.held.range((checkpoint, PeerId(0))..=(checkpoint, PeerId(u32::MAX)));
        let one = |((_, rank), held): (&(CheckpointId, PeerId), &ImageReplicas)| {
            let (nodes, requested) = (&held.nodes, &held.requested);
            json!({"rank": rank.0, "nodes": nodes, "on_the_way": requested})
        };
        of_checkpoint.map(one).collect()
    }
}

fn no_partner(home: &str, held: &ImageReplicas) -> String {
    let why: Vec<String> =
        held.refused.iter().map(|(node, reason)| format!("{node}: {reason}")).collect();
    let why = if why.is_empty() { "no other node takes any".to_owned() } else { why.join("; ") };
    format!("there is no node for a replica of what node {home} has ({why})")
}
