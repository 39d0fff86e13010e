//! Operations on the memory of a process that cannot be reached directly: it executes them itself,
//! whenever it makes progress. One-sided communication of Open MPI (osc/rdma) is made of them.
//!
//! ```text
//!  0 u8  kind     1 write, 2 read, 3 change, 4 answer
//!  1 u8  width    change: 4 or 8 bytes
//!  2 u8  change   1 add, 2 and, 3 or, 4 exclusive or, 5 swap, 6 compare and swap
//!  3 u8  zero
//!  4 u32 answer   what the answer is to be called; 0: none is wanted
//!  8 u64 address  write, read, change: of the one that executes it
//! 16 u64 operand  read: length; change: operand; answer: the value before the change
//! 24 u64 other    read: where it goes; compare and swap: what must be there
//! 32 …            write, answer to a read: data
//! ```
//!
//! Invariants:
//! 1. An operation is executed once, before anything that its sender sends afterwards: frames of a
//!    pair of processes are neither lost nor repeated nor out of order, and the one that executes
//!    does so before it looks at the next frame.
//! 2. An answer leaves after the operation was executed. So whoever has it knows that every other
//!    process sees what was written.
//! 3. Each operation that wants an answer is over once ([`Asked`]).
//! 4. A change is atomic with all other changes of this memory, and with those that threads of any
//!    process make by instructions of the processor, if the address is a multiple of its width.

use crate::btl::outbox::Cookie;
use crate::sync::lock::Lock;
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustbtl_fragments::ids::PeerId;
use rustbtl_fragments::little_endian::LittleEndian;
use slab::Slab;

/// Bytes of an operation in front of its data.
pub const OPERATION_BYTES: usize = 32;

/// What becomes of a value in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Change {
    /// It and the operand are added; what is more than the width holds is dropped.
    Add = 1,
    /// Those bits remain that the operand has, too.
    And = 2,
    /// Bits of the operand are set.
    Or = 3,
    /// Bits of the operand are inverted.
    Xor = 4,
    /// It becomes the operand.
    Swap = 5,
    /// It becomes the operand if it was what must be there.
    CompareAndSwap = 6,
}

impl Change {
    /// The change of this number.
    pub fn of(number: u8) -> Option<Self> {
        use Change::{Add, And, CompareAndSwap, Or, Swap, Xor};
        [Add, And, Or, Xor, Swap, CompareAndSwap].into_iter().find(|one| *one as u8 == number)
    }
}

/// A change of 4 or 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Atomic {
    /// Which one.
    pub change: Change,
    /// Is it of 4 bytes? Else of 8.
    pub narrow: bool,
    /// Where.
    pub address: u64,
    /// The operand.
    pub operand: u64,
    /// Compare and swap: what must be there.
    pub compare: u64,
}

/// Changes of values that lie across the processor's units.
static UNALIGNED: Lock = Lock::new();

macro_rules! change_of {
    ($of:expr, $atomic:ty, $value:ty) => {{
        let (operand, compare) = ($of.operand as $value, $of.compare as $value);
        let at = $of.address as *mut $value;
        if at.is_aligned() {
            // SAFETY: the caller's promise; aligned as it has to be.
            let value = unsafe { <$atomic>::from_ptr(at) };
            let order = Ordering::SeqCst;
            match $of.change {
                Change::Add => value.fetch_add(operand, order),
                Change::And => value.fetch_and(operand, order),
                Change::Or => value.fetch_or(operand, order),
                Change::Xor => value.fetch_xor(operand, order),
                Change::Swap => value.swap(operand, order),
                Change::CompareAndSwap => {
                    match value.compare_exchange(compare, operand, order, order) {
                        Ok(before) | Err(before) => before,
                    }
                }
            }
        } else {
            UNALIGNED.lock();
            // SAFETY: the caller's promise.
            let before = unsafe { at.read_unaligned() };
            let after = match $of.change {
                Change::Add => before.wrapping_add(operand),
                Change::And => before & operand,
                Change::Or => before | operand,
                Change::Xor => before ^ operand,
                Change::CompareAndSwap if before != compare => before,
                Change::Swap | Change::CompareAndSwap => operand,
            };
            // SAFETY: the caller's promise.
            unsafe { at.write_unaligned(after) };
            UNALIGNED.unlock();
            before
        }
    }};
}

