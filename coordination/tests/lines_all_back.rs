//! All sets go back together (L8).

use rustbtl_coordination::interval::Interval;
use rustbtl_coordination::checkpoints::{Config, Input, Lines, SchedulerError, Output};
use rustbtl_coordination::quiescence::Answer;
use rustbtl_fragments::ids::{PeerId, SetId};

const SETS: [(PeerId, SetId); 2] = [(PeerId(0), SetId(0)), (PeerId(1), SetId(1))];

fn config(kept_lines: usize) -> Config {
    Config {
        set_interval: Interval::Off,
        global_interval: Interval::Off,
        sets_at_once: 1,
        kept_lines,
        silence_timeout_ms: 1000,
        store_timeout_ms: 1000,
        retry_ms: 0,
    }
}

fn take(lines: &mut Lines, inputs: impl IntoIterator<Item = Input>) -> Vec<Output> {
    for input in inputs {
        lines.handle(0, input).unwrap();
        lines.check();
    }
    core::iter::from_fn(|| lines.poll_output()).collect()
}

fn images(line: u64, ranks: &[u32]) -> Vec<Input> {
    let answered =
        |rank: &u32| Input::Answered { rank: PeerId(*rank), answer: Answer::Frozen { line } };
    let stored = |rank: &u32| Input::Stored { rank: PeerId(*rank), line };
    let all = ranks.iter().map(answered).chain(ranks.iter().map(stored));
    all.chain([Input::Committed { line }]).collect()
}

fn global(lines: &mut Lines, line: u64) -> Vec<Output> {
    let stopped = |rank| Input::Answered { rank: PeerId(rank), answer: Answer::Stopped { line } };
    let asked = [Input::Checkpoint { exit: false }, stopped(0), stopped(1)];
    take(lines, asked.into_iter().chain(images(line, &[0, 1])))
}

fn of_set(lines: &mut Lines, set: u32, line: u64) -> Vec<Output> {
    let asked = [Input::Demand { set: SetId(set) }];
    take(lines, asked.into_iter().chain(images(line, &[set])))
}

fn kept(lines: &Lines, set: u32) -> Vec<u64> {
    lines.lines_of(SetId(set)).collect()
}

fn dropped(outputs: &[Output]) -> Vec<u64> {
    let line = |output: &Output| match output {
        Output::Drop { line } => Some(*line),
        _ => None,
    };
    outputs.iter().filter_map(line).collect()
}

#[test]
fn the_line_is_the_youngest_of_all_even_of_a_set_that_had_dropped_it() {
    let mut lines = Lines::new(config(2), &SETS, 1, 0);
    global(&mut lines, 1);
    of_set(&mut lines, 1, 2);
    of_set(&mut lines, 1, 3);
    assert_eq!((kept(&lines, 0), kept(&lines, 1)), (vec![1], vec![2, 3]));
    // One is under way.
    take(&mut lines, [Input::Checkpoint { exit: false }]);
    let outputs = take(&mut lines, [Input::AllBack { line: 1 }]);
    assert_eq!(dropped(&outputs), [4, 2, 3]);
    assert_eq!(
        (kept(&lines, 0), kept(&lines, 1), lines.last_global()),
        (vec![1], vec![1], Some(1))
    );
    // Nothing is ordered until all are back; then numbers go on.
    assert_eq!(take(&mut lines, [Input::Checkpoint { exit: false }]), []);
    for set in [0, 1] {
        let set = SetId(set);
        let back = [Input::Back { set, line: 1 }, Input::ReplayComplete { set }];
        let begins = take(&mut lines, back);
        assert_eq!(begins.is_empty(), set == SetId(0), "{begins:?}");
    }
    assert_eq!((kept(&lines, 0), kept(&lines, 1)), (vec![1], vec![1]));
}

#[test]
fn an_earlier_one_takes_the_later_with_it_and_one_that_is_none_is_refused() {
    let mut lines = Lines::new(config(2), &SETS, 1, 0);
    global(&mut lines, 1);
    global(&mut lines, 2);
    for none in [0, 3, u64::MAX] {
        let refused = lines.handle(0, Input::AllBack { line: none });
        assert_eq!(refused, Err(SchedulerError::NotGlobal(none)));
    }
    assert_eq!(dropped(&take(&mut lines, [Input::AllBack { line: 1 }])), [2]);
    assert_eq!(lines.globals().collect::<Vec<_>>(), [1]);
}
