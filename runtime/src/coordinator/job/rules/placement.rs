//! Where ranks go on whose node or guardian is lost. Part of [`Job`]: no I/O.
//!
//! 1. On their own node, if only their guardians are lost.
//! 2. Else on a spare node: one of the allocation that has room for them, as any node had at the
//!    start. If it has not their images, whoever has them brings them first.
//! 3. Else on the node with the fewest ranks that has the images.
//! 4. Whatever fails on the way to a place, the next one is chosen; nobody is started twice.
//!
//! A rank on a spare node has a stand-in beside a guardian that orted has started (`spare`): of
//! mpirun's own node if there are ranks, since the job does not outlive that one anyway.

use crate::coordinator::job::state::{Effect, Job, Rank};
use crate::coordinator::job::tables::hosts::same_host;
use crate::settings::Printed;
use rustbtl_coordination::control::{CheckpointId, ToNode};
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Where they ran; only their guardians are lost.
    Home,
    /// It has no rank of its own.
    Spare,
    /// Others run there.
    Shared,
}

/// A node that may be chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    node: String,
    kind: Kind,
    /// That run there.
    ranks: usize,
    /// It has the images.
    ready: bool,
    /// They can be brought there.
    reachable: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Choice {
    There(Place),
    /// When it has the images.
    Bring(Place),
}

/// The best of them for so many ranks, if a node has `room` for so many in all.
fn choose(places: Vec<Place>, lost: usize, room: usize) -> Option<Choice> {
    let rank = |place: &Place| {
        let spare = place.kind == Kind::Spare && place.ranks + lost <= room;
        let order = match (place.kind, spare, place.ready) {
            (Kind::Home, _, true) => 0,
            (_, true, true) => 1,
            (_, true, false) if place.reachable => 2,
            (_, _, true) => 3,
            _ => return None,
        };
        Some((order, place.ranks, place.node.clone()))
    };
    let best = places.into_iter().filter(|place| rank(place).is_some()).min_by_key(rank)?;
    Some(if best.ready { Choice::There(best) } else { Choice::Bring(best) })
}

/// Guardians that orted has started: they may wait for others.
fn may_host(rank: &Rank) -> bool {
    rank.here && rank.host.is_none() && rank.adopted_in == Incarnation(0)
}

impl Job {
    /// mpirun's node.
    pub fn runs_on(&mut self, node: String) {
        self.places.own = node;
    }

    /// All ranks are ready: what a node has room for.
    pub(crate) fn count_room(&mut self) {
        let mut ranks: BTreeMap<&str, usize> = BTreeMap::new();
        for rank in self.ranks.values() {
            *ranks.entry(&rank.node).or_default() += 1;
        }
        self.places.room = ranks.into_values().max().unwrap_or(0);
    }

    /// A node without ranks takes some, or does not any more (without addresses).
    pub(crate) fn spare(&mut self, now: u64, node: &str, addresses: String) {
        self.log(json!({"event": "spare", "node": node, "takes_ranks": !addresses.is_empty()}));
        if addresses.is_empty() {
            self.places.spares.remove(node);
        } else {
            self.places.spares.insert(node.to_owned(), addresses);
        }
        self.reconsider();
        self.replenish(now);
    }

    /// No rank is left that could need a place.
    pub(crate) fn dismiss_spares(&mut self) {
        for node in self.places.spares.keys() {
            self.effects.push_back(Effect::SendNode(node.clone(), ToNode::DismissSpare {}));
        }
    }

