//! When the next checkpoint is due: fixed intervals, what a share of the time pays for, and
//! Daly's optimum.
//!
//! Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
//! dumps", Future Generation Computer Systems 22 (2006), equation 37.

/// What a checkpoint has cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckpointCost {
    /// How long it stopped the program, milliseconds.
    pub pause_ms: u64,
    /// How much of the time in which images were stored beside it the program has lost.
    pub lost_ms: u64,
    /// From its order until everything was stored.
    pub took_ms: u64,
    /// It was the first one of the job, when the program had only begun: the next one may cost
    /// much more.
    pub is_first: bool,
}

/// Time between checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interval {
    /// Only on demand.
    Off,
    /// From the beginning of one to the beginning of the next.
    Fixed {
        /// Milliseconds, at least 1.
        interval_ms: u64,
    },
    /// As often as a share of the time pays for.
    Governed {
        /// Thousandths of the time that checkpoints may cost, at least 1.
        share: u64,
    },
    /// What loses least time, from what checkpoints cost and how often something fails.
    Auto {
        /// Mean time between failures of one set.
        mtbf_ms: u64,
    },
}

/// What a checkpoint is taken to cost until one was measured.
pub const COST_GUESS_MS: u64 = 1000;
/// Governed: the first checkpoint, whose cost nobody knows yet.
pub const GOVERNED_FIRST_MS: u64 = 60_000;
/// Governed: from the first one, of a program that had only begun, to the second at least.
pub const GOVERNED_SECOND_MS: u64 = 30_000;
/// Governed: more often than this a failure costs as much as what it repeats, also where images
/// are small: to notice it, to start processes, to connect.
pub const GOVERNED_MIN_MS: u64 = 3_000;
/// Governed: checkpoints are under way for no more than one part of this many of the time. Others
/// want the storage, too.
pub const GOVERNED_STORING_PART: u64 = 10;
/// Governed: whatever it costs, a failure repeats no more than this.
pub const GOVERNED_MAX_MS: u64 = 3_600_000;

impl Interval {
    /// Milliseconds from the beginning of one checkpoint to that of the next. `sets`: how many sets
    /// are rolled back together; `cost`: that of the last one.
    pub fn next_ms(self, sets: usize, cost: Option<CheckpointCost>) -> Option<u64> {
        match self {
            Self::Off => None,
            Self::Fixed { interval_ms } => Some(interval_ms.max(1)),
            Self::Governed { share } => Some(cost.map_or(GOVERNED_FIRST_MS, |cost| {
                let cost_ms = cost.pause_ms.saturating_add(cost.lost_ms);
                let paid_ms = cost_ms.saturating_mul(1000) / share.max(1);
                let storage_ms = cost.took_ms.saturating_mul(GOVERNED_STORING_PART);
                let least = if cost.is_first { GOVERNED_SECOND_MS } else { GOVERNED_MIN_MS };
                paid_ms.max(storage_ms).clamp(least, GOVERNED_MAX_MS)
            })),
            Self::Auto { mtbf_ms } => {
                let mtbf_ms = mtbf_ms / sets.max(1) as u64;
                let cost_ms = cost.map_or(COST_GUESS_MS, |cost| cost.pause_ms);
                Some(daly_ms(cost_ms, mtbf_ms).saturating_add(cost_ms).max(1))
            }
        }
    }
}

/// Daly's optimum of the time of work between two checkpoints that cost `cost_ms` each.
pub fn daly_ms(cost_ms: u64, mtbf_ms: u64) -> u64 {
    let (cost, mtbf) = (cost_ms.max(1) as f64, mtbf_ms.max(1) as f64);
    if cost >= 2.0 * mtbf {
        return mtbf_ms.max(1);
    }
    let ratio = cost / (2.0 * mtbf);
    let optimum = (2.0 * cost * mtbf).sqrt() * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - cost;
    (optimum as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected time per unit of work (Daly 2006, equation 20, without the cost of restart).
    fn overhead(tau: f64, cost: f64, mtbf: f64) -> f64 {
        mtbf * (((tau + cost) / mtbf).exp() - 1.0) / tau
    }

    #[test]
    fn dalys_optimum_loses_no_more_than_other_intervals() {
        for (cost, mtbf) in [(1_000, 3_600_000), (60_000, 3_600_000), (5_000, 86_400_000)] {
            let best = daly_ms(cost, mtbf) as f64;
            let (cost, mtbf) = (cost as f64, mtbf as f64);
            let least = overhead(best, cost, mtbf);
            for factor in [0.5, 0.8, 1.25, 2.0] {
                assert!(least < overhead(best * factor, cost, mtbf), "{cost} {mtbf} {factor}");
            }
        }
    }

    #[test]
    fn intervals_of_the_ends_of_the_range() {
        assert_eq!(daly_ms(10_000, 100), 100, "a checkpoint costs more than two failures");
        assert_eq!(Interval::Off.next_ms(3, None), None);
        assert_eq!(Interval::Fixed { interval_ms: 0 }.next_ms(1, None), Some(1));
        let governed = Interval::Governed { share: 10 };
        assert_eq!(governed.next_ms(1, None), Some(GOVERNED_FIRST_MS));
        let of = |pause_ms, lost_ms, took_ms| {
            Some(CheckpointCost { pause_ms, lost_ms, took_ms, is_first: false })
        };
        assert_eq!(governed.next_ms(9, of(500, 1000, 3000)), Some(150_000), "1.5 s: 1 % of 150 s");
        assert_eq!(governed.next_ms(1, of(1, 0, 20)), Some(GOVERNED_MIN_MS));
        assert_eq!(governed.next_ms(1, of(1, 0, 20_000)), Some(200_000), "slow storage");
        assert_eq!(governed.next_ms(1, of(u64::MAX, 1, 0)), Some(GOVERNED_MAX_MS));
        let first = of(1, 0, 20).map(|cost| CheckpointCost { is_first: true, ..cost });
        assert_eq!(governed.next_ms(1, first), Some(GOVERNED_SECOND_MS));
        let auto = Interval::Auto { mtbf_ms: 7_200_000 };
        let (one, four) = (auto.next_ms(1, of(2000, 0, 0)), auto.next_ms(4, of(2000, 9, 9)));
        assert!(one > four, "more sets fail more often: {one:?} {four:?}");
        assert!(auto.next_ms(1, of(u64::MAX, 0, 0)).is_some());
        assert_eq!(Interval::Auto { mtbf_ms: 0 }.next_ms(0, None), Some(1 + COST_GUESS_MS));
    }
}
