//! Determinants: what a process has to know to replay exactly what it did.
//!
//! Source: DESIGN §5, §7.4; the paper's §2 (only the outcome of a nondeterministic event is an
//! event) and Theorem 1 (they are kept for internal messages, too). `DESIGN.md` says which calls
//! of MPI make one, and why no other does.
//!
//! | file | machine |
//! |---|---|
//! | `replay_decisions` | one process: records outcomes; in replay returns them |
//! | `program_time` | its dates: what time() gives, beside the order of its nondeterministic calls
//! |
//! | `clock_readings` | what it reads from other clocks, beside that order, too |
//! | `random_stream` | the random numbers of the system that it draws, which need no record |
//! | `log` | one set: numbers them, sends them to replicas, reports what is stable |
//! | `replica` | an agent: stores those of other sets, gives them back |
//! | `set_order` | the coordinator: puts those of a set into their order, from whoever has them |
//! | `fence` | the coordinator: asks the others what they have of a set that has failed |
//! | `orphans` | the coordinator: finds out that nobody has what somebody depends on |
//! | `replays_end` | the coordinator: asks whether all that was lost is replayed |
//! | `codec`, `rank_batch`, `piggyback` | determinants, batches and what is piggybacked, as bytes |

mod clock_readings;
mod codec;
mod fence;
mod log;
mod orphans;
pub mod piggyback;
mod program_time;
mod random_stream;
pub mod rank_batch;
mod replay_decisions;
mod replays_end;
mod replica;
mod set_order;

pub use clock_readings::{CLOCKS, ClockReadings, Readings, Ticks};
pub use codec::{CodecError, decode, encode};
pub use fence::Fence;
pub use log::{BatchAck, DeterminantBatch, DeterminantLog, DeterminantRecord, ReplicaId};
pub use orphans::{Orphan, find_orphan};
pub use piggyback::{Piggybacked, PiggybackedEntry, PiggybackedPlaces};
pub use program_time::{ProgramTime, TimeReading};
pub use random_stream::RandomStream;
pub use replay_decisions::{Divergence, Numbered, OF_ANOTHER, ReplayDecision, ReplayDecisions};
pub use replays_end::{ReplayQuestion, ReplayStep, ReplaysEnd};
pub use replica::{BatchRefused, DeterminantReplica, choose_history};
pub use set_order::{Availability, Received, SetOrder};

use core::fmt;
use rustbtl_fragments::ids::{CommRank, ContextId, MessageName, PeerId, ReceiveName};

/// Which kind of nondeterministic call was made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum CallKind {
    /// MPI_Test, MPI_Request_get_status.
    Test = 1,
    /// MPI_Testall.
    TestAll = 2,
    /// MPI_Testany.
    TestAny = 3,
    /// MPI_Testsome.
    TestSome = 4,
    /// MPI_Waitany.
    WaitAny = 5,
    /// MPI_Waitsome.
    WaitSome = 6,
    /// MPI_Iprobe, and MPI_Probe for MPI_ANY_SOURCE.
    Probe = 7,
    /// MPI_Improbe, and MPI_Mprobe for MPI_ANY_SOURCE.
    Claim = 8,
    /// MPI_Cancel of a receive.
    Cancel = 9,
    /// A system call of MPI-IO on a file that ranks of several sets have opened together.
    File = 11,
}

impl CallKind {
    /// The call with this number.
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|call| *call as u8 == number)
    }

    const ALL: [Self; 10] = [
        Self::Test,
        Self::TestAll,
        Self::TestAny,
        Self::TestSome,
        Self::WaitAny,
        Self::WaitSome,
        Self::Probe,
        Self::Claim,
        Self::Cancel,
        Self::File,
    ];
}

/// A nondeterministic call of the program: its kind, and its arguments in a form that is the same
/// when the program is executed again (number of requests; communicator, source and tag of a
/// probe).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NondetCall {
    /// Which call.
    pub kind: CallKind,
    /// Its arguments; see [`NondetCall::probe`].
    pub arguments: u64,
}

impl NondetCall {
    /// A call on `requests` active requests.
    pub fn requests(call: CallKind, requests: u32) -> Self {
        Self { kind: call, arguments: u64::from(requests) }
    }

    /// A call on a file: which, and how many bytes.
    pub fn file(call: u8, bytes: u64) -> Self {
        Self { kind: CallKind::File, arguments: mix(bytes, u64::from(call)) }
    }

    /// A probe. `context`: MPI's id; any source and any tag are as MPI's C constants are.
    pub fn probe(call: CallKind, context: u16, source: i32, tag: i32) -> Self {
        let envelope = (u64::from(source as u32) << 32) | u64::from(tag as u32);
        Self { kind: call, arguments: mix(envelope, u64::from(context)) }
    }
}

impl fmt::Display for NondetCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (arguments {:#x})", self.kind, self.arguments)
    }
}

/// Mixing of two words; the same everywhere, as its results are compared after a restart.
fn mix(a: u64, b: u64) -> u64 {
    (a.rotate_left(23) ^ b).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// What a call gave that found something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It succeeded (test, testall).
    Done,
    /// Places of the completed requests in the program's array, in the order of the answer
    /// (testany and waitany: one).
    Requests(Vec<u32>),
    /// The message that a probe found.
    Message(MessageName),
    /// The receive that was cancelled in time; None: it was too late.
    Cancelled(Option<ReceiveName>),
    /// What a call on a file has returned, or bytes that it has read; as it lies in memory.
    Value(u64),
}

/// Outcome of one nondeterministic event, or of a run of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Determinant {
    /// A receive from MPI_ANY_SOURCE took a message.
    Matched {
        /// The receive.
        receive: ReceiveName,
        /// The message; in the context and lane of the receive.
        message: MessageName,
    },
    /// `count` calls in a row found nothing.
    Nothing {
        /// The first of them.
        first: NondetCall,
        /// How many.
        count: u64,
        /// All of them, in their order.
        hash: u64,
    },
    /// A call found something.
    Outcome {
        /// The call.
        call: NondetCall,
        /// Its result.
        outcome: Outcome,
    },
    /// time() gave a date that is not known to be given from those before.
    ProgramTime(TimeReading),
    /// What consecutive calls on one of the other clocks were given.
    Readings(Box<Readings>),
    /// Operations of one origin were applied to a window of this process, one after the other.
    Applied(AppliedRun),
    /// Operations that were applied directly to windows of ranks of the set, not empty: either all
    /// of them are known, or none.
    AppliedGroup(Vec<DirectRun>),
}

/// Operations that ranks of a set applied themselves to a window of one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectRun {
    /// Whose window.
    pub target: PeerId,
    /// Operations that were applied to its windows before, since the job began.
    pub first: u64,
    /// What they are.
    pub run: AppliedRun,
}

/// What was applied to the windows of a rank before it failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PastRun {
    /// By itself, since its checkpoint.
    Own(AppliedRun),
    /// Directly; perhaps before that.
    Direct(DirectRun),
}

/// One-sided operations of one origin in a row: `fragments/rma` says what it is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppliedRun {
    /// The window's communicator.
    pub window: ContextId,
    /// Rank of the origin there.
    pub source: CommRank,
    /// How many; at least 1.
    pub count: u64,
    /// Actions of the program by then; 0: of an active epoch, which says when.
    pub tick: u64,
}
