//! Queue pairs beside TCP as one of the networks of a process.

use super::adapter::Adapter;
use super::api::{LinkLayer, Verbs};
use super::control::{decode_address, encode_address};
use super::select::second_choice;
use super::select::{Usage, VerbsConfig, choose};
use super::sys::{self, Libibverbs};
use super::{VerbsTransport, control::PortAddress};
use crate::transports::tcp::{Tcp, TcpConfig};
use crate::transports::{Carrier, Event, Network, Opened, PeerHeader};
use core::ops::Range;
use core::ptr::NonNull;
use rustbtl_fragments::ids::PeerId;
use std::os::fd::RawFd;

impl<V: Verbs, C: Carrier> VerbsTransport<V, C> {
    /// What peers need to reach this process.
    pub fn address(&self) -> Vec<u8> {
        encode_address(&self.adapter.choice.address, &self.carrier.address())
    }

    fn reachable<'a>(&self, address: &'a [u8]) -> Result<(PortAddress, &'a [u8]), String> {
        let (port, beside) = decode_address(address).ok_or("it has no adapter")?;
        match self.adapter.choice.address.reaches(&port) {
            true => Ok((port, beside)),
            false => Err("its adapter is on another fabric".to_owned()),
        }
    }

    /// See [`Network::add_peer`].
    ///
    /// # Errors
    /// The peer cannot be reached by verbs.
    pub fn add_peer(&mut self, peer: PeerId, address: &[u8]) -> Result<(), String> {
        let (port, beside) = self.reachable(address)?;
        self.carrier.add_peer(peer, beside)?;
        self.set_port(peer, Some(port));
        Ok(())
    }

    fn adapters(&mut self) -> impl Iterator<Item = &mut Adapter<V>> {
        let second = self.second.as_mut().map(|rail| &mut rail.adapter);
        core::iter::once(&mut self.adapter).chain(second)
    }

    /// See [`Network::forget_memory`].
    pub fn forget_memory(&mut self, memory: &Range<usize>) {
        for adapter in self.adapters() {
            adapter.registrations.forget(&adapter.verbs, memory);
        }
    }

    /// Registered memory would be copied in the pause.
    pub fn before_freeze(&mut self) {
        for adapter in self.adapters() {
            adapter.registrations.release_idle(&adapter.verbs);
        }
    }

    /// See [`Network::renew_peer`].
    pub fn renew_peer(&mut self, peer: PeerId, address: &[u8]) {
        let Some(at) = self.channel(peer) else { return };
        let port = match self.reachable(address) {
            Ok((port, beside)) => {
                self.carrier.renew_peer(peer, beside);
                Some(port)
            }
            // From now on it is reached by another network.
            Err(_) => {
                self.carrier.disconnect(peer, "it was restarted elsewhere".to_owned());
                None
            }
        };
        self.carrier_events();
        self.channels[at].stays = false;
        if !self.carrier.is_up(peer) {
            // The connection was to its earlier incarnation, and nobody is notified.
            self.retire(at);
            self.channels[at].forget_connection();
            self.channels[at].is_up = false;
            self.channels[at].down = None;
            self.events.retain(|event| match event {
                Event::Up(other, _) | Event::Down { peer: other, .. } => *other != peer,
                Event::Notice(_) => true,
            });
        }
        self.set_port(peer, port);
        self.way_changed();
    }
}

/// No queue pairs. A job that was to have them does not begin; but one that has begun goes on over
/// TCP where its ranks are restored on a node without an adapter.
fn without<N>(usage: Usage, incarnation: u16, why: String) -> Result<Opened<N>, String> {
    match usage {
        Usage::Always if incarnation == 0 => Err(why),
        Usage::Always => Ok(Opened::Gone(why)),
        Usage::Auto | Usage::Never => Ok(Opened::Absent(why)),
    }
}

impl Network for VerbsTransport<Libibverbs, Tcp> {
    const NAME: &'static str = "verbs";
    const PULLS: bool = true;
    type Config = VerbsConfig;

