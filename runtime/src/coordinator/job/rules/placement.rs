//! Where ranks are restarted whose node or guardian is lost. Part of [`Job`]: no I/O.
//!
//! 1. On their own node, if only their guardians are lost.
//! 2. Else on a spare node: one of the allocation that has room for them, as any node had at the
//!    start. If it has not their images, a node that has them sends them first.
//! 3. Else on the node with the fewest ranks that has the images; or, if none that takes ranks has
//!    them, that they can be sent to.
//! 4. Sets of one lost node of which each may share memory with others go to one node, whatever
//!    else it runs, if they can be had there.
//! 5. If a placement fails, the next candidate is chosen; no rank is started twice. If a set is
//!    rolled back again before its ranks are started, they are placed anew.
//! 6. If there is none, but the agent of a node is only disconnected, it is waited for: either it
//!    connects again, or mpirun reports its node as lost, or nobody waits any longer
//!    (`unreachable_agents`).
//!
//! A rank on a spare node has a proxy (`rustbtl proxy`) beside a guardian that orted has started
//! (`spare`): of mpirun's own node if there are ranks, since the job does not outlive that one
//! anyway.

use crate::coordinator::job::state::{Effect, Job, Rank};
use crate::coordinator::job::tables::hosts::same_host;
use crate::settings::Printed;
use rustbtl_coordination::control::{CheckpointId, ToNode};
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PlacementKind {
    /// Where they ran; only their guardians are lost.
    Home,
    /// It has no rank of its own.
    Spare,
    /// Others run there.
    Shared,
}

/// A node that may be chosen, seen from the lost ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Candidate {
    node: String,
    kind: PlacementKind,
    /// Ranks that run there.
    ranks: usize,
    /// It has the images.
    ready: bool,
    /// They can be sent there.
    reachable: bool,
    /// Others of their lost node are started there, with whom they may share memory (4).
    shares: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Choice {
    Start(Candidate),
    /// Start them when it has the images.
    Transfer(Candidate),
}

/// The best candidate for so many ranks, if a node has `room` for so many in all.
fn choose(candidates: Vec<Candidate>, lost: usize, room: usize) -> Option<Choice> {
    let rank = |candidate: &Candidate| {
        let spare = candidate.kind == PlacementKind::Spare && candidate.ranks + lost <= room;
        let order = match (candidate.kind, spare, candidate.ready) {
            (_, _, ready) if candidate.shares && (ready || candidate.reachable) => 0,
            (PlacementKind::Home, _, true) => 1,
            (_, true, true) => 2,
            (_, true, false) if candidate.reachable => 3,
            (_, _, true) => 4,
            (PlacementKind::Home | PlacementKind::Shared, ..) if candidate.reachable => 5,
            _ => return None,
        };
        Some((order, candidate.ranks, candidate.node.clone()))
    };
    let best =
        candidates.into_iter().filter(|candidate| rank(candidate).is_some()).min_by_key(rank)?;
    Some(if best.ready { Choice::Start(best) } else { Choice::Transfer(best) })
}

/// A guardian that orted has started: it may wait for the ranks of others.
fn may_host(rank: &Rank) -> bool {
    rank.here && rank.host.is_none() && rank.adopted_in == Incarnation(0)
}

impl Job {
    /// The name of mpirun's node.
    pub fn set_mpirun_node(&mut self, node: String) {
        self.spares.mpirun_node = node;
    }

    /// The rank whose guardian starts and waits for the guardian of this one, if any.
    pub fn host_of(&self, id: PeerId) -> Option<PeerId> {
        self.ranks.get(&id).and_then(|rank| rank.host)
    }

    /// All ranks are ready: how many a node has room for.
    pub(crate) fn count_room(&mut self) {
        let mut ranks: BTreeMap<&str, usize> = BTreeMap::new();
        for rank in self.ranks.values() {
            *ranks.entry(&rank.node).or_default() += 1;
        }
        self.spares.room = ranks.into_values().max().unwrap_or(0);
    }

    /// A spare node is available, or is not any more (without addresses).
    pub(crate) fn spare(&mut self, now: u64, node: &str, addresses: String) {
        self.log(json!({"event": "spare", "node": node, "takes_ranks": !addresses.is_empty()}));
        if addresses.is_empty() {
            self.spares.nodes.remove(node);
        } else {
            self.spares.nodes.insert(node.to_owned(), addresses);
        }
        self.reconsider();
        self.replenish(now);
    }

    /// No rank is left that could need a spare node.
    pub(crate) fn dismiss_spares(&mut self) {
        for node in self.spares.nodes.keys() {
            self.effects.push_back(Effect::SendNode(node.clone(), ToNode::DismissSpare {}));
        }
    }

