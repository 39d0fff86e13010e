//! The coordinator of lines: what it orders, keeps and drops, step by step and at random.

use proptest::prelude::*;
use rustbtl_coordination::interval::Interval;
use rustbtl_coordination::checkpoints::*;
use rustbtl_coordination::quiescence::{Answer, Refusal, Scope};
use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::{BTreeMap, BTreeSet};

/// Ranks 0 and 1 in set 0, rank 2 in set 2.
const SETS: [(PeerId, SetId); 3] =
    [(PeerId(0), SetId(0)), (PeerId(1), SetId(0)), (PeerId(2), SetId(2))];

fn config() -> Config {
    Config {
        set_interval: Interval::Off,
        global_interval: Interval::Off,
        sets_at_once: 1,
        kept_lines: 2,
        silence_timeout_ms: 100,
        store_timeout_ms: 1000,
        retry_ms: 0,
    }
}

fn text(lines: &mut Lines) -> String {
    let mut out = Vec::new();
    let names = |sets: &[SetId]| sets.iter().map(|s| s.to_string()).collect::<Vec<_>>().join("+");
    while let Some(output) = lines.poll_output() {
        out.push(match output {
            Output::StopOutgoing { line } => format!("stop {line}"),
            Output::Begin { line, scope, sets } => {
                format!("begin {scope:?} {line} of {}", names(&sets))
            }
            Output::Resume { line } => format!("resume {line}"),
            Output::Abort { line, sets, why, retried, .. } => {
                let retried = if retried { " (tried again)" } else { "" };
                format!("abort {line} of {}: {why}{retried}", names(&sets))
            }
            Output::Commit { line, sets, .. } => format!("commit {line} of {}", names(&sets)),
            Output::Complete { line, pause_ms } => format!("complete {line} after {pause_ms}"),
            Output::Trim { set, line } => format!("trim {set} by {line}"),
            Output::Drop { line } => format!("drop {line}"),
            Output::Exit { line } => format!("exit {line}"),
        });
    }
    lines.check();
    out.join(", ")
}

fn demand(set: u32) -> Input {
    Input::Demand { set: SetId(set) }
}
fn stopped(rank: u32, line: u64) -> Input {
    Input::Answered { rank: PeerId(rank), answer: Answer::Stopped { line } }
}
fn frozen(rank: u32, line: u64) -> Input {
    Input::Answered { rank: PeerId(rank), answer: Answer::Frozen { line } }
}
fn failed(rank: u32, line: u64, why: Refusal) -> Input {
    Input::Answered { rank: PeerId(rank), answer: Answer::Failed { line, why } }
}
fn stored(rank: u32, line: u64) -> Input {
    Input::Stored { rank: PeerId(rank), line }
}

fn run(lines: &mut Lines, steps: &[(u64, Input, &str)]) {
    for (at, (now, input, want)) in steps.iter().enumerate() {
        lines.handle(*now, input.clone()).unwrap_or_else(|error| panic!("step {at}: {error}"));
        assert_eq!(text(lines), *want, "step {at}: {input:?}");
    }
}

#[test]
fn a_set_line_step_by_step() {
    let mut lines = Lines::new(config(), &SETS, 5, 0);
    run(
        &mut lines,
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
                Input::Committed { line: 5 },
                "complete 5 after 20, trim 0 by 5, begin Set 6 of 2",
            ),
            (41, stored(0, 5), ""),
        ],
    );
    assert_eq!(lines.next_deadline(), Some(140));
    // Set 0 was asked for again while its line was under way.
    let late = "abort 6 of 2: rank 2 did not answer in time, drop 6, begin Set 7 of 0";
    run(&mut lines, &[(140, Input::Tick, late)]);
    let late = "abort 7 of 0: rank 0 did not answer in time, drop 7";
    run(&mut lines, &[(240, Input::Tick, late)]);
    assert_eq!((lines.under_way(), lines.next_deadline()), (0, None));
    assert_eq!(lines.lines_of(SetId(0)).collect::<Vec<_>>(), [5]);
}

