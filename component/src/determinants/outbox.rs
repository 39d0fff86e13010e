//! Determinants that were not sent yet, in the order of recording.

use rustbtl_coordination::control::FromRank;
use rustbtl_coordination::determinants::{Numbered, PiggybackedPlaces, rank_batch};
use rustbtl_fragments::ids::Incarnation;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A batch is complete when it is so long: a message has a limit.
pub(crate) const PARCEL_BYTES: usize = 4 << 20;

/// Most determinants are shorter.
const USUAL_BYTES: usize = 64;

/// Determinants that were not sent yet.
static OUTBOX: Mutex<VecDeque<DeterminantBatch>> = Mutex::new(VecDeque::new());

/// What is sent to the log in one message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeterminantBatch {
    /// Determinants of consecutive numbers.
    Own {
        /// Number of the first.
        from: u64,
        /// Place of the last in the order of the set.
        last_at: u64,
        /// As `coordination::determinants::batch` has it.
        bytes: Vec<u8>,
    },
    /// What was piggybacked to here with a message: `coordination::determinants::Carried`.
    Carried {
        /// Its place in the order of the set.
        at: u64,
        /// Which places of which set it holds.
        places: PiggybackedPlaces,
        /// As it came.
        bytes: Vec<u8>,
    },
    /// What was named to here: others have its content.
    Named {
        /// Its place in the order of the set.
        at: u64,
        /// Which places of which set it holds.
        places: PiggybackedPlaces,
    },
}

impl DeterminantBatch {
    /// Place of the last of it in the order of the set.
    pub fn last_at(&self) -> u64 {
        match self {
            Self::Own { last_at, .. } => *last_at,
            Self::Carried { at, .. } | Self::Named { at, .. } => *at,
        }
    }

    /// The message to the coordinator, of this incarnation.
    pub fn message(&self, incarnation: Incarnation) -> FromRank {
        match self.clone() {
            Self::Own { from, bytes, .. } => FromRank::Determinants { incarnation, from, bytes },
            Self::Carried { at, bytes, .. } => FromRank::Piggybacked { incarnation, at, bytes },
            Self::Named { at, places } => {
                let mut bytes = Vec::new();
                rank_batch::append_name(&mut bytes, at, &places);
                FromRank::Determinants { incarnation, from: 0, bytes }
            }
        }
    }
}

/// Add a determinant, and begin a new batch if the last is long, or something else.
pub(crate) fn put(outbox: &mut VecDeque<DeterminantBatch>, at: u64, numbered: &Numbered) {
    if let Some(DeterminantBatch::Own { last_at, bytes, .. }) = outbox.back_mut()
        && bytes.len() < PARCEL_BYTES
    {
        rank_batch::append(bytes, at, &numbered.determinant);
        *last_at = at;
        return;
    }
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    rank_batch::append(&mut bytes, at, &numbered.determinant);
    outbox.push_back(DeterminantBatch::Own { from: numbered.number, last_at: at, bytes });
}

pub(crate) fn outbox() -> MutexGuard<'static, VecDeque<DeterminantBatch>> {
    OUTBOX.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The oldest of what has been recorded since, if anything.
pub fn take_batch() -> Option<DeterminantBatch> {
    outbox().pop_front()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustbtl_coordination::determinants::{Determinant, NondetCall, Outcome};
    use rustbtl_fragments::ids::SetId;

    fn found(number: u64) -> Numbered {
        let (question, outcome) = (NondetCall::file(1, 8), Outcome::Value(u64::MAX));
        Numbered { number, determinant: Determinant::Outcome { call: question, outcome } }
    }

    #[test]
    fn determinants_are_batched_to_the_size_of_messages() {
        let (mut outbox, mut next, total) = (VecDeque::new(), 0, 1_000_000);
        for number in 0..total {
            put(&mut outbox, number + 5, &found(number));
        }
        assert!(outbox.len() > 1);
        for batch in outbox {
            let DeterminantBatch::Own { from, last_at, bytes } = batch else {
                panic!("nothing came")
            };
            assert_eq!(from, next);
            assert!(bytes.len() < PARCEL_BYTES + 100);
            let all = rank_batch::read(&bytes).unwrap();
            assert_eq!(all.first().map(|(at, _)| *at), Some(next + 5));
            next += all.len() as u64;
            assert_eq!(last_at, next + 4);
        }
        assert_eq!(next, total);
    }

    #[test]
    fn what_was_piggybacked_to_here_is_sent_in_the_order_of_recording() {
        let mut outbox = VecDeque::new();
        put(&mut outbox, 7, &found(0));
        put(&mut outbox, 8, &found(1));
        let places = PiggybackedPlaces { set: SetId(0), incarnation: Incarnation(0), upto: 3 };
        outbox.push_back(DeterminantBatch::Carried { at: 9, places, bytes: vec![1] });
        put(&mut outbox, 11, &found(2));
        outbox.push_back(DeterminantBatch::Named { at: 12, places });
        let last: Vec<u64> = outbox.iter().map(DeterminantBatch::last_at).collect();
        assert_eq!(last, [8, 9, 11, 12]);
        let incarnation = Incarnation(3);
        let messages: Vec<FromRank> =
            outbox.iter().map(|batch| batch.message(incarnation)).collect();
        let carried = FromRank::Piggybacked { incarnation, at: 9, bytes: vec![1] };
        assert_eq!(messages[1], carried);
        assert!(matches!(messages[2], FromRank::Determinants { from: 2, .. }));
        let FromRank::Determinants { bytes, .. } = &messages[3] else { panic!("{messages:?}") };
        let named = vec![(12, rank_batch::Recorded::Named(places))];
        assert_eq!(rank_batch::read_recorded(bytes).unwrap(), named);
    }
}
