//! The transports as the engine sees them.

use crate::engine::transport_set::{Route, TransportSet};
use crate::transports::{Payload as Outgoing, Sent};
use rustbtl_fragments::host::Transmit;
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
