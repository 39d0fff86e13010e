//! A guardian that was killed alone. Its program has ended with it, and so have those that it had
//! started for ranks of lost nodes. Their sets are rolled back, and another guardian of the same
//! node restarts them. If it was the last one there that the node's daemon has started, nobody
//! starts programs on that node any more, and its images are unreachable: what happens then is
//! what happens when the node is lost, but for its daemon, which goes on. Part of [`Job`]: no I/O.
//!
//! mpirun is notified by the node's daemon, and waits for an answer: continue without it (`let`),
//! or do what stock Open MPI does (`stock`): guardians also end by signals because their programs
//! have, for good.
//!
//! If the agent of the node has failed, too, or the coordinator is another one, others of the node
//! may not be connected yet, or none of any node: mpirun waits until one is, none is left that
//! could be, or protection is disabled.

#[cfg(test)]
mod tests;

use crate::coordinator::job::state::{Effect, Job, Rank};
use crate::coordinator::job::tables::mpirun_orders::MpirunOrder;
use rustbtl_fragments::ids::{PeerId, SetId};
use serde_json::json;
use std::collections::BTreeSet;

impl Job {
    /// mpirun reports that it has ended by a signal.
    pub(crate) fn guardian_ended(&mut self, now: u64, id: PeerId) {
        self.recovery.undecided.insert(id);
        self.decide_losses(now);
    }

    /// Of those about which something can be decided now.
    pub(crate) fn decide_losses(&mut self, now: u64) {
        let undecided = self.recovery.undecided.iter().copied();
        let ready: Vec<PeerId> = undecided.filter(|&id| !self.may_be_taken_up_later(id)).collect();
        for id in ready {
            self.recovery.undecided.remove(&id);
            let continues = self.guardian_lost(now, id);
            let order = if continues { MpirunOrder::Tolerate(id) } else { MpirunOrder::Stock(id) };
            self.effects.push_back(Effect::Mpirun(order));
        }
    }

    /// No guardian that could restart its ranks is connected, but one of its node may be soon, or
    /// one of another where its own has no other.
    fn may_be_taken_up_later(&self, id: PeerId) -> bool {
        let Some(lost) = self.ranks.get(&id) else { return false };
        let decides = self.scheduler.is_some() || self.failover.is_some();
        if !decides || self.is_protection_disabled() || self.may_finish || self.recovery.failed {
            return false;
        }
        let runs =
            |rank: &Rank| !rank.lost && !rank.killed && !rank.given_up && rank.ended.is_none();
        let could = |of: &PeerId, rank: &Rank| *of != id && rank.host.is_none() && runs(rank);
        let all = self.ranks.iter().filter(|(of, rank)| could(of, rank));
        let (beside, elsewhere): (Vec<_>, Vec<_>) =
            all.partition(|(_, rank)| rank.node == lost.node);
        let others = if beside.is_empty() { elsewhere } else { beside };
        let is_undecided = |of: &PeerId| self.recovery.undecided.contains(of);
        runs(lost)
            && lost.host.is_none()
            && others.iter().all(|(_, rank)| !rank.here)
            && others.iter().any(|(of, _)| !is_undecided(of))
    }

    /// True: its ranks are restarted elsewhere.
    fn guardian_lost(&mut self, now: u64, id: PeerId) -> bool {
        let runs = |rank: &Rank| rank.ended.is_none() && !rank.killed;
        let known = |rank: &&Rank| runs(rank) && !rank.given_up;
        let Some(rank) = self.ranks.get(&id).filter(known) else { return false };
        // A guardian that another one had started ends with that one, which is reported.
        if rank.lost || rank.host.is_some() {
            return true;
        }
        let is_left =
            |(of, other): &(&PeerId, &Rank)| **of != id && other.here && other.host.is_none();
        let mut nodes = self.ranks.iter().filter(is_left).map(|(_, other)| &other.node).peekable();
        if nodes.peek().is_none() {
            self.nobody_takes_it_up(id);
            return false;
        }
        let abandoned = nodes.all(|node| *node != rank.node);
        let node = rank.node.clone();
        let failed = |rank: &Rank| rank.killed || rank.ended.is_some_and(|status| status != 0);
        if self.ranks.values().any(|rank| rank.host == Some(id) && failed(rank)) {
            return false;
        }
        let with_it = |(of, rank): &(&PeerId, &Rank)| {
            **of == id || rank.host == Some(id) && rank.ended.is_none()
        };
        let lost: Vec<PeerId> = self.ranks.iter().filter(with_it).map(|(&id, _)| id).collect();
        let numbers: Vec<u32> = lost.iter().map(|rank| rank.0).collect();
        self.log(json!({"event": "guardian_lost", "rank": id.0, "ranks": numbers}));
        let mut sets: BTreeSet<SetId> = BTreeSet::new();
        for id in lost {
            let Some(rank) = self.ranks.get_mut(&id) else { continue };
            (rank.here, rank.lost, rank.host) = (false, true, None);
            sets.extend(rank.set);
        }
        if abandoned {
            // Its agent ends with the last guardian.
            self.spares.lose(&node);
            self.images_lost(&node);
        }
        let Err(reason) = self.roll_back(now, &sets) else {
            if abandoned {
                self.reconsider();
                self.replenish(now);
            }
            return true;
        };
        let reason = format!("the guardian of rank {id} was killed, and {reason}");
        sets.first().into_iter().for_each(|&set| self.leave_to_mpirun(set, &reason));
        false
    }
}
