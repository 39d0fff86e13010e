//! Being connected to: unauthenticated peers, until they have proved who they are.

use crate::os::socket;
use crate::transports::tcp::handshake::{Names, Verdict};
use crate::transports::tcp::pending_connection::{PendingConnection, Progress};
use crate::transports::tcp::{ACCEPTS, ConnectionLink, EpollToken, PENDING_MAX, Tcp};
use rustbtl_fragments::ids::PeerId;

impl Tcp {
    pub(super) fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPTS {
            let Some((stream, address)) = socket::accept(&self.listeners[listener]) else { return };
            let place = match self.pending.iter().position(Option::is_none) {
                Some(place) => place,
                None if self.pending.len() < PENDING_MAX => {
                    self.pending.push(None);
                    self.pending.len() - 1
                }
                None => {
                    let oldest = self.pending.iter().enumerate();
                    let age = |s: &Option<PendingConnection>| s.as_ref().map_or(0, |s| s.since_ms);
                    let oldest = oldest.min_by_key(|(_, s)| age(s)).map_or(0, |(i, _)| i);
                    self.refuse(oldest, "too many connections that say nothing");
                    oldest
                }
            };
            if self.epoll.add(&stream, EpollToken::PendingConnection(place).token(), false).is_ok()
            {
                self.pending[place] = Some(PendingConnection::new(stream, address, self.clock_ms));
                self.drive_pending(place);
            }
        }
    }

    pub(super) fn refuse(&mut self, place: usize, why: &str) {
        if let Some(pending) = self.pending[place].take() {
            self.notice(format!("refused a connection from {}: {why}", pending.address));
        }
    }

    pub(super) fn drive_pending(&mut self, place: usize) {
        let mine = self.names(PeerId(0), 0);
        // A copy of the process for a snapshot holds what was closed here a moment longer, and as
        // long epoll speaks of it.
        let Some(pending) = self.pending.get_mut(place).and_then(Option::as_mut) else { return };
        match pending.drive(&self.secret, &mine) {
            Progress::Waiting => {}
            Progress::Refused(Some(why)) => self.refuse(place, &why),
            Progress::Refused(None) => self.pending[place] = None,
            Progress::Verified(names) => {
                if let Some(pending) = self.pending[place].take() {
                    self.admit(pending, names);
                }
            }
        }
    }

    /// A connection that has proved whose it is: use it, or is there a better one?
    pub(super) fn admit(&mut self, pending: PendingConnection, names: Names) {
        let slot = self.slot_or_new(names.from);
        let peer = &self.peers[slot];
        let stale = names.incarnation < peer.incarnation;
        let restarted = names.incarnation > peer.incarnation;
        let duplicate = match peer.link {
            ConnectionLink::Up(_) => !restarted && names.generation < peer.generation,
            ConnectionLink::Dialing => {
                let active = peer.dial.as_ref().is_some_and(|dial| dial.is_active());
                active && self.config.me < peer.id && !restarted
            }
            ConnectionLink::Idle | ConnectionLink::Down => false,
        };
        if stale || duplicate {
            pending.answer(&self.secret, Verdict::Duplicate);
            return;
        }
        let generation = peer.generation.max(names.generation) + 1;
        if let ConnectionLink::Up(at) = peer.link {
            let what = if restarted { "restarted" } else { "lost the connection" };
            self.close_connection(at, false, format!("the peer has {what} and connects again"));
        }
        self.end_dial(slot);
        if pending.answer(&self.secret, Verdict::Accepted(generation)) {
            let PendingConnection { stream, address, .. } = pending;
            self.open(slot, stream, address, names.incarnation, generation);
        } else if self.peers[slot].link == ConnectionLink::Dialing {
            self.dial(slot);
        }
    }
}
