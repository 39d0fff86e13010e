//! From the placement of processes to their correlated sets.
//!
//! Source: DESIGN §2 (correlated set), §5 (policies). Invariants:
//! 1. Sets divide the world: every rank is in exactly one.
//! 2. A set's id is the lowest rank among its members.
//! 3. What a rank works out from its own node alone is what the whole map gives.
//! 4. Policies other than `all` and `file` never join ranks of different nodes.
//!
//! A locality string is what `opal_hwloc_base_get_locality_string` of Open MPI 4.1 writes: levels
//! such as `SK0` or `HT2,5-6`, joined by `:`, in any order. A process that is not bound has none.

use crate::policy::SetPolicy;
use core::fmt;
use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::BTreeMap;

/// Where a rank runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RankPlace {
    /// Any number that ranks of one node, and only they, share.
    pub node: u32,
    /// Locality string of Open MPI, if the process is bound.
    pub locality: Option<String>,
}

/// Where all ranks of the world run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcessMap {
    /// By rank in the world of the job.
    pub ranks: Vec<RankPlace>,
}

/// A process of this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalPeer<'a> {
    /// Its rank in the world of the job.
    pub rank: PeerId,
    /// Its locality string, if it is bound.
    pub locality: Option<&'a str>,
}

/// Which set a process belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The set.
    pub set: SetId,
    /// The policy asks for a level that is not known of every rank of the node: its set is the
    /// node's.
    pub fallback: bool,
}

/// Why a rank has no set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetsError {
    /// The policy is `file`, but no file was read.
    NoFile,
    /// The file describes a smaller world.
    NotInFile(PeerId),
    /// The rank is not among the processes of its own node.
    NotOnNode(PeerId),
}

impl fmt::Display for SetsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile => {
                write!(f, "the policy for correlated sets is file:PATH, but no file was read")
            }
            Self::NotInFile(rank) => {
                write!(
                    f,
                    "rank {rank} is in no correlated set of the set file; add it to a checkpoint"
                )
            }
            Self::NotOnNode(rank) => write!(
                f,
                "rank {rank} is not in the list of its node's ranks, so its correlated set is \
                 unknown; choose the policy core or file:PATH"
            ),
        }
    }
}

impl core::error::Error for SetsError {}

/// The set of `me`. `local`: all ranks of its node, itself included, in any order; each rank of
/// the node has to pass the same. `file`: what [`crate::parse_set_file`] gave.
///
/// # Errors
/// See [`SetsError`].
pub fn set_of(
    policy: &SetPolicy,
    me: PeerId,
    local: &[LocalPeer<'_>],
    file: Option<&[SetId]>,
) -> Result<Placement, SetsError> {
    let placed = |set| Ok(Placement { set, fallback: false });
    match policy {
        SetPolicy::Core => return placed(SetId(me.0)),
        SetPolicy::All => return placed(SetId(0)),
        SetPolicy::File(_) => {
            let sets = file.ok_or(SetsError::NoFile)?;
            let set = sets.get(me.0 as usize).copied().ok_or(SetsError::NotInFile(me))?;
            return placed(set);
        }
        SetPolicy::Node | SetPolicy::Numa | SetPolicy::Socket | SetPolicy::L3 => {}
    }
    let mine = local.iter().find(|peer| peer.rank == me).ok_or(SetsError::NotOnNode(me))?;
    let unknown = |name| local.iter().any(|peer| index(peer, name).is_none());
    let fallback = policy.locality_token().is_some_and(unknown);
    let with_me = |peer: &&LocalPeer<'_>| fallback || same(policy, peer, mine);
    let lowest = local.iter().filter(with_me).map(|peer| peer.rank).min().unwrap_or(me);
    Ok(Placement { set: SetId(lowest.0), fallback })
}

fn same(policy: &SetPolicy, one: &LocalPeer<'_>, other: &LocalPeer<'_>) -> bool {
    policy.locality_token().is_none_or(|name| index(one, name) == index(other, name))
}

/// The index list of a level in a peer's locality string.
fn index<'a>(peer: &LocalPeer<'a>, name: &str) -> Option<&'a str> {
    let levels = peer.locality?.split(':');
    let mut lists = levels.filter_map(|level| level.trim().strip_prefix(name));
    lists.find(|list| !list.is_empty())
}

