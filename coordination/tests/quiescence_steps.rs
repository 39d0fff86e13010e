//! Checkpoints of one process step by step, and each error, as tables.

use rustbtl_coordination::quiescence::*;
use rustbtl_fragments::checkpoint_frame::{CheckpointFrame, CheckpointStep};
use rustbtl_fragments::ids::PeerId;

fn text(machine: &mut Quiescence) -> String {
    let mut out = String::new();
    while let Some(output) = machine.poll_output() {
        let piece = match output {
            Output::Send { to, frame: CheckpointFrame { what, .. } } => match what {
                CheckpointStep::Token { .. } => format!("token>{to}"),
                CheckpointStep::Flush => format!("flush>{to}"),
                CheckpointStep::Flushed => format!("flushed>{to}"),
                CheckpointStep::Barrier { second, round } => {
                    format!("barrier{}.{round}>{to}", 1 + u8::from(second))
                }
            },
            Output::Answer(CheckpointAnswer::Stopped { checkpoint }) => {
                format!("stopped {checkpoint}")
            }
            Output::Answer(CheckpointAnswer::Frozen { checkpoint }) => {
                format!("frozen {checkpoint}")
            }
            Output::Answer(CheckpointAnswer::Failed { checkpoint, refusal }) => {
                format!("failed {checkpoint} {refusal:?}")
            }
            Output::Resume { checkpoint, frozen } => format!("resume {checkpoint} {frozen}"),
            Output::Enter { checkpoint } => format!("enter {checkpoint}"),
            Output::Arrive { phase, in_flight, .. } => format!("come {phase:?} {in_flight}"),
            Output::Freeze { checkpoint } => format!("freeze {checkpoint}"),
            Output::HoldOutgoing => "hold".to_owned(),
            Output::ReleaseOutgoing => "release".to_owned(),
        };
        out += if out.is_empty() { "" } else { ", " };
        out += &piece;
    }
    out
}

fn frame(from: u32, checkpoint: u64, what: CheckpointStep) -> Input {
    Input::Frame { from: PeerId(from), frame: CheckpointFrame { checkpoint, what } }
}

fn token(from: u32, checkpoint: u64) -> Input {
    frame(from, checkpoint, CheckpointStep::Token { global: false })
}

fn barrier(from: u32, checkpoint: u64, second: bool, round: u8) -> Input {
    frame(from, checkpoint, CheckpointStep::Barrier { second, round })
}

