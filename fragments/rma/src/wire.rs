//! Operations and replies as bytes: what the engine carries as messages whose receiver is the
//! target's (or the origin's) machine. Ids, never addresses; but a displacement in a dynamic window
//! is what the program says, which is an address (MPI-3.1 §11.2.4).
//!
//! ```text
//! operation  kind u8, epoch u8, op or lock u8, 0 u8, number u32, epoch number u64
//!   with data: displacement i64, first u64, bytes u64, layout, packed bytes
//!   compare and swap: displacement i64, primitive u8, 0 × 7, compared element, new element
//! reply      kind u8, error u8, 0 u16, number u32, packed bytes
//! ```
//!
//! `number` counts, in each direction of a pair and window, the operations that get a reply, so
//! that a reply that is not for the oldest open one is found.

use crate::arithmetic::Op;
use crate::error::RmaError;
use crate::layout::Layout;
use crate::memory::Part;
use crate::primitive::Primitive;
use rustbtl_fragments::little_endian::{LittleEndian, take_array, take_bytes};

/// Bytes of a part's data at most, 16 MiB: what a target may have to keep of one message.
pub const PART_BYTES_MAX: u64 = 1 << 24;

/// The epoch that an operation belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Epoch {
    /// A lock, or none (MPI_MODE_NOCHECK): as soon as it is its turn.
    Passive,
    /// Between this fence of the window and the next. Fences are counted from 1.
    Fence(u64),
    /// The origin's so many-th MPI_Win_start towards this target, from 1; it is paired with the
    /// target's MPI_Win_post towards this origin of the same number.
    Access(u64),
}

/// The target's memory that an operation is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// In units of the target; dynamic windows: an address.
    pub displacement: i64,
    /// The data of the whole operation.
    pub layout: Layout,
    /// The part that this message is about.
    pub part: Part,
}

/// What the target is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action<'a> {
    /// Write.
    Put {
        /// Where.
        place: Place,
        /// As many bytes as the part has.
        data: &'a [u8],
    },
    /// Read, and reply.
    Get {
        /// Where.
        place: Place,
    },
    /// Combine.
    Accumulate {
        /// How.
        op: Op,
        /// Where.
        place: Place,
        /// As many bytes as the part has; none for MPI_NO_OP.
        data: &'a [u8],
    },
    /// Read, combine, and reply with what was read.
    GetAccumulate {
        /// How.
        op: Op,
        /// Where.
        place: Place,
        /// As many bytes as the part has; none for MPI_NO_OP.
        data: &'a [u8],
    },
    /// Replace one element that is as expected; reply with what was there.
    CompareAndSwap {
        /// In units of the target.
        displacement: i64,
        /// The element.
        primitive: Primitive,
        /// What is expected.
        compare: &'a [u8],
        /// What replaces it.
        new: &'a [u8],
    },
    /// Lock the window; what follows waits behind it.
    Lock {
        /// MPI_LOCK_EXCLUSIVE.
        exclusive: bool,
        /// Reply when it is granted.
        wants_grant: bool,
    },
    /// Unlock it, and reply.
    Unlock,
    /// Reply.
    Flush,
    /// The end of the origin's access epoch.
    Complete,
}

/// A message from an origin to a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation<'a> {
    /// Its epoch.
    pub epoch: Epoch,
    /// Number of its reply; 0 if it gets none.
    pub number: u32,
    /// What is to be done.
    pub action: Action<'a>,
}

/// What a reply brings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer<'a> {
    /// What was read; nothing with an error.
    Data(&'a [u8]),
    /// All operations before the flush or unlock are applied.
    Done,
    /// The lock is granted.
    Granted,
}

/// A message from a target to an origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply<'a> {
    /// Number of the operation that it is for.
    pub number: u32,
    /// Why it, or (with `Done`) one before it, was refused.
    pub error: Option<RmaError>,
    /// What it brings.
    pub answer: Answer<'a>,
}

/// Bytes that are no message of this format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

const PUT: u8 = 1;
const GET: u8 = 2;
const ACCUMULATE: u8 = 3;
const GET_ACCUMULATE: u8 = 4;
const COMPARE_AND_SWAP: u8 = 5;
const LOCK: u8 = 6;
const UNLOCK: u8 = 7;
const FLUSH: u8 = 8;
const COMPLETE: u8 = 9;
const EXCLUSIVE: u8 = 1;
const WANTS_GRANT: u8 = 2;
const DATA: u8 = 1;
const DONE: u8 = 2;
const GRANTED: u8 = 3;

