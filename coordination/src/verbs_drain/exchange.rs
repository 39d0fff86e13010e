//! The coordinator's part: what all ranks have given to a step is sent to each of them.
//!
//! * E1 The parts of a step are sent when every rank has given one, not before.
//! * E2 When a rank gives another one later, all are sent again.
//! * E3 Steps of older checkpoints, and all but the last two of a checkpoint, are forgotten; parts
//!   of them change nothing.

use rustbtl_fragments::ids::PeerId;
use std::collections::BTreeMap;

/// Each rank's.
pub type Parts = BTreeMap<PeerId, Vec<u8>>;

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    checkpoint: u64,
    steps: BTreeMap<u32, Parts>,
}

impl Exchange {
    /// A rank, one of `ranks`, gives its part. Some: all are to be sent to every rank.
    pub fn give(
        &mut self,
        (checkpoint, step): (u64, u32),
        rank: PeerId,
        part: Vec<u8>,
        ranks: usize,
    ) -> Option<&Parts> {
        if checkpoint > self.checkpoint {
            *self = Self { checkpoint, steps: BTreeMap::new() };
        }
        let last = self.steps.last_key_value().map_or(0, |(&last, _)| last);
        if checkpoint < self.checkpoint || step.saturating_add(1) < last {
            return None;
        }
        self.steps.retain(|&known, _| known.saturating_add(1) >= step);
        let parts = self.steps.entry(step).or_default();
        parts.insert(rank, part);
        (parts.len() == ranks).then_some(&*parts)
    }

    /// Assert what can be seen of the invariants from inside.
    pub fn check(&self) {
        assert!(self.steps.len() <= 2, "E3: {} steps", self.steps.len());
    }
}
