//! The transports of a process: the one place that knows which there are. Everybody else asks for a
//! [`Route`] to a peer and sends, polls and closes through the [`TransportSet`].
//!
//! There are two kinds. The *node transport* is memory that all ranks of a node share: it is polled
//! in every turn, takes short frames on a path of its own, and holds what a correlated set shares
//! ([`SetMemory`]). *Networks* reach other nodes; a poll of theirs costs, so the driver spaces
//! them out. Dispatch is static: an enum for the networks, a field for the node transport; with one
//! network no branch is left of it.
//!
//! To add a network:
//! 1. a folder in `transports/` with a type that implements `Transport` and
//!    [`Network`](crate::transports::Network);
//! 2. a line in `networks!` below, at its place in the order of preference: the first network that
//!    both ends have is the route;
//! 3. if it has parameters: a field in `peers/transport_setup.rs`, filled from MCA parameters,
//!    with an `AsRef` to the type that it names as its `Config`;
//! 4. the conformance suite (`tests/conformance`) runs for it, and the help file has a message
//!    under its name.

use crate::ffi::table::Glue;
use crate::ffi::verbose;
use crate::peers::endpoint::Endpoint;
use crate::peers::transport_setup::{NodeSegment, NodeTransport, TransportSetup};
use crate::transports::set_memory::{Counts, SetCounters, SetMemory, Slots};
use crate::transports::tcp::Tcp;
use crate::transports::verbs::sys::Libibverbs;
use crate::transports::{
    Event, Incoming, Limits, Network as OverNetwork, Opened, Payload, PeerHeader, Sent,
    Transport as _,
};
use core::ops::Range;
use core::ptr::NonNull;
use rustbtl_fragments::ids::{Incarnation, PeerId};
use std::collections::BTreeMap;
use std::os::fd::RawFd;

macro_rules! networks {
    ($d:tt $($kind:ident: $transport:ty),+ $(,)?) => {
        /// A network, by its place in the order of preference.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "named by their transports")]
        pub enum NetworkKind {
            $($kind),+
        }

        impl NetworkKind {
            /// All that there are, the preferred one first.
            pub const ALL: [Self; [$(Self::$kind),+].len()] = [$(Self::$kind),+];

            /// In endpoints, reports and help messages.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => <$transport>::NAME),+
                }
            }

            const fn pulls(self) -> bool {
                match self {
                    $(Self::$kind => <$transport>::PULLS),+
                }
            }

            fn open(
                self,
                setup: &TransportSetup,
                incarnation: u16,
            ) -> Result<Opened<Network>, String> {
                Ok(match self {
                    $(Self::$kind => match <$transport>::open(setup.as_ref(), incarnation)? {
                        Opened::Here(network) => Opened::Here(Network::$kind(network)),
                        Opened::Absent(why) => Opened::Absent(why),
                        Opened::Gone(why) => Opened::Gone(why),
                    })+
                })
            }
        }

        /// An open network.
        #[allow(clippy::large_enum_variant, reason = "a process has one of each")]
        enum Network {
            $($kind($transport)),+
        }

        macro_rules! on {
            ($d network:expr, $d name:ident => $d call:expr) => {
                match $d network {
                    $(Network::$kind($d name) => $d call),+
                }
            };
        }
    };
}

// In order of preference.
networks! { $
    Verbs: crate::transports::verbs::VerbsTransport<Libibverbs, Tcp>,
    Tcp: Tcp,
}

// Behind the macro that they use.
mod memory;
mod payloads;

/// Their number.
pub const NETWORKS: usize = NetworkKind::ALL.len();

/// How a peer is reached. One byte a peer: most are never talked to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Route {
    /// Not looked at yet.
    #[default]
    Unknown,
    /// This process itself: the engine keeps such messages to itself.
    Myself,
    /// Memory that this node's ranks share.
    Node,
    /// A network.
    Network(NetworkKind),
}

const _: () = assert!(size_of::<Route>() == 1);

impl Route {
    /// As reports name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "none",
            Self::Myself => "self",
            Self::Node => "shm",
            Self::Network(network) => network.name(),
        }
    }

    /// Does it lead over a network?
    #[inline]
    pub fn is_network(self) -> bool {
        matches!(self, Self::Network(_))
    }

    /// Can the receiver fetch a payload from where it lies ([`TransportSet::pull`])?
    #[inline]
    pub fn pulls(self) -> bool {
        match self {
            Self::Node => true,
            Self::Network(network) => network.pulls(),
            Self::Unknown | Self::Myself => false,
        }
    }
}

