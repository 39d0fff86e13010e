//! The transports as the engine sees them.

use crate::engine::host::EngineHost;
use crate::engine::transport_set::{Route, TransportSet};
use crate::ffi::operation::Op;
use crate::transports::{Payload as Outgoing, Sent};
use rustbtl_fragments::host::{Payload, Transmit};
use rustbtl_fragments::ids::PeerId;

/// Hand a frame to the transport that leads to the peer.
#[inline]
pub(crate) fn transmit(
    transports: &mut TransportSet,
    route: Route,
    to: PeerId,
    header: &[u8],
    payload: Outgoing<'_>,
    taken: usize,
) -> Transmit {
    match transports.send(route, to, header, payload, taken) {
        Sent::Accepted => Transmit::Accepted,
        Sent::Full(taken) => Transmit::Full(taken),
        Sent::Down => Transmit::Down,
    }
}

impl EngineHost {
    /// A frame from anywhere to anybody.
    #[inline(never)]
    pub(crate) fn transmit_any(
        &mut self,
        to: PeerId,
        header: &[u8],
        payload: Payload<'_, Op>,
        taken: usize,
    ) -> Transmit {
        let route = self.route(to);
        let glue = self.glue;
        let by = &mut self.transports;
        match payload {
            Payload::Empty => transmit(by, route, to, header, Outgoing::Bytes(&[]), taken),
            Payload::Bytes(bytes) => transmit(by, route, to, header, Outgoing::Bytes(bytes), taken),
            Payload::Program(op, range) => match op.convertor() {
                None => {
                    // SAFETY: inside the program's buffer, which stays unchanged until the send
                    // is complete.
                    let bytes = unsafe { op.slice(range.start, range.end - range.start) };
                    transmit(by, route, to, header, Outgoing::Bytes(bytes), taken)
                }
                Some(convertor) => {
                    let mut pack = |into: *mut u8, bytes: usize| {
                        // SAFETY: the transport gives room for exactly these bytes.
                        unsafe { (glue.pack)(convertor, range.start, into, bytes as u64) }
                    };
                    let bytes = (range.end - range.start) as usize;
                    transmit(by, route, to, header, Outgoing::Pack(bytes, &mut pack), taken)
                }
            },
            Payload::Log(record, range) => self.transmit_logged(to, header, (record, range), taken),
        }
    }
}
