//! Memory and descriptors of the transports: what an image leaves out, and what the ranks of a
//! correlated set share within the node.

use super::*;
use crate::transports::shm::Inaccessible;
use rustbtl_rma::direct::{SetGroup, TargetArea};

/// What an image leaves out.
impl TransportSet {
    /// Every open descriptor.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let mut all = Vec::new();
        for network in self.networks.iter().flatten() {
            all.extend(on!(network, network => network.descriptors()));
        }
        all.extend(self.node.as_ref().map(NodeTransport::descriptor));
        all
    }

    /// All memory that belongs to a transport.
    pub fn memory(&self) -> Vec<Range<usize>> {
        let mut all = Vec::new();
        for network in self.networks.iter().flatten() {
            all.extend(on!(network, network => network.memory()));
        }
        all.extend(self.node.as_ref().map(NodeTransport::range));
        all
    }

    /// The memory that this node's ranks share; empty if they share none. Allocates nothing.
    pub fn node_memory(&self) -> Range<usize> {
        self.node.as_ref().map_or(0..0, NodeTransport::range)
    }
}

/// Correlated sets within the node.
impl TransportSet {
    /// Local index of a rank of this node, the own one included.
    pub fn node_index(&self, peer: PeerId) -> Option<usize> {
        self.node.as_ref()?.index_of(peer)
    }

    /// The process with this local index, if its memory may be read and written. `None`: it is not
    /// there yet.
    pub fn accessible(&self, index: usize) -> Option<Result<i32, Inaccessible>> {
        self.node.as_ref()?.accessible(index)
    }

    /// How many ranks share memory with this one, itself among them.
    pub fn node_ranks(&self) -> usize {
        self.node.as_ref().map_or(0, |node| node.segment().layout().ranks)
    }
}

impl SetMemory for TransportSet {
    #[inline]
    fn counts(&self, rank: usize) -> Option<&Counts> {
        self.node.as_ref().map(|node| node.counts(rank))
    }

    #[inline]
    fn slots(&self, rank: usize) -> Option<&Slots> {
        self.node.as_ref().map(|node| node.slots(rank))
    }

    #[inline(always)]
    fn window_group(&self, rank: usize) -> Option<&SetGroup> {
        self.node.as_ref().map(|node| node.window_group(rank))
    }

    #[inline(always)]
    fn window_area(&self, rank: usize) -> Option<TargetArea<'_>> {
        self.node.as_ref().map(|node| node.window_area(rank))
    }

    #[inline]
    fn set_counters(&self, rank: usize) -> Option<&SetCounters> {
        self.node.as_ref().map(|node| node.set_counters(rank))
    }
}