impl Atomic {
    /// Change memory of this process; what was there before.
    ///
    /// # Safety
    /// The address is of so many bytes that may be written, and nobody has a reference to them.
    pub unsafe fn execute(&self) -> u64 {
        if self.narrow {
            u64::from(change_of!(self, AtomicU32, u32))
        } else {
            change_of!(self, AtomicU64, u64)
        }
    }
}

/// What one process asks of another, or answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// The data behind it go to this address.
    Write(u64),
    /// So many bytes from this address are wanted at that one of the sender.
    Read(u64, u64, u64),
    /// A change.
    Change(Atomic),
    /// It was executed; the value before a change; the data behind it are what was read.
    Answer(u64),
}

/// An operation, and what its answer is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// What is to be done, or was.
    pub operation: Operation,
    /// For the answer, or of it.
    pub answer: Option<NonZeroU32>,
}

impl Request {
    /// The bytes in front of the data.
    pub fn encode(&self) -> [u8; OPERATION_BYTES] {
        let (kind, words, shape) = match self.operation {
            Operation::Write(address) => (1, [address, 0, 0], (0, 0)),
            Operation::Read(address, len, into) => (2, [address, len, into], (0, 0)),
            Operation::Change(of) => {
                let shape = (if of.narrow { 4 } else { 8 }, of.change as u8);
                (3, [of.address, of.operand, of.compare], shape)
            }
            Operation::Answer(value) => (4, [0, value, 0], (0, 0)),
        };
        let mut out = [0; OPERATION_BYTES];
        out[..3].copy_from_slice(&[kind, shape.0, shape.1]);
        self.answer.map_or(0, NonZeroU32::get).write_at(&mut out, 4);
        for (at, word) in words.into_iter().enumerate() {
            word.write_at(&mut out, 8 + 8 * at);
        }
        out
    }

    /// What a payload begins with, and its data. `None`: no process of this version has sent it.
    pub fn decode(payload: &[u8]) -> Option<(Self, &[u8])> {
        let (head, data) = payload.split_first_chunk::<OPERATION_BYTES>()?;
        let [address, second, third] = [8, 16, 24].map(|at| u64::read_at(head, at));
        let answer = NonZeroU32::new(u32::read_at(head, 4));
        let operation = match head[..4] {
            [1, 0, 0, 0] => Operation::Write(address),
            [2, 0, 0, 0] if data.is_empty() => Operation::Read(address, second, third),
            [3, width @ (4 | 8), change, 0] if data.is_empty() => Operation::Change(Atomic {
                change: Change::of(change)?,
                narrow: width == 4,
                address,
                operand: second,
                compare: third,
            }),
            [4, 0, 0, 0] => Operation::Answer(second),
            _ => return None,
        };
        Some((Self { operation, answer }, data))
    }
}

/// Where the result of an operation goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Result {
    /// Nowhere.
    None,
    /// Data that are read, up to so many bytes.
    Data(*mut u8, usize),
    /// The value before a change, in 4 bytes or in 8.
    Value(*mut u8, usize),
}

#[derive(Debug)]
struct Pending {
    of: PeerId,
    cookie: Cookie,
    result: Result,
}

/// Operations of this process that others have not answered yet.
#[derive(Debug, Default)]
pub struct Asked {
    pending: Slab<Pending>,
}

impl Asked {
    /// What the answer of `of` is to be called.
    pub fn add(&mut self, of: PeerId, cookie: Cookie, result: Result) -> NonZeroU32 {
        let key = self.pending.insert(Pending { of, cookie, result });
        NonZeroU32::MIN.saturating_add(key as u32)
    }

    /// The cookie of what was answered, and where its result goes. `None`: this was not asked.
    pub fn take(&mut self, from: PeerId, answer: NonZeroU32) -> Option<(Cookie, Result)> {
        let key = answer.get() as usize - 1;
        let found = self.pending.get(key).is_some_and(|pending| pending.of == from);
        let pending = found.then(|| self.pending.remove(key))?;
        Some((pending.cookie, pending.result))
    }

