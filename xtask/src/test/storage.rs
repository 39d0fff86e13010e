//! Where the checkpoints of a test's job go, and what its coordinators have logged there.

use super::job::TestJob;
use super::local_storage;
use super::scratch::Scratch;
use super::workloads;
use crate::error::Result;

/// Where checkpoints go.
#[derive(Clone, Copy, PartialEq)]
pub enum Storage {
    /// To a folder that all nodes share.
    Shared,
    /// Each node has its own.
    Nodes,
}

impl Storage {
    /// The job, protected, with its checkpoints there.
    pub fn with(self, job: TestJob, scratch: &Scratch) -> Result<TestJob> {
        Ok(match self {
            Self::Shared => workloads::protected(job, &workloads::checkpoint_folder(scratch)?),
            Self::Nodes => local_storage::plain(job, scratch),
        })
    }

    /// What its coordinators have logged.
    pub fn events(self, scratch: &Scratch) -> Result<String> {
        match self {
            Self::Shared => workloads::events(&scratch.0.join("checkpoints")),
            Self::Nodes => local_storage::events(scratch),
        }
    }
}

/// Events that say who has failed, what was rolled back, and why.
const FAILURES: [&str; 16] = [
    "checkpoint_completed",
    "checkpoint_aborted",
    "logging_suspended",
    "failover_completed",
    "rank_failed",
    "guardian_lost",
    "agent_gone",
    "node_lost",
    "not_replayable",
    "replayable_again",
    "not_recovered",
    "set_rollback",
    "global_rollback",
    "set_restarted",
    "replay_diverged",
    "replays_over",
];

/// Those among them, a line each.
pub fn failures(events: &str) -> String {
    let named =
        |line: &&str| FAILURES.iter().any(|name| line.contains(&format!("\"event\":\"{name}\"")));
    events.lines().filter(named).collect::<Vec<_>>().join("\n")
}

/// How often this event is among them.
pub fn count(events: &str, what: &str) -> usize {
    events.matches(&format!("\"event\":\"{what}\"")).count()
}
