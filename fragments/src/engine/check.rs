//! The engine's invariants, asserted.

use super::state::{LinkState, PayloadSource, Progress};
use super::{Engine, Host};

impl<H: Host> Engine<H> {
    /// Assert the numbered invariants (simulation and tests call it after every step).
    pub fn check(&self) {
        self.posted.check();
        self.check_fifo();
        self.check_replay();
        self.unexpected.check();
        let posted = self.receives.iter().filter(|(_, _, r)| r.progress == Progress::Posted);
        assert_eq!(posted.count(), self.posted.len(), "E2: posted receives are in the table");
        assert!(self.unexpected.len() <= self.messages.len(), "E2: messages have records");
        for (_, _, receive) in self.receives.iter() {
            let taken = receive.progress != Progress::Posted;
            let missed = self.unexpected.envelopes().find(|key| receive.key.takes(key));
            assert!(taken || missed.is_none(), "E3: {:?} and {missed:?}", receive.key);
        }
        for (at, peer) in self.peers.iter().enumerate() {
            let Some(peer) = peer else { continue };
            let waits = peer.waits();
            let direct = peer.link == LinkState::Open && !waits && !peer.in_backlog && !peer.held;
            assert_eq!(peer.direct, direct, "E6: peer {at}");
            let listed = self.backlog.iter().filter(|id| id.0 as usize == at).count();
            assert_eq!(listed, usize::from(peer.in_backlog), "E7: peer {at}");
            assert!(!waits || peer.in_backlog, "E7: peer {at} waits");
            assert!(peer.taken == 0 || waits, "a half-taken frame is still here");
            let begun = usize::from(peer.taken > 0 && !peer.taken_of_push);
            let new = peer.queue.iter().skip(begun).find(|frame| peer.holds_back(frame));
            assert!(!peer.held || new.is_none(), "E9: peer {at}");
            assert!(peer.held || peer.held_queue.is_empty(), "E9: peer {at} is not held");
        }
        let internal = |peer: u32| {
            let peer = self.peers.get(peer as usize).and_then(Option::as_ref);
            peer.is_some_and(|peer| !peer.outgoing)
        };
        let in_flight = self
            .receives
            .iter()
            .filter(|(_, _, receive)| receive.progress.is_in_flight() && internal(receive.peer.0));
        assert_eq!(in_flight.count(), self.in_flight as usize, "E8");
        let detached = || self.sends.iter().filter(|(_, _, send)| send.token.is_none());
        assert_eq!(detached().count(), self.detached, "E10");
        assert!(detached().all(|(_, _, send)| matches!(send.source, PayloadSource::Log(_))), "E10");
    }
}
