//! A rank that was rolled back does something else than before: it depends on more than MPI (time,
//! random numbers, threads that compete). Part of [`Job`]: no I/O.
//!
//! Source: docs/adr/0013, docs/adr/0030.
//!
//! 1. Others have seen what it did before, so its set cannot go on: there is a global rollback,
//!    after which nobody has seen anything. If that is impossible the job ends.
//! 2. The set is not replayed any more: each later failure of it is a global rollback at once.
//! 3. What a rank reports while it is rolled back together with all others is of the incarnation
//!    that is being ended: it counts for (2) only.

#[cfg(test)]
mod tests;

use crate::coordinator::job::state::Job;
use rustbtl_fragments::ids::PeerId;
use serde_json::json;

impl Job {
    /// `by` reports that the replay of rank `of` has diverged.
    pub(crate) fn rank_diverged(&mut self, now: u64, by: PeerId, of: PeerId, problem: String) {
        let Some(set) = self.ranks.get(&of).and_then(|rank| rank.set) else { return };
        if let Some(failover) = &mut self.failover {
            return failover.diverged.push((by, of, problem));
        }
        let name = self.name_of(of);
        self.log(json!({
            "event": "replay_diverged", "rank": of.0, "set": set.0, "reported_by": by.0,
            "reason": problem
        }));
        let diverged = format!("{name} did not repeat what it had done: {problem}");
        self.recovery.diverged.entry(set).or_insert_with(|| diverged.clone());
        self.changed = true;
        if self.recovery.rollbacks.get(&set).is_some_and(|rollback| rollback.global) {
            return;
        }
        if let Err(reason) = self.roll_back_all(now, &diverged, None) {
            self.fail(reason);
        }
    }
}