impl ProcessMap {
    /// The set of every rank.
    ///
    /// # Errors
    /// See [`SetsError`].
    pub fn sets(
        &self,
        policy: &SetPolicy,
        file: Option<&[SetId]>,
    ) -> Result<Vec<SetId>, SetsError> {
        let ranks = || self.ranks.iter().zip(0..).map(|(place, rank)| (place, PeerId(rank)));
        let Some(name) = policy.locality_token().or(match policy {
            SetPolicy::Node => Some(""),
            _ => None,
        }) else {
            return ranks()
                .map(|(_, rank)| set_of(policy, rank, &[], file).map(|placement| placement.set))
                .collect();
        };
        // Lowest rank of each node, of each group in it, and nodes where a level is not known.
        let mut groups: BTreeMap<(u32, Option<&str>), SetId> = BTreeMap::new();
        let mut incomplete: BTreeMap<u32, bool> = BTreeMap::new();
        let mut keys = Vec::with_capacity(self.ranks.len());
        for (place, rank) in ranks() {
            let peer = LocalPeer { rank, locality: place.locality.as_deref() };
            let list = if name.is_empty() { None } else { index(&peer, name) };
            *incomplete.entry(place.node).or_default() |= list.is_none();
            groups.entry((place.node, list)).or_insert(SetId(rank.0));
            groups.entry((place.node, None)).or_insert(SetId(rank.0));
            keys.push((place.node, list));
        }
        let set = |(node, list): (u32, Option<&str>)| {
            let list = if incomplete[&node] { None } else { list };
            // The lowest rank of the whole node came first whatever its own group is.
            groups[&(node, list)]
        };
        Ok(keys.into_iter().map(set).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(places: &[(u32, Option<&str>)]) -> ProcessMap {
        let place = |&(node, locality): &(u32, Option<&str>)| RankPlace {
            node,
            locality: locality.map(str::to_owned),
        };
        ProcessMap { ranks: places.iter().map(place).collect() }
    }

    fn sets(map: &ProcessMap, policy: &str) -> Vec<u32> {
        let policy = SetPolicy::parse(policy).unwrap();
        map.sets(&policy, None).unwrap().iter().map(|set| set.0).collect()
    }

    const A: Option<&str> = Some("SK0:L30:L20:L10:CR0:HT0:NM0");
    const B: Option<&str> = Some("SK0:L31:L22:L12:CR2:HT2:NM1");
    const C: Option<&str> = Some("SK1:L32:L24:L14:CR4:HT4:NM1");
    const WIDE: Option<&str> = Some("SK0-1:L30-2:CR0,2-4:HT0-5:NM0-1");

    #[test]
    fn ranks_that_share_a_level_of_a_node_form_a_set() {
        let world = map(&[(7, A), (7, B), (7, C), (3, A), (3, B), (7, A)]);
        let table = [
            ("node", [0, 0, 0, 3, 3, 0]),
            ("core", [0, 1, 2, 3, 4, 5]),
            ("all", [0, 0, 0, 0, 0, 0]),
            ("socket", [0, 0, 2, 3, 3, 0]),
            ("numa", [0, 1, 1, 3, 4, 0]),
            ("l3", [0, 1, 2, 3, 4, 0]),
        ];
        for (policy, expected) in table {
            assert_eq!(sets(&world, policy), expected, "{policy}");
        }
    }

    #[test]
    fn a_rank_bound_to_two_sockets_is_in_neither_ones_set() {
        assert_eq!(sets(&map(&[(0, A), (0, WIDE), (0, C), (0, WIDE)]), "socket"), [0, 1, 2, 1]);
    }

    #[test]
    fn one_rank_without_the_level_makes_its_node_one_set() {
        let world = map(&[(0, A), (0, C), (0, None), (1, A), (1, C)]);
        assert_eq!(sets(&world, "socket"), [0, 0, 0, 3, 4]);
        let bare = Some("L20-1:CR0");
        let world = map(&[(0, A), (0, bare), (1, bare), (1, bare)]);
        assert_eq!(sets(&world, "l3"), [0, 0, 2, 2]);
        assert_eq!(sets(&world, "numa"), [0, 0, 2, 2]);
    }

    #[test]
    fn levels_are_not_confused_by_similar_text() {
        // "L3" must not be found in L2's list or in a longer word, and an empty list is none.
        let odd = Some("L23:XL30:L3");
        assert_eq!(sets(&map(&[(0, A), (0, odd)]), "l3"), [0, 0]);
    }

    #[test]
    fn a_fallback_is_reported() {
        let peer = |rank, locality| LocalPeer { rank: PeerId(rank), locality };
        let local = [peer(4, A), peer(6, None), peer(5, B)];
        let place = |policy| set_of(&policy, PeerId(5), &local, None).unwrap();
        assert_eq!(place(SetPolicy::Socket), Placement { set: SetId(4), fallback: true });
        assert_eq!(place(SetPolicy::Node), Placement { set: SetId(4), fallback: false });
        assert_eq!(place(SetPolicy::Core), Placement { set: SetId(5), fallback: false });
        assert_eq!(place(SetPolicy::All), Placement { set: SetId(0), fallback: false });
    }

    #[test]
    fn errors_say_what_to_do() {
        let file = SetPolicy::File("x".to_owned());
        let of = |policy: &SetPolicy, rank, file| set_of(policy, PeerId(rank), &[], file);
        assert_eq!(of(&file, 0, None), Err(SetsError::NoFile));
        assert_eq!(of(&file, 1, Some(&[SetId(0)])), Err(SetsError::NotInFile(PeerId(1))));
        assert_eq!(of(&SetPolicy::Node, 1, None), Err(SetsError::NotOnNode(PeerId(1))));
        let text = of(&file, 1, Some(&[SetId(0)])).unwrap_err().to_string();
        assert_eq!(text, "rank 1 is in no correlated set of the set file; add it to a checkpoint");
    }
}
