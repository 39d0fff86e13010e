//! Acknowledgements (docs/adr/0025, 0026): how often this process sends them, while it does, and
//! which peers are known to.

use crate::engine::host::EngineHost;
use rustbtl_fragments::engine::AcknowledgeAfter;
use rustbtl_fragments::ids::PeerId;

/// What a peer's log may hold of messages that are received here.
pub(crate) const ACKNOWLEDGE_AFTER: AcknowledgeAfter =
    AcknowledgeAfter { bytes: 1 << 20, messages: 1024 };
/// A message of this length is acknowledged by itself: all that comes before counts, too.
const ACKNOWLEDGED_AT_ONCE_BYTES: u64 = ACKNOWLEDGE_AFTER.bytes;

impl EngineHost {
    /// The peer, if it is expected to acknowledge a message of this length when it has arrived.
    pub(crate) fn acknowledging(&self, to: PeerId, bytes: u64) -> Option<PeerId> {
        let acknowledges = bytes >= ACKNOWLEDGED_AT_ONCE_BYTES
            && self.acknowledges.get(to.0 as usize).copied().unwrap_or(false);
        acknowledges.then_some(to)
    }

    /// Whether a peer acknowledges what it receives, as far as it shows.
    pub(crate) fn set_acknowledges(&mut self, peer: PeerId, acknowledges: bool) {
        let at = peer.0 as usize;
        if at >= self.acknowledges.len() {
            self.acknowledges.resize(at + 1, false);
        }
        self.acknowledges[at] = acknowledges;
    }
}
