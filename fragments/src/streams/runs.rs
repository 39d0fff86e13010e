//! Counters of an endless range of lanes, as runs of neighbours with equal counts.
//!
//! Nonblocking collectives go through the lanes one after the other and come back to none: the
//! newest lanes have an array, and what leaves it goes to the end of [`Repeats`]. Neither searches.
//!
//! Invariants:
//! * R1 Runs do not overlap, none is empty, none has count 0.
//! * R2 Neighbouring runs that touch have different counts, as [`Runs::iter`] gives them.
//! * R3 Of the lanes below `FIXED`, those from `Newest::first` on have their count in its array or
//!   none; those of `Newest::left` are below them, and those of the map below these.

use super::repeats::Repeats;
use std::collections::BTreeMap;

/// Lanes that have a place of their own.
const NEWEST: u32 = 16;
/// Lanes from here on are not gone through: libraries use the same ones again and again. (Open
/// MPI's nonblocking collectives end before it.)
const FIXED: u32 = 1 << 30;

/// Lanes that are in use.
#[derive(Clone, Debug)]
struct Newest {
    first: u32,
    /// Of lane `l` at `l % NEWEST`.
    counts: [u64; NEWEST as usize],
    /// Those that have left.
    left: Repeats,
}

impl Newest {
    fn has(&self, lane: u32) -> bool {
        lane.wrapping_sub(self.first) < NEWEST
    }

    fn count(&mut self, lane: u32) -> &mut u64 {
        &mut self.counts[(lane % NEWEST) as usize]
    }

    /// The first lane leaves. `Err`: there are too many messages in it to be with the others.
    fn slide(&mut self) -> Result<(), (u32, u64)> {
        let lane = self.first;
        let count = core::mem::take(self.count(lane));
        self.first += 1;
        self.left.push(lane, u8::try_from(count).map_err(|_| (lane, count))?);
        Ok(())
    }
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    /// First lane → (last lane, count).
    runs: BTreeMap<u32, (u32, u64)>,
    newest: Option<Box<Newest>>,
}

impl Runs {
    /// Count of a lane.
    pub fn get(&self, lane: u32) -> u64 {
        if let Some(newest) = &self.newest
            && lane < FIXED
        {
            if lane >= newest.first {
                let at = (lane % NEWEST) as usize;
                return if newest.has(lane) { newest.counts[at] } else { 0 };
            }
            if newest.left.first().is_some_and(|first| lane >= first) {
                return newest.left.get(lane);
            }
        }
        self.get_old(lane)
    }

    fn get_old(&self, lane: u32) -> u64 {
        match self.runs.range(..=lane).next_back() {
            Some((_, &(end, count))) if end >= lane => count,
            _ => 0,
        }
    }

    /// One more in a lane; gives the count before.
    pub fn advance(&mut self, lane: u32) -> u64 {
        if let Some(newest) = &mut self.newest
            && newest.has(lane)
            && lane < FIXED
        {
            let count = newest.count(lane);
            *count += 1;
            return *count - 1;
        }
        self.advance_far(lane)
    }

    /// The same for a lane that has no place yet, or none any more.
    #[inline(never)]
    fn advance_far(&mut self, lane: u32) -> u64 {
        if lane >= FIXED {
            return self.advance_old(lane);
        }
        let Some(newest) = &mut self.newest else {
            // R3
            let last = self.runs.range(..FIXED).next_back();
            let free = last.map_or(0, |(_, &(end, _))| end.saturating_add(1));
            let first = free.max(lane.saturating_sub(NEWEST / 2));
            if first > lane {
                return self.advance_old(lane);
            }
            let counts = [0; NEWEST as usize];
            let mut newest = Box::new(Newest { first, counts, left: Repeats::default() });
            *newest.count(lane) = 1;
            self.newest = Some(newest);
            return 0;
        };
        if lane < newest.first {
            self.settle_left();
            return self.advance_old(lane);
        }
        for _ in 0..NEWEST {
            if newest.has(lane) {
                break;
            }
            if let Err((first, count)) = newest.slide() {
                self.settle_left();
                self.set_old(first, first, count);
                return self.advance(lane);
            }
        }
        if !newest.has(lane) {
            // All have left.
            newest.first = lane - NEWEST / 2;
        }
        *newest.count(lane) = 1;
        0
    }

    fn advance_old(&mut self, lane: u32) -> u64 {
        if let Some((end, count)) = self.runs.get_mut(&lane)
            && *end == lane
        {
            *count += 1;
            return *count - 1;
        }
        let count = self.get_old(lane);
        self.set_old(lane, lane, count + 1);
        count
    }

    /// What has left the array, into the map.
    fn settle_left(&mut self) {
        let Some(newest) = &mut self.newest else { return };
        for (first, end, count) in core::mem::take(&mut newest.left).iter() {
            self.set_old(first, end, count);
        }
    }

    /// All of it into the map.
    fn settle(&mut self) {
        self.settle_left();
        let Some(mut newest) = self.newest.take() else { return };
        for lane in newest.first..newest.first + NEWEST {
            let count = *newest.count(lane);
            if count > 0 {
                self.set_old(lane, lane, count);
            }
        }
    }

    /// Give lanes `first..=end` a count.
    pub fn set(&mut self, first: u32, end: u32, count: u64) {
        self.settle();
        self.set_old(first, end, count);
    }

