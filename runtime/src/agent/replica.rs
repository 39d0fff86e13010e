//! This agent's replicas of the determinants of other nodes' sets (coordination's
//! `DeterminantReplica`).

use rustbtl_coordination::control::{FromNode, RankClock, ToNode};
use rustbtl_coordination::determinants::{
    BatchRefused, DeterminantBatch, DeterminantReplica, ReplicaId,
};
use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::BTreeMap;

/// See the module's documentation.
pub struct AgentReplica(DeterminantReplica);

impl Default for AgentReplica {
    fn default() -> Self {
        // The coordinator tells agents apart by their connections.
        Self(DeterminantReplica::new(ReplicaId { set: SetId(0), start: 0 }))
    }
}

impl AgentReplica {
    /// None: the message is not for the replica. Else the answer to the coordinator, if any.
    pub fn handle(&mut self, message: &ToNode) -> Option<Option<FromNode>> {
        Some(match message {
            ToNode::StoreDeterminants { batch } => Some(self.store(batch)),
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

    fn store(&mut self, batch: &[u8]) -> FromNode {
        let refused = |set, reason| FromNode::DeterminantsNotReplicated { set, reason };
        let batch = match DeterminantBatch::decode(batch) {
            Ok(batch) => batch,
            Err(error) => return refused(SetId(u32::MAX), error.to_string()),
        };
        let set = batch.set;
        match self.0.on_batch(batch) {
            Ok(ack) => FromNode::DeterminantsReplicated {
                set,
                incarnation: ack.incarnation,
                upto: ack.upto,
            },
            Err(BatchRefused::Stale { known }) => {
                refused(set, format!("incarnation {} is known already", known.0))
            }
            Err(BatchRefused::Gap { upto }) => {
                refused(set, format!("what follows {upto} is missing"))
            }
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

    fn batches(count: u64) -> Vec<ToNode> {
        let replica = ReplicaId { set: SetId(0), start: 7 };
        let mut log = DeterminantLog::new(SetId(2), Incarnation(0), [], 1, 2);
        log.set_replicas(&[replica]);
        let call = NondetCall::requests(CallKind::Test, 1);
        for number in 0..count {
            let determinant = Determinant::Outcome { call, outcome: Outcome::Done };
            log.record(PeerId(2), Numbered { number, determinant });
        }
        core::iter::from_fn(|| log.poll_output())
            .map(|(_, batch)| ToNode::StoreDeterminants { batch: batch.encode() })
            .collect()
    }

    #[test]
    fn batches_are_stored_in_order_and_a_missing_one_is_reported() {
        let mut replica = AgentReplica::default();
        let batches = batches(5);
        let upto = |answer| match answer {
            Some(Some(FromNode::DeterminantsReplicated { set: SetId(2), upto, .. })) => upto,
            other => panic!("{other:?}"),
        };
        assert_eq!(upto(replica.handle(&batches[0])), 2);
        assert!(matches!(
            replica.handle(&batches[2]),
            Some(Some(FromNode::DeterminantsNotReplicated { .. }))
        ));
        assert_eq!(upto(replica.handle(&batches[1])), 4);
        assert_eq!(upto(replica.handle(&batches[2])), 5);
        let clocks = vec![RankClock { rank: PeerId(2), clock: 4 }];
        assert_eq!(replica.handle(&ToNode::TrimDeterminants { set: SetId(2), clocks }), Some(None));
        assert_eq!(replica.0.fetch(SetId(2)).map(|(_, records)| records.len()), Some(1));
        assert_eq!(replica.handle(&ToNode::DropDeterminants { set: SetId(2) }), Some(None));
        assert!(replica.0.fetch(SetId(2)).is_none());
        assert_eq!(replica.handle(&ToNode::Heartbeat { count: 1 }), None);
    }
}
