//! Bugs of determinants and replay that are planted are caught; divergence is reported.

use rustbtl_sim::options::{Options, Planted, Tier};
use rustbtl_sim::run::{all_caught, run};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// One test: the panic hook is the process's.
#[test]
fn planted_bugs_of_replay_are_caught() {
    let plan = [
        (Planted::GateRemoved, Tier::Replay, 24, 2000),
        (Planted::DeterminantsTrimmedEarly, Tier::Replay, 38, 2000),
        (Planted::RecordedAfterSend, Tier::Replay, 572, 2000),
        (Planted::RunMiscounted, Tier::Replay, 46, 2000),
        (Planted::DatesForOneCall, Tier::Replay, 902, 2000),
        (Planted::ReadingsForgotten, Tier::Replay, 57, 2000),
        (Planted::DrawnAnew, Tier::Replay, 93, 2000),
        (Planted::DivergenceIgnored, Tier::Replay, 38, 2000),
        (Planted::StaleIncarnationAccepted, Tier::Replay, 41, 2000),
        (Planted::IncarnationIgnored, Tier::Replay, 1, 2000),
        (Planted::SnapshotWhileReplaying, Tier::Replay, 1271, 2000),
        (Planted::PiggybackRelayed, Tier::Piggyback, 4559, 10000),
        (Planted::PiggybackNotStored, Tier::Piggyback, 619, 10000),
        (Planted::PiggybackUnmerged, Tier::Piggyback, 619, 10000),
        (Planted::PiggybackForgotten, Tier::Piggyback, 222, 10000),
        (Planted::PlacesLeftOut, Tier::Piggyback, 546, 10000),
        (Planted::FenceSkipped, Tier::Piggyback, 32, 10000),
        (Planted::FenceForgotten, Tier::Piggyback, 1318, 10000),
        (Planted::SnapshotUnstable, Tier::Piggyback, 2286, 10000),
    ];
    all_caught(&plan);
}

/// A program that does not repeat itself ends with a report of both sides; it does not hang.
#[test]
fn divergence_is_reported_and_not_followed() {
    let mut reported = 0;
    for seed in 0..600 {
        let options =
            Options { planted: Some(Planted::Diverges), ..Options::of(Tier::Replay, seed) };
        let Err(what) = catch_unwind(AssertUnwindSafe(|| run(&options))) else { continue };
        let text = what.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(text.contains("replay diverges"), "seed {seed}: {text}");
        assert!(text.contains("recorded was") && text.contains("now the program"), "{text}");
        reported += 1;
    }
    eprintln!("{reported} divergences");
    assert!(reported > 5, "{reported}");
}