/// The whole order of a global line; `exit` leaves the ranks stopped until it is complete.
fn global(lines: &mut Lines, line: u64, exit: bool, last: &str) {
    let t = 100 * line;
    let resume = if exit { String::new() } else { format!("resume {line}") };
    run(
        lines,
        &[
            (t, Input::Checkpoint { exit }, &format!("stop {line}")),
            (t + 1, stopped(0, line), ""),
            (t + 2, stopped(2, line), ""),
            (t + 3, stopped(1, line), &format!("begin Global {line} of 0+2")),
            (t + 4, frozen(0, line), ""),
            (t + 5, frozen(1, line), ""),
            (t + 6, stored(0, line), ""),
            (t + 7, frozen(2, line), &resume),
            (t + 8, stored(2, line), ""),
            (t + 9, stored(1, line), &format!("commit {line} of 0+2")),
            (t + 10, Input::Committed { line }, &format!("complete {line} after 7, {last}")),
        ],
    );
}

#[test]
fn a_global_line_and_one_that_ends_the_job() {
    let mut lines = Lines::new(config(), &SETS, 1, 50);
    global(&mut lines, 1, false, "trim 0 by 1, trim 2 by 1");
    global(&mut lines, 2, true, "exit 2");
    assert_eq!(lines.last_global(), Some(2));
    run(&mut lines, &[(261, demand(0), "")]);
    assert_eq!(lines.next_deadline(), None, "nothing is ordered any more");
}

/// L5: with two lines kept, the older one says what is trimmed; global lines are kept for the job.
#[test]
fn lines_are_kept_dropped_and_trimmed_by() {
    let mut lines = Lines::new(config(), &SETS, 1, 0);
    let set_line = |lines: &mut Lines, line: u64, last: &str| {
        let t = 100 * line;
        run(
            lines,
            &[
                (t, demand(2), &format!("begin Set {line} of 2")),
                (t, frozen(2, line), ""),
                (t, stored(2, line), &format!("commit {line} of 2")),
                (t, Input::Committed { line }, &format!("complete {line} after 0{last}")),
            ],
        );
    };
    set_line(&mut lines, 1, ", trim 2 by 1");
    let mut lines2 = Lines::restored(config(), &SETS, 1, 0, 0);
    set_line(&mut lines2, 2, "");
    set_line(&mut lines, 2, "");
    set_line(&mut lines, 3, ", trim 2 by 2, drop 1");
    global(&mut lines, 4, false, "trim 0 by 4, trim 2 by 3, drop 2");
    set_line(&mut lines, 5, ", trim 2 by 4, drop 3");
    set_line(&mut lines, 6, ", trim 2 by 5");
    assert_eq!(lines.last_global(), Some(4), "the job can still go back to it");
    // Set 2 goes back to 5 alone: 6 is of a past that will not be.
    run(
        &mut lines,
        &[
            (661, Input::Lost { rank: PeerId(2) }, ""),
            (662, demand(2), ""),
            (663, Input::Back { set: SetId(2), line: 5 }, "drop 6, begin Set 7 of 2"),
        ],
    );
}

#[test]
fn lines_that_cannot_be_complete_are_aborted_and_dropped() {
    for (bad, why) in [
        (
            failed(1, 1, Refusal::SnapshotMemory),
            "rank 1: the picture of the process could not be taken",
        ),
        (Input::NotStored { rank: PeerId(0), line: 1 }, "the image of rank 0 could not be stored"),
        (Input::Lost { rank: PeerId(1) }, "rank 1 has died"),
    ] {
        let mut lines = Lines::new(config(), &SETS, 1, 0);
        let want = format!("abort 1 of 0: {why}, drop 1");
        run(&mut lines, &[(0, demand(0), "begin Set 1 of 0"), (1, frozen(0, 1), "")]);
        run(&mut lines, &[(2, bad, &want), (3, frozen(1, 1), ""), (3, stored(0, 1), "")]);
        assert_eq!(lines.under_way(), 0);
    }
    let mut lines = Lines::new(config(), &SETS, 1, 0);
    run(
        &mut lines,
        &[
            (0, demand(2), "begin Set 1 of 2"),
            (1, frozen(2, 1), ""),
            (1, stored(2, 1), "commit 1 of 2"),
            (
                2,
                Input::NotCommitted { line: 1 },
                "abort 1 of 2: the manifest could not be written, drop 1",
            ),
            (3, Input::Committed { line: 1 }, ""),
            (4, Input::Checkpoint { exit: true }, "stop 2"),
            (104, Input::Tick, "abort 2 of 0+2: rank 0 did not answer in time, drop 2"),
            (105, stopped(0, 2), ""),
        ],
    );
}

