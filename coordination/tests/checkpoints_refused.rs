//! Checkpoints that fail or are refused, and when the next ones come.

mod checkpoints_support;

use checkpoints_support::*;
use proptest::prelude::*;
use rustbtl_coordination::checkpoints::*;
use rustbtl_coordination::interval::Interval;
use rustbtl_coordination::quiescence::{CheckpointRefusal, CheckpointScope};
use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::{BTreeMap, BTreeSet};

/// Checkpoints that fail again and again get rarer, so that the program gets on with its work.
#[test]
fn failing_checkpoints_wait_longer_each_time() {
    let interval = Interval::Fixed { interval_ms: 100 };
    let config = Config { global_interval: interval, ..config() };
    let mut checkpoints = CheckpointScheduler::new(config, &SETS, 1, 0);
    let mut begun = Vec::new();
    while begun.len() < 6 {
        let now = checkpoints.next_deadline().unwrap();
        checkpoints.handle(now, Input::Tick).unwrap();
        while let Some(output) = checkpoints.poll_output() {
            begun.extend(matches!(output, Output::StopOutgoing { .. }).then_some(now));
        }
    }
    let between: Vec<u64> = begun.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(between, [300, 500, 900, 1700, 3300], "100 ms until given up, then the wait");
}

/// L6, L7: it comes as what it was asked for, however often it is refused and for whatever time.
#[test]
fn a_global_checkpoint_that_was_refused_comes_when_all_is_repaired() {
    let mut checkpoints =
        CheckpointScheduler::new(Config { retry_ms: 50, ..config() }, &SETS, 1, 0);
    let replaying = |rank, checkpoint| failed(rank, checkpoint, CheckpointRefusal::ReplayPending);
    let repaired = |rank| Input::RankReplayComplete { rank: PeerId(rank) };
    let retried = |checkpoint: u64, rank: u32| {
        format!(
            "abort {checkpoint} of 0+2: rank {rank}: {} (tried again), drop {checkpoint}",
            CheckpointRefusal::ReplayPending
        )
    };
    run(
        &mut checkpoints,
        &[
            (0, Input::RequestGlobalCheckpoint { exit: true }, "stop 1"),
            (1, replaying(0, 1), &retried(1, 0)),
            // Of a checkpoint that is aborted already.
            (2, replaying(1, 1), ""),
            (3, repaired(0), ""),
            (60, Input::Tick, ""),
            // Checkpoints of sets go on.
            (61, demand(2), "begin Set 2 of 2"),
            (62, frozen(2, 2), ""),
            (63, stored(2, 2), "commit 2 of 2"),
            (64, Input::Committed { checkpoint: 2 }, "complete 2 after 1, trim 2 by 2"),
        ],
    );
    assert_eq!(checkpoints.next_deadline(), None, "it is not time that it waits for");
    run(
        &mut checkpoints,
        &[
            (9_000, repaired(1), "stop 3"),
            (9_001, replaying(2, 3), &retried(3, 2)),
            (9_002, repaired(2), ""),
            (9_051, Input::Tick, "stop 4"),
        ],
    );
    for (answer, last) in [
        (stopped as fn(u32, u64) -> Input, "begin Global 4 of 0+2"),
        (frozen, ""),
        (stored, "commit 4 of 0+2"),
    ] {
        for (rank, want) in [(0, ""), (1, ""), (2, last)] {
            run(&mut checkpoints, &[(9_052, answer(rank, 4), want)]);
        }
    }
    checkpoints.handle(9_055, Input::Committed { checkpoint: 4 }).unwrap();
    assert!(text(&mut checkpoints).ends_with("exit 4"));
}

/// L6.
#[test]
fn a_set_that_was_rolled_back_has_refused_nothing() {
    let mut checkpoints = CheckpointScheduler::new(config(), &SETS, 1, 0);
    let why = format!("rank 0: {} (tried again)", CheckpointRefusal::ReplayPending);
    run(
        &mut checkpoints,
        &[
            (0, Input::RequestGlobalCheckpoint { exit: false }, "stop 1"),
            (
                1,
                failed(0, 1, CheckpointRefusal::ReplayPending),
                &format!("abort 1 of 0+2: {why}, drop 1"),
            ),
            (2, Input::RankFailed { rank: PeerId(0) }, ""),
            (3, Input::SetRestarted { set: SetId(0), checkpoint: 0 }, ""),
            (4, Input::ReplayComplete { set: SetId(0) }, "stop 2"),
        ],
    );
}