    /// The proxy of a rank on a spare node has failed, or its node cannot be reached.
    pub(crate) fn proxy_failed(
        &mut self,
        now: u64,
        host: PeerId,
        id: PeerId,
        incarnation: Incarnation,
        reachable: bool,
        reason: &str,
    ) {
        let known = |rank: &&Rank| {
            rank.host == Some(host) && rank.adopted_in == incarnation && rank.ended.is_none()
        };
        let Some(node) = self.ranks.get(&id).filter(known).map(|rank| rank.node.clone()) else {
            return;
        };
        self.log(json!({"event": "proxy_failed", "rank": id.0, "node": node, "reason": reason}));
        let there = |rank: &Rank| rank.node == node && rank.host.is_some() && rank.ended.is_none();
        let (gone, because): (Vec<PeerId>, String) = if reachable {
            (vec![id], reason.to_owned())
        } else {
            // Whatever the reason: the node is not used again, and all ranks on it are restarted
            // together.
            self.spares.nodes.remove(&node);
            let all = self.ranks.iter().filter(|(_, rank)| there(rank)).map(|(&id, _)| id);
            (all.collect(), format!("spare node {node} cannot be reached"))
        };
        let mut sets = BTreeSet::new();
        for id in gone {
            self.detach(id);
            sets.extend(self.ranks.get(&id).and_then(|rank| rank.set));
        }
        if let Err(reason) = self.roll_back(now, &sets) {
            self.fail(format!("{because}, and {reason}"));
        }
    }

    /// Its guardian does not wait for it any more: it is restarted elsewhere.
    pub(crate) fn detach(&mut self, id: PeerId) {
        let Some(rank) = self.ranks.get_mut(&id) else { return };
        (rank.here, rank.lost) = (false, true);
        (rank.ended, rank.killed) = (None, false);
        if let Some(host) = rank.host.take() {
            let abandon = ToNode::Abandon { host, rank: id };
            self.effects.push_back(Effect::Send(host, abandon));
        }
    }

    /// Ranks of these sets that are being started elsewhere are placed anew: until then they take
    /// no room on a node, and are where they ran.
    pub(crate) fn withdraw_placements(&mut self, sets: &BTreeSet<SetId>) {
        let starts = |rank: &Rank| {
            rank.lost && rank.host.is_some() && rank.set.is_some_and(|set| sets.contains(&set))
        };
        let starting = self.ranks.iter().filter(|(_, rank)| starts(rank)).map(|(&id, _)| id);
        for id in starting.collect::<Vec<_>>() {
            self.detach(id);
            if let Some(rank) = self.ranks.get_mut(&id)
                && let Some(node) = rank.came_from.take()
            {
                rank.node = node;
            }
        }
    }

    /// Has the ranks of a set restored, by their own guardians or by others.
    pub(crate) fn place(&mut self, set: SetId, members: &[PeerId]) -> Result<(), String> {
        for &rank in members {
            if self.ranks[&rank].here {
                self.order_restore(set, rank);
            }
        }
        self.place_lost(set)
    }

    /// Sets whose ranks are not placed yet may be placed on another node (5).
    pub(crate) fn reconsider(&mut self) {
        if self.recovery.failed {
            return;
        }
        for set in self.unplaced_sets() {
            let checkpoint = self
                .recovery
                .rollbacks
                .get(&set)
                .map(|rollback| rollback.checkpoint)
                .unwrap_or_default();
            let lost = self.unplaced(set);
            let placed =
                self.must_have_images(checkpoint, &lost).and_then(|()| self.place_lost(set));
            if let Err(reason) = placed {
                return self.fail(format!("during the rollback of set {set}, {reason}"));
            }
        }
    }

    fn unplaced_sets(&self) -> Vec<SetId> {
        let sets = self.recovery.rollbacks.keys().copied();
        sets.filter(|&set| !self.unplaced(set).is_empty()).collect()
    }

    /// Ranks of a set in rollback that no guardian starts yet.
    fn unplaced(&self, set: SetId) -> Vec<PeerId> {
        let Some(rollback) = self.recovery.rollbacks.get(&set) else { return Vec::new() };
        let members = self.members(&[set]).into_iter();
        members.filter(|id| self.ranks[id].lost && !rollback.placed.contains(id)).collect()
    }