    fn open(config: &VerbsConfig, incarnation: u16) -> Result<Opened<Self>, String> {
        let needed = |why| without(config.usage, incarnation, why);
        if config.usage == Usage::Never {
            return needed("vprotocol_correlated_verbs is 0".to_owned());
        }
        if config.tcp.encrypt {
            return needed("messages are to be encrypted, which adapters do not do".to_owned());
        }
        if !sys::has_adapters() {
            return needed("this node has no adapter (/sys/class/infiniband)".to_owned());
        }
        let verbs = match Libibverbs::load() {
            Ok(verbs) => verbs,
            Err(error) => return needed(error.to_string()),
        };
        let choice = match choose(&verbs, config)? {
            Ok(choice) => choice,
            Err(why) => return needed(why),
        };
        let tcp = TcpConfig { incarnation, ..config.tcp.clone() };
        let tcp = Tcp::new(tcp).map_err(|error| error.to_string())?;
        let second = second_choice(&verbs, config, &choice);
        let mut transport = match Self::new(verbs, choice, config.sizes, tcp) {
            Ok(transport) => transport,
            Err(error) => return needed(error.to_string()),
        };
        if let Some(second) = second {
            // Without it everything works as well.
            let _ = transport.add_rail(verbs, second);
        }
        Ok(Opened::Here(transport))
    }

    fn description(&self) -> String {
        let choice = &self.adapter.choice;
        let link = match choice.address.link_layer {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "RoCE",
        };
        let packet = 128 << choice.address.mtu;
        let second = self.second.as_ref().map(|rail| &rail.adapter.choice);
        let second = second.map_or_else(String::new, |second| {
            format!("; long messages also by {} port {}", second.device, second.port)
        });
        format!(
            "verbs: {} port {}, {link}, GID index {}, packets of {packet} bytes{second}",
            choice.device, choice.port, choice.gid_index
        )
    }

    fn address(&self) -> Vec<u8> {
        Self::address(self)
    }

    fn add_peer(&mut self, peer: PeerId, address: &[u8]) -> Result<(), String> {
        Self::add_peer(self, peer, address)
    }

    fn renew_peer(&mut self, peer: PeerId, address: &[u8]) {
        Self::renew_peer(self, peer, address);
    }

    fn reconnect(&mut self, peer: PeerId) {
        self.carrier.reconnect(peer);
    }

    #[inline]
    fn holds(&self) -> bool {
        self.has_outbox || self.has_debts || self.carrier.holds()
    }

    #[inline]
    fn take_received(&mut self) -> bool {
        self.carrier.take_received()
    }

    /// Queue pairs raise no descriptor.
    fn wait_descriptor(&self) -> Option<RawFd> {
        if self.numbers.is_empty() { self.carrier.wait_descriptor() } else { None }
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let mut all = self.carrier.descriptors();
        all.extend(self.adapter.descriptors());
        all.extend(self.second.iter().flat_map(|rail| rail.adapter.descriptors()));
        all
    }

    fn memory(&self) -> Vec<Range<usize>> {
        let mut all = self.adapter.verbs.mapped();
        all.push(self.adapter.buffers.range());
        all.extend(self.second.iter().map(|rail| rail.adapter.buffers.range()));
        all
    }

    fn forget_memory(&mut self, memory: &Range<usize>) {
        Self::forget_memory(self, memory);
    }

    fn before_freeze(&mut self) {
        Self::before_freeze(self);
    }

    #[inline]
    fn unplaced(&mut self) -> Option<PeerHeader> {
        self.carrier.unplaced()
    }

    #[inline]
    unsafe fn place(&mut self, into: Option<NonNull<u8>>) {
        // SAFETY: the caller's promise.
        unsafe { self.carrier.place(into) }
    }

    #[inline]
    fn placed(&mut self) -> Option<PeerHeader> {
        self.carrier.placed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_at_the_start_a_job_ends_for_want_of_an_adapter() {
        let outcome = |usage, incarnation| match without::<()>(usage, incarnation, "?".to_owned()) {
            Err(_) => "ends",
            Ok(Opened::Gone(_)) => "is told",
            Ok(Opened::Absent(_)) => "goes on",
            Ok(Opened::Here(())) => unreachable!(),
        };
        assert_eq!([0, 1, 7].map(|n| outcome(Usage::Always, n)), ["ends", "is told", "is told"]);
        for usage in [Usage::Auto, Usage::Never] {
            assert_eq!([0, 1].map(|n| outcome(usage, n)), ["goes on"; 2]);
        }
    }
}
