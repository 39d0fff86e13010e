//! Messages between the `rustbtl` command and the coordinator.

use super::codec::Field;
use super::fields::CheckpointId;
use super::frame::{ControlError, Message};

messages! {
/// From the `rustbtl` command to the coordinator.
class 5 Request {
    /// Report everything there is to know.
    1 Status {},
    /// Take a checkpoint.
    2 Checkpoint {
        /// Of all sets: what a job can be restarted from. Otherwise one checkpoint per set.
        all: bool,
        /// Reply when it is complete, not when it is ordered.
        wait: bool,
        /// End the job when it is complete.
        then_exit: bool,
    },
}

/// To the `rustbtl` command.
class 6 Reply {
    /// To `Status`.
    1 Status {
        /// As the user guide describes it.
        json: String,
    },
    /// To `Checkpoint`: ordered.
    2 Ordered {
        /// The first checkpoint that was ordered.
        checkpoint: CheckpointId,
    },
    /// To `Checkpoint`: complete.
    3 Complete {
        /// The last checkpoint that was completed.
        checkpoint: CheckpointId,
    },
    /// It cannot be.
    4 Refused {
        /// What is wrong and what to do.
        reason: String,
    },
}
}
