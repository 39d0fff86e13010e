//! Shape of the documents, version 1. Bytes are bytes of MPI payload.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of both documents.
pub const VERSION: u32 = 1;

/// Named numbers. A component may count more than this program knows of; sums treat all alike.
pub type Counters = BTreeMap<String, u64>;

/// What one rank writes at MPI_Finalize: `rank-<N>.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportedRank {
    /// [`VERSION`].
    pub version: u32,
    /// Rank in the world.
    pub rank: u32,
    /// Ranks in the world.
    pub size: u32,
    /// Host name.
    pub node: String,
    /// Number of its correlated set.
    pub set: u32,
    /// How sets are made: `node`, `core`, `all`, …
    pub policy: String,
    /// For each peer (by rank): `shm`, `tcp`, `self`.
    #[serde(default)]
    pub transport: BTreeMap<String, String>,
    /// Messages, bytes, log sizes, nanoseconds.
    pub counters: Counters,
    /// Traffic with each peer that there was traffic with.
    #[serde(default)]
    pub peers: Vec<ReportedPeer>,
}

/// Traffic of a rank with one other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportedPeer {
    /// The other.
    pub rank: u32,
    /// The other's set.
    pub set: u32,
    /// Messages to it.
    pub sent_messages: u64,
    /// Payload bytes to it.
    pub sent_bytes: u64,
    /// Messages from it.
    pub received_messages: u64,
    /// Payload bytes from it.
    pub received_bytes: u64,
}

/// A correlated set: the sums of its ranks. A sum of peaks is an upper bound of the set's peak.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Set {
    /// Its number.
    pub set: u32,
    /// Its node, or its nodes joined by commas.
    pub node: String,
    /// Its ranks.
    pub ranks: Vec<u32>,
    /// Sums.
    pub counters: Counters,
}

/// The merged document of `cargo xtask cluster --report`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportedJob {
    /// [`VERSION`].
    pub version: u32,
    /// Emulated nodes.
    pub nodes: u32,
    /// Ranks per node.
    pub ppn: u32,
    /// How sets were made; `none` for a stock run.
    pub policy: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Exit code of the cluster.
    pub exit: i32,
    /// From the start of mpirun to its end.
    pub seconds: f64,
    /// What the ranks wrote, by rank.
    pub ranks: Vec<ReportedRank>,
    /// The sets, by number.
    pub sets: Vec<Set>,
    /// Sums over all ranks.
    pub total: Counters,
}
