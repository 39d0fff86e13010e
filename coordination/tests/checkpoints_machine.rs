//! The coordinator of checkpoints: what it orders, keeps and drops, step by step and at random.

mod checkpoints_support;

use checkpoints_support::*;
use rustbtl_coordination::checkpoints::*;
use rustbtl_coordination::interval::Interval;
use rustbtl_coordination::quiescence::CheckpointRefusal;
use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::BTreeMap;

#[test]
fn a_set_checkpoint_step_by_step() {
    let mut checkpoints = CheckpointScheduler::new(config(), &SETS, 5, 0);
    run(
        &mut checkpoints,
        &[
            (10, demand(0), "begin Set 5 of 0"),
            (11, demand(2), ""),
            (12, demand(0), ""),
            (20, frozen(1, 5), ""),
            (21, stored(1, 5), ""),
            (30, frozen(0, 5), ""),
            (31, stored(0, 5), "commit 5 of 0"),
            (
                40,
                Input::Committed { checkpoint: 5 },
                "complete 5 after 20, trim 0 by 5, begin Set 6 of 2",
            ),
            (41, stored(0, 5), ""),
        ],
    );
    assert_eq!(checkpoints.next_deadline(), Some(140));
    // Set 0 was asked for again while its checkpoint was under way.
    let replay_pending = "abort 6 of 2: rank 2 did not answer in time, drop 6, begin Set 7 of 0";
    run(&mut checkpoints, &[(140, Input::Tick, replay_pending)]);
    let replay_pending = "abort 7 of 0: rank 0 did not answer in time, drop 7";
    run(&mut checkpoints, &[(240, Input::Tick, replay_pending)]);
    assert_eq!((checkpoints.under_way(), checkpoints.next_deadline()), (0, None));
    assert_eq!(checkpoints.checkpoints_of(SetId(0)).collect::<Vec<_>>(), [5]);
}

#[test]
fn a_global_checkpoint_and_one_that_ends_the_job() {
    let mut checkpoints = CheckpointScheduler::new(config(), &SETS, 1, 50);
    global(&mut checkpoints, 1, false, "trim 0 by 1, trim 2 by 1");
    global(&mut checkpoints, 2, true, "exit 2");
    assert_eq!(checkpoints.last_global(), Some(2));
    run(&mut checkpoints, &[(261, demand(0), "")]);
    assert_eq!(checkpoints.next_deadline(), None, "nothing is ordered any more");
}

/// L5: with two checkpoints kept, the older one says what is trimmed; global checkpoints are kept
/// for the job.
#[test]
fn checkpoints_are_kept_dropped_and_trimmed_by() {
    let mut checkpoints = CheckpointScheduler::new(config(), &SETS, 1, 0);
    let set_line = |checkpoints: &mut CheckpointScheduler, checkpoint: u64, last: &str| {
        let t = 100 * checkpoint;
        run(
            checkpoints,
            &[
                (t, demand(2), &format!("begin Set {checkpoint} of 2")),
                (t, frozen(2, checkpoint), ""),
                (t, stored(2, checkpoint), &format!("commit {checkpoint} of 2")),
                (
                    t,
                    Input::Committed { checkpoint },
                    &format!("complete {checkpoint} after 0{last}"),
                ),
            ],
        );
    };
    set_line(&mut checkpoints, 1, ", trim 2 by 1");
    let mut lines2 = CheckpointScheduler::restored(config(), &SETS, 1, 0, 0);
    set_line(&mut lines2, 2, "");
    set_line(&mut checkpoints, 2, "");
    set_line(&mut checkpoints, 3, ", trim 2 by 2, drop 1");
    global(&mut checkpoints, 4, false, "trim 0 by 4, trim 2 by 3, drop 2");
    set_line(&mut checkpoints, 5, ", trim 2 by 4, drop 3");
    set_line(&mut checkpoints, 6, ", trim 2 by 5");
    assert_eq!(checkpoints.last_global(), Some(4), "the job can still be rolled back to it");
    // Set 2 is rolled back to 5 alone: 6 is of a past that will not be.
    run(
        &mut checkpoints,
        &[
            (661, Input::RankFailed { rank: PeerId(2) }, ""),
            (662, demand(2), ""),
            (663, Input::SetRestarted { set: SetId(2), checkpoint: 5 }, "drop 6, begin Set 7 of 2"),
        ],
    );
}