/// L6.
#[test]
fn no_lines_while_a_set_is_lost_behind_or_finishing() {
    let mut lines = Lines::new(config(), &SETS, 1, 0);
    run(
        &mut lines,
        &[
            (0, Input::Lost { rank: PeerId(0) }, ""),
            (1, demand(0), ""),
            (2, Input::Checkpoint { exit: false }, ""),
            (3, Input::Back { set: SetId(0), line: 0 }, "begin Set 1 of 0"),
            (4, frozen(0, 1), ""),
            (4, frozen(1, 1), ""),
            (5, stored(0, 1), ""),
            (5, stored(1, 1), "commit 1 of 0"),
            (6, Input::Committed { line: 1 }, "complete 1 after 1, trim 0 by 1"),
            (7, Input::ReplayComplete { set: SetId(0) }, "stop 2"),
            (
                8,
                failed(2, 2, Refusal::Finishing),
                "abort 2 of 0+2: rank 2: the process is in MPI_Finalize, drop 2",
            ),
            (9, demand(0), "begin Set 3 of 0"),
        ],
    );
    let before = format!("{lines:?}");
    for (input, want) in [
        (demand(2), SchedulerError::Finishing),
        (Input::Checkpoint { exit: true }, SchedulerError::Finishing),
        (demand(1), SchedulerError::Set(SetId(1))),
        (stored(3, 3), SchedulerError::Rank(PeerId(3))),
        (stored(0, 3), SchedulerError::NotAsked(PeerId(0), 3)),
        (stopped(0, 3), SchedulerError::NotAsked(PeerId(0), 3)),
        (frozen(2, 3), SchedulerError::NotAsked(PeerId(2), 3)),
        (Input::Back { set: SetId(9), line: 0 }, SchedulerError::Set(SetId(9))),
    ] {
        assert_eq!(lines.handle(9, input), Err(want));
        assert_eq!(format!("{lines:?}"), before, "{want}");
    }
}

/// Sets take their lines one after the other, each at its interval; two at once where allowed.
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
            silence_timeout_ms: 9999,
            ..config()
        };
        let mut lines = Lines::new(config, &sets, 1, 0);
        let (mut begun, mut ends) = (Vec::new(), BTreeMap::new());
        let mut now = 0;
        while begun.len() < want.len() {
            // Every line takes 300 ms.
            let next = lines.next_deadline().into_iter().chain(ends.keys().copied()).min();
            now = next.unwrap_or(now).max(now);
            let inputs = match ends.remove(&now) {
                None => vec![Input::Tick],
                Some((line, set)) => {
                    vec![frozen(set, line), stored(set, line), Input::Committed { line }]
                }
            };
            for input in inputs {
                lines.handle(now, input).unwrap();
                lines.check();
            }
            while let Some(output) = lines.poll_output() {
                if let Output::Begin { line, sets, .. } = output {
                    begun.push((now, sets[0].0));
                    assert!(ends.insert(now + 300, (line, sets[0].0)).is_none());
                }
            }
        }
        assert_eq!(begun, want, "{at_once} at once");
    }
}

/// Lines that fail again and again get rarer, so that the program gets on with its work.
#[test]
fn failing_lines_wait_longer_each_time() {
    let interval = Interval::Fixed { interval_ms: 100 };
    let config = Config { global_interval: interval, ..config() };
    let mut lines = Lines::new(config, &SETS, 1, 0);
    let mut begun = Vec::new();
    while begun.len() < 6 {
        let now = lines.next_deadline().unwrap();
        lines.handle(now, Input::Tick).unwrap();
        while let Some(output) = lines.poll_output() {
            begun.extend(matches!(output, Output::StopOutgoing { .. }).then_some(now));
        }
    }
    let between: Vec<u64> = begun.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(between, [300, 500, 900, 1700, 3300], "100 ms until given up, then the wait");
}

