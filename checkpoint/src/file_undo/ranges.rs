//! Parts of a file.

use core::ops::Range;
use std::collections::BTreeMap;

/// A set of bytes of a file, as ranges that do not touch each other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ranges {
    /// End, by start.
    ends: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds a range; gives those parts of it that were not in the set.
    pub fn add(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut added = Vec::new();
        if range.is_empty() {
            return added;
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &until)) = self.ends.range(..=start).next_back()
            && until >= start
        {
            (start, end) = (before, end.max(until));
        }
        let mut free = range.start;
        while let Some((&first, &last)) = self.ends.range(start..=end).next() {
            if free < first.min(range.end) {
                added.push(free..first.min(range.end));
            }
            free = free.max(last);
            end = end.max(last);
            self.ends.remove(&first);
        }
        if free < range.end {
            added.push(free..range.end);
        }
        self.ends.insert(start, end);
        added
    }

    /// Is any byte of this range in it?
    pub fn has_any_of(&self, range: &Range<u64>) -> bool {
        let before = self.ends.range(..range.end).next_back();
        !range.is_empty() && before.is_some_and(|(_, end)| *end > range.start)
    }

    /// Are all bytes from 0 to `end` in it?
    pub fn reach(&self, end: u64) -> bool {
        end == 0 || self.ends.get(&0).is_some_and(|reached| *reached >= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_set_of_bytes(added in prop::collection::vec((0u64..60, 0u64..20), 0..20)) {
            let (mut ranges, mut bytes) = (Ranges::default(), [false; 90]);
            for (start, length) in added {
                let all = ranges.add(start..start + length);
                let mut fresh = Vec::new();
                for at in start..start + length {
                    if !core::mem::replace(&mut bytes[at as usize], true) {
                        fresh.push(at);
                    }
                }
                let given: Vec<u64> = all.into_iter().flatten().collect();
                prop_assert_eq!(ranges.has_any_of(&(start..start + length)), length > 0);
                prop_assert_eq!(given, fresh);
                let reached = bytes.iter().take_while(|is_in| **is_in).count() as u64;
                prop_assert!(ranges.reach(reached) && !ranges.reach(reached + 1));
                let some = bytes[start as usize / 2..start as usize].contains(&true);
                prop_assert_eq!(ranges.has_any_of(&(start / 2..start)), some);
                let mut behind = None;
                for (&start, &end) in &ranges.ends {
                    prop_assert!(start < end && behind.is_none_or(|behind| behind < start));
                    behind = Some(end);
                }
            }
        }
    }
}