/// A checkpoint that is due, and not asked for, is not put off by what passes.
#[test]
fn a_refused_checkpoint_that_was_due_does_not_wait_twice_as_long() {
    let interval = Interval::Fixed { interval_ms: 10_000 };
    let config = Config { global_interval: interval, retry_ms: 50, ..config() };
    let mut checkpoints = CheckpointScheduler::new(config, &SETS, 1, 0);
    let why = format!("rank 0: {} (tried again)", CheckpointRefusal::ReplayPending);
    run(
        &mut checkpoints,
        &[
            (10_000, Input::Tick, "stop 1"),
            (
                10_001,
                failed(0, 1, CheckpointRefusal::ReplayPending),
                &format!("abort 1 of 0+2: {why}, drop 1"),
            ),
            (10_051, Input::Tick, ""),
            (15_000, Input::RankReplayComplete { rank: PeerId(0) }, "stop 2"),
        ],
    );
}

/// L7: once, after a moment, and as what it was asked for.
#[test]
fn a_checkpoint_that_was_requested_and_failed_is_tried_once_more() {
    let config = || Config { retry_ms: 50, ..config() };
    let mut checkpoints = CheckpointScheduler::new(config(), &SETS, 1, 0);
    let snapshot = |rank, checkpoint| failed(rank, checkpoint, CheckpointRefusal::Snapshot);
    let why = "rank 2: the snapshot of the process could not be taken";
    run(
        &mut checkpoints,
        &[
            (0, demand(2), "begin Set 1 of 2"),
            (1, snapshot(2, 1), &format!("abort 1 of 2: {why} (tried again), drop 1")),
            (50, Input::Tick, ""),
        ],
    );
    assert_eq!(checkpoints.next_deadline(), Some(51));
    run(
        &mut checkpoints,
        &[
            (51, Input::Tick, "begin Set 2 of 2"),
            (52, snapshot(2, 2), &format!("abort 2 of 2: {why}, drop 2")),
        ],
    );
    assert_eq!(
        (checkpoints.under_way(), checkpoints.next_deadline()),
        (0, None),
        "twice is enough"
    );

    // The end of the job is asked for with the second attempt, too; who asks meanwhile joins it.
    run(
        &mut checkpoints,
        &[
            (100, Input::RequestGlobalCheckpoint { exit: true }, "stop 3"),
            (101, stopped(0, 3), ""),
            (102, snapshot(2, 3), &format!("abort 3 of 0+2: {why} (tried again), drop 3")),
            (110, Input::RequestGlobalCheckpoint { exit: false }, ""),
        ],
    );
    assert_eq!(checkpoints.next_deadline(), Some(152));
    run(&mut checkpoints, &[(152, Input::Tick, "stop 4")]);
    for answer in [stopped, frozen, stored] {
        (0..3).for_each(|rank| checkpoints.handle(153, answer(rank, 4)).unwrap());
    }
    checkpoints.handle(156, Input::Committed { checkpoint: 4 }).unwrap();
    assert!(text(&mut checkpoints).ends_with("exit 4"));

    // A rank that did not answer in time is not waited for again at once; a process that is in
    // MPI_Finalize will not come back. A rank that had failed and is restarted is a reason to try.
    let mut checkpoints = CheckpointScheduler::new(config(), &SETS, 1, 0);
    run(
        &mut checkpoints,
        &[
            (0, Input::RequestGlobalCheckpoint { exit: false }, "stop 1"),
            (100, Input::Tick, "abort 1 of 0+2: rank 0 did not answer in time, drop 1"),
            (200, demand(0), "begin Set 2 of 0"),
            (
                201,
                Input::RankFailed { rank: PeerId(1) },
                "abort 2 of 0: rank 1 has died (tried again), drop 2",
            ),
            (300, Input::Tick, ""),
            (301, Input::SetRestarted { set: SetId(0), checkpoint: 9 }, "begin Set 3 of 0"),
            (
                302,
                failed(0, 3, CheckpointRefusal::Finishing),
                "abort 3 of 0: rank 0: the process is in MPI_Finalize, drop 3",
            ),
        ],
    );
    assert_eq!(checkpoints.next_deadline(), None);
}

