//! Instances of context ids: which communicator of those that get the same id one after the other.
//!
//! Source: fragments/DESIGN.md "Context ids are reused". Invariants:
//! 1. All members of a communicator give it the same instance, without communication.
//! 2. Executed again from a checkpoint, a communicator gets the instance that it had.
//! 3. Communicators of the same members with the same id get different instances, one after the
//!    other (65,536 of them); of other members, with the probability of 1 in 65,536 the same.
//!
//! The state is plain data of the process and is rolled back with it. It grows with the number of
//! different groups that get an id, 16 bytes and the nodes of a tree for each.

use rustbtl_fragments::ids::{ContextId, PeerId};
use std::collections::BTreeMap;

/// How many communicators of which members were made, by MPI context id.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Instances {
    made: BTreeMap<(u16, u64), u32>,
}

impl Instances {
    /// The context id, with instance, of a new communicator whose `members` are given in the order
    /// of their ranks. Call it once for each communicator that is made, predefined ones, too.
    pub fn next(&mut self, number: u16, members: &[PeerId]) -> ContextId {
        self.count(number, hash_of(&[members]))
    }

    /// The same for an intercommunicator. Both sides get the same, whichever calls itself local.
    pub fn next_inter(&mut self, number: u16, local: &[PeerId], remote: &[PeerId]) -> ContextId {
        let groups = if local <= remote { [local, remote] } else { [remote, local] };
        self.count(number, hash_of(&groups))
    }

    fn count(&mut self, number: u16, hash: u64) -> ContextId {
        let made = self.made.entry((number, hash)).or_default();
        let folded = hash ^ (hash >> 32);
        let start = (folded ^ (folded >> 16)) as u16;
        let instance = start.wrapping_add(*made as u16);
        *made = made.wrapping_add(1);
        ContextId::new(number, instance)
    }
}

/// FNV-1a over the lengths and members of the groups, stirred at the end.
fn hash_of(groups: &[&[PeerId]]) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325u64;
    let mut add = |word: u32| {
        for byte in word.to_le_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    };
    for group in groups {
        add(group.len() as u32);
        group.iter().for_each(|member| add(member.0));
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn ids(members: &[u32]) -> Vec<PeerId> {
        members.iter().copied().map(PeerId).collect()
    }

    #[test]
    fn members_agree_whatever_else_each_of_them_made() {
        let (mut a, mut b) = (Instances::default(), Instances::default());
        let (ab, all) = (ids(&[0, 1]), ids(&[0, 1, 2]));
        a.next(5, &ids(&[0, 2]));
        a.next(6, &ids(&[0, 2]));
        b.next(5, &ids(&[2, 1]));
        for members in [&ab, &all, &ab, &ab, &all] {
            assert_eq!(a.next(5, members), b.next(5, members));
        }
    }

    #[test]
    fn instances_of_the_same_members_differ_for_65536_times() {
        let mut made = Instances::default();
        let members = ids(&[3, 1, 4]);
        let seen: BTreeSet<ContextId> = (0..65_536).map(|_| made.next(9, &members)).collect();
        assert_eq!(seen.len(), 65_536);
        assert!(seen.iter().all(|context| context.number() == 9));
        assert_eq!(made.made.len(), 1, "a loop of duplicates needs one entry");
    }

    #[test]
    fn executed_again_they_are_the_same_again() {
        let mut made = Instances::default();
        made.next(3, &ids(&[0, 1]));
        let mut checkpoint = made.clone();
        let later: Vec<_> = (0..5).map(|_| made.next(3, &ids(&[0, 1]))).collect();
        let again: Vec<_> = (0..5).map(|_| checkpoint.next(3, &ids(&[0, 1]))).collect();
        assert_eq!(later, again);
    }

    #[test]
    fn other_members_or_another_order_are_other_communicators() {
        let groups: Vec<Vec<PeerId>> = (0..40u32)
            .flat_map(|a| (0..40u32).filter(move |b| *b != a).map(move |b| ids(&[a, b])))
            .collect();
        let mut same = 0;
        let first: Vec<ContextId> =
            groups.iter().map(|group| Instances::default().next(7, group)).collect();
        for (at, one) in first.iter().enumerate() {
            same += first[..at].iter().filter(|other| *other == one).count();
        }
        // 1560 · 1559 / 2 pairs, each alike with 2⁻¹⁶: 18.6 are expected.
        assert!((5..45).contains(&same), "{same} pairs of {}", groups.len());
        let split = Instances::default().next_inter(7, &ids(&[0]), &ids(&[1, 2]));
        assert_ne!(split, Instances::default().next_inter(7, &ids(&[0, 1]), &ids(&[2])));
    }

    #[test]
    fn both_sides_of_an_intercommunicator_agree() {
        let (left, right) = (ids(&[4, 0]), ids(&[2, 3]));
        let (mut a, mut b) = (Instances::default(), Instances::default());
        for _ in 0..3 {
            assert_eq!(a.next_inter(8, &left, &right), b.next_inter(8, &right, &left));
        }
    }
}
