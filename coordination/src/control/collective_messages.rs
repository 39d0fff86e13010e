//! Messages of the collective clock, on the connections of the control messages (docs/adr/0038).
//! They travel inside `FromRank::Clock` and `ToRank::Clock`. The numbers in front are those on the
//! wire: never give one to another message.

use super::codec::Field;
use super::collective_fields::{ClockCounter, ClockTarget, Hindrance};
use super::fields::CheckpointId;
use super::frame::{ControlError, Message};
use rustbtl_fragments::ids::PeerId;

messages! {
/// From the clock of a rank to the coordinator.
class 11 FromClock {
    /// Answer to `Drain`: all its communicators. Later of the same drain: those made since.
    1 Counters {
        /// For this checkpoint.
        checkpoint: CheckpointId,
        /// Its communicators.
        counters: Vec<ClockCounter>,
    },
    /// It has entered a collective above the target that it knew.
    2 Raised {
        /// For this checkpoint.
        checkpoint: CheckpointId,
        /// Its own number of the clock.
        clock: u32,
        /// Collectives entered there.
        sequence: u64,
    },
    /// How it is. What it has sent before is true by then.
    3 State {
        /// For this checkpoint.
        checkpoint: CheckpointId,
        /// Messages of this drain that it has received, `Drain` included.
        orders: u32,
        /// What keeps it from being drained.
        hindrance: Hindrance,
        /// Number of the stop at whose entry it is held, the youngest; 0: at none.
        stop: u32,
        /// It is blocked in point-to-point communication until one of these does something.
        waits_for: Vec<PeerId>,
    },
}

/// To the clock of a rank.
class 12 ToClock {
    /// Count from now on for this checkpoint, answer `Counters`.
    1 Drain {
        /// For this checkpoint.
        checkpoint: CheckpointId,
    },
    /// Others have entered more than you.
    2 Raise {
        /// For this checkpoint.
        checkpoint: CheckpointId,
        /// Where, and how much.
        targets: Vec<ClockTarget>,
    },
    /// Somebody waits for you: leave this stop, and those before it.
    3 Lift {
        /// For this checkpoint.
        checkpoint: CheckpointId,
        /// As `State` said.
        stop: u32,
    },
}
}
