//! Sets of whole worlds against sets that each rank works out by itself.

use proptest::prelude::*;
use rustbtl_coordination::{LocalPeer, ProcessMap, RankPlace, SetPolicy, set_of};
use rustbtl_fragments::ids::PeerId;

fn locality() -> impl Strategy<Value = Option<String>> {
    let bound = (0..2_u32, 0..3_u32, 0..2_u32, any::<bool>()).prop_map(|(sk, l3, nm, all)| {
        let numa = if all { format!(":NM{nm}") } else { String::new() };
        Some(format!("SK{sk}:L3{l3}:L20:CR0:HT0{numa}"))
    });
    prop_oneof![8 => bound, 1 => Just(None), 1 => "[A-Z0-9:,\\-]{0,12}".prop_map(Some)]
}

fn world() -> impl Strategy<Value = ProcessMap> {
    let place = (0..4_u32, locality()).prop_map(|(node, locality)| RankPlace { node, locality });
    prop::collection::vec(place, 1..24).prop_map(|ranks| ProcessMap { ranks })
}

proptest! {
    #[test]
    fn every_rank_works_out_for_itself_what_the_whole_map_says(world in world()) {
        for policy in ["node", "core", "numa", "socket", "l3", "all"] {
            let policy = SetPolicy::parse(policy).unwrap();
            let sets = world.sets(&policy, None).unwrap();
            for (rank, place) in world.ranks.iter().enumerate() {
                let mut local: Vec<LocalPeer> = world
                    .ranks
                    .iter()
                    .zip(0..)
                    .filter(|(other, _)| other.node == place.node)
                    .map(|(other, at)| LocalPeer {
                        rank: PeerId(at),
                        locality: other.locality.as_deref(),
                    })
                    .collect();
                local.reverse();
                let own = set_of(&policy, PeerId(rank as u32), &local, None).unwrap();
                prop_assert_eq!(own.set, sets[rank], "invariant 3, {} of rank {}", policy, rank);
                prop_assert_eq!(sets[own.set.0 as usize], own.set, "invariants 1 and 2");
                prop_assert!(own.set.0 as usize <= rank, "invariant 2");
                if policy != SetPolicy::All {
                    let home = &world.ranks[own.set.0 as usize];
                    prop_assert_eq!(home.node, place.node, "invariant 4");
                }
            }
        }
    }
}