    fn place_lost(&mut self, set: SetId) -> Result<(), String> {
        let lost = self.unplaced(set);
        let Some(rollback) = self.recovery.rollbacks.get(&set) else { return Ok(()) };
        let (checkpoint, incarnation) = (rollback.checkpoint, rollback.incarnation);
        if lost.is_empty() {
            return Ok(());
        }
        for id in &lost {
            // Guardians of an earlier incarnation are refused.
            if let Some(rank) = self.ranks.get_mut(id) {
                rank.adopted_in = incarnation;
            }
        }
        let candidates = self.candidates(checkpoint, (set, incarnation), &lost);
        match choose(candidates, lost.len(), self.spares.room) {
            None if self.has_unreachable_agents() => {
                let ranks: Vec<u32> = lost.iter().map(|rank| rank.0).collect();
                self.log(json!({"event": "placement_waits", "set": set.0, "ranks": ranks}));
                Ok(())
            }
            None => Err("no other node is left to start its ranks on".into()),
            Some(Choice::Transfer(candidate)) => {
                if self.transfer_images(checkpoint, &lost, &candidate.node) {
                    let ranks: Vec<u32> = lost.iter().map(|rank| rank.0).collect();
                    self.log(json!({
                        "event": "image_transfer", "set": set.0, "checkpoint": checkpoint.0,
                        "ranks": ranks,
                        "node": candidate.node
                    }));
                }
                Ok(())
            }
            Some(Choice::Start(candidate)) => self.start_on(set, &lost, &candidate),
        }
    }

    /// Where others of their lost node are started in this incarnation, if their sets may share
    /// memory: each is marked for that, or for something else that all are rolled back for.
    fn with_whom(&self, set: SetId, incarnation: Incarnation, lost: &[PeerId]) -> Option<&str> {
        let marked = |set: SetId| self.recovery.not_replayable.contains_key(&set);
        let lost_nodes: BTreeSet<&str> =
            lost.iter().map(|rank| self.ranks[rank].node.as_str()).collect();
        let is_of_them = |rank: &&Rank| {
            rank.host.is_some()
                && rank.adopted_in == incarnation
                && rank.set.is_some_and(marked)
                && rank.came_from.as_deref().is_some_and(|node| lost_nodes.contains(node))
        };
        let other = self.ranks.values().find(is_of_them).filter(|_| marked(set))?;
        Some(&other.node)
    }

    fn candidates(
        &self,
        checkpoint: CheckpointId,
        (set, incarnation): (SetId, Incarnation),
        lost: &[PeerId],
    ) -> Vec<Candidate> {
        let with = self.with_whom(set, incarnation, lost);
        let homes: BTreeSet<&str> =
            lost.iter().map(|rank| self.ranks[rank].node.as_str()).collect();
        // With those that are being started there.
        let is_there = |rank: &&Rank| rank.here || rank.host.is_some();
        let ranks_on = |node: &str| {
            self.ranks.values().filter(is_there).filter(|rank| rank.node == node).count()
        };
        let with_guardians = self.ranks.values().filter(|rank| may_host(rank));
        let shared: BTreeSet<&str> = with_guardians.map(|rank| rank.node.as_str()).collect();
        let kind_of = |node: &str| {
            if homes == BTreeSet::from([node]) {
                PlacementKind::Home
            } else {
                PlacementKind::Shared
            }
        };
        let shared = shared.into_iter().map(|node| (node, kind_of(node)));
        let spares = self.spares.nodes.keys().map(|node| (node.as_str(), PlacementKind::Spare));
        let candidate = |(node, kind): (&str, PlacementKind)| Candidate {
            node: node.to_owned(),
            kind,
            ranks: ranks_on(node),
            ready: self.has_images(node, checkpoint, lost),
            reachable: self.can_be_transferred(node, checkpoint, lost),
            shares: with == Some(node),
        };
        shared.chain(spares).map(candidate).collect()
    }

    /// Ranks whose guardians wait for the ranks that are started on this node.
    fn hosts(&self, candidate: &Candidate) -> Vec<PeerId> {
        let on = |node: &str| {
            let hosts = self.ranks.iter().filter(|(_, rank)| may_host(rank) && rank.node == node);
            hosts.map(|(&id, _)| id).collect::<Vec<PeerId>>()
        };
        if candidate.kind != PlacementKind::Spare {
            return on(&candidate.node);
        }
        let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
        for rank in self.ranks.values().filter(|rank| may_host(rank)) {
            *nodes.entry(&rank.node).or_default() += 1;
        }
        let other = |node: &str| !same_host(node, &self.spares.mpirun_node);
        let best = nodes.into_iter().min_by_key(|(node, ranks)| (other(node), *ranks));
        best.map_or(Vec::new(), |(node, _)| on(node))
    }

