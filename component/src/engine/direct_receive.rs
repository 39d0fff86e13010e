//! Receives that find their message before they are posted: nothing has to be put into a table and
//! taken out again.

use crate::determinants::set_order::SLOW_PATH;
use crate::engine::driver_state::{BURST, Driver, Unposted};
use crate::ffi::operation::Op;
use crate::transports::Incoming;
use core::sync::atomic::Ordering;
use rustbtl_fragments::engine::{Source, TagMatch};
use rustbtl_fragments::ids::CommId;

/// Receives that found their message at once between two polls of anything but shared memory.
const UNPOSTED_MAX: u32 = 64;

impl Driver {
    /// Is this frame the message of a receive that is not posted, without any ado?
    #[inline(always)]
    fn receive_fast_path(
        &mut self,
        incoming: Incoming,
        envelope: (CommId, Source, TagMatch),
        op: &mut Op,
    ) -> bool {
        // SAFETY: the transport keeps the frame where it is until it is consumed.
        let frame = unsafe { core::slice::from_raw_parts(incoming.start, incoming.len) };
        let begin = self.clock.begin();
        let found =
            self.engine.receive_fast_path(&mut self.host, incoming.from, frame, envelope, op);
        self.clock.end(begin);
        let Some(status) = found else { return false };
        self.host.transports.consume_node(incoming);
        op.fill(&status);
        self.found_at_once();
        true
    }

    /// A receive was not posted: who never waits must poll the rest now and then, too.
    #[inline(always)]
    fn found_at_once(&mut self) {
        self.unposted += 1;
        if self.unposted.is_multiple_of(UNPOSTED_MAX) {
            self.poll_slow(1);
        }
    }

    /// Look for the message of a blocking receive that is not posted, for a short time. If it is
    /// here or comes now, nothing has to be put into a table and taken out again.
    #[inline(always)]
    pub fn receive_unposted(
        &mut self,
        envelope: (CommId, Source, TagMatch),
        op: &mut Op,
    ) -> Unposted {
        // Looked at each time: the process may have been restored since its call began.
        if SLOW_PATH.load(Ordering::Relaxed) != 0 || !self.engine.is_matching_idle() {
            return Unposted::Post;
        }
        for _ in 0..BURST {
            if !self.host.transports.has_node() {
                return Unposted::Post;
            }
            let Some(incoming) = self.host.transports.peek_node() else { continue };
            if self.receive_fast_path(incoming, envelope, op) {
                return Unposted::Done;
            }
            let outcome = self.accept_for(incoming, envelope, op);
            if outcome != Unposted::Nothing || !self.host.done.is_empty() {
                return outcome;
            }
        }
        Unposted::Nothing
    }

    /// A frame that is not exactly what a receive that is not posted waits for.
    #[inline(never)]
    fn accept_for(
        &mut self,
        incoming: Incoming,
        (comm, source, tag): (CommId, Source, TagMatch),
        op: &mut Op,
    ) -> Unposted {
        let Some(wanted) = self.engine.wants(comm, source, tag) else { return Unposted::Post };
        // SAFETY: the transport keeps the frame where it is until it is consumed.
        let frame = unsafe { core::slice::from_raw_parts(incoming.start, incoming.len) };
        let from = incoming.from;
        let result = self.timed(|engine, host| engine.on_frame_for(host, from, frame, wanted, op));
        self.host.transports.consume_node(incoming);
        match result {
            Ok(None) => {}
            Ok(Some(status)) => {
                op.fill(&status);
                self.found_at_once();
                return Unposted::Done;
            }
            Err(error) => self.refuse(from, error),
        }
        Unposted::Nothing
    }
}
