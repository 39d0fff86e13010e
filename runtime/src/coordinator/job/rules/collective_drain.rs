//! Phase 0 of a checkpoint of all ranks where collectives bypass rustbtl: none of them is half done
//! when the snapshots are taken. Part of [`Job`]: no I/O.
//!
//! Source: docs/adr/0038. The machine is `CollectiveDrain`; the scheduler knows nothing of it.

use crate::coordinator::job::state::Job;
use rustbtl_coordination::checkpoints::Input;
use rustbtl_coordination::collective_clock::{CollectiveDrain, DrainInput, DrainOutput};
use rustbtl_coordination::control::{CheckpointId, ToRank};
use rustbtl_fragments::ids::PeerId;
use serde_json::json;

/// Who is stopped at a collective waits for nobody longer than that.
pub(super) const TIMEOUT_MS: u64 = 30_000;

impl Job {
    /// A checkpoint of all ranks begins.
    pub(crate) fn drain_or_stop(&mut self, now: u64, checkpoint: CheckpointId) {
        if self.drain.bypassing.is_empty() {
            return self.stop_outgoing(checkpoint);
        }
        let ranks: Vec<PeerId> = self.ranks.keys().copied().collect();
        self.drain.began_ms = now;
        self.drain.machine = Some(CollectiveDrain::new(&ranks, TIMEOUT_MS));
        self.drain_input(now, DrainInput::Begin { checkpoint: checkpoint.0 });
    }

    fn stop_outgoing(&mut self, checkpoint: CheckpointId) {
        let ranks: Vec<PeerId> = self.ranks.keys().copied().collect();
        ranks.into_iter().for_each(|rank| self.send(rank, ToRank::StopOutgoing { checkpoint }));
    }

    pub(crate) fn drain_input(&mut self, now: u64, input: DrainInput) {
        let Some(machine) = &mut self.drain.machine else { return };
        if let Err(problem) = machine.handle(now, input) {
            self.log(json!({"event": "protocol_error", "what": problem.to_string()}));
        }
        while let Some(output) = self.drain.machine.as_mut().and_then(CollectiveDrain::poll_output)
        {
            match output {
                DrainOutput::Send { rank, message } => self.send(rank, ToRank::Clock { message }),
                DrainOutput::Drained { checkpoint } => {
                    let ms = now.saturating_sub(self.drain.began_ms);
                    self.log(json!({
                        "event": "collectives_drained", "checkpoint": checkpoint, "ms": ms
                    }));
                    self.stop_outgoing(CheckpointId(checkpoint));
                }
                DrainOutput::GiveUp { checkpoint, reason } => {
                    self.input(now, Input::NotDrained { checkpoint, why: reason });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
