//! Nodes from which nothing comes: failed, or cut off? Part of [`Job`]: no I/O.
//!
//! Source: docs/adr/0030. mpirun measures, for each of its connections to daemons, how long the
//! other node's kernel has not answered; it is asked at each heartbeat.
//!
//! 1. A node that was silent for `failure_timeout`, while something comes from another one, has
//!    failed: its connection is ended, and mpirun reports the loss (`lost`).
//! 2. If nothing comes from any of several nodes, mpirun's own is cut off: nobody is given up, the
//!    user reads once what is waited for, and once that it is over.
//! 3. If there is one other node only, silence does not tell which of the two is cut off. It counts
//!    as failed: mpirun's node can go on without it, and what is left of it is refused when it
//!    comes back. If the interface of mpirun's node has no carrier, that one is cut off (2).
//! 4. After a cut nobody is given up for as long as it took, and the timeout: unacknowledged data
//!    is repeated at intervals that grow with it.
//! 5. A connection that was ended by the other side or reset is a loss at once, and none of this.

#[cfg(test)]
mod tests;

use crate::coordinator::job::state::{Effect, Job};
use crate::coordinator::job::tables::hosts::same_host;
use crate::coordinator::job::tables::mpirun_orders::{MpirunOrder, from_mpirun};
use crate::coordinator::job::tables::silence::Measurement;
use crate::coordinator::job::tables::text::some_of;
use serde_json::json;
use std::collections::BTreeSet;

/// Without an answer mpirun is asked again after so many heartbeats: it reads the first one late
/// if that comes with the line that says where the coordinator listens, and one that is stopped
/// reads none.
const ASKED_AGAIN: u32 = 8;

impl Job {
    /// A heartbeat is due: mpirun is asked how long other nodes have been silent.
    pub fn beat(&mut self) {
        // Before everybody runs Open MPI handles each loss.
        let matters = self.config.recover && self.config.has_storage() && !self.recovery.failed;
        if !matters {
            return;
        }
        let asks = self.silence.unanswered.is_multiple_of(ASKED_AGAIN);
        self.silence.unanswered += 1;
        if self.silence.unanswered == ASKED_AGAIN {
            // Meanwhile no silence of a node is noticed.
            self.log(json!({"event": "mpirun_unanswering", "heartbeats": ASKED_AGAIN}));
        }
        if asks {
            self.effects.push_back(Effect::Mpirun(MpirunOrder::Measure));
        }
    }

    /// Nothing comes from any other node.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.silence.cut_since_ms.is_some()
    }

    /// mpirun's answer.
    pub(crate) fn measured(&mut self, now: u64, text: &str) {
        self.silence.unanswered = 0;
        let Ok(found) = text.parse::<Measurement>() else {
            return self.protocol_error(&format!("{} {text}", from_mpirun::QUIET));
        };
        let timeout = self.config.failure_timeout_ms;
        let is_heard = found.silent < found.count;
        if let Some(since) = self.silence.cut_since_ms
            && (is_heard || found.count == 0)
        {
            self.reached_again(now, now.saturating_sub(since));
        }
        let over = |ms: u64| ms >= timeout;
        let silent: Vec<_> = found.connections.iter().filter(|found| over(found.ms)).collect();
        if silent.is_empty() || self.is_cut_off() || now < self.silence.grace_until_ms {
            return;
        }
        let has_carrier = silent.iter().any(|connection| connection.has_carrier);
        if !is_heard && (found.count > 1 || !has_carrier) {
            let longest = silent.iter().map(|connection| connection.ms).max().unwrap_or(timeout);
            return self.cut_off(now, longest);
        }
        for connection in silent {
            self.log(json!({
                "event": "node_silent", "connection": connection.id, "ms": connection.ms
            }));
            self.effects.push_back(Effect::Mpirun(MpirunOrder::Cut(connection.id)));
        }
    }

    /// Nothing has come from any other node for so long.
    fn cut_off(&mut self, now: u64, ms: u64) {
        self.silence.cut_since_ms = Some(now.saturating_sub(ms));
        let nodes = self.other_nodes();
        let (own, seconds) = (self.spares.mpirun_node.clone(), ms as f64 / 1000.0);
        self.log(json!({"event": "network_cut", "node": own, "silent": nodes, "ms": ms}));
        let names = some_of(nodes.into_iter().collect(), ", ");
        self.effects.push_back(Effect::NotifyUser(format!(
            "job {}: nothing has come from any other node ({names}) for {seconds:.0} s, so \
             {own}, where mpirun runs, seems to be cut off. The job waits until one can be reached \
             again; Ctrl-C ends it",
            self.name
        )));
    }

    fn reached_again(&mut self, now: u64, ms: u64) {
        self.silence.cut_since_ms = None;
        self.silence.grace_until_ms = now.saturating_add(self.config.failure_timeout_ms + ms);
        self.log(json!({"event": "network_restored", "ms": ms}));
        self.effects.push_back(Effect::NotifyUser(format!(
            "job {}: other nodes can be reached again, after {:.0} s",
            self.name,
            ms as f64 / 1000.0
        )));
    }

    /// Nodes with ranks and spare ones, without mpirun's.
    fn other_nodes(&self) -> BTreeSet<String> {
        let ranks = self.ranks.values().filter(|rank| !rank.lost).map(|rank| &rank.node);
        let all = ranks.chain(self.spares.nodes());
        all.filter(|node| !same_host(node, &self.spares.mpirun_node)).cloned().collect()
    }
}
