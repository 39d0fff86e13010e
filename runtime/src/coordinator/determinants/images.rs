//! What checkpoints and determinants have to do with each other: which determinants a checkpoint
//! covers, and on which its images depend. Part of [`Determinants`]: no I/O.
//!
//! Source: DESIGN §5; docs/adr/0019, 6. A snapshot depends on everything that was piggybacked to
//! its set before it was taken. If that were lost, and both the set and the sender were rolled
//! back, the sender would do something else than what the snapshot has seen.
//!
//! 1. The job is notified of a stored image when everything is here that its set had recorded when
//!    it was taken. A rank reports how much that is before it reports its snapshot, on the same
//!    connection: it is known.
//! 2. It is not notified of an image of an aborted checkpoint or of a failed set.
//! 3. A coordinator after a failover knows of no checkpoint in progress, and completes none.
//! 4. An image does not wait for ever for something that nobody is going to send: after
//!    [`ASK_AFTER_MS`], and again after each, all ranks are asked for what is not stable. What is
//!    sent twice counts once.

use crate::coordinator::determinants::tables::{DeferredImage, SnapshotClock};
use crate::coordinator::determinants::{Determinants, Out};
use rustbtl_coordination::control::{CheckpointId, FromNode, RankClock, ToNode, ToRank};
use rustbtl_fragments::ids::{PeerId, SetId};
use serde_json::json;
use std::collections::BTreeMap;

/// How long an image may wait before ranks are asked for what it waits for. Where they get a
/// processor, what they record is sent within milliseconds.
const ASK_AFTER_MS: u64 = 2_000;

impl Determinants {
    /// Clocks of stored checkpoints of which something may still be trimmed.
    pub fn clocks(&self) -> impl Iterator<Item = (CheckpointId, PeerId, u64)> {
        let of = |(&checkpoint, clocks): (&CheckpointId, &BTreeMap<PeerId, SnapshotClock>)| {
            let of_checkpoint: Vec<_> =
                clocks.iter().map(|(&rank, at)| (checkpoint, rank, at.clock)).collect();
            of_checkpoint
        };
        self.clocks.iter().flat_map(of)
    }

    /// As [`Self::clocks`] returned it.
    pub fn set_clock(&mut self, checkpoint: CheckpointId, rank: PeerId, clock: u64) {
        let snapshot = SnapshotClock { clock, ..SnapshotClock::default() };
        self.clocks.entry(checkpoint).or_default().insert(rank, snapshot);
    }

    /// The set of `rank` is rolled back to no checkpoint before this one.
    pub fn trim(&mut self, rank: PeerId, checkpoint: CheckpointId) {
        let Some(set) = self.ranks.get(&rank).map(|known| known.set) else { return };
        let of_set = |rank: &PeerId| self.ranks.get(rank).is_some_and(|known| known.set == set);
        let Some(all) = self.clocks.get(&checkpoint) else { return };
        let clocks: BTreeMap<PeerId, u64> = all
            .iter()
            .filter(|(rank, _)| of_set(rank))
            .map(|(&rank, at)| (rank, at.clock))
            .collect();
        // This is called once for each rank of the set.
        for (_, of_checkpoint) in self.clocks.range_mut(..=checkpoint) {
            of_checkpoint.retain(|rank, _| !clocks.contains_key(rank));
        }
        self.clocks.retain(|_, of_checkpoint| !of_checkpoint.is_empty());
        let Some(of) = self.sets.get_mut(&set).filter(|_| !clocks.is_empty()) else { return };
        of.order.log_mut().trim(&clocks);
        let replicas: Vec<_> = of.order.log().replicas().collect();
        if self.does_persist {
            self.persist_all(set);
        }
        let list = clocks.into_iter().map(|(rank, clock)| RankClock { rank, clock });
        let clocks: Vec<RankClock> = list.collect();
        for replica in replicas {
            let less = ToNode::TrimDeterminants { set, clocks: clocks.clone() };
            self.out.push(Out::Agent(replica.start, less));
        }
    }

    /// Does the image of this rank depend on something that is not here?
    fn must_wait(&self, checkpoint: CheckpointId, rank: PeerId) -> bool {
        let snapshot =
            self.clocks.get(&checkpoint).and_then(|of_checkpoint| of_checkpoint.get(&rank));
        let (Some(at), Some(known)) = (snapshot, self.ranks.get(&rank)) else { return false };
        at.recorded > 0
            && at.incarnation == known.incarnation
            && self.next(known.set, at.incarnation).is_none_or(|next| next < at.recorded)
    }

    /// An image is stored. True: the job is not notified yet (1).
    pub(super) fn defer_image(
        &mut self,
        agent: u64,
        checkpoint: CheckpointId,
        rank: PeerId,
        message: &FromNode,
    ) -> bool {
        let must_wait = self.must_wait(checkpoint, rank);
        if must_wait {
            let message = message.clone();
            let deferred = DeferredImage { agent, message, since_ms: None, asked_ms: None };
            self.deferred_images.insert((checkpoint, rank), deferred);
        }
        must_wait
    }

    /// Some may not have to wait any more.
    pub(super) fn release_images(&mut self) {
        let waiting = self.deferred_images.keys().copied();
        let now: Vec<_> =
            waiting.filter(|&(checkpoint, rank)| !self.must_wait(checkpoint, rank)).collect();
        for key in now {
            let image = self.deferred_images.remove(&key);
            self.out.extend(image.map(|image| Out::Deliver(image.agent, image.message)));
        }
    }

    /// Time has passed: images that have waited for long (4).
    pub fn ask_for_missing(&mut self, now: u64) {
        let mut waiting = Vec::new();
        for (&key, deferred) in &mut self.deferred_images {
            let since = *deferred.since_ms.get_or_insert(now);
            let last = deferred.asked_ms.unwrap_or(since);
            if now >= last.saturating_add(ASK_AFTER_MS) {
                deferred.asked_ms = Some(now);
                waiting.push((key, now - since));
            }
        }
        for ((checkpoint, rank), waited_ms) in &waiting {
            let (needed, here) = self.progress(*checkpoint, *rank);
            self.log(json!({
                "event": "image_deferred", "checkpoint": checkpoint.0, "rank": rank.0,
                "waited_ms": waited_ms, "recorded": needed, "received": here,
            }));
        }
        if !waiting.is_empty() {
            let all: Vec<PeerId> = self.ranks.keys().copied().collect();
            let ask = |rank| Out::Rank(rank, ToRank::ResendDeterminants {});
            self.out.extend(all.into_iter().map(ask));
        }
    }

    /// Up to which place the order of the rank's set is needed for its image, and how far it goes.
    fn progress(&self, checkpoint: CheckpointId, rank: PeerId) -> (Option<u64>, Option<u64>) {
        let snapshot = self.clocks.get(&checkpoint).and_then(|clocks| clocks.get(&rank));
        let set = self.ranks.get(&rank).map(|known| known.set);
        let here = snapshot.zip(set).and_then(|(at, set)| self.next(set, at.incarnation));
        (snapshot.map(|at| at.recorded), here)
    }

    /// The checkpoint is aborted (2).
    pub fn aborted(&mut self, checkpoint: CheckpointId) {
        self.deferred_images.retain(|(of, _), _| *of != checkpoint);
    }

    /// This set has failed (2).
    pub(super) fn drop_deferred_images(&mut self, set: SetId) {
        let ranks = &self.ranks;
        let of_set = |rank: &PeerId| ranks.get(rank).is_some_and(|known| known.set == set);
        self.deferred_images.retain(|(_, rank), _| !of_set(rank));
    }
}
