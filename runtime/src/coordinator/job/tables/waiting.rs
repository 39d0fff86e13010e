//! How long ranks have waited inside MPI, at one moment of a recovery: for the user.

use rustbtl_fragments::ids::PeerId;
use std::collections::{BTreeMap, BTreeSet};

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    /// Number of the last sample.
    pub(crate) sample: u32,
    /// When it was asked for, in milliseconds.
    pub(crate) asked_ms: u64,
    /// Sets that were being rolled back then.
    pub(crate) rolled_back: Vec<u32>,
    /// Who has not answered.
    pub(crate) open: BTreeSet<PeerId>,
    /// What the others have answered, in milliseconds since their program began.
    pub(crate) waited_ms: BTreeMap<PeerId, u64>,
}

impl Waiting {
    /// The next sample, of these ranks. Its number.
    pub(crate) fn begin(&mut self, now: u64, rolled_back: Vec<u32>, open: BTreeSet<PeerId>) -> u32 {
        let sample = self.sample.wrapping_add(1);
        *self = Self { sample, asked_ms: now, rolled_back, open, waited_ms: BTreeMap::new() };
        sample
    }

    /// An answer. True: it was the last one.
    pub(crate) fn answer(&mut self, sample: u32, rank: PeerId, waited_ms: u64) -> bool {
        if sample != self.sample || !self.open.remove(&rank) {
            return false;
        }
        self.waited_ms.insert(rank, waited_ms);
        self.open.is_empty()
    }
}