impl Action<'_> {
    /// Is there a reply?
    pub const fn is_replied(&self) -> bool {
        match self {
            Self::Put { .. } | Self::Accumulate { .. } | Self::Complete => false,
            Self::Lock { wants_grant, .. } => *wants_grant,
            _ => true,
        }
    }

    /// Does it depend on what others do at the same time, also in an active epoch?
    pub const fn is_atomic(&self) -> bool {
        matches!(
            self,
            Self::Accumulate { .. } | Self::GetAccumulate { .. } | Self::CompareAndSwap { .. }
        )
    }

    /// May it change the window's memory?
    pub fn writes(&self) -> bool {
        match self {
            Self::Put { .. } | Self::CompareAndSwap { .. } => true,
            Self::Accumulate { op, .. } | Self::GetAccumulate { op, .. } => *op != Op::NoOp,
            _ => false,
        }
    }

    /// Does its place among others matter? That of a flush does not: it comes behind what its
    /// origin has done before, which is in its place.
    pub const fn is_ordered(&self, epoch: Epoch) -> bool {
        match self {
            Self::Flush => false,
            _ => matches!(epoch, Epoch::Passive) || self.is_atomic(),
        }
    }

    /// Does it read or write the window?
    pub const fn is_access(&self) -> bool {
        !matches!(self, Self::Lock { .. } | Self::Unlock | Self::Flush | Self::Complete)
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Put { .. } => PUT,
            Self::Get { .. } => GET,
            Self::Accumulate { .. } => ACCUMULATE,
            Self::GetAccumulate { .. } => GET_ACCUMULATE,
            Self::CompareAndSwap { .. } => COMPARE_AND_SWAP,
            Self::Lock { .. } => LOCK,
            Self::Unlock => UNLOCK,
            Self::Flush => FLUSH,
            Self::Complete => COMPLETE,
        }
    }
}

impl Place {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), RmaError> {
        if self.part.bytes > PART_BYTES_MAX {
            return Err(RmaError::Type);
        }
        self.displacement.append(out);
        self.part.first.append(out);
        self.part.bytes.append(out);
        self.layout.encode(out)
    }

    fn decode(from: &mut &[u8]) -> Option<Self> {
        let displacement = i64::take_from(from)?;
        let part = Part { first: u64::take_from(from)?, bytes: u64::take_from(from)? };
        let layout = Layout::decode(from)?;
        let size = layout.primitive().size() as u64;
        let end = part.first.checked_add(part.bytes)?;
        let whole = part.first.is_multiple_of(size) && part.bytes.is_multiple_of(size);
        let inside = end <= layout.packed_bytes()? && part.bytes <= PART_BYTES_MAX;
        (whole && inside).then_some(Self { displacement, layout, part })
    }
}

