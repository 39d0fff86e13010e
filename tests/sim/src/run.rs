//! Running seeds: one, or many; what a failure prints.

use crate::options::{Options, Planted, Tier};
use crate::world::{Report, World};
use rustbtl_seeds::fails;

/// Run one seed and check it. Where results must repeat, they are compared with those of the same
/// program without faults.
pub fn run(options: &Options) -> Report {
    let report = World::new(options, 0).run();
    if options.repeatable && report.faults != [0; 3] {
        let calm = World::new(&options.without_faults(), 1).run();
        for (rank, (got, want)) in report.results.iter().zip(&calm.results).enumerate() {
            assert!(got == want, "results of rank {rank} differ from a run without faults");
        }
    }
    report
}

/// Run many seeds of a tier; panics at the third that fails.
pub fn run_many(tier: Tier, usual: u64) {
    let again = format!("-p rustbtl-sim {}", format!("{tier:?}").to_lowercase());
    rustbtl_seeds::run_seeds(usual, &again, |seed| run(&Options::of(tier, seed)), drop);
}

/// Each bug of a plan (tier, a seed at which it was caught, how many seeds to search) is caught, at
/// a seed that passes without it.
pub fn all_caught(plan: &[(Planted, Tier, u64, u64)]) {
    let plan = plan.iter().map(|&(planted, tier, last, seeds)| ((planted, tier), last, seeds));
    rustbtl_seeds::all_caught(plan, |(planted, tier), seed| {
        let sound = planted.adapt(Options::of(tier, seed));
        let options = Options { planted: Some(planted), ..sound.clone() };
        fails(|| run(&options)) && !fails(|| run(&sound))
    });
}
