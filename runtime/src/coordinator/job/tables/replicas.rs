//! Which images and replicas of them exist, and where.

use crate::coordinator::job::tables::persisted::PersistedImage;
use rustbtl_coordination::control::CheckpointId;
use rustbtl_fragments::ids::PeerId;
use std::collections::{BTreeMap, BTreeSet};

/// Who has the image of a rank in a line.
#[derive(Clone, Debug, Default)]
pub(crate) struct ImageReplicas {
    /// They have it.
    pub(crate) nodes: BTreeSet<String>,
    /// It is on its way there.
    pub(crate) requested: BTreeSet<String>,
    /// They did not take it.
    pub(crate) refused: BTreeMap<String, String>,
    /// They had it.
    pub(crate) lost: BTreeSet<String>,
    /// The line knows that it is stored.
    pub(crate) counted: bool,
    /// Of a rank whose node is lost: who brings it to where it goes on.
    pub(crate) sender: Option<String>,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replicas {
    /// Nodes that take copies, and how they are reached.
    pub(crate) replica_servers: BTreeMap<String, String>,
    pub(crate) held: BTreeMap<(CheckpointId, PeerId), ImageReplicas>,
    /// A further loss is survived (4).
    pub(crate) replicated: bool,
}

impl ImageReplicas {
    /// On other nodes than this one, and not on one where others of this node could not go.
    pub(crate) fn replicas(&self, home: &str) -> usize {
        let counts = |node: &&String| *node != home && !self.refused.contains_key(*node);
        self.nodes.iter().filter(counts).count()
    }
}

impl Replicas {
    /// For another coordinator.
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

    /// The other way round.
    pub(crate) fn resume(&mut self, images: Vec<PersistedImage>) {
        for PersistedImage { checkpoint, rank, nodes, lost } in images {
            let held = ImageReplicas { nodes, lost, counted: true, ..ImageReplicas::default() };
            self.held.insert((CheckpointId(checkpoint), PeerId(rank)), held);
        }
    }
}