impl<'a> Operation<'a> {
    /// Append it.
    ///
    /// # Errors
    /// `Type`: the layout cannot be described, the part is too large, or the data is not as long as
    /// the part. Then something may have been appended.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), RmaError> {
        let (epoch, epoch_number) = match self.epoch {
            Epoch::Passive => (0, 0),
            Epoch::Fence(number) => (1, number),
            Epoch::Access(number) => (2, number),
        };
        let detail = match &self.action {
            Action::Accumulate { op, .. } | Action::GetAccumulate { op, .. } => *op as u8,
            Action::Lock { exclusive, wants_grant } => {
                u8::from(*exclusive) * EXCLUSIVE + u8::from(*wants_grant) * WANTS_GRANT
            }
            _ => 0,
        };
        out.extend_from_slice(&[self.action.kind(), epoch, detail, 0]);
        self.number.append(out);
        epoch_number.append(out);
        match &self.action {
            Action::Put { place, data } => {
                place.encode(out)?;
                append_data(place, None, data, out)
            }
            Action::Get { place } => place.encode(out),
            Action::Accumulate { op, place, data } | Action::GetAccumulate { op, place, data } => {
                place.encode(out)?;
                append_data(place, Some(*op), data, out)
            }
            Action::CompareAndSwap { displacement, primitive, compare, new } => {
                let size = primitive.size();
                if compare.len() != size || new.len() != size {
                    return Err(RmaError::Type);
                }
                displacement.append(out);
                u64::from(*primitive as u8).append(out);
                out.extend_from_slice(compare);
                out.extend_from_slice(new);
                Ok(())
            }
            Action::Lock { .. } | Action::Unlock | Action::Flush | Action::Complete => Ok(()),
        }
    }

    /// The operation of a message.
    ///
    /// # Errors
    /// The bytes are none: the peer broke the protocol.
    pub fn decode(message: &'a [u8]) -> Result<Self, Malformed> {
        Self::read(message).ok_or(Malformed)
    }

    fn read(message: &'a [u8]) -> Option<Self> {
        let mut from = message;
        let [kind, epoch, detail, 0] = take_array(&mut from)? else { return None };
        let number = u32::take_from(&mut from)?;
        let epoch = match (epoch, u64::take_from(&mut from)?) {
            (0, 0) => Epoch::Passive,
            (1, number @ 1..) => Epoch::Fence(number),
            (2, number @ 1..) => Epoch::Access(number),
            _ => return None,
        };
        let takes_detail = matches!(kind, ACCUMULATE | GET_ACCUMULATE | LOCK);
        if detail != 0 && !takes_detail {
            return None;
        }
        let action = match kind {
            PUT => {
                let place = Place::decode(&mut from)?;
                Action::Put { data: take_data(&place, None, &mut from)?, place }
            }
            GET => Action::Get { place: Place::decode(&mut from)? },
            ACCUMULATE | GET_ACCUMULATE => {
                let op = Op::from_code(detail)?;
                let place = Place::decode(&mut from)?;
                let data = take_data(&place, Some(op), &mut from)?;
                match kind {
                    ACCUMULATE => Action::Accumulate { op, place, data },
                    _ => Action::GetAccumulate { op, place, data },
                }
            }
            COMPARE_AND_SWAP => {
                let displacement = i64::take_from(&mut from)?;
                let primitive = u8::try_from(u64::take_from(&mut from)?).ok()?;
                let primitive = Primitive::from_code(primitive)?;
                let compare = take_bytes(&mut from, primitive.size())?;
                let new = take_bytes(&mut from, primitive.size())?;
                Action::CompareAndSwap { displacement, primitive, compare, new }
            }
            LOCK if detail <= EXCLUSIVE + WANTS_GRANT => Action::Lock {
                exclusive: detail & EXCLUSIVE != 0,
                wants_grant: detail & WANTS_GRANT != 0,
            },
            UNLOCK => Action::Unlock,
            FLUSH => Action::Flush,
            COMPLETE => Action::Complete,
            _ => return None,
        };
        let numbered = action.is_replied() == (number != 0);
        let epoch_fits = match action {
            Action::Lock { .. } | Action::Unlock => epoch == Epoch::Passive,
            Action::Complete => matches!(epoch, Epoch::Access(_)),
            _ => true,
        };
        (from.is_empty() && numbered && epoch_fits).then_some(Self { epoch, number, action })
    }
}

fn data_bytes(place: &Place, op: Option<Op>) -> u64 {
    if op == Some(Op::NoOp) { 0 } else { place.part.bytes }
}

fn append_data(
    place: &Place,
    op: Option<Op>,
    data: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), RmaError> {
    if data.len() as u64 != data_bytes(place, op) {
        return Err(RmaError::Type);
    }
    out.extend_from_slice(data);
    Ok(())
}

fn take_data<'a>(place: &Place, op: Option<Op>, from: &mut &'a [u8]) -> Option<&'a [u8]> {
    take_bytes(from, data_bytes(place, op) as usize)
}

impl<'a> Reply<'a> {
    /// Append it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (kind, data) = match self.answer {
            Answer::Data(data) => (DATA, data),
            Answer::Done => (DONE, &[][..]),
            Answer::Granted => (GRANTED, &[][..]),
        };
        out.extend_from_slice(&[kind, self.error.map_or(0, RmaError::code), 0, 0]);
        self.number.append(out);
        out.extend_from_slice(data);
    }

    /// The reply of a message.
    ///
    /// # Errors
    /// The bytes are none: the peer broke the protocol.
    pub fn decode(message: &'a [u8]) -> Result<Self, Malformed> {
        Self::read(message).ok_or(Malformed)
    }

    fn read(message: &'a [u8]) -> Option<Self> {
        let mut from = message;
        let [kind, error, 0, 0] = take_array(&mut from)? else { return None };
        let number = u32::take_from(&mut from)?;
        let error = match error {
            0 => None,
            code => Some(RmaError::from_code(code)?),
        };
        let answer = match kind {
            DATA if error.is_none() || from.is_empty() => Answer::Data(from),
            DONE if from.is_empty() => Answer::Done,
            GRANTED if from.is_empty() && error.is_none() => Answer::Granted,
            _ => return None,
        };
        (number != 0).then_some(Self { number, error, answer })
    }
}

#[cfg(test)]
mod tests;
