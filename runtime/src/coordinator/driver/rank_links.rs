//! Connections of ranks themselves. What a rank records goes to the coordinator, and frames wait
//! for the answer. Through guardian and agent that takes seven processes or threads one after the
//! other, each of which needs a processor that the ranks keep busy; here it takes one.
//!
//! 1. Only determinants arrive here, the rank's own and those that were piggybacked to it, and only
//!    what is stable is sent here.
//! 2. It is a shortcut: what is lost with it is sent again through the agent.

use crate::link::{Link, LinkError};
use rustbtl_coordination::control::{FromNode, FromRank, ToRank};
use rustbtl_fragments::ids::PeerId;
use std::collections::BTreeMap;
use std::os::fd::RawFd;

/// The connections.
#[derive(Default)]
pub struct Direct {
    links: BTreeMap<u64, (Link, PeerId)>,
    of: BTreeMap<PeerId, u64>,
    waits: bool,
}

impl Direct {
    /// Connection `id` is that of this rank.
    pub fn add(&mut self, id: u64, rank: PeerId, link: Link) {
        self.forget(rank);
        self.links.insert(id, (link, rank));
        self.of.insert(rank, id);
    }

    /// To poll: connection, descriptor, and whether something waits to be sent.
    pub fn polled(&self) -> impl Iterator<Item = (u64, RawFd, bool)> {
        self.links.iter().map(|(&id, (link, _))| (id, link.fd(), link.wants_to_write()))
    }

    /// Messages that have arrived.
    pub fn read(&mut self, id: u64) -> Vec<FromNode> {
        let mut messages = Vec::new();
        let Some((link, rank)) = self.links.get_mut(&id) else { return messages };
        let rank = *rank;
        let mut good = link.flush().is_ok() & link.read().is_ok();
        while let Some((link, _)) = self.links.get_mut(&id) {
            match link.next_message::<FromNode>() {
                Ok(None) => break,
                Ok(Some(FromNode::Rank {
                    rank: of,
                    message:
                        message @ (FromRank::Determinants { .. } | FromRank::Piggybacked { .. }),
                })) if of == rank => messages.push(FromNode::Rank { rank, message }),
                Ok(Some(FromNode::Rank { rank: of, message: FromRank::FrameGated {} }))
                    if of == rank =>
                {
                    self.waits = true;
                    messages.push(FromNode::Rank { rank, message: FromRank::FrameGated {} });
                }
                Ok(Some(_)) | Err(_) => {
                    good = false;
                    break;
                }
            }
        }
        if !good {
            self.forget(rank);
        }
        messages
    }

    /// Does a frame of any of them wait for the answer to what has arrived since the last call?
    pub fn waits(&mut self) -> bool {
        core::mem::take(&mut self.waits)
    }

    /// False: it has to be sent through the agent.
    pub fn send(&mut self, rank: PeerId, message: &ToRank) -> bool {
        let link = self.of.get(&rank).and_then(|id| self.links.get_mut(id));
        let Some((link, _)) = link.filter(|_| matches!(message, ToRank::Stable { .. })) else {
            return false;
        };
        let sent: Result<(), LinkError> = link.send(message);
        if sent.is_err() {
            self.forget(rank);
        }
        sent.is_ok()
    }

    /// The rank is another process now, or its connection is of no use.
    pub fn forget(&mut self, rank: PeerId) {
        if let Some(id) = self.of.remove(&rank) {
            self.links.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustbtl_fragments::ids::{Incarnation, SetId};
    use std::os::unix::net::UnixStream;

    const RANK: PeerId = PeerId(3);

    fn open() -> (Direct, Link) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut direct = Direct::default();
        direct.add(7, RANK, Link::new(ours).unwrap());
        (direct, Link::new(theirs).unwrap())
    }

    fn stable() -> ToRank {
        ToRank::Stable { incarnation: Incarnation(0), upto: 4 }
    }

    #[test]
    fn determinants_arrive_and_what_is_stable_is_sent() {
        let (mut direct, mut rank) = open();
        let incarnation = Incarnation(0);
        let own = FromRank::Determinants { incarnation, from: 0, bytes: vec![1] };
        let others = FromRank::Piggybacked { incarnation, at: 1, bytes: vec![1] };
        let all = [own, others].map(|message| FromNode::Rank { rank: RANK, message });
        all.iter().for_each(|message| rank.send(message).unwrap());
        assert_eq!(direct.read(7), all);
        assert!(direct.send(RANK, &stable()));
        rank.read().unwrap();
        assert_eq!(rank.next_message().unwrap(), Some(stable()));
        assert!(!direct.send(RANK, &ToRank::MayFinish {}), "that is sent through the agent");
        assert!(!direct.send(PeerId(4), &stable()));
    }

    #[test]
    fn who_sends_anything_else_is_disconnected() {
        let incarnation = Incarnation(0);
        let of = |rank, message| FromNode::Rank { rank, message };
        let piggybacked = FromRank::Piggybacked { incarnation, at: 1, bytes: vec![1] };
        let (set, before, recorded) = (SetId(0), Incarnation(1), 0);
        let fenced = FromRank::Fenced { set, before, incarnation, recorded };
        let (ready, beat) = (FromRank::Ready {}, FromNode::Heartbeat { count: 1 });
        let other = PeerId(4);
        for unexpected in [of(other, ready), of(other, piggybacked), of(RANK, fenced), beat] {
            let (mut direct, mut rank) = open();
            rank.send(&unexpected).unwrap();
            assert_eq!(direct.read(7), []);
            assert!(!direct.send(RANK, &stable()));
        }
        let (mut direct, rank) = open();
        drop(rank);
        assert_eq!(direct.read(7), []);
        assert_eq!(direct.polled().count(), 0);
    }

    #[test]
    fn a_new_connection_of_a_rank_replaces_the_old_one() {
        let (mut direct, _old) = open();
        let (ours, _new) = UnixStream::pair().unwrap();
        direct.add(8, RANK, Link::new(ours).unwrap());
        assert_eq!(direct.polled().map(|(id, ..)| id).collect::<Vec<_>>(), [8]);
        direct.forget(RANK);
        assert_eq!(direct.polled().count(), 0);
    }
}
