//! What a global checkpoint has cost the program, from which its interval follows.
//!
//! When it is complete, only the loss while images were stored is known; what came after, as
//! replication, is taken to have cost as much of the time. Then each rank reports what it has lost
//! from its snapshot to the end, and that counts once all have.

use super::CheckpointScheduler;
use super::tables::ActiveCheckpoint;
use crate::interval::{CheckpointCost, Interval};
use crate::quiescence::CheckpointScope;
use rustbtl_fragments::ids::PeerId;
use std::collections::BTreeSet;

/// A program loses so many times what its rank that lost most has lost while images were stored:
/// ranks lose at different moments and wait for each other, and caches and the memory's bandwidth
/// are shared. Measured with CG and LU, whose processors are full: 1.5 to 2.3 times
/// (docs/performance.md, "What a checkpoint costs").
const LOST_BY_ALL_TIMES: u64 = 2;

/// The last global checkpoint, which is complete.
#[derive(Clone, Debug)]
pub(super) struct LastGlobal {
    checkpoint: u64,
    begun: u64,
    /// As it is known now.
    cost: CheckpointCost,
    /// Ranks that have not reported yet what they have lost.
    awaited: BTreeSet<PeerId>,
    /// The most that one of the others has lost, milliseconds.
    lost_ms: u64,
}

impl LastGlobal {
    /// From the snapshots to its end.
    fn beside_ms(&self) -> u64 {
        self.cost.took_ms.saturating_sub(self.cost.pause_ms)
    }
}

impl CheckpointScheduler {
    /// Milliseconds from the beginning of a global checkpoint to that of the next, as things are.
    pub fn next_global_ms(&self) -> Option<u64> {
        let cost = self.last_cost.as_ref().map(|last| last.cost);
        self.config.global_interval.next_ms(self.sets.len(), cost)
    }

    /// A global checkpoint is complete.
    pub(super) fn note_cost(&mut self, number: u64, checkpoint: &ActiveCheckpoint) {
        let took_ms = self.now.saturating_sub(checkpoint.begun);
        let beside_ms = took_ms.saturating_sub(checkpoint.pause_ms);
        let lost_ms = match checkpoint.storing_cost {
            Some((lost_ms, of_ms)) => {
                let lost =
                    u128::from(beside_ms) * u128::from(lost_ms.saturating_mul(LOST_BY_ALL_TIMES));
                (lost / u128::from(of_ms.max(1))).min(u128::from(beside_ms)) as u64
            }
            None => beside_ms / 2,
        };
        let is_first = self.globals.is_empty();
        self.last_cost = Some(LastGlobal {
            checkpoint: number,
            begun: checkpoint.begun,
            cost: CheckpointCost { pause_ms: checkpoint.pause_ms, lost_ms, took_ms, is_first },
            awaited: checkpoint.ranks.clone(),
            lost_ms: 0,
        });
        self.reschedule();
    }

    /// From its snapshot to the end of the checkpoint a rank has lost so much.
    pub(super) fn on_lost(&mut self, rank: PeerId, checkpoint: u64, lost_ms: u64) {
        let Some(last) = self.last_cost.as_mut().filter(|last| last.checkpoint == checkpoint)
        else {
            return;
        };
        if !last.awaited.remove(&rank) {
            return;
        }
        last.lost_ms = last.lost_ms.max(lost_ms);
        if last.awaited.is_empty() {
            let lost_ms = last.lost_ms.saturating_mul(LOST_BY_ALL_TIMES);
            last.cost.lost_ms = lost_ms.min(last.beside_ms());
            // One that was given up since waits for longer.
            if self.global_aborted == 0 {
                self.reschedule();
            }
        }
    }

    /// By what the last one has cost, not by what the one before had; the next one that is under
    /// way comes to that itself.
    fn reschedule(&mut self) {
        let is_global = |active: &ActiveCheckpoint| active.scope == CheckpointScope::Global;
        if !matches!(self.config.global_interval, Interval::Governed { .. })
            || self.checkpoints.values().any(is_global)
        {
            return;
        }
        let begun = self.last_cost.as_ref().map(|last| last.begun);
        let next = begun.zip(self.next_global_ms());
        self.global_due = next.map(|(begun, ms)| begun.saturating_add(ms));
    }
}
