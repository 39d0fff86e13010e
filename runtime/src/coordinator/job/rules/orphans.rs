//! A set depends on what only nodes had recorded that were lost together. Part of [`Job`]: no I/O.
//!
//! Source: docs/adr/0013, docs/adr/0047.
//!
//! 1. There is a global rollback, after which nobody depends on it. If that is impossible the job
//!    ends.
//! 2. Where all are being rolled back already, it is over.

#[cfg(test)]
mod tests;

use crate::coordinator::job::state::Job;
use rustbtl_fragments::ids::SetId;

impl Job {
    /// `set` depends on what `lost` had recorded.
    pub(crate) fn set_orphaned(&mut self, now: u64, set: SetId, lost: SetId) {
        if let Some(failover) = &mut self.failover {
            failover.orphan = Some((set, lost));
            return;
        }
        if self.recovery.rollbacks.values().any(|rollback| rollback.global) {
            return;
        }
        let why = format!(
            "set {set} has received messages that depend on what set {lost} had recorded, and all \
             that had this were lost together"
        );
        if let Err(reason) = self.roll_back_all(now, &why, None) {
            self.fail(reason);
        }
    }
}
