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
        (Planted::DigestIgnoresEnd, Tier::Failures, 0, 2000),
        (Planted::ComparisonForgotten, Tier::Failures, 0, 2000),
        (Planted::IncarnationIgnored, Tier::Replay, 1, 2000),
        (Planted::SnapshotWhileReplaying, Tier::Replay, 1271, 2000),
        (Planted::NamesForgotten, Tier::Chains, 7768, 20000),
        (Planted::NamesNotStored, Tier::Chains, 13406, 20000),
        (Planted::PlacesAfterNamesOnly, Tier::Chains, 192, 20000),
        (Planted::LostPlacesCount, Tier::Chains, 12239, 20000),
        (Planted::ContentCounts, Tier::Chains, 3924, 20000),
        (Planted::OrphansIgnored, Tier::Chains, 739, 20000),
        (Planted::PiggybackNotStored, Tier::Piggyback, 717, 10000),
        (Planted::PiggybackUnmerged, Tier::Piggyback, 452, 10000),
        (Planted::NamedPlacesCount, Tier::Piggyback, 41, 10000),
        (Planted::PiggybackForgotten, Tier::Piggyback, 717, 10000),
        (Planted::PlacesLeftOut, Tier::Piggyback, 4572, 10000),
        (Planted::FenceSkipped, Tier::Piggyback, 32, 10000),
        (Planted::FenceForgotten, Tier::Fences, 389, 10000),
        (Planted::SnapshotUnstable, Tier::Piggyback, 436, 10000),
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

/// What a program is stopped by that sends other messages than before. (One failure: the receiver
/// keeps what it has.)
fn reports(planted: Planted, seeds: u64) -> Vec<String> {
    let mut reports = Vec::new();
    for seed in 0..seeds {
        let options =
            Options { planted: Some(planted), failures: 1, ..Options::of(Tier::Failures, seed) };
        let Err(what) = catch_unwind(AssertUnwindSafe(|| run(&options))) else { continue };
        let text = what.downcast_ref::<String>().cloned().unwrap_or_default();
        // Whoever waits for what is left out waits for ever: that is no wrong result.
        let hangs = planted == Planted::SendsFewer && text.starts_with("no end after");
        let reported = text.contains("does not send again to");
        assert!(reported || hangs, "{planted:?}, seed {seed}: {text}");
        reports.push(text);
    }
    reports
}

/// By the comparison, and by nothing else: nobody has got the other content by then.
#[test]
fn other_contents_are_reported_before_anybody_gets_them() {
    let reports = reports(Planted::ContentDiffers, 600);
    let with = |what: &str| reports.iter().filter(|text| text.contains(what)).count();
    let kinds = [" with tag ", "one or more of messages"].map(with);
    eprintln!("{} differences: {kinds:?}", reports.len());
    assert!(reports.len() > 20 && kinds.iter().all(|&count| count > 0), "{kinds:?}");
}

/// Whatever its next message is compared with, or at its end.
#[test]
fn another_number_of_messages_is_reported() {
    let fewer = reports(Planted::SendsFewer, 600);
    let at_end = fewer.iter().filter(|text| text.contains("up to its end")).count();
    let more = reports(Planted::SendsMore, 600);
    let hangs = fewer.iter().filter(|text| text.starts_with("no end after")).count();
    eprintln!("{} fewer: {at_end} at the end, {hangs} hang; {} more", fewer.len(), more.len());
    assert!(fewer.len() > at_end + hangs && at_end > 10 && more.len() > 20);
}
