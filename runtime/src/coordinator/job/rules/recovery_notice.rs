//! What the user is told when failed ranks run again: who, from where, how long it took. Part of
//! [`Job`]: no I/O.
//!
//! One line on mpirun's standard error. Without it a recovery that succeeds looks like a slow
//! moment, and a job that waits for one like a job that hangs.

use crate::coordinator::job::state::{Effect, Job};
use crate::coordinator::job::tables::rollback::Rollback;
use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::BTreeSet;

/// Ranks that are named; of more the number is given.
const NAMED_MAX: usize = 8;

impl Job {
    /// The ranks of `set` have repeated all that others knew of them, or all have connected again.
    pub(crate) fn notify_recovered(&mut self, set: SetId, rollback: &Rollback, ms: u64) {
        if !self.config.notices {
            return;
        }
        let is_last = self.recovery.rollbacks.values().all(|other| !other.global);
        let (checkpoint, seconds) = (rollback.checkpoint, ms as f64 / 1000.0);
        let text = if rollback.global {
            // One line for all sets, when the last has connected.
            if !is_last {
                return;
            }
            format!("all ranks run again from checkpoint {checkpoint}, after {seconds:.1} s")
        } else {
            let members = self.members(&[set]);
            let nodes: BTreeSet<&str> = members
                .iter()
                .filter_map(|rank| self.ranks.get(rank).map(|rank| rank.node.as_str()))
                .collect();
            let nodes: Vec<&str> = nodes.into_iter().collect();
            let has_others = members.len() < self.ranks.len();
            let others = if has_others { "; all others kept running" } else { "" };
            format!(
                "{} failed: rolled back to checkpoint {checkpoint} on {}, caught up after \
                 {seconds:.1} s{others}",
                names(&members),
                nodes.join(", ")
            )
        };
        self.effects.push_back(Effect::NotifyUser(format!("job {}: {text}", self.name)));
    }
}

fn names(ranks: &[PeerId]) -> String {
    match ranks {
        [rank] => format!("rank {rank}"),
        ranks if ranks.len() <= NAMED_MAX => {
            let names: Vec<String> = ranks.iter().map(ToString::to_string).collect();
            format!("ranks {}", names.join(", "))
        }
        [first, .., last] => format!("{} ranks ({first} to {last})", ranks.len()),
        [] => "no rank".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_ranks_are_named_and_many_counted() {
        let ranks = |count: u32| (0..count).map(|rank| PeerId(rank + 3)).collect::<Vec<_>>();
        assert_eq!(names(&ranks(1)), "rank 3");
        assert_eq!(names(&ranks(3)), "ranks 3, 4, 5");
        assert_eq!(names(&ranks(64)), "64 ranks (3 to 66)");
    }
}
