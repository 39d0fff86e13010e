//! What this process has recorded and does not know to be stable, and how it is sent.
//!
//! 1. What other sets have piggybacked to here is kept with its content until it is stable.
//! 2. Where nobody waits for the answer, only the places are sent that it holds: the set sends what
//!    is in them itself (docs/adr/0032). The content follows with the next that is sent if it is
//!    not stable by then, and at once where a frame waits or a fence asks.
//! 3. What is sent at a time is one piece, which is encrypted as one, of as few messages as can be.

use crate::determinants::outbox::{DeterminantBatch, PARCEL_BYTES, outbox, take_batch};
use rustbtl_coordination::control::{FromNode, FromRank, Message};
use rustbtl_coordination::determinants::rank_batch;
use rustbtl_fragments::ids::{Incarnation, PeerId};
use std::collections::VecDeque;

#[derive(Debug)]
struct KeptBatch {
    batch: DeterminantBatch,
    /// The coordinator has not been sent its content.
    named: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct UnstableBatches {
    /// In the order of their places.
    kept: VecDeque<KeptBatch>,
    /// So many of them are named.
    named: usize,
    /// The coordinator was told that a frame waits, and nothing has become stable since.
    is_gated: bool,
}

impl UnstableBatches {
    /// Nothing is recorded.
    pub(crate) const fn new() -> Self {
        Self { kept: VecDeque::new(), named: 0, is_gated: false }
    }

    /// Nothing is recorded any more.
    pub(crate) fn clear(&mut self) {
        self.kept.clear();
        (self.named, self.is_gated) = (0, false);
    }

    /// The one who was told that a frame waits may be gone.
    pub(crate) fn another_coordinator(&mut self) {
        self.is_gated = false;
    }

    /// Is all of it stable?
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Does the coordinator not have the content of some of it?
    pub(crate) fn has_named(&self) -> bool {
        self.named > 0
    }

    /// It was sent some other way, with its content.
    pub(crate) fn push(&mut self, batch: DeterminantBatch) {
        self.kept.push_back(KeptBatch { batch, named: false });
    }

    /// Everything.
    pub(crate) fn all(&self) -> Vec<DeterminantBatch> {
        self.kept.iter().map(|kept| kept.batch.clone()).collect()
    }

    /// Everything before this place is stable.
    pub(crate) fn drop_stable(&mut self, upto: u64) {
        while self.kept.front().is_some_and(|kept| kept.batch.last_at() < upto) {
            let kept = self.kept.pop_front();
            self.named -= usize::from(kept.is_some_and(|kept| kept.named));
            self.is_gated = false;
        }
    }

    /// What is to be sent to the coordinator: that of the outbox, and the content of what was only
    /// named before. `waits`: a frame of the set does; `contents`: nothing is named.
    pub(crate) fn gather(
        &mut self,
        (rank, incarnation): (PeerId, Incarnation),
        waits: bool,
        contents: bool,
    ) -> Vec<u8> {
        let mut parcel = Parcel { rank, ..Parcel::default() };
        // Also where all is sent: what it waits for may be another set's.
        let is_told = self.is_gated && !self.has_named() && outbox().is_empty();
        if waits && !is_told && !(self.is_empty() && outbox().is_empty()) {
            self.is_gated = true;
            parcel.add(FromRank::FrameGated {});
        }
        if self.named > 0 {
            for kept in self.kept.iter_mut().filter(|kept| kept.named) {
                kept.named = false;
                parcel.add(kept.batch.message(incarnation));
            }
            self.named = 0;
        }
        while let Some(batch) = take_batch() {
            let mut named = false;
            match &batch {
                DeterminantBatch::Own { from, bytes, .. } => parcel.append(*from, bytes),
                DeterminantBatch::Carried { at, places, .. } if !contents => {
                    named = true;
                    rank_batch::append_places(&mut parcel.recorded, *at, places);
                }
                DeterminantBatch::Named { at, places } => {
                    rank_batch::append_name(&mut parcel.recorded, *at, places);
                }
                DeterminantBatch::Carried { .. } => parcel.add(batch.message(incarnation)),
            }
            if parcel.recorded.len() >= PARCEL_BYTES {
                parcel.close(incarnation);
            }
            self.named += usize::from(named);
            self.kept.push_back(KeptBatch { batch, named });
        }
        parcel.close(incarnation);
        parcel.text
    }
}

/// Messages that are sent in one piece. They are encrypted together.
#[derive(Default)]
struct Parcel {
    rank: PeerId,
    text: Vec<u8>,
    /// Of the next one: what was recorded, in its order, and the number of the first that is own.
    recorded: Vec<u8>,
    from: Option<u64>,
}

impl Parcel {
    /// Consecutive determinants.
    fn append(&mut self, from: u64, recorded: &[u8]) {
        self.from.get_or_insert(from);
        self.recorded.extend_from_slice(recorded);
    }

    fn close(&mut self, incarnation: Incarnation) {
        let bytes = core::mem::take(&mut self.recorded);
        let from = self.from.take().unwrap_or(0);
        if !bytes.is_empty() {
            self.add(FromRank::Determinants { incarnation, from, bytes });
        }
    }

    fn add(&mut self, message: FromRank) {
        let frame = FromNode::Rank { rank: self.rank, message }.encode();
        // Not silently: what is lost here would be waited for for ever.
        self.text.extend(frame.expect("batches are short"));
    }
}
