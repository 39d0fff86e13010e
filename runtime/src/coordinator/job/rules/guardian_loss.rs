//! A guardian that was killed alone. Its program has ended with it, and so have those that it had
//! started for ranks of lost nodes. Their sets are rolled back, and another guardian of the same
//! node, if there is one, restarts them. Part of [`Job`]: no I/O.
//!
//! mpirun is notified by the node's daemon, and waits for an answer: continue without it (`let`),
//! or do what stock Open MPI does (`stock`): guardians also end by signals because their programs
//! have, for good. A job does not continue with a node without any guardian that its daemon has
//! started.

use crate::coordinator::job::state::{Effect, Job, Rank};
use crate::coordinator::job::tables::mpirun_orders::MpirunOrder;
use rustbtl_fragments::ids::{PeerId, SetId};
use serde_json::json;
use std::collections::BTreeSet;

impl Job {
    /// mpirun reports that it has ended by a signal.
    pub(crate) fn guardian_ended(&mut self, now: u64, id: PeerId) {
        let continues = self.guardian_lost(now, id);
        let order = if continues { MpirunOrder::Tolerate(id) } else { MpirunOrder::Stock(id) };
        self.effects.push_back(Effect::Mpirun(order));
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
        let beside = |(of, other): (&PeerId, &Rank)| {
            *of != id && other.here && other.host.is_none() && other.node == rank.node
        };
        if !self.ranks.iter().any(beside) {
            self.nobody_takes_it_up(id);
            return false;
        }
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
        let Err(reason) = self.roll_back(now, &sets) else { return true };
        let reason = format!("the guardian of rank {id} was killed, and {reason}");
        sets.first().into_iter().for_each(|&set| self.leave_to_mpirun(set, &reason));
        false
    }
}