/// See the module's documentation.
#[derive(Default)]
pub struct TransportSet {
    node: Option<NodeTransport>,
    networks: [Option<Network>; NETWORKS],
    /// Something was handed to a network since all were flushed.
    holds: bool,
    /// The node's memory, at the rank that made it, until all know of it.
    created: Option<NodeSegment>,
}

/// Opening, and what a restart needs.
impl TransportSet {
    /// At the start of a process, number `index` of `local` on this node: what it has to publish
    /// an endpoint for. Ends the job if something that is needed cannot be had.
    pub fn open(setup: &TransportSetup, glue: &Glue, local: usize, index: usize) -> Self {
        let first = setup.uses_node_memory(local) && index == 0;
        let created = first.then(|| setup.create_segment(glue, local, index));
        let mut set = Self { created, ..Self::default() };
        set.open_networks(setup, glue, local, Incarnation(0));
        set
    }

    /// Open the networks, if anybody needs them. Ends the job if they are needed and cannot be had.
    pub fn open_networks(
        &mut self,
        setup: &TransportSetup,
        glue: &Glue,
        local: usize,
        incarnation: Incarnation,
    ) {
        let needed = !setup.all_reached(local);
        for kind in NetworkKind::ALL {
            match kind.open(setup, incarnation.0) {
                Ok(Opened::Here(network)) => {
                    glue.verbose(
                        verbose::INFO,
                        || on!(&network, network => OverNetwork::description(network)),
                    );
                    self.networks[kind as usize] = Some(network);
                }
                Ok(Opened::Absent(why)) => {
                    glue.verbose(verbose::INFO, || format!("no {}: {why}", kind.name()));
                    self.networks[kind as usize] = None;
                }
                Ok(Opened::Gone(why)) => {
                    let name = kind.name();
                    let text = format!("no {name} after a restart: {why}; messages go over TCP");
                    glue.show("notice", &[&text]);
                    self.networks[kind as usize] = None;
                }
                Err(error) if needed => glue.fatal(kind.name(), &[&error]),
                Err(_) => {} // nobody needs it
            }
        }
    }

    /// For the own endpoint: the address of each network, by its name.
    pub fn addresses(&self) -> BTreeMap<String, Vec<u8>> {
        let open = NetworkKind::ALL.into_iter().zip(&self.networks);
        open.filter_map(|(kind, network)| {
            let address = on!(network.as_ref()?, network => OverNetwork::address(network));
            Some((kind.name().to_owned(), address))
        })
        .collect()
    }

    /// For the own endpoint: the name of the node's memory, at the rank that made it.
    pub fn segment_name(&self) -> String {
        self.created.as_ref().map(|segment| segment.name().to_owned()).unwrap_or_default()
    }

    /// The ranks of this node are known, in the order of their local indices; the first one has
    /// published `name`. Ends the job if the node's memory cannot be had.
    pub fn attach_node(
        &mut self,
        setup: &TransportSetup,
        glue: &Glue,
        name: &str,
        local: &[PeerId],
        index: usize,
    ) {
        let segment = self.created.take();
        let segment =
            segment.unwrap_or_else(|| setup.attach_segment(glue, name, local.len(), index));
        self.node = Some(NodeTransport::new(segment, local));
    }

    /// After a restart: new memory for these ranks, who all know the secret. Ends the job if it
    /// cannot be had.
    pub fn renew_node(
        &mut self,
        setup: &TransportSetup,
        glue: &Glue,
        secret: u128,
        local: &[PeerId],
        index: usize,
    ) {
        let segment = setup.new_segment(glue, secret, local.len(), index);
        self.node = Some(NodeTransport::new(segment, local));
    }

    /// The process was restarted from an image, in which descriptors and mappings of these
    /// transports are not: they must not be closed.
    pub fn abandon(&mut self) {
        core::mem::forget(core::mem::take(self));
    }
}

