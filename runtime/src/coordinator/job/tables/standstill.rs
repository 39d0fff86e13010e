//! Does anything move while sets replay? What ranks have answered, and when.

use rustbtl_fragments::ids::PeerId;
use std::collections::{BTreeMap, BTreeSet};

/// Numbers of its samples have this bit: they are not those of `Waiting`.
const OF_STANDSTILL: u32 = 1 << 31;
/// Nothing has moved for so long: nothing will.
pub(crate) const STANDS_MS: u64 = 10_000;

/// A pause of the coordinator itself counts for no more: what ranks wait for may have waited for
/// it.
const TICK_MAX_MS: u64 = STANDS_MS / 4;

/// How long the program has waited inside MPI, nanoseconds; and how many messages it has moved.
type Answer = (u64, u64);

/// Answers of one moment.
#[derive(Clone, Debug, Default)]
struct Sample {
    /// Who has not answered.
    open: BTreeSet<PeerId>,
    /// With the time of the answer, milliseconds.
    answers: BTreeMap<PeerId, (u64, Answer)>,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standstill {
    number: u32,
    before: Option<Sample>,
    now: Option<Sample>,
    /// When the coordinator last looked, and how long it has run since the last sample.
    looked_ms: u64,
    ran_ms: u64,
}

impl Standstill {
    /// There is nothing to look at.
    pub(crate) fn forget(&mut self) {
        (self.before, self.now) = (None, None);
    }

    /// Time has passed. Is the next sample to be taken?
    pub(crate) fn is_due(&mut self, now: u64) -> bool {
        self.ran_ms += now.saturating_sub(self.looked_ms).min(TICK_MAX_MS);
        self.looked_ms = now;
        let last = self.now.as_ref();
        last.is_none_or(|last| last.open.is_empty() && self.ran_ms >= STANDS_MS)
    }

    /// The next sample, of these ranks. Its number.
    pub(crate) fn begin(&mut self, now: u64, open: BTreeSet<PeerId>) -> u32 {
        self.number = self.number.wrapping_add(1) & !OF_STANDSTILL;
        self.before = self.now.take();
        self.now = Some(Sample { open, answers: BTreeMap::new() });
        (self.looked_ms, self.ran_ms) = (now, 0);
        self.number | OF_STANDSTILL
    }

    /// An answer. False: to somebody else's question.
    pub(crate) fn answer(&mut self, now: u64, rank: PeerId, sample: u32, answer: Answer) -> bool {
        let latest = self.now.as_mut().filter(|_| sample == self.number | OF_STANDSTILL);
        if let Some(latest) = latest
            && latest.open.remove(&rank)
        {
            latest.answers.insert(rank, (now, answer));
        }
        sample & OF_STANDSTILL != 0
    }

    /// Between the last two samples no rank has moved a message, and each has waited inside MPI for
    /// half of the time at least. (What it counts as waiting leaves out the first microseconds of
    /// each wait, and what a busy node does not let it do.)
    pub(crate) fn has_stood(&self) -> bool {
        let (Some(before), Some(now)) = (&self.before, &self.now) else { return false };
        let stood = |(rank, &(at_ms, (waited_ns, messages))): (&PeerId, &(u64, Answer))| {
            before.answers.get(rank).is_some_and(|&(since_ms, (waited_before_ns, before))| {
                let passed_ms = at_ms.saturating_sub(since_ms);
                let waited_ms = waited_ns.saturating_sub(waited_before_ns) / 1_000_000;
                messages == before && 2 * waited_ms >= passed_ms
            })
        };
        let all_have_answered = now.open.is_empty() && before.open.is_empty();
        let same_ranks = now.answers.len() == before.answers.len();
        all_have_answered && same_ranks && now.answers.iter().all(stood)
    }
}
