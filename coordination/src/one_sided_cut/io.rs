//! What goes into the machine of a cut, what comes out, and its frames.

use core::fmt;
use rustbtl_fragments::ids::PeerId;

/// How the channels are emptied of accesses to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutMethod {
    /// Markers alone, as for messages: the counterexample of the paper's figure 3.
    Vanilla,
    /// Solution 1: a process that is in a checkpoint answers no get.
    Delay,
    /// Solution 2: who gets asks first whether the target is in a checkpoint.
    PeekAndGet,
    /// Solution 3: all send markers to all, twice.
    DoubleBarrier,
    /// Its cheaper form: only channels with an open get are emptied a second time.
    PartialDoubleBarrier,
}

/// An access of the program to another process's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Whose memory.
    pub to: PeerId,
    /// The driver's name for it; another one for each access of a process.
    pub id: u64,
    /// Reads; a put otherwise.
    pub is_get: bool,
}

/// Between processes, on the channel that accesses to memory take: none overtakes another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutFrame {
    /// No access of mine that was started before the checkpoint follows.
    Marker {
        /// The checkpoint.
        wave: u64,
    },
    /// The markers of all have come here (double barrier).
    SecondMarker {
        /// The checkpoint.
        wave: u64,
    },
    /// Your marker has overtaken the answer to a get: answer this behind it (partial barrier).
    FlushAsk {
        /// The checkpoint.
        wave: u64,
    },
    /// Here it is.
    FlushAnswer {
        /// The checkpoint.
        wave: u64,
    },
    /// Are you in a checkpoint? (Peek-and-get; an atomic read of a word, in hardware.)
    Peek {
        /// The get that waits for the answer.
        id: u64,
    },
    /// What the word said.
    State {
        /// The get.
        id: u64,
        /// From the markers to the order to resume.
        checkpointing: bool,
    },
}

/// What happens at a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// A checkpoint begins here, by order. Elsewhere it may be the first marker that says so.
    Begin {
        /// Greater than that of all before.
        wave: u64,
    },
    /// The program wants to access memory.
    Access(Access),
    /// From another process.
    Frame {
        /// Who.
        from: PeerId,
        /// What.
        frame: CutFrame,
    },
    /// The adapter has a read request.
    Request {
        /// Of whom.
        from: PeerId,
        /// The get.
        id: u64,
    },
    /// All that a get reads is here.
    Data {
        /// From whom.
        from: PeerId,
    },
    /// Each process has its snapshot.
    Resume {
        /// The checkpoint.
        wave: u64,
    },
    /// The process is that of its snapshot again, and nothing is on any channel.
    Restored,
}

/// What the driver has to do, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// A frame, behind all that was sent to this process.
    Send {
        /// To whom.
        to: PeerId,
        /// What.
        frame: CutFrame,
    },
    /// The access leaves.
    Start(Access),
    /// The memory is read for a request, and the data leaves.
    Reply {
        /// To whom.
        to: PeerId,
        /// The get.
        id: u64,
    },
    /// Take the snapshot now, of the memory and of this machine.
    Snapshot {
        /// The checkpoint.
        wave: u64,
    },
}

/// The driver, or another process, breaks the protocol. The machine is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutError {
    /// Nobody of this name takes part.
    NotMember(PeerId),
    /// A checkpoint begins while another one has no snapshot here.
    NotOver(u64),
    /// An order for a checkpoint that has no snapshot here.
    NoSnapshot,
    /// Data, or the answer to a question, that no get waits for.
    NoSuchGet,
}

impl fmt::Display for CutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMember(peer) => write!(f, "process {} takes no part", peer.0),
            Self::NotOver(wave) => write!(f, "checkpoint {wave} has no snapshot here yet"),
            Self::NoSnapshot => f.write_str("that checkpoint has no snapshot here"),
            Self::NoSuchGet => f.write_str("no get waits for this"),
        }
    }
}

impl std::error::Error for CutError {}
