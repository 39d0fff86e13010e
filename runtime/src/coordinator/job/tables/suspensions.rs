//! Since when logging towards sets is suspended, and for how long it was: for the user.

use rustbtl_fragments::ids::SetId;
use std::collections::BTreeMap;

/// See the module's documentation. Times in milliseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Suspensions {
    since: BTreeMap<SetId, u64>,
    total: BTreeMap<SetId, u64>,
}

impl Suspensions {
    /// False: it was already.
    pub(crate) fn begin(&mut self, now: u64, set: SetId) -> bool {
        let new = !self.since.contains_key(&set);
        self.since.entry(set).or_insert(now);
        new
    }

    /// How long it was suspended; `None`: it was not.
    pub(crate) fn end(&mut self, now: u64, set: SetId) -> Option<u64> {
        let ms = now.saturating_sub(self.since.remove(&set)?);
        *self.total.entry(set).or_default() += ms;
        Some(ms)
    }

    /// How long it was suspended, all in all.
    pub(crate) fn total_ms(&self, now: u64, set: SetId) -> u64 {
        let before = self.total.get(&set).copied().unwrap_or(0);
        before + self.since.get(&set).map_or(0, |since| now.saturating_sub(*since))
    }

    pub(crate) fn sets(&self) -> Vec<SetId> {
        self.since.keys().copied().collect()
    }
}