/// Routes.
impl TransportSet {
    /// Choose the way to a peer.
    ///
    /// # Errors
    /// Why there is none, for the user.
    pub fn connect(&mut self, peer: PeerId, to: &Endpoint) -> Result<(Route, Limits), String> {
        if let Some(node) = self.node.as_ref().filter(|node| node.reaches(peer)) {
            return Ok((Route::Node, node.limits()));
        }
        let mut why = "there is no transport to it".to_owned();
        for kind in NetworkKind::ALL {
            let Some(network) = &mut self.networks[kind as usize] else { continue };
            match on!(network, n => OverNetwork::add_peer(n, peer, to.address(kind.name()))) {
                Ok(()) => {
                    let limits = on!(network, network => network.limits());
                    return Ok((Route::Network(kind), limits));
                }
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// The peer was restarted and is not reached as before; [`Self::connect`] follows.
    pub fn renew_peer(&mut self, peer: PeerId, to: &Endpoint) {
        for kind in NetworkKind::ALL {
            if let Some(network) = &mut self.networks[kind as usize] {
                on!(network, n => OverNetwork::renew_peer(n, peer, to.address(kind.name())));
            }
        }
        if let Some(node) = &mut self.node {
            node.forget(peer);
        }
    }

    /// Try to reopen a lost channel.
    pub fn reconnect(&mut self, peer: PeerId) {
        for network in self.networks.iter_mut().flatten() {
            on!(network, network => network.reconnect(peer));
        }
    }

    /// Find out whether ranks of this node have died. System calls: once a second.
    pub fn check_node_peers(&mut self) {
        if let Some(node) = &mut self.node {
            node.check_peers();
        }
    }
}

/// Sending.
impl TransportSet {
    /// A short frame to a rank of this node, if its channel is in use and has room. False: nothing
    /// has happened, [`Self::send`] knows why.
    #[inline(always)]
    pub fn send_words(&mut self, to: PeerId, header: [u64; 4], payload: &[u8]) -> bool {
        match &mut self.node {
            Some(node) => node.send_words(to, header, payload),
            None => false,
        }
    }

    /// Hand a frame to the transport that leads to the peer.
    #[inline]
    pub fn send(
        &mut self,
        route: Route,
        to: PeerId,
        header: &[u8],
        payload: Payload<'_>,
        taken: usize,
    ) -> Sent {
        match route {
            Route::Node => match &mut self.node {
                Some(node) => node.send(to, header, payload, taken),
                None => Sent::Down,
            },
            Route::Network(kind) => {
                self.holds = true;
                match &mut self.networks[kind as usize] {
                    Some(network) => {
                        on!(network, network => network.send(to, header, payload, taken))
                    }
                    None => Sent::Down,
                }
            }
            Route::Unknown | Route::Myself => Sent::Down,
        }
    }

    /// Was something handed to a network since all were flushed?
    #[inline]
    pub fn holds(&self) -> bool {
        self.holds
    }

    /// Has a network accepted what it has not written?
    #[inline]
    pub fn is_gathering(&self) -> bool {
        self.networks.iter().flatten().any(|network| on!(network, network => network.holds()))
    }

    /// Push out what networks hold. True: nothing is left of it.
    pub fn flush_networks(&mut self) -> bool {
        let mut flushed = true;
        for network in self.networks.iter_mut().flatten() {
            flushed &= on!(network, network => network.flush());
        }
        self.holds &= !flushed;
        flushed
    }

    /// True: no transport holds anything back.
    pub fn flush_all(&mut self) -> bool {
        let node = self.node.as_mut().is_none_or(|node| node.flush());
        let mut networks = true;
        for network in self.networks.iter_mut().flatten() {
            networks &= on!(network, network => network.flush());
        }
        node && networks
    }

    /// Take leave of all peers. Call until it returns true.
    pub fn close(&mut self) -> bool {
        let mut networks = true;
        for network in self.networks.iter_mut().flatten() {
            networks &= on!(network, network => network.close());
        }
        let node = self.node.as_mut().is_none_or(|node| node.close());
        node && networks
    }
}

/// Frames and events from the node.
impl TransportSet {
    /// Does this process share memory with others of its node?
    #[inline]
    pub fn has_node(&self) -> bool {
        self.node.is_some()
    }

    /// The oldest frame of the peer that had the last one, which is the only one most often.
    /// `None`: [`Self::peek_node`] knows more.
    #[inline(always)]
    pub fn peek_node_again(&mut self) -> Option<Incoming> {
        self.node.as_mut().and_then(NodeTransport::peek_active_rings)
    }

    /// The next frame of any peer of this node.
    #[inline(always)]
    pub fn peek_node(&mut self) -> Option<Incoming> {
        self.node.as_mut().and_then(|node| node.peek())
    }

    /// Is there anything to look for within the node? Nothing is changed.
    #[inline]
    pub fn node_has_news(&self) -> bool {
        self.node.as_ref().is_none_or(NodeTransport::has_news)
    }

    /// The frame that was peeked at last is done with.
    #[inline(always)]
    pub fn consume_node(&mut self, incoming: Incoming) {
        if let Some(node) = &mut self.node {
            node.consume(incoming);
        }
    }

    /// Is there no frame of these peers (ascending) of this node? What others send meanwhile does
    /// not matter.
    pub fn is_empty_from(&mut self, peers: &[PeerId]) -> bool {
        self.node.as_mut().is_none_or(|node| node.is_empty_from(peers))
    }

    /// The next change of a channel within the node.
    pub fn node_event(&mut self) -> Option<Event> {
        self.node.as_mut().and_then(|node| node.event())
    }
}

/// Frames and events from other nodes.
impl TransportSet {
    /// Is a network open?
    #[inline]
    pub fn has_network(&self) -> bool {
        self.networks.iter().any(Option::is_some)
    }

    #[inline]
    fn network(&mut self, kind: NetworkKind) -> Option<&mut Network> {
        self.networks[kind as usize].as_mut()
    }

    /// Is it not there, or reaches nobody yet?
    #[inline]
    pub fn is_unused(&self, kind: NetworkKind) -> bool {
        let network = self.networks[kind as usize].as_ref();
        network.is_none_or(|network| on!(network, network => OverNetwork::is_unused(network)))
    }

    /// The next frame.
    #[inline]
    pub fn peek(&mut self, kind: NetworkKind) -> Option<Incoming> {
        on!(self.network(kind)?, network => network.peek())
    }

    /// The frame that was peeked at last is done with.
    #[inline]
    pub fn consume(&mut self, kind: NetworkKind, incoming: Incoming) {
        if let Some(network) = self.network(kind) {
            on!(network, network => network.consume(incoming));
        }
    }

    /// The next change of a channel.
    #[inline]
    pub fn event(&mut self, kind: NetworkKind) -> Option<Event> {
        on!(self.network(kind)?, network => network.event())
    }

    /// Have bytes come since the last call, if only a part of a frame?
    #[inline]
    pub fn take_received(&mut self) -> bool {
        let mut received = false;
        for network in self.networks.iter_mut().flatten() {
            received |= on!(network, network => network.take_received());
        }
        received
    }

    /// A frame whose payload may get a place of its own; [`Self::place`] is to be called next.
    #[inline]
    pub fn unplaced(&mut self, kind: NetworkKind) -> Option<PeerHeader> {
        on!(self.network(kind)?, network => network.unplaced())
    }

    /// Where its payload goes. `None`: it comes as a frame.
    ///
    /// # Safety
    /// `into` is writable for all of the payload, and nobody else touches it, until
    /// [`Self::placed`] has named it or the channel is down.
    #[inline]
    pub unsafe fn place(&mut self, kind: NetworkKind, into: Option<NonNull<u8>>) {
        if let Some(network) = self.network(kind) {
            // SAFETY: the caller's promise.
            unsafe { on!(network, network => network.place(into)) }
        }
    }

    /// A frame whose payload is in its place.
    #[inline]
    pub fn placed(&mut self, kind: NetworkKind) -> Option<PeerHeader> {
        on!(self.network(kind)?, network => network.placed())
    }

    /// What to sleep on while nothing is held: one of them is readable when a poll may bring
    /// something. -1: no such network, which poll() passes over. `None`: this is no time to sleep.
    pub fn wait_descriptors(&self) -> Option<[RawFd; NETWORKS]> {
        let mut descriptors = [-1; NETWORKS];
        for (descriptor, network) in descriptors.iter_mut().zip(&self.networks) {
            if let Some(network) = network {
                *descriptor = on!(network, network => network.wait_descriptor())?;
            }
        }
        self.has_network().then_some(descriptors)
    }
}
