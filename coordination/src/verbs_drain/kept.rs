//! A guardian's part: what its rank has given to the steps that follow a restart, for a coordinator
//! that takes over before all ranks have got the parts of all.
//!
//! * K1 They are kept until the coordinator orders what it orders only when all ranks run again.
//! * K2 After that, and when the job ends, nothing is kept.

use super::MADE;
use std::collections::BTreeMap;

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    checkpoint: u64,
    steps: BTreeMap<u32, Vec<u8>>,
}

impl Kept {
    /// The rank has given this.
    pub fn give(&mut self, (checkpoint, step): (u64, u32), part: &[u8]) {
        // What belongs to a drain dies with its checkpoint when a coordinator is lost.
        if step < MADE {
            return;
        }
        if checkpoint != self.checkpoint {
            *self = Self { checkpoint, steps: BTreeMap::new() };
        }
        self.steps.insert(step, part.to_vec());
    }

    /// All ranks run again, or the job ends.
    pub fn forget(&mut self) {
        self.steps.clear();
    }

    /// What the next coordinator is told: checkpoint, step and part.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32, &[u8])> {
        self.steps.iter().map(|(&step, part)| (self.checkpoint, step, &part[..]))
    }
}
