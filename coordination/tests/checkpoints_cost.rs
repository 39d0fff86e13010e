//! The interval that follows from what checkpoints have cost.

mod checkpoints_support;

use checkpoints_support::*;
use rustbtl_coordination::checkpoints::*;
use rustbtl_coordination::interval::{GOVERNED_SECOND_MS, Interval};
use rustbtl_fragments::ids::PeerId;

const GOVERNED: Interval = Interval::Governed { share: 10 };

/// Waits as long as anything takes.
fn patient() -> CheckpointScheduler {
    let (global_interval, patient) = (GOVERNED, 1_000_000);
    let (quiescence_timeout_ms, store_timeout_ms) = (patient, patient);
    let config = Config { global_interval, quiescence_timeout_ms, store_timeout_ms, ..config() };
    CheckpointScheduler::new(config, &SETS, 1, 0)
}

/// A global checkpoint: 100 ms to stop and picture, then as long until it is stored everywhere.
fn take(
    checkpoints: &mut CheckpointScheduler,
    now: u64,
    stored_after_ms: u64,
    costs: &[(u64, u64)],
) -> u64 {
    let mut hand = |at, input| checkpoints.handle(at, input).unwrap();
    hand(now, Input::RequestGlobalCheckpoint { exit: false });
    let checkpoint = checkpoints.state().next_checkpoint - 1;
    let mut hand = |at, input| checkpoints.handle(at, input).unwrap();
    let at = now + 100;
    SETS.iter().for_each(|(rank, _)| hand(at, stopped(rank.0, checkpoint)));
    SETS.iter().for_each(|(rank, _)| hand(at, frozen(rank.0, checkpoint)));
    let at = at + stored_after_ms;
    for &(lost_ms, of_ms) in costs {
        hand(at, Input::StoringCost { checkpoint, lost_ms, of_ms });
    }
    SETS.iter().for_each(|(rank, _)| hand(at, stored(rank.0, checkpoint)));
    hand(at, Input::Committed { checkpoint });
    checkpoints.next_global_ms().unwrap()
}

/// The number of the last checkpoint.
fn last(checkpoints: &CheckpointScheduler) -> u64 {
    checkpoints.state().next_checkpoint - 1
}

fn lost(
    checkpoints: &mut CheckpointScheduler,
    now: u64,
    checkpoint: u64,
    losses: &[(u32, u64)],
) -> u64 {
    for &(rank, lost_ms) in losses {
        let rank = PeerId(rank);
        checkpoints.handle(now, Input::LostBeside { rank, checkpoint, lost_ms }).unwrap();
    }
    checkpoints.next_global_ms().unwrap()
}

#[test]
fn the_interval_follows_from_what_the_rank_that_lost_most_has_lost() {
    let mut all = patient();
    assert_eq!(take(&mut all, 1000, 400, &[(0, 400)]), GOVERNED_SECOND_MS, "had only begun");
    // 100 ms of pause alone are 1 % of 10 s.
    assert_eq!(take(&mut all, 100_000, 400, &[(0, 400), (0, 300)]), 10_000);
    assert_eq!(take(&mut all, 200_000, 400, &[(0, 400), (50, 200), (40, 400)]), 30_000);
    // Stored by the ranks in 200 ms, replicated after 1000: as dear as storing, to the end.
    assert_eq!(take(&mut all, 300_000, 1000, &[(50, 200)]), 60_000);
    assert_eq!(take(&mut all, 400_000, 400, &[]), 30_000, "nobody has measured: half of it");
    assert_eq!(take(&mut all, 500_000, 400, &[(9000, 0)]), 50_000, "never more than all of it");
    assert_eq!(take(&mut all, 600_000, 59_900, &[(0, 59_900)]), 600_000, "storage that is slow");
}

/// Replication at a low priority takes long and costs little.
#[test]
fn what_all_ranks_have_measured_to_the_end_counts_more_than_an_estimate() {
    let mut all = patient();
    take(&mut all, 1000, 400, &[(0, 400)]);
    let estimate = take(&mut all, 100_000, 1000, &[(100, 200)]);
    assert_eq!(estimate, 110_000);
    let (second, at) = (last(&all), 101_200);
    assert_eq!(lost(&mut all, at, second, &[(0, 20), (1, 150)]), estimate, "rank 2 is missing");
    assert_eq!(lost(&mut all, at, second, &[(0, 900), (1, 0)]), estimate, "each counts once");
    assert_eq!(lost(&mut all, at, second - 1, &[(2, 0)]), estimate, "of another checkpoint");
    assert_eq!(lost(&mut all, at, second, &[(2, 10)]), 40_000, "100 and twice 150 ms");
    assert_eq!(lost(&mut all, at, second, &[(2, 900)]), 40_000);
    // The next one is due that long after the beginning.
    assert_eq!(all.next_deadline(), Some(140_000));
    take(&mut all, 200_000, 1000, &[(100, 200)]);
    let third = last(&all);
    let all_of_it = lost(&mut all, 201_200, third, &[(0, 5000), (1, 0), (2, 0)]);
    assert_eq!(all_of_it, 110_000, "never more than has passed");
}

/// Reports of one checkpoint come while the next one is under way.
#[test]
fn late_reports_order_no_checkpoint() {
    let config = Config { global_interval: GOVERNED, ..config() };
    let mut all = CheckpointScheduler::new(config, &SETS, 1, 0);
    take(&mut all, 1000, 400, &[(400, 400)]);
    let (first, due) = (last(&all), all.next_deadline());
    all.handle(50_000, Input::RequestGlobalCheckpoint { exit: false }).unwrap();
    let under_way = all.next_deadline();
    assert_ne!(under_way, due);
    lost(&mut all, 50_010, first, &[(0, 0), (1, 0), (2, 0)]);
    assert_eq!(all.next_deadline(), under_way);
    assert_eq!(all.under_way(), 1);
}

/// A checkpoint was given up: the next one waits twice as long, whatever the last one has cost.
#[test]
fn late_reports_bring_no_retry_forward() {
    let mut all = patient();
    take(&mut all, 1000, 400, &[(400, 400)]);
    let first = last(&all);
    all.handle(50_000, Input::RequestGlobalCheckpoint { exit: false }).unwrap();
    let checkpoint = last(&all);
    all.handle(50_001, Input::NotStored { rank: PeerId(0), checkpoint }).unwrap();
    assert_eq!(all.under_way(), 0);
    let due = all.next_deadline();
    assert!(due > Some(100_000), "{due:?}");
    lost(&mut all, 50_010, first, &[(0, 0), (1, 0), (2, 0)]);
    assert_eq!(all.next_deadline(), due);
}