    fn start_on(
        &mut self,
        set: SetId,
        lost: &[PeerId],
        candidate: &Candidate,
    ) -> Result<(), String> {
        let hosts = self.hosts(candidate);
        if hosts.is_empty() {
            return Err("no guardian is left that could wait for its ranks".into());
        }
        let addresses = self.spares.nodes.get(&candidate.node).cloned().unwrap_or_default();
        for (&rank, &host) in lost.iter().zip(hosts.iter().cycle()) {
            let Some((directory, incarnation)) = self.where_from(set) else { continue };
            let alone = self.rolls_back_alone(set);
            let Some(state) = self.ranks.get_mut(&rank) else { continue };
            let before = std::mem::replace(&mut state.node, candidate.node.clone());
            (state.came_from, state.host) = (Some(before), Some(host));
            // From now on its output is forwarded by the guardian that waits for it, or relayed by
            // the coordinator.
            state.own_way = None;
            if let [Some(out), Some(err)] = state.reached {
                state.printed = Printed { bytes: [out, err], exact: true };
            }
            let Printed { bytes: [out, err], exact } = state.printed;
            let spare = candidate.kind == PlacementKind::Spare;
            self.log(json!({
                "event": "rank_placed", "rank": rank.0, "set": set.0, "node": candidate.node,
                "spare": spare
            }));
            let order = if spare {
                let addresses = addresses.clone();
                ToNode::AdoptOnSpare {
                    host,
                    rank,
                    directory,
                    incarnation,
                    alone,
                    out,
                    err,
                    exact,
                    addresses,
                }
            } else {
                ToNode::Adopt { host, rank, directory, incarnation, alone, out, err, exact }
            };
            self.effects.push_back(Effect::Send(host, order));
            if let Some(host) = self.ranks.get_mut(&host).filter(|_| !self.config.prints) {
                host.own_way = None;
            }
            if let Some(rollback) = self.recovery.rollbacks.get_mut(&set) {
                rollback.placed.insert(rank);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `node:ranks`, with a letter for its kind in front, `+` if it has the images, `-` if it
    /// cannot get them; behind that `!` if others are there with whom memory may be shared.
    fn candidate(text: &str) -> Candidate {
        let (kind, rest) = text.split_at(1);
        let kind = match kind {
            "h" => PlacementKind::Home,
            "s" => PlacementKind::Spare,
            _ => PlacementKind::Shared,
        };
        let (rest, shares) = rest.strip_suffix('!').map_or((rest, false), |rest| (rest, true));
        let (node, ranks) = rest.trim_matches(['+', '-']).split_once(':').unwrap();
        let (ready, reachable) = (rest.ends_with('+'), !rest.ends_with('-'));
        let ranks = ranks.parse().unwrap();
        Candidate { node: node.into(), kind, ranks, ready, reachable, shares }
    }

    fn chosen(candidates: &str, lost: usize, room: usize) -> String {
        match choose(candidates.split_whitespace().map(candidate).collect(), lost, room) {
            None => "none".into(),
            Some(Choice::Start(candidate)) => candidate.node,
            Some(Choice::Transfer(candidate)) => format!("send to {}", candidate.node),
        }
    }

    #[test]
    fn the_best_place_is_chosen() {
        for (candidates, lost, room, wanted) in [
            ("hn1:1+ sn3:0+ on0:1+", 1, 2, "n1"),
            ("hn1:1 sn3:0+ on0:1+", 1, 2, "n3"),
            // One that has the images, then one that is empty, then the first.
            ("sn3:0 sn4:1+ on0:1+", 1, 2, "n4"),
            ("sn3:1 sn4:0 on0:1+", 1, 2, "send to n4"),
            ("sn4:0 sn3:0 on0:1+", 1, 2, "send to n3"),
            // What cannot be had or has no room is none.
            ("sn3:0- on0:3+ on2:2+", 2, 2, "n2"),
            ("sn3:1 on0:3+ on2:2+", 2, 2, "n2"),
            ("sn3:3+ on0:4+", 2, 2, "n3"),
            ("on0:1 on2:1+", 1, 1, "n2"),
            ("on0:1 on2:1", 1, 1, "send to n0"),
            ("on0:1- on2:1", 1, 1, "send to n2"),
            ("sn3:1 on0:4", 1, 1, "send to n0"),
            ("on0:1- on2:1-", 1, 1, "none"),
            ("", 1, 1, "none"),
            // Where memory may be shared, if they can be had there.
            ("on0:3+! on2:2+ sn3:0+", 1, 1, "n0"),
            ("on0:3! on2:2+", 1, 1, "send to n0"),
            ("on0:3-! on2:2+", 1, 1, "n2"),
        ] {
            assert_eq!(chosen(candidates, lost, room), wanted, "{candidates}");
        }
    }
}
