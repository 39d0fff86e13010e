//! Channels that open and break, and who is reconnected.

use crate::engine::driver_state::{Driver, Lost, SECOND};
use crate::engine::host::EngineHost;
use crate::engine::transport_set::NetworkKind;
use crate::os::now_ns;
use crate::peers::endpoint::Endpoint;
use crate::transports::Event;
use core::time::Duration;
use rustbtl_fragments::ids::{Incarnation, PeerId};

/// Between two attempts to reopen a lost channel.
const RECONNECT_NS: u64 = 100_000_000;
/// From a message to the end of its process.
const SHOWN: Duration = Duration::from_millis(300);

impl EngineHost {
    /// A process of another set was restarted: what was known of the way to it is over.
    pub fn renew(&mut self, peer: PeerId, endpoint: crate::peers::endpoint::Endpoint) {
        self.transports.renew_peer(peer, &endpoint);
        self.endpoints.insert(peer, endpoint);
        self.meet(peer);
    }
}

impl Driver {
    /// How many there were.
    pub(crate) fn network_events(&mut self, network: NetworkKind) -> usize {
        let mut happened = 0;
        while let Some(event) = self.host.transports.event(network) {
            happened += 1;
            self.event(event);
        }
        happened
    }

    #[cold]
    pub(crate) fn event(&mut self, event: Event) {
        match event {
            Event::Up(peer, incarnation) => self.up(peer, Incarnation(incarnation)),
            Event::Down { peer, said_goodbye, reason } => self.down(peer, said_goodbye, reason),
            Event::Notice(text) => self.host.glue.show("notice", &[&text]),
        }
    }

    fn down(&mut self, peer: PeerId, said_goodbye: bool, reason: String) {
        self.host.forget_pulls(peer);
        self.timed(|engine, host| engine.peer_down(host, peer));
        if said_goodbye || self.finishing || self.lost.iter().any(|lost| lost.peer == peer) {
            return;
        }
        let now = now_ns();
        // What was under way inside a set is in no log.
        let outgoing = self.engine.is_outgoing_peer(peer);
        let again_ns = outgoing.then_some(now + RECONNECT_NS);
        self.lost.push(Lost { peer, reason, since_ns: now, again_ns });
    }

    /// A channel is open. The first one of two processes that were never restarted is no news.
    fn up(&mut self, peer: PeerId, incarnation: Incarnation) {
        self.lost.retain(|lost| lost.peer != peer);
        if incarnation > Incarnation(0) || self.engine.has_contacted(peer) {
            self.timed(|engine, host| engine.peer_up(host, peer, incarnation));
        }
    }

    /// This process of another set was restarted: here is how it is reached.
    pub fn reconnect_restarted(&mut self, peer: PeerId, endpoint: Endpoint) {
        let incarnation = endpoint.incarnation;
        self.lost.retain(|lost| lost.peer != peer);
        if endpoint.node == self.host.node {
            self.neighbours.insert(peer);
        } else {
            self.neighbours.remove(&peer);
        }
        self.host.renew(peer, endpoint);
        self.host.forget_pulls(peer);
        if self.engine.has_contacted(peer) {
            self.timed(|engine, host| engine.peer_up(host, peer, incarnation));
        }
    }

    /// Once in a while: dead neighbours, and peers that were lost too long ago.
    #[cold]
    pub(crate) fn slow(&mut self) {
        let now = now_ns();
        if now - self.checked_ns > SECOND {
            self.checked_ns = now;
            if !self.finishing {
                self.host.transports.check_node_peers();
            }
        }
        while let Some(event) = self.host.transports.node_event() {
            self.event(event);
        }
        if self.engine.is_acknowledging() {
            // Sets that are smaller than a node.
            for &peer in &self.neighbours {
                self.engine.acknowledge(&mut self.host, peer);
            }
        }
        if self.lost.is_empty() || self.finishing {
            return;
        }
        for lost in &mut self.lost {
            if let Some(again_ns) = &mut lost.again_ns
                && *again_ns <= now
            {
                *again_ns = now + RECONNECT_NS;
                self.host.transports.reconnect(lost.peer);
            }
        }
        if self.protected {
            // Others see to it: processes of another set are restarted, this one is rolled back
            // with its own. How long they take, with storage and processors that are busy, nobody
            // knows.
            return self.leave_torn_set(now);
        }
        let until = |lost: &Lost| lost.since_ns.max(self.unprotected_ns) + self.grace_ns;
        let Some(lost) = self.lost.iter().find(|lost| now >= until(lost)) else { return };
        let who = self.host.describe(lost.peer);
        let node =
            crate::peers::table::endpoint_of(&self.host.glue, self.host.peers.name(lost.peer))
                .and_then(Result::ok)
                .map_or_else(|| "?".to_owned(), |endpoint| endpoint.node);
        self.host.glue.fatal("peer-lost", &[&who, &node, &lost.reason]);
    }

    /// A connection inside a set that spans nodes is lost, and nobody has failed: what was under
    /// way is in no log. This process fails, so that its set is rolled back.
    fn leave_torn_set(&self, now: u64) {
        let is_torn = |lost: &&Lost| {
            let spans_nodes = !self.neighbours.contains(&lost.peer);
            spans_nodes && !self.engine.is_outgoing_peer(lost.peer)
        };
        let torn = self.lost.iter().find(is_torn);
        let Some(lost) = torn.filter(|lost| now >= lost.since_ns + self.grace_ns) else { return };
        let who = self.host.describe(lost.peer);
        self.host.glue.show("torn-set", &[&who, &lost.reason]);
        // What is shown is on its way.
        std::thread::sleep(SHOWN);
        // SAFETY: no memory is involved.
        unsafe { libc::raise(libc::SIGKILL) };
    }
}
