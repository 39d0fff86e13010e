//! Verbs that programs use past MPI: parts of the drain's steps go to all ranks, and names are kept
//! for who asks. Part of [`Job`]: no I/O.
//!
//! Source: docs/adr/0044. The scheduler knows nothing of it: a rank says `OutgoingStopped` when the
//! drain is over. What was of a time before a global rollback is forgotten when that begins; parts
//! of a checkpoint are, when its drain is over.
//!
//! Parts go to each node once. What ranks give is bounded: parts, their sum, names. Beyond it a
//! checkpoint is given up, and the job ends where it cannot go on, with the rank and what it has
//! too much of.

use crate::coordinator::job::state::{Effect, Job};
use crate::coordinator::job::tables::verbs::Verbs;
use rustbtl_coordination::checkpoints::Input;
use rustbtl_coordination::control::{CheckpointId, ToNode, ToRank};
use rustbtl_coordination::quiescence::{CheckpointAnswer, CheckpointRefusal};
use rustbtl_coordination::verbs_drain::{MADE, bytes_max, split};
use rustbtl_fragments::ids::PeerId;

impl Job {
    /// All ranks of the job have a part in each step.
    pub(crate) fn verbs_part(
        &mut self,
        now: u64,
        id: PeerId,
        (checkpoint, step): (CheckpointId, u32),
        part: Vec<u8>,
    ) {
        if self.is_being_restored(id) {
            return;
        }
        let ranks = self.config.size.max(self.ranks.len() as u32) as usize;
        let limits = (ranks, bytes_max(step));
        let pieces = match self.verbs.exchange.give((checkpoint.0, step), id, part, limits) {
            Ok(None) => return,
            Ok(Some(all)) => split(all),
            Err(too_long) => return self.verbs_refused(now, id, (checkpoint, step), too_long),
        };
        let mut pieces = pieces.into_iter().peekable();
        while let Some(parts) = pieces.next() {
            let is_last = pieces.peek().is_none();
            let message = ToRank::VerbsParts { checkpoint, step, parts, is_last };
            self.effects.push_back(Effect::SendAll(ToNode::AllRanks { message }));
        }
    }

    /// A part is too long: the checkpoint is given up; a restore cannot be.
    fn verbs_refused(
        &mut self,
        now: u64,
        id: PeerId,
        (checkpoint, step): (CheckpointId, u32),
        why: impl core::fmt::Display,
    ) {
        let reason = format!("{}: {why}", self.name_of(id));
        if step >= MADE {
            return self.fail(format!("after the restart from checkpoint {checkpoint}: {reason}"));
        }
        self.problem(checkpoint, reason);
        let (checkpoint, refusal) = (checkpoint.0, CheckpointRefusal::Snapshot);
        let answer = CheckpointAnswer::Failed { checkpoint, refusal };
        self.input(now, Input::Answered { rank: id, answer });
    }

    /// A name stands for this.
    pub(crate) fn verbs_name(
        &mut self,
        id: PeerId,
        name: Vec<u8>,
        generation: u64,
        value: Vec<u8>,
    ) {
        if self.is_being_restored(id) {
            return;
        }
        // Without it others could not reach this rank, and nobody would know why.
        if let Err(refused) = self.verbs.names.publish(name, generation, value) {
            self.fail(format!("{}: {refused}", self.name_of(id)));
        }
    }

    /// What does a name stand for? After a failover guardians repeat what they know of names: until
    /// all have, nobody can say that a name is none, and the rank asks again.
    pub(crate) fn find_verbs_name(&mut self, id: PeerId, number: u32, name: &[u8], of: u64) {
        let value = self.verbs.names.find(name, of);
        let knows_all = self.all(|rank| rank.hello_received || rank.lost || rank.ended.is_some());
        if !value.is_empty() || knows_all {
            self.send(id, ToRank::VerbsNameFound { number, value });
        }
    }

    /// All have drained, or the checkpoint is given up.
    pub(crate) fn verbs_drain_over(&mut self, checkpoint: u64) {
        self.verbs.exchange.forget(checkpoint);
    }

    /// All ranks are rolled back.
    pub(crate) fn forget_verbs(&mut self) {
        self.verbs = Verbs::default();
    }
}

#[cfg(test)]
mod tests;
