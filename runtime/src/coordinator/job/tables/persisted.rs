//! What the coordinator persists for a failover. JSON keys keep their names.

use crate::store::{Image, Kind};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What only the coordinator knows of a job.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PersistedState {
    pub(crate) format: u32,
    /// How many coordinators the job had before this one.
    #[serde(rename = "life")]
    pub failovers: u32,
    /// Ranks.
    pub size: u32,
    pub(crate) may_finish: bool,
    /// All agents were ordered to continue without a coordinator.
    #[serde(rename = "let_go")]
    pub(crate) protection_disabled: bool,
    /// Since all ranks were ready.
    #[serde(rename = "lines")]
    pub(crate) scheduler: Option<PersistedScheduler>,
    pub(crate) complete: Vec<PersistedCheckpoint>,
    pub(crate) ranks: BTreeMap<u32, PersistedRank>,
    #[serde(rename = "going")]
    pub(crate) rollbacks: Vec<PersistedRollback>,
    #[serde(rename = "falls")]
    pub(crate) failures: Vec<(u32, u64, u32)>,
    /// The youngest incarnation of a set that was ordered, whether it ever ran.
    #[serde(rename = "given")]
    pub(crate) newest_incarnations: BTreeMap<u32, u16>,
    /// Sets that are not replayed any more, and why.
    pub(crate) diverged: BTreeMap<u32, String>,
    pub(crate) held: Vec<PersistedImage>,
    /// Checkpoint, rank, number of its next determinant there.
    pub clocks: Vec<(u64, u32, u64)>,
}

#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct PersistedScheduler {
    pub(crate) next: u64,
    pub(crate) globals: Vec<u64>,
    pub(crate) kept: BTreeMap<u32, Vec<u64>>,
    /// From which checkpoint on a set can be rolled back alone, since logging was suspended.
    pub(crate) alone_from: BTreeMap<u32, u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PersistedCheckpoint {
    #[serde(rename = "line")]
    pub(crate) checkpoint: u64,
    pub(crate) kind: Kind,
    pub(crate) ranks: Vec<u32>,
    pub(crate) images: Vec<Image>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PersistedRank {
    pub(crate) node: String,
    pub(crate) set: Option<u32>,
    pub(crate) incarnation: u16,
    pub(crate) lost: bool,
    pub(crate) adopted_in: u16,
    pub(crate) host: Option<u32>,
    pub(crate) ended: Option<i32>,
    pub(crate) printed: [u64; 2],
    pub(crate) exact: bool,
    pub(crate) own_way: Option<[u64; 2]>,
}

/// A set in rollback.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct PersistedRollback {
    pub(crate) set: u32,
    #[serde(rename = "line")]
    pub(crate) checkpoint: u64,
    pub(crate) incarnation: u16,
    /// It is connected to the others again.
    #[serde(rename = "behind")]
    pub(crate) replaying: bool,
    /// Part of a global rollback.
    #[serde(rename = "with_all")]
    pub(crate) global: bool,
}

/// Who has an image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PersistedImage {
    #[serde(rename = "line")]
    pub(crate) checkpoint: u64,
    pub(crate) rank: u32,
    pub(crate) nodes: BTreeSet<String>,
    pub(crate) lost: BTreeSet<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_the_file_keep_their_names() {
        let rollback = PersistedRollback { set: 1, checkpoint: 4, ..PersistedRollback::default() };
        let image = |rank| PersistedImage {
            checkpoint: 4,
            rank,
            nodes: BTreeSet::from(["n0".to_owned()]),
            lost: BTreeSet::new(),
        };
        let complete = PersistedCheckpoint {
            checkpoint: 4,
            kind: Kind::Global,
            ranks: vec![0],
            images: Vec::new(),
        };
        let state = PersistedState {
            scheduler: Some(PersistedScheduler::default()),
            complete: vec![complete],
            rollbacks: vec![rollback],
            held: vec![image(0)],
            ..PersistedState::default()
        };
        let text = serde_json::to_string(&state).unwrap();
        let wanted = concat!(
            r#"{"format":0,"life":0,"size":0,"may_finish":false,"let_go":false,"#,
            r#""lines":{"next":0,"globals":[],"kept":{},"alone_from":{}},"#,
            r#""complete":[{"line":4,"kind":"global","ranks":[0],"images":[]}],"ranks":{},"#,
            r#""going":[{"set":1,"line":4,"incarnation":0,"behind":false,"with_all":false}],"#,
            r#""falls":[],"given":{},"diverged":{},"#,
            r#""held":[{"line":4,"rank":0,"nodes":["n0"],"lost":[]}],"clocks":[]}"#,
        );
        assert_eq!(text, wanted);
        assert_eq!(serde_json::from_str::<PersistedState>(&text).unwrap(), state);
    }
}
