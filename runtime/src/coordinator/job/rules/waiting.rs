//! How long a recovery keeps the other ranks waiting: they are asked when it begins, when all sets
//! that are rolled back are connected, and when the last replay is complete. Part of [`Job`]: no
//! I/O.
//!
//! Only `rustbtl report` uses it: nothing waits for the answers. Who has not answered when the next
//! sample is taken is left out of this one.

#[cfg(test)]
mod tests;

use crate::coordinator::job::state::{Job, Rank};
use rustbtl_coordination::control::ToRank;
use rustbtl_fragments::ids::PeerId;
use serde_json::json;
use std::collections::BTreeSet;

impl Job {
    /// Asks all ranks that are not rolled back themselves.
    pub(crate) fn sample_waiting(&mut self, now: u64) {
        self.report_waiting(now);
        let rollbacks = &self.recovery.rollbacks;
        let runs = |rank: &Rank| {
            let alone = rank.set.is_some_and(|set| !rollbacks.contains_key(&set));
            alone && rank.here && rank.ready && rank.ended.is_none() && !rank.killed
        };
        let asked: BTreeSet<PeerId> =
            self.ranks.iter().filter(|(_, rank)| runs(rank)).map(|(&id, _)| id).collect();
        let rolled_back = rollbacks.keys().map(|set| set.0).collect();
        let sample = self.waiting.begin(rolled_back, asked.clone());
        for rank in asked {
            self.send(rank, ToRank::ReportWaiting { sample });
        }
    }

    /// The same, if it was done when the recovery began: nobody waits for a global rollback.
    pub(crate) fn sample_waiting_again(&mut self, now: u64) {
        if !self.waiting.rolled_back.is_empty() {
            self.sample_waiting(now);
        }
    }

    /// The answer of a rank.
    pub(crate) fn rank_waited(
        &mut self,
        now: u64,
        id: PeerId,
        sample: u32,
        (waited_ns, messages): (u64, u64),
    ) {
        if self.standstill.answer(now, id, sample, (waited_ns, messages)) {
            return;
        }
        if self.waiting.answer(now, sample, id, waited_ns / 1_000_000) {
            self.report_waiting(now);
        }
    }

    fn report_waiting(&mut self, now: u64) {
        let ms_ago = self.waiting.ms_ago(now);
        let waited_ms = core::mem::take(&mut self.waiting.waited_ms);
        self.waiting.open.clear();
        if waited_ms.is_empty() {
            return;
        }
        let ranks: Vec<u32> = waited_ms.keys().map(|rank| rank.0).collect();
        let event = json!({
            "event": "ranks_waited", "ranks": ranks,
            "waited_ms": waited_ms.into_values().collect::<Vec<_>>(),
            "rolled_back": self.waiting.rolled_back, "ms_ago": ms_ago,
        });
        self.log(event);
    }
}
