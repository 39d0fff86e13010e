//! When no set is in rollback any more: are all replays over? Part of [`Job`]: no I/O.
//!
//! What ranks have reported so far is what each of them knew (`ReplaysEnd`, docs/adr/0037). Ranks
//! that were restarted put off what others do in their windows until the answer.
//!
//! 1. All ranks that have not ended are asked: one that was killed is rolled back, and then all are
//!    asked again. Who connects again is asked once more.
//! 2. Endpoints were sent before a question, to the same rank, the same way.
//! 3. A coordinator after a failover asks anew, when all have connected.

#[cfg(test)]
mod tests;

use crate::coordinator::job::state::Job;
use rustbtl_coordination::control::ToRank;
use rustbtl_coordination::determinants::ReplayStep;
use rustbtl_fragments::ids::{Incarnation, PeerId};
use serde_json::json;

impl Job {
    /// All sets that were rolled back have reported that their replay is complete.
    pub(crate) fn ask_whether_replays_are_over(&mut self) {
        let runs = self.ranks.iter().filter(|(_, rank)| rank.ended.is_none());
        let all: Vec<PeerId> = runs.clone().map(|(&id, _)| id).collect();
        let restarted = runs.filter(|(_, rank)| rank.incarnation > Incarnation(0));
        let restarted: Vec<PeerId> = restarted.map(|(&id, _)| id).collect();
        let waits = self.failover.is_some() || !self.recovery.rollbacks.is_empty();
        if waits || restarted.is_empty() {
            return;
        }
        let step = self.replays_end.begin(all, restarted);
        self.follow_replay_step(step);
    }

    /// A rank reports that its replay is complete, and no set is in rollback.
    pub(crate) fn believes_to_be_through(&mut self, id: PeerId) {
        if self.replays_end.is_over() {
            // It has refused a global checkpoint in between, or its guardian has connected again.
            self.follow_replay_step(Some(ReplayStep::Over(vec![id])));
        } else if !self.replays_end.is_asking() {
            self.ask_whether_replays_are_over();
        }
    }

    /// A rank says yes.
    pub(crate) fn replay_reported(&mut self, id: PeerId, number: u64) {
        let step = self.replays_end.answered(id, number);
        self.follow_replay_step(step);
    }

    /// A rank has connected again: it may not have been asked, or its answer was lost.
    pub(crate) fn repeat_replay_question(&mut self, id: PeerId) {
        if let Some(question) = self.replays_end.open_question(id) {
            self.follow_replay_step(Some(ReplayStep::Ask(question, vec![id])));
        }
    }

    /// A rank has ended for good.
    pub(crate) fn replays_end_without(&mut self, id: PeerId) {
        let step = self.replays_end.ended(id);
        self.follow_replay_step(step);
    }

    fn follow_replay_step(&mut self, step: Option<ReplayStep>) {
        if matches!(step, Some(ReplayStep::Over(_))) {
            self.log(json!({"event": "replays_over"}));
        }
        match step {
            None => {}
            Some(ReplayStep::Ask(question, ranks)) => {
                let (number, replay) = (question.number, question.replay);
                for id in ranks {
                    self.send(id, ToRank::ReportReplay { number, replay });
                }
            }
            Some(ReplayStep::Over(ranks)) => {
                for id in ranks {
                    let incarnation = self.ranks.get(&id).map(|rank| rank.incarnation);
                    if let Some(incarnation) = incarnation.filter(|of| *of > Incarnation(0)) {
                        self.send(id, ToRank::ReplaysOver { incarnation });
                    }
                }
            }
        }
    }
}
