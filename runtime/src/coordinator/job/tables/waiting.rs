//! How long ranks have waited inside MPI, at one moment of a recovery: for the user.

use rustbtl_fragments::ids::PeerId;
use std::collections::{BTreeMap, BTreeSet};

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    /// Number of the last sample.
    pub(crate) sample: u32,
    /// When answers came, in milliseconds: their sum.
    answered_ms: u64,
    /// Sets that were being rolled back then.
    pub(crate) rolled_back: Vec<u32>,
    /// Who has not answered.
    pub(crate) open: BTreeSet<PeerId>,
    /// What the others have answered, in milliseconds since their program began.
    pub(crate) waited_ms: BTreeMap<PeerId, u64>,
}

impl Waiting {
    /// The next sample, of these ranks. Its number.
    pub(crate) fn begin(&mut self, rolled_back: Vec<u32>, open: BTreeSet<PeerId>) -> u32 {
        let sample = self.sample.wrapping_add(1);
        *self = Self { sample, rolled_back, open, ..Self::default() };
        sample
    }

    /// An answer. True: it was the last one.
    pub(crate) fn answer(&mut self, now: u64, sample: u32, rank: PeerId, waited_ms: u64) -> bool {
        if sample != self.sample || !self.open.remove(&rank) {
            return false;
        }
        self.answered_ms += now;
        self.waited_ms.insert(rank, waited_ms);
        self.open.is_empty()
    }

    /// How long ago the answers came, on an average.
    pub(crate) fn ms_ago(&self, now: u64) -> u64 {
        let mean = self.answered_ms.checked_div(self.waited_ms.len() as u64);
        now.saturating_sub(mean.unwrap_or(now))
    }
}
