//! Counters of an endless range of lanes, as runs of neighbours with equal counts.
//!
//! Invariants:
//! * R1 Runs do not overlap, none is empty, none has count 0.
//! * R2 Neighbouring runs that touch have different counts.

use std::collections::BTreeMap;

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// First lane → (last lane, count).
    runs: BTreeMap<u32, (u32, u64)>,
}

impl Runs {
    /// Count of a lane.
    pub fn get(&self, lane: u32) -> u64 {
        match self.runs.range(..=lane).next_back() {
            Some((_, &(end, count))) if end >= lane => count,
            _ => 0,
        }
    }

    /// One more in a lane; gives the count before.
    pub fn advance(&mut self, lane: u32) -> u64 {
        let count = self.get(lane);
        self.set(lane, lane, count + 1);
        count
    }

    /// Give lanes `first..=end` a count.
    pub fn set(&mut self, first: u32, end: u32, count: u64) {
        self.cut(first);
        if let Some(after) = end.checked_add(1) {
            self.cut(after);
        }
        let inside: Vec<u32> = self.runs.range(first..=end).map(|(&start, _)| start).collect();
        for start in inside {
            self.runs.remove(&start);
        }
        if count == 0 {
            return;
        }
        self.runs.insert(first, (end, count));
        if let Some(after) = end.checked_add(1) {
            self.join(after);
        }
        self.join(first);
    }

    /// Let a run begin at `lane` if one spans it.
    fn cut(&mut self, lane: u32) {
        if let Some((&start, &(end, count))) = self.runs.range(..lane).next_back()
            && end >= lane
        {
            self.runs.insert(start, (lane - 1, count));
            self.runs.insert(lane, (end, count));
        }
    }

    /// Join the run that begins at `lane` to the one before it, if they touch and agree.
    fn join(&mut self, lane: u32) {
        let Some(&(end, count)) = self.runs.get(&lane) else { return };
        if let Some((&start, &(before, same))) = self.runs.range(..lane).next_back()
            && before + 1 == lane
            && same == count
        {
            self.runs.remove(&lane);
            self.runs.insert(start, (end, count));
        }
    }

    /// Has any lane more here than in `other`? The work is by runs, not by lanes: they may come
    /// from a peer.
    pub fn any_above(&self, other: &Self) -> bool {
        self.iter().any(|(first, end, count)| {
            let mut at = first;
            loop {
                let Some((_, &(upto, theirs))) = other.runs.range(..=at).next_back() else {
                    return true;
                };
                if upto < at || theirs < count {
                    return true;
                }
                if upto >= end {
                    return false;
                }
                at = upto + 1;
            }
        })
    }

    /// First lane, last lane and count of each run.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32, u64)> + '_ {
        self.runs.iter().map(|(&first, &(end, count))| (first, end, count))
    }
}