/// L6, L7: it comes as what it was asked for, however often it is refused and for whatever time.
#[test]
fn a_global_line_that_was_refused_comes_when_all_is_repaired() {
    let mut lines = Lines::new(Config { retry_ms: 50, ..config() }, &SETS, 1, 0);
    let behind = |rank, line| failed(rank, line, Refusal::Behind);
    let repaired = |rank| Input::Repaired { rank: PeerId(rank) };
    let again = |line: u64, rank: u32| {
        format!("abort {line} of 0+2: rank {rank}: {} (tried again), drop {line}", Refusal::Behind)
    };
    run(
        &mut lines,
        &[
            (0, Input::Checkpoint { exit: true }, "stop 1"),
            (1, behind(0, 1), &again(1, 0)),
            // Of a line that is aborted already.
            (2, behind(1, 1), ""),
            (3, repaired(0), ""),
            (60, Input::Tick, ""),
            // Lines of sets go on.
            (61, demand(2), "begin Set 2 of 2"),
            (62, frozen(2, 2), ""),
            (63, stored(2, 2), "commit 2 of 2"),
            (64, Input::Committed { line: 2 }, "complete 2 after 1, trim 2 by 2"),
        ],
    );
    assert_eq!(lines.next_deadline(), None, "it is not time that it waits for");
    run(
        &mut lines,
        &[
            (9_000, repaired(1), "stop 3"),
            (9_001, behind(2, 3), &again(3, 2)),
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
            run(&mut lines, &[(9_052, answer(rank, 4), want)]);
        }
    }
    lines.handle(9_055, Input::Committed { line: 4 }).unwrap();
    assert!(text(&mut lines).ends_with("exit 4"));
}

/// L6.
#[test]
fn a_set_that_has_gone_back_has_refused_nothing() {
    let mut lines = Lines::new(config(), &SETS, 1, 0);
    let why = format!("rank 0: {} (tried again)", Refusal::Behind);
    run(
        &mut lines,
        &[
            (0, Input::Checkpoint { exit: false }, "stop 1"),
            (1, failed(0, 1, Refusal::Behind), &format!("abort 1 of 0+2: {why}, drop 1")),
            (2, Input::Lost { rank: PeerId(0) }, ""),
            (3, Input::Back { set: SetId(0), line: 0 }, ""),
            (4, Input::ReplayComplete { set: SetId(0) }, "stop 2"),
        ],
    );
}

/// A line that is due, and not asked for, is not put off by what passes.
#[test]
fn a_refused_line_that_was_due_does_not_wait_twice_as_long() {
    let interval = Interval::Fixed { interval_ms: 10_000 };
    let config = Config { global_interval: interval, retry_ms: 50, ..config() };
    let mut lines = Lines::new(config, &SETS, 1, 0);
    let why = format!("rank 0: {} (tried again)", Refusal::Behind);
    run(
        &mut lines,
        &[
            (10_000, Input::Tick, "stop 1"),
            (10_001, failed(0, 1, Refusal::Behind), &format!("abort 1 of 0+2: {why}, drop 1")),
            (10_051, Input::Tick, ""),
            (15_000, Input::Repaired { rank: PeerId(0) }, "stop 2"),
        ],
    );
}

