//! Messages between the guardian that waits for a rank on a spare node, and that node.

use super::codec::Field;
use super::frame::{ControlError, Message};
use rustbtl_fragments::ids::{Incarnation, PeerId};

messages! {
/// From the proxy of a rank, beside the guardian that waits for it, to the spare node that the rank
/// runs on; after mutual proof of the job's secret. The end of the connection ends the rank.
class 9 ToSpare {
    /// First, and once: start a guardian that restores this rank.
    1 Start {
        /// Which.
        rank: PeerId,
        /// Folder of the checkpoint.
        directory: String,
        /// The incarnation it will run in.
        incarnation: Incarnation,
        /// As in [`ToNode::Restore`](super::ToNode::Restore).
        alone: bool,
        /// Bytes of its standard output that were forwarded before.
        out: u64,
        /// And of its standard error.
        err: u64,
        /// As in [`ToNode::Adopt`](super::ToNode::Adopt).
        exact: bool,
    },
    /// Pass a signal on to the program.
    2 Signal {
        /// Which.
        number: i32,
    },
}

/// What becomes of it.
class 10 FromSpare {
    /// It has printed something.
    1 Output {
        /// 1: standard output, 2: standard error.
        stream: u8,
        /// So much.
        bytes: Vec<u8>,
    },
    /// It has ended, and has printed nothing since.
    2 Ended {
        /// The status as waitpid gives it.
        status: i32,
    },
    /// It was not started.
    3 Refused {
        /// What is wrong.
        reason: String,
    },
    /// Its guardian was killed, and it was with it.
    4 Killed {
        /// Where.
        reason: String,
    },
}
}
