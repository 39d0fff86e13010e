//! Every planted bug is caught: the checkers would see the same bug in the engine.

use rustbtl_sim::options::{Planted, Tier};
use rustbtl_sim::run::all_caught;

/// One test: the panic hook is the process's.
#[test]
fn planted_bugs_are_caught() {
    let plan = [
        (Planted::EagerOvertakes, Tier::Calm, 3, 20),
        (Planted::SynchronousEarly, Tier::Calm, 0, 20),
        (Planted::Overrun, Tier::Calm, 0, 20),
        (Planted::DoubleGrant, Tier::Calm, 0, 20),
        (Planted::FrameLost, Tier::Calm, 0, 20),
        (Planted::SendBufferReused, Tier::Calm, 0, 50),
        (Planted::ResendOutOfOrder, Tier::Resets, 13, 50),
        (Planted::OpenMessagesForgotten, Tier::Resets, 0, 50),
        (Planted::RepeatedSendsReachPeers, Tier::Failures, 0, 50),
        (Planted::IncarnationIgnored, Tier::Failures, 3, 100),
        (Planted::TrimTooEarly, Tier::Failures, 0, 200),
        (Planted::TokenOvertakes, Tier::Checkpoints, 9, 2000),
        (Planted::TokenPastHalfTaken, Tier::Checkpoints, 42, 2000),
        (Planted::RendezvousQuiescenceSkipped, Tier::Checkpoints, 16, 2000),
        (Planted::FlushSkipped, Tier::Checkpoints, 194, 2000),
        (Planted::ResumeEarly, Tier::Checkpoints, 16, 2000),
        (Planted::SetResumesEarly, Tier::Checkpoints, 11, 2000),
        (Planted::OutgoingNotHeld, Tier::Checkpoints, 169, 2000),
        (Planted::MatchesNotHeld, Tier::Checkpoints, 41, 2000),
        (Planted::HeldFramesLost, Tier::Checkpoints, 15, 2000),
        (Planted::StaleCheckpointAccepted, Tier::Checkpoints, 54, 2000),
        (Planted::AcknowledgedAfterSnapshot, Tier::Checkpoints, 796, 2000),
        (Planted::AloneAlthoughSuspended, Tier::Checkpoints, 339, 2000),
        (Planted::ResumedWithoutCheckpoint, Tier::Checkpoints, 982, 2000),
        (Planted::SuspendedByOneself, Tier::Checkpoints, 204, 2000),
        (Planted::TrimBeforeCommit, Tier::Checkpoints, 62, 2000),
        (Planted::RingsNotEmptied, Tier::Checkpoints, 9, 2000),
        (Planted::ArrivedEarly, Tier::Checkpoints, 237, 2000),
        (Planted::InFlightNotReported, Tier::Checkpoints, 3, 2000),
        (Planted::OldCountsCount, Tier::Checkpoints, 3, 2000),
    ];
    all_caught(&plan);
}