    /// Nobody looks any more after a rank that a guardian waits for: who did was killed, or its
    /// node, a spare one, cannot be reached.
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
            // Whatever it is: nobody goes there again, and whoever is there comes away together.
            self.places.spares.remove(&node);
            let all = self.ranks.iter().filter(|(_, rank)| there(rank)).map(|(&id, _)| id);
            (all.collect(), format!("spare node {node} cannot be reached"))
        };
        let mut sets = BTreeSet::new();
        for id in gone {
            self.take_away(id);
            sets.extend(self.ranks.get(&id).and_then(|rank| rank.set));
        }
        if let Err(reason) = self.go_back(now, &sets) {
            self.fail(format!("{because}, and {reason}"));
        }
    }

    /// It goes on elsewhere; nobody waits for what it was.
    pub(crate) fn take_away(&mut self, id: PeerId) {
        let Some(rank) = self.ranks.get_mut(&id) else { return };
        (rank.here, rank.lost) = (false, true);
        if let Some(host) = rank.host.take() {
            let abandon = ToNode::Abandon { host, rank: id };
            self.effects.push_back(Effect::Send(host, abandon));
        }
    }

    /// Have the ranks of a set restored, by their own guardians or by others.
    pub(crate) fn place(&mut self, set: SetId, members: &[PeerId]) -> Result<(), String> {
        for &rank in members {
            if self.ranks[&rank].here {
                self.order_restore(set, rank);
            }
        }
        self.place_lost(set)
    }

    /// Sets whose ranks have no place yet may get another one (4).
    pub(crate) fn reconsider(&mut self) {
        if self.recovery.failed {
            return;
        }
        for set in self.without_place() {
            let line = self.recovery.going.get(&set).map(|going| going.line).unwrap_or_default();
            let lost = self.unplaced(set);
            let placed = self.must_have_images(line, &lost).and_then(|()| self.place_lost(set));
            if let Err(reason) = placed {
                return self.fail(format!("while set {set} went back, {reason}"));
            }
        }
    }

    fn without_place(&self) -> Vec<SetId> {
        let sets = self.recovery.going.keys().copied();
        sets.filter(|&set| !self.unplaced(set).is_empty()).collect()
    }

    /// Ranks of a set that goes back that nobody starts yet.
    fn unplaced(&self, set: SetId) -> Vec<PeerId> {
        let Some(going) = self.recovery.going.get(&set) else { return Vec::new() };
        let members = self.members(&[set]).into_iter();
        members.filter(|id| self.ranks[id].lost && !going.placed.contains(id)).collect()
    }

    fn place_lost(&mut self, set: SetId) -> Result<(), String> {
        let lost = self.unplaced(set);
        let Some(going) = self.recovery.going.get(&set) else { return Ok(()) };
        let (line, incarnation) = (going.line, going.incarnation);
        if lost.is_empty() {
            return Ok(());
        }
        for id in &lost {
            // Whoever comes of an earlier life is not it.
            if let Some(rank) = self.ranks.get_mut(id) {
                rank.adopted_in = incarnation;
            }
        }
        match choose(self.all_places(line, &lost), lost.len(), self.places.room) {
            None => Err("no other node is left to start its ranks on".into()),
            Some(Choice::Bring(place)) => {
                if self.bring_to(line, &lost, &place.node) {
                    let ranks: Vec<u32> = lost.iter().map(|rank| rank.0).collect();
                    self.log(json!({
                        "event": "image_transfer", "set": set.0, "checkpoint": line.0,
                        "ranks": ranks,
                        "node": place.node
                    }));
                }
                Ok(())
            }
            Some(Choice::There(place)) => self.start_there(set, &lost, &place),
        }
    }

    fn all_places(&self, line: CheckpointId, lost: &[PeerId]) -> Vec<Place> {
        let homes: BTreeSet<&str> =
            lost.iter().map(|rank| self.ranks[rank].node.as_str()).collect();
        // Those that are on their way there, too.
        let is_there = |rank: &&Rank| rank.here || rank.host.is_some();
        let ranks_on = |node: &str| {
            self.ranks.values().filter(is_there).filter(|rank| rank.node == node).count()
        };
        let with_guardians = self.ranks.values().filter(|rank| may_host(rank));
        let shared: BTreeSet<&str> = with_guardians.map(|rank| rank.node.as_str()).collect();
        let kind_of = |node: &str| {
            if homes == BTreeSet::from([node]) { Kind::Home } else { Kind::Shared }
        };
        let shared = shared.into_iter().map(|node| (node, kind_of(node)));
        let spares = self.places.spares.keys().map(|node| (node.as_str(), Kind::Spare));
        let place = |(node, kind): (&str, Kind)| Place {
            node: node.to_owned(),
            kind,
            ranks: ranks_on(node),
            ready: self.has_images(node, line, lost),
            reachable: self.can_be_brought(node, line, lost),
        };
        shared.chain(spares).map(place).collect()
    }

    /// Who waits for ranks that are started on this node.
    fn hosts(&self, place: &Place) -> Vec<PeerId> {
        let on = |node: &str| {
            let hosts = self.ranks.iter().filter(|(_, rank)| may_host(rank) && rank.node == node);
            hosts.map(|(&id, _)| id).collect::<Vec<PeerId>>()
        };
        if place.kind != Kind::Spare {
            return on(&place.node);
        }
        let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
        for rank in self.ranks.values().filter(|rank| may_host(rank)) {
            *nodes.entry(&rank.node).or_default() += 1;
        }
        let other = |node: &str| !same_host(node, &self.places.own);
        let best = nodes.into_iter().min_by_key(|(node, ranks)| (other(node), *ranks));
        best.map_or(Vec::new(), |(node, _)| on(node))
    }

    fn start_there(&mut self, set: SetId, lost: &[PeerId], place: &Place) -> Result<(), String> {
        let hosts = self.hosts(place);
        if hosts.is_empty() {
            return Err("no guardian is left that could wait for its ranks".into());
        }
        let addresses = self.places.spares.get(&place.node).cloned().unwrap_or_default();
        for (&rank, &host) in lost.iter().zip(hosts.iter().cycle()) {
            let Some((directory, incarnation)) = self.where_from(set) else { continue };
            let alone = self.goes_alone(set);
            let Some(state) = self.ranks.get_mut(&rank) else { continue };
            (state.node, state.host) = (place.node.clone(), Some(host));
            // From now on by the way of the one that waits for it, or by way of the coordinator.
            state.own_way = None;
            if let [Some(out), Some(err)] = state.reached {
                state.printed = Printed { bytes: [out, err], exact: true };
            }
            let Printed { bytes: [out, err], exact } = state.printed;
            let spare = place.kind == Kind::Spare;
            self.log(json!({
                "event": "rank_placed", "rank": rank.0, "set": set.0, "node": place.node,
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
            if let Some(host) = self.ranks.get_mut(&host).filter(|_| !self.setup.prints) {
                host.own_way = None;
            }
            if let Some(going) = self.recovery.going.get_mut(&set) {
                going.placed.insert(rank);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `node:ranks`, with a letter for its kind in front, `+` if it has the images, `-` if it
    /// cannot get them.
    fn place(text: &str) -> Place {
        let (kind, rest) = text.split_at(1);
        let kind = match kind {
            "h" => Kind::Home,
            "s" => Kind::Spare,
            _ => Kind::Shared,
        };
        let (node, ranks) = rest.trim_matches(['+', '-']).split_once(':').unwrap();
        let (ready, reachable) = (rest.ends_with('+'), !rest.ends_with('-'));
        Place { node: node.into(), kind, ranks: ranks.parse().unwrap(), ready, reachable }
    }

    fn chosen(places: &str, lost: usize, room: usize) -> String {
        match choose(places.split_whitespace().map(place).collect(), lost, room) {
            None => "none".into(),
            Some(Choice::There(place)) => place.node,
            Some(Choice::Bring(place)) => format!("bring to {}", place.node),
        }
    }

    #[test]
    fn the_best_place_is_chosen() {
        for (places, lost, room, wanted) in [
            ("hn1:1+ sn3:0+ on0:1+", 1, 2, "n1"),
            ("hn1:1 sn3:0+ on0:1+", 1, 2, "n3"),
            // One that has the images, then one that is empty, then the first.
            ("sn3:0 sn4:1+ on0:1+", 1, 2, "n4"),
            ("sn3:1 sn4:0 on0:1+", 1, 2, "bring to n4"),
            ("sn4:0 sn3:0 on0:1+", 1, 2, "bring to n3"),
            // What cannot be had or has no room is none.
            ("sn3:0- on0:3+ on2:2+", 2, 2, "n2"),
            ("sn3:1 on0:3+ on2:2+", 2, 2, "n2"),
            ("sn3:3+ on0:4+", 2, 2, "n3"),
            ("on0:1 on2:1+", 1, 1, "n2"),
            ("on0:1 on2:1", 1, 1, "none"),
            ("", 1, 1, "none"),
        ] {
            assert_eq!(chosen(places, lost, room), wanted, "{places}");
        }
    }
}
