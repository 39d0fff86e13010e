//! What the coordinator persists for one that comes after it.

use crate::store::{Image, Kind};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What only the coordinator knows of a job.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PersistedState {
    pub(crate) format: u32,
    /// How many coordinators the job had before this one.
    pub life: u32,
    /// Ranks.
    pub size: u32,
    pub(crate) may_finish: bool,
    /// Everybody was told to go on alone.
    pub(crate) let_go: bool,
    /// Since all ranks were ready.
    pub(crate) lines: Option<PersistedScheduler>,
    pub(crate) complete: Vec<PersistedCheckpoint>,
    pub(crate) ranks: BTreeMap<u32, PersistedRank>,
    pub(crate) going: Vec<PersistedRollback>,
    pub(crate) falls: Vec<(u32, u64, u32)>,
    /// The youngest incarnation of a set that was ordered, whether it ever ran.
    pub(crate) given: BTreeMap<u32, u16>,
    pub(crate) held: Vec<PersistedImage>,
    /// Line, rank, number of its next determinant there.
    pub clocks: Vec<(u64, u32, u64)>,
}

#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct PersistedScheduler {
    pub(crate) next: u64,
    pub(crate) globals: Vec<u64>,
    pub(crate) kept: BTreeMap<u32, Vec<u64>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PersistedCheckpoint {
    pub(crate) line: u64,
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

/// A set that goes back.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct PersistedRollback {
    pub(crate) set: u32,
    pub(crate) line: u64,
    pub(crate) incarnation: u16,
    /// It has met the others.
    pub(crate) behind: bool,
    /// All went back together.
    pub(crate) with_all: bool,
}

/// Who has an image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PersistedImage {
    pub(crate) line: u64,
    pub(crate) rank: u32,
    pub(crate) nodes: BTreeSet<String>,
    pub(crate) lost: BTreeSet<String>,
}