#[test]
fn checkpoints_that_cannot_be_complete_are_aborted_and_dropped() {
    for (bad, why) in [
        (
            failed(1, 1, CheckpointRefusal::Snapshot),
            "rank 1: the snapshot of the process could not be taken",
        ),
        (
            Input::NotStored { rank: PeerId(0), checkpoint: 1 },
            "the image of rank 0 could not be stored",
        ),
        (Input::RankFailed { rank: PeerId(1) }, "rank 1 has died"),
    ] {
        let mut checkpoints = CheckpointScheduler::new(config(), &SETS, 1, 0);
        let want = format!("abort 1 of 0: {why}, drop 1");
        run(&mut checkpoints, &[(0, demand(0), "begin Set 1 of 0"), (1, frozen(0, 1), "")]);
        run(&mut checkpoints, &[(2, bad, &want), (3, frozen(1, 1), ""), (3, stored(0, 1), "")]);
        assert_eq!(checkpoints.under_way(), 0);
    }
    let mut checkpoints = CheckpointScheduler::new(config(), &SETS, 1, 0);
    run(
        &mut checkpoints,
        &[
            (0, demand(2), "begin Set 1 of 2"),
            (1, frozen(2, 1), ""),
            (1, stored(2, 1), "commit 1 of 2"),
            (
                2,
                Input::NotCommitted { checkpoint: 1 },
                "abort 1 of 2: the manifest could not be written, drop 1",
            ),
            (3, Input::Committed { checkpoint: 1 }, ""),
            (4, Input::RequestGlobalCheckpoint { exit: true }, "stop 2"),
            (104, Input::Tick, "abort 2 of 0+2: rank 0 did not answer in time, drop 2"),
            (105, stopped(0, 2), ""),
        ],
    );
}

/// L6.
#[test]
fn no_checkpoints_while_a_set_is_lost_replaying_or_finishing() {
    let mut checkpoints = CheckpointScheduler::new(config(), &SETS, 1, 0);
    run(
        &mut checkpoints,
        &[
            (0, Input::RankFailed { rank: PeerId(0) }, ""),
            (1, demand(0), ""),
            (2, Input::RequestGlobalCheckpoint { exit: false }, ""),
            (3, Input::SetRestarted { set: SetId(0), checkpoint: 0 }, "begin Set 1 of 0"),
            (4, frozen(0, 1), ""),
            (4, frozen(1, 1), ""),
            (5, stored(0, 1), ""),
            (5, stored(1, 1), "commit 1 of 0"),
            (6, Input::Committed { checkpoint: 1 }, "complete 1 after 1, trim 0 by 1"),
            (7, Input::ReplayComplete { set: SetId(0) }, "stop 2"),
            (
                8,
                failed(2, 2, CheckpointRefusal::Finishing),
                "abort 2 of 0+2: rank 2: the process is in MPI_Finalize, drop 2",
            ),
            (9, demand(0), "begin Set 3 of 0"),
        ],
    );
    let before = format!("{checkpoints:?}");
    for (input, want) in [
        (demand(2), SchedulerError::Finishing),
        (Input::RequestGlobalCheckpoint { exit: true }, SchedulerError::Finishing),
        (demand(1), SchedulerError::Set(SetId(1))),
        (stored(3, 3), SchedulerError::Rank(PeerId(3))),
        (stored(0, 3), SchedulerError::NotAsked(PeerId(0), 3)),
        (stopped(0, 3), SchedulerError::NotAsked(PeerId(0), 3)),
        (frozen(2, 3), SchedulerError::NotAsked(PeerId(2), 3)),
        (Input::SetRestarted { set: SetId(9), checkpoint: 0 }, SchedulerError::Set(SetId(9))),
    ] {
        assert_eq!(checkpoints.handle(9, input), Err(want));
        assert_eq!(format!("{checkpoints:?}"), before, "{want}");
    }
}

/// Sets take their checkpoints one after the other, each at its interval; two at once where
/// allowed.
#[test]
fn intervals_are_staggered_and_bounded() {
    let sets: Vec<(PeerId, SetId)> = (0..4).map(|rank| (PeerId(rank), SetId(rank))).collect();
    let interval = Interval::Fixed { interval_ms: 1000 };
    for (at_once, want) in [
        (1, [(250, 0), (550, 1), (850, 2), (1150, 3), (1450, 0), (1750, 1)]),
        (4, [(250, 0), (500, 1), (750, 2), (1000, 3), (1250, 0), (1500, 1)]),
    ] {
        let config = Config {
            set_interval: interval,
            sets_at_once: at_once,
            quiescence_timeout_ms: 9999,
            ..config()
        };
        let mut checkpoints = CheckpointScheduler::new(config, &sets, 1, 0);
        let (mut begun, mut ends) = (Vec::new(), BTreeMap::new());
        let mut now = 0;
        while begun.len() < want.len() {
            // Every checkpoint takes 300 ms.
            let next = checkpoints.next_deadline().into_iter().chain(ends.keys().copied()).min();
            now = next.unwrap_or(now).max(now);
            let inputs = match ends.remove(&now) {
                None => vec![Input::Tick],
                Some((checkpoint, set)) => {
                    vec![
                        frozen(set, checkpoint),
                        stored(set, checkpoint),
                        Input::Committed { checkpoint },
                    ]
                }
            };
            for input in inputs {
                checkpoints.handle(now, input).unwrap();
                checkpoints.check();
            }
            while let Some(output) = checkpoints.poll_output() {
                if let Output::Begin { checkpoint, sets, .. } = output {
                    begun.push((now, sets[0].0));
                    assert!(ends.insert(now + 300, (checkpoint, sets[0].0)).is_none());
                }
            }
        }
        assert_eq!(begun, want, "{at_once} at once");
    }
}

