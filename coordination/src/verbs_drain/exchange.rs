//! The coordinator's part: what all ranks have given to a step is sent to each of them.
//!
//! * E1 The parts of a step are sent when every rank has given one, not before.
//! * E2 When a rank gives another one later, all are sent again.
//! * E3 Steps of older checkpoints, and all but the last two of a checkpoint, are forgotten; parts
//!   of them change nothing.
//! * E4 The parts of a step have no more bytes together than was said; whoever gives more is
//!   refused, and what was there stays.
//! * E5 When the drain of a checkpoint is over nothing of it is kept.

use super::MADE;
use crate::control::RankPart;
use core::fmt;
use rustbtl_fragments::ids::PeerId;
use std::collections::BTreeMap;

/// Each rank's.
pub type Parts = BTreeMap<PeerId, Vec<u8>>;

/// One part has no more: so it fits into a message, and all names that a job can have do.
pub const PART_BYTES_MAX: usize = 56 << 20;
/// All of a step that follows a restart: they go to each node once, and its connection holds twice
/// as much.
const NAMES_BYTES_MAX: usize = 128 << 20;
/// All of a step of a drain. A connection takes 29 bytes there, and 45 after a restart: what can be
/// drained can be restored.
const TALLIES_BYTES_MAX: usize = NAMES_BYTES_MAX / 2;
/// Parts of so many bytes are sent together.
const PIECE_BYTES: usize = 1 << 20;

/// All parts of a step have no more bytes.
pub const fn bytes_max(step: u32) -> usize {
    if step < MADE { TALLIES_BYTES_MAX } else { NAMES_BYTES_MAX }
}

/// A part that is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong {
    /// Its bytes, or those of all together with it.
    pub bytes: usize,
    /// Allowed.
    pub most: usize,
    /// All together are meant.
    pub together: bool,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, most, together } = self;
        let whose = if *together { "with those of other ranks before it " } else { "" };
        write!(
            f,
            "what is to be said of its verbs takes {whose}{bytes} bytes, {most} are possible: it \
             has too many connections or regions"
        )
    }
}

impl core::error::Error for TooLong {}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    checkpoint: u64,
    /// The drains up to this one are over.
    forgotten: Option<u64>,
    steps: BTreeMap<u32, Parts>,
}

impl Exchange {
    /// A rank, one of `ranks`, gives its part. Some: all are to be sent to every rank. `most`:
    /// bytes of a step.
    ///
    /// # Errors
    /// Its part is too long.
    pub fn give(
        &mut self,
        (checkpoint, step): (u64, u32),
        rank: PeerId,
        part: Vec<u8>,
        (ranks, most): (usize, usize),
    ) -> Result<Option<&Parts>, TooLong> {
        if part.len() > PART_BYTES_MAX {
            let (bytes, most) = (part.len(), PART_BYTES_MAX);
            return Err(TooLong { bytes, most, together: false });
        }
        if checkpoint > self.checkpoint {
            *self = Self { checkpoint, steps: BTreeMap::new(), ..*self };
        }
        let last = self.steps.last_key_value().map_or(0, |(&last, _)| last);
        // A part may be on its way when its drain is given up.
        let is_over = Some(checkpoint) <= self.forgotten && step < MADE;
        if is_over || checkpoint < self.checkpoint || step.saturating_add(1) < last {
            return Ok(None);
        }
        let others = self.steps.get(&step).into_iter().flatten().filter(|&(&of, _)| of != rank);
        let bytes = others.map(|(_, part)| part.len()).sum::<usize>() + part.len();
        if bytes > most {
            return Err(TooLong { bytes, most, together: true });
        }
        self.steps.retain(|&known, _| known.saturating_add(1) >= step);
        let parts = self.steps.entry(step).or_default();
        parts.insert(rank, part);
        Ok((parts.len() == ranks).then_some(&*parts))
    }

    /// The drain of a checkpoint is over.
    pub fn forget(&mut self, checkpoint: u64) {
        self.forgotten = self.forgotten.max(Some(checkpoint));
        if checkpoint >= self.checkpoint {
            self.steps.clear();
        }
    }

    /// Bytes that are kept.
    pub fn bytes(&self) -> usize {
        self.steps.values().flatten().map(|(_, part)| part.len()).sum()
    }