/// What a random world does to a coordinator, and what it reports of each checkpoint.
#[derive(Default)]
struct Book {
    ordered: BTreeSet<u64>,
    begun: BTreeSet<u64>,
    ended: BTreeMap<u64, bool>,
    dropped: BTreeSet<u64>,
    frozen: BTreeSet<(u64, u32)>,
    stored: BTreeSet<(u64, u32)>,
    sets: BTreeMap<u64, (CheckpointScope, Vec<SetId>)>,
    commits: BTreeSet<u64>,
    trimmed: BTreeMap<SetId, u64>,
    /// Sets whose ranks acknowledge: no checkpoint before this one holds what they have received.
    suspended: BTreeMap<SetId, u64>,
}

impl Book {
    fn note(&mut self, output: Output) {
        match output {
            Output::StopOutgoing { checkpoint } => assert!(self.ordered.insert(checkpoint), "L1"),
            Output::Begin { checkpoint, scope, sets } => {
                let new = self.ordered.insert(checkpoint);
                assert_eq!(new, scope == CheckpointScope::Set, "L1: stopped before it begins");
                assert!(self.begun.insert(checkpoint));
                self.sets.insert(checkpoint, (scope, sets));
            }
            Output::Resume { checkpoint } => {
                assert!(self.all(checkpoint, &self.frozen), "all are frozen")
            }
            Output::Commit { checkpoint, .. } => {
                assert!(self.all(checkpoint, &self.stored), "L3: all are stored");
                self.commits.insert(checkpoint);
            }
            Output::Complete { checkpoint, .. } => {
                assert!(self.commits.contains(&checkpoint), "L3");
                assert_eq!(self.ended.insert(checkpoint, true), None, "L4: once");
            }
            Output::Abort { checkpoint, .. } => {
                assert!(self.ordered.contains(&checkpoint), "L4");
                assert_eq!(self.ended.insert(checkpoint, false), None, "L4: once");
            }
            Output::Delete { checkpoint } => {
                assert!(self.dropped.insert(checkpoint), "dropped once")
            }
            Output::Trim { set, checkpoint } => {
                assert_eq!(
                    self.ended.get(&checkpoint),
                    Some(&true),
                    "L5: by a complete checkpoint"
                );
                assert!(!self.dropped.contains(&checkpoint), "L5: by one that is there");
                let before = self.trimmed.insert(set, checkpoint);
                assert!(
                    before.is_none_or(|before| before < checkpoint),
                    "L5: {before:?} {checkpoint}"
                );
            }
            Output::SuspendLogging { set, before } => {
                let global = |(number, complete): (&u64, &bool)| {
                    *complete && self.sets[number].0 == CheckpointScope::Global
                };
                assert!(self.ended.iter().any(global), "L9: something to fall back to");
                let open = self.ordered.iter().filter(|number| !self.ended.contains_key(number));
                let of_set = |number: &&u64| {
                    self.sets.get(number).is_some_and(|(_, sets)| sets.contains(&set))
                };
                let mut open = open.filter(of_set);
                assert!(open.all(|number| self.all(*number, &self.frozen)), "L9: all are taken");
                assert!(self.ordered.iter().all(|number| *number < before), "L9");
                self.suspended.insert(set, before);
            }
            Output::LoggingResumed { set, checkpoint } => {
                assert_eq!(self.ended.get(&checkpoint), Some(&true), "L9");
                assert!(self.suspended[&set] <= checkpoint, "L9");
            }
            Output::Exit { checkpoint } => {
                assert_eq!(self.ended.get(&checkpoint), Some(&true), "L3")
            }
        }
    }

