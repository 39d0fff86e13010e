//! The seeds really meet what they are for.

use rustbtl_sim::options::{Options, Tier};
use rustbtl_sim::run::run;

#[test]
fn seeds_meet_what_they_are_for() {
    let mut total = [0; 9];
    let mut steps_max = 0;
    for seed in 1_000_000..1_000_300 {
        for tier in [Tier::Resets, Tier::Deaths] {
            let report = run(&Options::of(tier, seed));
            steps_max = steps_max.max(report.steps);
            for (total, happened) in total.iter_mut().zip(report.faults) {
                *total += u64::from(happened);
            }
            for c in report.counters {
                total[3] += c.resent_messages;
                total[4] += c.suppressed_messages;
                total[5] += c.stale_frames;
                total[6] += c.unexpected_messages;
                total[7] += c.rendezvous_messages;
            }
            total[8] += report.trimmed as u64;
        }
    }
    eprintln!(
        "resets, deaths, lines, resent, suppressed, stale, unexpected, rendezvous, trimmed: \
         {total:?}; longest run {steps_max} steps"
    );
    assert!(total.iter().all(|&count| count > 50), "{total:?}");
}
