//! Stream counters: how many messages each stream of a channel has transferred.
//!
//! Source: DESIGN §2. User tags share one stream; each negative tag is a stream of its own. The
//! blocking collectives use a few dozen negative tags, again and again: an array. Nonblocking
//! collectives take a new tag for each operation, without end: runs of neighbouring tags with equal
//! counts, and what repeats is kept once.

mod repeats;
mod runs;

pub use runs::Runs;

/// Tags −1 … −(NEAR − 1) have counters in an array; Open MPI's blocking collectives end at −26.
pub const NEAR: usize = 64;

/// Counters of one direction of a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    user: u64,
    /// Empty until a negative tag is used.
    near: Vec<u64>,
    far: Runs,
}

impl Lanes {
    /// Messages so far in the stream of `tag`.
    #[inline(always)]
    pub fn get(&self, tag: i32) -> u64 {
        if tag >= 0 { self.user } else { self.get_library(tag) }
    }

    #[inline(never)]
    fn get_library(&self, tag: i32) -> u64 {
        let at = tag.unsigned_abs() as usize;
        if at < NEAR { self.near.get(at).copied().unwrap_or(0) } else { self.far.get(at as u32) }
    }

    /// One more in the stream of `tag`, if `number` is its number; else gives that.
    #[inline(always)]
    pub fn accept(&mut self, tag: i32, number: u64) -> Result<(), u64> {
        if tag >= 0 {
            let fits = self.user == number;
            self.user += u64::from(fits);
            return if fits { Ok(()) } else { Err(self.user) };
        }
        let expected = self.get(tag);
        if expected != number {
            return Err(expected);
        }
        self.advance_library(tag);
        Ok(())
    }

    /// One more in the stream of `tag`; gives its number, from 0.
    #[inline(always)]
    pub fn advance(&mut self, tag: i32) -> u64 {
        if tag >= 0 {
            let number = self.user;
            self.user += 1;
            return number;
        }
        self.advance_library(tag)
    }

    /// The same for the library's own tags.
    #[inline(never)]
    fn advance_library(&mut self, tag: i32) -> u64 {
        let at = tag.unsigned_abs() as usize;
        if at < NEAR {
            if self.near.is_empty() {
                self.near = vec![0; NEAR];
            }
            let number = self.near[at];
            self.near[at] += 1;
            return number;
        }
        self.far.advance(at as u32)
    }

    /// Set all lanes of a run to a count (a restored or received vector of counters).
    pub fn set_run(&mut self, run: LaneRun) {
        for back in 0..run.lanes.min(if run.lane == 0 { 1 } else { NEAR as u32 }) {
            let lane = run.lane.wrapping_sub(back as i32);
            if lane == 0 {
                self.user = run.count;
                return;
            }
            let at = lane.unsigned_abs() as usize;
            if at >= NEAR {
                break;
            }
            if self.near.is_empty() {
                self.near = vec![0; NEAR];
            }
            self.near[at] = run.count;
        }
        let first = run.lane.unsigned_abs().max(NEAR as u32);
        let end = run.lane.unsigned_abs().saturating_add(run.lanes - 1);
        if first <= end {
            self.far.set(first, end, run.count);
        }
    }

    /// Has any stream a higher count here than in `other`?
    pub fn any_above(&self, other: &Self) -> bool {
        let near = |at: usize| other.near.get(at).copied().unwrap_or(0);
        self.user > other.user
            || self.near.iter().enumerate().any(|(at, &count)| count > near(at))
            || self.far.any_above(&other.far)
    }

    /// The same of the streams that have no place in the array.
    pub fn any_far_above(&self, other: &Self) -> bool {
        self.far.any_above(&other.far)
    }

    /// All streams with a count above 0, as runs of lanes with equal counts.
    pub fn runs(&self) -> impl Iterator<Item = LaneRun> + '_ {
        let user = (self.user > 0).then_some(LaneRun { lane: 0, lanes: 1, count: self.user });
        let near = self.near.iter().enumerate().filter(|&(_, &count)| count > 0);
        let near = near.map(|(at, &count)| LaneRun { lane: -(at as i32), lanes: 1, count });
        let far = self.far.iter().map(|(first, end, count)| LaneRun {
            lane: (first as i32).wrapping_neg(),
            lanes: end - first + 1,
            count,
        });
        user.into_iter().chain(near).chain(far)
    }
}

/// `lanes` neighbouring streams, from `lane` downwards, with `count` messages each. Lane 0 stands
/// for all user tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneRun {
    /// First lane: 0 or a negative tag.
    pub lane: i32,
    /// How many lanes, at least 1.
    pub lanes: u32,
    /// Messages in each.
    pub count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn lanes_agree_with_a_map() {
        let mut lanes = Lanes::default();
        let mut model: BTreeMap<i32, u64> = BTreeMap::new();
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let tag = match (state >> 60) & 3 {
                0 => ((state >> 33) % 5) as i32,
                1 => -(((state >> 33) % 70) as i32) - 1,
                _ => -(((state >> 33) % 40) as i32) - 100,
            };
            let lane = tag.min(0);
            assert_eq!(lanes.get(tag), model.get(&lane).copied().unwrap_or(0));
            assert_eq!(lanes.advance(tag), model.get(&lane).copied().unwrap_or(0));
            *model.entry(lane).or_default() += 1;
        }
        let mut copy = Lanes::default();
        lanes.runs().for_each(|run| copy.set_run(run));
        assert_eq!(copy, lanes, "runs contain everything");
        assert!(lanes.runs().count() <= model.len());
    }

    #[test]
    fn above_is_found_lane_by_lane() {
        let mut state = 7u64;
        for _ in 0..3000 {
            let (mut a, mut b) = (Lanes::default(), Lanes::default());
            let mut lanes = vec![0];
            for _ in 0..4 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let lane = -(((state >> 40) % 90) as i32) - 1;
                let run = LaneRun { lane, lanes: (state >> 33) as u32 % 6 + 1, count: state % 3 };
                if state >> 62 == 0 {
                    a.set_run(run)
                } else {
                    b.set_run(run)
                }
                lanes.extend((0..8).map(|back| lane - back));
                a.set_run(LaneRun { count: run.count + (state >> 50) % 2, ..run });
            }
            let want = lanes.iter().any(|&lane| a.get(lane) > b.get(lane));
            assert_eq!(a.any_above(&b), want, "{a:?} {b:?}");
        }
        let mut all = Lanes::default();
        all.set_run(LaneRun { lane: -1, lanes: i32::MAX as u32, count: 1 });
        assert!(all.any_above(&Lanes::default()) && !all.any_above(&all.clone()));
    }

    #[test]
    fn a_loop_of_nonblocking_collectives_needs_one_run() {
        let mut lanes = Lanes::default();
        for tag in 0..100_000 {
            lanes.advance(-27 - 64 - tag);
            lanes.advance(-27 - 64 - tag);
        }
        assert!(lanes.runs().count() <= 2, "{}", lanes.runs().count());
    }
}
