//! Seeds of jobs with windows.

use rustbtl_sim::options::{Options, Tier};
use rustbtl_sim::run::{run, run_many};

#[test]
fn windows() {
    run_many(Tier::Windows, 450);
}

#[test]
fn seeds_of_windows_meet_what_they_are_for() {
    let mut all = [0; 5];
    for seed in 1_000_000..1_000_120 {
        let report = run(&Options::of(Tier::Windows, seed));
        for (total, count) in all.iter_mut().zip(report.windows) {
            *total += count;
        }
    }
    eprintln!(
        "runs of operations recorded, forced; how often all replays were over, how often those of \
         several sets; how often a rank had believed so too early: {all:?}"
    );
    assert!(all.iter().all(|&count| count > 5), "{all:?}");
}
