//! The interval that follows from what checkpoints have cost.

mod checkpoints_support;

use checkpoints_support::*;
use rustbtl_coordination::checkpoints::*;
use rustbtl_coordination::interval::{GOVERNED_MIN_MS, GOVERNED_SECOND_MS, Interval};

const GOVERNED: Interval = Interval::Governed { share: 10 };

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

#[test]
fn the_interval_follows_from_what_the_rank_that_lost_most_has_lost() {
    let (global_interval, patient) = (GOVERNED, 1_000_000);
    let (quiescence_timeout_ms, store_timeout_ms) = (patient, patient);
    let config = Config { global_interval, quiescence_timeout_ms, store_timeout_ms, ..config() };
    let mut all = CheckpointScheduler::new(config, &SETS, 1, 0);
    assert_eq!(take(&mut all, 1000, 400, &[(0, 400)]), GOVERNED_SECOND_MS, "had only begun");
    // 100 ms of pause alone are 1 % of 10 s.
    assert_eq!(take(&mut all, 100_000, 400, &[(0, 400), (0, 300)]), GOVERNED_MIN_MS);
    assert_eq!(take(&mut all, 200_000, 400, &[(0, 400), (50, 200), (40, 400)]), 30_000);
    // Stored by the ranks in 200 ms, replicated after 1000: as dear as storing, to the end.
    assert_eq!(take(&mut all, 300_000, 1000, &[(50, 200)]), 60_000);
    assert_eq!(take(&mut all, 400_000, 400, &[]), 30_000, "nobody has measured: half of it");
    assert_eq!(take(&mut all, 500_000, 400, &[(9000, 0)]), 50_000, "never more than all of it");
    assert_eq!(take(&mut all, 600_000, 59_900, &[(0, 59_900)]), 600_000, "storage that is slow");
}