/// L7: once, after a moment, and as what it was asked for.
#[test]
fn a_line_that_was_asked_for_and_failed_is_tried_once_more() {
    let config = || Config { retry_ms: 50, ..config() };
    let mut lines = Lines::new(config(), &SETS, 1, 0);
    let picture = |rank, line| failed(rank, line, Refusal::SnapshotMemory);
    let why = "rank 2: the picture of the process could not be taken";
    run(
        &mut lines,
        &[
            (0, demand(2), "begin Set 1 of 2"),
            (1, picture(2, 1), &format!("abort 1 of 2: {why} (tried again), drop 1")),
            (50, Input::Tick, ""),
        ],
    );
    assert_eq!(lines.next_deadline(), Some(51));
    run(
        &mut lines,
        &[
            (51, Input::Tick, "begin Set 2 of 2"),
            (52, picture(2, 2), &format!("abort 2 of 2: {why}, drop 2")),
        ],
    );
    assert_eq!((lines.under_way(), lines.next_deadline()), (0, None), "twice is enough");

    // The end of the job is asked for with the second attempt, too; who asks meanwhile joins it.
    run(
        &mut lines,
        &[
            (100, Input::Checkpoint { exit: true }, "stop 3"),
            (101, stopped(0, 3), ""),
            (102, picture(2, 3), &format!("abort 3 of 0+2: {why} (tried again), drop 3")),
            (110, Input::Checkpoint { exit: false }, ""),
        ],
    );
    assert_eq!(lines.next_deadline(), Some(152));
    run(&mut lines, &[(152, Input::Tick, "stop 4")]);
    for answer in [stopped, frozen, stored] {
        (0..3).for_each(|rank| lines.handle(153, answer(rank, 4)).unwrap());
    }
    lines.handle(156, Input::Committed { line: 4 }).unwrap();
    assert!(text(&mut lines).ends_with("exit 4"));

    // Whose answer was waited for in vain is not waited for at once again; a process that is in
    // MPI_Finalize will not come back. A rank that was lost and is back is a reason to try.
    let mut lines = Lines::new(config(), &SETS, 1, 0);
    run(
        &mut lines,
        &[
            (0, Input::Checkpoint { exit: false }, "stop 1"),
            (100, Input::Tick, "abort 1 of 0+2: rank 0 did not answer in time, drop 1"),
            (200, demand(0), "begin Set 2 of 0"),
            (
                201,
                Input::Lost { rank: PeerId(1) },
                "abort 2 of 0: rank 1 has died (tried again), drop 2",
            ),
            (300, Input::Tick, ""),
            (301, Input::Back { set: SetId(0), line: 9 }, "begin Set 3 of 0"),
            (
                302,
                failed(0, 3, Refusal::Finishing),
                "abort 3 of 0: rank 0: the process is in MPI_Finalize, drop 3",
            ),
        ],
    );
    assert_eq!(lines.next_deadline(), None);
}

/// What a random world does to a coordinator, and what it says of each line.
#[derive(Default)]
struct Book {
    ordered: BTreeSet<u64>,
    begun: BTreeSet<u64>,
    ended: BTreeMap<u64, bool>,
    dropped: BTreeSet<u64>,
    frozen: BTreeSet<(u64, u32)>,
    stored: BTreeSet<(u64, u32)>,
    sets: BTreeMap<u64, (Scope, Vec<SetId>)>,
    commits: BTreeSet<u64>,
    trimmed: BTreeMap<SetId, u64>,
}

impl Book {
    fn note(&mut self, output: Output) {
        match output {
            Output::StopOutgoing { line } => assert!(self.ordered.insert(line), "L1"),
            Output::Begin { line, scope, sets } => {
                let new = self.ordered.insert(line);
                assert_eq!(new, scope == Scope::Set, "L1: stopped before it begins");
                assert!(self.begun.insert(line));
                self.sets.insert(line, (scope, sets));
            }
            Output::Resume { line } => assert!(self.all(line, &self.frozen), "all are frozen"),
            Output::Commit { line, .. } => {
                assert!(self.all(line, &self.stored), "L3: all are stored");
                self.commits.insert(line);
            }
            Output::Complete { line, .. } => {
                assert!(self.commits.contains(&line), "L3");
                assert_eq!(self.ended.insert(line, true), None, "L4: once");
            }
            Output::Abort { line, .. } => {
                assert!(self.ordered.contains(&line), "L4");
                assert_eq!(self.ended.insert(line, false), None, "L4: once");
            }
            Output::Drop { line } => assert!(self.dropped.insert(line), "dropped once"),
            Output::Trim { set, line } => {
                assert_eq!(self.ended.get(&line), Some(&true), "L5: by a complete line");
                assert!(!self.dropped.contains(&line), "L5: by one that is there");
                let before = self.trimmed.insert(set, line);
                assert!(before.is_none_or(|before| before < line), "L5: {before:?} {line}");
            }
            Output::Exit { line } => assert_eq!(self.ended.get(&line), Some(&true), "L3"),
        }
    }

