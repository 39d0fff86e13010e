//! A restarted program that does something else than before may wait for what nobody sends, and
//! the others for it, before what it sends can be compared (docs/adr/0034). Part of [`Job`]: no
//! I/O.
//!
//! 1. While sets replay, all ranks are asked at intervals how many messages they have moved and how
//!    long they have waited inside MPI. If no rank has moved any between two samples, and all have
//!    waited, nothing will: the replays have diverged, as if it had been noticed otherwise.
//! 2. Not while nodes cannot be reached, or a coordinator after a failover waits for ranks; and a
//!    time in which the coordinator itself did not run does not count.
//! 3. A rank that hardly gets a processor waits as well: who has been asked tells it from a program
//!    that computes by the processor time of its thread (`component/src/sync/waiting.rs`). So is a
//!    program that polls with pauses of its own of less than 2 s; longer ones are not noticed.

#[cfg(test)]
mod tests;

use crate::coordinator::job::state::Job;
use crate::coordinator::job::tables::rollback::Phase;
use crate::coordinator::job::tables::standstill::STANDS_MS;
use rustbtl_coordination::control::ToRank;
use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::BTreeSet;

impl Job {
    /// Time has passed.
    pub(crate) fn check_standstill(&mut self, now: u64) {
        let rollbacks = &self.recovery.rollbacks;
        let all_replay = !rollbacks.is_empty()
            && rollbacks.values().all(|of| of.phase == Phase::Replaying && !of.global);
        if !all_replay || self.is_cut_off() || self.failover.is_some() {
            return self.standstill.forget();
        }
        if self.standstill.has_stood() {
            self.standstill.forget();
            return self.replays_stand(now);
        }
        if self.standstill.is_due(now) {
            let runs = self.ranks.iter().filter(|(_, rank)| rank.ended.is_none());
            let all: BTreeSet<PeerId> = runs.map(|(&id, _)| id).collect();
            let sample = self.standstill.begin(now, all.clone());
            for rank in all {
                self.send(rank, ToRank::ReportWaiting { sample });
            }
        }
    }

    fn replays_stand(&mut self, now: u64) {
        let sets: Vec<SetId> = self.recovery.rollbacks.keys().copied().collect();
        for set in sets {
            // Whichever of them it is.
            if let Some(&rank) = self.members(&[set]).first() {
                let problem = format!(
                    "its set waits for messages that nobody sends (all ranks have waited for {} s)",
                    STANDS_MS / 1000
                );
                self.rank_diverged(now, rank, rank, problem);
            }
        }
    }
}
