//! Where images are if there is no directory that all nodes share: on the node of each rank, and
//! copies on others. Part of [`Job`]: no I/O.
//!
//! Source: docs/adr/0007.
//!
//! 1. The images of a node's ranks count as stored when the node has all of them, and as many other
//!    nodes as wanted, or as there are.
//! 2. The copies of all ranks of a node go to the same other nodes: a set that is started again
//!    elsewhere stays together.
//! 3. A copy that cannot be made is made elsewhere; if there is no elsewhere, the line fails.
//! 4. After a loss, what is left of the youngest lines is copied again: until then (`covered`) a
//!    further loss may be one too many.

#[cfg(test)]
pub(crate) mod tests;

use crate::coordinator::job::state::{Effect, Job};
use crate::coordinator::job::tables::hosts::same_host;
use crate::coordinator::job::tables::replicas::ImageReplicas;
use crate::coordinator::job::tables::text::some_of;
use crate::store;
use rustbtl_coordination::checkpoints::{CheckpointScheduler, Input};
use rustbtl_coordination::control::{CheckpointId, ToNode};
use rustbtl_fragments::ids::{PeerId, SetId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

impl Job {
    /// The agent of a node takes copies.
    pub(crate) fn shelf(&mut self, now: u64, node: &str, addresses: String) {
        self.storage.shelves.insert(node.to_owned(), addresses);
        self.replenish(now);
    }

    /// A connection is lost. What the node has may still be there.
    pub(crate) fn shelf_gone(&mut self, now: u64, node: &str) {
        self.storage.shelves.remove(node);
        let home = |job: &Self, rank: PeerId| job.ranks.get(&rank).map(|rank| rank.node.clone());
        let all: Vec<(CheckpointId, PeerId)> = self.storage.held.keys().copied().collect();
        for (line, rank) in all {
            // Its own orders are forgotten with it.
            let is_its = home(self, rank).is_some_and(|home| home == node);
            let Some(held) = self.storage.held.get_mut(&(line, rank)) else { continue };
            if is_its || held.bringer.as_deref() == Some(node) {
                held.asked.clear();
                held.bringer = None;
            } else if held.asked.remove(node) {
                self.bring(now, line, rank);
            }
        }
        self.reconsider();
    }

    /// A node is gone, with everything on it.
    pub(crate) fn storage_lost(&mut self, node: &str) {
        self.storage.shelves.retain(|name, _| !same_host(name, node));
        for held in self.storage.held.values_mut() {
            if held.bringer.take_if(|bringer| same_host(bringer, node)).is_some() {
                held.asked.clear();
            }
            let nodes = core::mem::take(&mut held.nodes);
            let (gone, left) = nodes.into_iter().partition(|name| same_host(name, node));
            held.nodes = left;
            let gone: BTreeSet<String> = gone;
            held.lost.extend(gone);
            held.asked.retain(|name| !same_host(name, node));
        }
        self.storage.covered = false;
    }

    /// A node has written the image of a rank.
    pub(crate) fn stored(&mut self, now: u64, rank: PeerId, line: CheckpointId) {
        if !self.setup.is_local() {
            return self.input(now, Input::Stored { rank, checkpoint: line.0 });
        }
        let Some(node) = self.ranks.get(&rank).map(|rank| rank.node.clone()) else { return };
        if !self.lines.contains_key(&line) {
            // It was given up, and what there was of it is cleared already.
            return self.clear_at(&node, line, vec![rank]);
        }
        self.storage.held.entry((line, rank)).or_default().nodes.insert(node);
        self.bring(now, line, rank);
    }

    /// How many other nodes are to have what this one has.
    fn wanted(&self, home: &str) -> usize {
        let others = self.ranks.values().filter(|rank| rank.here && rank.node != home);
        let others = others.map(|rank| rank.node.as_str());
        let shelves = &self.storage.shelves;
        let spares = self.places.spares().filter(|node| shelves.contains_key(*node));
        let others: BTreeSet<&str> = others.chain(spares.map(String::as_str)).collect();
        self.setup.copies.unwrap_or(0).min(others.len())
    }

    /// The images of this node's ranks in this line: they go together (2).
    fn siblings(&self, line: CheckpointId, home: &str) -> Vec<PeerId> {
        let of_line = self.storage.held.range((line, PeerId(0))..=(line, PeerId(u32::MAX)));
        let is_here = |rank: &PeerId| self.ranks.get(rank).is_some_and(|state| state.node == home);
        of_line.map(|((_, rank), _)| *rank).filter(is_here).collect()
    }

    /// Other nodes for the images of this one: first those that have or get some of them already,
    /// then the others, in a ring.
    fn partners(&self, line: CheckpointId, home: &str) -> Vec<String> {
        let siblings = self.siblings(line, home);
        let held = || siblings.iter().filter_map(|rank| self.storage.held.get(&(line, *rank)));
        let has = |node: &String| {
            held().any(|held| held.nodes.contains(node) || held.asked.contains(node))
        };
        let refused = |node: &String| held().any(|held| held.refused.contains_key(node));
        let all = || self.storage.shelves.keys().filter(|node| *node != home);
        let (after, before): (Vec<&String>, Vec<&String>) =
            all().partition(|node| node.as_str() > home);
        let ring = after.into_iter().chain(before).filter(|node| !refused(node));
        let (first, rest): (Vec<&String>, Vec<&String>) = ring.partition(|node| has(node));
        first.into_iter().chain(rest).cloned().collect()
    }

    /// Have what is missing of the copies of an image made.
    fn bring(&mut self, now: u64, line: CheckpointId, rank: PeerId) {
        let Some(home) = self.ranks.get(&rank).map(|rank| rank.node.clone()) else { return };
        let wanted = self.wanted(&home);
        let partners = self.partners(line, &home);
        let Some(held) = self.storage.held.get_mut(&(line, rank)) else { return };
        if !held.nodes.contains(&home) {
            return;
        }
        let mut missing = wanted.saturating_sub(held.copies(&home) + held.asked.len());
        for node in partners {
            if missing == 0 || held.nodes.contains(&node) || held.asked.contains(&node) {
                continue;
            }
            let addresses = self.storage.shelves.get(&node).cloned().unwrap_or_default();
            held.asked.insert(node.clone());
            missing -= 1;
            let copy = ToNode::ReplicateImage { rank, checkpoint: line, node, addresses };
            self.effects.push_back(Effect::SendNode(home.clone(), copy));
        }
        if missing > 0 {
            let why = no_partner(&home, held);
            if held.counted {
                self.log(json!({
                    "event": "replication_degraded", "checkpoint": line.0, "rank": rank.0,
                    "why": why
                }));
            } else {
                self.problem(line, format!("rank {rank}: {why}"));
                self.input(now, Input::NotStored { rank, checkpoint: line.0 });
            }
            return;
        }
        self.count(now, line, &home, wanted);
    }

    /// Is there enough of all images of this node (1)?
    fn count(&mut self, now: u64, line: CheckpointId, home: &str, wanted: usize) {
        let Some(state) = self.lines.get(&line) else { return };
        let ranks = state.ranks.iter().copied();
        let ranks: Vec<PeerId> = ranks.filter(|rank| self.ranks[rank].node == home).collect();
        let held = |rank: &PeerId| self.storage.held.get(&(line, *rank));
        let is_enough =
            |held: &ImageReplicas| held.nodes.contains(home) && held.copies(home) >= wanted;
        if !ranks.iter().all(|rank| held(rank).is_some_and(is_enough)) {
            return;
        }
        for rank in ranks {
            let held = self.storage.held.get_mut(&(line, rank));
            if held.is_some_and(|held| !core::mem::replace(&mut held.counted, true)) {
                self.input(now, Input::Stored { rank, checkpoint: line.0 });
            }
        }
    }

    /// A copy is safe.
    pub(crate) fn copied(&mut self, now: u64, rank: PeerId, line: CheckpointId, node: &str) {
        let Some(held) = self.storage.held.get_mut(&(line, rank)) else {
            // Nobody wants it any more.
            return self.clear_at(node, line, vec![rank]);
        };
        if held.asked.remove(node) {
            held.nodes.insert(node.to_owned());
            self.bring(now, line, rank);
            self.see_whether_covered();
            self.reconsider();
        } else if !held.nodes.contains(node) {
            self.clear_at(node, line, vec![rank]);
        }
    }

    /// It cannot be made there: then all images of this node go elsewhere (2, 3).
    pub(crate) fn not_copied(
        &mut self,
        now: u64,
        rank: PeerId,
        line: CheckpointId,
        node: &str,
        reason: &str,
    ) {
        let asked = |held: &ImageReplicas| held.asked.contains(node);
        if !self.storage.held.get(&(line, rank)).is_some_and(asked) {
            return;
        }
        self.log(json!({
            "event": "not_copied", "checkpoint": line.0, "rank": rank.0, "node": node,
            "reason": reason
        }));
        let home = self.ranks.get(&rank).map(|rank| rank.node.clone()).unwrap_or_default();
        let siblings = self.siblings(line, &home);
        let mut cleared = Vec::new();
        for rank in &siblings {
            let Some(held) = self.storage.held.get_mut(&(line, *rank)) else { continue };
            held.asked.remove(node);
            // Of a line that is complete it is better than none, and stays.
            if !held.counted && held.nodes.remove(node) {
                cleared.push(*rank);
            }
            held.refused.insert(node.to_owned(), reason.to_owned());
        }
        if !cleared.is_empty() {
            self.clear_at(node, line, cleared);
        }
        for rank in siblings {
            self.bring(now, line, rank);
        }
        self.reconsider();
    }

    fn clear_at(&mut self, node: &str, line: CheckpointId, ranks: Vec<PeerId>) {
        let clear = ToNode::DeleteCheckpoint { checkpoint: line, ranks };
        self.effects.push_back(Effect::SendNode(node.to_owned(), clear));
    }

    /// Of the ranks of a set everything that is older than its youngest line is of no use.
    pub(crate) fn prune(&mut self) {
        let mut old: BTreeMap<CheckpointId, Vec<PeerId>> = BTreeMap::new();
        for (set, youngest) in self.youngest() {
            let members = self.members(&[set]);
            let keys = self.storage.held.keys();
            for &(line, rank) in keys.filter(|(line, of)| *line < youngest && members.contains(of))
            {
                old.entry(line).or_default().push(rank);
            }
        }
        for (line, ranks) in old {
            self.clear(line, |rank| ranks.contains(&rank));
        }
    }

    /// Nobody goes back to these images any more.
    pub(crate) fn clear(&mut self, line: CheckpointId, whose: impl Fn(PeerId) -> bool) {
        let of_line = self.storage.held.range((line, PeerId(0))..=(line, PeerId(u32::MAX)));
        let keys: Vec<(CheckpointId, PeerId)> =
            of_line.map(|(key, _)| *key).filter(|(_, rank)| whose(*rank)).collect();
        let mut at: BTreeMap<String, Vec<PeerId>> = BTreeMap::new();
        for key in keys {
            let Some(held) = self.storage.held.remove(&key) else { continue };
            for node in held.nodes.into_iter().chain(held.asked) {
                at.entry(node).or_default().push(key.1);
            }
        }
        for (node, ranks) in at {
            self.clear_at(&node, line, ranks);
        }
    }

    /// The youngest line of each set.
    fn youngest(&self) -> BTreeMap<SetId, CheckpointId> {
        let Some(machine) = &self.machine else { return BTreeMap::new() };
        let sets: BTreeSet<SetId> = self.ranks.values().filter_map(|rank| rank.set).collect();
        let line = |set| {
            CheckpointScheduler::checkpoints_of(machine, set)
                .last()
                .map(|line| (set, CheckpointId(line)))
        };
        sets.into_iter().filter_map(line).collect()
    }

    /// Have copies made of the youngest lines, where some are missing (4).
    pub(crate) fn replenish(&mut self, now: u64) {
        if !self.setup.is_local() {
            return;
        }
        for (set, line) in self.youngest() {
            for rank in self.members(&[set]) {
                if self.ranks[&rank].here {
                    self.bring(now, line, rank);
                }
            }
        }
        self.see_whether_covered();
    }

    /// Say so, when it has come to be.
    pub(crate) fn see_whether_covered(&mut self) {
        if self.storage.covered || !self.setup.is_local() {
            return;
        }
        let youngest = self.youngest();
        let is_covered = |(id, rank): (&PeerId, &crate::coordinator::job::state::Rank)| {
            let line = rank.set.and_then(|set| youngest.get(&set)).copied().unwrap_or_default();
            let held = self.storage.held.get(&(line, *id));
            rank.ended.is_some()
                || held.is_some_and(|held| {
                    let copies = held.copies(&rank.node);
                    rank.here
                        && held.nodes.contains(&rank.node)
                        && copies >= self.wanted(&rank.node)
                })
        };
        if !youngest.is_empty() && self.ranks.iter().all(is_covered) {
            (self.storage.covered, self.changed) = (true, true);
            let lines: BTreeSet<u64> = youngest.values().map(|line| line.0).collect();
            self.log(json!({"event": "replication_ok", "lines": lines}));
        }
    }

    /// Has this node the images of all these ranks?
    pub(crate) fn has_images(&self, node: &str, line: CheckpointId, ranks: &[PeerId]) -> bool {
        let has = |rank: &PeerId| {
            self.storage.held.get(&(line, *rank)).is_some_and(|held| held.nodes.contains(node))
        };
        !self.is_local(line) || ranks.iter().all(has)
    }

    /// Can others bring there what is missing of these ranks' images?
    pub(crate) fn can_be_brought(&self, node: &str, line: CheckpointId, ranks: &[PeerId]) -> bool {
        let held = |rank: &PeerId| self.storage.held.get(&(line, *rank));
        let refused = |held: &ImageReplicas| held.refused.contains_key(node);
        self.storage.shelves.contains_key(node)
            && ranks.iter().all(|rank| {
                held(rank).is_some_and(|held| !refused(held) && self.has_it(held).is_some())
            })
    }

    /// Who can bring it to others.
    fn has_it(&self, held: &ImageReplicas) -> Option<String> {
        held.nodes.iter().find(|node| self.storage.shelves.contains_key(*node)).cloned()
    }

    /// Have others bring there what is missing; true: something that was not on its way.
    pub(crate) fn bring_to(&mut self, line: CheckpointId, ranks: &[PeerId], node: &str) -> bool {
        let addresses = self.storage.shelves.get(node).cloned().unwrap_or_default();
        let mut new = false;
        for &rank in ranks {
            let held = self.storage.held.get(&(line, rank));
            let Some(from) = held.and_then(|held| self.has_it(held)) else { continue };
            let Some(held) = self.storage.held.get_mut(&(line, rank)) else { continue };
            if held.nodes.contains(node) || !held.asked.insert(node.to_owned()) {
                continue;
            }
            held.bringer = Some(from.clone());
            let (node, addresses) = (node.to_owned(), addresses.clone());
            let copy = ToNode::ReplicateImage { rank, checkpoint: line, node, addresses };
            self.effects.push_back(Effect::SendNode(from, copy));
            new = true;
        }
        new
    }

    /// Is this line where nodes keep images themselves? That from which the job was restarted may
    /// not be.
    pub(crate) fn is_local(&self, line: CheckpointId) -> bool {
        let restored = self.setup.restore.as_deref().and_then(store::checkpoint_number);
        self.setup.is_local() && restored != Some(line)
    }

    /// Is there an image of each of these ranks where it is needed? Otherwise what was lost.
    pub(crate) fn must_have_images(
        &self,
        line: CheckpointId,
        ranks: &[PeerId],
    ) -> Result<(), String> {
        let is_gone = |id: &&PeerId| {
            let rank = &self.ranks[id];
            let held = self.storage.held.get(&(line, **id));
            !held.is_some_and(|held| {
                if rank.here { held.nodes.contains(&rank.node) } else { !held.nodes.is_empty() }
            })
        };
        let gone: Vec<PeerId> = ranks.iter().filter(is_gone).copied().collect();
        if gone.is_empty() || !self.is_local(line) {
            return Ok(());
        }
        let lost = gone.iter().filter_map(|rank| self.storage.held.get(&(line, *rank)));
        let lost: BTreeSet<&str> = lost.flat_map(|h| h.lost.iter().map(String::as_str)).collect();
        Err(format!(
            "all images of rank {} in line {line} are lost: they were on {}. More nodes were lost \
             at a time than there were copies (vprotocol_correlated_image_replicas {})\n{}",
            some_of(gone.iter().map(ToString::to_string).collect(), ", "),
            some_of(lost.iter().map(|node| format!("node {node}")).collect(), ", "),
            self.setup.copies.unwrap_or(0),
            self.who_had_them(line, ranks)
        ))
    }

    /// Of each rank of a set that cannot go back: where its image was written, and copied to.
    fn who_had_them(&self, line: CheckpointId, ranks: &[PeerId]) -> String {
        let none = ImageReplicas::default();
        let of_rank = |id: &PeerId| {
            let held = self.storage.held.get(&(line, *id)).unwrap_or(&none);
            let images = self.lines.get(&line).map(|state| &state.images);
            let origin = images.and_then(|images| images.get(id)).map(|image| image.node.as_str());
            let is_own = |node: &String| Some(node.as_str()) == origin;
            let at = |node: &String, state: &str| {
                let what = if is_own(node) { "written on" } else { "copied to" };
                format!("{what} {node} ({state})")
            };
            let lost = held.lost.iter().map(|node| (!is_own(node), at(node, "lost")));
            let left = held.nodes.iter().map(|node| (!is_own(node), at(node, "still there")));
            let mut places: Vec<(bool, String)> = lost.chain(left).collect();
            places.sort();
            let places: Vec<String> = places.into_iter().map(|(_, text)| text).collect();
            let set = self.ranks.get(id).and_then(|rank| rank.set).unwrap_or_default();
            format!("Set {set}, rank {id}, image of line {line}: {}", places.join(", "))
        };
        some_of(ranks.iter().map(of_rank).collect(), "\n")
    }

    /// For the status: where nodes take copies.
    pub(crate) fn shelves(&self) -> Value {
        json!(self.storage.shelves)
    }

    /// For the status: who has what of a line.
    pub(crate) fn held(&self, line: CheckpointId) -> Value {
        let of_line = self.storage.held.range((line, PeerId(0))..=(line, PeerId(u32::MAX)));
        let one = |((_, rank), held): (&(CheckpointId, PeerId), &ImageReplicas)| {
            let (nodes, asked) = (&held.nodes, &held.asked);
            json!({"rank": rank.0, "nodes": nodes, "on_the_way": asked})
        };
        of_line.map(one).collect()
    }
}

fn no_partner(home: &str, held: &ImageReplicas) -> String {
    let why: Vec<String> =
        held.refused.iter().map(|(node, reason)| format!("{node}: {reason}")).collect();
    let why = if why.is_empty() { "no other node takes any".to_owned() } else { why.join("; ") };
    format!("there is no node for a copy of what node {home} has ({why})")
}