    /// Does this process owe us an answer?
    pub fn waits_for(&self, peer: PeerId) -> bool {
        self.pending.iter().any(|(_, pending)| pending.of == peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn atomic(change: Change, narrow: bool, address: u64, operand: u64, compare: u64) -> Atomic {
        Atomic { change, narrow, address, operand, compare }
    }

    #[test]
    fn golden_bytes_of_operations() {
        let of = atomic(Change::CompareAndSwap, true, 0x0102, 0x0304, 0x0506);
        let request = Request { operation: Operation::Change(of), answer: NonZeroU32::new(7) };
        let mut golden = [0; OPERATION_BYTES];
        golden[..10].copy_from_slice(&[3, 4, 6, 0, 7, 0, 0, 0, 2, 1]);
        golden[16..18].copy_from_slice(&[4, 3]);
        golden[24..26].copy_from_slice(&[6, 5]);
        assert_eq!(request.encode(), golden);
    }

    #[test]
    fn what_is_written_is_read_and_every_other_head_is_refused() {
        let of = atomic(Change::Xor, false, 1, 2, 0);
        let all = [
            (Operation::Write(9), &b"data"[..]),
            (Operation::Read(9, 8, 7), b""),
            (Operation::Change(of), b""),
            (Operation::Answer(u64::MAX), b"data"),
        ];
        for (operation, data) in all {
            for answer in [None, NonZeroU32::new(u32::MAX)] {
                let request = Request { operation, answer };
                let mut bytes = [&request.encode()[..], data].concat();
                assert_eq!(Request::decode(&bytes), Some((request, data)));
                assert_eq!(Request::decode(&bytes[..OPERATION_BYTES - 1]), None);
                bytes[3] = 1;
                assert_eq!(Request::decode(&bytes), None);
            }
        }
        for (at, wrong) in [(0, 0), (0, 5), (1, 2), (2, 7), (2, 0)] {
            let request = Request { operation: Operation::Change(of), answer: None };
            let mut bytes = request.encode();
            bytes[at] = wrong;
            assert_eq!(Request::decode(&bytes), None, "{at} {wrong}");
        }
        let read = Request { operation: Operation::Read(9, 8, 7), answer: None };
        assert_eq!(Request::decode(&[&read.encode()[..], b"data"].concat()), None);
    }

    #[test]
    fn changes_are_what_their_names_say_aligned_or_not() {
        let cases = [
            (Change::Add, 0xF0, 0x30, 0, 0x120),
            (Change::And, 0xF0, 0x30, 0, 0x30),
            (Change::Or, 0xF0, 0x0F, 0, 0xFF),
            (Change::Xor, 0xF0, 0x30, 0, 0xC0),
            (Change::Swap, 0xF0, 0x30, 0, 0x30),
            (Change::CompareAndSwap, 0xF0, 0x30, 0xF0, 0x30),
            (Change::CompareAndSwap, 0xF0, 0x30, 0xF1, 0xF0),
        ];
        for (change, before, operand, compare, after) in cases {
            for (narrow, offset) in [(false, 0), (false, 3), (true, 4), (true, 6)] {
                let mut room = [0x5555_5555_5555_5555u64; 3];
                let at = room.as_mut_ptr() as u64 + offset;
                let width = if narrow { 4 } else { 8 };
                let bytes = u64::to_le_bytes(before);
                // SAFETY: inside the room.
                unsafe { (at as *mut u8).copy_from(bytes.as_ptr(), width) };
                // SAFETY: as above.
                let was = unsafe { atomic(change, narrow, at, operand, compare).execute() };
                assert_eq!(was, before);
                let mut is = [0; 8];
                // SAFETY: as above.
                unsafe { is.as_mut_ptr().copy_from(at as *const u8, width) };
                assert_eq!(u64::from_le_bytes(is), after, "{change:?} {narrow} {offset}");
                assert_eq!(room[2], 0x5555_5555_5555_5555);
            }
        }
    }

    #[test]
    fn narrow_sums_wrap_and_leave_their_neighbour_alone() {
        let mut room = [u32::MAX, 7];
        let at = room.as_mut_ptr() as u64;
        // SAFETY: inside the room.
        let was = unsafe { atomic(Change::Add, true, at, u64::MAX, 0).execute() };
        assert_eq!((was, room), (u64::from(u32::MAX), [u32::MAX - 1, 7]));
    }

    #[test]
    fn each_operation_is_answered_once_by_whom_it_was_asked_of() {
        let mut asked = Asked::default();
        let one = asked.add(PeerId(4), 11, Result::None);
        let two = asked.add(PeerId(5), 12, Result::None);
        assert_ne!(one, two);
        assert_eq!(asked.take(PeerId(5), one), None);
        assert!(asked.waits_for(PeerId(4)));
        assert_eq!(asked.take(PeerId(4), one), Some((11, Result::None)));
        assert_eq!(asked.take(PeerId(4), one), None);
        assert!(!asked.waits_for(PeerId(4)) && asked.waits_for(PeerId(5)));
    }
}
