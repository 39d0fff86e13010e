//! What the engine counts, per process and per peer. Bytes are MPI payload bytes.

/// Traffic with one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Messages sent to it.
    pub sent_messages: u64,
    /// Payload bytes sent to it.
    pub sent_bytes: u64,
    /// Messages accepted from it.
    pub received_messages: u64,
    /// Payload bytes of the messages accepted from it.
    pub received_bytes: u64,
}

impl Traffic {
    /// A message was accepted from it.
    #[inline(always)]
    pub(crate) fn received(&mut self, bytes: u64) {
        self.received_messages += 1;
        self.received_bytes += bytes;
    }
}

/// Totals of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Messages to processes of the own set (messages to oneself included).
    pub sent_internal_messages: u64,
    /// Their payload bytes.
    pub sent_internal_bytes: u64,
    /// Messages that left the set.
    pub sent_outgoing_messages: u64,
    /// Their payload bytes: what the payload log was given.
    pub sent_outgoing_bytes: u64,
    /// Messages accepted from processes of the own set.
    pub received_internal_messages: u64,
    /// Their payload bytes.
    pub received_internal_bytes: u64,
    /// Messages accepted from other sets.
    pub received_ingoing_messages: u64,
    /// Their payload bytes.
    pub received_ingoing_bytes: u64,
    /// Messages that were sent whole in one fragment.
    pub eager_messages: u64,
    /// Messages that were sent by rendezvous.
    pub rendezvous_messages: u64,
    /// Long messages that were fetched from where they lay at their sender.
    pub fetched_messages: u64,
    /// Messages that arrived before a receive for them was posted.
    pub unexpected_messages: u64,
    /// Frames that were dropped because they came from or went to an older incarnation.
    pub stale_frames: u64,
    /// Sends that a restarted process repeated and its peer had received already.
    pub suppressed_messages: u64,
    /// Messages that were resent from the log.
    pub resent_messages: u64,
    /// Frames of determinants that were piggybacked on messages.
    pub piggyback_frames: u64,
    /// Acknowledgements that were sent: see [`crate::engine::Engine::acknowledge`].
    pub acknowledgements: u64,
}

impl Counters {
    /// Messages that were sent, sent again and accepted: does anything move?
    pub fn messages(&self) -> u64 {
        self.sent_internal_messages
            + self.sent_outgoing_messages
            + self.received_internal_messages
            + self.received_ingoing_messages
            + self.suppressed_messages
            + self.resent_messages
    }

    /// A message was accepted; `ingoing`: from another set.
    #[inline(always)]
    pub(crate) fn received(&mut self, ingoing: bool, bytes: u64) {
        if ingoing {
            self.received_ingoing_messages += 1;
            self.received_ingoing_bytes += bytes;
        } else {
            self.received_internal_messages += 1;
            self.received_internal_bytes += bytes;
        }
    }
}
