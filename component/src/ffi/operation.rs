//! An operation of Open MPI's, as the engine sees it: the memory to send from or receive into, and
//! the token that comes back when it is complete. All three are the same pointer.

use crate::ffi::table::{
    CANCELLED, IN_REQUEST, OF_WINDOW, ON_STACK, Operation, STATE_COMPLETE, TRUNCATED,
};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};
use memoffset::offset_of;
use rustbtl_fragments::host::Status;
use static_assertions::const_assert_eq;

const_assert_eq!(offset_of!(Operation, state), 0);

/// Pointer to an operation that is posted. Invariant (kept by C, see glue.h): from post to
/// completion it stays where it is, and nobody but this crate touches it except for `state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op(NonNull<Operation>);

impl Op {
    /// # Safety
    /// The invariant of the type.
    #[inline]
    pub unsafe fn new(operation: *mut Operation) -> Option<Self> {
        NonNull::new(operation).map(Self)
    }

    /// For the functions of the glue.
    #[inline]
    pub fn as_ptr(self) -> *mut Operation {
        self.0.as_ptr()
    }

    #[inline]
    fn get(&self) -> &Operation {
        // SAFETY: invariant of the type; `state`, which others may write, is not read through it.
        unsafe { self.0.as_ref() }
    }

    /// Convertor, if the memory is not contiguous.
    #[inline]
    pub fn convertor(&self) -> Option<*mut core::ffi::c_void> {
        let convertor = self.get().convertor;
        if convertor.is_null() { None } else { Some(convertor) }
    }

    /// Contiguous memory.
    #[inline]
    pub fn start(&self) -> *mut u8 {
        self.get().start
    }

    /// Packed bytes of message or buffer.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.get().bytes
    }

    /// Does a blocking call wait for it?
    #[inline]
    pub fn on_stack(&self) -> bool {
        self.get().kind == ON_STACK
    }

    /// Is it a part of an MPI request?
    pub fn in_request(&self) -> bool {
        self.get().kind == IN_REQUEST
    }

    /// Is it of a message of one-sided communication that Rust has made?
    #[inline]
    pub fn is_of_window(&self) -> bool {
        self.get().kind == OF_WINDOW
    }

    /// How it ended, for C.
    pub fn set_outcome(&mut self, outcome: u32) {
        // SAFETY: invariant of the type; a plain field.
        unsafe { (*self.0.as_ptr()).outcome = outcome };
    }

    /// The engine's name for it.
    #[inline]
    pub fn id(&self) -> u64 {
        self.get().id
    }

    /// Remember the engine's name for it.
    #[inline]
    pub fn set_id(&mut self, id: u64) {
        // SAFETY: invariant of the type; a plain field that only this crate touches.
        unsafe { (*self.0.as_ptr()).id = id };
    }

    /// The results of a receive.
    #[inline]
    pub fn fill(&mut self, status: &Status) {
        // SAFETY: invariant of the type; `state` is not touched.
        let operation = unsafe { self.0.as_mut() };
        operation.received = status.bytes;
        operation.source = status.source.0 as i32;
        operation.tag = status.tag;
        operation.outcome = if status.truncated { TRUNCATED } else { 0 }
            | if status.cancelled { CANCELLED } else { 0 };
    }

    /// Tell the waiting call. Only without threads; the operation is gone afterwards.
    #[inline]
    pub fn set_complete(self) {
        // SAFETY: invariant of the type: the first field lives; others touch it atomically.
        let state = unsafe { self.0.cast::<AtomicUsize>().as_ref() };
        // [complete] the results: the checkpoint thread may be the one who completes it.
        state.store(STATE_COMPLETE, Ordering::Release);
    }

    /// Is it complete? Only for the call that waits for it.
    #[inline]
    pub fn is_complete(&self) -> bool {
        // SAFETY: invariant of the type: the first field lives; others touch it atomically.
        let state = unsafe { self.0.cast::<AtomicUsize>().as_ref() };
        // [complete] the results.
        state.load(Ordering::Acquire) == STATE_COMPLETE
    }

    /// Bytes `offset..offset + bytes` of contiguous memory.
    ///
    /// # Safety
    /// They are inside the program's buffer, and nobody writes to them while the result lives.
    #[inline]
    pub unsafe fn slice<'a>(&self, offset: u64, bytes: u64) -> &'a [u8] {
        if bytes == 0 {
            return &[];
        }
        let start = self.start().wrapping_add(offset as usize);
        // SAFETY: the caller's promise.
        unsafe { core::slice::from_raw_parts(start, bytes as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustbtl_fragments::ids::CommRank;

    #[test]
    fn results_of_a_receive_reach_the_operation() {
        let mut operation = Operation {
            state: 0,
            start: core::ptr::null_mut(),
            bytes: 8,
            convertor: core::ptr::null_mut(),
            id: 0,
            received: 0,
            source: 0,
            tag: 0,
            outcome: 9,
            kind: ON_STACK,
        };
        // SAFETY: it lives to the end of the test.
        let mut op = unsafe { Op::new(&mut operation) }.unwrap();
        assert!(op.on_stack() && !op.is_complete() && op.convertor().is_none());
        let status =
            Status { source: CommRank(3), tag: 7, bytes: 16, truncated: true, cancelled: false };
        op.fill(&status);
        op.set_complete();
        assert!(op.is_complete());
        assert_eq!((operation.source, operation.tag, operation.received), (3, 7, 16));
        assert_eq!(operation.outcome, TRUNCATED);
    }
}
