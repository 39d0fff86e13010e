//! A checkpoint that is being taken: who has done what.

use crate::store::{Image, Kind};
use rustbtl_fragments::ids::PeerId;
use std::collections::{BTreeMap, BTreeSet};

/// A checkpoint that is being taken, or that is complete.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointState {
    pub(crate) kind: Kind,
    pub(crate) ranks: BTreeSet<PeerId>,
    pub(crate) exit: bool,
    pub(crate) started_ms: u64,
    pub(crate) images: BTreeMap<PeerId, Image>,
    pub(crate) coordination_ns: u64,
    pub(crate) pause_ns: u64,
    pub(crate) store_ns: u64,
    /// What the rank that lost most while its image was stored has lost.
    pub(crate) lost_ns: u64,
    pub(crate) complete: bool,
    pub(crate) problem: String,
    /// Since it has begun, when it was last reported to take long; 0: never.
    pub(crate) reported_slow_ms: u64,
}

impl CheckpointState {
    /// Of the coordinator before this one.
    pub(crate) fn complete(
        kind: Kind,
        ranks: BTreeSet<PeerId>,
        images: BTreeMap<PeerId, Image>,
    ) -> Self {
        Self { kind, ranks, images, complete: true, ..Self::new(kind, BTreeSet::new(), false, 0) }
    }

    pub(crate) fn new(kind: Kind, ranks: BTreeSet<PeerId>, exit: bool, started_ms: u64) -> Self {
        Self {
            kind,
            ranks,
            exit,
            started_ms,
            images: BTreeMap::new(),
            coordination_ns: 0,
            pause_ns: 0,
            store_ns: 0,
            lost_ns: 0,
            complete: false,
            problem: String::new(),
            reported_slow_ms: 0,
        }
    }
}
