//! Counters of neighbouring lanes that are used no more, of which new ones come at the end only.
//!
//! A program that repeats the same few nonblocking collectives leaves the same counts again and
//! again: one [`Repeat`] holds them all, however many there are. Counts that repeat nothing take
//! little more than a byte each.

/// Counts that are kept of a repeat; what repeats may not be longer.
const COUNTS: usize = 32;

/// `lanes` lanes from `first` on; the count of each is that of the lane `period` before it.
#[derive(Clone, Copy, Debug)]
struct Repeat {
    first: u32,
    lanes: u32,
    period: u8,
    counts: [u8; COUNTS],
}

impl Repeat {
    fn count(&self, lane: u32) -> u8 {
        self.counts[(lane - self.first) as usize % usize::from(self.period)]
    }

    /// One more lane; false: it does not go on like this.
    fn push(&mut self, lane: u32, count: u8) -> bool {
        if self.first + self.lanes != lane {
            return false;
        }
        if self.count(lane) == count {
            self.lanes += 1;
            return true;
        }
        let lanes = self.lanes as usize;
        if lanes >= COUNTS {
            return false;
        }
        for at in usize::from(self.period)..lanes {
            self.counts[at] = self.counts[at - usize::from(self.period)];
        }
        self.counts[lanes] = count;
        self.lanes += 1;
        let all = &self.counts[..=lanes];
        let repeats = |period: &u8| {
            let period = usize::from(*period);
            all[period..] == all[..all.len() - period]
        };
        let own = all.len() as u8;
        self.period = (1..own).find(repeats).unwrap_or(own);
        true
    }
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Repeats(Vec<Repeat>);

impl Repeats {
    /// The lowest lane.
    pub fn first(&self) -> Option<u32> {
        self.0.first().map(|repeat| repeat.first)
    }

    /// A lane above all that are here.
    pub fn push(&mut self, lane: u32, count: u8) {
        let goes_on = self.0.last_mut().is_some_and(|last| last.push(lane, count));
        if !goes_on && count > 0 {
            let mut counts = [0; COUNTS];
            counts[0] = count;
            self.0.push(Repeat { first: lane, lanes: 1, period: 1, counts });
        }
    }

    /// Count of a lane.
    pub fn get(&self, lane: u32) -> u64 {
        let after = self.0.partition_point(|repeat| repeat.first <= lane);
        let repeat = after.checked_sub(1).map(|at| &self.0[at]);
        let repeat = repeat.filter(|repeat| lane - repeat.first < repeat.lanes);
        repeat.map_or(0, |repeat| u64::from(repeat.count(lane)))
    }

    /// First lane, last lane and count, in order; neighbours may have the same, and counts be 0.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32, u64)> + '_ {
        self.0.iter().flat_map(|repeat| {
            let (first, end) = (repeat.first, repeat.first + repeat.lanes - 1);
            // Those that are all the same are one.
            let at_once = if repeat.period == 1 { repeat.lanes } else { 1 };
            let starts = (first..=end).step_by(at_once as usize);
            starts.map(move |lane| (lane, lane + at_once - 1, u64::from(repeat.count(lane))))
        })
    }

    /// Bytes that it takes.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.0.len() * size_of::<Repeat>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_takes_no_more_memory_the_more_often_it_does() {
        for period in [1, 2, 3, 7, 11, 15] {
            for start in 0..period {
                let mut repeats = Repeats::default();
                let count =
                    |lane: u32| [1, 0, 2, 1, 1, 1, 4][((lane + start) % period % 7) as usize];
                (100..1_000_000).for_each(|lane| repeats.push(lane, count(lane)));
                assert!(repeats.bytes() <= 100, "{period}, {start}: {}", repeats.bytes());
                for lane in (101..1_000_000).step_by(997) {
                    assert_eq!(repeats.get(lane), u64::from(count(lane)));
                }
            }
        }
    }

    #[test]
    fn what_does_not_repeat_takes_little_and_is_found_again() {
        let mut state = 1u64;
        let mut counts = Vec::new();
        let mut repeats = Repeats::default();
        for lane in 0..100_000u32 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            counts.push((state >> 60) as u8 % 3);
            repeats.push(lane, counts[lane as usize]);
        }
        assert!(repeats.bytes() < 200_000, "{}", repeats.bytes());
        let mut all = vec![0; counts.len()];
        for (first, end, count) in repeats.iter() {
            (first..=end).for_each(|lane| all[lane as usize] = count);
        }
        for (lane, &count) in counts.iter().enumerate() {
            assert_eq!((repeats.get(lane as u32), all[lane]), (u64::from(count), u64::from(count)));
        }
    }
}