/// L9: not without a global checkpoint, not in the middle of a checkpoint; alone again by the next.
#[test]
fn logging_is_suspended_until_the_next_checkpoint_of_the_set() {
    let suspend = |set| Input::RequestSuspension { set: SetId(set) };
    let mut checkpoints = CheckpointScheduler::new(config(), &SETS, 1, 0);
    let refused = |checkpoints: &mut CheckpointScheduler, why| {
        let error = checkpoints.handle(0, suspend(0)).unwrap_err();
        assert_eq!(error, SchedulerError::NotSuspendable(SetId(0), why));
    };
    refused(&mut checkpoints, SuspensionRefusal::NoGlobalCheckpoint);
    run(&mut checkpoints, &[(0, Input::RequestGlobalCheckpoint { exit: false }, "stop 1")]);
    for answer in [stopped, frozen, stored] {
        (0..3).for_each(|rank| checkpoints.handle(1, answer(rank, 1)).unwrap());
    }
    run(
        &mut checkpoints,
        &[
            (
                1,
                Input::Committed { checkpoint: 1 },
                "begin Global 1 of 0+2, resume 1, commit 1 of 0+2, complete 1 after 1, trim 0 by \
                 1, trim 2 by 1",
            ),
            (2, suspend(0), "suspend 0 before 2"),
        ],
    );
    let alone = |checkpoints: &CheckpointScheduler, set| -> Vec<u64> {
        checkpoints.checkpoints_of(SetId(set)).collect()
    };
    assert_eq!((alone(&checkpoints, 0), alone(&checkpoints, 2)), (vec![], vec![1]));
    assert!(checkpoints.is_suspended(SetId(0)) && !checkpoints.is_suspended(SetId(2)));
    assert_eq!(checkpoints.youngest_of(SetId(0)), Some(1));
    // The next coordinator knows.
    let resumed = CheckpointScheduler::resumed(config(), &SETS, &checkpoints.state(), 0);
    assert!(resumed.is_suspended(SetId(0)));
    run(&mut checkpoints, &[(3, demand(0), "begin Set 2 of 0")]);
    refused(&mut checkpoints, SuspensionRefusal::SnapshotsUnderWay);
    run(
        &mut checkpoints,
        &[
            (
                4,
                failed(0, 2, CheckpointRefusal::Snapshot),
                "abort 2 of 0: rank 0: the snapshot of the process could not be taken, drop 2",
            ),
            (5, suspend(0), "suspend 0 before 3"),
            (6, demand(0), "begin Set 3 of 0"),
            (7, frozen(0, 3), ""),
            (7, frozen(1, 3), ""),
            (8, stored(0, 3), ""),
            (8, stored(1, 3), "commit 3 of 0"),
            (
                9,
                Input::Committed { checkpoint: 3 },
                "complete 3 after 1, trim 0 by 3, resumed 0 by 3",
            ),
        ],
    );
    assert_eq!(alone(&checkpoints, 0), [3], "not 1: what it lacks is in no log");
    // While images are stored it may be suspended: that checkpoint does not end it.
    run(&mut checkpoints, &[(9, demand(0), "begin Set 4 of 0"), (9, frozen(0, 4), "")]);
    refused(&mut checkpoints, SuspensionRefusal::SnapshotsUnderWay);
    run(
        &mut checkpoints,
        &[
            (9, frozen(1, 4), ""),
            (9, suspend(0), "suspend 0 before 5"),
            (9, stored(0, 4), ""),
            (9, stored(1, 4), "commit 4 of 0"),
            (9, Input::Committed { checkpoint: 4 }, "complete 4 after 0"),
        ],
    );
    assert!(checkpoints.is_suspended(SetId(0)));
    run(
        &mut checkpoints,
        &[
            (10, suspend(0), "suspend 0 before 5"),
            (11, Input::RankFailed { rank: PeerId(0) }, ""),
            (12, Input::GlobalRollback { checkpoint: 1 }, "drop 3, drop 4"),
        ],
    );
    assert_eq!(alone(&checkpoints, 0), [1], "all have gone back: the logs of 1 are whole");
    refused(&mut checkpoints, SuspensionRefusal::NotRunning);
}
