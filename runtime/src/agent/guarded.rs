//! The guardians that have come to an agent, one of a rank: a rank that is started again while the
//! guardian of its life before has not come yet has two for a moment.

use crate::link::Link;
use rustbtl_coordination::control::{FromNode, ToNode};
use rustbtl_fragments::ids::{Incarnation, PeerId};
use std::collections::BTreeMap;

/// Why a guardian ends whose rank goes on under another one.
const YOUNGER: &str = "this rank was started again on this node";

/// Who has come.
pub(super) struct Guarded {
    pub(super) link: Link,
    /// Known from its first message.
    pub(super) rank: Option<PeerId>,
    /// In which its program runs.
    pub(super) incarnation: Incarnation,
    /// A younger one of its rank has come: it was told to end, and nobody listens to it.
    pub(super) obsolete: bool,
    /// It is no guardian, but waits at this port for ranks of lost nodes.
    pub(super) spare: Option<u16>,
}

impl Guarded {
    /// Of somebody who has said nothing yet.
    pub(super) fn new(link: Link) -> Self {
        Self { link, rank: None, incarnation: Incarnation(0), obsolete: false, spare: None }
    }
}

/// Ends all guardians of a rank but the youngest one, and says which that is.
pub(super) fn one_of_each(guardians: &mut BTreeMap<u64, Guarded>, rank: PeerId) -> Option<u64> {
    let of_rank = |guarded: &Guarded| guarded.rank == Some(rank) && !guarded.obsolete;
    let all = guardians.iter().filter(|(_, guarded)| of_rank(guarded));
    let (&youngest, _) = all.max_by_key(|(id, guarded)| (guarded.incarnation, **id))?;
    for (&id, guarded) in guardians.iter_mut() {
        if of_rank(guarded) && id != youngest {
            guarded.obsolete = true;
            let (incarnation, reason) = (guarded.incarnation, YOUNGER.to_owned());
            let _ = guarded.link.send(&ToNode::End { rank, incarnation, reason });
        }
    }
    Some(youngest)
}

/// Does the message speak for the rank of its guardian? The first one says which rank that is.
pub(super) fn belongs(message: &FromNode, rank: &mut Option<PeerId>) -> bool {
    let of = match message {
        FromNode::Guardian { rank: first, .. } => return *rank.get_or_insert(*first) == *first,
        FromNode::Rank { rank, .. }
        | FromNode::Frozen { rank, .. }
        | FromNode::Stored { rank, .. }
        | FromNode::StoreFailed { rank, .. }
        | FromNode::RankFailed { rank, .. }
        | FromNode::OutputViaDaemon { rank, .. }
        | FromNode::OutputOffsets { rank, .. }
        | FromNode::Output { rank, .. }
        | FromNode::ProxyFailed { host: rank, .. }
        | FromNode::Ended { rank, .. } => rank,
        // Of a rank that it was to adopt, too.
        FromNode::RestoreFailed { .. } => return rank.is_some(),
        _ => return false,
    };
    *rank == Some(*of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustbtl_coordination::control::CheckpointId;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_guardian_speaks_for_its_own_rank_only() {
        let ended = |rank| FromNode::Ended { rank: PeerId(rank), status: 0 };
        let mut rank = None;
        assert!(!belongs(&ended(1), &mut rank), "it has not said who it is");
        let incarnation = rustbtl_fragments::ids::Incarnation(0);
        let first = |rank| FromNode::Guardian { rank: PeerId(rank), size: 4, pid: 9, incarnation };
        assert!(belongs(&first(1), &mut rank));
        assert!(belongs(&first(1), &mut rank), "to another coordinator");
        assert!(belongs(&ended(1), &mut rank));
        assert!(!belongs(&ended(2), &mut rank));
        assert!(!belongs(&first(2), &mut rank), "it is the guardian of one");
        let line = CheckpointId(1);
        let failed = FromNode::StoreFailed { rank: PeerId(0), checkpoint: line, reason: String::new() };
        assert!(!belongs(&failed, &mut rank));
        let agent = FromNode::Agent { node: "n".into(), pid: 1, version: "1".into() };
        assert!(!belongs(&agent, &mut rank), "nor for an agent");
    }

    #[test]
    fn the_youngest_guardian_of_a_rank_is_the_one() {
        let mut guardians = BTreeMap::new();
        let mut theirs = Vec::new();
        for (id, (rank, incarnation)) in [(1, 2), (0, 0), (1, 3), (1, 1)].into_iter().enumerate() {
            let (ours, other) = UnixStream::pair().unwrap();
            theirs.push(Link::new(other).unwrap());
            let mut guarded = Guarded::new(Link::new(ours).unwrap());
            (guarded.rank, guarded.incarnation) = (Some(PeerId(rank)), Incarnation(incarnation));
            guardians.insert(id as u64, guarded);
        }
        assert_eq!(one_of_each(&mut guardians, PeerId(1)), Some(2));
        assert_eq!(one_of_each(&mut guardians, PeerId(1)), Some(2), "told once");
        assert_eq!(one_of_each(&mut guardians, PeerId(0)), Some(1));
        assert_eq!(one_of_each(&mut guardians, PeerId(7)), None);
        let mut told = |id: usize| {
            theirs[id].read().unwrap();
            let message = theirs[id].next_message::<ToNode>().unwrap();
            assert!(theirs[id].next_message::<ToNode>().unwrap().is_none());
            message.map(|message| match message {
                ToNode::End { rank, incarnation, .. } => (rank.0, incarnation.0),
                other => panic!("{other:?}"),
            })
        };
        let all: Vec<_> = (0..4).map(&mut told).collect();
        assert_eq!(all, [Some((1, 2)), None, None, Some((1, 1))]);
    }
}
