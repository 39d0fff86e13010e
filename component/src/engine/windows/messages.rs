//! Messages of the machine of windows, as the engine sends and receives them: an operation with its
//! bytes behind it, both ours.

use crate::ffi::operation::Op;
use crate::ffi::table::{OF_WINDOW, Operation, STATE_PENDING};
use core::ptr::null_mut;
use rustbtl_fragments::host::DIRECT_TAGS;
use rustbtl_fragments::ids::{CommRank, ContextId};
use rustbtl_rma::machine::Lane;

/// A stream of messages for the machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stream {
    /// The window.
    pub window: ContextId,
    /// Who sends.
    pub from: CommRank,
    /// Operations, or replies.
    pub lane: Lane,
}

/// No message for the machine is longer: its packed bytes, and what describes them.
pub const MESSAGE_BYTES_MAX: u64 = 2 * rustbtl_rma::wire::PART_BYTES_MAX;

/// The engine's tag for a lane.
pub fn tag_of(lane: Lane) -> i32 {
    match lane {
        Lane::Operations => *DIRECT_TAGS.start(),
        Lane::Replies => *DIRECT_TAGS.end(),
    }
}

/// The lane of a tag.
pub fn lane_of(tag: i32) -> Lane {
    if tag == *DIRECT_TAGS.start() { Lane::Operations } else { Lane::Replies }
}

/// A message that is on its way from here, or to here. The engine has a pointer to its operation,
/// which is the first field.
#[repr(C)]
#[derive(Debug)]
pub struct Message {
    operation: Operation,
    /// Of one that comes: of no length before it is taken. It is not filled with zeros first, which
    /// would cost as much as a copy.
    bytes: Vec<u8>,
    /// Of one that comes: its stream. `None`: it is sent.
    stream: Option<Stream>,
    has_come: bool,
}

/// A message that the engine has. It is given back by [`MessageRef::take`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageRef(Op);

impl MessageRef {
    /// Make a message; `None`: there is no memory (which does not happen).
    fn new(mut bytes: Vec<u8>, length: u64, stream: Option<Stream>) -> Option<Self> {
        let operation = Operation {
            state: STATE_PENDING,
            start: bytes.as_mut_ptr(),
            bytes: length,
            convertor: null_mut(),
            id: 0,
            received: 0,
            source: 0,
            tag: 0,
            outcome: 0,
            kind: OF_WINDOW,
        };
        let message = Box::new(Message { operation, bytes, stream, has_come: false });
        // SAFETY: it stays where it is until `take`.
        unsafe { Op::new(Box::into_raw(message).cast()) }.map(Self)
    }

    /// One that is sent.
    pub fn to_send(bytes: Vec<u8>) -> Option<Self> {
        let length = bytes.len() as u64;
        Self::new(bytes, length, None)
    }

    /// Room for one that was announced.
    pub fn to_receive(stream: Stream, bytes: u64) -> Option<Self> {
        Self::new(Vec::with_capacity(bytes as usize), bytes, Some(stream))
    }

    /// Of an operation of kind `OF_WINDOW`.
    pub fn of(op: Op) -> Self {
        Self(op)
    }

    /// For the engine.
    pub fn op(self) -> Op {
        self.0
    }

    fn message(self) -> *mut Message {
        self.0.as_ptr().cast()
    }

    /// Of one that comes: its stream.
    pub fn stream(self) -> Option<Stream> {
        // SAFETY: made by `new`, not taken yet; the engine touches the operation only.
        unsafe { (*self.message()).stream }
    }

    /// All of it is here.
    pub fn set_come(self) {
        // SAFETY: as above.
        unsafe { (*self.message()).has_come = true };
    }

    /// Is it?
    pub fn has_come(self) -> bool {
        // SAFETY: as above.
        unsafe { (*self.message()).has_come }
    }

    /// Its bytes; the message is no more.
    ///
    /// # Safety
    /// The engine has done with it, and nobody else has it.
    pub unsafe fn take(self) -> Vec<u8> {
        // SAFETY: made by `Box::into_raw`; the caller's promise.
        let message = *unsafe { Box::from_raw(self.message()) };
        let mut bytes = message.bytes;
        if message.stream.is_some() && message.has_come {
            // What did not come, of a message that was cut short, is zeros.
            let (all, come) = (message.operation.bytes as usize, message.operation.received);
            let come = all.min(come as usize);
            // SAFETY: of this capacity; the engine has written so many bytes from its beginning on.
            unsafe { bytes.set_len(come) };
            bytes.resize(all, 0);
        }
        bytes
    }
}