    fn set_old(&mut self, first: u32, end: u32, count: u64) {
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
        let mut theirs = other.iter().peekable();
        self.iter().any(|(first, end, count)| {
            let mut at = first;
            loop {
                // Those that end before this lane are below all that follow, too.
                while theirs.next_if(|&(_, upto, _)| upto < at).is_some() {}
                match theirs.peek() {
                    Some(&(from, upto, other)) if from <= at && other >= count => {
                        if upto >= end {
                            return false;
                        }
                        at = upto + 1;
                    }
                    _ => return true,
                }
            }
        })
    }

    /// First lane, last lane and count of each run, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32, u64)> + '_ {
        let run = |(&first, &(end, count)): (&u32, &(u32, u64))| (first, end, count);
        let (old, fixed) = (self.runs.range(..FIXED).map(run), self.runs.range(FIXED..).map(run));
        let newest = self.newest.iter().flat_map(|newest| {
            let lanes = newest.first..newest.first + NEWEST;
            let lane = |lane| (lane, lane, newest.counts[(lane % NEWEST) as usize]);
            newest.left.iter().chain(lanes.map(lane))
        });
        let mut all = old.chain(newest).chain(fixed).filter(|&(_, _, count)| count > 0).peekable();
        core::iter::from_fn(move || {
            let (first, mut end, count) = all.next()?;
            // R2
            while let Some((_, upto, _)) =
                all.next_if(|&(from, _, same)| same == count && from == end + 1)
            {
                end = upto;
            }
            Some((first, end, count))
        })
    }
}

/// Whether a count is in the array or in a run is nobody's business.
impl PartialEq for Runs {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Runs {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lanes that go up, back, and far away, from the lowest to the highest.
    #[test]
    fn runs_agree_with_a_map_whatever_order_the_lanes_come_in() {
        for seed in 0..200u64 {
            let mut state = seed + 1;
            let mut random = |below: u64| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) % below
            };
            let (mut runs, mut model) = (Runs::default(), BTreeMap::<u32, u64>::new());
            let (mut other, mut others) = (Runs::default(), BTreeMap::<u32, u64>::new());
            let mut lane = random(3) as u32 * 100;
            for _ in 0..400 {
                match random(40) {
                    0 => lane = lane.saturating_sub(random(30) as u32),
                    1 => lane = lane.saturating_add(random(60) as u32),
                    2 if seed % 4 == 0 => lane = u32::MAX - random(40) as u32,
                    2 if seed % 4 == 1 => lane = FIXED - 20 + random(40) as u32,
                    3 if seed % 4 == 1 => lane = random(50) as u32,
                    3 if seed % 2 == 0 => {
                        let (end, count) = (lane.saturating_add(random(5) as u32), random(3));
                        runs.set(lane, end, count);
                        model.extend((lane..=end).map(|lane| (lane, count)));
                    }
                    4..20 => lane = lane.saturating_add(1),
                    _ => {}
                }
                assert_eq!(runs.get(lane), model.get(&lane).copied().unwrap_or(0), "{seed}");
                assert_eq!(runs.advance(lane), runs.get(lane) - 1);
                *model.entry(lane).or_default() += 1;
                if random(50) > 0 {
                    other.advance(lane);
                    *others.entry(lane).or_default() += 1;
                }
            }
            let lanes = |runs: &Runs| -> Vec<(u32, u64)> {
                let all = runs.iter();
                all.flat_map(|(first, end, n)| (first..=end).map(move |lane| (lane, n))).collect()
            };
            model.retain(|_, &mut count| count > 0);
            assert_eq!(lanes(&runs), model.clone().into_iter().collect::<Vec<_>>(), "{seed}");
            model.iter().for_each(|(&lane, &count)| assert_eq!(runs.get(lane), count));
            let apart = |(a, b): &((u32, u32, u64), (u32, u32, u64))| a.1 + 1 < b.0 || a.2 != b.2;
            assert!(runs.iter().zip(runs.iter().skip(1)).all(|pair| apart(&pair)), "R2");
            let above = |a: &BTreeMap<u32, u64>, b: &BTreeMap<u32, u64>| {
                a.iter().any(|(lane, count)| b.get(lane).copied().unwrap_or(0) < *count)
            };
            assert_eq!(runs.any_above(&other), above(&model, &others), "{seed}");
            assert_eq!(other.any_above(&runs), above(&others, &model), "{seed}");
            let mut settled = runs.clone();
            settled.settle();
            assert_eq!(settled, runs);
            assert!(!settled.any_above(&runs) && !runs.any_above(&settled));
        }
    }

    #[test]
    fn lanes_with_many_messages_are_not_forgotten_either() {
        let mut runs = Runs::default();
        for lane in 91..400 {
            (0..if lane % 50 == 0 { 1000 } else { lane % 3 }).for_each(|_| {
                runs.advance(lane);
            });
        }
        for lane in 91..400 {
            let wanted = if lane % 50 == 0 { 1000 } else { u64::from(lane % 3) };
            assert_eq!(runs.get(lane), wanted, "{lane}");
        }
    }

    #[test]
    fn one_lane_after_the_other_makes_one_run_longer() {
        let mut runs = Runs::default();
        for lane in 91..100_000 {
            assert_eq!(runs.advance(lane), 0);
            assert_eq!(runs.advance(lane), 1);
        }
        assert!(runs.runs.is_empty(), "nothing has gone into the map");
        assert!(runs.newest.as_ref().expect("in use").left.bytes() < 64);
        assert_eq!(runs.iter().collect::<Vec<_>>(), [(91, 99_999, 2)]);
    }
}
