//! Global rollback: all sets together (L8).

use rustbtl_coordination::checkpoints::{
    CheckpointScheduler, Config, Input, Output, SchedulerError,
};
use rustbtl_coordination::interval::Interval;
use rustbtl_coordination::quiescence::CheckpointAnswer;
use rustbtl_fragments::ids::{PeerId, SetId};

const SETS: [(PeerId, SetId); 2] = [(PeerId(0), SetId(0)), (PeerId(1), SetId(1))];

fn config(checkpoints_kept: usize) -> Config {
    Config {
        set_interval: Interval::Off,
        global_interval: Interval::Off,
        sets_at_once: 1,
        checkpoints_kept,
        quiescence_timeout_ms: 1000,
        store_timeout_ms: 1000,
        retry_ms: 0,
    }
}

fn take(
    checkpoints: &mut CheckpointScheduler,
    inputs: impl IntoIterator<Item = Input>,
) -> Vec<Output> {
    for input in inputs {
        checkpoints.handle(0, input).unwrap();
        checkpoints.check();
    }
    core::iter::from_fn(|| checkpoints.poll_output()).collect()
}

fn images(checkpoint: u64, ranks: &[u32]) -> Vec<Input> {
    let answered = |rank: &u32| Input::Answered {
        rank: PeerId(*rank),
        answer: CheckpointAnswer::Frozen { checkpoint },
    };
    let stored = |rank: &u32| Input::Stored { rank: PeerId(*rank), checkpoint };
    let all = ranks.iter().map(answered).chain(ranks.iter().map(stored));
    all.chain([Input::Committed { checkpoint }]).collect()
}

fn global(checkpoints: &mut CheckpointScheduler, checkpoint: u64) -> Vec<Output> {
    let stopped = |rank| Input::Answered {
        rank: PeerId(rank),
        answer: CheckpointAnswer::Stopped { checkpoint },
    };
    let asked = [Input::RequestGlobalCheckpoint { exit: false }, stopped(0), stopped(1)];
    take(checkpoints, asked.into_iter().chain(images(checkpoint, &[0, 1])))
}

fn of_set(checkpoints: &mut CheckpointScheduler, set: u32, checkpoint: u64) -> Vec<Output> {
    let asked = [Input::RequestSetCheckpoint { set: SetId(set) }];
    take(checkpoints, asked.into_iter().chain(images(checkpoint, &[set])))
}

fn kept(checkpoints: &CheckpointScheduler, set: u32) -> Vec<u64> {
    checkpoints.checkpoints_of(SetId(set)).collect()
}

fn dropped(outputs: &[Output]) -> Vec<u64> {
    let checkpoint = |output: &Output| match output {
        Output::Delete { checkpoint } => Some(*checkpoint),
        _ => None,
    };
    outputs.iter().filter_map(checkpoint).collect()
}

#[test]
fn the_checkpoint_is_the_youngest_of_all_even_of_a_set_that_had_dropped_it() {
    let mut checkpoints = CheckpointScheduler::new(config(2), &SETS, 1, 0);
    global(&mut checkpoints, 1);
    of_set(&mut checkpoints, 1, 2);
    of_set(&mut checkpoints, 1, 3);
    assert_eq!((kept(&checkpoints, 0), kept(&checkpoints, 1)), (vec![1], vec![2, 3]));
    // One is under way.
    take(&mut checkpoints, [Input::RequestGlobalCheckpoint { exit: false }]);
    let outputs = take(&mut checkpoints, [Input::GlobalRollback { checkpoint: 1 }]);
    assert_eq!(dropped(&outputs), [4, 2, 3]);
    assert_eq!(
        (kept(&checkpoints, 0), kept(&checkpoints, 1), checkpoints.last_global()),
        (vec![1], vec![1], Some(1))
    );
    // Nothing is ordered until all are restarted; then numbers go on.
    assert_eq!(take(&mut checkpoints, [Input::RequestGlobalCheckpoint { exit: false }]), []);
    for set in [0, 1] {
        let set = SetId(set);
        let back = [Input::SetRestarted { set, checkpoint: 1 }, Input::ReplayComplete { set }];
        let begins = take(&mut checkpoints, back);
        assert_eq!(begins.is_empty(), set == SetId(0), "{begins:?}");
    }
    assert_eq!((kept(&checkpoints, 0), kept(&checkpoints, 1)), (vec![1], vec![1]));
}

#[test]
fn an_earlier_one_takes_the_later_with_it_and_one_that_is_none_is_refused() {
    let mut checkpoints = CheckpointScheduler::new(config(2), &SETS, 1, 0);
    global(&mut checkpoints, 1);
    global(&mut checkpoints, 2);
    for none in [0, 3, u64::MAX] {
        let refused = checkpoints.handle(0, Input::GlobalRollback { checkpoint: none });
        assert_eq!(refused, Err(SchedulerError::NotGlobal(none)));
    }
    assert_eq!(dropped(&take(&mut checkpoints, [Input::GlobalRollback { checkpoint: 1 }])), [2]);
    assert_eq!(checkpoints.globals().collect::<Vec<_>>(), [1]);
}
