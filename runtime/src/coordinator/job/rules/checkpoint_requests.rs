//! Who can request checkpoints, and the answers: users, programs, logs that are nearly full.

use crate::coordinator::job::state::Effect;
use crate::coordinator::job::state::{Job, Rank};
use crate::coordinator::job::tables::checkpoint_requests::{CheckpointRequest, Requester};
use crate::store::Kind;
use rustbtl_coordination::checkpoints::{AbortReason, Input};
use rustbtl_coordination::control::{CheckpointId, Reply, ToRank};
use rustbtl_coordination::quiescence::CheckpointRefusal;
use rustbtl_fragments::ids::{PeerId, SetId};
use serde_json::json;
use std::collections::BTreeSet;

impl Job {
    /// A user requests checkpoints.
    pub fn checkpoint(&mut self, now: u64, client: u64, all: bool, wait: bool, then_exit: bool) {
        let requester = Requester::Client(client);
        if all || then_exit || !self.drain.bypassing.is_empty() {
            self.request(now, requester, None, then_exit, wait);
            return;
        }
        let sets: BTreeSet<SetId> = self.ranks.values().filter_map(|rank| rank.set).collect();
        self.requests.add(CheckpointRequest { requester, global: false, sets: sets.clone(), wait });
        self.try_request(
            now,
            requester,
            sets.into_iter().map(|set| Input::RequestSetCheckpoint { set }).collect(),
        );
    }

    /// `set`: a checkpoint of this set; `None`: a global one.
    pub(crate) fn request(
        &mut self,
        now: u64,
        who: Requester,
        set: Option<SetId>,
        exit: bool,
        wait: bool,
    ) {
        let sets: BTreeSet<SetId> = set.into_iter().collect();
        self.requests.add(CheckpointRequest { requester: who, global: set.is_none(), sets, wait });
        let input = match set {
            Some(set) => Input::RequestSetCheckpoint { set },
            None => Input::RequestGlobalCheckpoint { exit },
        };
        if set.is_none() && exit {
            self.requests.exit = true;
        }
        self.try_request(now, who, vec![input]);
    }

    /// A rank's log is on its way to its budget, mostly with messages to `set`.
    pub(crate) fn log_nearly_full(&mut self, now: u64, rank: PeerId, set: SetId, bytes: u64) {
        let possible = self.config.has_storage();
        self.log(json!({
            "event": "log_nearly_full", "rank": rank.0, "set": set.0, "bytes": bytes,
            "checkpoint": possible,
        }));
        // Where checkpoints cannot be stored the log spills. Before all ranks are ready the next
        // mark of the log requests one.
        if possible {
            self.input(now, Input::RequestSetCheckpoint { set });
        }
    }

    pub(crate) fn try_request(&mut self, now: u64, who: Requester, inputs: Vec<Input>) {
        let starting = self.config.has_storage() && self.scheduler.is_none();
        if starting && self.requests.waits(who) {
            self.early_requests.push((who, inputs));
            return;
        }
        let exit = inputs
            .iter()
            .any(|input| matches!(input, Input::RequestGlobalCheckpoint { exit: true }));
        let problem = if exit && self.config.is_local() {
            Some(
                "the checkpoints of this job end with it: for one that outlives it start the job \
                 with --mca vprotocol_correlated_checkpoint_dir DIR, a directory that all nodes \
                 share"
                    .to_owned(),
            )
        } else if !self.config.has_storage() {
            Some(
                "this job has no place for checkpoints: start it with --mca \
                 vprotocol_correlated_checkpoint_dir DIR, a directory that all nodes share"
                    .to_owned(),
            )
        } else if self.scheduler.is_none() {
            Some(self.why_not_ready())
        } else if let Some(problem) = self.missing() {
            Some(problem)
        } else {
            inputs.into_iter().find_map(|input| self.try_input(now, input).err())
        };
        if let Some(problem) = problem
            && let Some(request) = self.requests.remove(who)
        {
            self.answer(&request, CheckpointId(0), &problem);
        }
        self.carry_out(now);
    }

