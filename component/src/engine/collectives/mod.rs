//! What the process knows of the collectives that do not go over messages (docs/adr/0040).

pub mod room;

use crate::engine::collectives::room::Room;
use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Collectives {
    /// The own set, if all of it was on one node when the job was started; else nobody. It stays
    /// that whatever happens to it: which collectives are ours must not depend on where ranks are.
    pub home: Vec<PeerId>,
    /// Of other processes, as far as it was asked for: it never changes.
    pub sets: BTreeMap<PeerId, SetId>,
    /// Of all communicators that have ours.
    pub rooms: Vec<Arc<Room>>,
    /// Bytes of all rooms that are mapped.
    pub bytes: usize,
}

impl Collectives {
    /// All ranks of the set are suspended for a snapshot. What runs again does not know yet where
    /// it runs; one of the two below tells it.
    pub fn hold(&self) {
        self.rooms.iter().for_each(|room| room.hold());
    }

    /// The set's memory is as common as it was.
    pub fn go_on(&self) {
        self.rooms.iter().for_each(|room| room.carrier.go_on());
    }

    /// The set lies on several nodes.
    pub fn part(&self) {
        self.rooms.iter().for_each(|room| room.carrier.part());
    }
}
