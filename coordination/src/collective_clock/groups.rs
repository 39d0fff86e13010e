//! Groups and communicators of one process, found by their members when a communicator is made,
//! and by a handle in each call.
//!
//! Source: Xu and Cooperman 2024, section 4.1 (global group id). Invariants:
//! 1. Communicators whose members are the same processes (MPI_IDENT, MPI_CONGRUENT, MPI_SIMILAR)
//!    share a group, whatever the order of their ranks.
//! 2. Groups of different members are different groups, also where their hashes are equal.
//! 3. A communicator that is made with the members and the context id of one that was freed gets
//!    the handle of that one. MPI gives a context id again only when all members have freed it, so
//!    all have entered as many collectives there, and all go on from the same number.

use super::CommHandle;
use rustbtl_fragments::ids::PeerId;
use std::collections::BTreeMap;

/// A group's name, the same at each of its members without communication.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupHash(pub u64);

impl GroupHash {
    /// Of these processes, in any order. A sum of mixed ids: in 32 bits, and with multiplications
    /// alone, groups of four of 64 processes collide 280 times as often as chance would have it.
    pub fn of(members: &[PeerId]) -> Self {
        let sum = members.iter().fold(0u64, |sum, member| sum.wrapping_add(mix(member.0.into())));
        Self(mix(sum.wrapping_add(members.len() as u64)))
    }
}

/// The finalizer of SplitMix64: each bit of the input changes half of those of the result.
/// Source: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", 2014.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[derive(Clone, Debug)]
struct Group {
    hash: GroupHash,
    members: Vec<PeerId>,
    /// By context id.
    communicators: BTreeMap<u32, CommHandle>,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct Communicators {
    groups: Vec<Group>,
    by_hash: BTreeMap<GroupHash, Vec<usize>>,
    /// By handle: group, context id.
    communicators: Vec<(usize, u32)>,
}

impl Communicators {
    /// The handle of a communicator with these members (sorted, each once). True: it is new.
    pub fn register(
        &mut self,
        hash: GroupHash,
        members: Vec<PeerId>,
        context: u32,
    ) -> (CommHandle, bool) {
        let same = self.by_hash.entry(hash).or_default();
        let known = same.iter().copied().find(|&at| self.groups[at].members == members);
        let at = known.unwrap_or(self.groups.len());
        if known.is_none() {
            same.push(at);
            self.groups.push(Group { hash, members, communicators: BTreeMap::new() });
        }
        let next = CommHandle(self.communicators.len() as u32);
        let handle = *self.groups[at].communicators.entry(context).or_insert(next);
        if handle == next {
            self.communicators.push((at, context));
        }
        (handle, handle == next)
    }

    fn group(&self, handle: CommHandle) -> &Group {
        &self.groups[self.communicators[handle.0 as usize].0]
    }

    pub fn context(&self, handle: CommHandle) -> u32 {
        self.communicators[handle.0 as usize].1
    }

    pub fn hash(&self, handle: CommHandle) -> GroupHash {
        self.group(handle).hash
    }

    pub fn members(&self, handle: CommHandle) -> &[PeerId] {
        &self.group(handle).members
    }

    /// All communicators of the same group, this one included.
    pub fn similar(&self, handle: CommHandle) -> impl Iterator<Item = CommHandle> + '_ {
        self.group(handle).communicators.values().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ranks: &[u32]) -> Vec<PeerId> {
        ranks.iter().map(|&rank| PeerId(rank)).collect()
    }

    #[test]
    fn invariant_1_the_hash_has_no_order_and_few_collisions() {
        assert_eq!(GroupHash::of(&ids(&[3, 1, 2])), GroupHash::of(&ids(&[1, 2, 3])));
        let mut hashes = Vec::new();
        for a in 0..64 {
            for b in 0..a {
                for c in 0..b {
                    hashes.extend((0..c).map(|d| GroupHash::of(&ids(&[a, b, c, d]))));
                }
            }
        }
        assert_eq!(hashes.len(), 635_376);
        hashes.sort_unstable();
        assert!(hashes.windows(2).all(|pair| pair[0] != pair[1]), "none among these");
        let low: Vec<u32> = hashes.iter().map(|hash| hash.0 as u32).collect();
        let low: std::collections::BTreeSet<u32> = low.into_iter().collect();
        assert!(hashes.len() - low.len() < 100, "its halves are as random (47 are expected)");
    }

    #[test]
    fn invariant_2_groups_with_one_hash_are_told_apart() {
        let mut table = Communicators::default();
        let same = GroupHash(7);
        let (first, _) = table.register(same, ids(&[0, 3]), 5);
        let (second, is_new) = table.register(same, ids(&[1, 3]), 5);
        assert!(is_new && first != second);
        assert_eq!(table.register(same, ids(&[0, 3]), 5), (first, false));
        assert_eq!(table.register(same, ids(&[1, 3]), 5), (second, false));
        assert_eq!((table.members(first), table.members(second)), (&*ids(&[0, 3]), &*ids(&[1, 3])));
    }

    #[test]
    fn invariants_1_and_3_similar_ones_share_a_group_and_a_context_id_used_again_its_handle() {
        let mut table = Communicators::default();
        let register = |table: &mut Communicators, context| {
            table.register(GroupHash::of(&ids(&[0, 1])), ids(&[0, 1]), context)
        };
        let (world, _) = register(&mut table, 0);
        let (dup, is_new) = register(&mut table, 9);
        assert!(is_new);
        assert_eq!(table.similar(world).collect::<Vec<_>>(), [world, dup]);
        assert_eq!(register(&mut table, 9), (dup, false));
    }
}