/// An input, and what comes of it.
type Step = (Input, &'static str);

/// Inputs and what comes of them, for process 1 of {0, 1, 2}.
fn transcript(steps: &[Step]) -> Quiescence {
    transcript_of(QuiesceMethod::Frames, steps)
}

fn transcript_of(method: QuiesceMethod, steps: &[Step]) -> Quiescence {
    let mut machine = Quiescence::new(PeerId(1), &[PeerId(2), PeerId(0), PeerId(1)]);
    machine.set_method(method);
    for (at, (input, want)) in steps.iter().enumerate() {
        machine.handle(input.clone()).unwrap_or_else(|error| panic!("step {at}: {error}"));
        machine.check();
        assert_eq!(text(&mut machine), *want, "step {at}: {input:?}");
    }
    machine
}

fn quiescent(done_recipients: &[u32]) -> Input {
    Input::RendezvousQuiescent {
        done_recipients: done_recipients.iter().copied().map(PeerId).collect(),
    }
}

#[test]
fn a_set_checkpoint_step_by_step() {
    transcript(&[
        (token(2, 7), "enter 7, token>0, token>2"),
        (Input::Begin { checkpoint: 7, scope: CheckpointScope::Set }, ""),
        (token(2, 7), ""),
        (frame(2, 7, CheckpointStep::Flush), "flushed>2"),
        (token(0, 7), ""),
        (quiescent(&[0]), "flush>0"),
        (barrier(2, 7, false, 1), ""),
        (frame(0, 7, CheckpointStep::Flushed), "barrier1.0>2, barrier1.1>0"),
        (barrier(0, 7, false, 0), "freeze 7"),
        (barrier(0, 7, true, 0), ""),
        (Input::Frozen { checkpoint: 7 }, "frozen 7, barrier2.0>2, barrier2.1>0"),
        (barrier(2, 7, true, 1), "resume 7 true"),
        (barrier(2, 7, true, 1), ""),
        (token(0, 7), ""),
        (token(0, 6), ""),
        (Input::Abort { checkpoint: 7 }, ""),
        (Input::Frozen { checkpoint: 7 }, ""),
    ]);
}

#[test]
fn a_global_checkpoint_step_by_step() {
    let global = CheckpointStep::Token { global: true };
    transcript(&[
        (Input::StopOutgoing { checkpoint: 7 }, "hold, stopped 7"),
        (Input::StopOutgoing { checkpoint: 7 }, ""),
        (frame(0, 7, global), "enter 7, token>0, token>2"),
        (frame(2, 7, global), ""),
        (quiescent(&[]), "barrier1.0>2, barrier1.1>0"),
        (barrier(0, 7, false, 0), ""),
        (Input::Resume { checkpoint: 7 }, ""),
        (barrier(2, 7, false, 1), "freeze 7"),
        (Input::Frozen { checkpoint: 7 }, "frozen 7"),
        (Input::Resume { checkpoint: 6 }, ""),
        (Input::Resume { checkpoint: 7 }, "resume 7 true, release"),
        (Input::Resume { checkpoint: 7 }, ""),
    ]);
    // Somebody who was not stopped must not take part: it may have sent to other sets since.
    transcript(&[(frame(0, 7, global), "failed 7 NotStopped"), (frame(2, 7, global), "")]);
}

fn all_arrived(checkpoint: u64, phase: CounterPhase, in_flight: bool) -> Input {
    Input::AllArrived { checkpoint, phase, in_flight }
}

#[test]
fn counted_checkpoints_step_by_step() {
    use CounterPhase::{Drained, Quiescent, SnapshotTaken};
    transcript_of(
        QuiesceMethod::Counters,
        &[
            (Input::Begin { checkpoint: 7, scope: CheckpointScope::Set }, "enter 7"),
            (Input::Drained { in_flight: true }, "come Drained true"),
            (Input::Begin { checkpoint: 7, scope: CheckpointScope::Set }, ""),
            (all_arrived(7, Drained, true), ""),
            (quiescent(&[0]), "come Quiescent false"),
            (all_arrived(7, Quiescent, false), "freeze 7"),
            (
                not_frozen(CheckpointRefusal::Snapshot),
                "failed 7 Snapshot, come SnapshotTaken false",
            ),
            (all_arrived(7, SnapshotTaken, false), "resume 7 false"),
            (all_arrived(7, SnapshotTaken, false), ""),
            (Input::StopOutgoing { checkpoint: 8 }, "hold, stopped 8"),
            (Input::Begin { checkpoint: 8, scope: CheckpointScope::Global }, "enter 8"),
            (Input::Drained { in_flight: false }, "come Drained false"),
            (all_arrived(8, Drained, false), "freeze 8"),
            (Input::Frozen { checkpoint: 8 }, "frozen 8"),
            (Input::Resume { checkpoint: 8 }, "resume 8 true, release"),
            (Input::Begin { checkpoint: 9, scope: CheckpointScope::Set }, "enter 9"),
            (Input::Drained { in_flight: false }, "come Drained false"),
            (Input::Abort { checkpoint: 9 }, "resume 9 false"),
            (token(0, 9), ""),
        ],
    );
    let left = (Input::Drained { in_flight: false }, "come Drained false");
    let entered = (Input::Begin { checkpoint: 7, scope: CheckpointScope::Set }, "enter 7");
    let cases: [(&[Step], Input, QuiescenceError); 4] = [
        (&[], token(0, 1), QuiescenceError::OtherMethod(PeerId(0))),
        (
            &[entered],
            all_arrived(7, Drained, true),
            QuiescenceError::Unexpected("a count that is complete"),
        ),
        (
            &[(Input::Begin { checkpoint: 7, scope: CheckpointScope::Set }, "enter 7"), left],
            all_arrived(7, Quiescent, true),
            QuiescenceError::Unexpected("a count that is complete"),
        ),
        (
            &[],
            Input::Drained { in_flight: false },
            QuiescenceError::Unexpected("that all has left"),
        ),
    ];
    for (steps, input, want) in cases {
        let mut machine = transcript_of(QuiesceMethod::Counters, steps);
        let before = format!("{machine:?}");
        assert_eq!(machine.handle(input), Err(want));
        assert_eq!(format!("{machine:?}"), before, "{want}");
    }
}

#[test]
fn a_set_of_one_needs_nobody() {
    let mut machine = Quiescence::new(PeerId(4), &[PeerId(4)]);
    let mut step = |input, want| {
        machine.handle(input).unwrap();
        assert_eq!(text(&mut machine), want);
    };
    step(Input::Begin { checkpoint: 1, scope: CheckpointScope::Set }, "enter 1");
    step(Input::RendezvousQuiescent { done_recipients: Vec::new() }, "freeze 1");
    step(Input::Frozen { checkpoint: 1 }, "frozen 1, resume 1 true");
    step(Input::StopOutgoing { checkpoint: 2 }, "hold, stopped 2");
    step(Input::Begin { checkpoint: 2, scope: CheckpointScope::Global }, "enter 2");
    step(Input::RendezvousQuiescent { done_recipients: Vec::new() }, "freeze 2");
    step(Input::Frozen { checkpoint: 2 }, "frozen 2");
    step(Input::Resume { checkpoint: 2 }, "resume 2 true, release");
}

fn not_frozen(refusal: CheckpointRefusal) -> Input {
    Input::SnapshotFailed { checkpoint: 7, refusal }
}

#[test]
fn a_snapshot_that_cannot_be_taken_keeps_nobody_waiting() {
    transcript(&[
        (Input::Begin { checkpoint: 7, scope: CheckpointScope::Set }, "enter 7, token>0, token>2"),
        (token(0, 7), ""),
        (token(2, 7), ""),
        (quiescent(&[]), "barrier1.0>2, barrier1.1>0"),
        (barrier(2, 7, false, 1), ""),
        (barrier(0, 7, false, 0), "freeze 7"),
        (not_frozen(CheckpointRefusal::Snapshot), "failed 7 Snapshot, barrier2.0>2, barrier2.1>0"),
        (barrier(0, 7, true, 0), ""),
        (barrier(2, 7, true, 1), "resume 7 false"),
    ]);
}

#[test]
fn aborts_before_entry_and_in_a_snapshot() {
    transcript(&[
        (Input::Abort { checkpoint: 7 }, ""),
        (token(0, 7), ""),
        (Input::Begin { checkpoint: 7, scope: CheckpointScope::Set }, ""),
        (Input::StopOutgoing { checkpoint: 8 }, "hold, stopped 8"),
        (Input::Abort { checkpoint: 8 }, "release"),
        (Input::Begin { checkpoint: 9, scope: CheckpointScope::Set }, "enter 9, token>0, token>2"),
        (token(0, 10), "resume 9 false, enter 10, token>0, token>2"),
        (Input::Abort { checkpoint: 9 }, ""),
        (Input::Abort { checkpoint: 12 }, "resume 10 false"),
        (token(2, 11), ""),
    ]);
}

#[test]
fn a_process_that_finishes_takes_its_checkpoint_to_the_end_and_no_other() {
    let machine = transcript(&[
        (Input::Begin { checkpoint: 1, scope: CheckpointScope::Set }, "enter 1, token>0, token>2"),
        (Input::Finish, ""),
        (token(0, 1), ""),
        (token(2, 1), ""),
        (quiescent(&[]), "barrier1.0>2, barrier1.1>0"),
        (barrier(0, 1, false, 0), ""),
        (barrier(2, 1, false, 1), "freeze 1"),
        (Input::Frozen { checkpoint: 1 }, "frozen 1, barrier2.0>2, barrier2.1>0"),
        (barrier(0, 1, true, 0), ""),
        (barrier(2, 1, true, 1), "resume 1 true"),
        (token(2, 2), "failed 2 Finishing"),
        (Input::Begin { checkpoint: 2, scope: CheckpointScope::Set }, ""),
        (Input::StopOutgoing { checkpoint: 3 }, "failed 3 Finishing"),
    ]);
    assert!(machine.has_finished());
    let machine = transcript(&[
        (Input::StopOutgoing { checkpoint: 1 }, "hold, stopped 1"),
        (Input::Finish, "release, failed 1 Finishing"),
        (token(0, 1), ""),
    ]);
    assert!(machine.has_finished());
}

#[test]
fn a_restored_process_is_out_of_its_checkpoint() {
    let mut machine = transcript(&[
        (Input::StopOutgoing { checkpoint: 7 }, "hold, stopped 7"),
        (frame(0, 7, CheckpointStep::Token { global: true }), "enter 7, token>0, token>2"),
        (frame(2, 7, CheckpointStep::Token { global: true }), ""),
        (quiescent(&[]), "barrier1.0>2, barrier1.1>0"),
        (barrier(0, 7, false, 0), ""),
        (barrier(2, 7, false, 1), "freeze 7"),
    ]);
    machine.handle(Input::Restored).unwrap();
    assert_eq!(text(&mut machine), "resume 7 true");
    assert!(!machine.is_active() && machine.last_checkpoint() == Some(7));
    machine.handle(Input::StopOutgoing { checkpoint: 8 }).unwrap();
    assert_eq!(text(&mut machine), "hold, stopped 8");
}

#[test]
fn a_broken_protocol_is_named_and_changes_nothing() {
    let entered = [(
        Input::Begin { checkpoint: 7, scope: CheckpointScope::Set },
        "enter 7, token>0, token>2",
    )];
    let flush = |checkpoint| frame(0, checkpoint, CheckpointStep::Flush);
    let cases: [(&[Step], Input, QuiescenceError); 9] = [
        (&[], token(5, 1), QuiescenceError::NotMember(PeerId(5))),
        (&[], token(1, 1), QuiescenceError::NotMember(PeerId(1))),
        (
            &[],
            flush(1),
            QuiescenceError::TooEarly(CheckpointFrame {
                checkpoint: 1,
                what: CheckpointStep::Flush,
            }),
        ),
        (
            &entered,
            flush(8),
            QuiescenceError::TooEarly(CheckpointFrame {
                checkpoint: 8,
                what: CheckpointStep::Flush,
            }),
        ),
        (&entered, barrier(0, 7, false, 2), QuiescenceError::Round(2)),
        (&entered, quiescent(&[]), QuiescenceError::Unexpected("rendezvous silence")),
        (&entered, quiescent(&[9]), QuiescenceError::NotMember(PeerId(9))),
        (&entered, Input::Frozen { checkpoint: 7 }, QuiescenceError::Unexpected("a snapshot")),
        (&entered, Input::Restored, QuiescenceError::Unexpected("a restored process")),
    ];
    for (steps, input, want) in cases {
        let mut machine = transcript(steps);
        let before = format!("{machine:?}");
        assert_eq!(machine.handle(input), Err(want));
        assert_eq!(format!("{machine:?}"), before, "{want}");
    }
}
