//! The guardians that are connected to an agent, one per rank. A rank has two for a moment if it is
//! restarted before the guardian of its earlier incarnation has reconnected.

use crate::link::Link;
use crate::os;
use crate::suspended::{self, Looks};
use rustbtl_coordination::control::{FromNode, ToNode};
use rustbtl_fragments::ids::{Incarnation, PeerId};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Why a guardian ends whose rank has another one.
const SUPERSEDED: &str = "this rank was restarted on this node";

/// A connected guardian.
pub(super) struct GuardianLink {
    pub(super) link: Link,
    /// 0: not known.
    pid: os::Pid,
    /// Known from its first message.
    pub(super) rank: Option<PeerId>,
    /// In which its program runs.
    pub(super) incarnation: Incarnation,
    /// A younger guardian of its rank is connected: this one was ordered to end, and is ignored.
    pub(super) obsolete: bool,
    /// It is no guardian but a spare node's process, which takes ranks of lost nodes at this port.
    pub(super) spare: Option<u16>,
}

impl GuardianLink {
    /// Of a guardian that has sent nothing yet.
    pub(super) fn new(link: Link) -> Self {
        let pid = os::peer_pid(&link.fd()).unwrap_or(0);
        Self { link, pid, rank: None, incarnation: Incarnation(0), obsolete: false, spare: None }
    }
}

/// Guardians of this node that are suspended while their programs run. Nobody else knows that they
/// are not meant to be: they are ended after a while, their programs end with them, and are rolled
/// back.
#[derive(Default)]
pub(super) struct GuardianWatch(BTreeMap<os::Pid, Looks>);

impl GuardianWatch {
    /// Looks at those that are connected, and at those that the same daemon has started: who is
    /// suspended does not connect to an agent that takes over.
    pub(super) fn look(&mut self, guardians: &BTreeMap<u64, GuardianLink>) {
        let connected = guardians.values().map(|guardian| guardian.pid).filter(|&pid| pid > 0);
        let daemons: BTreeSet<_> = connected.map(os::parent_of).filter(|&pid| pid > 1).collect();
        let all = daemons.into_iter().flat_map(suspended::children).filter(|&pid| is_guardian(pid));
        let before = core::mem::take(&mut self.0);
        for pid in all {
            let mut looks = before.get(&pid).copied().unwrap_or_default();
            if looks.saw(suspended::is_suspended_alone(pid)) {
                tracing::warn!("guardian {pid} is suspended, and nobody has it go on");
                suspended::end(pid);
            }
            self.0.insert(pid, looks);
        }
    }
}

fn is_guardian(pid: os::Pid) -> bool {
    let program = |path: &str| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let same = program("/proc/self/exe");
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|&byte| byte == 0).nth(1) == Some(b"guardian")
        && same.is_some()
        && same == program(&format!("/proc/{pid}/exe"))
}

/// Orders all guardians of a rank but the youngest to end; returns the youngest.
pub(super) fn retain_youngest(
    guardians: &mut BTreeMap<u64, GuardianLink>,
    rank: PeerId,
) -> Option<u64> {
    let of_rank = |guardian: &GuardianLink| guardian.rank == Some(rank) && !guardian.obsolete;
    let all = guardians.iter().filter(|(_, guardian)| of_rank(guardian));
    let (&youngest, _) = all.max_by_key(|(id, guardian)| (guardian.incarnation, **id))?;
    for (&id, guardian) in guardians.iter_mut() {
        if of_rank(guardian) && id != youngest {
            guardian.obsolete = true;
            let (incarnation, reason) = (guardian.incarnation, SUPERSEDED.to_owned());
            let _ = guardian.link.send(&ToNode::End { rank, incarnation, reason });
        }
    }
    Some(youngest)
}

/// Is the message about its guardian's own rank? The first message names that rank.
pub(super) fn is_for_own_rank(message: &FromNode, rank: &mut Option<PeerId>) -> bool {
    let of = match message {
        FromNode::Guardian { rank: first, .. } => return *rank.get_or_insert(*first) == *first,
        FromNode::Rank { rank, .. }
        | FromNode::Frozen { rank, .. }
        | FromNode::Stored { rank, .. }
        | FromNode::StoreFailed { rank, .. }
        | FromNode::LostBeside { rank, .. }
        | FromNode::RankFailed { rank, .. }
        | FromNode::Restored { rank, .. }
        | FromNode::OutputViaDaemon { rank, .. }
        | FromNode::OutputOffsets { rank, .. }
        | FromNode::Output { rank, .. }
        | FromNode::ProxyFailed { host: rank, .. }
        | FromNode::Ended { rank, .. } => rank,
        // This may also be about a rank that it was to adopt.
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
    fn a_guardian_reports_about_its_own_rank_only() {
        let ended = |rank| FromNode::Ended { rank: PeerId(rank), status: 0, ordered: false };
        let mut rank = None;
        assert!(!is_for_own_rank(&ended(1), &mut rank), "it is not registered");
        let incarnation = rustbtl_fragments::ids::Incarnation(0);
        let first = |rank| FromNode::Guardian { rank: PeerId(rank), size: 4, pid: 9, incarnation };
        assert!(is_for_own_rank(&first(1), &mut rank));
        assert!(is_for_own_rank(&first(1), &mut rank), "to another coordinator");
        assert!(is_for_own_rank(&ended(1), &mut rank));
        assert!(!is_for_own_rank(&ended(2), &mut rank));
        assert!(!is_for_own_rank(&first(2), &mut rank), "it is the guardian of one");
        let checkpoint = CheckpointId(1);
        let failed = FromNode::StoreFailed { rank: PeerId(0), checkpoint, reason: String::new() };
        assert!(!is_for_own_rank(&failed, &mut rank));
        let agent = FromNode::Agent { node: "n".into(), pid: 1, version: "1".into() };
        assert!(!is_for_own_rank(&agent, &mut rank), "nor for an agent");
    }

    #[test]
    fn the_youngest_guardian_of_a_rank_is_kept() {
        let mut guardians = BTreeMap::new();
        let mut theirs = Vec::new();
        for (id, (rank, incarnation)) in [(1, 2), (0, 0), (1, 3), (1, 1)].into_iter().enumerate() {
            let (ours, other) = UnixStream::pair().unwrap();
            theirs.push(Link::new(other).unwrap());
            let mut guardian = GuardianLink::new(Link::new(ours).unwrap());
            (guardian.rank, guardian.incarnation) = (Some(PeerId(rank)), Incarnation(incarnation));
            guardians.insert(id as u64, guardian);
        }
        assert_eq!(retain_youngest(&mut guardians, PeerId(1)), Some(2));
        assert_eq!(retain_youngest(&mut guardians, PeerId(1)), Some(2), "ordered once");
        assert_eq!(retain_youngest(&mut guardians, PeerId(0)), Some(1));
        assert_eq!(retain_youngest(&mut guardians, PeerId(7)), None);
        let mut ended = |id: usize| {
            theirs[id].read().unwrap();
            let message = theirs[id].next_message::<ToNode>().unwrap();
            assert!(theirs[id].next_message::<ToNode>().unwrap().is_none());
            message.map(|message| match message {
                ToNode::End { rank, incarnation, .. } => (rank.0, incarnation.0),
                other => panic!("{other:?}"),
            })
        };
        let all: Vec<_> = (0..4).map(&mut ended).collect();
        assert_eq!(all, [Some((1, 2)), None, None, Some((1, 1))]);
    }
}
