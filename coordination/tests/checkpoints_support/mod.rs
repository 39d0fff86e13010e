//! What the tests of the checkpoint scheduler share.
#![allow(dead_code, reason = "each test program uses a part")]

use rustbtl_coordination::checkpoints::*;
use rustbtl_coordination::interval::Interval;
use rustbtl_coordination::quiescence::{CheckpointAnswer, CheckpointRefusal};
use rustbtl_fragments::ids::{PeerId, SetId};

/// Ranks 0 and 1 in set 0, rank 2 in set 2.
pub const SETS: [(PeerId, SetId); 3] =
    [(PeerId(0), SetId(0)), (PeerId(1), SetId(0)), (PeerId(2), SetId(2))];

pub fn config() -> Config {
    Config {
        set_interval: Interval::Off,
        global_interval: Interval::Off,
        sets_at_once: 1,
        checkpoints_kept: 2,
        quiescence_timeout_ms: 100,
        store_timeout_ms: 1000,
        retry_ms: 0,
    }
}

pub fn text(checkpoints: &mut CheckpointScheduler) -> String {
    let mut out = Vec::new();
    let names = |sets: &[SetId]| sets.iter().map(|s| s.to_string()).collect::<Vec<_>>().join("+");
    while let Some(output) = checkpoints.poll_output() {
        out.push(match output {
            Output::StopOutgoing { checkpoint } => format!("stop {checkpoint}"),
            Output::Begin { checkpoint, scope, sets } => {
                format!("begin {scope:?} {checkpoint} of {}", names(&sets))
            }
            Output::Resume { checkpoint } => format!("resume {checkpoint}"),
            Output::Abort { checkpoint, sets, reason: why, retried, .. } => {
                let retried = if retried { " (tried again)" } else { "" };
                format!("abort {checkpoint} of {}: {why}{retried}", names(&sets))
            }
            Output::Commit { checkpoint, sets, .. } => {
                format!("commit {checkpoint} of {}", names(&sets))
            }
            Output::Complete { checkpoint, pause_ms } => {
                format!("complete {checkpoint} after {pause_ms}")
            }
            Output::SuspendLogging { set, before } => format!("suspend {set} before {before}"),
            Output::LoggingResumed { set, checkpoint } => format!("resumed {set} by {checkpoint}"),
            Output::Trim { set, checkpoint } => format!("trim {set} by {checkpoint}"),
            Output::Delete { checkpoint } => format!("drop {checkpoint}"),
            Output::Exit { checkpoint } => format!("exit {checkpoint}"),
        });
    }
    checkpoints.check();
    out.join(", ")
}

pub fn demand(set: u32) -> Input {
    Input::RequestSetCheckpoint { set: SetId(set) }
}
pub fn stopped(rank: u32, checkpoint: u64) -> Input {
    Input::Answered { rank: PeerId(rank), answer: CheckpointAnswer::Stopped { checkpoint } }
}
pub fn frozen(rank: u32, checkpoint: u64) -> Input {
    Input::Answered { rank: PeerId(rank), answer: CheckpointAnswer::Frozen { checkpoint } }
}
pub fn failed(rank: u32, checkpoint: u64, why: CheckpointRefusal) -> Input {
    Input::Answered {
        rank: PeerId(rank),
        answer: CheckpointAnswer::Failed { checkpoint, refusal: why },
    }
}
pub fn stored(rank: u32, checkpoint: u64) -> Input {
    Input::Stored { rank: PeerId(rank), checkpoint }
}

pub fn run(checkpoints: &mut CheckpointScheduler, steps: &[(u64, Input, &str)]) {
    for (at, (now, input, want)) in steps.iter().enumerate() {
        checkpoints
            .handle(*now, input.clone())
            .unwrap_or_else(|error| panic!("step {at}: {error}"));
        assert_eq!(text(checkpoints), *want, "step {at}: {input:?}");
    }
}

/// The whole order of a global checkpoint; `exit` leaves the ranks stopped until it is complete.
pub fn global(checkpoints: &mut CheckpointScheduler, checkpoint: u64, exit: bool, last: &str) {
    let t = 100 * checkpoint;
    let resume = if exit { String::new() } else { format!("resume {checkpoint}") };
    run(
        checkpoints,
        &[
            (t, Input::RequestGlobalCheckpoint { exit }, &format!("stop {checkpoint}")),
            (t + 1, stopped(0, checkpoint), ""),
            (t + 2, stopped(2, checkpoint), ""),
            (t + 3, stopped(1, checkpoint), &format!("begin Global {checkpoint} of 0+2")),
            (t + 4, frozen(0, checkpoint), ""),
            (t + 5, frozen(1, checkpoint), ""),
            (t + 6, stored(0, checkpoint), ""),
            (t + 7, frozen(2, checkpoint), &resume),
            (t + 8, stored(2, checkpoint), ""),
            (t + 9, stored(1, checkpoint), &format!("commit {checkpoint} of 0+2")),
            (
                t + 10,
                Input::Committed { checkpoint },
                &format!("complete {checkpoint} after 7, {last}"),
            ),
        ],
    );
}