    fn all(&self, checkpoint: u64, of: &BTreeSet<(u64, u32)>) -> bool {
        let (_, sets) = &self.sets[&checkpoint];
        let ranks = SETS.iter().filter(|(_, set)| sets.contains(set));
        ranks.into_iter().all(|(rank, _)| of.contains(&(checkpoint, rank.0)))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever happens in whatever order: every checkpoint that is ordered ends once; nothing is
    /// committed that is not stored, nothing trimmed by a checkpoint that is gone.
    #[test]
    fn every_checkpoint_ends_once(
        checkpoints_kept in 1usize..4,
        sets_at_once in 1usize..3,
        retry in 0u64..30,
        events in prop::collection::vec((0u8..25, 0u32..3, 0u64..40), 1..400),
    ) {
        let auto = Interval::Auto { mtbf_ms: 4000 };
        let config = Config {
            checkpoints_kept,
            sets_at_once,
            set_interval: Interval::Fixed { interval_ms: 200 },
            global_interval: auto,
            retry_ms: retry,
            ..config()
        };
        let mut checkpoints = CheckpointScheduler::new(config, &SETS, 1, 0);
        let (mut book, mut now) = (Book::default(), 0);
        for (what, rank, more) in events {
            now += more / 4;
            let open: Vec<u64> =
                book.ordered.iter().copied().filter(|l| !book.ended.contains_key(l)).collect();
            let checkpoint = open.get(more as usize % open.len().max(1)).copied().unwrap_or(more);
            let set = SETS[rank as usize].1;
            let in_line = book.sets.get(&checkpoint).is_some_and(|(_, sets)| sets.contains(&set));
            let input = match what {
                0 => demand(set.0),
                1 => Input::RequestGlobalCheckpoint { exit: false },
                2 if more == 0 => Input::RankFailed { rank: PeerId(rank) },
                3 => {
                    let kept: Vec<u64> = checkpoints.checkpoints_of(set).collect();
                    match kept.get(more as usize % kept.len().max(1)) {
                        Some(&checkpoint) => Input::SetRestarted { set, checkpoint },
                        None => Input::Tick,
                    }
                }
                4 if more < 20 => Input::RankReplayComplete { rank: PeerId(rank) },
                4 => Input::ReplayComplete { set },
                5 if more < 3 => Input::NotStored { rank: PeerId(rank), checkpoint },
                6 if more < 3 => failed(rank, checkpoint, CheckpointRefusal::Snapshot),
                6 if more < 5 => failed(rank, checkpoint, CheckpointRefusal::ReplayPending),
                7 if more < 3 => Input::NotCommitted { checkpoint },
                8..11 if !book.begun.contains(&checkpoint) => stopped(rank, checkpoint),
                11..16 if in_line => {
                    book.frozen.insert((checkpoint, rank));
                    frozen(rank, checkpoint)
                }
                16..21 if book.frozen.contains(&(checkpoint, rank)) => {
                    book.stored.insert((checkpoint, rank));
                    stored(rank, checkpoint)
                }
                21..24 if book.commits.contains(&checkpoint) => Input::Committed { checkpoint },
                24 if more < 10 => Input::RequestSuspension { set },
                _ => Input::Tick,
            };
            let _ = checkpoints.handle(now, input);
            checkpoints.check();
            while let Some(output) = checkpoints.poll_output() {
                book.note(output);
            }
            for set in [SetId(0), SetId(2)] {
                let mut kept = checkpoints.checkpoints_of(set);
                prop_assert!(kept.all(|checkpoint| !book.dropped.contains(&checkpoint)));
                let from = book.suspended.get(&set).copied().unwrap_or(0);
                let mut kept = checkpoints.checkpoints_of(set);
                prop_assert!(kept.all(|checkpoint| checkpoint >= from), "L9");
                let none = checkpoints.checkpoints_of(set).next().is_none();
                prop_assert_eq!(checkpoints.is_suspended(set), from > 0 && none, "L9");
                let oldest = checkpoints.checkpoints_of(set).next();
                let trimmed = book.trimmed.get(&set);
                let older = |by: &u64| oldest.map_or(from > 0, |oldest| *by <= oldest);
                prop_assert!(trimmed.is_none_or(older), "L5");
            }
            let aborted = book.ended.iter().filter(|(_, complete)| !**complete);
            let mut aborted = aborted.into_iter();
            prop_assert!(aborted.all(|(number, _)| book.dropped.contains(number)), "L4");
            let open = book.ordered.len() - book.ended.len();
            prop_assert_eq!(open, checkpoints.under_way(), "L4");
        }
        // Nobody answers any more.
        for _ in 0..3 {
            now += 10_000;
            let _ = checkpoints.handle(now, Input::Tick);
            while let Some(output) = checkpoints.poll_output() {
                book.note(output);
            }
        }
        let open = |number: &&u64| !book.ended.contains_key(number);
        let replay_pending: Vec<_> = book.ordered.iter().filter(open).collect();
        prop_assert!(replay_pending.len() <= checkpoints.under_way(), "L4: {replay_pending:?}");
    }
}
