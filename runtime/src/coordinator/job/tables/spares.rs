//! Spare nodes, and where ranks of lost nodes are placed.

use crate::coordinator::job::tables::hosts::same_host;
use std::collections::BTreeMap;

/// Spare nodes, and what a node can take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spares {
    /// Nodes that take ranks without any guardian of orted's, and their addresses.
    pub(crate) nodes: BTreeMap<String, String>,
    /// Most ranks that a node had when the job was ready.
    pub(crate) room: usize,
    /// mpirun's node.
    pub(crate) mpirun_node: String,
}

impl Spares {
    /// Nodes without ranks of their own.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &String> {
        self.nodes.keys()
    }

    /// The node is lost.
    pub(crate) fn lose(&mut self, node: &str) {
        self.nodes.retain(|spare, _| !same_host(spare, node));
    }
}