    fn all(&self, line: u64, of: &BTreeSet<(u64, u32)>) -> bool {
        let (_, sets) = &self.sets[&line];
        let ranks = SETS.iter().filter(|(_, set)| sets.contains(set));
        ranks.into_iter().all(|(rank, _)| of.contains(&(line, rank.0)))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever happens in whatever order: every line that is ordered ends once; nothing is
    /// committed that is not stored, nothing trimmed by a line that is gone.
    #[test]
    fn every_line_ends_once(
        kept_lines in 1usize..4,
        sets_at_once in 1usize..3,
        retry in 0u64..30,
        events in prop::collection::vec((0u8..24, 0u32..3, 0u64..40), 1..400),
    ) {
        let auto = Interval::Auto { mtbf_ms: 4000 };
        let config = Config {
            kept_lines,
            sets_at_once,
            set_interval: Interval::Fixed { interval_ms: 200 },
            global_interval: auto,
            retry_ms: retry,
            ..config()
        };
        let (mut lines, mut book, mut now) = (Lines::new(config, &SETS, 1, 0), Book::default(), 0);
        for (what, rank, more) in events {
            now += more / 4;
            let open: Vec<u64> =
                book.ordered.iter().copied().filter(|l| !book.ended.contains_key(l)).collect();
            let line = open.get(more as usize % open.len().max(1)).copied().unwrap_or(more);
            let set = SETS[rank as usize].1;
            let in_line = book.sets.get(&line).is_some_and(|(_, sets)| sets.contains(&set));
            let input = match what {
                0 => demand(set.0),
                1 => Input::Checkpoint { exit: false },
                2 if more == 0 => Input::Lost { rank: PeerId(rank) },
                3 => {
                    let kept: Vec<u64> = lines.lines_of(set).collect();
                    match kept.get(more as usize % kept.len().max(1)) {
                        Some(&line) => Input::Back { set, line },
                        None => Input::Tick,
                    }
                }
                4 if more < 20 => Input::Repaired { rank: PeerId(rank) },
                4 => Input::ReplayComplete { set },
                5 if more < 3 => Input::NotStored { rank: PeerId(rank), line },
                6 if more < 3 => failed(rank, line, Refusal::SnapshotMemory),
                6 if more < 5 => failed(rank, line, Refusal::Behind),
                7 if more < 3 => Input::NotCommitted { line },
                8..11 if !book.begun.contains(&line) => stopped(rank, line),
                11..16 if in_line => {
                    book.frozen.insert((line, rank));
                    frozen(rank, line)
                }
                16..21 if book.frozen.contains(&(line, rank)) => {
                    book.stored.insert((line, rank));
                    stored(rank, line)
                }
                21.. if book.commits.contains(&line) => Input::Committed { line },
                _ => Input::Tick,
            };
            let _ = lines.handle(now, input);
            lines.check();
            while let Some(output) = lines.poll_output() {
                book.note(output);
            }
            for set in [SetId(0), SetId(2)] {
                prop_assert!(lines.lines_of(set).all(|line| !book.dropped.contains(&line)));
                let oldest = lines.lines_of(set).next();
                let trimmed = book.trimmed.get(&set);
                prop_assert!(trimmed.is_none_or(|by| oldest.is_some_and(|oldest| *by <= oldest)));
            }
            let aborted = book.ended.iter().filter(|(_, complete)| !**complete);
            prop_assert!(aborted.into_iter().all(|(line, _)| book.dropped.contains(line)), "L4");
            let open = book.ordered.len() - book.ended.len();
            prop_assert_eq!(open, lines.under_way(), "L4");
        }
        // Nobody answers any more.
        for _ in 0..3 {
            now += 10_000;
            let _ = lines.handle(now, Input::Tick);
            while let Some(output) = lines.poll_output() {
                book.note(output);
            }
        }
        let late: Vec<_> = book.ordered.iter().filter(|l| !book.ended.contains_key(l)).collect();
        prop_assert!(late.len() <= lines.under_way(), "L4: {late:?}");
    }
}
