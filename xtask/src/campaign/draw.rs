//! What chance decides about a run: a seed and the run's number give the same run again.

use crate::test::collectives_component::COLLECTIVES;
use crate::test::workloads::{
    CLOCK, FILES, FORTRAN, HPCC, INTER, OPENMP, OVERLAP, PYTHON, Program, QR, RING, SIZE, Shape,
    UPDATES, WINDOW,
};

/// What runs, and how many ranks it may have.
pub const PROGRAMS: [(Program, &[u32]); 14] = [
    (RING, &[1, 2, 3, 4, 6, 9]),
    // Three threads each.
    (OPENMP, &[1, 2]),
    (FORTRAN, &[1, 2, 3, 4, 6, 9]),
    (PYTHON, &[1, 2, 3, 4, 6]),
    (FILES, &[1, 2, 3, 4, 6]),
    // With more than four its RandomAccess loses updates itself, after a pause more than it allows.
    (HPCC, &[1, 2, 4]),
    (UPDATES, &[2, 3, 4, 6]),
    (QR, &[4, 6]),
    (CLOCK, &[1, 2, 3, 4, 6]),
    (INTER, &[2, 3, 4, 6]),
    (OVERLAP, &[2, 4, 6]),
    // A global rollback.
    (WINDOW, &[2, 3, 4, 6]),
    (SIZE, &[2, 3, 4, 6]),
    // Our own collectives, inside nodes and parts of them.
    (COLLECTIVES, &[2, 3, 4, 6]),
];
/// Most nodes, and most ranks on one of them.
const SHAPE_MAX: Shape = (3, 6);
/// Between checkpoints, in the middle.
const SECONDS_A_CHECKPOINT: f64 = 0.7;
/// Most ranks on a node where a job begins.
const PPN_MAX: u32 = 3;

/// Random numbers: SplitMix64.
pub struct Chance(u64);

impl Chance {
    /// Those of a run of a campaign.
    pub fn of(seed: u64, run: u64) -> Chance {
        let mut chance = Chance(seed.wrapping_mul(0xA24B_AED4_963E_E407) ^ run);
        chance.bits();
        chance
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `from` to `to`.
    pub fn between(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * (self.below(1 << 32) as f64 / (1u64 << 32) as f64)
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// One incarnation of a job that ends by kill -9 of everything.
#[derive(Clone, Debug, PartialEq)]
pub struct Incarnation {
    /// Where.
    pub shape: Shape,
    /// When checkpoints are requested, in seconds.
    pub checkpoints: Vec<f64>,
    /// When everything is killed, in seconds after the last checkpoint.
    pub killed_after: f64,
}

/// One run: incarnations that end early, and one that must end well.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Index in [`PROGRAMS`].
    pub program: usize,
    /// All but the last.
    pub incarnations: Vec<Incarnation>,
    /// Where the last one runs.
    pub last: Shape,
}

impl Plan {
    /// Number `run` of the campaign with this seed. `checkpoints`: so many in each incarnation,
    /// else as chance will have it.
    pub fn draw(seed: u64, run: u64, checkpoints: Option<u32>) -> Plan {
        let mut chance = Chance::of(seed, run);
        // All programs take their turn.
        let program = (run % PROGRAMS.len() as u64) as usize;
        let ranks = chance.pick(PROGRAMS[program].1);
        let start = chance.pick(&shapes(ranks, PPN_MAX));
        let elsewhere = shapes(ranks, SHAPE_MAX.1);
        let mut incarnations = vec![Incarnation::draw(&mut chance, start, checkpoints)];
        while incarnations.len() < 3 && chance.below(4) == 0 {
            let shape = chance.pick(&elsewhere);
            incarnations.push(Incarnation::draw(&mut chance, shape, checkpoints));
        }
        let same = chance.below(3) == 0;
        let last = if same { start } else { chance.pick(&elsewhere) };
        Plan { program, incarnations, last }
    }
}

impl Incarnation {
    fn draw(chance: &mut Chance, shape: Shape, checkpoints: Option<u32>) -> Incarnation {
        let count = checkpoints.unwrap_or_else(|| chance.pick(&[1, 1, 2, 3, 5]));
        let end = 1.5 + f64::from(count) * SECONDS_A_CHECKPOINT;
        let mut checkpoints: Vec<f64> = (0..count).map(|_| chance.between(0.8, end)).collect();
        checkpoints.sort_by(f64::total_cmp);
        Incarnation { shape, checkpoints, killed_after: chance.between(0.0, 0.8) }
    }

    /// How long it is, if all goes as it should.
    pub fn seconds(&self) -> f64 {
        self.checkpoints.last().copied().unwrap_or_default() + self.killed_after
    }
}

/// Nodes × ranks on a node that make so many ranks.
fn shapes(ranks: u32, ppn_max: u32) -> Vec<Shape> {
    let all = (1..=SHAPE_MAX.0).filter(|nodes| ranks.is_multiple_of(*nodes));
    let shapes: Vec<Shape> = all.map(|nodes| (nodes, ranks / nodes)).collect();
    let fitting: Vec<Shape> = shapes.iter().copied().filter(|shape| shape.1 <= ppn_max).collect();
    if fitting.is_empty() { shapes } else { fitting }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_the_same_each_time_and_differs_from_others() {
        assert_eq!(Plan::draw(7, 3, None), Plan::draw(7, 3, None));
        assert_ne!(Plan::draw(7, 3, None), Plan::draw(8, 3, None));
        for run in 0..500 {
            let plan = Plan::draw(1, run, [None, Some(10)][run as usize % 2]);
            let ranks = |shape: Shape| shape.0 * shape.1;
            for incarnation in &plan.incarnations {
                assert_eq!(ranks(incarnation.shape), ranks(plan.last));
                assert!(incarnation.checkpoints.is_sorted() && !incarnation.checkpoints.is_empty());
                assert!(run % 2 == 0 || incarnation.checkpoints.len() == 10);
            }
        }
    }

    #[test]
    fn one_to_three_nodes_with_one_to_three_ranks_are_where_jobs_begin() {
        assert_eq!(shapes(4, PPN_MAX), [(2, 2)]);
        assert_eq!(shapes(6, PPN_MAX), [(2, 3), (3, 2)]);
        assert_eq!(shapes(6, 6), [(1, 6), (2, 3), (3, 2)]);
    }
}
