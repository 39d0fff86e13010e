//! Names of things. Ids travel on the wire and into images; addresses never do.

use core::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id! {
    /// A process this one can talk to. Equal to the rank in the world of the job for its members;
    /// processes of other jobs (MPI_Comm_spawn, MPI_Comm_connect) get numbers after them.
    PeerId(u32)
}
id! {
    /// Rank of a process in one communicator (in the remote group of an intercommunicator).
    CommRank(u32)
}
id! {
    /// Names a communicator, the same at each of its members. Low half: MPI's context id, which
    /// comes again when the communicator is freed. High half: its instance, so that a message of
    /// a later communicator with the same id is not taken for one of this one by a process that
    /// executes its past again (DESIGN.md "Context ids are reused"). Drivers without recovery may
    /// leave it 0. Streams go by the low half alone: they outlive communicators.
    ContextId(u32)
}

impl ContextId {
    /// The communicator with MPI context id `number` and this instance.
    pub const fn new(number: u16, instance: u16) -> Self {
        Self(((instance as u32) << 16) | number as u32)
    }

    /// MPI's context id.
    #[inline]
    pub const fn number(self) -> u32 {
        self.0 & 0xFFFF
    }
}
id! {
    /// Correlated set: the lowest rank in the world of the job among its members.
    SetId(u32)
}
id! {
    /// How many times a set was started again.
    Incarnation(u16)
}
id! {
    /// Number of a message in its stream, from 0. With the stream it names the message for ever.
    MessageSeq(u64)
}
id! {
    /// A communicator in this process's engine (an index; not the same at its other members).
    CommId(u32)
}

/// Names a message for ever: its sender, its stream, its number there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MessageName {
    /// Who sent it.
    pub from: PeerId,
    /// MPI's context id, without instance.
    pub context: u32,
    /// 0 for all user tags, else the tag.
    pub lane: i32,
    /// Its number in the stream.
    pub sequence: MessageSeq,
}

/// Names a receive in its process, the same when the program is executed again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReceiveName {
    /// MPI's context id, without instance.
    pub context: u32,
    /// 0: the receives of user tags and MPI_ANY_TAG, counted together. Negative: those from
    /// MPI_ANY_SOURCE with this tag of the library's.
    pub lane: i32,
    /// Which of them, from 1, in the order of posting.
    pub number: u64,
}

macro_rules! generational {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// Low half: index; high half: generation, so that an id that arrives late names nothing
        /// rather than something else.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The id of slot `index` in its `generation`.
            pub const fn new(index: u32, generation: u32) -> Self {
                Self(((generation as u64) << 32) | index as u64)
            }
            /// Which slot.
            pub const fn index(self) -> u32 {
                self.0 as u32
            }
            /// Which use of the slot.
            pub const fn generation(self) -> u32 {
                (self.0 >> 32) as u32
            }
        }
    };
}

generational! {
    /// A send that is not finished, at its sender.
    SendId
}
generational! {
    /// A receive that is not finished, at its receiver.
    ReceiveId
}
generational! {
    /// An unexpected message that MPI_Mprobe has taken out of matching.
    MessageId
}

impl ReceiveId {
    /// A receive that waits among others that are alike: it gets an id when somebody needs one.
    /// (No slot has this number.)
    pub const NONE: Self = Self(u64::MAX);
}

/// Where a payload lies in the payload log (made and understood by the log alone).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct LogRecord(pub u64);
