//! What an agent stores of other sets: their determinants since the oldest checkpoint they may be
//! rolled back to.
//!
//! Source: DESIGN §5, §7.3. A restarted set inherits what its replicas have and sends it again
//! under its new incarnation, since other replicas may have to store it. Until that is complete the
//! replica keeps what it had: the set may fail once more on the way.
//!
//! Invariants:
//! * K1 What is given back is complete: everything that was stable when the set failed is in it.
//! * K2 Batches of an older incarnation than the youngest known one are refused.

use super::log::{BatchAck, DeterminantBatch, DeterminantRecord, ReplicaId, is_covered};
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use std::collections::BTreeMap;

/// Why a batch was not taken. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchRefused {
    /// K2: the set was restarted since. Never to be repeated.
    Stale {
        /// The youngest incarnation that is known.
        known: Incarnation,
    },
    /// Something before it is missing: the log sends from here again.
    Gap {
        /// Everything before this place is here.
        upto: u64,
    },
}

#[derive(Clone, Debug)]
struct Generation {
    incarnation: Incarnation,
    inherits: u64,
    upto: u64,
    records: Vec<DeterminantRecord>,
}

impl Generation {
    fn is_complete(&self) -> bool {
        self.upto >= self.inherits
    }
}

/// At most two generations of a set: the last complete one, and one that is coming in.
#[derive(Clone, Debug, Default)]
struct ReplicatedSet {
    complete: Option<Generation>,
    coming: Option<Generation>,
}

/// What is to be forced of a set that is rolled back to a checkpoint taken in incarnation
/// `checkpoint`, from what its replicas give: the youngest incarnation counts, then the longest
/// log. One that is older than the checkpoint describes a past that the checkpoint is not part of,
/// and shows that nothing that was recorded since was ever stable. None: lost.
pub fn choose_history<'a>(
    checkpoint: Incarnation,
    logs: impl IntoIterator<Item = Option<(Incarnation, &'a [DeterminantRecord])>>,
) -> Option<Vec<DeterminantRecord>> {
    let end = |records: &[DeterminantRecord]| records.last().map_or(0, |record| record.at + 1);
    let best = logs.into_iter().flatten().max_by_key(|(age, records)| (*age, end(records)));
    best.map(|(age, records)| if age < checkpoint { Vec::new() } else { records.to_vec() })
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct DeterminantReplica {
    id: ReplicaId,
    sets: BTreeMap<SetId, ReplicatedSet>,
}

impl DeterminantReplica {
    /// An agent that has just started.
    pub fn new(id: ReplicaId) -> Self {
        Self { id, sets: BTreeMap::new() }
    }

    /// Who it is.
    pub fn id(&self) -> ReplicaId {
        self.id
    }

    /// Determinants of a set.
    ///
    /// # Errors
    /// They are of an earlier incarnation, or others are missing.
    pub fn on_batch(&mut self, batch: DeterminantBatch) -> Result<BatchAck, BatchRefused> {
        let DeterminantBatch { set, incarnation, from, upto, inherits, records } = batch;
        let kept = self.sets.entry(set).or_default();
        let newest = kept.coming.as_ref().or(kept.complete.as_ref());
        if let Some(known) = newest.map(|generation| generation.incarnation)
            && known > incarnation
        {
            return Err(BatchRefused::Stale { known });
        }
        let here = newest.filter(|known| known.incarnation == incarnation);
        let here = here.map_or(0, |known| known.upto);
        if from > here {
            return Err(BatchRefused::Gap { upto: here });
        }
        let is_of = |generation: &Generation| generation.incarnation == incarnation;
        if !newest.is_some_and(is_of) {
            let records = Vec::new();
            kept.coming = Some(Generation { incarnation, inherits, upto: 0, records });
        }
        let Some(generation) = kept.coming.as_mut().or(kept.complete.as_mut()) else {
            return Err(BatchRefused::Gap { upto: 0 });
        };
        generation.records.extend(records.into_iter().filter(|record| record.at >= here));
        generation.upto = generation.upto.max(upto);
        let ack = BatchAck { replica: self.id, set, incarnation, upto: generation.upto };
        if generation.is_complete()
            && let Some(coming) = kept.coming.take()
        {
            kept.complete = Some(coming);
        }
        Ok(ack)
    }

    /// The set is to be restored: its determinants in their order, and the incarnation that sent
    /// them. Of several replicas the youngest incarnation counts, then the longest log: what an
    /// earlier incarnation had recorded beyond what was inherited from it never happened. None:
    /// this agent never had all that was stable, so it does not know what is to be forced (K1).
    pub fn fetch(&self, set: SetId) -> Option<(Incarnation, &[DeterminantRecord])> {
        let complete = self.sets.get(&set)?.complete.as_ref()?;
        Some((complete.incarnation, &complete.records))
    }

    /// The oldest checkpoint that the set may be rolled back to has these clocks. Call it when that
    /// checkpoint is complete (the coordinator's `Trim`), not before.
    pub fn trim(&mut self, set: SetId, clocks: &BTreeMap<PeerId, u64>) {
        let Some(kept) = self.sets.get_mut(&set) else { return };
        for generation in kept.complete.iter_mut().chain(&mut kept.coming) {
            generation.records.retain(|record| !is_covered(record, clocks));
        }
    }

    /// The set has other replicas now, or is gone.
    pub fn drop_set(&mut self, set: SetId) {
        self.sets.remove(&set);
    }
}
