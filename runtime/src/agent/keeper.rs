//! What this agent keeps of sets of other nodes: their determinants (coordination's
//! `DeterminantReplica`).

use rustbtl_coordination::control::{FromNode, RankClock, ToNode};
use rustbtl_coordination::determinants::{
    BatchRefused, DeterminantBatch, DeterminantReplica, ReplicaId,
};
use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::BTreeMap;

/// See the module's documentation.
pub struct Kept(DeterminantReplica);

impl Default for Kept {
    fn default() -> Self {
        // The coordinator tells agents apart by their connections.
        Self(DeterminantReplica::new(ReplicaId { set: SetId(0), start: 0 }))
    }
}

impl Kept {
    /// Is this message for the agent itself? Then what the coordinator hears of it.
    pub fn hear(&mut self, message: &ToNode) -> Option<Option<FromNode>> {
        Some(match message {
            ToNode::StoreDeterminants { batch } => Some(self.keep(batch)),
            ToNode::TrimDeterminants { set, clocks } => {
                let clocks: BTreeMap<PeerId, u64> =
                    clocks.iter().map(|RankClock { rank, clock }| (*rank, *clock)).collect();
                self.0.trim(*set, &clocks);
                None
            }
            ToNode::DropDeterminants { set } => {
                self.0.drop_set(*set);
                None
            }
            _ => return None,
        })
    }

    fn keep(&mut self, batch: &[u8]) -> FromNode {
        let not = |set, reason| FromNode::DeterminantsNotReplicated { set, reason };
        let batch = match DeterminantBatch::decode(batch) {
            Ok(batch) => batch,
            Err(error) => return not(SetId(u32::MAX), error.to_string()),
        };
        let set = batch.set;
        match self.0.on_batch(batch) {
            Ok(ack) => FromNode::DeterminantsReplicated {
                set,
                incarnation: ack.incarnation,
                upto: ack.upto,
            },
            Err(BatchRefused::Stale { known }) => {
                not(set, format!("incarnation {} is known already", known.0))
            }
            Err(BatchRefused::Gap { upto }) => not(set, format!("what follows {upto} is missing")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustbtl_coordination::determinants::{
        CallKind, Determinant, DeterminantLog, NondetCall, Numbered, Outcome,
    };
    use rustbtl_fragments::ids::Incarnation;

    fn shipped(count: u64) -> Vec<ToNode> {
        let keeper = ReplicaId { set: SetId(0), start: 7 };
        let mut shipper = DeterminantLog::new(SetId(2), Incarnation(0), [], 1, 2);
        shipper.set_replicas(&[keeper]);
        let question = NondetCall::requests(CallKind::Test, 1);
        for number in 0..count {
            let determinant = Determinant::Outcome { call: question, outcome: Outcome::Done };
            shipper.record(PeerId(2), Numbered { number, determinant });
        }
        core::iter::from_fn(|| shipper.poll_output())
            .map(|(_, batch)| ToNode::StoreDeterminants { batch: batch.encode() })
            .collect()
    }

    #[test]
    fn batches_are_kept_in_order_and_a_missing_one_is_told() {
        let mut kept = Kept::default();
        let batches = shipped(5);
        let upto = |told| match told {
            Some(Some(FromNode::DeterminantsReplicated { set: SetId(2), upto, .. })) => upto,
            other => panic!("{other:?}"),
        };
        assert_eq!(upto(kept.hear(&batches[0])), 2);
        assert!(matches!(
            kept.hear(&batches[2]),
            Some(Some(FromNode::DeterminantsNotReplicated { .. }))
        ));
        assert_eq!(upto(kept.hear(&batches[1])), 4);
        assert_eq!(upto(kept.hear(&batches[2])), 5);
        let clocks = vec![RankClock { rank: PeerId(2), clock: 4 }];
        assert_eq!(kept.hear(&ToNode::TrimDeterminants { set: SetId(2), clocks }), Some(None));
        assert_eq!(kept.0.fetch(SetId(2)).map(|(_, records)| records.len()), Some(1));
        assert_eq!(kept.hear(&ToNode::DropDeterminants { set: SetId(2) }), Some(None));
        assert!(kept.0.fetch(SetId(2)).is_none());
        assert_eq!(kept.hear(&ToNode::Heartbeat { count: 1 }), None);
    }
}