    /// Assert what can be seen of the invariants from inside.
    pub fn check(&self) {
        assert!(self.steps.len() <= 2, "E3: {} steps", self.steps.len());
    }
}

/// All parts, in order, in messages that are not too long. Not empty.
pub fn split(all: &Parts) -> Vec<Vec<RankPart>> {
    let (mut pieces, mut piece, mut bytes) = (Vec::new(), Vec::new(), 0);
    for (&rank, part) in all {
        if bytes > 0 && bytes + part.len() > PIECE_BYTES {
            pieces.push(core::mem::take(&mut piece));
            bytes = 0;
        }
        bytes += part.len();
        piece.push(RankPart { rank, part: part.clone() });
    }
    pieces.push(piece);
    pieces
}

/// At a rank: pieces, until they are whole.
///
/// * G1 All parts of one step are given out together, those that came after the last beginning:
///   a coordinator that takes over begins again.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    of: (u64, u32),
    parts: Vec<RankPart>,
}

impl Pieces {
    /// A piece has come. Some: it was the last one.
    pub fn add(
        &mut self,
        of: (u64, u32),
        parts: Vec<RankPart>,
        is_last: bool,
    ) -> Option<Vec<RankPart>> {
        let goes_on = match (self.parts.last(), parts.first()) {
            (Some(before), Some(next)) => self.of == of && before.rank < next.rank,
            _ => self.of == of,
        };
        if !goes_on {
            *self = Self { of, parts: Vec::new() };
        }
        self.parts.extend(parts);
        is_last.then(|| core::mem::take(&mut self.parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[usize]) -> Parts {
        (0..).map(PeerId).zip(bytes.iter().map(|&bytes| vec![bytes as u8; bytes])).collect()
    }

    #[test]
    fn e4_too_much_is_refused_and_e5_nothing_is_kept() {
        let mut exchange = Exchange::default();
        let mut give = |step, rank, bytes| {
            let given = exchange.give((1, step), PeerId(rank), vec![0; bytes], (2, 100));
            given.map(|all| all.map(|all| all.values().map(Vec::len).collect::<Vec<_>>()))
        };
        let most = PART_BYTES_MAX;
        let alone = TooLong { bytes: most + 1, most, together: false };
        assert_eq!(give(0, 0, most + 1), Err(alone));
        assert_eq!(give(0, 0, 60), Ok(None));
        assert_eq!(give(0, 1, 41), Err(TooLong { bytes: 101, most: 100, together: true }));
        assert_eq!(give(0, 1, 40), Ok(Some(vec![60, 40])));
        // In place of its own.
        assert_eq!(give(0, 0, 30), Ok(Some(vec![30, 40])));
        assert_eq!(give(1, 0, 100), Ok(None));
        exchange.forget(0);
        assert_eq!(exchange.bytes(), 170);
        exchange.forget(1);
        assert_eq!(exchange.bytes(), 0);
        for (of, kept) in [((1, 1), 0), ((1, MADE), 5), ((2, 0), 5)] {
            let given = exchange.give(of, PeerId(0), vec![0; 5], (2, 100));
            assert_eq!(given, Ok(None));
            assert_eq!(exchange.bytes(), kept, "what comes late is kept by nobody: {of:?}");
        }
    }

    #[test]
    fn g1_pieces_are_put_together_and_a_new_coordinator_begins_again() {
        let sizes = [PIECE_BYTES / 2, 0, PIECE_BYTES / 2, 1, 3 * PIECE_BYTES, 7, 0];
        let all = all(&sizes);
        let pieces = split(&all);
        let lengths: Vec<_> = pieces.iter().map(Vec::len).collect();
        assert_eq!(lengths, [3, 1, 1, 2]);
        for lost in 0..=pieces.len() {
            let mut rank = Pieces::default();
            for piece in &pieces[..lost] {
                assert_eq!(rank.add((1, 2), piece.clone(), false), None);
            }
            for (at, piece) in pieces.iter().enumerate() {
                let is_last = at + 1 == pieces.len();
                let whole = rank.add((1, 2), piece.clone(), is_last);
                assert_eq!(whole.is_some(), is_last);
                if let Some(whole) = whole {
                    let whole = whole.into_iter().map(|part| (part.rank, part.part));
                    assert_eq!(whole.collect::<Parts>(), all, "{lost} came before");
                }
            }
        }
        assert_eq!(split(&Parts::new()), [Vec::new()]);
    }
}
