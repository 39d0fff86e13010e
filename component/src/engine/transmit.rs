//! The transports as the engine sees them.

use crate::peers::table::Route;
use crate::transports::shm::Shm;
use crate::transports::tcp::Tcp;
use crate::transports::{Payload as Outgoing, Sent, Transport};
use rustbtl_fragments::host::Transmit;
use rustbtl_fragments::ids::PeerId;

#[inline]
fn outcome(sent: Sent) -> Transmit {
    match sent {
        Sent::Accepted => Transmit::Accepted,
        Sent::Full(taken) => Transmit::Full(taken),
        Sent::Down => Transmit::Down,
    }
}

/// Hand a frame to the transport that leads to the peer.
#[inline]
pub(crate) fn hand(
    (shm, tcp): (&mut Option<Shm>, &mut Option<Tcp>),
    route: Route,
    to: PeerId,
    header: &[u8],
    payload: Outgoing<'_>,
    taken: usize,
) -> Transmit {
    match route {
        Route::Shm => match shm {
            Some(shm) => outcome(shm.send(to, header, payload, taken)),
            None => Transmit::Down,
        },
        Route::Tcp => match tcp {
            Some(tcp) => outcome(tcp.send(to, header, payload, taken)),
            None => Transmit::Down,
        },
        Route::Unknown | Route::Myself => Transmit::Down,
    }
}