    /// Why no checkpoint is possible: a rank is missing.
    fn missing(&self) -> Option<String> {
        let missing = |rank: &Rank| !rank.here || rank.ended.is_some();
        let (id, rank) = self.ranks.iter().find(|(_, rank)| missing(rank))?;
        Some(match rank.ended {
            Some(_) => format!("rank {id} has ended"),
            None => format!("rank {id} on {} cannot be reached at the moment", rank.node),
        })
    }

    fn why_not_ready(&self) -> String {
        let (known, size) = (self.ranks.len(), self.config.size);
        let waits = self.ranks.iter().find(|(_, rank)| !rank.ready);
        let waits = waits.map_or(String::new(), |(id, _)| format!(", rank {id} is not ready"));
        format!(
            "the job is still starting, or its programs do not use MPI ({known} of {size} ranks \
             are known{waits}): try again"
        )
    }

    pub(crate) fn answer(
        &mut self,
        request: &CheckpointRequest,
        checkpoint: CheckpointId,
        problem: &str,
    ) {
        let refused = !problem.is_empty();
        match request.requester {
            Requester::Rank(rank, number) => {
                let problem = problem.to_owned();
                self.send(rank, ToRank::CheckpointRequestResult { number, checkpoint, problem });
            }
            Requester::Client(client) => {
                let reply = match (refused, request.wait) {
                    (true, _) => Reply::Refused { reason: problem.to_owned() },
                    (false, true) => Reply::Complete { checkpoint },
                    (false, false) => Reply::Ordered { checkpoint },
                };
                self.effects.push_back(Effect::Reply(client, reply));
            }
            Requester::Signal => {
                let text =
                    if refused { problem } else { &format!("checkpoint {checkpoint} is complete") };
                self.effects.push_back(Effect::NotifyUser(format!("job {}: {text}", self.name)));
            }
        }
    }

    /// A checkpoint was aborted: notifies its ranks and requesters, and if nobody waits the user.
    pub(crate) fn aborted(
        &mut self,
        checkpoint: CheckpointId,
        sets: &[SetId],
        why: AbortReason,
        retried: bool,
        next_ms: Option<u64>,
    ) {
        let Some(state) = self.checkpoints.get(&checkpoint) else { return };
        let (global, exit) = (state.kind == Kind::Global, state.exit);
        let reason = if state.problem.is_empty() { why.to_string() } else { state.problem.clone() };
        self.log(json!({
            "event": "checkpoint_aborted", "checkpoint": checkpoint.0, "reason": reason,
            "retried": retried,
            "next_ms": next_ms,
        }));
        for rank in self.members(sets) {
            self.send(rank, ToRank::Abort { checkpoint, reason: reason.clone() });
        }
        if retried {
            self.requests.exit |= exit;
            return;
        }
        let text = format!("checkpoint {checkpoint} was given up: {reason}");
        let waiting = self.requests.ended(global, sets, true);
        for request in &waiting {
            self.answer(request, checkpoint, &text);
        }
        // The end of a job, or of a rank, is reported elsewhere.
        let ends = matches!(
            why,
            AbortReason::RankFailed(_) | AbortReason::Failed(_, CheckpointRefusal::Finishing)
        );
        if waiting.is_empty() && !ends {
            self.failed_checkpoints += 1;
            self.report_failure(&text, next_ms);
        }
    }

    /// The 1st, 2nd, 4th, 8th … in a row: checkpoints may fail for days.
    fn report_failure(&mut self, text: &str, next_ms: Option<u64>) {
        if !self.failed_checkpoints.is_power_of_two() {
            return;
        }
        let next = match next_ms {
            Some(ms) => format!("the next one is due in {} s", ms.div_ceil(1000)),
            None => "the next one is taken when somebody asks for it".to_owned(),
        };
        let row = match self.failed_checkpoints {
            1 => String::new(),
            many => format!(" ({many} checkpoints in a row)"),
        };
        self.effects
            .push_back(Effect::NotifyUser(format!("job {}: {text}{row}; {next}", self.name)));
    }

    /// A client has disconnected: nobody waits for its checkpoint any more.
    pub fn client_gone(&mut self, client: u64) {
        self.requests.remove(Requester::Client(client));
    }
}
