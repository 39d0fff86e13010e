//! TCP as one of the networks of a process.

use crate::transports::tcp::{Tcp, TcpConfig, TcpPeer};
use crate::transports::{Carrier, Network, Opened, PeerHeader};
use core::ptr::NonNull;
use rustbtl_fragments::ids::PeerId;
use std::os::fd::RawFd;

impl Network for Tcp {
    const NAME: &'static str = "tcp";
    type Config = TcpConfig;

    fn open(config: &TcpConfig, incarnation: u16) -> Result<Opened<Self>, String> {
        let config = TcpConfig { incarnation, ..config.clone() };
        Self::new(config).map(Opened::Here).map_err(|error| error.to_string())
    }

    fn address(&self) -> Vec<u8> {
        Self::address(self).encode()
    }

    fn add_peer(&mut self, peer: PeerId, address: &[u8]) -> Result<(), String> {
        let address = TcpPeer::decode(address).map_err(|error| error.to_string())?;
        Self::add_peer(self, peer, address);
        Ok(())
    }

    fn renew_peer(&mut self, peer: PeerId, address: &[u8]) {
        if let Ok(address) = TcpPeer::decode(address) {
            Self::renew_peer(self, peer, address);
        }
    }

    fn reconnect(&mut self, peer: PeerId) {
        Self::reconnect(self, peer);
    }

    #[inline]
    fn is_unused(&self) -> bool {
        Self::is_unused(self)
    }

    #[inline]
    fn holds(&self) -> bool {
        Self::holds(self)
    }

    #[inline]
    fn take_received(&mut self) -> bool {
        Self::take_received(self)
    }

    fn wait_descriptor(&self) -> Option<RawFd> {
        Self::wait_descriptor(self)
    }

    fn descriptors(&self) -> Vec<RawFd> {
        Self::descriptors(self)
    }

    #[inline]
    fn unplaced(&mut self) -> Option<PeerHeader> {
        Self::unplaced(self)
    }

    #[inline]
    unsafe fn place(&mut self, into: Option<NonNull<u8>>) {
        // SAFETY: the caller's promise.
        unsafe { Self::place(self, into) }
    }

    #[inline]
    fn placed(&mut self) -> Option<PeerHeader> {
        Self::placed(self)
    }
}

impl Carrier for Tcp {
    fn disconnect(&mut self, peer: PeerId, reason: String) {
        Self::disconnect(self, peer, reason);
    }

    fn is_up(&self, peer: PeerId) -> bool {
        Self::is_up(self, peer)
    }
}
