//! Every planted bug is caught: the checkers would see the same bug in the engine.

use rustbtl_sim::options::{Planted, Tier};
use rustbtl_sim::run::caught;

/// One test: the panic hook is the process's.
#[test]
fn planted_bugs_are_caught() {
    let plan = [
        (Planted::EagerOvertakes, Tier::Calm, 20),
        (Planted::SynchronousEarly, Tier::Calm, 20),
        (Planted::Overrun, Tier::Calm, 20),
        (Planted::DoubleGrant, Tier::Calm, 20),
        (Planted::FrameLost, Tier::Calm, 20),
        (Planted::SendBufferReused, Tier::Calm, 50),
        (Planted::ResendOutOfOrder, Tier::Resets, 50),
        (Planted::OpenMessagesForgotten, Tier::Resets, 50),
        (Planted::RepeatedSendsReachPeers, Tier::Failures, 50),
        (Planted::IncarnationIgnored, Tier::Failures, 100),
        (Planted::TrimTooEarly, Tier::Failures, 200),
        (Planted::TokenOvertakes, Tier::Checkpoints, 2000),
        (Planted::TokenPastHalfTaken, Tier::Checkpoints, 2000),
        (Planted::RendezvousQuiescenceSkipped, Tier::Checkpoints, 2000),
        (Planted::FlushSkipped, Tier::Checkpoints, 2000),
        (Planted::ResumeEarly, Tier::Checkpoints, 2000),
        (Planted::SetResumesEarly, Tier::Checkpoints, 2000),
        (Planted::OutgoingNotHeld, Tier::Checkpoints, 2000),
        (Planted::MatchesNotHeld, Tier::Checkpoints, 2000),
        (Planted::HeldFramesLost, Tier::Checkpoints, 2000),
        (Planted::StaleCheckpointAccepted, Tier::Checkpoints, 2000),
        (Planted::AcknowledgedAfterSnapshot, Tier::Checkpoints, 2000),
        (Planted::AloneAlthoughSuspended, Tier::Checkpoints, 2000),
        (Planted::ResumedWithoutCheckpoint, Tier::Checkpoints, 2000),
        (Planted::SuspendedByOneself, Tier::Checkpoints, 2000),
        (Planted::TrimBeforeCommit, Tier::Checkpoints, 2000),
        (Planted::RingsNotEmptied, Tier::Checkpoints, 2000),
        (Planted::ArrivedEarly, Tier::Checkpoints, 2000),
        (Planted::InFlightNotReported, Tier::Checkpoints, 2000),
        (Planted::OldCountsCount, Tier::Checkpoints, 2000),
    ];
    let mut missed = Vec::new();
    for (planted, tier, seeds) in plan {
        match caught(planted, tier, seeds) {
            Some(seed) => eprintln!("{planted:?}: caught at seed {seed} of {tier:?}"),
            None => missed.push(planted),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
