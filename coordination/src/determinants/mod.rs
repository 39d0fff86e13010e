//! Determinants: what a process must be told to do again exactly what it did.
//!
//! Source: DESIGN §5, §7.4; the paper's §2 (only the outcome of a nondeterministic event is an
//! event) and Theorem 1 (they are kept for internal messages, too). `DESIGN.md` says which calls
//! of MPI make one, and why no other does.
//!
//! | file | machine |
//! |---|---|
//! | `decisions` | one process: records outcomes; after a restore says what they have to be |
//! | `dates` | its dates: what time() gives, beside the order of its questions |
//! | `shipper` | one set: numbers them, brings them to keepers, says what is stable |
//! | `keeper` | an agent: keeps those of other sets, gives them back |
//! | `order` | the coordinator: puts those of a set into their order, from whoever has them |
//! | `fence` | the coordinator: asks the others what they have of a set that has fallen |
//! | `codec`, `parcel`, `carried` | determinants, batches and what goes with messages as bytes |

pub mod carried;
mod codec;
mod dates;
mod decisions;
mod fence;
mod keeper;
mod order;
pub mod parcel;
mod shipper;

pub use carried::Carried;
pub use codec::{CodecError, decode, encode};
pub use dates::{Date, Dates};
pub use decisions::{Ask, Decisions, Divergence, Numbered};
pub use fence::Fence;
pub use keeper::{DeterminantReplica, Refused, choose};
pub use order::Order;
pub use shipper::{Ack, Batch, DeterminantLog, ReplicaId, Record};

use core::fmt;
use rustbtl_fragments::ids::{MessageName, ReceiveName};

/// What sort of call asked for an outcome.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Call {
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
    /// MPI_Wtime. It finds nothing when it gives the same time as before.
    Clock = 10,
}

impl Call {
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
        Self::Clock,
    ];
}

/// A question of the program: the call, and what it asks for in a form that is the same when the
/// program is executed again (number of requests; communicator, source and tag of a probe).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Question {
    /// Which call.
    pub call: Call,
    /// Its arguments; see [`Question::probe`].
    pub shape: u64,
}

impl Question {
    /// A call on `requests` active requests.
    pub fn requests(call: Call, requests: u32) -> Self {
        Self { call, shape: u64::from(requests) }
    }

    /// MPI_Wtime.
    pub const CLOCK: Self = Self { call: Call::Clock, shape: 0 };

    /// A probe. `context`: MPI's id; any source and any tag are as MPI's C constants are.
    pub fn probe(call: Call, context: u16, source: i32, tag: i32) -> Self {
        let envelope = (u64::from(source as u32) << 32) | u64::from(tag as u32);
        Self { call, shape: mix(envelope, u64::from(context)) }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (arguments {:#x})", self.call, self.shape)
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
    /// The time that the program read, in nanoseconds.
    Time(u64),
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
    /// `count` questions in a row found nothing.
    Nothing {
        /// The first of them.
        first: Question,
        /// How many.
        count: u64,
        /// All of them, in their order.
        hash: u64,
    },
    /// A question found something.
    Found {
        /// The question.
        question: Question,
        /// The answer.
        outcome: Outcome,
    },
    /// time() gave a date that is not known to be given from those before.
    Date(Date),
}
