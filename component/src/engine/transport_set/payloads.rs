//! Payloads that receivers fetch from where they lie.

use super::{Network, NetworkKind, Route, TransportSet};
use crate::transports::{Network as OverNetwork, Pulled, Transport as _};
use core::ops::Range;
use rustbtl_fragments::ids::PeerId;

impl TransportSet {
    /// Offer memory for [`Self::pull`]; `home` as in the trait. False: not possible, the engine
    /// pushes.
    ///
    /// # Safety
    /// The memory stays readable and unchanged until `withdraw`.
    #[inline]
    pub unsafe fn expose(
        &mut self,
        route: Route,
        to: PeerId,
        id: u64,
        bytes: &[u8],
        home: Option<Range<usize>>,
    ) -> bool {
        let range = bytes.as_ptr_range();
        let bytes = range.start as usize..range.end as usize;
        match route {
            Route::Node => match &mut self.node {
                // SAFETY: the caller's promise.
                Some(node) => unsafe { node.expose(to, id, bytes, home) },
                None => false,
            },
            Route::Network(kind) => match &mut self.networks[kind as usize] {
                // SAFETY: the caller's promise.
                Some(network) => unsafe { on!(network, n => n.expose(to, id, bytes, home)) },
                None => false,
            },
            Route::Unknown | Route::Myself => false,
        }
    }

    /// The memory under this id is no longer on offer.
    #[inline]
    pub fn withdraw(&mut self, to: PeerId, id: u64) {
        if let Some(node) = &mut self.node {
            node.withdraw(to, id);
        }
        for network in self.networks.iter_mut().flatten() {
            on!(network, network => network.withdraw(to, id));
        }
    }

    /// Memory in which payloads were exposed is given back to the system.
    pub fn forget_memory(&mut self, memory: &Range<usize>) {
        for network in self.networks.iter_mut().flatten() {
            on!(network, network => OverNetwork::forget_memory(network, memory));
        }
    }

    /// The process is about to be copied for a snapshot.
    pub fn before_freeze(&mut self) {
        for network in self.networks.iter_mut().flatten() {
            on!(network, network => OverNetwork::before_freeze(network));
        }
    }

    /// A pull that was started is over.
    #[inline]
    pub fn pulled(&mut self, kind: NetworkKind) -> Option<(PeerId, u64)> {
        on!(self.network(kind)?, network => network.pulled())
    }

    /// Fetch all of what `from` exposed under `id`.
    ///
    /// # Safety
    /// `into` is writable for `len` bytes until the pull is over, or the channel is down.
    #[inline]
    pub unsafe fn pull(
        &mut self,
        route: Route,
        from: PeerId,
        id: u64,
        into: *mut u8,
        len: usize,
    ) -> Pulled {
        match route {
            Route::Node => match &mut self.node {
                // SAFETY: the caller's promise.
                Some(node) => unsafe { node.pull(from, id, 0, into, len) },
                None => Pulled::Refused,
            },
            Route::Network(kind) => match &mut self.networks[kind as usize] {
                // SAFETY: the caller's promise.
                Some(network) => unsafe { on!(network, n => n.pull(from, id, 0, into, len)) },
                None => Pulled::Refused,
            },
            Route::Unknown | Route::Myself => Pulled::Refused,
        }
    }
}
