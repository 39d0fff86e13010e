//! The end: everything that was sent arrives, then the connections say goodbye.

use super::VerbsTransport;
use super::api::Verbs;
use super::control::Control;
use crate::transports::{Carrier, Transport as _};

/// How long to wait for acknowledgements and for connections to take `Leave`.
const LINGER_MS: u64 = 1000;
/// A peer that never stops to send does not keep us.
const DROPPED_AT_ONCE: usize = 4096;

impl<V: Verbs, C: Carrier> VerbsTransport<V, C> {
    /// See `Transport::close`.
    pub(super) fn close_all(&mut self) -> bool {
        if self.is_closed {
            return true;
        }
        let now_ms = crate::os::now_ns() / 1_000_000;
        let since_ms = *self.closing_since_ms.get_or_insert(now_ms);
        self.drop_incoming();
        self.progress_sends();
        for at in 0..self.channels.len() {
            self.leave(at);
        }
        self.push_outboxes();
        let is_late = now_ms - since_ms > LINGER_MS;
        if !is_late && self.channels.iter().any(|channel| !channel.has_closed()) {
            return false;
        }
        self.is_closed = self.carrier.close();
        if self.is_closed {
            self.destroy_all();
        }
        self.is_closed
    }

    /// Nobody takes frames any more; control messages and ends of connections still count.
    fn drop_incoming(&mut self) {
        if let Some(source) = self.current
            && let Some(held) = match source {
                super::Source::Queue => self.front(),
                super::Source::Connection => self.carrier.peek(),
            }
        {
            self.consume(held);
        }
        for _ in 0..DROPPED_AT_ONCE {
            if self.ready.is_empty() && self.poll_receives() == 0 {
                break;
            }
            self.consume_front();
        }
        while let Some(incoming) = self.peek_connection() {
            self.carrier.consume(incoming);
        }
    }

    /// After the last message was acknowledged the peer is told how many there were (V6).
    fn leave(&mut self, at: usize) {
        if !self.channels[at].sends_by_queue || self.channels[at].has_left {
            return;
        }
        if !self.channels[at].is_marked {
            // Credits do not matter: the adapter waits for a buffer. All before it are complete
            // when this one is.
            let is_marked = self.post_empty(at, true);
            self.channels[at].is_marked = is_marked;
        }
        let channel = &mut self.channels[at];
        if let Some(queue) = channel.queue.as_ref().filter(|_| channel.is_marked)
            && queue.outstanding.len() == 0
        {
            let sent = queue.sent;
            channel.has_left = true;
            self.tell(at, Control::Leave { sent });
        }
    }
}
