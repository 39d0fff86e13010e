//! Which images and replicas of them exist, and where.

use crate::coordinator::job::tables::persisted::PersistedImage;
use rustbtl_coordination::control::CheckpointId;
use rustbtl_fragments::ids::PeerId;
use std::collections::{BTreeMap, BTreeSet};

/// Which nodes have the image of a rank in a checkpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct ImageReplicas {
    /// They have it.
    pub(crate) nodes: BTreeSet<String>,
    /// Replicas that are being sent there.
    pub(crate) requested: BTreeSet<String>,
    /// They have refused it, and why.
    pub(crate) refused: BTreeMap<String, String>,
    /// They had it.
    pub(crate) lost: BTreeSet<String>,
    /// It counts as stored in its checkpoint.
    pub(crate) counted: bool,
    /// Of a rank whose node is lost: the node that sends the image to where it is restarted.
    pub(crate) sender: Option<String>,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replicas {
    /// Replica servers: nodes that store replicas, and their addresses.
    pub(crate) replica_servers: BTreeMap<String, String>,
    pub(crate) held: BTreeMap<(CheckpointId, PeerId), ImageReplicas>,
    /// All replicas exist: a further loss is survived (4).
    pub(crate) replicated: bool,
}

impl ImageReplicas {
    /// Replicas on other nodes, without those where other images of this node were refused.
    pub(crate) fn replicas(&self, home: &str) -> usize {
        let counts = |node: &&String| *node != home && !self.refused.contains_key(*node);
        self.nodes.iter().filter(counts).count()
    }
}

impl Replicas {
    /// For a failover.
    pub(crate) fn state(&self) -> Vec<PersistedImage> {
        let one = |((checkpoint, rank), held): (&(CheckpointId, PeerId), &ImageReplicas)| {
            PersistedImage {
                checkpoint: checkpoint.0,
                rank: rank.0,
                nodes: held.nodes.clone(),
                lost: held.lost.clone(),
            }
        };
        self.held.iter().filter(|(_, held)| held.counted).map(one).collect()
    }

    /// From a failover.
    pub(crate) fn resume(&mut self, images: Vec<PersistedImage>) {
        for PersistedImage { checkpoint, rank, nodes, lost } in images {
            let held = ImageReplicas { nodes, lost, counted: true, ..ImageReplicas::default() };
            self.held.insert((CheckpointId(checkpoint), PeerId(rank)), held);
        }
    }
}
